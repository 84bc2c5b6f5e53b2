"""The report of a run: a page that needs nothing beside it, and the same figures as Markdown."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from parse_engine.bench import charts
from parse_engine.bench.intervals import Estimate
from parse_engine.bench.methods import METHODS, name_of
from parse_engine.bench.store import REPORT, Key, Row, Store
from parse_engine.bench.summary import ALL, Figures, ratio_of, summarize
from parse_engine.errors import InvalidRequestError
from parse_engine.view import LOSSY

STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; color: #1f2430; background: #fff; margin: 32px auto;
  max-width: 1020px; padding: 0 16px; }
h1 { font-size: 22px; } h2 { font-size: 16px; margin: 32px 0 4px; }
p { max-width: 760px; margin: 4px 0 12px; } .faint { color: #6b7280; }
.panels { display: flex; flex-wrap: wrap; gap: 16px; } svg { font-family: inherit; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: 12px; }
th, td { padding: 4px 9px; text-align: right; border-bottom: 1px solid #e5e7eb;
  white-space: nowrap; font-variant-numeric: tabular-nums; }
th { color: #6b7280; font-weight: 600; }
td:nth-child(-n+2), th:nth-child(-n+2) { text-align: left; }
i { display: inline-block; width: 10px; height: 10px; margin: 0 5px 0 12px; }
"""
COLUMNS = (
    *("task", "method", "items", "speedup (95%)", "in all", "tokens/s", "seconds"),
    *("to first text, s", "right", "difference, points (95%)", "accepted", "target tokens"),
    "cut off",
)
HOW = (
    "Medians over items. Speedup: the target's seconds / the method's on the same item, with a "
    "bootstrap interval; answers differ in length, and the time to write them is part of it. In "
    "all: the target's seconds on all items together / the method's. Difference: share of right "
    "answers minus the target's on the same items. Accepted: of the tokens that were proposed to "
    "the target. Target tokens: positions that went through the target. Cut off: answers that the "
    "limit of tokens ended. Intervals are of 95%; of a median over fewer than 6 items it is the "
    "range."
)
SHOWN = 8  # places that a trouble is reported for

Section = tuple[str, str, list[str]]  # title, text, charts


def main(argv: Sequence[str]) -> int:
    """Render the report of a folder again."""
    parser = argparse.ArgumentParser(
        prog="python -m parse_engine bench report", description=main.__doc__
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="what bench run wrote to --out")
    print(finish(Store(parser.parse_args(argv).folder)))
    return 0


def finish(store: Store) -> str:
    """Write the page of a run; return its figures as Markdown, and where the page lies."""
    manifest = store.manifest
    if manifest.get("command") != "bench run":
        raise InvalidRequestError(
            f"{str(store.folder)!r} was not written by bench run.",
            "bench judge draws its report when its command is given again.",
        )
    rows, tasks = store.rows(), [task["name"] for task in manifest["tasks"]]
    check_rows(store, rows, {*tasks, *manifest["methods"]})
    found = summarize(rows, manifest["methods"], tasks)
    about, said = setting(manifest, found), notes(manifest, rows, found)
    shown = page(cells(found), about, said, sections(manifest, rows, found))
    path = store.write(REPORT, shown)
    table = [
        f"| {' | '.join(cell.replace('|', '/').replace(chr(10), ' ') for cell in line)} |"
        for line in (COLUMNS, ["---"] * len(COLUMNS), *cells(found))
    ]
    return "\n".join([*table, "", *about, *said, "", f"Report: {path}"])


def check_rows(store: Store, rows: dict[Key, Row], known: set[str]) -> None:
    """Refuse results of other tasks, methods or models than one run has: no figure is of both."""
    models = {repr(row["models"]) for row in rows.values() if "models" in row}
    what = ""
    if strangers := {name for task, _, by in rows for name in (task, by) if name not in known}:
        what = f"{min(strangers)!r}, which it does not measure"
    elif len(models) > 1:
        what = f"several models: {', '.join(sorted(models))}"
    if what:
        raise InvalidRequestError(
            f"{str(store.folder)!r} has results of {what}.",
            "Take out the lines that come from elsewhere.",
        )


