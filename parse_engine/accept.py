"""Which prefix stays."""

from __future__ import annotations

from collections.abc import Sequence

from parse_engine.config import AcceptRule


def longest_valid_prefix(
    verdicts: Sequence[float], threshold: float, rule: AcceptRule
) -> int | None:
    """Return the index of the maximal valid prefix, None if there is none.

    Parameters
    ----------
    verdicts : sequence of float
        One verdict a prefix, shortest first; the last prefix is the whole draft.
    threshold : float
        The verdict that a prefix must reach.
    rule : {"unbroken", "longest"}
        ``unbroken``: the prefix and all before it pass; ``longest``: the last that passes. A whole
        draft that passes is accepted under both.
    """
    passed = [verdict >= threshold for verdict in verdicts]
    if not any(passed):
        return None
    if passed[-1]:
        return len(passed) - 1
    if rule == "longest":
        return max(index for index, ok in enumerate(passed) if ok)
    valid = passed.index(False)
    return valid - 1 if valid else None
