"""Structured output: whatever the models would write, the answer is of the schema."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

import pytest
from langchain_core.exceptions import OutputParserException
from pydantic import BaseModel, Field

from parse_engine import Engine
from parse_engine import errors as parse
from parse_integrations.langchain import ChatParse
from tests.langchain.llms import LINES, replying, saying, undecided
from tests.tiny_models import tiny_model


class Part(BaseModel):
    """A part."""

    kind: Literal["wheel", "door"]
    number: Literal[1, 2, 4]


class Car(BaseModel):
    """A car."""

    color: Literal["red", "blue"]
    parts: list[Part] = Field(max_length=2)
    fast: bool


class Shade(TypedDict):
    """A shade."""

    dark: bool


JSON_SCHEMA = {
    "title": "Answer",
    "description": "An answer.",
    "type": "object",
    "properties": {"yes": {"type": "boolean"}, "why": {"enum": ["so", "just so"]}},
    "required": ["yes", "why"],
}


@pytest.mark.parametrize("threshold", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("strict", [None, True])
@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_answers_are_of_the_schema(
    method: Any, strict: bool | None, threshold: float, temperature: float
) -> None:
    llm = undecided(threshold, max_tokens=400, temperature=temperature, seed=7)
    car = llm.with_structured_output(Car, method=method, strict=strict).invoke("Hi")
    assert isinstance(car, Car)
    shade = llm.with_structured_output(Shade, method=method, strict=strict).invoke("Hi")
    assert shade in ({"dark": True}, {"dark": False})
    answer = llm.with_structured_output(JSON_SCHEMA, method=method).invoke("Hi")
    assert answer["why"] in ("so", "just so")


@pytest.mark.parametrize("template", ["qwen2.5", "llama3", "mistral", "gemma2", "qwen3_thinking"])
def test_every_family_can(template: str) -> None:
    target, draft = tiny_model(template=template, seed=0), tiny_model(template=template, seed=1)
    llm = ChatParse(engine=Engine(target, draft), threshold=0.5, max_tokens=400)
    if template == "qwen3_thinking":  # it never stops to think
        with pytest.raises(OutputParserException):
            llm.with_structured_output(Shade).invoke("Hi")
    else:
        assert set(llm.with_structured_output(Shade).invoke("Hi")) == {"dark"}


async def test_async_and_streams() -> None:
    structured = undecided(max_tokens=300).with_structured_output(JSON_SCHEMA)
    wanted = structured.invoke("Hi")
    assert await structured.ainvoke("Hi") == wanted
    assert list(structured.stream("Hi"))[-1] == wanted


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_an_answer_that_is_cut_off_is_an_error_and_no_object(method: Any) -> None:
    llm = undecided(max_tokens=12)
    with pytest.raises(OutputParserException, match="max_tokens"):
        llm.with_structured_output(Car, method=method).invoke("Hi")
    raw = llm.with_structured_output(Car, method=method, include_raw=True).invoke("Hi")
    assert raw["parsed"] is None
    assert isinstance(raw["parsing_error"], OutputParserException)
    assert raw["raw"].usage_metadata["output_tokens"] == 12


def test_raw_and_parsed() -> None:
    result = undecided(max_tokens=300).with_structured_output(Car, include_raw=True).invoke("Hi")
    assert isinstance(result["parsed"], Car)
    assert result["parsing_error"] is None
    assert Car.model_validate_json(result["raw"].text) == result["parsed"]


def test_json_mode_gives_an_object() -> None:
    answer = undecided(max_tokens=60).bind(response_format={"type": "json_object"}).invoke("Hi")
    assert answer.text.startswith("{")
    text = '{"a": [1, 2]}'
    assert saying(text).with_structured_output(None, method="json_mode").invoke("Hi") == {
        "a": [1, 2]
    }


def test_the_models_are_told_the_schema() -> None:
    llm, prompts = replying('{"dark": true}', '{"dark": true}')
    llm.with_structured_output(Shade).invoke("Hi")
    assert '"dark"' in prompts[0]


def test_tools_and_a_schema_at_once() -> None:
    """As create_agent binds them: either a call or an answer of the schema."""
    call = '<tool_call>\n{"name": "Part", "arguments": {"kind": "door", "number": 2}}\n</tool_call>'
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": JSON_SCHEMA}}
    for threshold in (0.0, 1.0):
        bound = undecided(threshold, max_tokens=300).bind_tools([Part], response_format=wanted)
        answer = bound.invoke("Hi")
        assert answer.tool_calls or '"why"' in answer.text
    both = saying(call).bind_tools([Part], response_format=wanted).invoke("Hi")
    assert both.tool_calls[0]["args"] == {"kind": "door", "number": 2}


@pytest.mark.parametrize(
    "wanted",
    [
        *({"type": "json_schema"}, {"type": "json_schema", "json_schema": {"name": "x"}}),
        *("json", 5, {}, {"type": "x"}, {"type": ["object", "x"]}, {"type": {}}),
    ],
)
def test_wrong_response_formats_are_refused(wanted: Any) -> None:
    with pytest.raises(parse.InvalidRequestError, match="response_format is") as caught:
        saying(LINES).invoke("Hi", response_format=wanted)
    for accepted in ("json_schema", "json_object", '"text"', "a JSON schema itself"):
        assert accepted in caught.value.hint


def test_schemas_that_cannot_be_enforced_are_refused_before_any_model_runs() -> None:
    impossible = {"type": "object", "properties": {"a": {"type": "nothing"}}}
    with pytest.raises(parse.InvalidRequestError, match="cannot be enforced"):
        saying(LINES).invoke("Hi", response_format=impossible)


def test_wrong_arguments_are_refused() -> None:
    llm: Any = saying(LINES)
    with pytest.raises(parse.InvalidRequestError, match="parallel_tool_calls"):
        llm.bind_tools([Car], parallel_tool_calls="x")
    with pytest.raises(parse.InvalidRequestError, match="method"):
        llm.with_structured_output(Car, method="xml")
    with pytest.raises(parse.InvalidRequestError, match="schema"):
        llm.with_structured_output(None)
    with pytest.raises(parse.InvalidRequestError, match="response_format beside a schema"):
        llm.with_structured_output(Car, response_format={"type": "json_object"})


def test_settings_can_be_given_along() -> None:
    llm = undecided(max_tokens=3)
    assert isinstance(llm.with_structured_output(Car, max_tokens=400).invoke("Hi"), Car)


def test_the_profile_says_so() -> None:
    profile: Any = saying(LINES).profile
    assert profile["structured_output"] is True
    assert profile["tool_calling"] is True
    assert profile["max_input_tokens"] == 4096
