"""The text of an answer as it grows: stop strings, and thinking kept apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from parse_engine.types import Source, TextDelta

if TYPE_CHECKING:
    from transformers.utils.chat_parsing import ResponseParser


def find_stop(text: str, stop: Sequence[str], start: int = 0) -> int | None:
    """Return the offset of the first stop string at or after ``start``, None if there is none."""
    found = [at for at in (text.find(string, start) for string in stop) if at >= 0]
    return min(found, default=None)


def held_back(text: str, stop: Sequence[str]) -> int:
    """Return how many characters at the end of a text may be the beginning of a stop string."""
    longest = max((len(string) for string in stop), default=1) - 1
    for size in range(min(longest, len(text)), 0, -1):
        if any(string.startswith(text[-size:]) for string in stop):
            return size
    return 0


@dataclass
class AnswerText:
    """The text of an answer as it grows out of accepted and regenerated pieces.

    Parameters
    ----------
    stop : tuple of str
        Stop strings: the answer ends before the first of them, wherever its pieces came from.
    parser : ResponseParser, optional
        Splits thinking from answer.
    """

    stop: tuple[str, ...]
    parser: ResponseParser | None = None
    raw: str = ""
    text: str = ""
    reasoning: str = ""
    stopped: bool = False
    _out: int = 0  # characters of raw that were given out
    _borders: list[tuple[int, Source]] = field(default_factory=list)

    def feed(self, piece: str, source: Source) -> list[TextDelta]:
        """Add a piece and return what can be shown: nothing that may yet be a stop string."""
        if self.stopped:
            return []
        if not self._borders or self._borders[-1][1] != source:
            self._borders.append((len(self.raw), source))
        longest = max((len(string) for string in self.stop), default=0)
        seen = max(0, len(self.raw) - longest)
        self.raw += piece
        at = find_stop(self.raw, self.stop, seen)
        if at is not None:
            self.raw, self.stopped = self.raw[:at], True
            return self._release(len(self.raw))
        return self._release(len(self.raw) - held_back(self.raw, self.stop))

    def finish(self) -> list[TextDelta]:
        """Return what was held back; the answer is over."""
        deltas = self._release(len(self.raw))
        if self.parser is not None:
            _, events = self.parser.finalize()
            deltas += self._split(events, self._source(len(self.raw)))
        return deltas

    def _release(self, end: int) -> list[TextDelta]:
        deltas: list[TextDelta] = []
        borders = [at for at, _ in self._borders if self._out < at < end]
        for start, stop in pairwise((self._out, *borders, end)):
            if start < stop:
                deltas += self._show(self.raw[start:stop], self._source(start))
        self._out = max(self._out, end)
        return deltas

    def _source(self, at: int) -> Source:
        return next(
            (source for start, source in reversed(self._borders) if start <= at), "regenerated"
        )

    def _show(self, piece: str, source: Source) -> list[TextDelta]:
        if self.parser is None:
            self.text += piece
            return [TextDelta(piece, source)]
        return self._split(self.parser.feed(piece), source)

    def _split(self, events: list[dict[str, Any]], source: Source) -> list[TextDelta]:
        deltas = []
        for event in events:
            if event["type"] == "region_chunk":
                reasoning = event["field"] == "reasoning"
                if reasoning:
                    self.reasoning += event["text"]
                else:
                    self.text += event["text"]
                deltas.append(TextDelta(event["text"], source, reasoning))
        return deltas
