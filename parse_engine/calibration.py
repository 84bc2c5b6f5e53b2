"""A calibration: which verdict to accept by, from which threshold, and what that promises."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeVar

from parse_engine.bound import Bound, Tested
from parse_engine.config import (
    AcceptRule,
    CutRule,
    JudgeLayout,
    check_choice,
    check_cut_at,
    is_number,
)
from parse_engine.errors import CalibrationError
from parse_engine.strict_json import strict_loads

Reference = Literal["checker", "target"]

FORMAT = 4  # changes when older files would be misread
EDGE = 1e-6  # p_correct is kept so far from 0 and 1, where its log-odds are infinite
# Which way each signal points: no weight may turn it around.
DIRECTION = {
    "p_correct": 1.0,
    "mean_logprob": 1.0,
    "sum_logprob": 1.0,
    "min_logprob": 1.0,
    "max_gap": -1.0,
    "accept_logprob": 1.0,
}

Part = TypeVar("Part")


@dataclass(frozen=True, kw_only=True)
class Combination:
    """A logistic combination of the signals of a prefix.

    Parameters
    ----------
    bias : float
        What it starts from.
    p_correct : float
        Weight of the log-odds of p_correct.
    mean_logprob, sum_logprob, min_logprob, max_gap, accept_logprob : float
        Weights of the signals of these names, in nats. The sum is the log-probability that the
        target gives to all of the prefix.
    """

    bias: float
    p_correct: float = 0.0
    mean_logprob: float = 0.0
    sum_logprob: float = 0.0
    min_logprob: float = 0.0
    max_gap: float = 0.0
    accept_logprob: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if not is_number(getattr(self, field.name)):
                raise CalibrationError(
                    f"The {field.name} of a combination is {getattr(self, field.name)!r}.",
                    "Give finite numbers, as calibrate writes them.",
                )
        weights = {name: getattr(self, name) for name in DIRECTION}
        turned = [name for name, weight in weights.items() if weight * DIRECTION[name] < 0]
        if turned or not any(weights.values()):
            raise CalibrationError(
                f"The combination {weights} "
                + (f"turns {turned[0]} around." if turned else "has no signal in it."),
                "Take the weights as calibrate writes them.",
            )

    def verdict(self, signals: Mapping[str, float]) -> float:
        """Return the verdict, 0 to 1, on a prefix with these signals and so many ``tokens``."""
        features = features_of(signals)
        weights = {name: getattr(self, name) for name in features}
        # a weight of 0 leaves its signal out, even where that is infinite
        total = self.bias + sum(w * features[name] for name, w in weights.items() if w)
        return logistic(total)


def features_of(signals: Mapping[str, float]) -> dict[str, float]:
    """Return what is combined: the signals, p_correct as log-odds, and a sum of the mean."""
    found = {name: value for name, value in signals.items() if name != "tokens"}
    if "tokens" in signals:
        found["sum_logprob"] = signals["mean_logprob"] * signals["tokens"]
    if "p_correct" in found:
        share = min(max(found["p_correct"], EDGE), 1 - EDGE)
        found["p_correct"] = math.log(share / (1 - share))
    return found


def logistic(x: float) -> float:
    """Map all numbers to 0..1."""
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


@dataclass(frozen=True, kw_only=True)
class Binding:
    """What a calibration was measured on and holds for.

    Parameters
    ----------
    target, draft : str
        Names of the models, for messages.
    target_fingerprint, draft_fingerprint : str
        What tells the models from others, wherever they lie.
    backend, dtype : str
        What computes, and in which numbers.
    layout, wording : str or None
        How the judge is asked; None where it is not. In layout ``quote`` it always is, for the
        other signals are read in the judge's conversation too.
    """

    target: str
    draft: str
    target_fingerprint: str
    draft_fingerprint: str
    backend: str
    dtype: str
    layout: JudgeLayout | None
    wording: str | None


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """A verdict with a threshold, made by ``python -m parse_engine calibrate``.

    Parameters
    ----------
    combination : Combination
        The verdict.
    threshold : float
        From which on a prefix is accepted.
    accept_rule : {"unbroken", "longest"}
        As in ParseConfig.
    cut_at : {"auto", "line", "sentence"} or int
        As in ParseConfig.
    bound : Bound
        What it promises.
    binding : Binding
        What it holds for.
    task : str
        What the drafts answered.
    reference : {"checker", "target"}
        What told right drafts from wrong ones: a checker, or the target's own answer.
    """

    combination: Combination
    threshold: float
    accept_rule: AcceptRule
    cut_at: CutRule | int
    bound: Bound
    binding: Binding
    task: str
    reference: Reference

    def __post_init__(self) -> None:
        if not is_number(self.threshold) or not 0 <= self.threshold <= 1:
            raise CalibrationError(
                f"The threshold of the calibration is {self.threshold!r}.", "It must be in 0..1."
            )
        check_choice("accept_rule", self.accept_rule, ("unbroken", "longest"))
        check_cut_at(self.cut_at)
        check_choice("reference", self.reference, ("checker", "target"))

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values, ready for JSON, as ``read_calibration`` takes them."""
        return {"format": FORMAT, **asdict(self), "sha256": self.digest}

    @property
    def digest(self) -> str:
        """What tells whether a file still says what calibrate wrote: a bound is of that only."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def save(self, path: str | PathLike[str]) -> None:
        """Write it to a JSON file."""
        Path(path).write_text(json.dumps(self.as_dict(), indent=2) + "\n", encoding="utf-8")


def read_calibration(given: Calibration | Mapping[str, Any] | str | PathLike[str]) -> Calibration:
    """Return a calibration from its file or its plain values.

    Parameters
    ----------
    given : Calibration, mapping, str or Path
        What ``calibrate`` wrote, the path of it, or what ``as_dict`` gave.

    Returns
    -------
    Calibration
        The same one, if it is one already.

    Raises
    ------
    CalibrationError
        If the file cannot be read, or is none.
    """
    if isinstance(given, Calibration):
        return given
    values, source = given, "The calibration"
    if isinstance(given, str | PathLike):
        source = f"The calibration {str(given)!r}"
        try:
            text = Path(given).read_text(encoding="utf-8")
            values = strict_loads(text)
        except (OSError, ValueError, RecursionError) as error:
            raise CalibrationError(
                f"{source} cannot be read: {error}.", "Give a file that calibrate wrote."
            ) from error
    if not isinstance(values, Mapping):
        raise CalibrationError(
            f"{source} is {values!r:.60}.", "Give what calibrate wrote, or the path of it."
        )
    if values.get("format") != FORMAT:
        raise CalibrationError(
            f"{source} has format {values.get('format')!r}, and this version reads {FORMAT}.",
            "Calibrate again, or give what Calibration.as_dict returned.",
        )
    try:
        bound = values["bound"]
        parts = {
            "combination": _part(Combination, values["combination"]),
            "bound": _part(
                Bound, {**bound, "tested": tuple(_part(Tested, one) for one in bound["tested"])}
            ),
            "binding": _part(Binding, values["binding"]),
        }
        plain = {name: values[name] for name in values if name not in ("format", "sha256")}
        made = _part(Calibration, {**plain, **parts})
        if values["sha256"] != made.digest:
            raise CalibrationError(
                f"{source} was changed after calibrate wrote it, and its bound is of what it was.",
                "Give the file as it was; a stricter threshold can be set beside it.",
            )
    except CalibrationError:
        raise
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CalibrationError(
            f"{source} is incomplete or damaged: {error}.", "Calibrate again."
        ) from error
    return made


def _part(kind: type[Part], values: Mapping[str, Any]) -> Part:
    """Make a part of a calibration of its plain values: of all of them, for none has a default."""
    wanted = kind.__dataclass_fields__.keys()  # type: ignore[attr-defined]
    if differ := sorted(wanted ^ dict(values).keys()):
        raise TypeError(f"its {kind.__name__.lower()} lacks, or should not have, {differ[0]!r}")
    return kind(**values)
