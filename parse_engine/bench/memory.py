"""Peak memory of a piece of work."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any


def peak_bytes(work: Callable[[], Any]) -> int:
    """Return how far memory rises above its level at the start.

    On an accelerator, what torch allocates; otherwise resident memory of this process, which the
    Linux kernel keeps the peak of.
    """
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        start = torch.cuda.memory_allocated()
        work()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - start
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what was freed before would hide what is taken now
    Path("/proc/self/clear_refs").write_text("5")  # sets the peak back to the present level
    start = _status("VmRSS")
    work()
    return _status("VmHWM") - start


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {name}")
