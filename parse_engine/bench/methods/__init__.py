"""The ways to answer that are compared, by the names that ``--methods`` takes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from parse_engine.bench.methods import (
    assisted,
    modes,
    sequential,
    spec_reason,
    speculative_thinking,
)
from parse_engine.bench.methods.job import Method
from parse_engine.config import VerdictRule
from parse_engine.errors import InvalidRequestError
from parse_engine.options import CallOptions

METHODS: dict[str, Method] = {
    "target": Method(modes.target, "the target alone", exact=True),
    "parse": Method(
        modes.parse,
        "draft, judge all prefixes in one pass, write the rest",
        "threshold",
        verdicts=True,
    ),
    "draft": Method(modes.draft, "the draft model alone"),
    "assisted": Method(
        assisted.assisted, "token by token: the draft proposes, the target checks", exact=True
    ),
    "prompt_lookup": Method(
        assisted.prompt_lookup,
        "token by token: what followed the last tokens earlier is proposed",
        exact=True,
    ),
    "cascade": Method(
        modes.cascade,
        "PARSE without prefixes: the whole draft, or none of it",
        "threshold",
        verdicts=True,
    ),
    "sequential": Method(
        sequential.answer, "PARSE without the packed pass: one prefix at a time", "threshold"
    ),
    "spec_reason": Method(
        spec_reason.answer, "SpecReason: each step is scored 0 to 9", "score", highest=10
    ),
    "speculative_thinking": Method(
        speculative_thinking.answer, "Speculative Thinking: the target takes over at cue words"
    ),
}


@dataclass(frozen=True)
class Entry:
    """A method as it was asked for.

    Parameters
    ----------
    label : str
        As it is shown: the name, with what it accepts by behind a colon and the number behind an @,
        where they were given.
    name : str
        A key of ``METHODS``.
    level : float, optional
        That number.
    verdict : str, optional
        What it accepts by: one of ``VerdictRule``, or the path of a calibration.
    """

    label: str
    name: str
    level: float | None = None
    verdict: str | None = None

    @property
    def method(self) -> Method:
        """What it does."""
        return METHODS[self.name]

    @property
    def acceptance(self) -> CallOptions:
        """What it asks of a call: only what was given."""
        options: CallOptions = {}
        if self.method.level == "threshold" and self.level is not None:
            options["threshold"] = self.level
        if self.verdict in get_args(VerdictRule):
            options["verdict"] = self.verdict  # type: ignore[typeddict-item]
        elif self.verdict is not None:
            options["calibration"] = self.verdict
        return options


def name_of(label: str) -> str:
    """Return the name of a method from the label of an entry."""
    return re.split("[:@]", label)[0]


def parse_methods(spec: str, thresholds: tuple[float, ...] = ()) -> tuple[Entry, ...]:
    """Read the methods that are named in a list with commas, each ``NAME[:VERDICT][@NUMBER]``.

    Parameters
    ----------
    spec : str
        ``all`` stands for every method. The target alone is added where it is missing: all others
        are compared with it.
    thresholds : tuple of float
        Where several are given, ``parse`` without a number stands for one method each.

    Raises
    ------
    InvalidRequestError
        If there is no such method, or its number is out of range.
    """
    words = [word.strip() for word in spec.split(",") if word.strip()]
    words = [one for word in words for one in (METHODS if word == "all" else [word])]
    if len(thresholds) > 1:
        words = [
            one
            for word in words
            for one in ([f"parse@{value:g}" for value in thresholds] if word == "parse" else [word])
        ]
    entries = tuple(dict.fromkeys(_entry(word) for word in words))
    if all(entry.name != "target" for entry in entries):
        entries = (Entry("target", "target"), *entries)
    return entries


def _entry(word: str) -> Entry:
    head, at, number = word.partition("@")
    name, colon, verdict = head.partition(":")
    if name not in METHODS:
        raise InvalidRequestError(
            f"There is no method {name!r}.", f"The methods are: {', '.join(METHODS)}."
        )
    method = METHODS[name]
    level = _level(word, method, name, number) if at else None
    if colon:
        rules = get_args(VerdictRule)
        if not method.verdicts or (verdict not in rules and not Path(verdict).is_file()):
            takes = f"{', '.join(rules)}, or the file of a calibration"
            raise InvalidRequestError(
                f"{word!r} has the verdict {verdict!r}.",
                f"What {name} takes there: {takes if method.verdicts else 'none'}.",
            )
    label = head if level is None else f"{head}@{level:g}"
    return Entry(label, name, level, verdict if colon else None)


def _level(word: str, method: Method, name: str, number: str) -> float:
    try:
        level = float(number)
    except ValueError:
        level = -1.0
    if not method.level or not 0 <= level <= method.highest:
        takes = f"{method.level}, 0 to {method.highest:g}" if method.level else "none"
        raise InvalidRequestError(
            f"{word!r} has the number {number!r}.", f"What {name} takes there: {takes}."
        )
    return level
