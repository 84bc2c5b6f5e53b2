"""All methods on the same questions, in turn, in one process: ``python -m parse_engine bench run``.

Every item is answered by each method before the next item comes, and the methods take turns in
going first, so that a busy moment of the machine hits all of them and the ratios hold. All write
greedily. An interrupted run goes on where it was when the same command is given again. An answer
that fails is no end of the run: it is counted in the report, and asked again then.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import zip_longest
from typing import Any

from parse_engine import __version__
from parse_engine.bench import forms
from parse_engine.bench.common import (
    add_models,
    add_tasks,
    describe_models,
    machine,
    open_engine,
    same_models,
    tasks_of,
)
from parse_engine.bench.forms import Item
from parse_engine.bench.measure import measure, warm_up
from parse_engine.bench.methods import METHODS, Entry, parse_methods
from parse_engine.bench.report import finish
from parse_engine.bench.store import Store
from parse_engine.bench.tasks import Task
from parse_engine.calibration import Calibration
from parse_engine.cli_args import SETTINGS, add_settings, folder
from parse_engine.config import ParseConfig
from parse_engine.errors import FallbackWarning
from parse_engine.options import split_options


def build_parser() -> argparse.ArgumentParser:
    """Describe the options."""
    listed = "\n".join(f"  {name:22}{method.does}" for name, method in METHODS.items())
    parser = argparse.ArgumentParser(
        prog="python -m parse_engine bench run",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=(__doc__ or "").replace("``", ""),
        epilog=f"methods:\n{listed}\n\ntasks:\n{forms.__doc__}".replace("``", ""),
    )
    add_tasks(parser)
    parser.add_argument(
        "--methods",
        default="target,parse,draft",
        metavar="LIST",
        help="some of those below, or all; parse@0.9 sets a threshold, spec_reason@5 a score, "
        "parse:min_prob a verdict with its own threshold or parse:min_prob@0.2 with this, "
        "parse:FILE a calibration (default: target,parse,draft); sequential asks the judge, as "
        "parse:p_correct does",
    )
    parser.add_argument(
        "--out", type=folder, required=True, metavar="DIR", help="results and report"
    )
    add_models(parser)
    add_settings(parser).add_argument(
        "--threshold",
        type=thresholds,
        default=(),
        metavar="P[,P...]",
        help="verdict that a prefix must reach; with several, parse runs once with each, and what "
        "else needs one takes the first",
    )
    return parser


def thresholds(text: str) -> tuple[float, ...]:
    """Read numbers from 0 to 1."""
    try:
        values = tuple(dict.fromkeys(float(word) for word in text.split(",")))
    except ValueError:
        values = ()
    if not values or not all(0 <= value <= 1 for value in values):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers from 0 to 1")
    return values


def main(argv: Sequence[str]) -> int:
    """Measure what is not measured yet, and report."""
    parser = build_parser()
    args = parser.parse_args(argv)
    entries = parse_methods(args.methods, args.threshold)
    tasks = tasks_of(args)
    given = {name: getattr(args, name) for name in SETTINGS if getattr(args, name) is not None}
    config = ParseConfig(threshold=args.threshold[0] if args.threshold else None, **given)
    for entry in entries:
        split_options(config, entry.acceptance)  # refuses what cannot go together
    store = Store(args.out)
    with store.locked():
        answer_all(parser, args, store, tasks, entries, config)
        print(finish(store))
    return 0


def answer_all(
    parser: argparse.ArgumentParser,
    args: argparse.Namespace,
    store: Store,
    tasks: Sequence[Task],
    entries: Sequence[Entry],
    config: ParseConfig,
) -> None:
    """Let every method answer what it has not answered yet."""
    done = store.open(manifest(args, tasks, entries, config))
    left = [
        (task, item, entry)
        for task, item, entry in turns(tasks, entries)
        if "error" in done.get((task.name, item.id, entry.label), {"error": "not asked yet"})
    ]
    if left:
        from tqdm import tqdm

        engine = open_engine(parser, args, config)
        models = same_models(engine, store, done)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FallbackWarning)  # each row says it
            warm_up(engine, entries)
            try:
                for task, item, entry in (bar := tqdm(left, disable=None, unit="answer")):
                    row = measure(engine, task, item, entry, args.max_new_tokens)
                    store.add({**row, "models": models})
                    if "error" in row:
                        failed = f"{task.name} {item.id}, {entry.label}: {row['error']}"
                        bar.write(failed, file=sys.stderr)
            except KeyboardInterrupt:
                print("Give the same command again to go on from here.", file=sys.stderr)
                raise


def turns(tasks: Sequence[Task], entries: Sequence[Entry]) -> Iterator[tuple[Task, Item, Entry]]:
    """Yield who answers what, in order: the tasks item by item, the methods in rotation."""
    for number, items in enumerate(zip_longest(*(task.items for task in tasks))):
        for place, (task, item) in enumerate(zip(tasks, items, strict=True)):
            if item is not None:
                first = (number + place) % len(entries)
                for entry in (*entries[first:], *entries[:first]):
                    yield task, item, entry


def manifest(
    args: argparse.Namespace, tasks: Sequence[Task], entries: Sequence[Entry], config: ParseConfig
) -> dict[str, Any]:
    """Say what is measured, so that nothing else is added to it."""
    return {
        "command": "bench run",
        **describe_models(args),
        "methods": [entry.label for entry in entries],
        "calibrations": {
            entry.label: entry.verdict.as_dict()
            for entry in entries
            if isinstance(entry.verdict, Calibration)
        },
        "tasks": [
            {"name": task.name, "items": len(task.items), "sha256": task.digest} for task in tasks
        ],
        "max_new_tokens": args.max_new_tokens,
        "seed": args.seed,
        "config": {**asdict(config), **asdict(config.acceptance)},
        "machine": machine(),
        "version": __version__,
    }
