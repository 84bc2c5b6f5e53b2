"""A logistic combination of a few signals, fitted to answers of known correctness."""

from __future__ import annotations

import random
from collections.abc import Hashable, Mapping, Sequence

import torch

from parse_engine.calibration import DIRECTION, Combination, features_of

Signals = Mapping[str, float]
SHRINK = 0.02  # weight of the squared weights, of features with standard deviation 1
STEPS = 200


def fit(signals: Sequence[Signals], right: Sequence[bool], names: Sequence[str]) -> Combination:
    """Fit a combination of some signals.

    Parameters
    ----------
    signals : sequence of mapping
        Those of each answer, by name.
    right : sequence of bool
        Whether the answer is.
    names : sequence of str
        Which signals are combined.

    Returns
    -------
    Combination
        Its weights all say "more of the better is better": a signal that has nothing to add to the
        others gets 0 and not a weight of the wrong sign.
    """
    rows = [[features_of(one)[name] for name in names] for one in signals]
    features = torch.tensor(rows, dtype=torch.float64)
    signs = torch.tensor([DIRECTION[name] for name in names], dtype=torch.float64)
    mean, deviation = features.mean(0), features.std(0, correction=0).clamp(min=1e-9)
    standard = (features - mean) / deviation * signs
    truth = torch.tensor(list(right), dtype=torch.float64)

    roots = torch.full((len(names),), 0.5, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([roots, bias], max_iter=STEPS, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        weights = roots.square()  # never negative
        error = torch.nn.functional.binary_cross_entropy_with_logits(
            standard @ weights + bias, truth
        )
        total = error + SHRINK * weights.square().sum()
        total.backward()  # type: ignore[no-untyped-call]
        return total

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    weights = roots.detach().square() * signs / deviation
    found = {name: float(w) for name, w in zip(names, weights, strict=True)}
    return Combination(bias=float(bias.detach() - (weights * mean).sum()), **found)


def cross_validated(
    signals: Sequence[Signals],
    right: Sequence[bool],
    items: Sequence[Hashable],
    names: Sequence[str],
    folds: int = 10,
    seed: int = 0,
) -> list[float]:
    """Return a verdict on each answer by a combination that was fitted to other items only.

    A fold holds all answers to its items. Items are dealt out by how many of their answers are
    right: if a fold held more of the right ones, the rest would hold fewer, the combination fitted
    to the rest would think less of all answers, and the fold's right ones would look bad.
    """
    unique = list(dict.fromkeys(items))
    folds = min(folds, len(unique))
    random.Random(seed).shuffle(unique)
    answers: dict[Hashable, list[bool]] = {}
    for item, one in zip(items, right, strict=True):
        answers.setdefault(item, []).append(one)
    unique.sort(key=lambda item: sum(answers[item]) / len(answers[item]))
    fold_of = {item: number % folds for number, item in enumerate(unique)}
    verdicts = [0.0] * len(items)
    for fold in range(folds):
        rest = [index for index, item in enumerate(items) if fold_of[item] != fold]
        held = [index for index, item in enumerate(items) if fold_of[item] == fold]
        made = fit([signals[i] for i in rest], [right[i] for i in rest], names)
        for index in held:
            verdicts[index] = made.verdict(signals[index])
    return verdicts
