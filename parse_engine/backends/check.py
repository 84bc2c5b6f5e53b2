"""One check at load: the packed pass must give what separate passes give."""

from __future__ import annotations

import torch
from transformers import DynamicCache

from parse_engine.backends.model import Model
from parse_engine.errors import UnsupportedModelError
from parse_engine.judge import Judge
from parse_engine.verify import Brief, append_brief, judge_logits

HEAD, DRAFT, ENDS = 5, 6, (6, 8, 11)
# Largest difference of two logits that may be rounding, in standard deviations of the logits.
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3, torch.bfloat16: 0.3, torch.float16: 0.1}


def check_packed_pass(target: Model, judge: Judge, brief: Brief) -> None:
    """Compare the packed pass with one plain pass a prefix, on a few tokens.

    The plain pass needs no mask and no crop: the prefix is read alone, the brief appended, and the
    suffix read causally. It cannot see windows or rope switches; those are recognized from the
    configuration.

    Raises
    ------
    UnsupportedModelError
        If the two disagree.
    """
    ids = _sample_ids(target, HEAD + DRAFT)
    cache = DynamicCache()
    target.forward(ids, cache)
    packed = judge_logits(target, cache, brief, judge.suffix_ids, ENDS).float()
    for row, end in zip(packed, ENDS, strict=True):
        plain = plain_logits(target, brief, ids[:end], judge.suffix_ids).float()
        distance = float((row - plain).abs().max() / plain.std())
        if not distance <= TOLERANCE.get(target.network.dtype, 0.3):
            raise UnsupportedModelError(
                f"{target.name} ({target.network.config.model_type}) gives other verdicts in one "
                f"packed pass than in separate passes (they differ by {distance:.3g} standard "
                "deviations of the logits).",
                "Use another target, or try dtype='float32' in case it is rounding.",
            )


def plain_logits(
    target: Model, brief: Brief | None, prefix_ids: tuple[int, ...], suffix_ids: tuple[int, ...]
) -> torch.Tensor:
    """Return the logits after one suffix by itself, shape [vocabulary]: the reference."""
    cache = DynamicCache()
    target.forward(prefix_ids, cache)
    append_brief(cache, brief)
    start = len(prefix_ids)
    positions = torch.arange(start, start + len(suffix_ids))
    return target.forward(suffix_ids, cache, positions=positions)[0]


def _sample_ids(target: Model, count: int) -> tuple[int, ...]:
    """Return some ids that are not special, spread over the vocabulary."""
    special = set(target.tokenizer.all_special_ids)
    size = min(len(target.tokenizer), target.network.config.get_text_config().vocab_size)
    usual = [i for i in range(0, size, max(1, size // (4 * count))) if i not in special]
    return tuple((usual * count)[:count])
