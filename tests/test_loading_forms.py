"""Loading weights in other forms: GGUF files, quantized, spread over devices."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, GgufConfig

from parse_engine import Engine, ParseConfig
from parse_engine.backends.loading import ModelSource, load, read_context_window
from parse_engine.errors import ParseError, UnsupportedModelError
from tests.demo_source import write_tiny_gguf
from tests.tiny_folders import save_tiny

ASK = [{"role": "user", "content": "What is that?"}]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("loading") / "target")


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_tiny_gguf(path)
    return path


def test_gguf_file_gives_its_weights_unpacked(gguf: Path) -> None:
    reference = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent),
        gguf_file=gguf.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    # the vocabulary of this file has no words, so it cannot judge, but it can write
    model = load(ModelSource(model=str(gguf), dtype="float32"))
    ids = model.encode("abc ab")
    assert torch.equal(
        model.network(torch.tensor([ids])).logits, reference(torch.tensor([ids])).logits
    )
    assert load(ModelSource(model=gguf)).network.dtype == torch.bfloat16
    assert not hasattr(model.network.config, "quantization_config")
    engine = Engine.from_pretrained(
        gguf, gguf, dtype="float32", config=ParseConfig(labels=("a", "b"))
    )
    answer = engine.generate(ASK, max_new_tokens=6, temperature=0)
    prompt = torch.tensor([engine.target.render(ASK).ids])
    written = reference.generate(prompt, max_new_tokens=6, do_sample=False)[0, prompt.shape[1] :]
    assert answer.token_ids == tuple(i for i in written.tolist() if i not in engine.target.eos_ids)


def test_the_context_window_is_read_without_weights(gguf: Path, target: Path) -> None:
    for path in (gguf, target):
        source = ModelSource(model=path, local_files_only=True)
        assert read_context_window(source) == load(source).context_window


def test_weights_with_other_quantization_are_not_shared(gguf: Path) -> None:
    unpacked, packed = GgufConfig(dequantize=True), GgufConfig()
    models = [
        load(ModelSource(model=gguf, dtype="float32", quantization_config=config))
        for config in (None, unpacked, GgufConfig(dequantize=True), packed, packed)
    ]
    networks = [model.network for model in models]
    assert networks[0] is networks[1] is networks[2]
    assert networks[3] is networks[4]
    assert networks[3] is not networks[0]
    assert (packed.gguf_file, packed.dequantize) == (None, False)  # the caller's stays as it was


@pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is not None, reason="bitsandbytes is installed"
)
def test_quantization_without_its_package_names_the_package(target: Path) -> None:
    for prefix in ("", "draft_"):
        setting: Any = {f"{prefix}quantization_config": BitsAndBytesConfig(load_in_4bit=True)}
        with pytest.raises(ParseError, match=r"pip install.*bitsandbytes") as caught:
            Engine.from_pretrained(target, target, **setting)
        assert "Install what it names" in caught.value.hint


def test_quantized_weights_judge_within_their_rounding(target: Path) -> None:
    pytest.importorskip("bitsandbytes")
    eight = BitsAndBytesConfig(load_in_8bit=True)
    engine = Engine.from_pretrained(target, target, quantization_config=eight)
    assert engine.draft is not None
    assert type(engine.target.network.get_submodule("model.layers.0.mlp.up_proj")).__name__ == (
        "Linear8bitLt"
    )
    assert engine.draft.network is not engine.target.network
    assert engine.generate(ASK, max_new_tokens=4, temperature=0).text


def on_disk(layers: int) -> dict[str, str]:
    """A device map that leaves the last layers on disk, where accelerate fetches them in time."""
    device_map = {f"model.layers.{i}": "cpu" if i < 3 - layers else "disk" for i in range(3)}
    rest = ("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head")
    return device_map | dict.fromkeys(rest, "cpu")


@pytest.mark.parametrize("layers", [1, 3])
def test_layers_on_several_devices_give_the_same_answer(layers: int, target: Path) -> None:
    config = ParseConfig(threshold=0.3)
    spread = Engine.from_pretrained(target, target, device_map=on_disk(layers), config=config)
    whole = Engine.from_pretrained(target, target, device_map="cpu", config=config)
    assert {p.device.type for p in spread.target.network.parameters()} == {"cpu", "meta"}
    answers = [e.generate(ASK, max_new_tokens=24, temperature=0) for e in (spread, whole)]
    assert answers[0].token_ids == answers[1].token_ids
    assert answers[0].verdicts is not None
    assert answers[1].verdicts is not None
    assert answers[0].verdicts.p_correct == pytest.approx(answers[1].verdicts.p_correct, abs=1e-5)
    text = "The answer is that. It is the return of a model. So far so good."
    verdicts = [e.verify(ASK, text, cut_at=2, max_prefixes=8) for e in (spread, whole)]
    assert len(verdicts[0].p_correct) == 8
    assert verdicts[0].p_correct == pytest.approx(verdicts[1].p_correct, abs=1e-5)


def test_embeddings_on_disk_are_refused(target: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="first layer on disk"):
        Engine.from_pretrained(target, device_map={"": "disk"})
