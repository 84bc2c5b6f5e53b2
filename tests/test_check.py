"""The check at load notices a packed pass that is not what separate passes are."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from transformers import DynamicCache

from parse_engine import Engine
from parse_engine.backends.check import HEAD, SHORT, WHOLE
from parse_engine.backends.loading import ModelSource, load
from parse_engine.backends.model import Model
from parse_engine.demo import ensure_demo_pair
from parse_engine.errors import UnsupportedModelError
from parse_engine.pack import Packed, pack
from tests import test_pack
from tests.tiny_models import FULL_ATTENTION, tiny_model

Pack = Callable[[tuple[int, ...], tuple[int, ...], int, int], Packed]


def masked(change: Callable[[torch.Tensor, int, int], object]) -> Pack:
    """Pack as is right, and change the mask; gets the columns of context and of brief."""

    def wrong(suffix: tuple[int, ...], ends: tuple[int, ...], context: int, brief: int) -> Packed:
        packed = pack(suffix, ends, context, brief)
        change(packed.mask, context, brief)
        return packed

    return wrong


def show_suffixes_to_later_ones(mask: torch.Tensor, context: int, brief: int) -> None:
    rows = mask.shape[0]
    mask[:, context + brief :] = torch.ones(rows, rows, dtype=torch.bool).tril()


def at_the_end_of_the_context(
    suffix: tuple[int, ...], ends: tuple[int, ...], context: int, brief: int
) -> Packed:
    step = torch.arange(len(suffix)).repeat(len(ends))
    return replace(pack(suffix, ends, context, brief), positions=context + step)


def as_they_are_fed(
    suffix: tuple[int, ...], ends: tuple[int, ...], context: int, brief: int
) -> Packed:
    row = torch.arange(len(suffix) * len(ends))
    return replace(pack(suffix, ends, context, brief), positions=context + brief + row)


def one_too_far(suffix: tuple[int, ...], ends: tuple[int, ...], context: int, brief: int) -> Packed:
    packed = pack(suffix, ends, context, brief)
    return replace(packed, positions=packed.positions + 1)


WRONG: dict[str, Pack] = {
    "the rest of the draft leaks": masked(lambda mask, c, b: mask[:, :c].fill_(True)),
    "suffixes see each other": masked(show_suffixes_to_later_ones),
    "the brief is hidden": masked(lambda mask, c, b: mask[:, c : c + b].fill_(False)),
    "positions at the end of the context": at_the_end_of_the_context,
    "positions as they are fed": as_they_are_fed,
}
# In bf16 these are no more than rounding.
SUBTLE: dict[str, Pack] = {
    "positions one too far": one_too_far,
    "a token of the prefix is hidden": masked(lambda mask, c, b: mask[:, 1].fill_(False)),
}


def assert_noticed(target: Model, caplog: pytest.LogCaptureFixture) -> None:
    """The engine says what was wrong, and judges in another way, which is right."""
    caplog.clear()
    engine = Engine(target)
    assert (engine.path, engine.layout) != ("packed", "brief")
    assert "gave other logits than separate passes" in caplog.text


def cast(model: Model, dtype: torch.dtype) -> Model:
    return replace(model, network=copy.deepcopy(model.network).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", FULL_ATTENTION)
def test_a_right_model_passes(kind: str, attention: str, dtype: torch.dtype) -> None:
    Engine(cast(tiny_model(kind, attention=attention), dtype))


@pytest.mark.parametrize("wrong", WRONG | SUBTLE)
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3_moe"])
def test_each_wrong_pass_is_noticed(
    kind: str, wrong: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("parse_engine.reading.pack", (WRONG | SUBTLE)[wrong])
    assert_noticed(tiny_model(kind), caplog)
    with pytest.raises(AssertionError):  # by the test of exactness too
        test_pack.test_packed_pass_equals_separate_passes_with_a_private_brief(kind, "sdpa")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
# That tiny models hardly notice their neighbours is no fault of the check: see the real ones.
@pytest.mark.parametrize("wrong", [name for name in WRONG if "each other" not in name])
def test_wrong_passes_are_noticed_behind_rounding(
    wrong: str,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    target = cast(tiny_model("llama"), dtype)
    assert Engine(target).layout == "brief"
    monkeypatch.setattr("parse_engine.reading.pack", WRONG[wrong])
    assert_noticed(target, caplog)


def test_bool_mask_for_eager_attention_is_noticed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert Engine(tiny_model(attention="eager")).layout == "brief"
    monkeypatch.setattr(Model, "_attention_mask", lambda self, mask: mask[None, None])
    assert Engine(tiny_model(attention="sdpa")).layout == "brief"
    assert_noticed(tiny_model(attention="eager"), caplog)


def test_cache_that_cannot_be_cropped_is_noticed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(DynamicCache, "crop", lambda self, length: None)
    assert_noticed(tiny_model(), caplog)


def test_logits_that_are_no_numbers_are_noticed() -> None:
    target = cast(tiny_model(), torch.float32)
    with torch.no_grad():
        target.network.get_output_embeddings().weight[0] = torch.nan
    with pytest.raises(UnsupportedModelError, match="differ by nan"):
        Engine(target)


def test_little_is_fed_at_load() -> None:
    """Loading waits for it: seven passes over few tokens, beside that of the brief."""
    log: list[int] = []
    target = tiny_model()
    handle = target.network.register_forward_pre_hook(
        lambda module, args, kwargs: log.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    try:
        engine = Engine(target)
    finally:
        handle.remove()
    suffix = len(engine.ability.judge.suffix_ids)
    brief = len(engine.ability.judge.brief_ids)
    assert log == [brief, WHOLE, 2 * suffix, SHORT, suffix, suffix, HEAD, HEAD]


@pytest.fixture(scope="module", params=["draft", "target"])
def real(request: pytest.FixtureRequest) -> Model:
    pair = ensure_demo_pair(progress=False)
    return load(ModelSource(model=getattr(pair, request.param), local_files_only=True))


@pytest.mark.real
def test_a_real_model_in_bf16_passes(real: Model) -> None:
    assert real.network.dtype == torch.bfloat16
    Engine(real)


@pytest.mark.real
@pytest.mark.parametrize("wrong", WRONG)
def test_each_wrong_pass_is_noticed_in_bf16(
    wrong: str,
    real: Model,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("parse_engine.reading.pack", WRONG[wrong])
    assert_noticed(real, caplog)
