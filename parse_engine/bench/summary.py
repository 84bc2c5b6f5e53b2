"""The figures of a run: one set a task and method, and what PARSE is held to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from parse_engine.bench.intervals import Estimate, bootstrap_median, paired_difference
from parse_engine.bench.store import Key, Row

ALL = "all tasks"
STAGES = ("draft", "read", "write", "other")


@dataclass(frozen=True)
class Figures:
    """What a method came to on a task.

    Parameters
    ----------
    task, method : str
        Whose figures these are; a task may be a category of one, or ``ALL``.
    items, failed : int
        Items that were answered, and those that ended in an error.
    speedup : Estimate or None
        Median over items of the target's seconds / the method's.
    in_all : float
        The target's seconds on all items together / the method's: long answers count for more.
    tokens_per_s, seconds, first_s : float
        Medians over items; ``first_s`` is the time to the first text.
    right, checked : int
        Right answers among those that can be checked.
    difference : Estimate or None
        Share of right answers minus that of the target alone, on the same items.
    accepts : (str, float) or None
        The verdict that drafts are accepted by and its threshold; None where they are not.
    accepted_fraction : float or None
        Accepted over proposed tokens; None where nothing is proposed.
    target_tokens : float
        Token positions that went through the target, median over items.
    cut_off : int
        Answers that the limit of tokens cut off.
    of_ideal : Estimate or None
        For PARSE: the ideal time / the time taken (see ``ideal_seconds``), median over items.
    stages : dict of str to float
        Mean seconds an item: draft model, target on several tokens at once, target on one token
        at a time, and all that is no forward pass.
    """

    task: str
    method: str
    items: int
    failed: int
    speedup: Estimate | None
    in_all: float
    tokens_per_s: float
    seconds: float
    first_s: float
    right: int
    checked: int
    difference: Estimate | None
    accepts: tuple[str, float] | None
    accepted_fraction: float | None
    target_tokens: float
    cut_off: int
    of_ideal: Estimate | None
    stages: dict[str, float]


def summarize(
    rows: Mapping[Key, Row], methods: Sequence[str], tasks: Sequence[str]
) -> list[Figures]:
    """Return the figures of each task and method, of its categories, and of all tasks together."""
    groups: dict[str, list[Row]] = {task: [] for task in tasks}
    for row in rows.values():
        groups[row["task"]].append(row)
    for task in tasks:
        for category in dict.fromkeys(row["category"] for row in groups[task]):
            if category:
                some = [row for row in groups[task] if row["category"] == category]
                groups[f"{task}: {category}"] = some
    if len(tasks) > 1:
        groups[ALL] = list(rows.values())
    return [
        figures(name, method, rows, some)
        for name, group in groups.items()
        for method in methods
        if (some := [row for row in group if row["method"] == method])
    ]


def figures(task: str, method: str, rows: Mapping[Key, Row], own: Sequence[Row]) -> Figures:
    """Return the figures of one method on some items; ``rows`` has the target's beside its own."""
    good = [row for row in own if "error" not in row]
    pairs = [(row, base) for row in good if (base := target_row(rows, row)) is not None]
    checked = [row["correct"] for row in good if row["correct"] is not None]
    marks = [
        (row["correct"], base["correct"])
        for row, base in pairs
        if None not in (row["correct"], base["correct"])
    ]
    drafted = sum(row["drafted"] or 0 for row in good)
    ideals = [ideal / row["seconds"] for row, base in pairs if (ideal := ideal_seconds(row, base))]
    return Figures(
        task=task,
        method=method,
        items=len(good),
        failed=len(own) - len(good),
        speedup=bootstrap_median([base["seconds"] / row["seconds"] for row, base in pairs]),
        in_all=_ratio(pairs),
        tokens_per_s=_median(row["tokens"] / row["seconds"] for row in good),
        seconds=_median(row["seconds"] for row in good),
        first_s=_median(row["first_s"] for row in good if row["first_s"] is not None),
        right=sum(checked),
        checked=len(checked),
        difference=paired_difference([ours for ours, _ in marks], [base for _, base in marks]),
        accepts=next((rule for row in good if (rule := _accepts(row)) is not None), None),
        accepted_fraction=sum(row["accepted"] or 0 for row in good) / drafted if drafted else None,
        target_tokens=_median(row["target_tokens"] for row in good),
        cut_off=sum(row["finish_reason"] == "length" for row in good),
        of_ideal=bootstrap_median(ideals),
        stages={
            name: sum(row["stages"][name] for row in good) / max(1, len(good)) for name in STAGES
        },
    )


def target_row(rows: Mapping[Key, Row], row: Row) -> Row | None:
    """Return the target's own row of the same item, if it has one."""
    base = rows.get((row["task"], row["item"], "target"))
    return base if base is not None and "error" not in base else None


def ideal_seconds(row: Row, base: Row) -> float | None:
    """Return the least that PARSE could take for the acceptance that was seen; None for others.

    Drafting, one prefill of prompt and draft, and the regenerated tokens at the speed at which the
    target alone wrote this item. The prefill was timed beside the answer, by itself.
    """
    steps = base["target_passes"]["one"]
    if row.get("prefill_s") is None or not steps or base["first_s"] is None:
        return None
    a_token = (base["seconds"] - base["first_s"]) / steps
    details: dict[str, Any] = row["details"]
    ideal = details["stage_s"]["draft"] + row["prefill_s"] + details["regenerated_tokens"] * a_token
    return float(ideal)


def _accepts(row: Row) -> tuple[str, float] | None:
    about = row["details"]
    return (about["verdict_kind"], about["threshold"]) if "verdict_kind" in about else None


def ratio_of(rows: Mapping[Key, Row], over: str, under: str) -> Estimate | None:
    """Return the median over items of one method's seconds / another's."""
    values = []
    for (task, item, method), row in rows.items():
        other = rows.get((task, item, under))
        if method == over and other and "error" not in row and "error" not in other:
            values.append(row["seconds"] / other["seconds"])
    return bootstrap_median(values)


def _ratio(pairs: Sequence[tuple[Row, Row]]) -> float:
    ours, base = (sum(pair[n]["seconds"] for pair in pairs) for n in (0, 1))
    return float(base / ours) if pairs else float("nan")


def _median(values: Iterable[float]) -> float:
    listed = list(values)
    return median(listed) if listed else float("nan")
