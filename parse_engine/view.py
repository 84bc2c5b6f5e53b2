"""Show what PARSE did to an answer, in a terminal, with rich."""

from __future__ import annotations

from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from parse_engine.types import Generation, Verdicts
from parse_engine.view_html import generation_html
from parse_engine.view_rows import (
    ASCII_SIGNS,
    MEANINGS,
    SIGNS,
    Kind,
    figures,
    mark,
    rows,
    verdict_legend,
    visible,
)

__all__ = ["comparison", "figures_line", "generation_html", "render", "verdict_table"]

# Of middle lightness: each stands out from white and from black alike, by more than 4 to 1.
COLOURS: dict[Kind, str] = {
    "kept": "#1f8a3b",
    "rejected": "#d7443e",
    "rewritten": "#3b78d8",
    "unverified": "#a35fd0",
}
JUDGING = "#a35fd0"
LOSSY = (
    "PARSE is not lossless: the answer is one the target approves of, "
    "not the one it would have written."
)
SIDE_BY_SIDE = 110  # columns; with fewer, most lines of code would be broken


def render(generation: Generation, *, title: str | None = None) -> RenderableType:
    """Draw one answer: what was kept, rejected and rewritten, the verdicts, the figures.

    Parameters
    ----------
    generation : Generation
        The answer of one call.
    title : str, optional
        Heading; unset, "PARSE" or the mode of the call.

    Returns
    -------
    RenderableType
        For ``rich.console.Console.print``.
    """
    mode = generation.stats.mode
    heading = title or ("PARSE" if mode == "parse" else f"The {mode} model alone")
    return Group(
        _heading(heading),
        _Lines(generation),
        Text(),
        _Legend((generation,)),
        figures_line(generation),
    )


def comparison(
    parse: Generation, parse_s: float, alone: Generation, alone_s: float, *, runs: int = 1
) -> RenderableType:
    """Draw PARSE beside the target alone: both answers, the stages, the ratio.

    Parameters
    ----------
    parse, alone : Generation
        The answers to one question with PARSE and by the target alone.
    parse_s, alone_s : float
        Seconds that each took.
    runs : int
        Number of runs of which the seconds are the medians.

    Returns
    -------
    RenderableType
        For ``rich.console.Console.print``; side by side where there is room, else stacked.
    """
    ratio = alone_s / parse_s if parse_s else 1.0
    lengths = parse.usage.completion_tokens, alone.usage.completion_tokens
    measured = "one run" if runs == 1 else f"median of {runs} runs"
    verdict = Text.assemble(
        (f"{ratio:.2f}x", f"bold {COLOURS['kept' if ratio >= 1 else 'rejected']}"),
        " the speed of the target alone" + ("" if ratio >= 1 else ", so slower"),
        f" ({alone_s:.2f} s / {parse_s:.2f} s, {measured} on this machine)",
    )
    if lengths[0] != lengths[1] and all(lengths):
        verdict.append(
            f"\nThe answers are {lengths[0]} and {lengths[1]} tokens long: for each token of the "
            f"answer the ratio is {ratio * lengths[0] / lengths[1]:.2f}x."
        )
    same = "The two answers are the same text." if parse.text == alone.text else ""
    return Group(
        _Pair(parse, alone),
        _Legend((parse, alone)),
        _stages(parse, parse_s, alone, alone_s),
        verdict,
        *_fallback(parse),
        Text(f"{LOSSY} {same}".strip(), style="dim"),
    )


def figures_line(generation: Generation) -> Text:
    """Put the figures of a call into one line, and why there was no speculation into another."""
    line = Text(", ".join(figures(generation)), style="dim")
    return Text("\n").join([line, *_fallback(generation)])


def verdict_table(text: str, verdicts: Verdicts, threshold: float) -> RenderableType:
    """Draw the verdicts on a given answer, one line a prefix.

    Parameters
    ----------
    text : str
        The answer that was judged.
    verdicts : Verdicts
        What the target thinks of each prefix.
    threshold : float
        Verdicts under it are marked.

    Returns
    -------
    RenderableType
        For ``rich.console.Console.print``.
    """
    signals = {
        f"P({verdicts.labels[0]})": verdicts.p_correct if verdicts.kind != "p_correct" else None,
        "mean logp": verdicts.mean_logprob,
        "min logp": verdicts.min_logprob,
        "max gap": verdicts.max_gap,
        "kept logp": verdicts.accept_logprob,
    }
    known = {name: values for name, values in signals.items() if values is not None}
    table = Table(box=box.HORIZONTALS, border_style="dim", header_style="dim", expand=True)
    table.add_column("tokens", justify="right", no_wrap=True)
    table.add_column("prefix ends with", ratio=1, no_wrap=True, overflow="ellipsis")
    plain = f"P({verdicts.labels[0]})" if verdicts.kind == "p_correct" else "verdict"
    for name in (plain, *known):
        table.add_column(name, justify="right", no_wrap=True)
    start = 0
    for number, (end, verdict) in enumerate(zip(verdicts.ends, verdicts.verdict, strict=True)):
        lines = text[start:end].rstrip().rsplit("\n", 1)
        style = COLOURS["rejected"] if verdict < threshold else COLOURS["kept"]
        table.add_row(
            str(verdicts.token_ends[number]),
            Text(visible(lines[-1])),
            Text(mark(verdict, threshold), style=style),
            *(f"{values[number]:.2f}" for values in known.values()),
        )
        start = end
    return table


