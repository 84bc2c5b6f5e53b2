"""The truth about the judge: ``python -m parse_engine bench judge``.

The draft model answers every item several times, a checker says which answers are right, and the
target judges them: how well do its verdicts tell the right ones from the wrong ones? Compared are
p_correct, the signals that the same passes give for free, and logistic combinations of them, which
are fitted to other items than those they are tried on; and what would be kept of the drafts at the
default thresholds, by rule of acceptance and by where prefixes end. Drafts that the limit cut off
are left out.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

from parse_engine.bench.common import (
    add_models,
    add_tasks,
    describe_models,
    machine,
    open_engine,
    tasks_of,
)
from parse_engine.bench.drafts import Drafting, LabelledDraft, check_prompts, make_drafts
from parse_engine.bench.forms import Item
from parse_engine.bench.judge_report import html_report, markdown_report
from parse_engine.bench.judge_summary import summarize
from parse_engine.bench.store import REPORT, Store
from parse_engine.bench.tasks import Task
from parse_engine.bench.verdict_rows import judge_drafts, read_judged
from parse_engine.calibration import Calibration, read_calibration
from parse_engine.cli_args import count, cut_rules, folder, names_in, share, temperature
from parse_engine.config import ParseConfig
from parse_engine.engine import Engine
from parse_engine.errors import InvalidRequestError

# What the judge is told and asked.
WORDINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "yes_no": {"labels": ("Yes", "No"), "question": "Is all of this right so far?"},
    "true_false": {"labels": ("True", "False")},
    "terse": {
        "brief": "Judge the assistant's answer to the user. Say Correct if everything in it is "
        "right, Incorrect if anything is wrong. It may be unfinished.",
    },
}


def build_parser() -> argparse.ArgumentParser:
    """Describe the options."""
    parser = argparse.ArgumentParser(
        prog="python -m parse_engine bench judge",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=folder, required=True, metavar="DIR", help="rows and report")
    add_drafting(parser)
    parser.add_argument(
        "--layouts", type=names_in, default=("brief",), metavar="LIST", help="of brief, quote"
    )
    parser.add_argument(
        "--wordings",
        type=names_in,
        default=("default",),
        metavar="LIST",
        help=f"of {', '.join(WORDINGS)}",
    )
    parser.add_argument(
        "--cuts",
        type=cut_rules,
        default=(),
        metavar="LIST",
        help="where prefixes may end beside auto, to compare: line, sentence, numbers of tokens",
    )
    parser.add_argument(
        "--calibration",
        metavar="FILE",
        help="what calibrate wrote, in the default wording, to be tried on these drafts; --skip "
        "those that it was made from",
    )
    parser.add_argument(
        "--max-false-accept",
        type=share,
        default=0.15,
        metavar="P",
        help="where true acceptance is read off (default: 0.15)",
    )
    return parser


def add_drafting(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what is drafted, by whom and how."""
    add_tasks(parser)
    add_models(parser)
    parser.add_argument(
        "--samples",
        type=count,
        default=2,
        metavar="N",
        help="drafts an item, the first without temperature (default: 2)",
    )
    parser.add_argument(
        "--temperature", type=temperature, default=0.8, metavar="T", help="default: 0.8"
    )
    parser.add_argument(
        "--batch", type=count, default=8, metavar="N", help="prompts drafted at once (default: 8)"
    )


def main(argv: Sequence[str]) -> int:
    """Draft, check and judge what is not done yet, and report."""
    parser = build_parser()
    args = parser.parse_args(argv)
    unknown = [w for w in args.wordings if w not in WORDINGS] + [
        layout for layout in args.layouts if layout not in ("brief", "quote")
    ]
    if unknown:
        parser.error(f"there is no layout or wording {unknown[0]!r}")
    tasks = tasks_of(args)
    for task in tasks:
        if any(item.check is None for item in task.items):
            raise InvalidRequestError(
                f"Task {task.name} has items that nothing can check.",
                "Give each an answer or a test; bench run --help describes the forms of files.",
            )
    store = Store(args.out)
    with store.locked():
        print(judged(parser, args, tasks, store))
    return 0


