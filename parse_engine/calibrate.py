"""Which verdict to accept by, from which threshold on: ``python -m parse_engine calibrate``.

The items are split in two. On the first half a combination of signals is fitted, and thresholds are
listed from the strictest to the laxest. On the second half, which no fit has seen, they are tested
in this order: is the share of wrong drafts that would be accepted surely below the bound? The last
one that passes before the first that fails is taken. Tested in a fixed order and up to the first
failure, the threshold that comes out keeps the bound with the stated confidence, however many were
tried (Learn then Test, arXiv 2110.01052). Drafts of one item are alike, so the test counts one
wrong draft an item.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import get_args

from parse_engine.bench.binomial import at_most, trials_needed
from parse_engine.bench.intervals import Estimate
from parse_engine.bench.kept import tokens_kept
from parse_engine.bench.logistic import cross_validated, fit
from parse_engine.bench.roc import auc_by_item
from parse_engine.bench.verdict_rows import Judged, known_in
from parse_engine.calibration import Bound, Combination
from parse_engine.config import AcceptRule, CutRule
from parse_engine.errors import CalibrationError

# From the simplest to the richest; those before p_correct need no question. What takes the draft
# model's probabilities is left out where they cannot be compared.
CHOICES = (
    ("sum_logprob",),
    ("accept_logprob",),
    ("min_logprob",),
    ("mean_logprob",),
    ("mean_logprob", "sum_logprob", "min_logprob", "max_gap"),
    ("p_correct",),
    ("p_correct", "sum_logprob"),
    ("p_correct", "accept_logprob"),
    ("p_correct", "mean_logprob", "sum_logprob", "min_logprob", "max_gap"),
)
FEWEST = 10  # right and wrong drafts each, to choose by


@dataclass(frozen=True)
class Choice:
    """A verdict, and how well it tells right drafts from wrong ones of other items.

    Parameters
    ----------
    names : tuple of str
        The signals in it.
    auc : Estimate
        Cross-validated by item.
    """

    names: tuple[str, ...]
    auc: Estimate


@dataclass(frozen=True)
class Found:
    """What calibration comes to.

    Parameters
    ----------
    combination : Combination
        The verdict.
    threshold : float
        From which on it accepts.
    bound : Bound
        What that promises.
    true_accept : float
        Share of the right drafts of the second half that it accepts whole.
    choices : tuple of Choice
        The verdicts that there were to choose from.
    """

    combination: Combination
    threshold: float
    bound: Bound
    true_accept: float
    choices: tuple[Choice, ...]


def calibrate(judged: Sequence[Judged], most: float, confidence: float, *, seed: int = 0) -> Found:
    """Choose a verdict and a threshold that keeps a bound on false acceptance.

    Parameters
    ----------
    judged : sequence of Judged
        Drafts of known correctness with all signals; several an item are well.
    most : float
        At most this share of the wrong drafts may be accepted.
    confidence : float
        How sure that must be.
    seed : int
        Splits the items, and picks the draft of an item that counts.

    Raises
    ------
    CalibrationError
        If the data cannot support the bound; the message says how many items would.
    """
    choosing, bounding = split(judged, seed)
    wrong = one_wrong_an_item(bounding, seed)
    needed = trials_needed(0, most, confidence)
    if len(wrong) < needed:
        items = len({(one.draft.task, one.draft.item) for one in judged})
        wanted = f"about {-(-needed * items // len(wrong))}" if wrong else "more"
        raise CalibrationError(
            f"Of the half of the {items} items that is kept for the bound, {len(wrong)} have a "
            f"wrong draft. To bound false acceptance by {most:g} with confidence {confidence:g} "
            f"takes {needed}, with none of them accepted.",
            f"Give {wanted} items, more drafts of each, or a laxer bound.",
        )
    names, choices = choose(choosing)
    combination = fit(
        [one.at(-1) for one in choosing], [one.draft.right for one in choosing], names
    )
    verdicts = [combination.verdict(one.at(-1)) for one in wrong]
    passed: list[tuple[float, int]] = []
    for threshold in thresholds(combination, choosing):
        accepted = sum(verdict >= threshold for verdict in verdicts)
        if at_most(accepted, len(wrong), most) > 1 - confidence:
            break
        passed.append((threshold, accepted))
    if not passed:
        raise CalibrationError(
            f"Even the strictest threshold would accept {accepted} of {len(wrong)} wrong drafts, "
            f"too many to bound false acceptance by {most:g} with confidence {confidence:g}.",
            f"With so many accepted it takes {trials_needed(accepted, most, confidence)} items "
            "with a wrong draft in the half for the bound: give more, or a laxer bound.",
        )
    threshold, accepted = passed[-1]
    right = [combination.verdict(one.at(-1)) for one in bounding if one.draft.right]
    return Found(
        combination=combination,
        threshold=threshold,
        bound=Bound(
            false_accept=most, confidence=confidence, wrong_items=len(wrong), accepted=accepted
        ),
        true_accept=sum(one >= threshold for one in right) / max(1, len(right)),
        choices=choices,
    )


def split(judged: Sequence[Judged], seed: int) -> tuple[list[Judged], list[Judged]]:
    """Divide drafts into two halves that have no item in common."""
    items = sorted({(one.draft.task, one.draft.item) for one in judged})
    random.Random(seed).shuffle(items)
    first = set(items[: len(items) // 2])
    halves: tuple[list[Judged], list[Judged]] = ([], [])
    for one in judged:
        halves[(one.draft.task, one.draft.item) not in first].append(one)
    return halves


def one_wrong_an_item(judged: Sequence[Judged], seed: int) -> list[Judged]:
    """Draw one of the wrong drafts of each item that has any."""
    wrong: dict[tuple[str, str], list[Judged]] = {}
    for one in judged:
        if not one.draft.right:
            wrong.setdefault((one.draft.task, one.draft.item), []).append(one)
    chance = random.Random(seed)
    return [chance.choice(some) for _, some in sorted(wrong.items())]


def choose(judged: Sequence[Judged]) -> tuple[tuple[str, ...], tuple[Choice, ...]]:
    """Choose what to combine: the simplest that is within a standard error of the best.

    Raises
    ------
    CalibrationError
        If there are too few drafts to tell.
    """
    right = [one.draft.right for one in judged]
    counts = right.count(True), right.count(False)
    if min(counts) < FEWEST:
        raise CalibrationError(
            f"The items kept for choosing have {counts[0]} right and {counts[1]} wrong drafts that "
            f"were finished; it takes {FEWEST} of each.",
            "Give more items, more drafts of each, or a higher --max-new-tokens.",
        )
    signals = [one.at(-1) for one in judged]
    items = [(one.draft.task, one.draft.item) for one in judged]
    choices = tuple(
        Choice(names, auc_by_item(cross_validated(signals, right, items, names), right, items))
        for names in CHOICES
        if known_in(judged, names)
    )
    best = max(choices, key=lambda one: one.auc.value)
    error = (best.auc.high - best.auc.low) / 4  # a 95% interval is four standard errors wide
    simplest = next(one for one in choices if one.auc.value >= best.auc.value - error)
    return simplest.names, choices


def thresholds(combination: Combination, judged: Sequence[Judged]) -> list[float]:
    """List the thresholds to test, the strictest first: each lets one more of these drafts pass."""
    return sorted({combination.verdict(one.at(-1)) for one in judged}, reverse=True)


def choose_cuts(
    judged: Mapping[CutRule | int, Sequence[Judged]], combination: Combination, threshold: float
) -> tuple[CutRule | int, AcceptRule]:
    """Choose where prefixes end and which of them stays where the whole draft does not.

    Taken is what keeps most tokens of the right drafts and fewest of the wrong ones, the difference
    of the two mean shares. Where the error of a wrong draft is can be told for few tasks, so all
    that is kept of it counts as wrong. Of equals the first is taken.

    Parameters
    ----------
    judged : mapping of cut rule to sequence of Judged
        The same drafts, cut in different ways.
    combination : Combination
        The verdict.
    threshold : float
        From which on it accepts.
    """
    rules: tuple[AcceptRule, ...] = get_args(AcceptRule)

    def gain(way: tuple[CutRule | int, AcceptRule]) -> float:
        shares: dict[bool, list[float]] = {True: [], False: []}
        for one in judged[way[0]]:
            kept = tokens_kept(one, combination.verdict, threshold, way[1])
            shares[one.draft.right].append(kept / one.token_ends[-1])
        kept_right, kept_wrong = (sum(some) / max(1, len(some)) for some in shares.values())
        return kept_right - kept_wrong

    return max(product(judged, rules), key=gain)
