"""What PARSE did to an answer, as plain lines and figures that any view can draw."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from parse_engine.config import VerdictKind
from parse_engine.types import Generation

Kind = Literal["kept", "rejected", "rewritten", "unverified"]
Span = tuple[str, float | None]

# Every line carries a sign beside its colour, so a view holds without colour too.
SIGNS: dict[Kind, str] = {"kept": "✓", "rejected": "✗", "rewritten": "+", "unverified": "?"}
ASCII_SIGNS: dict[Kind, str] = {**SIGNS, "kept": "=", "rejected": "-"}
MEANINGS: dict[Kind, str] = {
    "kept": "draft, kept",
    "rejected": "draft, rejected",
    "rewritten": "written by the target",
    "unverified": "draft, not judged",
}

VERDICTS: dict[VerdictKind, str] = {
    "p_correct": "the target's P({label})",
    "accept_prob": "how probably speculative sampling would keep all tokens,",
    "joint_prob": "the target's probability of just these tokens,",
    "min_prob": "the target's probability of the least probable token",
    "mean_prob": "the target's mean (geometric) probability of a token",
    "min_ratio": "the smallest ratio of a token's probability to that of the target's best token",
    "calibrated": "the calibrated verdict",
}

# A model's control characters could move the cursor or recolour the terminal.
_CONTROLS: dict[int, int | None] = {code: 0x2400 + code for code in range(32)}
_CONTROLS |= dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
_CONTROLS |= {ord("\r"): None, 0x7F: 0x2421}
del _CONTROLS[ord("\n")], _CONTROLS[ord("\t")]


@dataclass(frozen=True)
class Row:
    """One line of a view.

    Parameters
    ----------
    kind : {"kept", "rejected", "rewritten", "unverified"}
        What became of the text.
    spans : tuple of (str, float or None)
        The line in pieces, each with the verdict at its end if a prefix ends there.
    continues : bool
        Whether the line goes on where the kept text stops, with no line break between.
    """

    kind: Kind
    spans: tuple[Span, ...]
    continues: bool


def visible(text: str) -> str:
    """Replace control characters, those that start escape sequences too, by pictures of them."""
    return text.translate(_CONTROLS)


def rows(generation: Generation) -> list[Row]:
    """Split an answer and its draft into lines that are each of one kind.

    Parameters
    ----------
    generation : Generation
        The answer of one call.

    Returns
    -------
    list of Row
        What was kept, what was rejected and what the target wrote, in this order.
    """
    draft, kept = generation.draft_text, generation.accepted_text
    if generation.stats.mode == "draft":
        text = draft or generation.regenerated_text
        return [Row("unverified", tuple(spans), False) for spans in _lines(text, deque())]
    judged = generation.verdicts
    verdicts = deque(zip(judged.ends, judged.verdict, strict=True) if judged else ())
    rejected = draft[len(kept) :]
    mid_line = bool(kept) and not kept.endswith("\n")
    return [
        *_piece("kept", kept, _marks(verdicts, 0, kept), False),
        *_piece("rejected", rejected, _marks(verdicts, len(kept), rejected), mid_line),
        *_piece("rewritten", generation.regenerated_text, deque(), mid_line),
    ]


def figures(generation: Generation) -> list[str]:
    """Say in figures what a call cost: tokens, prefixes, seconds a stage."""
    stats = generation.stats
    said = []
    if stats.drafted_tokens:
        said.append(f"{stats.drafted_tokens} tokens drafted")
    if stats.drafted_tokens and stats.mode != "draft":
        said.append(f"{stats.accepted_tokens} kept ({stats.accepted_fraction:.0%})")
    if stats.mode != "draft":
        said.append(f"{stats.regenerated_tokens} written by the target")
    if stats.prefixes:
        said.append(f"{stats.prefixes} {'prefix' if stats.prefixes == 1 else 'prefixes'} judged")
    stages = {"draft": stats.draft_s, "verify": stats.verify_s, "regenerate": stats.regenerate_s}
    said += [f"{stage} {seconds:.2f} s" for stage, seconds in stages.items() if seconds]
    said.append(f"{stats.target_tokens_processed} tokens through the target")
    if generation.finish_reason == "length":
        said.append("stopped at the token limit")
    return said


def verdict_legend(generation: Generation) -> str | None:
    """Explain the numbers in brackets; None where nothing was judged."""
    if generation.verdicts is None:
        return None
    stats, verdicts = generation.stats, generation.verdicts
    said = f"[p] {VERDICTS[verdicts.kind].format(label=verdicts.labels[0])} of all up to there"
    if any(verdict < stats.threshold for verdict in verdicts.verdict):
        said += f", ! under the threshold {stats.threshold:g}"
        if stats.full_verdict is not None and stats.full_verdict >= stats.threshold:
            said += "; the whole draft passed, so all of it is kept"
    return said


def mark(verdict: float, threshold: float) -> str:
    """Write a verdict; an exclamation mark says that it is under the threshold."""
    shown = f"{verdict:.2f}" if verdict >= 0.095 or verdict == 0 else f"{verdict:.1g}"
    return f"[{shown}{'!' if verdict < threshold else ''}]"


def _marks(verdicts: deque[tuple[int, float]], start: int, text: str) -> deque[tuple[int, float]]:
    """Take the verdicts that end inside a piece of the draft, with offsets into the piece."""
    found: deque[tuple[int, float]] = deque()
    while verdicts and verdicts[0][0] <= start + len(text):
        end, verdict = verdicts.popleft()
        offset = end - start
        # It belongs after the last word that it covers, not at the start of the line after it.
        while offset > 0 and text[offset - 1].isspace():
            offset -= 1
        found.append((offset, verdict))
    return found


def _piece(kind: Kind, text: str, marks: deque[tuple[int, float]], mid_line: bool) -> Iterator[Row]:
    """Make the rows of one piece; mid_line: the text before it stops inside a line."""
    for number, spans in enumerate(_lines(text, marks)):
        continues = mid_line and number == 0
        if not continues or spans != [("", None)]:  # a bare line break is no row of its own
            yield Row(kind, tuple(spans), continues)


def _lines(text: str, marks: deque[tuple[int, float]]) -> Iterator[list[Span]]:
    """Cut a text at its line breaks, and each line at the marks inside it."""
    start = 0
    for line in text.removesuffix("\n").split("\n") if text else ():
        end, spans = start + len(line), list[Span]()
        place = start
        while marks and marks[0][0] <= end:
            offset, verdict = marks.popleft()
            spans.append((visible(text[place:offset]), verdict))
            place = offset
        if place < end or not spans:
            spans.append((visible(text[place:end]), None))
        yield spans
        start = end + 1
