"""One check at load: the packed pass must give what separate passes give."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from transformers import DynamicCache

from parse_engine.backends.model import Model
from parse_engine.errors import UnsupportedModelError
from parse_engine.judge import Judge
from parse_engine.verify import Brief, append_brief, judge_logits

if TYPE_CHECKING:
    from transformers import Cache

# A short prefix, from which much is hidden, and the whole context. In bf16, on real models of 0.5B
# and 1.5B, the right mask was off by 0.07 at most, and a mask or positions wrong in one respect by
# 0.6 to 8. With ends closer together the two lie closer together too.
SHORT, WHOLE = 4, 62
# Largest difference of two logits that may be rounding, in standard deviations of the logits.
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3, torch.bfloat16: 0.3, torch.float16: 0.1}
# Also of quantized weights, whose kernels round in their own way: by up to 0.2 with 8 bits.
LARGEST_TOLERANCE = 0.3


def check_packed_pass(target: Model, judge: Judge, brief: Brief) -> None:
    """Compare the packed pass with one plain pass a prefix, on a few dozen tokens.

    The plain passes need no mask: the short prefix is read alone, the whole context is what the
    packed pass leaves in the cache, which also shows whether it left it as it was. This cannot see
    windows or rope switches; those are recognized from the configuration.

    Raises
    ------
    UnsupportedModelError
        If the two disagree.
    """
    ids = _sample_ids(target, WHOLE)
    cache = DynamicCache()
    target.forward(ids, cache)
    packed = judge_logits(target, cache, brief, judge.suffix_ids, (SHORT, WHOLE))
    short = plain_logits(target, brief, ids[:SHORT], judge.suffix_ids)
    whole = ask_alone(target, cache, brief, judge.suffix_ids)
    tolerance = _tolerance(target)
    for row, plain in zip(packed.float(), (short.float(), whole.float()), strict=True):
        distance = float((row - plain).abs().max() / plain.std())
        if not distance <= tolerance:  # NaN is no agreement either
            raise UnsupportedModelError(
                f"{target.name} ({target.network.config.model_type}) gives other verdicts in one "
                f"packed pass than in separate passes (they differ by {distance:.3g} standard "
                f"deviations of the logits, where {tolerance} may be rounding).",
                "Use another target, or try dtype='float32' in case it is rounding.",
            )


def plain_logits(
    target: Model, brief: Brief | None, prefix_ids: tuple[int, ...], suffix_ids: tuple[int, ...]
) -> torch.Tensor:
    """Return the logits after one prefix and suffix by themselves: the reference."""
    cache = DynamicCache()
    target.forward(prefix_ids, cache)
    return ask_alone(target, cache, brief, suffix_ids)


def ask_alone(
    target: Model, cache: Cache, brief: Brief | None, suffix_ids: tuple[int, ...]
) -> torch.Tensor:
    """Read brief and suffix causally after what the cache holds; the logits, shape [vocabulary]."""
    start = cache.get_seq_length()
    append_brief(cache, brief)
    positions = torch.arange(start, start + len(suffix_ids))
    return target.forward(suffix_ids, cache, positions=positions)[0]


def _tolerance(target: Model) -> float:
    if hasattr(target.network.config, "quantization_config"):
        return LARGEST_TOLERANCE
    return TOLERANCE.get(target.network.dtype, LARGEST_TOLERANCE)


def _sample_ids(target: Model, count: int) -> tuple[int, ...]:
    """Return some ids that are not special, spread over the vocabulary."""
    special = set(target.tokenizer.all_special_ids)
    size = min(len(target.tokenizer), target.network.config.get_text_config().vocab_size)
    usual = [i for i in range(0, size, max(1, size // (4 * count))) if i not in special]
    return tuple((usual * count)[:count])
