"""Models that are loaded otherwise than usual, and models that cannot be judged with."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from parse_engine import Engine, ParseConfig, UnsupportedModelError
from parse_engine.backends.kinds import Reach, plan_for
from parse_engine.backends.model import Model
from parse_engine.reading import read_draft
from tests.scripted import scripted
from tests.test_engine import ASK, TEXT, greedy_alone
from tests.test_kinds import gemma_readings, worst
from tests.tiny_kinds import WINDOW, kind_model
from tests.tiny_models import tiny_network
from tests.tiny_tokenizers import chat_tokenizer

# Models that are loaded otherwise than usual


def test_a_window_that_the_models_code_does_not_know_is_none() -> None:
    network = tiny_network("llama", 300, sliding_window=WINDOW)
    assert plan_for("llama", network).reaches == {"all": Reach()}


@pytest.mark.parametrize("attention", ["flash_attention_2", "flash_attention_3", "flex_attention"])
def test_attention_that_takes_no_mask_is_judged_on_copies(attention: str) -> None:
    network = tiny_network("qwen2", 300)
    network.config._attn_implementation_internal = attention
    plan = plan_for("qwen2", network)
    assert plan.path == "fan_out"
    assert attention in plan.why
    assert "sdpa" in plan.why


@pytest.mark.parametrize("cache", ["quantized", "static", "offloaded"])
def test_a_cache_that_the_generation_config_asks_for_is_kept_for_writing(cache: str) -> None:
    network = tiny_network("qwen2", 300)
    network.generation_config.cache_implementation = cache
    plan = plan_for("qwen2", network)
    assert plan.path == "packed"
    assert not plan.brief
    assert cache in plan.why


def test_static_cache_writes_what_the_target_alone_writes() -> None:
    tokenizer = chat_tokenizer("qwen2.5")
    network = tiny_network("qwen2", len(tokenizer))
    network.generation_config.cache_implementation = "static"
    network.generation_config.disable_compile = True
    target = Model("static", network, tokenizer)
    answer = Engine(target, scripted(target, TEXT), ParseConfig(threshold=1)).generate(
        ASK, max_new_tokens=20
    )
    assert answer.stats.judge_layout == "quote"
    assert answer.token_ids == greedy_alone(target, target.render(ASK).ids, 20)


def test_text_of_a_multimodal_checkpoint(tmp_path: Any) -> None:
    tokenizer = chat_tokenizer("qwen2.5")
    text = kind_model("gemma3").network.config.to_dict()
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    config = AutoConfig.for_model("gemma3", text_config=text, vision_config=vision)
    torch.manual_seed(0)
    made = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    assert type(made).__name__ == "Gemma3ForConditionalGeneration"
    made.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    engine = Engine.from_pretrained(tmp_path, dtype="float32", config=ParseConfig(threshold=1))
    target = engine.target
    assert engine.path == "packed"
    assert engine.layout == "brief"
    arguments, ends, references = gemma_readings(target)
    assert worst(read_draft(*arguments, signals=False).logits(ends), references) < 1e-4
    answer = Engine(target, scripted(target, TEXT), engine.config).generate(ASK, max_new_tokens=30)
    assert answer.stats.prefixes > 1
    assert answer.token_ids == greedy_alone(target, target.render(ASK).ids, 30)


# Models that cannot be judged with


def unverifiable(kind: str) -> Model:
    tokenizer = chat_tokenizer("qwen2.5")
    own: dict[str, Any] = {"attn_implementation": "eager", "state_size": 8}
    network = tiny_network(kind, len(tokenizer), **own)
    network.generation_config.eos_token_id = tokenizer.eos_token_id
    return Model(kind, network, tokenizer)


@pytest.mark.parametrize("kind", ["mamba", "falcon_mamba"])
def test_what_cannot_be_judged_with_is_refused_and_can_still_answer_alone(kind: str) -> None:
    target = unverifiable(kind)
    with pytest.raises(UnsupportedModelError, match="cannot judge prefixes") as refused:
        Engine(target)
    assert 'mode="target"' in refused.value.hint
    engine = Engine(target, scripted(target, TEXT), ParseConfig(mode="target"))
    assert engine.path is engine.layout is None
    answer = engine.generate(ASK, max_new_tokens=20)
    assert answer.token_ids == greedy_alone(target, target.render(ASK).ids, 20)
    assert answer.stats.path is answer.stats.judge_layout is None
    for judging in (
        lambda: engine.verify(ASK, TEXT),
        lambda: engine.generate(ASK, mode="parse"),
        lambda: engine.labels,
    ):
        with pytest.raises(UnsupportedModelError, match="cannot judge prefixes"):
            judging()


def test_recurrent_models_that_nobody_tried_are_not_believed_in_half_precision() -> None:
    target = unverifiable("mamba")
    plan = plan_for("mamba", target.network)
    assert plan.doubtful
    assert not plan_for("qwen3_next", kind_model("qwen3_next").network).doubtful
    target.network.to(torch.bfloat16)
    with pytest.raises(UnsupportedModelError, match="cannot judge prefixes"):
        Engine(target)


def test_encoders_are_refused() -> None:
    tokenizer = chat_tokenizer("qwen2.5")
    network = tiny_network("bert", len(tokenizer), num_attention_heads=4)
    with pytest.raises(UnsupportedModelError, match="sees what follows"):
        Engine(Model("bert", network, tokenizer))


def test_one_line_at_load_says_what_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    for kind, said in (
        ("qwen3_next", "recurrent"),
        ("gpt2", "not rotary"),
        ("mistral", "too short"),
        ("gemma3", None),
    ):
        caplog.clear()
        Engine(kind_model(kind))
        lines = [record.getMessage() for record in caplog.records if record.name == "parse_engine"]
        assert len(lines) == (said is not None)
        assert said is None or said in lines[0]
    caplog.clear()
    Engine(kind_model("gpt2"), config=ParseConfig(judge_layout="quote"))  # nothing is lost
    assert not [record for record in caplog.records if record.name == "parse_engine"]
