"""What a calibration promises, and what that rests on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from parse_engine.bench.binomial import at_most
from parse_engine.config import is_number
from parse_engine.errors import CalibrationError


@dataclass(frozen=True, kw_only=True)
class Tested:
    """Wrong drafts that a bound was tested on, one an item, all written in the same way.

    Parameters
    ----------
    temperature : float
        At which they were written.
    wrong_items, accepted : int
        How many there are, and how many of them are accepted whole.
    """

    temperature: float
    wrong_items: int
    accepted: int


@dataclass(frozen=True, kw_only=True)
class Bound:
    """What a calibration promises of drafts like those that it was measured on.

    Parameters
    ----------
    false_accept : float
        At most this share of the wrong drafts is accepted whole, of those without temperature and
        of those with it ...
    confidence : float
        ... which holds in at least this share of calibrations.
    tested : tuple of Tested
        For each way to write drafts, those without temperature first, what this rests on.
    max_new_tokens : int
        How long the drafts could be.
    top_p, top_k, min_p : float, int, float
        What those with a temperature were restricted by, as in Sampling.
    """

    false_accept: float
    confidence: float
    tested: tuple[Tested, ...]
    max_new_tokens: int
    top_p: float
    top_k: int
    min_p: float

    def __post_init__(self) -> None:
        shares = (self.false_accept, self.confidence)
        if not all(is_number(share) and 0 < share < 1 for share in shares):
            raise _no_bound(f"a share of {shares[0]!r} with confidence {shares[1]!r}")
        if not _is_count(self.max_new_tokens) or self.max_new_tokens < 1:
            raise _no_bound(f"{self.max_new_tokens!r} as the most tokens")
        for name in ("top_p", "top_k", "min_p"):
            if not is_number(getattr(self, name)):
                raise _no_bound(f"{getattr(self, name)!r} as {name}")
        if not self.tested:
            raise _no_bound("nothing that it was tested on")
        for one in self.tested:
            if not is_number(one.temperature) or one.temperature < 0:
                raise _no_bound(f"a temperature of {one.temperature!r}")
            seen, trials = one.accepted, one.wrong_items
            if not (_is_count(seen) and _is_count(trials) and 0 <= seen <= trials):
                raise _no_bound(f"{seen!r} accepted of {trials!r} drafts")
            if at_most(seen, trials, self.false_accept) > 1 - self.confidence:
                raise _no_bound(
                    f"{seen} accepted of {trials} drafts, which is too many for at most "
                    f"{self.false_accept:g} with confidence {self.confidence:g}"
                )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _no_bound(what: str) -> CalibrationError:
    return CalibrationError(f"The bound of the calibration has {what}.", "Calibrate again.")
