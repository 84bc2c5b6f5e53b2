"""Calibrate two models on a task: ``python -m parse_engine calibrate``.

Drafts are written, several an item, and checked: by the item's own answer or test, or, where a task
has none, by whether they agree with the target's own answer. The target judges them, and a verdict
is chosen with a threshold for it, so that at most the given share of wrong drafts is accepted
whole. What is written is taken by ParseConfig(calibration=...), ChatParse and the command line. The
bound is about finished drafts to prompts like these, written as these are; it is no promise about
other tasks. Where the data cannot support it, nothing is written.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from parse_engine.bench.checks import CHECKERS
from parse_engine.bench.common import open_engine
from parse_engine.bench.judge import (
    add_drafting,
    describe_drafting,
    draft_all,
    drafting,
    judge_all,
    names_in,
)
from parse_engine.bench.store import Store
from parse_engine.bench.tasks import Item, Task, load_tasks
from parse_engine.bench.verdict_rows import read_judged
from parse_engine.binding import bind
from parse_engine.calibrate import Found, calibrate, choose_cuts, split
from parse_engine.calibration import Calibration
from parse_engine.cli_args import cut_rule
from parse_engine.config import CutRule, ParseConfig
from parse_engine.engine import Engine
from parse_engine.errors import InvalidRequestError


def build_parser() -> argparse.ArgumentParser:
    """Describe the options."""
    parser = argparse.ArgumentParser(
        prog="python -m parse_engine calibrate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_drafting(parser)
    group = parser.add_argument_group("what is promised")
    group.add_argument("--max-false-accept", type=_share, default=0.15, metavar="P")
    group.add_argument("--confidence", type=_share, default=0.95, metavar="P")
    group.add_argument("--out", type=Path, required=True, metavar="FILE", help="the calibration")
    group.add_argument(
        "--rows", type=Path, metavar="DIR", help="drafts and verdicts, to go on with (default: "
        "FILE.rows)",
    )
    group.add_argument(
        "--agree", choices=tuple(CHECKERS), default="number",
        help="how a draft must agree with the target's own answer, where items have no answer to "
        "check it by (default: number, the last one in each)",
    )
    group = parser.add_argument_group("how drafts are judged (as in ParseConfig)")
    group.add_argument("--layout", dest="judge_layout", choices=("brief", "quote"), default="brief")
    group.add_argument("--labels", type=names_in, metavar="RIGHT,WRONG")
    group.add_argument("--brief", metavar="TEXT")
    group.add_argument("--question", metavar="TEXT")
    group.add_argument(
        "--cuts", type=_cuts, default=("auto", 32), metavar="LIST",
        help="where prefixes may end, to choose from (default: auto,32)",
    )
    return parser


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number between 0 and 1")
    return value


def _cuts(text: str) -> tuple[CutRule | int, ...]:
    return tuple(cut_rule(word) for word in names_in(text))


def main(argv: Sequence[str]) -> int:
    """Draft, check, judge, choose, and write the calibration."""
    parser = build_parser()
    args = parser.parse_args(argv)
    tasks = [task.sample(args.limit, args.seed) for task in load_tasks(args.tasks, args.data)]
    wording = {name: getattr(args, name) for name in ("labels", "brief", "question")}
    config = ParseConfig(verdict="p_correct", judge_layout=args.judge_layout, **wording)
    store = Store(args.rows or args.out.with_name(f"{args.out.name}.rows"))
    reference = "checker" if has_checks(tasks) else "target"
    described = describe_drafting(args, tasks)
    store.open({**described, "reference": reference, "agree": args.agree, "judge": repr(config)})
    engine = open_engine(parser, args, config)
    if reference == "target":
        tasks = with_targets_answers(engine, tasks, store, args)
    drafts = draft_all(engine, tasks, drafting(args), store)
    first, *others = args.cuts

    def judge(cut: CutRule | int, some: Sequence[object] | None = None) -> list:
        cutting = Engine(engine.target, engine.draft, replace(config, cut_at=cut))
        chosen = drafts if some is None else [one.draft for one in some]
        judge_all(cutting, tasks, chosen, f"cut {cut}", store)
        return read_judged(store.rows(), f"cut {cut}")

    judged = judge(first)
    found = calibrate(judged, args.max_false_accept, args.confidence, seed=args.seed)
    choosing, _ = split(judged, args.seed)
    by_cut = {first: choosing, **{cut: judge(cut, choosing) for cut in others}}
    cut_at, rule = choose_cuts(by_cut, found.combination, found.threshold)
    made = Calibration(
        combination=found.combination,
        threshold=found.threshold,
        accept_rule=rule,
        cut_at=cut_at,
        bound=found.bound,
        binding=bind(
            *(engine.target, engine.draft, engine.ability, config),
            asks_judge=found.combination.p_correct != 0,
        ),
        task=", ".join(task.name for task in tasks),
        reference=reference,
    )
    made.save(args.out)
    print(said(made, found, args.out))
    return 0
