"""Life in an application: settings, loading, what LlamaIndex is told, copies, errors."""

from __future__ import annotations

import copy
import importlib
import json
import pickle
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from llama_index.core import Settings
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.callbacks import CallbackManager, TokenCountingHandler
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.rate_limiter import TokenBucketRateLimiter
from pydantic import ValidationError

from parse_engine import Engine, ParseConfig
from parse_engine import errors as parse
from parse_engine.backends.source import LoadOptions
from parse_engine.options import WORDING
from parse_integrations import engines
from parse_integrations.llama_index import CallTimeoutError, ParseLLM, ParseMetadata, ToolFormat
from parse_integrations.settings import ALGORITHM, LOADING
from tests.llama_index.llms import LINES, saying, undecided
from tests.tiny_folders import save_tiny
from tests.tiny_models import tiny_model

ROOT = Path(__file__).parent.parent.parent
HI = [ChatMessage(content="Hi")]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    made = [save_tiny(tmp_path_factory.mktemp("model"), seed=seed) for seed in (0, 1)]
    return str(made[0]), str(made[1])


@pytest.fixture
def llm(folders: tuple[str, str]) -> Iterator[ParseLLM]:
    model, draft_model = folders
    made = ParseLLM(
        model=model, draft_model=draft_model, local_files_only=True, max_tokens=6, threshold=0.3
    )
    yield made
    made.close()


def test_models_are_loaded_at_the_first_call_and_let_go_by_close(llm: ParseLLM) -> None:
    assert not engines._engines
    text = llm.complete("Hi").text
    assert len(engines._engines) == 1
    llm.close()
    assert not engines._engines
    assert llm.complete("Hi").text == text
    assert llm.load() is llm
    llm.close()
    llm.close()


def test_two_on_the_same_models_load_them_once(llm: ParseLLM, folders: tuple[str, str]) -> None:
    other = ParseLLM(model=folders[0], draft_model=folders[1], local_files_only=True, seed=3)
    assert llm._engine() is other._engine()


def test_loading_settings_reach_both_models(folders: tuple[str, str]) -> None:
    made = ParseLLM(
        model=folders[0],
        draft_model=folders[1],
        dtype=torch.bfloat16,  # type: ignore[arg-type]
        draft_dtype="float32",
        chat_template_kwargs={"custom": True},
    )
    engine = made._engine()
    assert engine.draft is not None
    assert engine.target.network.dtype == torch.bfloat16
    assert engine.draft.network.dtype == torch.float32
    assert engine.target.template_kwargs == {"custom": True}
    made.close()


def test_every_setting_of_the_engine_is_one_of_parsellm() -> None:
    known = set(ParseLLM.model_fields)
    assert {field.name for field in fields(ParseConfig)} == {*ALGORITHM, *WORDING} <= known
    assert set(LoadOptions.__annotations__) == set(LOADING) <= known
    for name in ParseLLM.model_fields:
        if name not in FunctionCallingLLM.model_fields and not name.startswith("draft_"):
            assert name in (ParseLLM.__doc__ or ""), name


def test_metadata_need_no_weights(llm: ParseLLM, folders: tuple[str, str]) -> None:
    """And events, which are sent from within the event loop, do not even need a file."""
    payload = llm.to_payload()
    assert (payload["model_name"], payload["draft_model_name"]) == folders
    assert "context_window" not in payload
    metadata = llm.metadata
    assert metadata == ParseMetadata(
        context_window=4096,
        num_output=6,
        is_chat_model=True,
        is_function_calling_model=True,
        model_name=folders[0],
        draft_model_name=folders[1],
    )
    assert not engines._engines
    assert llm.to_payload() == {"class_name": "parse_llm", **metadata.model_dump()}
    llm.load()
    assert llm.metadata == metadata
    assert ParseLLM(model="none/none", mode="target", context_window=99).metadata.num_output == 24


