"""The packed pass equals N separate forward passes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DynamicCache

from parse_engine import ParseConfig
from parse_engine.backends.check import plain_logits
from parse_engine.backends.model import Model
from parse_engine.judge import Judge, make_judge, make_quote
from parse_engine.pack import pack
from parse_engine.prefill import prefill
from parse_engine.reading import judge_logits, read_brief
from tests.tiny_models import FULL_ATTENTION, tiny_model

QUESTION = [{"role": "user", "content": "Write the answer to that."}]


def draft_ids(model: Model, count: int, seed: int = 7) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    usual = [i for i in range(len(model.tokenizer)) if i not in model.tokenizer.all_special_ids]
    picked = torch.randint(len(usual), (count,), generator=generator)
    return tuple(usual[i] for i in picked.tolist())


def log_probabilities(logits: torch.Tensor) -> torch.Tensor:
    return logits.double().log_softmax(dim=-1)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", FULL_ATTENTION)
def test_packed_pass_equals_separate_passes_with_a_private_brief(kind: str, attention: str) -> None:
    target = tiny_model(kind, attention=attention)
    judge = make_judge(target.tokenizer, ParseConfig(), {})
    brief = read_brief(target, judge)
    prompt, draft = target.render(QUESTION).ids, draft_ids(target, 40)
    ends = [len(prompt) + cut for cut in (1, 2, 7, 8, 23, 39, 40)]
    cache = DynamicCache()
    target.forward((*prompt, *draft), cache)

    packed = judge_logits(target, cache, brief, judge.suffix_ids, ends)

    for row, end in zip(packed, ends, strict=True):
        plain = plain_logits(target, brief, (*prompt, *draft)[:end], judge.suffix_ids)
        difference = log_probabilities(row) - log_probabilities(plain)
        assert difference.abs().max() < 1e-4


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", FULL_ATTENTION)
def test_packed_pass_equals_whole_texts_in_layout_quote(kind: str, attention: str) -> None:
    target = tiny_model(kind, attention=attention)
    config = ParseConfig(judge_layout="quote")
    labels = make_judge(target.tokenizer, config, {}).labels
    quote = make_quote(target.tokenizer, labels, config, QUESTION, {})
    draft = draft_ids(target, 40)
    cuts = (1, 2, 7, 8, 23, 39, 40)
    cache = DynamicCache()
    target.forward((*quote.head_ids, *draft), cache)

    ends = [len(quote.head_ids) + cut for cut in cuts]
    packed = judge_logits(target, cache, None, quote.suffix_ids, ends)

    for row, cut in zip(packed, cuts, strict=True):
        text = (*quote.head_ids, *draft[:cut], *quote.suffix_ids)
        plain = target.network(torch.tensor([text])).logits[0, -1]
        difference = log_probabilities(row) - log_probabilities(plain)
        assert difference.abs().max() < 1e-4


def test_brief_is_what_it_is_before_any_prompt_and_its_bos_stays_unseen() -> None:
    target = tiny_model("llama", template="llama3")
    judge = make_judge(target.tokenizer, ParseConfig(), {})
    assert judge.brief_hidden == 1
    brief = read_brief(target, judge)
    assert brief.length == len(judge.brief_ids) - 1
    # moved anywhere else, its values are the same: only mutual distances count
    count = len(judge.brief_ids)
    cache = DynamicCache()
    target.forward(judge.brief_ids, cache, positions=torch.arange(50, 50 + count))
    values = cache.layers[-1].values[:, :, 1:]
    assert torch.allclose(values, brief.states[-1][1], atol=1e-3)


def test_cache_is_left_as_it_was() -> None:
    target = tiny_model()
    judge = make_judge(target.tokenizer, ParseConfig(), {})
    brief = read_brief(target, judge)
    ids = draft_ids(target, 30)
    cache = DynamicCache()
    target.forward(ids, cache)
    before = [(layer.keys.clone(), layer.values.clone()) for layer in cache.layers]
    judge_logits(target, cache, brief, judge.suffix_ids, [5, 30])
    for layer, (keys, values) in zip(cache.layers, before, strict=True):
        assert torch.equal(layer.keys, keys)
        assert torch.equal(layer.values, values)


@given(
    ends=st.lists(st.integers(1, 50), min_size=1, max_size=12),
    size=st.integers(1, 9),
    brief=st.integers(0, 7),
)
def test_mask_shows_each_suffix_its_prefix_the_brief_and_itself(
    ends: list[int], size: int, brief: int
) -> None:
    context = 50
    packed = pack(range(size), ends, context, brief)
    assert packed.mask.shape == (len(ends) * size, context + brief + len(ends) * size)
    for row in range(len(ends) * size):
        owner, step = divmod(row, size)
        seen = set(packed.mask[row].nonzero()[:, 0].tolist())
        own = context + brief + owner * size
        assert seen == {
            *range(ends[owner]),
            *range(context, context + brief),
            *range(own, own + step + 1),
        }
        assert packed.positions[row] == ends[owner] + step
    assert packed.ids == tuple(range(size)) * len(ends)
    assert packed.last.tolist() == [(i + 1) * size - 1 for i in range(len(ends))]


@settings(max_examples=15, deadline=None)
@given(count=st.integers(1, 60), chunk=st.integers(1, 70))
def test_signals_are_the_targets_log_probabilities_in_any_chunks(count: int, chunk: int) -> None:
    from parse_engine import prefill as module

    target = tiny_model()
    prompt, draft = target.render(QUESTION).ids, draft_ids(target, count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PREFILL_CHUNK", chunk)
        patch.setattr(module, "SIGNAL_CHUNK", max(1, chunk // 3))
        cache = DynamicCache()
        signals = prefill(target, cache, prompt, draft, signals=True)
    assert signals is not None
    assert cache.get_seq_length() == len(prompt) + count

    logits = target.network(torch.tensor([[*prompt, *draft]])).logits[0, len(prompt) - 1 : -1]
    scores = log_probabilities(logits)
    wanted = scores.gather(1, torch.tensor(draft)[:, None])[:, 0]
    assert torch.allclose(signals[0].double(), wanted, atol=1e-4)
    assert torch.allclose(signals[1].double(), scores.amax(1) - wanted, atol=1e-4)


def test_signals_of_a_prefix_look_at_that_prefix_only() -> None:
    from parse_engine.engine import Engine

    target = tiny_model()
    text = "The answer is a return of that.\n" * 4
    engine = Engine(target, config=ParseConfig(cut_at=5, max_prefixes=8))
    long = engine.verify(QUESTION, text)
    assert long.mean_logprob is not None
    assert long.min_logprob is not None
    assert long.max_gap is not None
    half = engine.verify(QUESTION, text[: long.ends[2]])
    assert half.mean_logprob is not None
    assert half.min_logprob is not None
    assert math.isclose(half.mean_logprob[-1], long.mean_logprob[2], abs_tol=1e-5)
    assert math.isclose(half.min_logprob[-1], long.min_logprob[2], abs_tol=1e-5)
    assert math.isclose(half.p_correct[-1], long.p_correct[2], abs_tol=1e-5)
    assert list(long.min_logprob) == sorted(long.min_logprob, reverse=True)
    assert list(long.max_gap) == sorted(long.max_gap)


def test_judge_is_a_value() -> None:
    tokenizer = tiny_model().tokenizer
    assert isinstance(make_judge(tokenizer, ParseConfig(), {}), Judge)
    assert make_judge(tokenizer, ParseConfig(), {}) == make_judge(tokenizer, ParseConfig(), {})
