"""What every measurement needs: models, medians of alternating runs, a line about the machine."""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parse_engine.bench.forms import FORMS
from parse_engine.bench.tasks import Task, load_tasks
from parse_engine.cli_args import add_loading, count, loading_of
from parse_engine.errors import InvalidRequestError

if TYPE_CHECKING:
    from parse_engine.bench.store import Key, Row, Store
    from parse_engine.config import ParseConfig
    from parse_engine.engine import Engine


def add_models(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the two models."""
    parser.add_argument("--target", help="hub id, folder or .gguf file (default: the demo pair)")
    parser.add_argument("--draft", help="the same for the draft model")
    add_loading(parser)


def add_tasks(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which questions are asked."""
    parser.add_argument(
        "--tasks",
        required=True,
        metavar="LIST",
        help=f"files, NAME=FILE, or of {', '.join(FORMS)} those that lie in --data",
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="where the publishers' files lie")
    parser.add_argument(
        "--limit", type=count, metavar="N", help="items of each task, drawn by --seed"
    )
    parser.add_argument(
        "--skip",
        type=whole,
        default=0,
        metavar="N",
        help="leave out the first items that --seed draws: those of a measurement with --limit N",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="default: 0")
    parser.add_argument(
        "--max-new-tokens", type=count, default=320, metavar="N", help="default: 320"
    )


def describe_models(args: argparse.Namespace) -> dict[str, Any]:
    """Return what decides about the models of a folder of results."""
    return {
        "target": "demo" if args.target is None else args.target,
        "draft": "demo" if args.draft is None else args.draft,
        "dtype": args.dtype,
        "chat_template_kwargs": args.chat_template_kwargs,
    }


def whole(text: str) -> int:
    """Read a number of items to leave out."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number")
    return int(text)


def tasks_of(args: argparse.Namespace) -> list[Task]:
    """Read the questions that these options name."""
    tasks = load_tasks(args.tasks, args.data)
    return [task.sample(args.limit, args.seed, args.skip) for task in tasks]


def open_engine(
    parser: argparse.ArgumentParser, args: argparse.Namespace, config: ParseConfig | None = None
) -> Engine:
    """Load the models that were named, or the demo pair."""
    from transformers.utils import logging

    from parse_engine.engine import Engine

    if not sys.stderr.isatty():
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    if (args.target is None) != (args.draft is None):
        parser.error("give both --target and --draft, or neither for the demo pair")
    if args.target is None:
        if args.dtype is not None or args.chat_template_kwargs:
            parser.error(
                "--dtype and --chat-template-kwargs go with --target and --draft: the demo pair "
                "has its own"
            )
        return Engine.demo(config=config)
    return Engine.from_pretrained(args.target, args.draft, config=config, **loading_of(args))


def same_models(engine: Engine, store: Store, rows: Mapping[Key, Row]) -> list[str]:
    """Return what tells these models, and what computes them, from others of their names.

    Raises
    ------
    InvalidRequestError
        If the rows of the store are of others.
    """
    models = [one.fingerprint for one in (engine.target, engine.draft) if one is not None]
    models.append(engine.target.network.device.type)
    others = [row["models"] for row in rows.values() if row.get("models", models) != models]
    if others:
        raise InvalidRequestError(
            f"{str(store.folder)!r} holds results of other models of these names, or from another "
            f"device: {others[0]}, not {models}.",
            "Choose another folder.",
        )
    return models


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
