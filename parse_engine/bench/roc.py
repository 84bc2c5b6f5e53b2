"""How well a number tells right answers from wrong ones."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from parse_engine.bench.intervals import Estimate

RESAMPLES = 2000


@dataclass(frozen=True)
class Point:
    """What a threshold does.

    Parameters
    ----------
    threshold : float or None
        From which on an answer is accepted; None where none is.
    false_accept, true_accept : float
        Shares of the wrong and of the right answers that are accepted.
    """

    threshold: float | None
    false_accept: float
    true_accept: float


@dataclass(frozen=True)
class Bin:
    """Answers with verdicts that are alike: their mean verdict, how many are right, how many."""

    verdict: float
    right: float
    count: int


def auc(scores: Sequence[float], right: Sequence[bool]) -> float:
    """Return the share of pairs of a right and a wrong answer in which the right one has more.

    Equal scores count half. NaN if there are no such pairs.
    """
    values, truth = np.asarray(scores, dtype=float), np.asarray(right, dtype=bool)
    good, bad = values[truth], np.sort(values[~truth])
    if not len(good) or not len(bad):
        return float("nan")
    below = np.searchsorted(bad, good, "left") + np.searchsorted(bad, good, "right")
    return float(below.mean() / 2 / len(bad))


def auc_by_item(
    scores: Sequence[float], right: Sequence[bool], items: Sequence[Hashable], seed: int = 0
) -> Estimate:
    """Return the AUC with its bootstrap interval; items are drawn, each with all its answers."""
    values, truth = np.asarray(scores, dtype=float), np.asarray(right, dtype=bool)
    number = {item: n for n, item in enumerate(dict.fromkeys(items))}
    owner = np.array([number[item] for item in items])
    drawn = np.random.default_rng(seed).integers(0, len(number), (RESAMPLES, len(number)))
    times = np.stack([np.bincount(one, minlength=len(number)) for one in drawn])
    # how often each pair of a right and a wrong answer is drawn, times whether it is in order
    good, bad = times[:, owner[truth]], times[:, owner[~truth]]
    apart = values[truth][:, None] - values[~truth]
    ordered = (good @ ((apart > 0) + 0.5 * (apart == 0)) * bad).sum(1)
    pairs = good.sum(1) * bad.sum(1)
    found = ordered[pairs > 0] / pairs[pairs > 0]
    low, high = np.percentile(found, [2.5, 97.5]) if len(found) else (float("nan"),) * 2
    return Estimate(auc(scores, right), float(low), float(high))


def curve(scores: Sequence[float], right: Sequence[bool]) -> list[Point]:
    """Return what each threshold that makes a difference does, the strictest first."""
    values, truth = np.asarray(scores, dtype=float), np.asarray(right, dtype=bool)
    good, bad = np.sort(values[truth]), np.sort(values[~truth])
    points = []
    for threshold in np.unique(values)[::-1]:
        accepted = [
            (len(some) - np.searchsorted(some, threshold, "left")) / max(1, len(some))
            for some in (bad, good)
        ]
        points.append(Point(float(threshold), float(accepted[0]), float(accepted[1])))
    return points


def at_false_accept(points: Sequence[Point], most: float) -> Point:
    """Return the laxest point that accepts at most this share of the wrong answers."""
    allowed = [point for point in points if point.false_accept <= most]
    return allowed[-1] if allowed else Point(None, 0.0, 0.0)


def reliability(scores: Sequence[float], right: Sequence[bool], bins: int = 8) -> list[Bin]:
    """Return how often answers are right by their verdict, in bins of about as many answers."""
    order = np.argsort(np.asarray(scores, dtype=float), kind="stable")
    values, truth = np.asarray(scores, dtype=float)[order], np.asarray(right, dtype=float)[order]
    parts = [part for part in np.array_split(np.arange(len(order)), bins) if len(part)]
    return [Bin(float(values[p].mean()), float(truth[p].mean()), len(p)) for p in parts]
