"""Models that cannot be loaded, or not safely: each is refused with what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from parse_engine import Engine
from parse_engine.errors import ModelNotFoundError, ParseError, UnsupportedModelError
from tests.tiny_folders import changed_copy, edit_json, edit_weights, save_tiny


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("whole") / "model")


def without(pattern: str) -> Callable[[Path, Path], Path]:
    return lambda whole, place: changed_copy(whole, place, without=pattern)


def having(name: str, content: bytes) -> Callable[[Path, Path], Path]:
    return lambda whole, place: changed_copy(whole, place, files={name: content})


def config(**changes: Any) -> Callable[[Path, Path], Path]:
    """Change settings of config.json; None removes one."""

    def edit(content: dict[str, Any]) -> None:
        content.update(changes)
        for name in [name for name, value in changes.items() if value is None]:
            del content[name]

    return lambda whole, place: edit_json(changed_copy(whole, place) / "config.json", edit)


def weights(edit: Callable[[dict[str, Any]], object]) -> Callable[[Path, Path], Path]:
    return lambda whole, place: edit_weights(changed_copy(whole, place), edit)


def cut_short(whole: Path, place: Path) -> Path:
    content = (whole / "model.safetensors").read_bytes()
    return having("model.safetensors", content[: len(content) // 2])(whole, place)


def without_a_shard(whole: Path, place: Path) -> Path:
    """The index names a second file that is not there."""
    names = list(load_file(whole / "model.safetensors"))
    shards = {name: f"model-0000{1 + (name == names[0])}-of-00002.safetensors" for name in names}
    index = {"metadata": {"total_size": 1}, "weight_map": shards}
    folder = having("model.safetensors.index.json", json.dumps(index).encode())(whole, place)
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    return folder


def nothing(whole: Path, place: Path) -> Path:
    place.mkdir()
    return place


DAMAGED = "incomplete or damaged"
BROKEN: dict[str, tuple[Callable[[Path, Path], Path], type[ParseError], str, str]] = {
    "empty folder": (nothing, ModelNotFoundError, "no config.json", "Engine.demo"),
    "no config": (without("config.json"), ModelNotFoundError, "no config.json", "Engine.demo"),
    "no weights": (without("*.safetensors"), ModelNotFoundError, "no weights", "Engine.demo"),
    "no tokenizer": (
        without("*token*"),
        ModelNotFoundError,
        "no tokenizer",
        "tokenizer.save_pretrained",
    ),
    "no chat template": (
        without("*.jinja"),
        UnsupportedModelError,
        "no chat template",
        "chat_template",
    ),
    "tokenizer is no JSON": (
        having("tokenizer.json", b"{"),
        UnsupportedModelError,
        "The tokenizer of",
        "tokenizer.json",
    ),
    "tokenizer is empty": (
        having("tokenizer.json", b"{}"),
        UnsupportedModelError,
        "The tokenizer of",
        "tokenizer.json",
    ),
    "config is no JSON": (having("config.json", b"{"), UnsupportedModelError, "valid JSON", ""),
    "unknown kind": (config(model_type="nonesuch"), UnsupportedModelError, "`nonesuch`", ""),
    "kind not named": (config(model_type=None), UnsupportedModelError, "`model_type`", ""),
    "no language model": (config(model_type="vit"), UnsupportedModelError, "ViTConfig", ""),
    "weights are garbage": (
        having("model.safetensors", b"garbage" * 999),
        UnsupportedModelError,
        "header",
        DAMAGED,
    ),
    "weights are empty": (
        having("model.safetensors", b""),
        UnsupportedModelError,
        "header",
        DAMAGED,
    ),
    "weights are cut short": (cut_short, UnsupportedModelError, "incomplete", DAMAGED),
    "a shard is missing": (without_a_shard, UnsupportedModelError, "00002-of-00002", DAMAGED),
    "a weight is missing": (
        weights(lambda w: w.pop("model.layers.1.mlp.up_proj.weight")),
        UnsupportedModelError,
        r"1 missing \(model.layers.1.mlp.up_proj.weight\)",
        "config.json",
    ),
    "no output layer": (
        weights(lambda w: w.pop("lm_head.weight")),
        UnsupportedModelError,
        r"1 missing \(lm_head.weight\)",
        "config.json",
    ),
    "a bias that is not configured": (
        weights(lambda w: w.update({"model.layers.0.mlp.up_proj.bias": torch.zeros(64)})),
        UnsupportedModelError,
        r"1 left over \(model.layers.0.mlp.up_proj.bias\)",
        "config.json",
    ),
    "fewer layers configured": (
        config(num_hidden_layers=2, layer_types=["full_attention"] * 2),
        UnsupportedModelError,
        r"12 left over \(model.layers.2.*\.\.\.\)",
        "config.json",
    ),
    "more layers configured": (
        config(num_hidden_layers=4, layer_types=["full_attention"] * 4),
        UnsupportedModelError,
        r"12 missing \(model.layers.3.*\.\.\.\)",
        "config.json",
    ),
    "other shapes configured": (
        config(intermediate_size=96),
        UnsupportedModelError,
        r"9 of another shape \(model.layers.0.mlp.down_proj.weight, .*\.\.\.\)",
        "config.json",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_model_is_refused(case: str, whole: Path, tmp_path: Path) -> None:
    make, kind, problem, hint = BROKEN[case]
    folder = make(whole, tmp_path / "model")
    for models in ((folder,), (whole, folder)):
        if case == "no chat template" and len(models) == 2:
            continue  # found out when a draft is asked for
        with pytest.raises(ParseError, match=problem) as caught:
            Engine.from_pretrained(*models)
        assert type(caught.value) is kind
        assert caught.value.hint
        assert hint in caught.value.hint
        assert len(str(caught.value)) < 1000


def test_heads_that_the_network_does_not_have_do_no_harm(whole: Path, tmp_path: Path) -> None:
    extra = {"mtp.layers.0.weight": torch.zeros(2), "model.visual.patch.weight": torch.zeros(2)}
    Engine.from_pretrained(weights(lambda w: w.update(extra))(whole, tmp_path / "model"))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth"])
def test_pickled_weights_are_not_read(name: str, whole: Path, tmp_path: Path) -> None:
    folder = changed_copy(whole, tmp_path / "model", without="*.safetensors")
    torch.save(load_file(whole / "model.safetensors"), folder / name)
    with pytest.raises(UnsupportedModelError, match=f"{name} only, and no safetensors") as caught:
        Engine.from_pretrained(folder)
    assert "can run code" in caught.value.hint


@pytest.mark.parametrize("content", [b"", b"no GGUF at all" * 99])
def test_gguf_file_that_is_none(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(UnsupportedModelError, match=r"model\.gguf could not be loaded") as caught:
        Engine.from_pretrained(path)
    assert DAMAGED in caught.value.hint


def test_file_that_is_not_gguf(whole: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="is not a GGUF file"):
        Engine.from_pretrained(whole / "model.safetensors")


@pytest.mark.parametrize("device_map", ["nonsense", {"": "cuda:99"}])
def test_device_that_is_not_there(device_map: Any, whole: Path) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        Engine.from_pretrained(whole, device_map=device_map)
    assert "device_map" in caught.value.hint


def test_revision_of_a_local_model_is_refused(whole: Path) -> None:
    with pytest.raises(ParseError, match=r"revision is 'v2', but .* is on this machine"):
        Engine.from_pretrained(whole, revision="v2")


CUSTOM_CODE = """
from pathlib import Path
from transformers import Qwen2Config, Qwen2ForCausalLM

