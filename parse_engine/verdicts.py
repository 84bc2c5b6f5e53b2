"""From logits after the suffixes to verdicts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from parse_engine.backends.model import Model
from parse_engine.errors import VerificationError
from parse_engine.judge import Labels
from parse_engine.types import Cut, Verdicts


def label_shares(logits: torch.Tensor, labels: Labels) -> list[float]:
    """Return P(right label) / (P(right label) + P(wrong label)) for each row of logits."""
    pair = logits[:, [labels.right_id, labels.wrong_id]].float()
    return [float(p) for p in pair.softmax(dim=1)[:, 0]]


def make_verdicts(
    cuts: Sequence[Cut], p_correct: Sequence[float], signals: torch.Tensor | None, labels: Labels
) -> Verdicts:
    """Put verdicts and signals of each prefix side by side; a prefix's signals look at it alone."""
    tokens = [cut.tokens for cut in cuts]
    mean = least = gap = None
    if signals is not None:
        at = torch.tensor(tokens) - 1
        logprob, distance = signals[0].double(), signals[1].double()
        mean = tuple((logprob.cumsum(0)[at] / (at + 1)).tolist())
        least = tuple(logprob.cummin(0).values[at].tolist())
        gap = tuple(distance.cummax(0).values[at].tolist())
    return Verdicts(
        ends=tuple(cut.chars for cut in cuts),
        token_ends=tuple(tokens),
        p_correct=tuple(p_correct),
        mean_logprob=mean,
        min_logprob=least,
        max_gap=gap,
        labels=(labels.right, labels.wrong),
    )


def check_finite(target: Model, verdicts: Verdicts) -> None:
    """Refuse verdicts that are not numbers: nothing may be accepted by them.

    Raises
    ------
    VerificationError
        With what to try.
    """
    if not all(math.isfinite(p) for p in verdicts.p_correct):
        raise VerificationError(
            f"The verdicts of {target.name} are not finite: {verdicts.p_correct}.",
            'Try judge_layout="quote", or load the target with dtype="float32".',
        )
