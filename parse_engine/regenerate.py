"""The target goes on from the end of what was accepted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from parse_engine.backends.model import Model
from parse_engine.request import Sampling

if TYPE_CHECKING:
    from transformers import Cache, PreTrainedModel


def regenerate(
    target: Model,
    ids: Sequence[int],
    cache: Cache | None,
    limit: int,
    sampling: Sampling,
    on_token: Callable[[int], bool],
    processors: Sequence[Callable[[Any, Any], Any]] = (),
) -> tuple[tuple[int, ...], int]:
    """Write the rest of an answer on the cache that verification left.

    The cache is cropped so that one token of the accepted text is fed again: its logits choose the
    first new token. It takes the place of the last new token, which is written but never fed.

    Parameters
    ----------
    target : Model
        The writer.
    ids : sequence of int
        Prompt and accepted tokens.
    cache : Cache, optional
        Keys and values of a text that starts with ``ids``; None reads ``ids`` anew.
    limit : int
        Most tokens to write, at least 1.
    sampling : Sampling
        How to choose tokens.
    on_token : callable
        Called with each new token; returns whether to stop.
    processors : sequence of callable
        What restricts the writing.

    Returns
    -------
    (tuple of int, int)
        R new token ids, and how many token positions went through the target.
    """
    if cache is not None:
        cache.crop(min(0, len(ids) - 1 - cache.get_seq_length()))
    with count_positions(target.network) as fed:
        written = target.write(
            ids,
            limit=limit,
            sampling=sampling,
            on_token=on_token,
            cache=cache,
            processors=processors,
        )
    return written, sum(fed)


@contextmanager
def count_positions(network: PreTrainedModel) -> Iterator[list[int]]:
    """Count the token positions that this thread sends through a network, one entry a forward.

    ``generate`` decides what it feeds: some models read the whole text again in the middle.
    """
    counts: list[int] = []
    thread = threading.get_ident()

    def count(module: Any, args: Any, kwargs: Any = None) -> None:  # noqa: ARG001 - as torch calls
        # torch registers a hook in two steps: between them another thread calls without kwargs
        if threading.get_ident() == thread and kwargs.get("input_ids") is not None:
            counts.append(kwargs["input_ids"].shape[1])

    handle = network.register_forward_pre_hook(count, with_kwargs=True)
    try:
        yield counts
    finally:
        handle.remove()
