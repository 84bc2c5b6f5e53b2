"""Life in an application: settings, loading, copies, caches, errors."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from langchain_core import exceptions as langchain
from langchain_core.caches import InMemoryCache
from langchain_core.language_models import BaseChatModel
from langchain_core.load import dumpd, dumps, load, loads
from langchain_core.rate_limiters import BaseRateLimiter, InMemoryRateLimiter
from langchain_core.runnables import ConfigurableField
from pydantic import ValidationError

from parse_engine import Engine, ParseConfig
from parse_engine import errors as parse
from parse_engine.backends.source import LoadOptions
from parse_engine.options import WORDING
from parse_integrations import engines
from parse_integrations.langchain import ChatParse
from parse_integrations.langchain.settings import ALGORITHM, LOADING
from tests.calibrations import calibrated
from tests.langchain.llms import LINES, replying, saying, undecided
from tests.tiny_folders import save_tiny
from tests.tiny_models import tiny_model

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    made = [save_tiny(tmp_path_factory.mktemp("model"), seed=seed) for seed in (0, 1)]
    return str(made[0]), str(made[1])


@pytest.fixture
def llm(folders: tuple[str, str]) -> Iterator[ChatParse]:
    model, draft_model = folders
    made = ChatParse(
        model=model, draft_model=draft_model, local_files_only=True, max_tokens=6, threshold=0.3
    )
    yield made
    made.close()


def test_models_are_loaded_at_the_first_call_and_let_go_by_close(llm: ChatParse) -> None:
    assert not engines._engines
    answer = llm.invoke("Hi")
    assert answer.response_metadata["model_name"] == llm.model
    assert answer.response_metadata["parse_drafted_tokens"] > 0
    assert len(engines._engines) == 1
    llm.close()
    assert not engines._engines
    assert llm.invoke("Hi").text == answer.text
    llm.close()
    llm.close()


def test_load_says_how_much_goes_in(llm: ChatParse) -> None:
    assert "max_input_tokens" not in (llm.profile or {})
    assert llm.load() is llm
    assert (llm.profile or {})["max_input_tokens"] == 4096


def test_two_on_the_same_models_load_them_once(llm: ChatParse, folders: tuple[str, str]) -> None:
    other = ChatParse(
        model=folders[0], draft_model=folders[1], local_files_only=True, threshold=0.9, seed=3
    )
    assert llm._engine() is other._engine()
    swapped = ChatParse(model=folders[1], draft_model=folders[0], local_files_only=True)
    engine = swapped._engine()
    assert engine.draft is not None
    assert engine.draft.network is llm._engine().target.network
    swapped.close()


def test_loading_settings_reach_both_models(folders: tuple[str, str]) -> None:
    made = ChatParse(
        model=folders[0],
        draft_model=folders[1],
        dtype=torch.bfloat16,  # type: ignore[arg-type]
        draft_dtype="float32",
        attn_implementation="eager",
        chat_template_kwargs={"custom": True},
    )
    engine = made._engine()
    assert engine.draft is not None
    assert engine.target.network.dtype == torch.bfloat16
    assert engine.draft.network.dtype == torch.float32
    assert engine.target.network.config._attn_implementation == "eager"
    assert engine.target.template_kwargs == engine.draft.template_kwargs == {"custom": True}
    made.close()


def test_every_setting_of_the_engine_is_one_of_chatparse() -> None:
    known = set(ChatParse.model_fields)
    assert {field.name for field in fields(ParseConfig)} == {*ALGORITHM, *WORDING} <= known
    assert set(LoadOptions.__annotations__) == set(LOADING) <= known
    for name in ChatParse.model_fields:
        if name not in BaseChatModel.model_fields and not name.startswith("draft_"):
            assert name in (ChatParse.__doc__ or ""), name


def test_models_load_once_when_many_threads_ask(llm: ChatParse) -> None:
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(llm._engine())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(map(id, found))) == 1


def test_calibrations_that_do_not_fit_are_of_langchains_family() -> None:
    engine, made = calibrated()
    foreign = replace(made, binding=replace(made.binding, target_fingerprint="other"))
    llm = ChatParse(engine=engine, max_tokens=9)
    for wrong in (foreign, "none.json"):
        with pytest.raises(parse.CalibrationError) as refused:
            llm.invoke("Hi", calibration=wrong)
        assert isinstance(refused.value, langchain.ModelInvalidRequestError)


def test_a_calibration_is_kept_as_what_it_says(tmp_path: Path) -> None:
    engine, made = calibrated()
    path = tmp_path / "calibration.json"
    made.save(path)
    plain = {"model": "m", "draft_model": "d"}
    llms = [ChatParse(**plain, calibration=one) for one in (path, str(path), made, made.as_dict())]
    assert all(llm.calibration == made.as_dict() for llm in llms)
    settings: Any = {"allowed_objects": [ChatParse], "valid_namespaces": ["parse_integrations"]}
    assert load(dumpd(llms[0]), **settings) == llms[0] == pickle.loads(pickle.dumps(llms[0]))
    # a cache tells two calibrations apart, also where one took the other's place
    other = replace(made, threshold=0.41)
    said = {ChatParse(**plain, calibration=one)._get_llm_string() for one in (made, other)}
    bound = ChatParse(**plain)
    said.add(bound._get_llm_string(calibration=path))
    other.save(path)
    said.add(bound._get_llm_string(calibration=path))
    assert len(said) == 2  # given to the model or to the call, it is the same
    with pytest.raises(ValidationError, match="format"):
        ChatParse(**plain, calibration={})
    answer = ChatParse(engine=engine, max_tokens=9).invoke("Hi", calibration=made)
    assert answer.response_metadata["parse_verdict_kind"] == "calibrated"
    with pytest.raises(parse.CalibrationError, match="target"):
        ChatParse(engine=Engine(tiny_model(seed=1), tiny_model(seed=0)), calibration=made).invoke(
            "Hi"
        )


def test_pickle_before_and_after_loading(llm: ChatParse) -> None:
    for _ in range(2):
        again = pickle.loads(pickle.dumps(llm))
        assert again == llm
        assert again.invoke("Hi").text == llm.invoke("Hi").text
        llm.load()


def test_copies_share_the_models(llm: ChatParse) -> None:
    llm.load()
    for made in (copy.deepcopy(llm), copy.copy(llm), llm.model_copy(update={"threshold": 1.0})):
        assert made._engine() is llm._engine()
    limiter = InMemoryRateLimiter()  # it has a lock
    ready = saying(LINES, rate_limiter=limiter)
    assert copy.deepcopy(ready)._engine() is ready._engine()
    assert copy.deepcopy(ready).rate_limiter is limiter
    with pytest.raises(parse.InvalidRequestError, match="pickled"):
        pickle.dumps(ready)


def test_round_trip_through_langchains_serialization(llm: ChatParse) -> None:
    made = llm.model_copy(update={"stop": ["x"], "labels": ("Yes", "No"), "dtype": "float32"})
    settings: Any = {"allowed_objects": [ChatParse], "valid_namespaces": ["parse_integrations"]}
    assert load(dumpd(made), **settings) == made
    assert loads(dumps(made), **settings).asdict() == made.asdict()
    assert "secret" not in dumps(ChatParse(engine=made._engine(), api_key="secret"))  # type: ignore[arg-type]
    assert dumpd(saying(LINES))["type"] == "not_implemented"


def test_cache_keys_tell_configurations_apart(folders: tuple[str, str]) -> None:
    model, draft_model = folders
    base: dict[str, Any] = {"model": model, "draft_model": draft_model}
    changes: list[dict[str, Any]] = [
        {},
        {"threshold": 0.5},
        {"accept_rule": "longest"},
        {"revision": "v1"},
        {"draft_revision": "v1"},
        {"dtype": "float32"},
        {"temperature": 1.0},
        {"stop": ["x"]},
        {"mode": "target"},
        {"draft_model": model},
        {"model": draft_model},
        {"tool_format": "mistral"},
    ]
    keys = [ChatParse(**{**base, **change})._get_llm_string() for change in changes]
    keys += [ChatParse(**base)._get_llm_string(stop=["y"], threshold=0.2)]
    keys += [saying(LINES)._get_llm_string(), undecided()._get_llm_string()]
    keys += [undecided(0.2)._get_llm_string()]
    assert len(set(keys)) == len(keys)


def test_cache_answers_the_same_question_of_the_same_model_only() -> None:
    cache = InMemoryCache()
    first, prompts = replying("a", "b", "c", cache=cache)
    assert [first.invoke("Hi").text for _ in range(2)] == ["a", "a"]
    assert first.invoke("Hi", threshold=0.1).text == "b"
    assert "".join(chunk.text for chunk in first.stream("Hi")) == "c"  # streams are not cached
    assert len(prompts) == 3


class Limiter(BaseRateLimiter):
    asked = 0

    def acquire(self, *, blocking: bool = True) -> bool:
        self.asked += 1
        return True

    async def aacquire(self, *, blocking: bool = True) -> bool:
        self.asked += 1
        return True


async def test_rate_limiter_is_asked_once_a_call() -> None:
    limiter = Limiter()
    llm = saying(LINES, rate_limiter=limiter)
    llm.invoke("Hi")
    list(llm.stream("Hi"))
    await llm.ainvoke("Hi")
    assert limiter.asked == 3


def test_settings_of_one_call() -> None:
    llm = undecided(max_tokens=20)
    assert llm.invoke("Hi", max_tokens=3).usage_metadata["output_tokens"] == 3  # type: ignore[index]
    given: dict[str, Any] = {"threshold": 0.0, "cut_at": "sentence", "accept_rule": "longest"}
    stats = llm.invoke("Hi", **given).response_metadata
    assert stats["parse_threshold"] == 0.0
    assert stats["parse_accepted_fraction"] == 1.0
    assert llm.bind(mode="target").invoke("Hi").response_metadata["parse_drafted_tokens"] == 0
    sampled = llm.bind(temperature=2.0, top_p=0.9, top_k=0)
    one, two, other = (sampled.invoke("Hi", seed=seed).text for seed in (1, 1, 2))
    assert one == two != other
    unset: Any = dict.fromkeys(["threshold", "temperature", "max_tokens", "tools", "tool_choice"])
    assert llm.invoke("Hi", **unset).text == llm.invoke("Hi").text


def test_stop_of_the_model_and_of_the_call() -> None:
    assert saying(LINES).bind(stop=["ine.\nAn"]).invoke("Hi").text == "One l"
    llm = saying(LINES, stop=["Another"])
    assert llm.invoke("Hi").text == "One line.\n"
    assert llm.invoke("Hi", stop=["line"]).text == "One "
    assert llm.invoke("Hi", stop=[]).text == LINES
    assert "".join(chunk.text for chunk in llm.stream("Hi")) == "One line.\n"


def test_model_of_one_call(llm: ChatParse, folders: tuple[str, str]) -> None:
    answer = llm.invoke("Hi", model=folders[1])
    assert answer.response_metadata["model_name"] == folders[1]
    assert llm.invoke("Hi").response_metadata["model_name"] == folders[0]
    with pytest.raises(parse.InvalidRequestError, match="has loaded"):
        saying(LINES).invoke("Hi", model="other")
    engines._engines.clear()


def test_configurable_fields() -> None:
    llm = undecided(max_tokens=20).configurable_fields(
        max_tokens=ConfigurableField("most"), threshold=ConfigurableField("tau")
    )
    answer = llm.invoke("Hi", config={"configurable": {"most": 4, "tau": 0.25}})
    assert answer.usage_metadata["output_tokens"] == 4  # type: ignore[index]
    assert answer.response_metadata["parse_threshold"] == 0.25


def test_tracing_parameters() -> None:
    llm = ChatParse(model="org/a", draft_model="org/b", temperature=0.5, max_tokens=9, stop=["x"])
    params = llm._get_ls_params()
    assert params == {
        "ls_provider": "parse",
        "ls_model_type": "chat",
        "ls_model_name": "org/a",
        "ls_temperature": 0.5,
        "ls_max_tokens": 9,
        "ls_stop": ["x"],
    }
    changed = llm._get_ls_params(stop=["y"], temperature=1.0, model="org/c")
    assert changed["ls_stop"] == ["y"]
    assert changed["ls_temperature"] == 1.0
    assert changed["ls_model_name"] == "org/c"
    assert saying(LINES)._get_ls_params()["ls_model_name"] == "tiny-qwen2-0"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "model"),
        ({"model": "a"}, "draft_model is missing"),
        ({"model": "a", "draft_model": "b", "engine": object()}, "engine"),
        ({"model": "a", "draft_model": "b", "threshold": 2}, "threshold is 2"),
        ({"model": "a", "draft_model": "b", "treshold": 0.5}, "treshold"),
        ({"model": "a", "draft_model": "b", "temperature": -1}, "temperature"),
        ({"model": "a", "draft_model": "b", "max_tokens": 0}, "max_tokens is 0"),
        ({"model": "a", "draft_model": "b", "stop": [""]}, "stop"),
        ({"model": "a", "draft_model": "b", "timeout": 0}, "timeout"),
        ({"model": "a", "draft_model": "b", "labels": ("x", "x")}, "labels"),
        ({"model": "a", "draft_model": "b", "threshold": "0.5"}, "threshold"),
        ({"model": "a", "draft_model": "b", "temperature": True}, "temperature"),
        ({"model": "a", "draft_model": "b", "seed": "1"}, "seed"),
        ({"model": "a", "draft_model": "b", "cut_at": True}, "cut_at"),
        ({"model": "a", "draft_model": "b", "signals": "yes"}, "signals"),
    ],
)
def test_wrong_settings_are_refused_when_the_model_is_made(
    settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValidationError, match=said):
        ChatParse(**settings)


def test_loading_settings_beside_an_engine_are_refused() -> None:
    with pytest.raises(ValidationError, match="dtype"):
        saying(LINES, dtype="float32")


def test_unknown_settings_of_a_call_are_refused() -> None:
    with pytest.raises(parse.InvalidRequestError, match="treshold") as refused:
        saying(LINES).invoke("Hi", treshold=0.5)
    assert isinstance(refused.value, langchain.ModelInvalidRequestError)
    assert refused.value.hint


async def test_errors_are_of_both_families(tmp_path: Path) -> None:
    missing = ChatParse(
        model=str(tmp_path / "none"), draft_model=str(tmp_path / "none"), local_files_only=True
    )
    for call in (missing.load, lambda: missing.invoke("Hi"), lambda: list(missing.stream("Hi"))):
        with pytest.raises(langchain.ModelNotFoundError) as caught:
            call()
        assert isinstance(caught.value, parse.ModelNotFoundError)
    with pytest.raises(langchain.ModelNotFoundError) as caught:
        await missing.ainvoke("Hi")
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is type(caught.value)
    assert not caught.value.is_retryable


async def test_timeout_stops_the_models() -> None:
    llm = undecided(max_tokens=4000, timeout=1e-6)
    with pytest.raises(langchain.ModelTimeoutError, match="not finished") as caught:
        llm.invoke("Hi")
    assert isinstance(caught.value, parse.ParseError)
    with pytest.raises(TimeoutError):
        await llm.ainvoke("Hi")
    assert llm.invoke("Hi", timeout=600, max_tokens=3).text


def test_fallbacks_of_langchain_take_over() -> None:
    llm = saying("never", timeout=1e-6).with_fallbacks([saying(LINES)])
    assert llm.invoke("Hi").text == LINES


def test_a_target_that_cannot_judge_is_told_at_load(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = parse.UnsupportedModelError("It has windows.", "Use another.")
    engine = Engine(tiny_model(), tiny_model(seed=1))
    engine._found = refused
    monkeypatch.setattr(Engine, "from_pretrained", lambda **given: engine)
    llm = ChatParse(model="windowed", draft_model="b", max_tokens=3)
    with pytest.raises(langchain.ModelInvalidRequestError, match="windows"):
        llm.load()
    with pytest.raises(parse.UnsupportedModelError, match="windows"):
        llm.invoke("Hi")
    assert llm.invoke("Hi", mode="target").text
    llm.close()


def test_importing_loads_neither_torch_nor_the_other_framework() -> None:
    unwanted = "{'torch', 'transformers', 'llama_index', 'llguidance'}"
    code = f"""
import sys
import parse_integrations.langchain as pl
llm = pl.ChatParse(model="a", draft_model="b", threshold=0.5)
llm.bind_tools([dict(title="f", description="d", type="object", properties=dict())])
assert not {unwanted} & set(sys.modules), {unwanted} & set(sys.modules)
import parse_integrations.calls, parse_integrations.engines
assert not {unwanted} & set(sys.modules), {unwanted} & set(sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_without_langchain_the_import_says_what_to_install() -> None:
    code = """
import sys
sys.modules["langchain_core"] = None
import parse_integrations.calls, parse_integrations.messages, parse_integrations.structured
try:
    import parse_integrations.langchain
except ImportError as error:
    assert "pip install 'parse-llm[langchain]'" in str(error)
else:
    raise AssertionError
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_nothing_is_asked_of_the_network(llm: ChatParse, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    def refuse(*args: Any, **given: Any) -> None:
        raise AssertionError("a network call")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert llm.invoke("Hi").text
