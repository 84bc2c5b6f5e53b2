"""Where the prefixes of a draft end.

A cut ends a unit that can be right or wrong by itself: a line of code, a sentence, a member of a
JSON value, a tool call. Three steps: the rule names character offsets, each offset moves to the
first token end that can represent it, and units that say nothing join the unit before them.
"""

# ruff: noqa: RUF001 - the punctuation of other scripts is meant
from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator

from parse_engine.config import CutRule, check_count, check_cut_at
from parse_engine.json_cuts import json_ends
from parse_engine.types import Cut, Draft

_NEWLINES = r"[\r\n](?:\s*[\r\n])?"  # the end of a line, and the blank lines after it
_CLOSERS = r"""["'”’»)\]}*_`」』）】》〉]*+"""
# Possessive quantifiers, and a match only where a run of stops starts, keep long runs linear.
_SENTENCE_END = re.compile(
    rf"(?<![.!?…])(?P<stop>[.!?…]++){_CLOSERS}(?=\s|\Z)|[。！？｡।॥۔؟]++{_CLOSERS}|{_NEWLINES}"
)
_LIST_MARKER = re.compile(r"[\W_]*+(?:\d[\d.]*+|\w)?[\W_]*+")  # "1", "- **2.1", "a"
_DOTTED = re.compile(r"(?:[^\W\d_]\.)+[^\W\d_]")  # "e.g", "U.S", "z.B"
_ABBREVIATIONS = {"al", "bzw", "cf", "dr", "mme", "mr", "mrs", "ms", "prof", "sra", "st", "vs"}
_BEFORE_NUMBER = {"approx", "ca", "ch", "eq", "fig", "no", "nr", "p", "pp", "sec", "vol"}
# Fenced code and tool calls; what is not closed goes on to the end of the text.
_BLOCK = re.compile(
    rf"^[ \t]*(?P<fence>`{{3,}}+|~{{3,}}+)[^`\r\n]*+(?:{_NEWLINES}|\Z)(?P<code>.*?)"
    rf"(?:^[ \t]*(?P=fence)[`~]*[ \t]*(?:{_NEWLINES}|\Z)|\Z)"
    rf"|<tool_call>(?:{_NEWLINES})?(?P<call>.*?)(?P<closed></tool_call>|\Z)",
    re.MULTILINE | re.DOTALL,
)
# A line of code has no sentence and is no list item; it is indented, or starts, assigns or ends so.
_CODE_LINE = re.compile(
    r"(?!.*[.!?…](?:\s|$)|\s*(?:[-*+•]|\d+[.)])\s)"
    r"(?:[ \t@]|//|#include|(?:import|from|def|class|return)\s|.*(?:\s=\s|[{}()\[\];:,]$))"
)


def cut_points(draft: Draft, cut_at: CutRule | int, max_prefixes: int) -> tuple[Cut, ...]:
    """Choose where the prefixes of a draft end.

    Parameters
    ----------
    draft : Draft
        The draft of T tokens.
    cut_at : {"auto", "line", "sentence"} or int
        ``line`` cuts after each line that is not blank, ``sentence`` after each sentence and line,
        ``auto`` by content: code by line, prose by sentence, JSON after each complete member or
        element, tool calls at their end. A number cuts every so many tokens.
    max_prefixes : int
        Upper bound on the number of cuts; where there are more, they are spread evenly over tokens.

    Returns
    -------
    tuple of Cut
        Strictly increasing in tokens and characters. The last one is the whole draft, the others
        end between two characters. Empty for a draft without tokens.

    Raises
    ------
    InvalidRequestError
        If ``cut_at`` or ``max_prefixes`` has a wrong type or value.
    """
    check_count("max_prefixes", max_prefixes)
    check_cut_at(cut_at)
    if not draft.ids:
        return ()
    whole = Cut(len(draft.ids), len(draft.text))
    if isinstance(cut_at, int):
        # Of two prefixes with the same text the later, longer one stays.
        cuts = list({cut.chars: cut for cut in (*_every(draft, cut_at), whole)}.values())
    else:
        cuts = _join_empty_units(draft.text, [*_at(draft, _offsets(draft.text, cut_at)), whole])
    return tuple(_spread(cuts, max_prefixes))


