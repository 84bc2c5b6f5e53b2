"""From verdicts on drafts of known correctness to what they are worth."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from parse_engine.bench.arithmetic import first_wrong_step
from parse_engine.bench.drafts import LabelledDraft
from parse_engine.bench.kept import SINGLE, kept_rows, single
from parse_engine.bench.logistic import cross_validated
from parse_engine.bench.roc import at_false_accept, auc_by_item, curve, reliability
from parse_engine.bench.tasks import Task
from parse_engine.bench.verdict_rows import Judged, known_in
from parse_engine.calibration import Calibration

COMBINED = {
    "log-probabilities": ("mean_logprob", "sum_logprob", "min_logprob", "max_gap"),
    "p_correct and joint_prob": ("p_correct", "sum_logprob"),
    "p_correct and accept_prob": ("p_correct", "accept_logprob"),
    "all": ("p_correct", "mean_logprob", "sum_logprob", "min_logprob", "max_gap"),
}
FEWEST = 10  # right and wrong drafts each, below which nothing is said
SHOWN = 60  # points of a curve that are kept for its picture


def summarize(
    task: Task,
    drafts: Sequence[LabelledDraft],
    judged: Mapping[str, Sequence[Judged]],
    read: Mapping[str, Sequence[Judged]],
    most: float,
    calibration: Calibration | None = None,
) -> dict[str, Any]:
    """Say of one task what each verdict is worth, by way to judge.

    Parameters
    ----------
    task : Task
        What was asked.
    drafts : sequence of LabelledDraft
        All drafts, those that were cut off too.
    judged : mapping of str to sequence of Judged
        By way to judge, layout and wording, the verdicts on the others.
    read : mapping of str to sequence of Judged
        By place where prefixes end, the same without a question; the first is worth a table.
    most : float
        The share of the wrong drafts at which true acceptance is read off.
    calibration : Calibration, optional
        One to try on these drafts.

    Returns
    -------
    dict
        Plain values, ready for JSON.
    """
    ours = [draft for draft in drafts if draft.task == task.name]
    whole = [draft for draft in ours if draft.complete]
    cut_off = [draft for draft in ours if not draft.complete]
    written = sum(bool(draft.ids) for draft in whole)
    steps = {item.id for item in task.items if item.steps}
    mine, cut = (
        {way: [one for one in some if one.draft.task == task.name] for way, some in ways.items()}
        for ways in (judged, read)
    )
    return {
        "task": task.name,
        "items": len({draft.item for draft in ours}),
        "complete": {"drafts": len(whole), "right": sum(draft.right for draft in whole)},
        "cut_off": {"drafts": len(cut_off), "right": sum(draft.right for draft in cut_off)},
        "unjudged": {way: written - len(some) for way, some in {**mine, **cut}.items()},
        "ways": {
            **{way: _way(some, most, steps, asked=True) for way, some in mine.items()},
            **{way: _way(cut[way], most, steps, asked=False) for way in list(cut)[:1]},
        },
        "kept": kept_rows(mine, cut),
        "calibration": _try(calibration, {**mine, **cut}) if calibration is not None else None,
    }


def _try(calibration: Calibration, judged: Mapping[str, Sequence[Judged]]) -> dict[str, float]:
    """Count what a calibration accepts of these drafts, beside what it promises."""
    layout = calibration.binding.layout
    some = judged[f"{layout}/default" if layout else "cut auto"]
    passed = {True: 0, False: 0}
    for one in some:
        verdict = calibration.combination.verdict(one.at(-1))
        passed[one.draft.right] += verdict >= calibration.threshold
    right = sum(one.draft.right for one in some)
    return {
        "right": right,
        "right_accepted": passed[True],
        "wrong": len(some) - right,
        "wrong_accepted": passed[False],
        "false_accept_bound": calibration.bound.false_accept,
    }


def _way(judged: Sequence[Judged], most: float, steps: set[str], *, asked: bool) -> dict[str, Any]:
    """Say what the verdicts of a way to judge are worth: those that ask, or those that do not."""
    right = [one.draft.right for one in judged]
    if min(right.count(True), right.count(False)) < FEWEST:
        return {"too_few": {"right": right.count(True), "wrong": right.count(False)}}
    items = [one.draft.item for one in judged]
    whole = [one.at(-1) for one in judged]
    scores: dict[str, list[float]] = {
        name: [single(name, one) for one in whole]
        for name, signal in SINGLE.items()
        if (name == "p_correct") == asked and known_in(judged, (signal,))
    }
    for name, parts in COMBINED.items():
        if ("p_correct" in parts) == asked and known_in(judged, parts):
            scores[name] = cross_validated(whole, right, items, parts)
    checkable = [one for one in judged if one.draft.item in steps]
    found: dict[str, Any] = {}
    for name, values in scores.items():
        points = curve(values, right)
        best = at_false_accept(points, most)
        found[name] = {
            "auc": asdict(auc_by_item(values, right, items)),
            "at": asdict(best),
            "curve": [asdict(point) for point in _thin(points)],
            "reliability": [asdict(one) for one in reliability(values, right)],
        }
        if name in SINGLE and checkable and best.threshold is not None:
            found[name]["located"] = located(checkable, partial(single, name), best.threshold)
    return found


def located(
    judged: Sequence[Judged], verdict: Callable[[Mapping[str, float]], float], threshold: float
) -> dict[str, int]:
    """Count where a verdict first falls below the threshold in drafts whose error has a place.

    The place is the first false equation. ``at`` is the first prefix that holds all of it.

    Returns
    -------
    dict of str to int
        Of so many ``drafts`` how many were stopped ``before`` the error, ``at`` it, ``after`` it,
        or ``never``.
    """
    counts = {"drafts": 0, "before": 0, "at": 0, "after": 0, "never": 0}
    for one in judged:
        end = None if one.draft.right else first_wrong_step(one.draft.text)
        if end is None:
            continue
        end += one.ends[-1] - len(one.draft.text)  # a thought comes before the text
        counts["drafts"] += 1
        error = next((n for n, at in enumerate(one.ends) if at >= end), len(one.ends) - 1)
        failed = (n for n in range(len(one.ends)) if verdict(one.at(n)) < threshold)
        first = next(failed, None)
        if first is None:
            counts["never"] += 1
        else:
            counts["before" if first < error else "at" if first == error else "after"] += 1
    return counts


def _thin(points: Sequence[Any]) -> list[Any]:
    step = max(1, len(points) // SHOWN)
    return [*points[::step], points[-1]]
