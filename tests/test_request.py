"""Bad input is refused before any model runs, with what to do."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pytest

from parse_engine import (
    ContextOverflowError,
    Engine,
    InvalidRequestError,
    ParseConfig,
    ParseError,
    UnsupportedModelError,
)
from tests.conftest import forward_log
from tests.scripted import scripted
from tests.tiny_models import tiny_model

ASK = [{"role": "user", "content": "What is that?"}]


@pytest.fixture(scope="module")
def engine() -> Engine:
    target = tiny_model()
    return Engine(target, scripted(target, "The answer."))


BAD_MESSAGES: list[Any] = [
    [],
    None,
    "What?",
    5,
    {"role": "user", "content": "x"},
    ["What?"],
    [{}],
    [{"role": "user"}],
    [{"role": "user", "content": None}],
    [{"role": "user", "content": 5}],
    [{"role": "human", "content": "x"}],
    [{"role": None, "content": "x"}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}],
    [{"role": "user", "content": ["x"]}],
]


@pytest.mark.parametrize("messages", BAD_MESSAGES)
@pytest.mark.parametrize("method", ["generate", "stream", "astream"])
def test_wrong_messages_are_refused(engine: Engine, messages: Any, method: str) -> None:
    with forward_log(engine.target) as log, pytest.raises(InvalidRequestError) as refused:
        getattr(engine, method)(messages)
    assert log == []
    assert refused.value.hint


BAD_OPTIONS: list[dict[str, Any]] = [
    {"max_new_tokens": 0},
    {"max_new_tokens": -1},
    {"max_new_tokens": 1.5},
    {"max_new_tokens": "10"},
    {"max_new_tokens": True},
    {"temperature": -0.1},
    {"temperature": math.nan},
    {"temperature": math.inf},
    {"temperature": "hot"},
    {"top_p": 0},
    {"top_p": 1.1},
    {"top_k": -1},
    {"top_k": 2.5},
    {"seed": -1},
    {"seed": 1.5},
    {"seed": 1 << 64},
    {"stop": ""},
    {"stop": [""]},
    {"stop": [5]},
    {"stop": 5},
    {"threshold": -0.1},
    {"threshold": 1.1},
    {"threshold": math.nan},
    {"threshold": "high"},
    {"threshold": True},
    {"accept_rule": "shortest"},
    {"cut_at": 0},
    {"cut_at": -3},
    {"cut_at": "word"},
    {"cut_at": "a number of tokens"},
    {"cut_at": True},
    {"max_prefixes": 0},
    {"judge_layout": "private"},
    {"verify_order": "whole"},
    {"mode": "fast"},
    {"signals": 1},
    {"max_draft_tokens": 0},
    {"tools": "search"},
    {"tools": {"type": "function"}},
    {"tools": [5]},
    {"temprature": 0.5},
    {"labels": ("Good", "Bad")},
    {"brief": "x"},
    {"question": "x"},
]


@pytest.mark.parametrize("options", BAD_OPTIONS, ids=str)
def test_wrong_options_are_refused(engine: Engine, options: dict[str, Any]) -> None:
    with forward_log(engine.target) as log, pytest.raises(InvalidRequestError) as refused:
        engine.generate(ASK, **options)
    assert log == []
    (name,) = options
    assert name in refused.value.problem
    assert refused.value.hint


@pytest.mark.parametrize("answer", ["", None, 5, ["x"]])
def test_wrong_answer_to_verify_is_refused(engine: Engine, answer: Any) -> None:
    with pytest.raises(InvalidRequestError):
        engine.verify(ASK, answer)


CONFIG_FIELDS = {"threshold", "accept_rule", "cut_at", "max_prefixes", "judge_layout"} | {
    *("verify_order", "mode", "signals", "max_draft_tokens", "labels", "brief", "question")
}


@pytest.mark.parametrize(
    "options",
    [
        *[options for options in BAD_OPTIONS if CONFIG_FIELDS & set(options)][:-3],
        {"labels": ("Good",)},
        {"labels": "GB"},
        {"labels": ("x", "x")},
        {"labels": ("", "x")},
        {"brief": " "},
        {"question": 5},
    ],
    ids=str,
)
def test_wrong_settings_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        ParseConfig(**options)


def test_none_is_the_same_as_unset(engine: Engine) -> None:
    unset: dict[str, Any] = dict.fromkeys(
        ["temperature", "top_p", "top_k", "seed", "stop", "threshold", "mode", "tools"]
    )
    wanted = engine.generate(ASK, max_new_tokens=5)
    assert engine.generate(ASK, max_new_tokens=5, **unset).token_ids == wanted.token_ids


def test_prompt_longer_than_the_context_is_refused(engine: Engine) -> None:
    long = [{"role": "user", "content": "x" * 5000}]
    with forward_log(engine.target) as log, pytest.raises(ContextOverflowError, match="4096"):
        engine.generate(long)
    assert log == []
    with pytest.raises(ContextOverflowError):
        engine.verify([*long], "x")


def test_answer_ends_where_the_context_does(engine: Engine) -> None:
    overhead = len(engine.target.render([{"role": "user", "content": ""}]).ids)
    long = [{"role": "user", "content": "x" * (4096 - overhead - 5)}]
    answer = engine.generate(long, mode="target")
    assert answer.usage.total_tokens <= 4096
    with pytest.warns(UserWarning, match="does not fit"):
        assert engine.generate(long, verdict="p_correct").stats.fallback


def test_engine_without_draft_model_answers_in_mode_target_only() -> None:
    engine = Engine(tiny_model())
    assert engine.generate(ASK, max_new_tokens=3, mode="target").token_ids
    for mode in ("parse", "draft"):
        with pytest.raises(InvalidRequestError, match="no draft model"):
            engine.generate(ASK, mode=mode)


def test_model_without_chat_template_is_refused() -> None:
    from parse_engine.backends.model import Model
    from tests.tiny_tokenizers import chat_tokenizer

    tokenizer = chat_tokenizer("qwen2.5")
    tokenizer.chat_template = None
    with pytest.raises(UnsupportedModelError, match="chat template"):
        Engine(Model("plain", tiny_model().network, tokenizer))


def test_messages_that_the_template_refuses_are_refused_with_its_words() -> None:
    target = tiny_model(template="mistral")
    engine = Engine(target, scripted(target, "x"))
    twice = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    with forward_log(target) as log, pytest.raises(InvalidRequestError, match="template"):
        engine.generate(twice)
    assert log == []


def test_every_error_is_a_parse_error_and_survives_pickling() -> None:
    error = InvalidRequestError("threshold is 2.", "Give less.")
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, ParseError)
    assert type(again) is InvalidRequestError
    assert (again.problem, again.hint) == ("threshold is 2.", "Give less.")
