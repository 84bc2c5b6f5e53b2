"""Loading: folders, settings, shared weights."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GgufConfig, PreTrainedModel

from parse_engine import Engine, ParseConfig
from parse_engine.backends.loading import ModelSource, load, locate, sources
from parse_engine.errors import (
    InvalidRequestError,
    ModelNotFoundError,
    UnsupportedModelError,
)
from tests.tiny_folders import changed_copy, save_tiny
from tests.tiny_models import tiny_model

ASK = [{"role": "user", "content": "What is that?"}]
IN_A_STYLE = "{{ style | default('plain') }}|"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("loading") / "target")


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("loading") / "draft", seed=1)


def same_weights(one: PreTrainedModel, other: PreTrainedModel) -> bool:
    pairs = zip(one.state_dict().items(), other.state_dict().items(), strict=True)
    return all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)


@pytest.mark.parametrize("form", [str, Path])
def test_two_folders_answer_like_the_models_that_were_saved(
    form: Any, target: Path, draft: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    engine = Engine.from_pretrained(form(target), form(draft), config=ParseConfig(threshold=0.3))
    assert engine.draft is not None
    assert engine.target.name == str(target)
    assert same_weights(engine.target.network, tiny_model().network)
    assert same_weights(engine.draft.network, tiny_model(seed=1).network)
    saved = Engine(tiny_model(), tiny_model(seed=1), ParseConfig(threshold=0.3))
    answer, expected = (e.generate(ASK, max_new_tokens=12, temperature=0) for e in (engine, saved))
    assert answer.token_ids == expected.token_ids
    assert answer.verdicts == expected.verdicts
    assert capfd.readouterr().out == ""  # progress of loading is shown on stderr


def test_home_and_relative_paths(
    target: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(target.parent))
    monkeypatch.chdir(target.parent)
    network = load(ModelSource(model=target)).network
    for name in ("~/target", "./target", "target", Path("~/target"), Path("target")):
        assert load(ModelSource(model=name)).network is network


@pytest.mark.parametrize("dtype", ["float32", torch.float32, "bfloat16", torch.bfloat16])
def test_dtype(dtype: Any, target: Path) -> None:
    model = load(ModelSource(model=target, dtype=dtype))
    assert str(model.network.dtype).removeprefix("torch.") in str(dtype)
    Engine(model)


def test_dtype_auto_is_that_of_the_checkpoint(target: Path, tmp_path: Path) -> None:
    half = load(ModelSource(model=target, dtype="bfloat16"))
    half.network.save_pretrained(tmp_path / "half")
    half.tokenizer.save_pretrained(tmp_path / "half")
    assert load(ModelSource(model=tmp_path / "half")).network.dtype == torch.bfloat16
    assert load(ModelSource(model=target)).network.dtype == torch.float32


@pytest.mark.parametrize("device_map", ["auto", None, "cpu", {"": "cpu"}])
def test_device_map(device_map: Any, target: Path) -> None:
    engine = Engine.from_pretrained(target, target, device_map=device_map)
    assert engine.target.network.device == torch.device("cpu")
    assert engine.generate(ASK, max_new_tokens=4, temperature=0).text


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_attention(attention: str, target: Path) -> None:
    engine = Engine.from_pretrained(
        target, target, attn_implementation=attention, draft_attn_implementation="sdpa"
    )
    assert engine.draft is not None
    assert engine.target.network.config._attn_implementation == attention
    assert engine.draft.network.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("attention", ["flash_attention_2", "flash_attention_3", "flex_attention"])
def test_attention_without_a_place_for_the_mask_is_refused_before_loading(attention: str) -> None:
    with pytest.raises(UnsupportedModelError, match=attention) as caught:
        Engine.from_pretrained("/nowhere", attn_implementation=attention)
    assert "sdpa, eager" in caught.value.hint
    assert "draft_attn_implementation" in caught.value.hint


def test_template_arguments_reach_each_template(target: Path, tmp_path: Path) -> None:
    style = changed_copy(target, tmp_path / "style")
    template = style / "chat_template.jinja"
    template.write_text(IN_A_STYLE + template.read_text("utf-8"), "utf-8")

    def styles(**options: Any) -> tuple[str, str]:
        engine = Engine.from_pretrained(style, style, **options)
        assert engine.draft is not None
        prompts = engine.target.render(ASK), engine.draft.render(ASK)
        return prompts[0].text.split("|")[0], prompts[1].text.split("|")[0]

    assert styles() == ("plain", "plain")
    both = {"style": "brief"}
    assert styles(chat_template_kwargs=both) == ("brief", "brief")
    own = {"style": "long"}
    assert styles(draft_chat_template_kwargs=own) == ("plain", "long")
    assert styles(chat_template_kwargs=both, draft_chat_template_kwargs={}) == ("brief", "plain")


def test_draft_follows_the_target_in_some_settings_only() -> None:
    loading: dict[str, Any] = {
        "dtype": "float32",
        "device_map": "cpu",
        "local_files_only": True,
        "chat_template_kwargs": {"a": 1},
        "revision": "v2",
        "attn_implementation": "eager",
        "quantization_config": GgufConfig(),
        "trust_remote_code": True,
    }
    target, draft = sources("org/t", "org/d", loading)  # type: ignore[arg-type]
    assert target == ModelSource(model="org/t", **loading)
    assert draft == ModelSource(
        model="org/d",
        dtype="float32",
        device_map="cpu",
        local_files_only=True,
        chat_template_kwargs={"a": 1},
    )
    own = {"dtype": "bfloat16", "revision": "v3", "device_map": None, "trust_remote_code": True}
    _, draft = sources("t", "d", loading | {f"draft_{k}": v for k, v in own.items()})  # type: ignore[arg-type]
    assert draft is not None
    assert {name: getattr(draft, name) for name in own} == own
    assert sources("t", None, {"draft_dtype": "float32"})[1] is None


def test_unknown_setting_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidRequestError, match="'load_in_4bit'") as caught:
        Engine.from_pretrained("t", load_in_4bit=True)  # type: ignore[call-arg]
    for name in ("dtype", "quantization_config", "draft_dtype", "draft_trust_remote_code"):
        assert name in caught.value.hint


@pytest.mark.parametrize(
    "setting",
    [{"dtype": "float17"}, {"dtype": 16}, {"dtype": "nn"}, {"chat_template_kwargs": "thinking"}],
)
def test_wrong_value_is_refused_and_named(setting: Any) -> None:
    for prefix in ("", "draft_"):
        options = {f"{prefix}{name}": value for name, value in setting.items()}
        with pytest.raises(InvalidRequestError, match=repr(next(iter(setting.values())))):
            Engine.from_pretrained("t", "d", **options)


@pytest.mark.parametrize("model", ["", "  ", None, 3])
def test_model_must_be_named(model: Any) -> None:
    with pytest.raises(InvalidRequestError, match="The model is"):
        Engine.from_pretrained(model)


def test_weights_are_shared_where_they_are_the_same(target: Path, draft: Path) -> None:
    one = Engine.from_pretrained(target, draft)
    two = Engine.from_pretrained(str(target), draft, config=ParseConfig(threshold=0.1))
    other = Engine.from_pretrained(target, target, dtype="bfloat16", draft_dtype="float32")
    spelled = Engine.from_pretrained(target, dtype=torch.bfloat16)
    assert one.draft is not None
    assert two.draft is not None
    assert other.draft is not None
    assert one.target.network is two.target.network
    assert one.draft.network is two.draft.network
    assert one.target.network is not one.draft.network
    assert other.target.network is not one.target.network
    assert other.target.network is not other.draft.network
    assert other.target.network is spelled.target.network


def test_engines_that_start_together_read_the_weights_once(target: Path, tmp_path: Path) -> None:
    folder = changed_copy(target, tmp_path / "alone")
    start = threading.Barrier(6)
    networks: list[PreTrainedModel] = []

    def run() -> None:
        start.wait()
        networks.append(load(ModelSource(model=folder)).network)

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(networks) == 6
    assert len(set(map(id, networks))) == 1


def test_weights_are_freed_with_the_last_engine(target: Path, tmp_path: Path) -> None:
    folder = changed_copy(target, tmp_path / "freed")
    engines = [Engine.from_pretrained(folder, folder) for _ in range(2)]
    engines[0].generate(ASK, max_new_tokens=4)
    network = weakref.ref(engines[0].target.network)
    del engines[0]
    gc.collect()
    assert network() is engines[0].target.network
    engines.clear()
    gc.collect()
    assert network() is None


def test_model_saved_anew_at_the_same_place_is_another_one(target: Path, tmp_path: Path) -> None:
    folder = changed_copy(target, tmp_path / "anew")
    before = load(ModelSource(model=folder))
    tiny_model(seed=2).network.save_pretrained(folder)
    after = load(ModelSource(model=folder))
    assert same_weights(before.network, tiny_model().network)
    assert same_weights(after.network, tiny_model(seed=2).network)


@pytest.mark.parametrize(
    ("model", "found"),
    [
        ("org/name", ("org/name", None)),
        ("name", ("name", None)),
        ("org/name/file.gguf", ("org/name", "file.gguf")),
        ("org/name/q4/file.gguf", ("org/name", "q4/file.gguf")),
        ("{folder}", ("{folder}", None)),
        ("{folder}/file.gguf", ("{folder}", "file.gguf")),
    ],
)
def test_what_a_name_means(model: str, found: tuple[str, str | None], tmp_path: Path) -> None:
    (tmp_path / "file.gguf").touch()
    place, file = found
    expected = (place.format(folder=tmp_path), file)
    assert locate(model.format(folder=tmp_path)) == expected


@pytest.mark.parametrize(
    "model",
    [
        *("/no/such", "./such", "../such", "~/such", "such.gguf", "a/such.gguf", "a/b/c"),
        *("/no/such.gguf", Path("such"), Path("org/name"), Path("org/name/file.gguf")),
    ],
)
def test_path_without_a_file_is_refused_with_the_ways_out(model: Any) -> None:
    with pytest.raises(ModelNotFoundError, match="There is no file or folder") as caught:
        Engine.from_pretrained(model)
    for way in ("local folder", ".gguf", "Engine.demo()"):
        assert way in caught.value.hint
