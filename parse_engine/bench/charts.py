"""What a run looks like: one panel a task for each question."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from parse_engine.bench.intervals import Estimate
from parse_engine.bench.methods import name_of
from parse_engine.bench.store import Row
from parse_engine.bench.summary import Figures
from parse_engine.bench.svg import FAINT, INK, Panel, apart

COLOURS = {
    "target": "#6b7280",
    "parse": "#1d4ed8",
    "draft": "#9ca3af",
    "assisted": "#b45309",
    "prompt_lookup": "#d97706",
    "cascade": "#0e7490",
    "sequential": "#7c3aed",
    "spec_reason": "#be123c",
    "speculative_thinking": "#047857",
}
LEVELS = ("#1e3a8a", "#2563eb", "#60a5fa", "#0ea5e9", "#6366f1", "#a5b4fc")
STAGES = {
    "draft": ("draft model", "#93c5fd"),
    "read": ("target reads: prompt, draft, questions", "#2563eb"),
    "write": ("target writes, token by token", "#1e3a8a"),
    "other": ("no forward pass", "#d1d5db"),
}
ROW = 24


def colours(methods: Sequence[str]) -> dict[str, str]:
    """Give each method its colour; several ways of PARSE are shades of blue."""
    several = [one for one in methods if one != "parse" and name_of(one) == "parse"]
    shades = {one: LEVELS[index % len(LEVELS)] for index, one in enumerate(several)}
    return {one: shades.get(one) or COLOURS[name_of(one)] for one in methods}


def speedups(task: str, found: Sequence[Figures], colour: dict[str, str]) -> str:
    """Draw how fast each method is beside the target alone."""
    shown = [(one, one.speedup) for one in found if one.speedup is not None]
    top = max(1.2, *(speedup.high for _, speedup in shown)) if shown else 1.2
    left = _room(one.method for one, _ in shown)
    panel = Panel(task, x=(0, top), left=left, right=52, height=90 + ROW * len(shown))
    panel.x_axis("speedup over the target alone, median and 95% interval", lambda v: f"{v:g}x")
    for index, (one, speedup) in enumerate(shown):
        y = panel.top + ROW * index + 4
        start, _ = panel.at(0, 0)
        end, _ = panel.at(speedup.value, 0)
        panel.text(panel.left - 8, y + 12, one.method, anchor="end")
        panel.bar(start, y, end - start, ROW - 8, colour[one.method], f"{one.method} {_x(speedup)}")
        _whisker(panel, speedup, y + (ROW - 8) / 2)
        panel.text(panel.right + 6, y + 12, f"{speedup.value:.2f}x", colour=FAINT)
    one_x, _ = panel.at(1, 0)
    panel.line([(one_x, panel.top), (one_x, panel.bottom)], INK, dash="3 3")
    return panel.svg()


def accuracy(task: str, found: Sequence[Figures], colour: dict[str, str]) -> str | None:
    """Draw the share of right answers against the speedup; None where nothing can be checked."""
    shown = [(one, one.speedup) for one in found if one.speedup is not None and one.checked]
    if not shown:
        return None
    top = max(1.2, *(speedup.value for _, speedup in shown))
    panel = Panel(task, x=(0, top), right=_room(one.method for one, _ in shown))
    panel.x_axis("speedup over the target alone", lambda v: f"{v:g}x")
    panel.y_axis(_percent)
    places = [panel.at(speedup.value, one.right / one.checked) for one, speedup in shown]
    for (one, speedup), (x, y), label in zip(
        shown, places, apart([y for _, y in places], 13, panel.bottom), strict=True
    ):
        tip = f"{one.method}: {one.right} of {one.checked} right, {_x(speedup)}"
        panel.line([(x, y), (panel.right + 6, label)], "#d1d5db")
        panel.text(panel.right + 10, label + 4, one.method)
        panel.dot(x, y, colour[one.method], tip)
    return panel.svg()


def by_position(
    task: str, drafts: Mapping[str, Sequence[Row]], colour: dict[str, str]
) -> str | None:
    """Draw the share of drafts that are accepted at least up to each part of their length."""
    panel = Panel(task, x=(0, 100), right=_room(drafts))
    panel.x_axis("position in the draft, % of its tokens", lambda v: f"{v:g}")
    panel.y_axis(_percent)
    ends: list[tuple[str, float]] = []
    for method, rows in drafts.items():
        kept = sorted(100 * row["accepted"] / row["drafted"] for row in rows)
        if kept:
            panel.line(_survival(panel, kept), colour[method], width=2)
            whole = sum(share >= 100 for share in kept) / len(kept)
            ends.append((method, panel.at(100, whole)[1]))
    for (method, _), y in zip(ends, apart([y for _, y in ends], 13, panel.bottom), strict=True):
        panel.text(panel.right + 6, y + 4, method, colour=colour[method])
    return panel.svg() if ends else None


def _survival(panel: Panel, kept: Sequence[float]) -> list[tuple[float, float]]:
    """Return the corners of a curve that steps down where an accepted part ends, not at 100."""
    corners, left = [panel.at(0, 1)], len(kept)
    for share in (share for share in kept if share < 100):
        corners.append(panel.at(share, left / len(kept)))
        left -= 1
        corners.append(panel.at(share, left / len(kept)))
    return [*corners, panel.at(100, left / len(kept))]


def stages(task: str, found: Sequence[Figures]) -> str:
    """Draw where the time goes, for what answered anything."""
    found = [one for one in found if one.items]
    if not found:
        return ""
    top = max(sum(one.stages.values()) for one in found)
    left = _room(one.method for one in found)
    panel = Panel(task, x=(0, top), left=left, height=90 + ROW * len(found))
    panel.x_axis("seconds an item, mean", lambda v: f"{v:g}")
    for index, one in enumerate(found):
        y = panel.top + ROW * index + 4
        panel.text(panel.left - 8, y + 12, one.method, anchor="end")
        begin = 0.0
        for name, (label, shade) in STAGES.items():
            seconds = max(0.0, one.stages[name])
            (start, _), (end, _) = panel.at(begin, 0), panel.at(begin + seconds, 0)
            panel.bar(start, y, end - start, ROW - 8, shade, f"{label}: {seconds:.2f} s")
            begin += seconds
    return panel.svg()


def thresholds(task: str, found: Sequence[Figures]) -> list[str]:
    """Draw what PARSE comes to as its threshold varies, for each verdict with more than one."""
    by_verdict: dict[str, dict[float, Figures]] = {}
    for one in found:
        if name_of(one.method) == "parse" and one.accepts is not None:
            verdict, threshold = one.accepts
            if verdict == "calibrated":  # each file is a verdict of its own
                verdict = one.method.partition("@")[0]
            by_verdict.setdefault(verdict, {})[threshold] = one
    return [
        _levels(f"{task}: {verdict}", sorted(levels.items()))
        for verdict, levels in by_verdict.items()
        if len(levels) > 1
    ]


def _levels(title: str, levels: Sequence[tuple[float, Figures]]) -> str:
    # products of probabilities span powers of ten
    if wide := levels[0][0] > 0 and levels[-1][0] / levels[0][0] > 20:
        levels = [(math.log10(level), one) for level, one in levels]
    curves: dict[str, tuple[str, list[tuple[float, float]]]] = {
        "speedup": (
            "#1d4ed8",
            [(level, one.speedup.value) for level, one in levels if one.speedup is not None],
        ),
        "accepted": ("#0e7490", [(level, one.accepted_fraction or 0.0) for level, one in levels]),
        "right": (
            "#047857",
            [(level, one.right / one.checked) for level, one in levels if one.checked],
        ),
    }
    top = max(1.2, *(value for _, values in curves.values() for _, value in values))
    panel = Panel(title, x=(levels[0][0], levels[-1][0]), y=(0, top), right=90)
    panel.x_axis("threshold", lambda v: f"{10**v:.2g}" if wide else f"{v:g}")
    panel.y_axis(lambda v: f"{v:g}")
    ends: list[tuple[str, float]] = []
    for name, (shade, values) in curves.items():
        points = [panel.at(*one) for one in values]
        panel.line(points, shade, width=2)
        for (x, y), (level, value) in zip(points, values, strict=True):
            shown = f"{10**level:.2g}" if wide else f"{level:g}"
            panel.dot(x, y, shade, f"{name} {value:.2f} at {shown}")
        ends += [(name, points[-1][1])] if points else []
    for (name, _), y in zip(ends, apart([y for _, y in ends], 13, panel.bottom), strict=True):
        panel.text(panel.right + 8, y + 4, name, colour=curves[name][0])
    return panel.svg()


def _room(labels: Iterable[str]) -> int:
    """Return how many pixels the longest label takes."""
    return max(110, 24 + round(6.2 * max(map(len, labels), default=0)))


def _whisker(panel: Panel, estimate: Estimate, y: float) -> None:
    (low, _), (high, _) = panel.at(estimate.low, 0), panel.at(estimate.high, 0)
    panel.line([(low, y), (high, y)], INK, width=1.5)
    for x in (low, high):
        panel.line([(x, y - 4), (x, y + 4)], INK, width=1.5)


def _percent(value: float) -> str:
    return f"{100 * value:.0f}%"


def _x(estimate: Estimate) -> str:
    return f"{estimate.value:.2f}x ({estimate.low:.2f} to {estimate.high:.2f})"