def test_metadata_of_a_model_that_is_not_there(tmp_path: Path) -> None:
    missing = ParseLLM(model=str(tmp_path / "none"), mode="target", local_files_only=True)
    assert missing.to_payload()["draft_model_name"] is None
    with pytest.raises(parse.ModelNotFoundError):
        _ = missing.metadata
    (tmp_path / "config.json").write_text("{")
    damaged = ParseLLM(model=str(tmp_path), mode="target", local_files_only=True)
    with pytest.raises(parse.ParseError, match="configuration"):
        _ = damaged.metadata


@pytest.mark.usefixtures("llama_index_globals")
def test_the_tokenizer_is_the_targets(llm: ParseLLM) -> None:
    Settings.tokenizer = llm.tokenizer
    assert not engines._engines
    with pytest.raises(parse.InvalidRequestError, match="half a character"):
        llm.tokenizer("Hi \ud800")
    assert Settings.tokenizer("Hello world") == list(llm._engine().target.encode("Hello world"))


def test_settings_of_one_call() -> None:
    llm = undecided(max_tokens=20)
    assert llm.complete("Hi", max_tokens=3).raw["usage"]["completion_tokens"] == 3
    stats = llm.chat(HI, threshold=0.0, cut_at="sentence", accept_rule="longest").raw["parse"]
    assert stats["threshold"] == 0.0
    assert stats["accepted_fraction"] == 1.0
    assert llm.complete("Hi", mode="target").raw["parse"]["drafted_tokens"] == 0
    sampled: dict[str, Any] = {"temperature": 2.0, "top_p": 0.9, "top_k": 0}
    one, two, other = (llm.complete("Hi", seed=seed, **sampled).text for seed in (1, 1, 2))
    assert one == two != other
    unset: Any = dict.fromkeys(["threshold", "temperature", "max_tokens", "tools", "tool_choice"])
    assert llm.complete("Hi", **unset).text == llm.complete("Hi").text


def test_stop_of_the_model_and_of_the_call() -> None:
    llm = saying(LINES, stop=["Another"])
    assert llm.complete("Hi").text == "One line.\n"
    assert llm.complete("Hi", stop=["line"]).text == "One "
    assert llm.complete("Hi", stop=[]).text == LINES
    assert "".join(r.delta or "" for r in llm.stream_complete("Hi")) == "One line.\n"


async def test_unknown_settings_of_a_call_are_refused_everywhere() -> None:
    llm = saying(LINES)
    for refused in (
        lambda: llm.complete("Hi", treshold=0.5),
        lambda: list(llm.stream_complete("Hi", treshold=0.5)),
        lambda: llm.chat(HI, treshold=0.5),
        lambda: list(llm.stream_chat(HI, treshold=0.5)),
        lambda: llm.chat_with_tools([], "Hi", treshold=0.5),
    ):
        with pytest.raises(parse.InvalidRequestError, match="treshold"):
            refused()
    for unknown in ("treshold", "engine", "callback_manager", "dtype"):  # unset, too
        with pytest.raises(parse.InvalidRequestError, match=unknown):
            llm.complete("Hi", **{unknown: None})  # type: ignore[arg-type]
    with pytest.raises(parse.InvalidRequestError, match="treshold"):
        await llm.achat(HI, treshold=0.5)
    with pytest.raises(parse.InvalidRequestError, match="treshold"):
        await llm.astream_complete("Hi", treshold=0.5)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"parallel_tool_calls": "x"}, "parallel_tool_calls is 'x'"),
        ({"tool_choice": {}}, "tool_choice is {}"),
        ({"draft_form": 5}, "draft_form is int 5"),
        ({"response_format": {"type": "x"}}, "response_format is"),
        ({"threshold": True}, "threshold is True"),
        ({"max_tokens": "5"}, "max_tokens is '5'"),
    ],
)
@pytest.mark.parametrize("template", ["qwen2.5", "llama3"])
def test_wrong_settings_of_a_call_are_refused(
    given: dict[str, Any], said: str, template: str
) -> None:
    engine = Engine(tiny_model(), tiny_model(template=template, seed=1))
    with pytest.raises(parse.InvalidRequestError, match=said) as caught:
        ParseLLM(engine=engine).complete("Hi", **given)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "model"),
        ({"model": "a"}, "draft_model is missing"),
        ({"model": "a", "draft_model": "b", "engine": object()}, "engine"),
        ({"model": "a", "draft_model": "b", "threshold": 2}, "threshold is 2"),
        ({"model": "a", "draft_model": "b", "treshold": 0.5}, "treshold"),
        ({"model": "a", "draft_model": "b", "max_tokens": 0}, "max_tokens is 0"),
        ({"model": "a", "draft_model": "b", "context_window": -1}, "context_window is -1"),
        ({"model": "a", "draft_model": "b", "tool_format": "xml"}, "tool_format"),
        ({"model": "a", "draft_model": "b", "threshold": True}, "threshold"),
        ({"model": "a", "draft_model": "b", "top_p": "0.5"}, "top_p"),
        ({"model": "a", "draft_model": "b", "max_tokens": "5"}, "max_tokens"),
        ({"model": "a", "draft_model": "b", "cut_at": "5"}, "cut_at"),
        ({"model": "a", "draft_model": "b", "context_window": True}, "context_window"),
        ({"model": "a", "draft_model": "b", "verification_events": 1}, "verification_events"),
    ],
)
def test_wrong_settings_are_refused_when_the_model_is_made(
    settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValidationError, match=said):
        ParseLLM(**settings)


