"""The settings of the algorithm."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from parse_engine.errors import InvalidRequestError

AcceptRule = Literal["unbroken", "longest"]
CutRule = Literal["auto", "line", "sentence"]
JudgeLayout = Literal["brief", "quote"]
VerifyOrder = Literal["whole_first", "all"]
Mode = Literal["parse", "target", "draft"]


@dataclass(frozen=True, kw_only=True)
class ParseConfig:
    """How drafts are cut, judged and accepted.

    Parameters
    ----------
    threshold : float
        Verdict in 0..1 that a prefix must reach to be accepted (tau in the paper).
    accept_rule : {"unbroken", "longest"}
        ``unbroken`` accepts up to the last prefix before the first that fails; ``longest`` accepts
        the longest prefix that passes, whatever the shorter ones said.
    cut_at : {"auto", "line", "sentence"} or int
        Where prefixes end: by content, at lines, at sentences, or every n tokens.
    max_prefixes : int, optional
        Upper bound on the number of prefixes. Unset: as many as keep the judge's suffixes, all
        together, shorter than the draft.
    judge_layout : {"brief", "quote"}
        ``brief`` asks after the draft, on the cache that regeneration goes on with, and shows the
        instructions to the suffixes only. ``quote`` judges in a conversation of its own, with the
        instructions before the draft, as the paper does; so do targets that cannot do ``brief``,
        and the statistics say which it was.
    verify_order : {"whole_first", "all"}
        Judge the whole draft alone first and the shorter prefixes only if it fails, or all at once.
    labels : tuple of (str, str), optional
        The words for a right and a wrong prefix, each one token in the target's vocabulary. Unset:
        the first fitting pair of Correct/Incorrect, Yes/No, True/False.
    brief : str, optional
        What the judge is told to do. Unset: the built-in wording.
    question : str, optional
        The short question after each prefix. Unset: the one that fits the labels.
    signals : bool
        Also report the target's own log-probabilities of the drafted tokens.
    max_draft_tokens : int, optional
        Upper bound on the length of a draft. Unset: the call's ``max_new_tokens``.
    mode : {"parse", "target", "draft"}
        ``target`` and ``draft`` answer with one model alone, for comparison.

    Raises
    ------
    InvalidRequestError
        If a value is out of range or of the wrong type.
    """

    threshold: float = 0.8
    accept_rule: AcceptRule = "unbroken"
    cut_at: CutRule | int = "auto"
    max_prefixes: int | None = None
    judge_layout: JudgeLayout = "brief"
    verify_order: VerifyOrder = "whole_first"
    labels: tuple[str, str] | None = None
    brief: str | None = None
    question: str | None = None
    signals: bool = True
    max_draft_tokens: int | None = None
    mode: Mode = "parse"

    def __post_init__(self) -> None:
        if not is_number(self.threshold) or not 0 <= self.threshold <= 1:
            raise InvalidRequestError(
                f"threshold is {self.threshold!r}.", "Give a number from 0 (accept all) to 1."
            )
        check_choice("accept_rule", self.accept_rule, get_args(AcceptRule))
        check_choice("judge_layout", self.judge_layout, get_args(JudgeLayout))
        check_choice("verify_order", self.verify_order, get_args(VerifyOrder))
        check_choice("mode", self.mode, get_args(Mode))
        check_cut_at(self.cut_at)
        if self.max_prefixes is not None:
            check_count("max_prefixes", self.max_prefixes)
        if self.max_draft_tokens is not None:
            check_count("max_draft_tokens", self.max_draft_tokens)
        if not isinstance(self.signals, bool):
            raise InvalidRequestError(f"signals is {self.signals!r}.", "Give True or False.")
        for name in ("brief", "question"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value.strip()):
                raise InvalidRequestError(
                    f"{name} is {value!r}.", "Give a text, or None for the built-in one."
                )
        if self.labels is not None:
            object.__setattr__(self, "labels", check_labels(self.labels))


def is_number(value: Any) -> bool:
    """Whether a value is a finite number and not a bool."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False


def check_choice(name: str, value: Any, choices: tuple[str, ...], other: str = "") -> None:
    """Refuse a value that is none of the choices."""
    if not isinstance(value, str) or value not in choices:
        listed = " ".join([", ".join(choices), other]).strip()
        raise InvalidRequestError(f"{name} is {value!r}.", f"Choose one of: {listed}.")


def check_count(name: str, value: Any) -> None:
    """Refuse a value that is not a whole number of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidRequestError(f"{name} is {value!r}.", "Give a whole number of at least 1.")


def check_cut_at(value: Any) -> None:
    """Refuse what is neither a rule for cutting nor a number of tokens."""
    if isinstance(value, int):
        check_count("cut_at", value)
    else:
        check_choice("cut_at", value, get_args(CutRule), "or a number of tokens")


def check_labels(value: Any) -> tuple[str, str]:
    """Refuse labels that are not two different words."""
    pair = tuple(value) if isinstance(value, list | tuple) else ()
    words = [word.strip() for word in pair if isinstance(word, str)]
    if len(pair) != 2 or len(words) != 2 or "" in words or words[0] == words[1]:
        raise InvalidRequestError(
            f"labels is {value!r}.",
            'Give two different words, the one for a right prefix first: ("Correct", "Incorrect").',
        )
    return words[0], words[1]
