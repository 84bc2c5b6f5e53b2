"""The ways to answer that are compared, by the names that ``--methods`` takes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import cast, get_args

from parse_engine.bench.methods import (
    assisted,
    modes,
    sequential,
    spec_reason,
    speculative_thinking,
)
from parse_engine.bench.methods.job import Method
from parse_engine.calibration import Calibration, read_calibration
from parse_engine.config import THRESHOLDS, VerdictRule
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
        sequential.answer,
        "PARSE without the packed pass: one prefix at a time, by p_correct",
        "threshold",
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
    verdict : VerdictRule or Calibration, optional
        What it accepts by.
    """

    label: str
    name: str
    level: float | None = None
    verdict: VerdictRule | Calibration | None = None

    @property
    def method(self) -> Method:
        """What it does."""
        return METHODS[self.name]

    @property
    def acceptance(self) -> CallOptions:
        """What it asks of a call: what was given, and the threshold that goes with a verdict."""
        options: CallOptions = {}
        if isinstance(self.verdict, Calibration):
            options |= {"calibration": self.verdict, "threshold": self.verdict.threshold}
        elif self.verdict is not None:
            options |= {"verdict": self.verdict, "threshold": THRESHOLDS[self.verdict]}
        if self.method.level == "threshold" and self.level is not None:
            options["threshold"] = self.level
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
    if not words:
        raise InvalidRequestError(
            f"methods is {spec!r}.",
            f"Name some, with commas between them, or all: {', '.join(METHODS)}.",
        )
    words = [one for word in words for one in (METHODS if word == "all" else [word])]
    if len(thresholds) > 1:
        words = [
            one
            for word in words
            for one in ([f"parse@{value!r}" for value in thresholds] if word == "parse" else [word])
        ]
    entries = tuple(dict.fromkeys(_entry(word) for word in words))
    if all(entry.name != "target" for entry in entries):
        entries = (Entry("target", "target"), *entries)
    return entries


def _entry(word: str) -> Entry:
    name = name_of(word)
    if name not in METHODS:
        raise InvalidRequestError(
            f"There is no method {name!r}.",
            f"The methods are, with commas between them: {', '.join(METHODS)}.",
        )
    head, at, number = word, "", ""
    # the name of a file may have an @ too
    if "@" in word and not Path(word.partition(":")[2]).is_file():
        head, at, number = word.rpartition("@")
    if head.partition(":")[0] != name:
        raise InvalidRequestError(
            f"{word!r} has {head[len(name) :]!r} behind the name.",
            "Write NAME[:VERDICT][@NUMBER], the number last and once.",
        )
    method = METHODS[name]
    level = _level(word, method, name, number) if at else None
    label = head if level is None else f"{head}@{_shown(level)}"
    return Entry(label, name, level, _verdict(word, method, name, head))


def _verdict(word: str, method: Method, name: str, head: str) -> VerdictRule | Calibration | None:
    _, colon, given = head.partition(":")
    if not colon:
        return None
    rules = get_args(VerdictRule)
    if method.verdicts and given in rules:
        return cast(VerdictRule, given)
    if method.verdicts and Path(given).is_file():
        return read_calibration(given)
    takes = f"{', '.join(rules)}, or the file of a calibration" if method.verdicts else "none"
    raise InvalidRequestError(
        f"{word!r} has {given!r}, which is no verdict"
        f"{', and there is no such file' if method.verdicts else ''}.",
        f"What {name} takes there: {takes}.",
    )


def _shown(level: float) -> str:
    """Write a number as short as it can be read back."""
    return f"{level:g}" if float(f"{level:g}") == level else repr(level)


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
