"""How sure a figure is, from items that were drawn from a task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

RESAMPLES, BLOCK = 5000, 250
FEWEST = 6
Z = 1.959964  # 95%


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95% interval."""

    value: float
    low: float
    high: float


def bootstrap_median(values: Sequence[float], seed: int = 0) -> Estimate | None:
    """Return the median with the percentile bootstrap's interval; None without values.

    Of fewer than 6 values no two hold the median in 95 of 100 cases: there it is their range.

    Parameters
    ----------
    values : sequence of float
        One an item; for a comparison the ratio of two methods on it, so that items stay paired.
    seed : int
        Makes the same values give the same interval.
    """
    if not values:
        return None
    import torch

    sample, n = torch.tensor(values, dtype=torch.float64), len(values)
    if n < FEWEST:
        return Estimate(median(values), min(values), max(values))
    chance = torch.Generator().manual_seed(seed)
    parts = []
    for _ in range(RESAMPLES // BLOCK):  # all at once they would take gigabytes of a long list
        ordered = sample[torch.randint(n, (BLOCK, n), generator=chance)].sort(dim=1).values
        parts.append((ordered[:, (n - 1) // 2] + ordered[:, n // 2]) / 2)
    medians = torch.cat(parts)
    low, high = medians.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Estimate(median(values), low, high)


def paired_difference(ours: Sequence[bool], theirs: Sequence[bool]) -> Estimate | None:
    """Return the difference of two shares of right answers to the same items; None without items.

    The interval is Wald's with half an item added to each of the four cells (Agresti and Min,
    2005): the bootstrap's would have no width where the two agree on all of a few items.
    """
    n = len(ours)
    if n == 0:
        return None
    pairs = list(zip(ours, theirs, strict=True))
    gained, lost = pairs.count((True, False)), pairs.count((False, True))
    size, difference, discordant = n + 2, gained - lost, gained + lost + 1
    error = Z * math.sqrt(discordant - difference**2 / size) / size
    middle = difference / size
    return Estimate((gained - lost) / n, max(-1.0, middle - error), min(1.0, middle + error))
