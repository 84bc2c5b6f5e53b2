"""Judging on copies of the cache, for models that cannot be cropped or masked."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parse_engine import Engine, ParseConfig
from parse_engine.fan_out import fan_out_logits, read_in_steps
from parse_engine.pack import pack
from tests.conftest import forward_log
from tests.scripted import scripted
from tests.test_engine import ASK, TEXT, greedy_alone
from tests.test_kinds import CUTS, worst
from tests.test_pack import draft_ids
from tests.tiny_kinds import FAN_OUT, fresh_cache, kind_model, whole_text_logits

RECURRENT = ["qwen3_next", "mamba2", "granitemoehybrid", "lfm2"]


@pytest.mark.parametrize("kind", FAN_OUT)
def test_each_token_is_read_once_and_each_suffix_for_itself(kind: str) -> None:
    target = kind_model(kind)
    head, draft, suffix = draft_ids(target, 20, 1), draft_ids(target, 60), draft_ids(target, 5, 2)
    ends = [len(head) + cut for cut in CUTS]
    with forward_log(target) as log:
        copies, _ = read_in_steps(target, head, draft, ends, signals=True)
        assert sum(log) == len(head) + len(draft)
        # in any order, one by one or together
        last = fan_out_logits(target, copies, suffix, ends[-1:])
        rest = fan_out_logits(target, copies, suffix, ends[-2::-1])
    assert sum(log) == len(head) + len(draft) + len(ends) * len(suffix)
    assert copies == {}
    texts = [(*head, *draft)[:end] + suffix for end in reversed(ends)]
    assert worst(torch.cat([last, rest]), [whole_text_logits(target, t) for t in texts]) < 1e-4


def test_copies_share_the_keys_that_do_not_change() -> None:
    target = kind_model("qwen3_next")
    head, draft = draft_ids(target, 20, 1), draft_ids(target, 60)
    copies, _ = read_in_steps(target, head, draft, [30, 50, 80], signals=False)
    full = [layer for cache in copies.values() for layer in cache.layers[1::2]]
    assert len({layer.keys.untyped_storage().data_ptr() for layer in full}) == 2  # two such layers
    assert [cache.get_seq_length() for cache in copies.values()] == [30, 50, 80]


@pytest.mark.parametrize("order", ["whole_first", "all"])
def test_a_draft_that_passes_whole_costs_one_question(order: Any) -> None:
    target = kind_model("qwen3_next")
    config = ParseConfig(threshold=0, verify_order=order, cut_at=4)
    engine = Engine(target, scripted(target, TEXT), config)
    with forward_log(target) as log:
        answer = engine.generate(ASK, max_new_tokens=200)
    assert answer.text == TEXT
    assert sum(log) == answer.stats.target_tokens_processed
    assert (answer.stats.prefixes == 1) == (order == "whole_first")


@settings(max_examples=20, deadline=None)
@given(
    kind=st.sampled_from(["qwen3_next", "lfm2", "gemma3", "mistral", "mistral_wide", "gpt_oss"]),
    threshold=st.floats(0, 1),
    cut_at=st.sampled_from(["auto", "line", 1, 3]),
    rule=st.sampled_from(["unbroken", "longest"]),
    order=st.sampled_from(["whole_first", "all"]),
    prefixes=st.integers(1, 9),
    seed=st.integers(0, 3),
)
def test_answer_is_accepted_prefix_and_what_the_target_alone_writes_after_it(
    kind: str, threshold: float, cut_at: Any, rule: Any, order: Any, prefixes: int, seed: int
) -> None:
    target = kind_model(kind)
    draft = draft_ids(target, 20, seed)
    config = ParseConfig(
        threshold=threshold,
        cut_at=cut_at,
        accept_rule=rule,
        verify_order=order,
        max_prefixes=prefixes,
    )
    engine = Engine(target, scripted(target, draft), config)
    prompt = target.render(ASK).ids
    with forward_log(target) as log:
        answer = engine.generate(ASK, max_new_tokens=30)
    accepted = draft[: answer.stats.accepted_tokens]
    rest: tuple[int, ...] = ()
    if len(accepted) < len(draft):
        rest = greedy_alone(target, prompt + accepted, 30 - len(accepted))
    assert answer.token_ids == accepted + rest
    assert sum(log) == answer.stats.target_tokens_processed
    assert answer.verdicts is not None
    passed = [p >= threshold for p in answer.verdicts.verdict]
    kept = answer.verdicts.token_ends.index(len(accepted)) if accepted else -1
    assert kept == -1 or passed[kept]
    assert passed[-1] == (len(accepted) == len(draft))


# What would go wrong in silence


@pytest.mark.parametrize("kind", ["qwen3_next", "granitemoehybrid", "lfm2"])
def test_a_mask_on_a_recurrent_model_would_be_noticed_and_its_state_cannot_be_cropped(
    kind: str,
) -> None:
    target = kind_model(kind)
    head, draft, suffix = draft_ids(target, 20, 1), draft_ids(target, 60), draft_ids(target, 5, 2)
    ends = [len(head) + cut for cut in CUTS]
    cache = fresh_cache(target)
    target.forward((*head, *draft), cache)
    packed = pack(suffix, ends, len(head) + len(draft), 0)
    with torch.no_grad():
        rows = target.network(
            input_ids=torch.tensor([packed.ids]),
            cache=cache,
            position_ids=packed.positions[None],
            attention_mask=packed.mask[None, None],
        ).logits[0, packed.last]
    texts = [(*head, *draft)[:end] + suffix for end in ends]
    assert worst(rows, [whole_text_logits(target, text) for text in texts]) > 1e-2
    with pytest.raises(RuntimeError, match="crop"):
        cache.crop(-len(packed.ids))


@pytest.mark.parametrize("kind", RECURRENT)
def test_a_shared_state_would_be_noticed(kind: str) -> None:
    target = kind_model(kind)
    head, suffix = draft_ids(target, 20, 1), draft_ids(target, 5, 2)
    cache = fresh_cache(target)
    target.forward(head, cache)
    target.forward(suffix, cache)
    again = target.forward(suffix, cache)  # on what the first question left behind
    assert worst(again, [whole_text_logits(target, head + suffix)]) > 1e-2