Path({mark!r}).touch()

class OwnConfig(Qwen2Config):
    model_type = "own"

class OwnModel(Qwen2ForCausalLM):
    config_class = OwnConfig
"""
LOAD_TWICE = """
import sys
from pathlib import Path
from parse_engine import Engine, ParseError

folder, mark = sys.argv[1:]
print(sys.stdin.isatty())
try:
    Engine.from_pretrained(folder)
except ParseError as error:
    print(type(error).__name__, Path(mark).exists(), error.hint)
engine = Engine.from_pretrained(folder, trust_remote_code=True)
print(type(engine.target.network).__name__, Path(mark).exists())
"""


def test_code_of_a_model_runs_only_when_it_is_trusted(whole: Path, tmp_path: Path) -> None:
    pty = pytest.importorskip("pty")
    mark = tmp_path / "was-run"
    own = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    folder = config(model_type="own", auto_map=own)(whole, tmp_path / "model")
    (folder / "own.py").write_text(CUSTOM_CODE.format(mark=str(mark)))
    terminal, other_end = pty.openpty()
    os.write(terminal, b"y\n")  # what a prompt would read
    with os.fdopen(other_end, "rb") as keyboard:
        done = subprocess.run(
            [sys.executable, "-c", LOAD_TWICE, folder, mark],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "HF_HOME": str(tmp_path)},
            stdin=keyboard,
            capture_output=True,
            text=True,
        )
    os.close(terminal)
    assert done.returncode == 0, done.stderr
    is_terminal, refused, trusted = done.stdout.splitlines()
    assert is_terminal == "True"
    assert refused.startswith("UnsupportedModelError False This model brings its own code.")
    assert "trust_remote_code=True" in refused
    assert trusted == "OwnModel True"
    assert "[y/N]" not in done.stderr