def test_round_trip_through_a_dict() -> None:
    class Quantized:
        def to_dict(self) -> dict[str, Any]:
            return {"load_in_4bit": True}

    made = ParseLLM(
        model=Path("a"),  # type: ignore[arg-type]
        draft_model="b",
        stop=["x"],
        labels=("Yes", "No"),
        quantization_config=Quantized(),
        tool_format=ToolFormat(opening=("<call>",)),
        system_prompt="Be brief.",
    )
    stored = json.loads(made.to_json())
    assert stored["class_name"] == "parse_llm"
    assert stored["quantization_config"] == {"load_in_4bit": True}
    again = ParseLLM.from_dict(stored)
    assert json.loads(again.to_json()) == stored
    assert isinstance(again.tool_format, ToolFormat)
    assert again.labels == ("Yes", "No")
    ready = saying(LINES, max_tokens=5)
    assert "engine" not in ready.to_dict()
    with pytest.raises(parse.InvalidRequestError, match="model is None") as caught:
        ParseLLM.from_dict(ready.to_dict())
    assert "ParseLLM.from_dict(data, engine=engine)" in caught.value.hint
    assert ParseLLM.from_dict(ready.to_dict(), engine=ready.engine).max_tokens == 5


def test_copies_share_the_models(llm: ParseLLM) -> None:
    copies = (
        copy.deepcopy(llm),
        llm.model_copy(update={"seed": 1}),
        pickle.loads(pickle.dumps(llm)),
    )
    assert not engines._engines
    for made in copies:
        assert made._engine() is llm._engine()
    assert pickle.loads(pickle.dumps(llm)).to_dict() == llm.to_dict()
    limiter = TokenBucketRateLimiter(requests_per_minute=100)  # it has a lock
    ready = saying(LINES, rate_limiter=limiter)
    assert copy.deepcopy(ready)._engine() is ready._engine()
    assert copy.deepcopy(ready).rate_limiter is limiter
    with pytest.raises(parse.InvalidRequestError, match="ParseLLM made from an engine"):
        pickle.dumps(ready)


def test_nothing_that_decides_on_answers_is_lost_in_a_pickle(llm: ParseLLM) -> None:
    functions: dict[str, Any] = {
        "messages_to_prompt": lambda messages: "Hi",
        "completion_to_prompt": lambda prompt: "Hi",
    }
    for name, function in functions.items():
        made = llm.model_copy(update={name: function})
        with pytest.raises(parse.InvalidRequestError, match=f"this {name} cannot") as caught:
            pickle.dumps(made)
        assert "no lambda" in caught.value.hint
        assert getattr(made, name)(HI) == "Hi"
        assert getattr(copy.deepcopy(made), name) is function
    kept = llm.model_copy(update={"completion_to_prompt": shout})
    assert pickle.loads(pickle.dumps(kept)).completion_to_prompt is shout
    heard = llm.model_copy(update={"callback_manager": CallbackManager([_Unsendable()])})
    assert pickle.loads(pickle.dumps(heard)).to_dict() == llm.to_dict()


