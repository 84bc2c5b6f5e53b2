"""What users of other chat models do by mistake, or on purpose."""

from __future__ import annotations

import json
from copy import deepcopy
from datetime import date
from enum import Enum
from typing import Any, Literal, Optional

import pytest
from langchain_core.exceptions import ModelInvalidRequestError, OutputParserException
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from pydantic import BaseModel, RootModel

from parse_integrations.engines import loaded
from parse_integrations.langchain import ChatParse
from parse_integrations.langchain.messages import to_dicts
from parse_integrations.messages import fit
from tests.langchain.llms import LINES, saying, undecided
from tests.scripted import with_tokenizer
from tests.tiny_folders import save_tiny
from tests.tiny_models import tiny_model

ASK = "Name three."
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


class Level(Enum):
    LOW = "low"


class Folder(BaseModel):
    """A folder in a folder."""

    level: Literal[1, 2]
    inner: Optional[Folder]  # noqa: UP045 - the name is not known yet


class Levels(RootModel[list[Literal["a", "b"]]]):
    """Some levels."""


def random_llm(**settings: Any) -> ChatParse:
    return undecided(1.0, temperature=1.0, **{"max_tokens": 300, "seed": 3, **settings})


@pytest.mark.parametrize(
    "schema",
    [
        {"title": "T", "description": "d", "type": "array", "items": {"enum": ["a", "b"]}},
        {"title": "T", "enum": ["a", "b"]},
        {"title": "T", "anyOf": [{"const": "a"}, {"const": "b"}]},
    ],
)
def test_schemas_of_answers_that_are_no_objects_are_enforced(schema: dict[str, Any]) -> None:
    for seed in range(3):
        answer = random_llm().with_structured_output(schema).invoke(ASK, seed=seed)
        assert set(answer) <= {"a", "b"}


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
@pytest.mark.parametrize("strict", [None, True])
def test_schemas_that_refer_to_themselves_are_enforced(method: Any, strict: bool | None) -> None:
    asked: dict[str, Any] = {"method": method, "strict": strict, "include_raw": True}
    answers = [
        random_llm(seed=seed).with_structured_output(Folder, **asked).invoke(ASK)
        for seed in range(6)
    ]
    assert any(isinstance(answer["parsed"], Folder) for answer in answers)
    for answer in answers:  # random models go deep
        assert answer["parsed"] or "Give more max_tokens" in str(answer["parsing_error"])


def test_roots_that_are_lists() -> None:
    assert isinstance(random_llm().with_structured_output(Levels).invoke(ASK), Levels)
    with pytest.raises(ModelInvalidRequestError, match="array"):
        random_llm().with_structured_output(Levels, method="function_calling")
    with pytest.raises(ModelInvalidRequestError, match="array"):
        random_llm().bind_tools([{"name": "f", "parameters": {"type": "array"}}])


@pytest.mark.parametrize(
    ("schema", "wanted"),
    [
        (
            {
                "type": "object",
                "allOf": [
                    {"properties": {"a": {"const": 1}}, "required": ["a"]},
                    {"properties": {"b": {"const": 2}}, "required": ["b"]},
                ],
            },
            {"a": 1, "b": 2},
        ),
        (
            {
                "type": "object",
                "properties": {"a": {"const": 1}},
                "required": ["a"],
                "anyOf": [{"properties": {"b": {"const": 2}}, "required": ["b"]}],
            },
            {"a": 1, "b": 2},
        ),
        ({"const": {"properties": {"z": 1}}}, {"properties": {"z": 1}}),
    ],
)
def test_schemas_made_of_parts(schema: dict[str, Any], wanted: dict[str, Any]) -> None:
    answer = random_llm().invoke(ASK, response_format=schema)
    found = json.loads(answer.text)
    assert {name: found[name] for name in wanted} == wanted


class Pick(BaseModel):
    """A pick."""

    level: Literal["low", "high"]


@pytest.mark.parametrize("method", ["function_calling", "json_schema"])
@pytest.mark.parametrize("stop", ["<", "\n", '"', "}"])
def test_stop_strings_end_nothing_that_is_enforced(stop: str, method: Any) -> None:
    llm = undecided(stop=stop, max_tokens=200)
    assert isinstance(llm.with_structured_output(Pick, method=method).invoke(ASK), Pick)
    called = llm.bind_tools([Pick], tool_choice="any").invoke(ASK, stop=[stop])
    assert Pick(**called.tool_calls[0]["args"])
    with pytest.raises(ModelInvalidRequestError, match="stop is"):
        llm.bind_tools([Pick], tool_choice="any").invoke(ASK, stop=[""])


def test_what_is_written_freely_still_ends_at_a_stop_string() -> None:
    bound = saying(f"{LINES}More.", stop="Another").bind_tools([TOOL])
    assert bound.invoke(ASK).text.strip() == "One line."


def test_an_answer_that_is_not_what_was_asked_for_is_an_error() -> None:
    chain = saying(LINES).with_structured_output(Pick, method="function_calling").last  # type: ignore[attr-defined]
    with pytest.raises(OutputParserException, match="is not what was asked for"):
        chain.invoke(AIMessage("x"))


def history(*results: str, said: str = "") -> list[Any]:
    """Two rounds of two calls each, with the same ids in both."""
    found: list[Any] = [HumanMessage("Hi")]
    for number in range(0, len(results), 2):
        calls: Any = [{"name": "add", "args": {}, "id": each} for each in ("1", "2")]
        found.append(AIMessage(said, tool_calls=calls))
        found += [ToolMessage(results[number + n], tool_call_id=str(n + 1)) for n in (0, 1)]
    return found