def _every(draft: Draft, step: int) -> Iterator[Cut]:
    """Cut every ``step`` tokens, or at the next token that ends a character."""
    wanted = step
    for tokens, chars in enumerate(draft.char_ends, start=1):
        if tokens >= wanted and chars:
            yield Cut(tokens, chars)
            wanted = (tokens // step + 1) * step


def _at(draft: Draft, offsets: Iterable[int]) -> Iterator[Cut]:
    """Move ascending character offsets to the first token that ends at or after them."""
    ends = [(n, chars) for n, chars in enumerate(draft.char_ends, start=1) if chars is not None]
    index = 0
    for offset in offsets:
        while index < len(ends) and ends[index][1] < offset:
            index += 1
        if index == len(ends):
            return  # the draft ends inside a character: only the whole draft is left
        yield Cut(*ends[index])


def _join_empty_units(text: str, cuts: list[Cut]) -> list[Cut]:
    """Join each unit without a letter or digit, as a lone brace, to the unit before it."""
    kept: list[Cut] = []
    start = 0
    for cut in cuts:
        empty = not any(map(str.isalnum, text[start : cut.chars]))
        start = cut.chars
        if empty and kept:
            kept[-1] = cut
        elif not empty or cut is cuts[-1]:
            kept.append(cut)
    return kept


def _spread(cuts: list[Cut], count: int) -> list[Cut]:
    """Keep ``count`` cuts, the last one among them, as evenly over tokens as they allow."""
    if len(cuts) <= count:
        return cuts
    ends = [cut.tokens for cut in cuts]
    kept: list[Cut] = []
    first = 0
    for number in range(1, count + 1):
        ideal = ends[-1] * number / count
        last = len(cuts) - 1 - (count - number)  # leaves enough cuts for the numbers to come
        index = bisect_left(ends, ideal, first, last)
        if index > first and ideal - ends[index - 1] <= ends[index] - ideal:
            index -= 1
        kept.append(cuts[index])
        first = index + 1
    return kept


def _offsets(text: str, rule: CutRule) -> Iterator[int]:
    """Yield the ends of units, ascending, as character offsets."""
    if rule == "auto":
        start = 0
        for block in _BLOCK.finditer(text):
            yield from _ends_by_content(text, start, block.start())
            if not block["closed"]:  # a tool call is one unit, unless it is cut off
                span = block.span("code" if block["fence"] else "call")
                yield from _ends_by_content(text, *span, fenced=bool(block["fence"]))
            start = block.end()
            yield start
        yield from _ends_by_content(text, start, len(text))
    else:
        # A line that only opens a block, as ```python, is no unit of its own.
        openings = {block.start(n) for block in _BLOCK.finditer(text) for n in ("code", "call")}
        ends = _line_ends(text) if rule == "line" else _sentence_ends(text)
        yield from (end for end in ends if end not in openings)


def _ends_by_content(text: str, start: int, stop: int, fenced: bool = False) -> Iterator[int]:
    """Yield the ends of JSON members, lines of code or sentences in text[start:stop]."""
    body = text[start:stop]
    ends = json_ends(body)
    if ends is None:
        ends = (_line_ends if fenced or _looks_like_code(body) else _sentence_ends)(body)
    yield from (start + end for end in ends)
    yield stop


def _looks_like_code(text: str) -> bool:
    """Whether more than half of the lines are lines of code."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return 2 * sum(bool(_CODE_LINE.match(line)) for line in lines) > len(lines)


def _line_ends(text: str) -> list[int]:
    """Return the offset after each run of newlines."""
    return [match.end() for match in re.finditer(_NEWLINES, text)]


def _sentence_ends(text: str) -> list[int]:
    """Return the offset after each sentence, its closing quotes included, and each line."""
    ends: list[int] = []
    start = 0
    for match in _SENTENCE_END.finditer(text):
        unit, start = text[start : match.start()], match.end()
        following = text[match.end() : match.end() + 8].lstrip()[:1]
        if match["stop"] is None or _is_sentence(unit, match["stop"], following):
            ends.append(match.end())
    return ends


def _is_sentence(unit: str, stop: str, following: str) -> bool:
    """Whether a unit ends at a stop with a space after it: no list marker, no abbreviation."""
    if _LIST_MARKER.fullmatch(unit) or following.islower():
        return False
    if stop != ".":
        return True
    word = unit.split()[-1].lstrip("([{\"'“‘«*_")
    initial = len(word) == 1 and word.isupper()
    numbered = word.lower() in _BEFORE_NUMBER and following.isdigit()
    return not (initial or numbered or _DOTTED.fullmatch(word) or word.lower() in _ABBREVIATIONS)