@dataclass(frozen=True)
class _Lines:
    """The rows of an answer, with the sign of their kind before each line of the screen."""

    generation: Generation

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        signs = ASCII_SIGNS if options.ascii_only else SIGNS
        threshold = self.generation.stats.threshold
        found = rows(self.generation)
        if not found:
            yield Text("(no text)", style="dim")
        for row in found:
            colour = COLOURS[row.kind]
            line = Text()
            if row.continues:
                line.append("...", "dim")
            for text, verdict in row.spans:
                words = text.lstrip()  # indentation is not struck through
                line.append(text[: len(text) - len(words)])
                line.append(words, f"{colour} strike" if row.kind == "rejected" else colour)
                if verdict is not None:
                    low = verdict < threshold
                    style = COLOURS["rejected"] if low else "dim"
                    line.append(f" {mark(verdict, threshold)}", style)
            sign = Text(f"{signs[row.kind]} ", f"bold {colour}")
            line.expand_tabs(4)
            width = max(options.max_width - 2, 8)
            indent = min(len(line.plain) - len(line.plain.lstrip()), width // 2)
            margin = " " * indent  # what a long line of code is broken into stays in its block
            for part in line[indent:].wrap(console, width - indent, overflow="fold"):
                part.rstrip()
                yield Text.assemble(sign, margin, part)


@dataclass(frozen=True)
class _Legend:
    """What the signs and numbers mean, of those that occur."""

    generations: tuple[Generation, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        signs = ASCII_SIGNS if options.ascii_only else SIGNS
        kinds = {row.kind for generation in self.generations for row in rows(generation)}
        said = [
            Text(f"{signs[kind]} {meaning}", COLOURS[kind])
            for kind, meaning in MEANINGS.items()
            if kind in kinds
        ]
        yield Text("   ").join(said)
        for generation in self.generations:
            if explained := verdict_legend(generation):
                yield Text(explained, "dim")


@dataclass(frozen=True)
class _Pair:
    """Two answers, side by side where there is room."""

    parse: Generation
    alone: Generation

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        headings = ("PARSE", "The target alone")
        bodies = (_Lines(self.parse), _Lines(self.alone))
        if options.max_width < SIDE_BY_SIDE:
            for heading, body in zip(headings, bodies, strict=True):
                yield Group(_heading(heading), body, Text())
            return
        table = Table(box=box.ROUNDED, expand=True, border_style="dim", header_style="bold")
        for heading in headings:
            table.add_column(heading, ratio=1)
        table.add_row(*bodies)
        yield table


@dataclass(frozen=True)
class _Bar:
    """A stage on the common axis of time; begin and end are fractions of its length."""

    begin: float
    end: float
    colour: str

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(10, options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        first, last = (round(place * options.max_width) for place in (self.begin, self.end))
        block = "=" if options.ascii_only else "━"
        yield Text(" " * first + block * max(last - first, self.end > self.begin), self.colour)


def _stages(parse: Generation, parse_s: float, alone: Generation, alone_s: float) -> Table:
    """List the stages with their tokens and seconds, and draw them on one axis of time."""
    stats = parse.stats
    whole = max(parse_s, alone_s) or 1.0
    judged = f"{stats.prefixes} {'prefix' if stats.prefixes == 1 else 'prefixes'} judged"
    kept = f"{stats.accepted_tokens} kept ({judged})"
    written = f"{stats.regenerated_tokens} written"
    parts = [
        ("draft model drafts", f"{stats.drafted_tokens} drafted", stats.draft_s, COLOURS["kept"]),
        ("target verifies", kept, stats.verify_s, JUDGING),
        ("target regenerates", written, stats.regenerate_s, COLOURS["rewritten"]),
    ]
    table = Table(box=box.SIMPLE_HEAD, expand=True, border_style="dim", header_style="dim")
    table.add_column("stage", no_wrap=True)
    table.add_column("tokens")
    table.add_column("seconds", justify="right", no_wrap=True)
    table.add_column("time", ratio=1)
    clock = 0.0
    for stage, tokens, seconds, colour in parts:
        bar = _Bar(clock / whole, (clock + seconds) / whole, colour)
        table.add_row(stage, tokens, f"{seconds:.2f}", bar)
        clock += seconds
    total = f"{parse.usage.completion_tokens} answered"
    table.add_row("PARSE in all", total, f"{parse_s:.2f}", _Bar(0, parse_s / whole, "dim"))
    total = f"{alone.stats.regenerated_tokens} written"
    bar = _Bar(0, alone_s / whole, COLOURS["rewritten"])
    table.add_row("target alone", total, f"{alone_s:.2f}", bar)
    return table


def _heading(heading: str) -> Rule:
    """Head a part with a line: a frame would get into what is copied from the terminal."""
    return Rule(Text(visible(heading), style="bold"), align="left", style="dim")


def _fallback(generation: Generation) -> list[Text]:
    reason = generation.stats.fallback
    return [Text(f"Speculation was not used: {visible(reason)}", "bold")] if reason else []
