"""The settings of the algorithm."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from parse_engine.errors import InvalidRequestError

if TYPE_CHECKING:
    from parse_engine.calibration import Calibration, Combination

AcceptRule = Literal["unbroken", "longest"]
CutRule = Literal["auto", "line", "sentence"]
JudgeLayout = Literal["brief", "quote"]
VerifyOrder = Literal["whole_first", "all"]
Mode = Literal["parse", "target", "draft"]
VerdictRule = Literal[
    "p_correct", "accept_prob", "joint_prob", "min_prob", "mean_prob", "min_ratio"
]
VerdictKind = Literal[VerdictRule, "calibrated"]

# Where 11% to 18% of the wrong code drafts of the demo pair are accepted, and of its wrong answers
# to maths problems none or one in a hundred. A threshold belongs to models and task, which is what
# calibration is for.
THRESHOLDS: dict[VerdictRule, float] = {
    "p_correct": 0.97,
    "accept_prob": 5e-3,
    "joint_prob": 1e-4,
    "min_prob": 0.1,
    "mean_prob": 0.95,
    "min_ratio": 0.1,
}


@dataclass(frozen=True)
class Acceptance:
    """What acceptance goes by, with nothing left unset.

    Parameters
    ----------
    kind : str
        Which number is the verdict.
    threshold : float
        The verdict that a prefix must reach.
    accept_rule : {"unbroken", "longest"}
        Which of the prefixes that reach it.
    cut_at : {"auto", "line", "sentence"} or int
        Where prefixes end.
    asks_judge : bool
        Whether the verdict needs p_correct, and with it the pass of the suffixes.
    combination : Combination or None
        How the calibrated verdict is put together.
    """

    kind: VerdictKind
    threshold: float
    accept_rule: AcceptRule
    cut_at: CutRule | int
    asks_judge: bool
    combination: Combination | None

    @property
    def compares(self) -> bool:
        """Whether the verdict needs what the draft model thought of its tokens, too."""
        if self.combination is not None:
            return self.combination.accept_logprob != 0
        return self.kind == "accept_prob"


@dataclass(frozen=True, kw_only=True)
class ParseConfig:
    """How drafts are cut, judged and accepted.

    Parameters
    ----------
    verdict : {"p_correct", "accept_prob", "joint_prob", "min_prob", "mean_prob", "min_ratio"}, \
