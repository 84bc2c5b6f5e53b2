"""Counting and timing the forward passes of a network."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass
class Meter:
    """The passes of one network, as long as ``measuring`` lasts.

    Parameters
    ----------
    positions : list of int
        Token positions that each pass fed.
    seconds : list of float
        How long each pass took.
    """

    positions: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def seconds_of(self, *, several: bool) -> float:
        """Return the time of the passes that fed several tokens, or of those that fed one."""
        both = zip(self.positions, self.seconds, strict=True)
        return sum(seconds for count, seconds in both if (count > 1) is several)


@contextmanager
def measuring(network: PreTrainedModel) -> Iterator[Meter]:
    """Count and time every forward pass of a network, whichever thread makes it.

    On a CUDA device the times are taken by the device, so that nothing waits for them; they are
    there when the block is left.
    """
    meter = Meter()
    on_device = network.device.type == "cuda"
    marks: list[Any] = []

    def now() -> Any:
        if not on_device:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def before(module: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG001 - as torch calls it
        meter.positions.append(kwargs["input_ids"].shape[1])
        marks.append(now())

    def after(*_: Any) -> None:
        marks.append(now())

    handles = (
        network.register_forward_pre_hook(before, with_kwargs=True),
        network.register_forward_hook(after),
    )
    try:
        yield meter
    finally:
        for handle in handles:
            handle.remove()
        meter.seconds = _intervals(marks, on_device)
        del meter.positions[len(meter.seconds) :]  # a pass that failed


def _intervals(marks: Sequence[Any], on_device: bool) -> list[float]:
    pairs = list(zip(marks[::2], marks[1::2], strict=False))
    if not on_device:
        return [end - start for start, end in pairs]
    torch.cuda.synchronize()
    return [start.elapsed_time(end) / 1000 for start, end in pairs]
