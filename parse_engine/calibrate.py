"""Which verdict to accept by, from which threshold on: ``python -m parse_engine calibrate``.

The items are split in two. On the first half a combination of signals is fitted, and thresholds are
listed from the strictest to the laxest. On the second half, which no fit has seen, they are tested
in this order: is the share of wrong drafts that would be accepted surely below the bound? The last
one that passes before the first that fails is taken. Tested in a fixed order and up to the first
failure, the threshold that comes out keeps the bound with the stated confidence, however many were
tried (Learn then Test, arXiv 2110.01052). Drafts without temperature and sampled ones are tested
apart, and both must pass. Drafts of one item are alike, so the test counts one an item.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from parse_engine.bench.binomial import at_most, trials_needed
from parse_engine.bench.drafts import Drafting
from parse_engine.bench.intervals import Estimate
from parse_engine.bench.logistic import cross_validated, fit
from parse_engine.bench.roc import auc_by_item
from parse_engine.bench.verdict_rows import Judged, known_in
from parse_engine.bound import Bound, Tested
from parse_engine.calibration import Combination
from parse_engine.errors import CalibrationError
from parse_engine.request import Sampling

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


def calibrate(
    judged: Sequence[Judged],
    most: float,
    confidence: float,
    how: Drafting,
    given: int,
    sampling: Sampling,
) -> Found:
    """Choose a verdict and a threshold that keeps a bound on false acceptance.

    Parameters
    ----------
    judged : sequence of Judged
        Drafts of known correctness with all signals; several an item are well.
    most : float
        At most this share of the wrong drafts may be accepted.
    confidence : float
        How sure that must be.
    how : Drafting
        How they were written. Its seed splits the items, and picks the drafts that count.
    given : int
        How many items there are, those without a finished draft among them.
    sampling : Sampling
        How the sampled drafts were chosen from what there is.

    Raises
    ------
    CalibrationError
        If the data cannot support the bound; the message says how many items would.
    """
    choosing, bounding = split(judged, how.seed)
    wrong = wrong_drafts(bounding, how)
    needed = trials_needed(0, most, confidence)
    for temperature, some in wrong.items():
        if len(some) < needed:
            raise CalibrationError(
                f"Of the half of the {given} items that is kept for the bound, {len(some)} have a "
                f"wrong draft {written(temperature)}. To bound false acceptance by {most:g} with "
                f"confidence {confidence:g} takes {needed}, with none of them accepted.",
                _ways_out(len(some), needed, judged, given, sampled=how.samples > 1),
            )
    names, choices = choose(choosing)
    combination = fit(
        [one.at(-1) for one in choosing], [one.draft.right for one in choosing], names
    )
    passed: list[tuple[float, tuple[Tested, ...]]] = []
    for threshold in thresholds(combination, choosing):
        tested = tuple(
            Tested(
                temperature=temperature,
                wrong_items=len(some),
                accepted=sum(combination.verdict(one.at(-1)) >= threshold for one in some),
            )
            for temperature, some in wrong.items()
        )
        worst = max(tested, key=lambda one: at_most(one.accepted, one.wrong_items, most))
        if at_most(worst.accepted, worst.wrong_items, most) > 1 - confidence:
            break
        passed.append((threshold, tested))
    if not passed:
        raise CalibrationError(
            f"Even the strictest threshold would accept {worst.accepted} of {worst.wrong_items} "
            f"wrong drafts {written(worst.temperature)}, too many to bound false acceptance by "
            f"{most:g} with confidence {confidence:g}.",
            _too_many(worst, most, confidence),
        )
    threshold, tested = passed[-1]
    right = [combination.verdict(one.at(-1)) for one in bounding if one.draft.right]
    return Found(
        combination=combination,
        threshold=threshold,
        bound=Bound(
            false_accept=most,
            confidence=confidence,
            tested=tested,
            max_new_tokens=how.limit,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
        ),
        true_accept=sum(one >= threshold for one in right) / max(1, len(right)),
        choices=choices,
    )


def _ways_out(
    wrong: int, needed: int, judged: Sequence[Judged], given: int, *, sampled: bool
) -> str:
    """Say what would give a bound enough wrong drafts."""
    # half of the items serve for the bound
    more = f"about {max(2 * needed, -(-needed * given // wrong))}" if wrong else "more"
    hints = [f"Give {more} items, or a laxer bound."]
    if sampled:
        hints.append("With --samples 1 it is promised of drafts without temperature only.")
    unfinished = given - len({(one.draft.task, one.draft.item) for one in judged})
    if unfinished:
        hints.append(f"{unfinished} items have no finished draft: raise --max-new-tokens.")
    return " ".join(hints)


def _too_many(worst: Tested, most: float, confidence: float) -> str:
    """Say what would help where too many wrong drafts pass."""
    if worst.accepted >= most * worst.wrong_items:
        return "More items would not help: give a laxer bound, or a target that tells them apart."
    needed = trials_needed(worst.accepted, most, confidence)
    return (
        f"With so many accepted it takes {needed} items with a wrong draft in the half for the "
        "bound: calibrate on more. To try again on the same items would void the confidence."
    )


def written(temperature: float) -> str:
    """Say how drafts were written."""
    return f"at temperature {temperature:g}" if temperature else "without temperature"


def split(judged: Sequence[Judged], seed: int) -> tuple[list[Judged], list[Judged]]:
    """Divide drafts into two halves that have no item in common."""
    items = sorted({(one.draft.task, one.draft.item) for one in judged})
    random.Random(seed).shuffle(items)
    first = set(items[: len(items) // 2])
    halves: tuple[list[Judged], list[Judged]] = ([], [])
    for one in judged:
        halves[(one.draft.task, one.draft.item) not in first].append(one)
    return halves


def wrong_drafts(judged: Sequence[Judged], how: Drafting) -> dict[float, list[Judged]]:
    """Return the wrong drafts that a bound is tested on, by the temperature they were written at.

    Drafts without temperature are the target's favourites, and more of them pass. At each
    temperature one draft an item counts, drawn before it is known whether it is right: else items
    that are mostly answered well would count too much.
    """
    by_item: dict[tuple[str, str], list[Judged]] = {}
    for one in judged:
        if one.draft.sample:
            by_item.setdefault((one.draft.task, one.draft.item), []).append(one)
    chance = random.Random(how.seed)
    drawn = {0.0: [one for one in judged if not one.draft.sample]}
    if how.samples > 1:
        drawn[how.temperature] = [chance.choice(some) for _, some in sorted(by_item.items())]
    return {
        temperature: [one for one in some if not one.draft.right]
        for temperature, some in drawn.items()
    }


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
            _more_of(*counts),
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


def _more_of(right: int, wrong: int) -> str:
    """Say what would give enough drafts to choose by."""
    if not right:
        return (
            "Without right drafts there is nothing to accept: give easier items, or a better draft."
        )
    if not wrong:
        return "Without wrong drafts there is nothing to bound: give harder items."
    return "Give more items, more drafts of each, or a higher --max-new-tokens."


def thresholds(combination: Combination, judged: Sequence[Judged]) -> list[float]:
    """List the thresholds to test, the strictest first: each lets one more of these drafts pass."""
    return sorted({combination.verdict(one.at(-1)) for one in judged}, reverse=True)
