"""Rotary frequencies that follow the length of the text."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from parse_engine import ContextOverflowError, Engine, FallbackWarning, ParseConfig
from parse_engine.backends.model import Model
from parse_engine.backends.rope import steady_rope
from tests.conftest import forward_log
from tests.scripted import scripted
from tests.test_engine import TEXT, greedy_alone
from tests.test_pack import draft_ids
from tests.tiny_kinds import KINDS, kind_model, whole_text_logits
from tests.tiny_models import tiny_network

SWITCH = 1200
MOVING = ["phi3_longrope", "llama_dynamic"]


def ask(target: Model, tokens: int) -> list[dict[str, str]]:
    """Return a conversation of just so many tokens."""
    short = len(target.render([{"role": "user", "content": ""}]).ids)
    messages = [{"role": "user", "content": "?" * (tokens - short)}]
    assert len(target.render(messages).ids) == tokens
    return messages


def fresh_network(kind: str) -> Any:
    model_type, settings = KINDS[kind]
    return tiny_network(model_type, 400, **settings)


@pytest.mark.parametrize("kind", MOVING)
def test_draft_that_crosses_the_switch_is_not_judged(kind: str) -> None:
    target = kind_model(kind)
    engine = Engine(target, scripted(target, TEXT), ParseConfig(threshold=0))
    suffix, draft = len(engine.ability.judge.suffix_ids), len(target.encode(TEXT))
    fits = ask(target, SWITCH - draft - suffix)
    assert engine.generate(fits, max_new_tokens=200).text == TEXT
    crosses = ask(target, SWITCH - draft - suffix + 1)
    with forward_log(target) as log, pytest.warns(FallbackWarning, match="rotary frequencies"):
        answer = engine.generate(crosses, max_new_tokens=draft + 40)
    assert answer.stats.fallback is not None
    assert f"beyond {SWITCH}" in answer.stats.fallback
    assert answer.stats.path is answer.stats.judge_layout is None
    assert answer.token_ids == greedy_alone(target, target.render(crosses).ids, draft + 40)
    assert sum(log) == answer.stats.target_tokens_processed
    with pytest.raises(ContextOverflowError, match="rotary frequencies"):
        engine.verify(crosses, TEXT)


@pytest.mark.parametrize("kind", MOVING)
def test_prompt_beyond_the_switch_is_not_even_drafted_for(kind: str) -> None:
    target = kind_model(kind)
    draft = scripted(target, TEXT)
    for tokens in (SWITCH, SWITCH + 200):
        messages = ask(target, tokens)
        with pytest.warns(FallbackWarning, match="rotary frequencies"):
            answer = Engine(target, draft).generate(messages, max_new_tokens=20)
        assert answer.token_ids == greedy_alone(target, target.render(messages).ids, 20)
        assert answer.stats.drafted_tokens == 0
    assert draft.seen == []


@pytest.mark.parametrize("kind", MOVING)
def test_regeneration_across_the_switch_is_what_the_target_alone_writes(kind: str) -> None:
    target = kind_model(kind)
    engine = Engine(target, scripted(target, TEXT), ParseConfig(threshold=1))
    messages = ask(target, SWITCH - 60)
    with forward_log(target) as log:
        answer = engine.generate(messages, max_new_tokens=90, max_draft_tokens=20)
    assert answer.stats.fallback is None
    assert answer.stats.prefixes >= 1
    assert len(answer.token_ids) > 60
    assert answer.token_ids == greedy_alone(target, target.render(messages).ids, 90)
    assert sum(log) == answer.stats.target_tokens_processed


def test_a_longer_text_before_would_change_what_dynamic_frequencies_give() -> None:
    network = fresh_network("llama_dynamic")
    target = Model("unguarded", network, kind_model("llama_dynamic").tokenizer)
    ids = draft_ids(target, SWITCH + 400)
    alone = whole_text_logits(target, ids[: SWITCH + 50])
    whole_text_logits(target, ids)
    after = whole_text_logits(target, ids[: SWITCH + 50])
    assert (after - alone).abs().max() > 1e-4
    steady_rope(target)
    assert torch.equal(whole_text_logits(target, ids[: SWITCH + 50]), alone)
    steady_rope(target)  # done once: again changes nothing
    assert torch.equal(whole_text_logits(target, ids[: SWITCH + 50]), alone)


@pytest.mark.parametrize("kind", MOVING)
def test_longer_texts_before_and_at_the_same_time_change_no_verdict(kind: str) -> None:
    target = kind_model(kind)
    engine = Engine(target)
    messages = ask(target, 100)
    alone = engine.verify(messages, TEXT, cut_at=3)
    rope = next(module for module in target.network.modules() if hasattr(module, "_parse_steady"))
    hidden, positions = torch.zeros(1, 1, 32), torch.tensor([[3000]])
    enough = threading.Event()
    turns = 0

    def disturb() -> None:
        nonlocal turns
        while not enough.is_set():
            rope(hidden, positions)
            turns += 1

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        during = [engine.verify(messages, TEXT, cut_at=3) for _ in range(10)]
    finally:
        enough.set()
        thread.join()
    assert turns > 10
    assert all(verdicts == alone for verdicts in during)
    engine.generate(ask(target, SWITCH + 100), max_new_tokens=3, mode="target")
    assert engine.verify(messages, TEXT, cut_at=3) == alone


def test_fixed_frequencies_are_left_alone() -> None:
    target = kind_model("gemma3")
    Engine(target)
    assert not any(hasattr(module, "_parse_steady") for module in target.network.modules())


def test_dynamic_frequencies_stretch_the_context_window() -> None:
    assert kind_model("llama_dynamic").context_window == 4 * SWITCH
    assert kind_model("phi3_longrope").context_window == 4096