def shout(prompt: str) -> str:
    return prompt.upper()


class _Unsendable(TokenCountingHandler):
    def __reduce__(self) -> Any:
        raise TypeError("it holds a socket")


async def test_timeout_stops_the_models() -> None:
    llm = undecided(max_tokens=4000, timeout=1e-6)
    with pytest.raises(CallTimeoutError, match="not finished") as caught:
        llm.complete("Hi")
    assert isinstance(caught.value, parse.ParseError)
    with pytest.raises(TimeoutError):
        await llm.acomplete("Hi")
    with pytest.raises(TimeoutError):
        list(llm.stream_chat(HI))
    assert llm.complete("Hi", timeout=600, max_tokens=3).text


def test_a_target_that_cannot_judge_is_told_at_load(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = parse.UnsupportedModelError("It has windows.", "Use another.")
    engine = Engine(tiny_model(), tiny_model(seed=1))
    engine._found = refused
    monkeypatch.setattr(Engine, "from_pretrained", lambda **given: engine)
    llm = ParseLLM(model="windowed", draft_model="b", max_tokens=3)
    with pytest.raises(parse.UnsupportedModelError, match="windows"):
        llm.load()
    with pytest.raises(parse.UnsupportedModelError, match="windows"):
        llm.complete("Hi")
    assert llm.complete("Hi", mode="target").text
    llm.close()


BLOCKED = """
import sys
import tomllib
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked}:
            raise ImportError(name)
sys.meta_path.insert(0, Blocker())
"""


def run_blocked(blocked: str, code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED.format(blocked=blocked) + code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_importing_loads_neither_torch_nor_the_other_framework() -> None:
    code = """
from parse_integrations.llama_index import ParseLLM, ParseVerificationEvent
llm = ParseLLM(model="a", draft_model="b", threshold=0.5)
llm.to_payload(), llm.to_dict()
"""
    run_blocked("{'torch', 'transformers', 'langchain_core', 'langchain', 'llguidance'}", code)


@pytest.mark.parametrize("name", ["llama_index", "langchain"])
def test_each_framework_alone_is_enough(name: str) -> None:
    other = {"llama_index": "langchain", "langchain": "llama_index"}[name]
    make = {
        "llama_index": "llms import saying as s; ask = lambda t: s(t).complete('Hi').text",
        "langchain": "llms import saying as s; ask = lambda t: s(t).invoke('Hi').text",
    }[name]
    unwanted = {other, f"{other}_core", f"{other}_instrumentation", f"{other}_tests"}
    run_blocked(repr(unwanted), f"from tests.{name}.{make}\nassert ask('Yes.') == 'Yes.'")


def test_without_llamaindex_the_import_says_what_to_install() -> None:
    code = """
import parse_integrations.calls, parse_integrations.settings
try:
    import parse_integrations.llama_index
except ImportError as error:
    assert "pip install 'parse-llm[llama-index]'" in str(error)
else:
    raise AssertionError
"""
    run_blocked("{'llama_index', 'llama_index_instrumentation'}", code)


def test_nothing_is_asked_of_the_network(llm: ParseLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    def refuse(*args: Any, **given: Any) -> None:
        raise AssertionError("a network call")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert llm.metadata.context_window == 4096
    assert llm.complete("Hi").text
    assert llm.tokenizer("Hi")


def test_the_metadata_of_llamahub_lead_to_the_class() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    hub = project["tool"]["llamahub"]
    module = importlib.import_module(hub["import_path"])
    assert [getattr(module, name) for name in hub["class_authors"]] == [ParseLLM]
