"""Calibrate two models on a task: ``python -m parse_engine calibrate``.

Drafts are written, several an item, and checked: by the item's own answer or test, or, where a task
has none, by whether they agree with the target's own answer. The target judges them, and a verdict
is chosen with a threshold for it, so that at most the given share of wrong drafts is accepted
whole. What is written is taken by ParseConfig(calibration=...), ChatParse and the command line. The
bound is about finished drafts to prompts like these, written as these are; it is no promise about
other tasks. Where the data cannot support it, nothing is written. To try other seeds until
something is written would void the confidence, and so would other bounds, samples or layouts: a
bound that the same drafts were tested for before is named in the output.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from parse_engine.bench.binomial import upper_bound
from parse_engine.bench.checks import CHECKERS, number_in
from parse_engine.bench.common import open_engine, tasks_of
from parse_engine.bench.drafts import LabelledDraft, check_prompts
from parse_engine.bench.judge import (
    add_drafting,
    describe_drafting,
    draft_all,
    drafting,
    judge_all,
)
from parse_engine.bench.kept import SINGLE, Cutting, choose_cuts
from parse_engine.bench.store import Store
from parse_engine.bench.tasks import Task
from parse_engine.bench.verdict_rows import Judged, read_judged
from parse_engine.binding import bind
from parse_engine.calibrate import Found, calibrate, split, written
from parse_engine.calibrate_out import check_out
from parse_engine.calibration import Calibration, Reference
from parse_engine.cli_args import confidence, cut_rules, folder, share, words_in
from parse_engine.config import CutRule, ParseConfig
from parse_engine.engine import Engine
from parse_engine.errors import InvalidRequestError
from parse_engine.request import check_sampling


def build_parser() -> argparse.ArgumentParser:
    """Describe the options."""
    parser = argparse.ArgumentParser(
        prog="python -m parse_engine calibrate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_drafting(parser)
    group = parser.add_argument_group("what is promised")
    group.add_argument("--max-false-accept", type=share, default=0.15, metavar="P")
    group.add_argument(
        "--confidence", type=confidence, default=0.95, metavar="P", help="0.5 or more"
    )
    group.add_argument("--out", type=Path, required=True, metavar="FILE", help="the calibration")
    group.add_argument(
        "--rows",
        type=folder,
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
    group.add_argument("--labels", type=words_in, metavar="RIGHT,WRONG")
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


def main(argv: Sequence[str]) -> int:
    """Draft, check, judge, choose, and write the calibration."""
    parser = build_parser()
    args = parser.parse_args(argv)
    check_out(args.out, args.rows)
    tasks = tasks_of(args)
    check_distinct(tasks)
    wording = {name: getattr(args, name) for name in ("labels", "brief", "question")}
    config = ParseConfig(verdict="p_correct", judge_layout=args.judge_layout, **wording)
    store = Store(args.rows or Path(f"{args.out}.rows"))
    with store.locked():
        print(calibrated(parser, args, tasks, config, store))
    return 0


def check_distinct(tasks: Sequence[Task]) -> None:
    """Refuse a prompt that stands there twice: a bound counts on items that are independent."""
    first: dict[str, str] = {}
    for task in tasks:
        for item in task.items:
            name = f"{item.id} of {task.name}"
            if (other := first.setdefault(repr(item.messages), name)) != name:
                raise InvalidRequestError(
                    f"Items {other} and {name} have the same prompt.",
                    "Give each prompt once: --samples sets how many drafts of each are written.",
                )


def calibrated(
    parser: argparse.ArgumentParser,
    args: argparse.Namespace,
    tasks: Sequence[Task],
    config: ParseConfig,
    store: Store,
) -> str:
    """Write the calibration and say what it is."""
    reference = who_says(tasks)
    asked = {"reference": reference, "agree": args.agree, "judge": repr(config)}
    store.open({"command": "calibrate", **describe_drafting(args, tasks), **asked})
    engine = open_engine(parser, args, config)
    how, items = drafting(args), sum(len(task.items) for task in tasks)
    check_prompts(engine, tasks, how)
    if reference == "target":
        tasks = with_targets_answers(engine, tasks, store, args.max_new_tokens, args.agree)
    drafts = draft_all(engine, tasks, how, store)
    judged = judge_cut(engine, tasks, drafts, args.cuts[0], store)
    before = tested_before(store, args.max_false_accept, args.confidence)
    usual = engine.target.network.generation_config
    sampling = check_sampling(usual, how.temperature, top_p=None, top_k=None, seed=None)
    found = calibrate(judged, args.max_false_accept, args.confidence, how, items, sampling)
    asks = found.combination.p_correct != 0 or engine.layout == "quote"
    if not asks:  # then as many prefixes are judged as there are
        engine = Engine(engine.target, engine.draft, ParseConfig(verdict="joint_prob"))
    chosen = [one.draft for one in split(judged, args.seed)[0]]
    by_cut = {cut: judge_cut(engine, tasks, chosen, cut, store) for cut in args.cuts}
    cutting = choose_cuts(by_cut, found.combination, found.threshold)
    made = Calibration(
        combination=found.combination,
        threshold=found.threshold,
        accept_rule=cutting.accept_rule,
        cut_at=cutting.cut_at,
        bound=found.bound,
        binding=bind(engine.target, engine.draft, engine.ability, config, asks_judge=asks),
        task=", ".join(task.name for task in tasks),
        reference=reference,
    )
    args.out.parent.mkdir(parents=True, exist_ok=True)
    made.save(args.out)
    return said(made, found, cutting, args.out, before)


def tested_before(store: Store, most: float, confidence: float) -> list[str]:
    """Note that a bound is tested on these drafts, and return the others that were."""
    now = f"{most:.4g} with confidence {confidence:.4g}"
    others = [bound for _, bound, method in store.rows() if method == "bound" and bound != now]
    store.add({"task": "", "item": now, "method": "bound"})
    return others


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
            if agree == "number" and number_in(row["answer"]) is None:
                raise InvalidRequestError(
                    f"The target's answer to item {item.id} has no number to compare: "
                    f"{row['answer'][:60]!r}.",
                    "Say how else drafts must agree with it: --agree exact, or contains.",
                )
            if row["finish_reason"] == "stop" and row["answer"].strip():
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
    config = replace(engine.config, cut_at=cut)
    asks = config.acceptance.asks_judge
    way = f"cut {cut}" if asks else f"read {cut}"
    judge_all(Engine(engine.target, engine.draft, config), tasks, drafts, way, store)
    wanted = {draft.key for draft in drafts}
    judged = read_judged(store.rows(), way, engine.layout if asks else None)
    return [one for one in judged if one.draft.key in wanted]


def said(
    made: Calibration, found: Found, cutting: Cutting, path: Path, before: Sequence[str]
) -> str:
    """Say what was chosen, why, and what it promises."""
    bound = made.bound
    names = {signal: verdict for verdict, signal in SINGLE.items()}
    weights = [names[n] for n, weight in asdict(made.combination).items() if weight and n in names]
    mixed = ", in these proportions" if ", " in made.task else ""
    right = "checked" if made.reference == "checker" else "compared with the target's own answers"
    return "\n".join(
        [
            "Verdicts, AUC on items that they were not fitted to (95% interval over items):",
            *(
                f"  {' + '.join(names[name] for name in one.names)}: {one.auc.value:.2f} "
                f"({one.auc.low:.2f} to {one.auc.high:.2f})"
                for one in found.choices
            ),
            f"Chosen: {' + '.join(weights)}, the simplest that is within a standard error of the "
            "best.",
            f"Threshold {made.threshold:.4f}, on the scale of the fit, where a verdict is the "
            f"probability that a draft is right; accept {made.accept_rule}, cut at {made.cut_at}.",
            f"On the other half of the items, {right}, {found.true_accept:.0%} of the right drafts "
            "are accepted whole, and of the wrong ones",
            *(
                f"  {one.accepted} of {one.wrong_items} {written(one.temperature)} (no more than "
                f"{upper_bound(one.accepted, one.wrong_items, bound.confidence):.1%} of all such, "
                "Clopper-Pearson)."
                for one in bound.tested
            ),
            f"So on prompts like these{mixed}, written so, with at most {bound.max_new_tokens} "
            f"tokens, at most {100 * bound.false_accept:.4g}% of the wrong drafts are accepted "
            f"whole, with confidence {100 * bound.confidence:.4g}%.",
            *(
                f"These drafts were tested for {bound} before: to choose between bounds after "
                "seeing what they come to voids the confidence."
                for bound in before
            ),
            f"Of the tokens of right drafts {cutting.kept_right:.0%} stay, of those of wrong ones "
            f"{cutting.kept_wrong:.0%}, the parts before the error among them. PARSE is not "
            "lossless.",
            f"Written to {path}. Use it with ParseConfig(calibration=...), "
            "ChatParse(calibration=...) or --calibration.",
        ]
    )