def cells(found: Iterable[Figures]) -> list[list[str]]:
    """Return the table of figures."""
    return [
        [
            one.task,
            one.method,
            f"{one.items}" + (f" (+ {one.failed} failed)" if one.failed else ""),
            spread(one.speedup, "{:.2f}"),
            number(one.in_all, "{:.2f}"),
            number(one.tokens_per_s, "{:.1f}"),
            number(one.seconds, "{:.2f}"),
            number(one.first_s, "{:.2f}"),
            f"{one.right} of {one.checked}" if one.checked else "-",
            spread(one.difference, "{:+.0f}", 100) if one.method != "target" else "-",
            "-" if one.accepted_fraction is None else f"{one.accepted_fraction:.0%}",
            number(one.target_tokens, "{:.0f}"),
            f"{one.cut_off}",
        ]
        for one in found
    ]


def number(value: float, form: str) -> str:
    """Write a figure that may be missing."""
    return "-" if math.isnan(value) else form.format(value)


def spread(estimate: Estimate | None, form: str, scale: float = 1) -> str:
    """Write a figure with its interval."""
    if estimate is None:
        return "-"
    value, low, high = (
        form.format(scale * one) for one in (estimate.value, estimate.low, estimate.high)
    )
    return f"{value} ({low} to {high})"


def setting(manifest: dict[str, Any], found: Sequence[Figures]) -> list[str]:
    """Return what was measured, line by line."""
    config, names = manifest["config"], {task["name"] for task in manifest["tasks"]}
    accepts = {one.method: one.accepts for one in found if one.accepts is not None}
    loaded = [manifest[name] for name in ("dtype", "chat_template_kwargs") if manifest.get(name)]
    wanted = len(manifest["methods"]) * sum(task["items"] for task in manifest["tasks"])
    answers = sum(one.items + one.failed for one in found if one.task in names)
    exact = [label for label in manifest["methods"] if METHODS[name_of(label)].exact]
    return [
        *(
            [f"Not finished: {answers} of {wanted} answers. Methods may differ in their items."]
            if answers < wanted
            else []
        ),
        LOSSY,
        f"Lossless, up to rounding: {', '.join(exact)}.",
        f"Target {manifest['target']}, draft {manifest['draft']}"
        f"{''.join(f', {value}' for value in loaded)}; greedy, at most "
        f"{manifest['max_new_tokens']} tokens, {config['verify_order']}, seed {manifest['seed']}.",
        *(
            f"{method} accepts by {verdict} from {threshold:g} on."
            for method, (verdict, threshold) in accepts.items()
        ),
        manifest["machine"],
    ]


def notes(manifest: dict[str, Any], rows: dict[Key, Row], found: Sequence[Figures]) -> list[str]:
    """Return what PARSE is held to, and what failed, line by line."""
    lines = []
    tasks = [task["name"] for task in manifest["tasks"]]
    of_all = [one for one in found if one.task == (ALL if len(tasks) > 1 else tasks[0])]
    for one in of_all:
        if one.of_ideal is not None:
            lines.append(
                f"{one.method}: {spread(one.of_ideal, '{:.2f}')} of the ideal speed for what was "
                "accepted (drafting, one prefill of prompt and draft, and the rewritten tokens at "
                "the target's own speed)."
            )
            lines += beside_sequential(rows, of_all, one.method)
    return lines + troubles(rows)


