"""What acceptance would keep of drafts of known correctness."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast, get_args

from parse_engine.accept import longest_valid_prefix
from parse_engine.bench.verdict_rows import Judged, known_in
from parse_engine.config import THRESHOLDS, Acceptance, AcceptRule, VerdictRule
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
        By way to judge. What needs no question is the same in all, so only the first has it.
    read : mapping of str to sequence of Judged
        By place where prefixes end, the same drafts judged without a question.

    Returns
    -------
    list of dict
        For each way, verdict and rule, of the right and of the wrong drafts the share that is kept
        ``whole`` and the share of their ``tokens`` that is kept, None where there are none. A rule
        that keeps the same as the one before it is left out.
    """
    first = next(iter(asked), None)
    rows: list[dict[str, Any]] = []
    for way, judged in (*asked.items(), *read.items()):
        for kind, signal in SINGLE.items():
            about_way = (kind == "p_correct") == (way in asked) or way == first
            if not judged or not about_way or not known_in(judged, (signal,)):
                continue
            before: dict[str, Any] | None = None
            for rule in cast("tuple[AcceptRule, ...]", get_args(AcceptRule)):
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