optional
        The number in 0..1 that is compared with the threshold. ``p_correct`` is the paper's: what
        the target answers when it is asked. The others are read off its own probabilities of the
        drafted tokens, so that nothing is asked and acceptance costs one prefill: how probable it
        is that token by token speculative sampling would keep the whole prefix, which takes the
        draft model's probabilities too, and a draft model with the same tokenizer; the probability
        of all tokens of the prefix together, that of the least probable one, their geometric mean,
        and the smallest ratio to the target's best token (which min-p sampling goes by too). Unset:
        the calibration's; else, if a threshold or anything about the judge is set, ``p_correct``;
        else ``accept_prob``, which told right drafts from wrong ones best, or ``joint_prob`` where
        the tokenizers differ.
    threshold : float, optional
        Verdict in 0..1 that a prefix must reach to be accepted. Given without a verdict it is the
        paper's tau, for ``p_correct``. Unset: the calibration's, else one for the verdict.
    accept_rule : {"unbroken", "longest"}, optional
        ``unbroken`` accepts up to the last prefix before the first that fails; ``longest`` accepts
        the longest prefix that passes, whatever the shorter ones said. Unset: the calibration's,
        else ``unbroken``.
    cut_at : {"auto", "line", "sentence"} or int, optional
        Where prefixes end: by content, at lines, at sentences, or every n tokens. Unset: the
        calibration's, else ``auto``.
    calibration : Calibration, path or mapping, optional
        What ``python -m parse_engine calibrate`` wrote for these models: a verdict with a threshold
        and a bound on false acceptance, which a lower threshold would void and is refused for.
    max_prefixes : int, optional
        Upper bound on the number of prefixes. Unset: as many as keep the judge's suffixes, all
        together, shorter than the draft; all of them where nothing is asked.
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
        Also report the target's own log-probabilities of the drafted tokens, where the verdict does
        not need them anyway.
    max_draft_tokens : int, optional
        Upper bound on the length of a draft. Unset: the call's ``max_new_tokens``.
    mode : {"parse", "target", "draft"}
        ``target`` and ``draft`` answer with one model alone, for comparison.

    Raises
    ------
    InvalidRequestError
        If a value is out of range or of the wrong type.
    """

    verdict: VerdictRule | None = None
    threshold: float | None = None
    accept_rule: AcceptRule | None = None
    cut_at: CutRule | int | None = None
    calibration: Calibration | Mapping[str, Any] | str | PathLike[str] | None = None
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
        if self.threshold is not None and not (
            is_number(self.threshold) and 0 <= self.threshold <= 1
        ):
            raise InvalidRequestError(
                f"threshold is {self.threshold!r}.", "Give a number from 0 (accept all) to 1."
            )
        if self.verdict is not None:
            check_choice("verdict", self.verdict, get_args(VerdictRule))
        if self.accept_rule is not None:
            check_choice("accept_rule", self.accept_rule, get_args(AcceptRule))
        if self.cut_at is not None:
            check_cut_at(self.cut_at)
        check_choice("judge_layout", self.judge_layout, get_args(JudgeLayout))
        check_choice("verify_order", self.verify_order, get_args(VerifyOrder))
        check_choice("mode", self.mode, get_args(Mode))
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
        if self.calibration is not None:
            from parse_engine.calibration import read_calibration  # which needs this module

            object.__setattr__(self, "calibration", read_calibration(self.calibration))
            self._check_calibration()
        if not self.signals and self.acceptance.kind != "p_correct":
            raise InvalidRequestError(
                f"signals is False, but the verdict is {self.acceptance.kind}, which needs them.",
                'Leave signals on, or choose verdict="p_correct" and no calibration.',
            )

    def _check_calibration(self) -> None:
        """Refuse what would void the bound."""
        made = self._calibrated
        assert made is not None
        if self.verdict is not None:
            raise InvalidRequestError(
                f"verdict is {self.verdict!r} beside a calibration.",
                "Leave it unset: the calibration says what the verdict is.",
            )
        if self.threshold is not None and self.threshold < made.threshold:
            raise InvalidRequestError(
                f"threshold is {self.threshold}, below the calibration's {made.threshold:.4g}.",
                "Its bound would not hold. Leave threshold unset, give a higher one, or calibrate "
                "with a larger --max-false-accept.",
            )

    def by_asking(self) -> ParseConfig:
        """Return the same, with ``p_correct`` where neither verdict nor calibration is set."""
        if self.verdict is None and self.calibration is None:
            return replace(self, verdict="p_correct")
        return self

    @property
    def acceptance(self) -> Acceptance:
        """What acceptance goes by: what is set, else the calibration's, else the default."""
        made = self._calibrated
        verdict = self.verdict or self._usual_verdict
        if made is None:
            asks = verdict == "p_correct"
            usual = Acceptance(verdict, THRESHOLDS[verdict], "unbroken", "auto", asks, None)
        else:
            asks = made.binding.layout is not None
            rules = (made.threshold, made.accept_rule, made.cut_at)
            usual = Acceptance("calibrated", *rules, asks, made.combination)
        given = {name: getattr(self, name) for name in ("threshold", "accept_rule", "cut_at")}
        return replace(usual, **{name: one for name, one in given.items() if one is not None})

    @property
    def _usual_verdict(self) -> VerdictRule:
        about_judge = (self.threshold, self.labels, self.brief, self.question)
        asked = any(one is not None for one in about_judge) or self.judge_layout == "quote"
        return "p_correct" if asked or not self.signals else "accept_prob"

    @property
    def _calibrated(self) -> Calibration | None:
        return cast("Calibration | None", self.calibration)  # since __post_init__


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