def troubles(rows: dict[Key, Row]) -> list[str]:
    """Say what failed, where the target answered alone after all, and what could not be checked."""
    said: dict[str, list[str]] = {}
    for (task, item, method), row in rows.items():
        reasons = {
            "failed": row.get("error"),
            "answered by the target alone": row.get("details", {}).get("fallback"),
            "not checked": row.get("check_error"),
            "not timed against the ideal": row.get("prefill_error"),
        }
        for what, why in reasons.items():
            if why is not None:
                said.setdefault(f"{what}, {why}", []).append(f"{task} {item} by {method}")
    return [
        f"{len(some)} {what}: {', '.join(some[:SHOWN])}{', ...' if len(some) > SHOWN else ''}."
        for what, some in said.items()
    ]


def beside_sequential(rows: dict[Key, Row], found: Sequence[Figures], method: str) -> Iterator[str]:
    """Compare PARSE with asking about one prefix after the other."""
    for other in found:
        if name_of(other.method) != "sequential" or other.accepts is None:
            continue
        times = ratio_of(rows, other.method, method)
        if times is not None:
            verdict, threshold = other.accepts
            yield (
                f"{method} beside {other.method}, which accepts by {verdict} from {threshold:g} "
                f"on: {spread(times, '{:.2f}')} times as fast."
            )


def page(
    table: Iterable[Sequence[str]],
    about: Iterable[str],
    said: Iterable[str],
    pictures: Iterable[Section],
) -> str:
    """Return the report as HTML."""
    first = "".join(f'<p class="faint">{escape(line)}</p>' for line in about)
    last = "".join(f"<p>{escape(line)}</p>" for line in said)
    figures = "".join(
        f"<h2>{title}</h2><p>{text}</p><div class=panels>{''.join(panels)}</div>"
        for title, text, panels in pictures
        if panels
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>PARSE benchmark</title>'
        f"<style>{STYLE}</style><h1>PARSE beside other ways to answer</h1>{first}{figures}"
        f"<h2>Figures</h2><p>{HOW}</p>{html_table(COLUMNS, table)}"
        f"{last}</html>\n"
    )


def html_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table as HTML."""
    lines = [_row("th", head), *(_row("td", row) for row in rows)]
    return f"<div class=scroll><table>{''.join(lines)}</table></div>"


def _row(tag: str, cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"


def sections(
    manifest: dict[str, Any], rows: dict[Key, Row], found: Sequence[Figures]
) -> Iterator[Section]:
    """Yield title, text and charts of each part of the page; categories are in the table only."""
    methods = manifest["methods"]
    shades = charts.colours(methods)
    tasks = [task["name"] for task in manifest["tasks"]]
    each = [(name, [one for one in found if one.task == name]) for name in (*tasks, ALL)]
    each = [(name, of) for name, of in each if of]
    yield "Speedup by task", "", [charts.speedups(task, of, shades) for task, of in each]
    yield (
        "Accuracy against speedup",
        "Up is right, to the right is fast.",
        [chart for task, of in each if (chart := charts.accuracy(task, of, shades))],
    )
    yield (
        "As the threshold varies",
        "Speedup over the target alone; share of the drafted tokens that is accepted; share of "
        "right answers.",
        [chart for task, of in each for chart in charts.thresholds(task, of)],
    )
    yield (
        "Accepted by position",
        "The share of drafts that are accepted at least so far.",
        [
            chart
            for task in tasks
            if (chart := charts.by_position(task, drafts(methods, rows, task), shades))
        ],
    )
    legend = "".join(
        f'<i style="background:{shade}"></i>{label}' for label, shade in charts.STAGES.values()
    )
    yield (
        "Where the time goes",
        legend,
        [chart for task, of in each if (chart := charts.stages(task, of))],
    )


def drafts(methods: Sequence[str], rows: dict[Key, Row], task: str) -> dict[str, list[Row]]:
    """Return the rows of methods that draft whole answers, by method, for one task."""
    return {
        method: [
            row
            for (of, _, by), row in rows.items()
            if of == task and by == method and "error" not in row and row["drafted"]
        ]
        for method in methods
        if name_of(method) in ("parse", "cascade", "sequential")
    }
