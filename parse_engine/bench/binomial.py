"""Exact bounds on a share, from how often something was seen."""

from __future__ import annotations

import math


def at_most(seen: int, trials: int, share: float) -> float:
    """Return the probability of seeing something at most so often, if its share is this."""
    if share <= 0 or seen >= trials:
        return 1.0
    if share >= 1:
        return 0.0
    # in logarithms: the coefficients of a few thousand trials are beyond any float
    log_p, log_q = math.log(share), math.log1p(-share)
    logs = [
        math.lgamma(trials + 1)
        - math.lgamma(k + 1)
        - math.lgamma(trials - k + 1)
        + k * log_p
        + (trials - k) * log_q
        for k in range(seen + 1)
    ]
    top = max(logs)
    return min(1.0, math.exp(top) * math.fsum(math.exp(one - top) for one in logs))


def upper_bound(seen: int, trials: int, confidence: float) -> float:
    """Return the one-sided upper bound of Clopper and Pearson (1934) on a share.

    The share below which so few would be seen with probability ``1 - confidence`` at most.
    """
    if seen >= trials:
        return 1.0
    low, high = seen / trials, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if at_most(seen, trials, middle) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high


def trials_needed(seen: int, share: float, confidence: float) -> int:
    """Return how many trials bring the upper bound down to a share, if so many are seen in them."""
    low, high = seen, seen + 1
    while at_most(seen, high, share) > 1 - confidence:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if at_most(seen, middle, share) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high
