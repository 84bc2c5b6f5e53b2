"""What verdicts are worth, for people to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import cycle, groupby
from typing import Any

from parse_engine.bench.judge_summary import FEWEST
from parse_engine.bench.report import STYLE, html_table
from parse_engine.bench.svg import FAINT, Panel

NOTE = (
    "PARSE is not lossless: an accepted draft is one that the target approves of. AUC is the share "
    "of pairs of a right and a wrong draft in which the right one has the higher verdict, with the "
    "95% interval of a bootstrap over items. Combinations are fitted to other items than those "
    "they are tried on."
)
COLOURS = (
    *("#0b5fc9", "#c5303a", "#1a7f37", "#8250df", "#b35900", "#59636e", "#0e7c86", "#b5179e"),
)


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
        lines += [
            f"{way}: {missing} finished drafts are left out: too long to be judged so, or not how "
            "this target can judge.\n"
            for way, missing in task["unjudged"].items()
            if missing
        ]
        for way, found in task["ways"].items():
            if "too_few" in found:
                few = found["too_few"]
                lines += [
                    f"{way}: {few['right']} right, {few['wrong']} wrong: too few, it takes "
                    f"{FEWEST} of each.",
                    "",
                ]
                continue
            lines += [
                f"| {way} | AUC | accepted of the right, at {most:.0%} of the wrong | threshold |",
                "|---|---|---|---|",
                *(_row(name, one) for name, one in found.items()),
                "",
                *_places(found),
            ]
        lines += _kept(task["kept"])
        if tried := task.get("calibration"):
            lines += [
                f"The calibration accepts {tried['wrong_accepted']} of {tried['wrong']} wrong "
                f"drafts (it promises at most {tried['false_accept_bound']:.0%}, of its tasks "
                "together) and "
                f"{tried['right_accepted']} of {tried['right']} right ones.",
                "",
            ]
    return "\n".join([*lines, NOTE, summary["machine"]])


def _row(name: str, one: Mapping[str, Any]) -> str:
    auc, at = one["auc"], one["at"]
    threshold = "-" if at["threshold"] is None else f"{at['threshold']:.3g}"
    return (
        f"| {name} | {auc['value']:.2f} ({auc['low']:.2f} to {auc['high']:.2f}) "
        f"| {at['true_accept']:.0%} | {threshold} |"
    )


def _kept(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Tabulate what stays of the drafts at the default thresholds."""
    if not rows:
        return []
    lines = [
        "| kept at the default threshold | verdict | rule | right drafts, whole | their tokens "
        "| wrong drafts, whole | their tokens |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        shares = [
            "-" if row[truth] is None else f"{row[truth][part]:.0%}"
            for truth in ("right", "wrong")
            for part in ("whole", "tokens")
        ]
        lines.append(f"| {' | '.join([row['way'], row['verdict'], row['rule'], *shares])} |")
    return [*lines, ""]


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
    return (
        '<!doctype html><meta charset="utf-8"><title>What verdicts are worth</title>'
        f"<style>{STYLE}</style><h1>What verdicts are worth</h1>"
        f"{''.join(parts)}{_as_html(markdown_report(summary))}"
    )


def _as_html(markdown: str) -> str:
    """Render what a report has of Markdown: headings, tables and paragraphs."""
    parts = []
    for is_table, lines in groupby(markdown.splitlines(), key=lambda line: line.startswith("|")):
        if is_table:
            head, _, *rows = ([cell.strip() for cell in line[1:-1].split("|")] for line in lines)
            parts.append(html_table(head, rows))
            continue
        for line in filter(None, lines):
            title = line.removeprefix("## ")
            tag = "p" if title == line else "h2"
            parts.append(f"<{tag}>{escape(title)}</{tag}>")
    return "".join(parts)


def _charts(found: Mapping[str, Any]) -> str:
    colours = dict(zip(found, cycle(COLOURS), strict=False))
    roc = _panel("Accepted of the right", "accepted of the wrong")
    rates = _panel("False accept; dashed: false reject", "threshold")
    real = _panel("Share that is right", "verdict")
    for panel in (roc, real):
        panel.line([panel.at(0, 0), panel.at(1, 1)], FAINT, dash="2 3")
    for name, one in found.items():
        colour, points = colours[name], one["curve"]
        wrong = [(p["threshold"], p["false_accept"]) for p in points]
        missed = [(p["threshold"], 1 - p["true_accept"]) for p in points]
        passed = [(0.0, 0.0), *((p["false_accept"], p["true_accept"]) for p in points)]
        bins = [(one["verdict"], one["right"]) for one in one["reliability"]]
        roc.line([roc.at(*p) for p in passed], colour, width=2)
        rates.line([rates.at(*p) for p in wrong], colour, width=2)
        rates.line([rates.at(*p) for p in missed], colour, width=2, dash="4 3")
        real.line([real.at(*p) for p in bins], colour, width=2)
    key = "".join(f'<i style="background:{c}"></i>{escape(n)}' for n, c in colours.items())
    panels = "".join(panel.svg() for panel in (roc, rates, real))
    return f'<div class="panels">{panels}</div><p>{key}</p>'


def _panel(title: str, x: str) -> Panel:
    panel = Panel(title, width=320, height=300)
    panel.x_axis(x, lambda value: f"{value:g}")
    panel.y_axis(lambda value: f"{value:.0%}")
    return panel
