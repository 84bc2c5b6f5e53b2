"""What acceptance would keep of drafts of known correctness."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, get_args

from parse_engine.accept import longest_valid_prefix
from parse_engine.bench.verdict_rows import Judged, known_in
from parse_engine.calibration import Combination
from parse_engine.config import THRESHOLDS, Acceptance, AcceptRule, CutRule, VerdictRule
from parse_engine.verdicts import verdict_of

# Verdicts that are one signal each, and the signal.
SINGLE: dict[VerdictRule, str] = {
    "p_correct": "p_correct",
    "accept_prob": "accept_logprob",
    "joint_prob": "sum_logprob",
    "min_prob": "min_logprob",
    "mean_prob": "mean_logprob",
    "min_ratio": "max_gap",
}

RULES: tuple[AcceptRule, ...] = get_args(AcceptRule)


def single(kind: VerdictRule, signals: Mapping[str, float]) -> float:
    """Return the verdict that is one signal."""
    return verdict_of(signals, Acceptance(kind, 0.0, "unbroken", "auto", True, None))


def tokens_kept(
    judged: Judged,
    verdict: Callable[[Mapping[str, float]], float],
    threshold: float,
    rule: AcceptRule,
) -> int:
    """Return how many tokens of a draft the engine would accept."""
    verdicts = [verdict(judged.at(n)) for n in range(len(judged.ends))]
    prefix = longest_valid_prefix(verdicts, threshold, rule)
    return 0 if prefix is None else judged.token_ends[prefix]


def kept_rows(
    asked: Mapping[str, Sequence[Judged]], read: Mapping[str, Sequence[Judged]]
) -> list[dict[str, Any]]:
    """Say what each verdict keeps at its default threshold, under both rules of acceptance.

    Parameters
    ----------
    asked : mapping of str to sequence of Judged
        By way to judge, for what the judge says.
    read : mapping of str to sequence of Judged
        By place where prefixes end, the same drafts judged without a question, for what is read
        off.

    Returns
    -------
    list of dict
        For each way, verdict and rule, of the right and of the wrong drafts the share that is kept
        ``whole`` and the share of their ``tokens`` that is kept, None where there are none. A rule
        that keeps the same as the one before it is left out.
    """
    rows: list[dict[str, Any]] = []
    for way, judged in (*asked.items(), *read.items()):
        for kind, signal in SINGLE.items():
            about_way = (kind == "p_correct") == (way in asked)
            if not judged or not about_way or not known_in(judged, (signal,)):
                continue
            before: dict[str, Any] | None = None
            for rule in RULES:
                found = _shares(judged, kind, rule)
                if found != before:
                    rows.append({"way": way, "verdict": kind, "rule": rule, **found})
                before = found
    return rows


def _shares(judged: Sequence[Judged], kind: VerdictRule, rule: AcceptRule) -> dict[str, Any]:
    verdict, threshold = partial(single, kind), THRESHOLDS[kind]
    found: dict[str, Any] = {}
    for name, truth in (("right", True), ("wrong", False)):
        some = [one for one in judged if one.draft.right is truth]
        kept = [tokens_kept(one, verdict, threshold, rule) for one in some]
        lengths = [one.token_ends[-1] for one in some]
        whole = sum(map(int.__eq__, kept, lengths))
        found[name] = (
            {"whole": whole / len(some), "tokens": sum(kept) / sum(lengths)} if some else None
        )
    return found


@dataclass(frozen=True)
class Cutting:
    """Where prefixes end, which of them stays, and what that keeps.

    Parameters
    ----------
    cut_at, accept_rule
        As in ParseConfig.
    kept_right, kept_wrong : float
        Of the right and of the wrong drafts the mean share of tokens that stays.
    """

    cut_at: CutRule | int
    accept_rule: AcceptRule
    kept_right: float
    kept_wrong: float


def choose_cuts(
    judged: Mapping[CutRule | int, Sequence[Judged]], combination: Combination, threshold: float
) -> Cutting:
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

    def cutting(cut_at: CutRule | int, rule: AcceptRule) -> Cutting:
        shares: dict[bool, list[float]] = {True: [], False: []}
        for one in judged[cut_at]:
            kept = tokens_kept(one, combination.verdict, threshold, rule)
            shares[one.draft.right].append(kept / one.token_ends[-1])
        return Cutting(cut_at, rule, *(sum(some) / max(1, len(some)) for some in shares.values()))

    ways = (cutting(cut_at, rule) for cut_at, rule in product(judged, RULES))
    return max(ways, key=lambda one: one.kept_right - one.kept_wrong)
