"""From logits after the suffixes to verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from parse_engine.backends.model import Model
from parse_engine.config import Acceptance
from parse_engine.errors import VerificationError
from parse_engine.judge import Labels
from parse_engine.types import Cut, Verdicts


def label_shares(logits: torch.Tensor, labels: Labels) -> list[float]:
    """Return P(right label) / (P(right label) + P(wrong label)) for each row of logits."""
    pair = logits[:, [labels.right_id, labels.wrong_id]].float()
    return [float(p) for p in pair.softmax(dim=1)[:, 0]]


def make_verdicts(
    cuts: Sequence[Cut],
    p_correct: Sequence[float] | None,
    signals: torch.Tensor | None,
    draft_logprobs: Sequence[float] | None,
    labels: Labels,
    acceptance: Acceptance,
) -> Verdicts:
    """Put verdicts and signals of each prefix side by side; a prefix's signals look at it alone.

    Parameters
    ----------
    cuts : sequence of Cut
        N prefixes.
    p_correct : sequence of float, optional
        What the judge said of each; None where it was not asked.
    signals : Tensor, optional
        Log-probability and gap of each drafted token, as ``prefill`` gives them.
    draft_logprobs : sequence of float, optional
        What the draft model gave each token.
    labels : Labels
        The words of the judge.
    acceptance : Acceptance
        Which number is the verdict.
    """
    tokens = [cut.tokens for cut in cuts]
    known: dict[str, list[float]] = {}
    if p_correct is not None:
        known["p_correct"] = list(p_correct)
    if signals is not None:
        known["tokens"] = [float(count) for count in tokens]
        at = torch.tensor(tokens) - 1
        logprob, distance = signals[0].double(), signals[1].double()
        known["mean_logprob"] = (logprob.cumsum(0)[at] / (at + 1)).tolist()
        known["min_logprob"] = logprob.cummin(0).values[at].tolist()
        known["max_gap"] = distance.cummax(0).values[at].tolist()
        if draft_logprobs is not None:
            kept = (logprob - torch.tensor(draft_logprobs, dtype=torch.float64)).clamp(max=0)
            known["accept_logprob"] = kept.cumsum(0)[at].tolist()
    rows = [dict(zip(known, row, strict=True)) for row in zip(*known.values(), strict=True)]
    found = {name: tuple(values) for name, values in known.items()}
    return Verdicts(
        ends=tuple(cut.chars for cut in cuts),
        token_ends=tuple(tokens),
        p_correct=found.get("p_correct"),
        mean_logprob=found.get("mean_logprob"),
        min_logprob=found.get("min_logprob"),
        max_gap=found.get("max_gap"),
        accept_logprob=found.get("accept_logprob"),
        labels=(labels.right, labels.wrong),
        verdict=tuple(verdict_of(row, acceptance) for row in rows),
        kind=acceptance.kind,
    )


def verdict_of(signals: Mapping[str, float], acceptance: Acceptance) -> float:
    """Return the verdict, 0 to 1, on a prefix with these signals."""
    if acceptance.combination is not None:
        return acceptance.combination.verdict(signals)
    match acceptance.kind:
        case "accept_prob":
            return math.exp(signals["accept_logprob"])
        case "joint_prob":
            return math.exp(signals["mean_logprob"] * signals["tokens"])
        case "min_prob":
            return math.exp(signals["min_logprob"])
        case "mean_prob":
            return math.exp(signals["mean_logprob"])
        case "min_ratio":
            return math.exp(-signals["max_gap"])
        case _:
            return signals["p_correct"]


def check_finite(target: Model, verdicts: Verdicts) -> None:
    """Refuse verdicts that are not numbers: nothing may be accepted by them.

    Raises
    ------
    VerificationError
        With what to try.
    """
    if not all(map(math.isfinite, verdicts.verdict)):
        raise VerificationError(
            f"The verdicts of {target.name} are not finite: {verdicts.verdict}.",
            'Try judge_layout="quote", or load the target with dtype="float32".',
        )