def judged(
    parser: argparse.ArgumentParser, args: argparse.Namespace, tasks: Sequence[Task], store: Store
) -> str:
    """Draft, check and judge what is not done yet, and return the report."""
    store.open({"command": "bench judge", **describe_drafting(args, tasks)})
    how = drafting(args)
    asked = {
        f"{layout}/{wording}": ParseConfig(
            judge_layout=layout, verdict="p_correct", **WORDINGS[wording]
        )
        for layout in args.layouts
        for wording in args.wordings
    }
    # nothing is asked for these, and the other verdicts that can be read off come with this one
    read = {
        f"cut {cut}": ParseConfig(cut_at=cut, verdict="joint_prob")
        for cut in dict.fromkeys(("auto", *args.cuts))
    }
    calibration = None if args.calibration is None else read_calibration(args.calibration)
    layout = calibration.binding.layout if calibration is not None else None
    if layout is not None and f"{layout}/default" not in asked:
        parser.error(f"--calibration takes {layout} among --layouts and default among --wordings")
    if calibration is not None or not finished(store, tasks, how, (*asked, *read)):
        engine = open_engine(
            parser, args, ParseConfig(calibration=calibration, judge_layout=layout or "brief")
        )
        check_prompts(engine, tasks, how)
        drafts = draft_all(engine, tasks, how, store)
        for way, config in {**asked, **read}.items():
            judging = Engine(engine.target, engine.draft, config)
            judge_all(judging, tasks, drafts, way, store)
    ways = list(asked), list(read)
    return report(store, *ways, tasks, how.samples, args.max_false_accept, calibration)


def finished(store: Store, tasks: Sequence[Task], how: Drafting, ways: Iterable[str]) -> bool:
    """Whether all drafts and verdicts are there, so that no model is needed."""
    rows = store.rows()
    for task, sample in product(tasks, range(how.samples)):
        for item in task.items:
            draft = rows.get((task.name, item.id, f"draft {sample}"))
            if draft is None:
                return False
            judged = (rows.get((task.name, item.id, f"{way} {sample}")) for way in ways)
            if draft["complete"] and draft["ids"] and not all(judged):
                return False
    return True


def drafting(args: argparse.Namespace) -> Drafting:
    """Return how drafts are written, from the options."""
    return Drafting(args.samples, args.temperature, args.seed, args.max_new_tokens, args.batch)


def describe_drafting(args: argparse.Namespace, tasks: Sequence[Task]) -> dict[str, Any]:
    """Return what decides about the drafts of a folder: it holds those of one description."""
    return {
        **describe_models(args),
        "tasks": {task.name: [len(task.items), task.digest] for task in tasks},
        "temperature": args.temperature,
        "seed": args.seed,
        "max_new_tokens": args.max_new_tokens,
    }


def fault_of(item: Item, text: str) -> str | None:
    """Ask the item's own checker what is wrong."""
    assert item.check is not None
    return item.check(text)


def draft_all(
    engine: Engine, tasks: Sequence[Task], how: Drafting, store: Store
) -> list[LabelledDraft]:
    """Write the drafts that are missing and return all of them, with a bar for who waits."""
    from tqdm import tqdm

    wanted = how.samples * sum(len(task.items) for task in tasks)
    known = {(task.name, item.id) for task in tasks for item in task.items}
    stored = [LabelledDraft.from_row(row) for row in store.rows().values() if "text" in row]
    kept = [
        draft
        for draft in stored
        if (draft.task, draft.item) in known and draft.sample < how.samples
    ]
    new = make_drafts(engine, tasks, how, store, fault_of)
    bar = tqdm(new, desc="drafts", total=wanted, initial=len(kept), disable=None, file=sys.stderr)
    return kept + list(bar)


def judge_all(
    engine: Engine, tasks: Sequence[Task], drafts: Sequence[LabelledDraft], way: str, store: Store
) -> None:
    """Judge what is not judged yet, with a bar for who waits."""
    from tqdm import tqdm

    judging = judge_drafts(engine, tasks, drafts, way, store)
    for _ in tqdm(judging, desc=way, total=len(drafts), disable=None, file=sys.stderr):
        pass


def report(
    store: Store,
    asked: Sequence[str],
    read: Sequence[str],
    tasks: Sequence[Task],
    samples: int,
    most: float,
    calibration: Calibration | None,
) -> str:
    """Write summary and report beside the rows, and return the summary as Markdown."""
    rows = {key: row for key, row in store.rows().items() if row.get("sample", 0) < samples}
    drafts = [LabelledDraft.from_row(row) for row in rows.values() if "text" in row]
    judged = {way: read_judged(rows, way, layout=way.split("/")[0]) for way in asked}
    cut = {way: read_judged(rows, way) for way in read}
    summary = {
        "models": {name: store.manifest[name] for name in ("target", "draft")},
        "machine": machine(),
        "max_false_accept": most,
        "tasks": [summarize(task, drafts, judged, cut, most, calibration) for task in tasks],
    }
    store.write("summary.json", json.dumps(summary, indent=1) + "\n")
    text = markdown_report(summary)
    store.write("report.md", text + "\n")
    store.write(REPORT, html_report(summary))
    return text
