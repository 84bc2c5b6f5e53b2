"""One check at load: the path that will be used must give what separate passes give."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from transformers import DynamicCache

from parse_engine.backends.kinds import Plan, Reach
from parse_engine.backends.model import Model
from parse_engine.config import ParseConfig
from parse_engine.errors import UnsupportedModelError
from parse_engine.judge import Judge, make_judge
from parse_engine.reading import Brief, append_brief, judge_logits, read_brief, read_draft
from parse_engine.verify import Ability

# A short prefix, from which much is hidden, and the whole context. In bf16, on real models of 0.5B
# and 1.5B, the right mask was off by 0.07 at most, and a mask or positions wrong in one respect by
# 0.6 to 8. With ends closer together the two lie closer together too.
HEAD, SHORT, WHOLE = 3, 4, 62
# Largest difference of two logits that may be rounding, in standard deviations of the logits.
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3, torch.bfloat16: 0.3, torch.float16: 0.1}
# Also of quantized weights, whose kernels round in their own way: by up to 0.2 with 8 bits.
LARGEST_TOLERANCE = 0.3

if TYPE_CHECKING:
    from transformers import Cache

logger = logging.getLogger("parse_engine")


def find_ability(target: Model, config: ParseConfig) -> Ability | UnsupportedModelError:
    """Find out how a target can judge; where it cannot, return the error that says why.

    Where it cannot judge in the way that is asked for, one line in the log says what is lost.
    """
    try:
        judge = make_judge(target.tokenizer, config, target.template_kwargs)
        ability = confirm(target, judge)
    except UnsupportedModelError as error:
        return error
    plan = ability.plan
    if plan.path == "fan_out" or (not plan.brief and config.judge_layout == "brief"):
        logger.warning(
            "%s (%s) judges on path %s in layout quote: %s.",
            target.name,
            target.network.config.model_type,
            plan.path,
            plan.why,
        )
    return ability


def confirm(target: Model, judge: Judge) -> Ability:
    """Take the best way to judge that gives what separate plain passes give, on a few tokens.

    A few tokens cannot show windows or rope switches; those are recognized from the configuration.

    Raises
    ------
    UnsupportedModelError
        If no way gives the right logits.
    """
    plan, reach = target.plan, target.plan.brief_reach
    if plan.brief and reach is not None and reach <= len(judge.brief_ids) + len(judge.suffix_ids):
        why = f"its windows of {reach} tokens are too short to see the judge's instructions"
        plan = replace(plan, brief=False, why=why)
    trouble = plan.why
    for attempt in _attempts(plan):
        try:
            brief = read_brief(target, judge) if attempt.brief else None
            distance = _distance(target, attempt, judge, brief)
        except Exception as error:  # noqa: BLE001 - what a model says to inputs it cannot take
            trouble = f"in the check at load it failed with {type(error).__name__}: {error}"
            continue
        if distance <= _tolerance(target, plan):  # NaN is no agreement either
            return Ability(judge, replace(attempt, why=trouble), brief)
        trouble = (
            f"in the check at load, path {attempt.path} with layout "
            f"{'brief' if attempt.brief else 'quote'} gave other logits than separate passes (they "
            f"differ by {distance:.3g} standard deviations of the logits)"
        )
    raise UnsupportedModelError(
        f"{target.name} ({target.network.config.model_type}) cannot judge prefixes: {trouble}.",
        'Use another target, try dtype="float32" in case it is rounding, or use mode="target", '
        "which answers with this model alone.",
    )


def _attempts(plan: Plan) -> list[Plan]:
    """Return ways to judge, the best first."""
    quote = replace(plan, brief=False)
    fan_out = Plan("fan_out", brief=False, rope_switch=plan.rope_switch)
    if plan.path == "fan_out":
        return [plan]
    return [plan, quote, fan_out] if plan.brief else [quote, fan_out]


def _distance(target: Model, plan: Plan, judge: Judge, brief: Brief | None) -> float:
    """Return the largest difference to separate passes, in standard deviations of the logits."""
    # With windows a brief's reference needs a mask too: then the mask is checked without a brief.
    shown = [None, brief] if brief is not None and _has_windows(plan) else [brief]
    ids = _sample_ids(target, WHOLE)
    head, draft, suffix = ids[:HEAD], ids[HEAD:], judge.suffix_ids
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
    for one in shown:
        ends = (SHORT, WHOLE)
        reading = read_draft(target, plan, one, head, draft, suffix, ends, signals=False)
        short, whole = reading.logits(ends)
        pairs.append((short, plain_logits(target, one, ids[:SHORT], suffix)))
        if reading.cache is None or _has_windows(plan):
            pairs.append((whole, plain_logits(target, one, ids, suffix)))
        else:  # on the cache that the pass leaves, which shows whether it left it as it was
            pairs.append((whole, ask_alone(target, reading.cache, one, suffix)))
    if brief is not None:
        pairs.append(_shifted_logits(target, judge.brief_ids[:HEAD]))
    return max(float((a.float() - b.float()).abs().max() / b.float().std()) for a, b in pairs)


def _has_windows(plan: Plan) -> bool:
    return any(reach != Reach() for reach in plan.reaches.values())


def _shifted_logits(target: Model, ids: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logits after a text before the first position, and after the same text behind."""
    before, behind = torch.arange(-len(ids), 0), torch.arange(len(ids))
    first, second = (target.forward(ids, DynamicCache(), positions=p)[0] for p in (before, behind))
    return first, second


def plain_logits(
    target: Model, brief: Brief | None, prefix_ids: tuple[int, ...], suffix_ids: tuple[int, ...]
) -> torch.Tensor:
    """Return the logits after one suffix by itself, shape [vocabulary]: the reference.

    Without a brief the model reads the whole text at once, as it would by itself. With one, the
    brief is appended to the prefix's cache, and the suffix is read causally; only where layers
    have windows that takes a mask.
    """
    if brief is None:
        ids = torch.tensor([[*prefix_ids, *suffix_ids]], device=target.network.device)
        with torch.no_grad():
            logits = target.network(input_ids=ids).logits[0, -1]
        assert isinstance(logits, torch.Tensor)
        return logits
    cache = DynamicCache()
    target.forward(prefix_ids, cache)
    if _has_windows(target.plan):
        return judge_logits(target, cache, brief, suffix_ids, [len(prefix_ids)])[0]
    return ask_alone(target, cache, brief, suffix_ids)


def ask_alone(
    target: Model, cache: Cache, brief: Brief | None, suffix_ids: tuple[int, ...]
) -> torch.Tensor:
    """Read brief and suffix causally after what the cache holds; the logits, shape [vocabulary]."""
    start = cache.get_seq_length()
    append_brief(cache, brief)
    positions = torch.arange(start, start + len(suffix_ids))
    return target.forward(suffix_ids, cache, positions=positions)[0]


def _tolerance(target: Model, plan: Plan) -> float:
    if hasattr(target.network.config, "quantization_config"):
        return LARGEST_TOLERANCE
    dtype = torch.float32 if plan.doubtful else target.network.dtype
    return TOLERANCE.get(dtype, LARGEST_TOLERANCE)


def _sample_ids(target: Model, count: int) -> tuple[int, ...]:
    """Return some ids that are not special, spread over the vocabulary."""
    special = set(target.tokenizer.all_special_ids)
    size = min(len(target.tokenizer), target.network.config.get_text_config().vocab_size)
    usual = [i for i in range(0, size, max(1, size // (4 * count))) if i not in special]
    return tuple((usual * count)[:count])
