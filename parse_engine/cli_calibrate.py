"""Calibrate two models on a task: ``python -m parse_engine calibrate``.

Drafts are written, several an item, and checked: by the item's own answer or test, or, where a task
has none, by whether they agree with the target's own answer. The target judges them, and a verdict
is chosen with a threshold for it, so that at most the given share of wrong drafts is accepted
whole. What is written is taken by ParseConfig(calibration=...), ChatParse and the command line. The
bound is about finished drafts to prompts like these, written as these are; it is no promise about
other tasks. Where the data cannot support it, nothing is written. To try other seeds until
something is written would void the confidence.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from parse_engine.bench.checks import CHECKERS
from parse_engine.bench.common import open_engine, tasks_of
from parse_engine.bench.drafts import LabelledDraft
from parse_engine.bench.judge import (
    add_drafting,
    cut_rules,
    describe_drafting,
    draft_all,
    drafting,
    judge_all,
    names_in,
)
from parse_engine.bench.store import Store
from parse_engine.bench.tasks import Task
from parse_engine.bench.verdict_rows import Judged, read_judged
from parse_engine.binding import bind
from parse_engine.calibrate import Found, calibrate, choose_cuts, split
from parse_engine.calibration import Calibration, Reference
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
        "--rows",
        type=Path,
        metavar="DIR",
        help="drafts and verdicts, to go on with (default: FILE.rows)",
    )
    group.add_argument(
        "--agree",
        choices=tuple(CHECKERS),
        default="number",
        help="how a draft must agree with the target's own answer, where items have no answer to "
        "check it by (default: number, the last one in each)",
    )
    group = parser.add_argument_group("how drafts are judged (as in ParseConfig)")
    group.add_argument("--layout", dest="judge_layout", choices=("brief", "quote"), default="brief")
    group.add_argument("--labels", type=names_in, metavar="RIGHT,WRONG")
    group.add_argument("--brief", metavar="TEXT")
    group.add_argument("--question", metavar="TEXT")
    group.add_argument(
        "--cuts",
        type=cut_rules,
        default=("auto", 32),
        metavar="LIST",
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


def main(argv: Sequence[str]) -> int:
    """Draft, check, judge, choose, and write the calibration."""
    parser = build_parser()
    args = parser.parse_args(argv)
    tasks = tasks_of(args)
    wording = {name: getattr(args, name) for name in ("labels", "brief", "question")}
    config = ParseConfig(verdict="p_correct", judge_layout=args.judge_layout, **wording)
    reference = who_says(tasks)
    store = Store(args.rows or args.out.with_name(f"{args.out.name}.rows"))
    asked = {"reference": reference, "agree": args.agree, "judge": repr(config)}
    store.open({**describe_drafting(args, tasks), **asked})
    engine = open_engine(parser, args, config)
    if reference == "target":
        tasks = with_targets_answers(engine, tasks, store, args.max_new_tokens, args.agree)
    drafts = draft_all(engine, tasks, drafting(args), store)
    first, *others = args.cuts
    judged = judge_cut(engine, tasks, drafts, first, store)
    found = calibrate(judged, args.max_false_accept, args.confidence, seed=args.seed)
    by_cut = {first: split(judged, args.seed)[0]}
    chosen = [one.draft for one in by_cut[first]]
    for cut in others:
        by_cut[cut] = judge_cut(engine, tasks, chosen, cut, store)
    cut_at, rule = choose_cuts(by_cut, found.combination, found.threshold)
    asks = found.combination.p_correct != 0 or engine.layout == "quote"
    made = Calibration(
        combination=found.combination,
        threshold=found.threshold,
        accept_rule=rule,
        cut_at=cut_at,
        bound=found.bound,
        binding=bind(engine.target, engine.draft, engine.ability, config, asks_judge=asks),
        task=", ".join(task.name for task in tasks),
        reference=reference,
    )
    made.save(args.out)
    print(said(made, found, args.out))
    return 0


def who_says(tasks: Sequence[Task]) -> Reference:
    """Tell what says which drafts are right: the items' own answers, or else the target's."""
    checkable = [item.check is not None for task in tasks for item in task.items]
    if any(checkable) and not all(checkable):
        raise InvalidRequestError(
            f"{checkable.count(True)} of {len(checkable)} items have an answer to check by.",
            "Give it for all of them, or for none: then the target's own answer is what counts.",
        )
    return "checker" if all(checkable) else "target"


def with_targets_answers(
    engine: Engine, tasks: Sequence[Task], store: Store, limit: int, agree: str
) -> list[Task]:
    """Let the target answer every item, and check drafts by that; unfinished answers drop out."""
    from tqdm import tqdm

    rows = store.rows()
    made = []
    for task in tasks:
        items = []
        for item in tqdm(task.items, desc="target's answers", disable=None, file=sys.stderr):
            row = rows.get((task.name, item.id, "target"))
            if row is None:
                answer = engine.generate(
                    item.messages, mode="target", max_new_tokens=limit, temperature=0
                )
                row = {"task": task.name, "item": item.id, "method": "target"}
                row |= {"answer": answer.text, "finish_reason": answer.finish_reason}
                store.add(row)
            if row["finish_reason"] == "stop":
                items.append(replace(item, check=CHECKERS[agree](row["answer"])))
        made.append(replace(task, items=tuple(items)))
    return made


def judge_cut(
    engine: Engine,
    tasks: Sequence[Task],
    drafts: Sequence[LabelledDraft],
    cut: CutRule | int,
    store: Store,
) -> list[Judged]:
    """Judge drafts with prefixes that end so."""
    cutting = Engine(engine.target, engine.draft, replace(engine.config, cut_at=cut))
    judge_all(cutting, tasks, drafts, f"cut {cut}", store)
    wanted = {draft.key for draft in drafts}
    judged = read_judged(store.rows(), f"cut {cut}", engine.layout)
    return [one for one in judged if one.draft.key in wanted]


def said(made: Calibration, found: Found, path: Path) -> str:
    """Say what was chosen, why, and what it promises."""
    bound = made.bound
    weights = {name: value for name, value in asdict(made.combination).items() if value}
    right = "checked" if made.reference == "checker" else "compared with the target's own answers"
    return "\n".join(
        [
            "Verdicts, AUC on items that they were not fitted to (95% interval over items):",
            *(
                f"  {' + '.join(one.names)}: {one.auc.value:.2f} "
                f"({one.auc.low:.2f} to {one.auc.high:.2f})"
                for one in found.choices
            ),
            f"Chosen: {' + '.join(name for name in weights if name != 'bias')}, the simplest that "
            "is within a standard error of the best.",
            f"Threshold {made.threshold:.4f}, accept {made.accept_rule}, cut at {made.cut_at}.",
            f"On the other half of the items, {right}, {bound.accepted} of {bound.wrong_items} "
            f"wrong drafts and {found.true_accept:.0%} of the right ones are accepted whole.",
            f"So on prompts like these at most {bound.false_accept:.0%} of the wrong drafts are "
            f"accepted whole, with confidence {bound.confidence:.0%}. PARSE is not lossless.",
            f"Written to {path}. Use it with ParseConfig(calibration=...), "
            "ChatParse(calibration=...) or --calibration.",
        ]
    )