LLAMA = """
{%- for message in messages -%}
  {%- if message.tool_calls is defined and message.tool_calls -%}
    {%- if message.tool_calls | length != 1 -%}
      {{- raise_exception('one call at a time') -}}
    {%- endif -%}
    {%- set call = message.tool_calls[0].function -%}
    {{- '{"name": "' + call.name + '", "parameters": ' + (call.arguments | tojson) + '}' -}}
  {%- elif message.role == 'tool' -%}
    {{- '[' + (message.content | tojson) + ']' -}}
  {%- else -%}
    {{- message.role + ': ' + message.content -}}
  {%- endif -%}
{%- endfor -%}
{%- if tools -%}{{- tools | tojson -}}{%- endif -%}
"""


def on_llama(messages: list[Any]) -> str:
    model = tiny_model(template="llama3")
    tokenizer = deepcopy(model.tokenizer)
    tokenizer.chat_template = LLAMA
    model = with_tokenizer(model, tokenizer)
    conversation = fit(model, to_dicts(messages), (TOOL,))
    assert conversation.tools
    return model.render(conversation.messages, conversation.tools).text


def test_results_stand_under_their_own_calls_where_ids_come_again() -> None:
    prompt = on_llama(history("r1", "r2", "r3", "r4"))
    places = [prompt.index(f'["r{n}"]') for n in (1, 2, 3, 4)]
    assert places == sorted(places)
    assert prompt.count('["r') == 4


@pytest.mark.parametrize("result", ['{"city": "Zürich"}', "Zürich", '{"a": 1}', 'ü\n"x"'])
def test_results_in_any_script_keep_the_native_form(result: str) -> None:
    assert '"parameters": ' in on_llama(history(result, "x"))


def test_what_is_said_beside_a_call_is_kept() -> None:
    assert "I will add." in on_llama(history("r1", "r2", said="I will add."))


def broken_call(arguments: dict[str, Any]) -> list[Any]:
    calls: Any = [{"name": "add", "args": arguments, "id": "1"}]
    return [HumanMessage("x"), AIMessage("", tool_calls=calls), ToolMessage("y", tool_call_id="1")]


@pytest.mark.parametrize(
    ("messages", "options", "problem"),
    [
        ([], {}, "empty"),
        ("a\ud800b", {}, "half a character"),
        (broken_call({"x": "\ud800"}), {}, "half a character"),
        (broken_call({"x": date(2020, 1, 1)}), {}, "JSON"),
        ([HumanMessage([{"type": "text"}])], {}, "no text"),
        ("x", {"timeout": "5"}, "timeout"),
        ("x", {"timeout": 0}, "timeout"),
        ("x", {"timeout": float("nan")}, "timeout"),
        ("x", {"tools": 5}, "tools"),
        ("x", {"tools": ["f"]}, "tools"),
        ("x", {"tools": [len]}, "tools"),
        ("x", {"tools": [{"function": "f"}]}, "no name"),
        ("x", {"tools": [{"name": "f", "parameters": "x"}]}, "parameters|arguments"),
        ("x", {"tools": [TOOL], "tool_choice": {"function": "f"}}, "tool_choice"),
        ("x", {"tools": [TOOL], "tool_choice": []}, "tool_choice"),
        ("x", {"tools": [TOOL], "tool_choice": {}}, "tool_choice is {}"),
        ("x", {"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice is {'type'"),
        ("x", {"tools": [TOOL], "parallel_tool_calls": "x"}, "parallel_tool_calls is 'x'"),
        ("x", {"draft_form": 5}, "draft_form is int 5"),
        ("x", {"tool_format": []}, "tool_format"),
        ("x", {"max_token": 5}, "max_tokens"),
        ("x", {"max_token": None}, "max_tokens"),
        ("x", {"max_tokens": "x"}, "max_tokens"),
        ("x", {"brief": "x"}, "ChatParse"),
        ("x", {"dtype": "float32"}, "ChatParse"),
    ],
)
def test_wrong_calls_are_refused_in_words(messages: Any, options: Any, problem: str) -> None:
    with pytest.raises(ModelInvalidRequestError, match=problem):
        saying(LINES).invoke(messages, **options)


def test_wrong_texts_cannot_be_counted() -> None:
    llm = saying(LINES)
    with pytest.raises(ModelInvalidRequestError):
        llm.get_num_tokens_from_messages([])
    with pytest.raises(ModelInvalidRequestError):
        llm.get_num_tokens("hi\ud800")


def test_an_engine_must_be_one() -> None:
    with pytest.raises(ValueError, match="engine is of the type str"):
        ChatParse(engine="x")


def test_one_stop_string_is_a_list_of_one() -> None:
    assert saying(LINES, stop="Another").invoke("Hi").text == "One line.\n"
    assert saying(LINES).invoke("Hi", stop="Another").text == "One line.\n"  # type: ignore[arg-type]


def test_close_lets_go_of_models_that_calls_named(tmp_path: Any) -> None:
    folders = [str(save_tiny(tmp_path / name, seed=n)) for n, name in enumerate("abc")]
    llm = ChatParse(model=folders[0], draft_model=folders[1], max_tokens=2)
    llm.invoke("x")
    llm.invoke("x", model=folders[2])
    wording: dict[str, Any] = {}
    before = [loaded(folders[n], folders[1], {}, wording) for n in (0, 2)]
    llm.close()
    after = [loaded(folders[n], folders[1], {}, wording) for n in (0, 2)]
    assert all(one is not other for one, other in zip(before, after, strict=True))
    llm.close()
