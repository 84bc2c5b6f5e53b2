"""What every measurement needs: models, medians of alternating runs, a line about the machine."""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parse_engine.backends.loading import LoadOptions
    from parse_engine.config import ParseConfig
    from parse_engine.engine import Engine


def add_models(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the two models."""
    parser.add_argument("--target", help="hub id, folder or .gguf file (default: the demo pair)")
    parser.add_argument("--draft", help="the same for the draft model")


def open_engine(
    parser: argparse.ArgumentParser, args: argparse.Namespace, config: ParseConfig | None = None
) -> Engine:
    """Load the models that were named, or the demo pair."""
    from transformers.utils import logging

    from parse_engine.engine import Engine

    if not sys.stderr.isatty():
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    if bool(args.target) != bool(args.draft):
        parser.error("give both --target and --draft, or neither for the demo pair")
    dtype = getattr(args, "dtype", None)
    if not args.target:
        if dtype:
            parser.error("--dtype goes with --target and --draft: the demo pair has its own")
        return Engine.demo(config=config)
    loading: LoadOptions = {"dtype": dtype} if dtype else {}
    return Engine.from_pretrained(args.target, args.draft, config=config, **loading)


def alternate(ways: Mapping[str, Callable[[], Any]], repeat: int) -> dict[str, list[float]]:
    """Time several ways to do a thing in turn, so that a busy moment hits all of them.

    Parameters
    ----------
    ways : mapping of str to callable
        Each is run once untimed, then ``repeat`` times.

    Returns
    -------
    dict of str to list of float
        Seconds of each run.
    """
    for way in ways.values():
        way()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeat):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def ratio(over: list[float], under: list[float]) -> float:
    """Return the median of the ratios of runs that stood beside each other."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


def machine() -> str:
    """Return one line about the machine and the versions."""
    import torch
    import transformers

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    return (
        f"{device}, {torch.get_num_threads()} threads, Python {platform.python_version()}, "
        f"torch {torch.__version__}, transformers {transformers.__version__}"
    )
