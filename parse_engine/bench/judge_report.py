"""What verdicts are worth, for people to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

NOTE = (
    "PARSE is not lossless: an accepted draft is one that the target approves of. AUC is the share "
    "of pairs of a right and a wrong draft in which the right one has the higher verdict, with the "
    "95% interval of a bootstrap over items. Combinations are fitted to other items than those "
    "they are tried on."
)
COLOURS = ("#0b5fc9", "#c5303a", "#1a7f37", "#8250df", "#b35900", "#59636e", "#0e7c86")
SIZE, MARGIN = 260, 34


def markdown_report(summary: Mapping[str, Any]) -> str:
    """Return the tables."""
    most = summary["max_false_accept"]
    lines = []
    for task in summary["tasks"]:
        done, cut = task["complete"], task["cut_off"]
        lines += [
            f"## {task['task']}",
            "",
            f"{task['items']} items, {done['drafts']} finished drafts, {done['right']} of them "
            f"right. Apart from these, {cut['drafts']} were cut off by the limit.",
            "",
        ]
        for way, found in task["ways"].items():
            if "too_few" in found:
                few = found["too_few"]
                lines += [f"{way}: {few['right']} right, {few['wrong']} wrong: too few.", ""]
                continue
            lines += [
                f"| {way} | AUC | accepted of the right, at {most:.0%} of the wrong | threshold |",
                "|---|---|---|---|",
                *(_row(name, one) for name, one in found.items()),
                "",
                *_places(found),
            ]
    return "\n".join([*lines, NOTE, summary["machine"]])


def _row(name: str, one: Mapping[str, Any]) -> str:
    auc, at = one["auc"], one["at"]
    return (
        f"| {name} | {auc['value']:.2f} ({auc['low']:.2f} to {auc['high']:.2f}) "
        f"| {at['true_accept']:.0%} | {at['threshold']:.3g} |"
    )


def _places(found: Mapping[str, Any]) -> list[str]:
    """Say where the error is located against where it is, for verdicts that were asked."""
    lines = []
    for name, one in found.items():
        place = one.get("located")
        if place and place["drafts"]:
            lines.append(
                f"{name}, {place['drafts']} wrong drafts with a false equation: stopped "
                f"{place['before']} before it, {place['at']} at it, {place['after']} after it, "
                f"{place['never']} never."
            )
    return [*lines, ""] if lines else []


def html_report(summary: Mapping[str, Any]) -> str:
    """Return a page without scripts or outside resources: curves, reliability, the tables."""
    parts = []
    for task in summary["tasks"]:
        for way, found in task["ways"].items():
            if "too_few" not in found:
                parts.append(f"<h2>{escape(task['task'])}, {escape(way)}</h2>{_charts(found)}")
    tables = escape(markdown_report(summary))
    return (
        "<!doctype html><meta charset=utf-8><title>What verdicts are worth</title><style>"
        "body{font:14px/1.5 system-ui,sans-serif;max-width:1000px;margin:2em auto;padding:0 1em}"
        "svg{margin:0 18px 8px 0}pre{white-space:pre-wrap}.key span{margin-right:1.2em}</style>"
        f"<h1>What verdicts are worth</h1>{''.join(parts)}<pre>{tables}</pre>"
    )


def _charts(found: Mapping[str, Any]) -> str:
    colours = dict(zip(found, COLOURS, strict=False))
    roc, rates, real = [], [], []
    for name, one in found.items():
        points = [(0.0, 0.0), *((p["false_accept"], p["true_accept"]) for p in one["curve"])]
        roc.append(_line(points, colours[name]))
        rates.append(
            _line([(p["threshold"], p["false_accept"]) for p in one["curve"]], colours[name])
            + _line(
                [(p["threshold"], 1 - p["true_accept"]) for p in one["curve"]], colours[name], "4 3"
            )
        )
        real.append(_line([(b["verdict"], b["right"]) for b in one["reliability"]], colours[name]))
    diagonal = _line([(0, 0), (1, 1)], "#bbb", "2 3")
    key = "".join(f'<span style="color:{c}">&#9632; {escape(n)}</span>' for n, c in colours.items())
    return (
        _chart("accepted of the wrong", "accepted of the right", [diagonal, *roc])
        + _chart("threshold", "false accept (line), false reject (dashes)", rates)
        + _chart("verdict", "share that is right", [diagonal, *real])
        + f'<p class="key">{key}</p>'
    )


def _chart(x: str, y: str, lines: Sequence[str]) -> str:
    side = SIZE + 2 * MARGIN
    return (
        f'<svg width="{side}" height="{side}" role="img" aria-label="{y} against {x}">'
        f'<rect x="{MARGIN}" y="{MARGIN}" width="{SIZE}" height="{SIZE}" fill="none" '
        f'stroke="#999"/>{"".join(lines)}<g font-size="11" fill="#59636e">'
        f'<text x="{MARGIN}" y="{side - 18}">0</text>'
        f'<text x="{MARGIN + SIZE - 6}" y="{side - 18}">1</text>'
        f'<text x="{side / 2}" y="{side - 6}" text-anchor="middle">{x}</text>'
        f'<text x="{MARGIN}" y="{MARGIN - 8}">{y}, 0 to 1</text></g></svg>'
    )


def _line(points: Sequence[tuple[float, float]], colour: str, dashes: str = "") -> str:
    places = " ".join(
        f"{MARGIN + min(max(x, 0), 1) * SIZE:.1f},{MARGIN + (1 - min(max(y, 0), 1)) * SIZE:.1f}"
        for x, y in points
    )
    style = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="1.6"{style}/>'
