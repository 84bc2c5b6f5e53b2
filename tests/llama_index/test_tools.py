"""Tools and objects: offered, enforced, read, and never half of one."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any, Literal

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, ThinkingBlock, ToolCallBlock
from llama_index.core.program import FunctionCallingProgram
from llama_index.core.program.utils import FlexibleModel
from llama_index.core.prompts import ChatPromptTemplate, PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.core.types import PydanticProgramMode
from pydantic import BaseModel, Field, field_validator

from parse_engine import Engine
from parse_engine import errors as parse
from parse_integrations.llama_index import AnswerError, ParseLLM
from tests.llama_index.llms import replying, saying, undecided
from tests.tiny_models import tiny_model


class Choice(BaseModel):
    """A choice."""

    level: Literal["low", "high"]
    size: Literal[1, 2]


def pick(level: str, size: int) -> str:
    """Pick one."""
    return f"{level}{size}"


def stay() -> str:
    """Stay there."""
    return "stayed"


TOOLS: list[Any] = [
    FunctionTool.from_defaults(pick, fn_schema=Choice),
    FunctionTool.from_defaults(stay),
]
CALL = '<tool_call>\n{"name": "pick", "arguments": {"level": "low", "size": 1}}\n</tool_call>'
STAY = '<tool_call>\n{"name": "stay", "arguments": {}}\n</tool_call>'


def calls_of(llm: ParseLLM, response: Any) -> list[tuple[str, dict[str, Any]]]:
    found = llm.get_tool_calls_from_response(response, error_on_no_tool_call=False)
    return [(call.tool_name, call.tool_kwargs) for call in found]


@pytest.mark.parametrize("threshold", [0.0, 1.0])
@pytest.mark.parametrize("template", ["qwen2.5", "mistral_v7", "llama3", "gemma2"])
@pytest.mark.parametrize("choice", ["pick", "stay", "any", "required", None])
def test_a_call_is_enforced_whatever_the_models_would_write(
    choice: str | None, template: str, threshold: float
) -> None:
    target, draft = tiny_model(template=template, seed=0), tiny_model(template=template, seed=1)
    llm = ParseLLM(engine=Engine(target, draft), threshold=threshold, max_tokens=200)
    response = llm.chat_with_tools(TOOLS, "Hi", tool_choice=choice, tool_required=choice is None)
    ((name, arguments),) = calls_of(llm, response)
    assert name == choice or choice in ("any", "required", None)
    assert name != "pick" or Choice(**arguments)
    assert response.message.content is None
    assert response.raw["finish_reason"] == "tool_calls"


class Note(BaseModel):
    """A note."""

    text: Literal['{"see" </tool_call> there']
    size: Literal[1, 2]


@pytest.mark.parametrize("threshold", [0.0, 1.0])
@pytest.mark.parametrize("draft", ["qwen2.5", "llama3"])
def test_a_closing_mark_in_an_argument_closes_nothing(draft: str, threshold: float) -> None:
    target = tiny_model(template="qwen2.5", seed=0)
    engine = Engine(target, tiny_model(template=draft, seed=1))
    llm = ParseLLM(engine=engine, threshold=threshold, max_tokens=200)
    tools = [FunctionTool.from_defaults(lambda text, size: text, fn_schema=Note, name="note")]
    response = llm.chat_with_tools(tools, "Hi", tool_required=True)
    ((name, arguments),) = calls_of(llm, response)
    assert name == "note"
    assert Note(**arguments)
    assert str(llm.predict_and_call(tools, "Hi", tool_required=True)) == arguments["text"]


@pytest.mark.parametrize("stop", ["<", "\n", '"', "}"])
def test_stop_strings_end_nothing_that_is_enforced(stop: str) -> None:
    llm = undecided(max_tokens=300, stop=[stop])
    assert len(calls_of(llm, llm.chat_with_tools(TOOLS, "Hi", tool_required=True))) == 1
    assert isinstance(llm.structured_predict(Part, PromptTemplate("Which?")), Part)
    assert isinstance([*llm.stream_structured_predict(Part, PromptTemplate("Which?"))][-1], Part)
    with pytest.raises(parse.InvalidRequestError, match="stop is"):
        llm.chat_with_tools(TOOLS, "Hi", tool_required=True, stop=[""])


def test_choice_none_and_unknown_tools() -> None:
    llm, prompts = replying("Yes.", "Yes.")
    llm.chat_with_tools(TOOLS, "Hi", tool_choice="none", tool_required=True)
    assert "stay" not in prompts[0]
    with pytest.raises(parse.InvalidRequestError, match="fly"):
        llm.chat_with_tools(TOOLS, "Hi", tool_choice="fly")
    assert llm.chat_with_tools([], "Hi").message.content == "Yes."


async def test_a_call_cannot_be_required_without_tools() -> None:
    llm = saying("Yes.")
    for ask in (llm.chat_with_tools, llm.predict_and_call, llm.stream_chat_with_tools):
        with pytest.raises(parse.InvalidRequestError, match="Give tools"):
            ask([], "Hi", tool_required=True)  # type: ignore[operator]
    with pytest.raises(parse.InvalidRequestError, match="Give tools"):
        await llm.apredict_and_call([], "Hi", tool_required=True)
    with pytest.raises(AnswerError, match="Give tools and"):
        llm.predict_and_call([], "Hi")


@pytest.mark.parametrize(
    "names", [("my tool", "my_tool"), ("погода", "дорога"), ('"a" {b} \\', "a")]
)
async def test_tools_have_their_own_names(names: tuple[str, str]) -> None:
    def named(name: str) -> FunctionTool:
        return FunctionTool.from_defaults(lambda: name, name=name, description="x")

    tools: list[Any] = [named(name) for name in names]
    llm = undecided(max_tokens=300)
    for name in names:
        assert str(llm.predict_and_call(tools, "Hi", tool_choice=name)) == name
    assert str(await llm.apredict_and_call(tools, "Hi", tool_required=True)) in names
    call = json.dumps({"name": names[0], "arguments": {}}, ensure_ascii=False)
    agent = FunctionAgent(tools=tools, llm=replying(f"<tool_call>{call}</tool_call>", "Done.")[0])
    result = await agent.run("Hi")
    assert [made.tool_output.content for made in result.tool_calls] == [names[0]]


@pytest.mark.parametrize("name", ["a\ud83d", ""])
def test_names_that_nobody_can_write_are_refused(name: str) -> None:
    tool = FunctionTool.from_defaults(stay)
    tool.metadata.name = name
    with pytest.raises(parse.InvalidRequestError, match=r"no name|half a character"):
        saying("x").chat_with_tools([tool], "Hi")


def test_tools_that_are_no_schemas_are_refused() -> None:
    with pytest.raises(parse.InvalidRequestError, match=r"tools\[0\] is FunctionTool"):
        saying("x").chat([ChatMessage(content="Hi")], tools=TOOLS)


@pytest.mark.parametrize("tools", [[pick], [TOOLS[0], pick], None, "pick", [{"name": "pick"}]])
def test_what_is_no_tool_of_llamaindex_is_refused(tools: Any) -> None:
    llm = saying("x")
    with pytest.raises(parse.InvalidRequestError, match=r"^tools(\[[01]\])? is") as caught:
        llm.chat_with_tools(tools, "Hi")
    assert caught.value.hint
    if isinstance(tools, list) and pick in tools:
        assert "FunctionTool.from_defaults(pick)" in caught.value.hint
        with pytest.raises(parse.InvalidRequestError):
            llm.predict_and_call(tools, "Hi")


async def test_completions_have_calls_where_other_packages_put_them() -> None:
    llm = saying(f"Well.\n{STAY}")
    given: Any = {"tools": [TOOLS[1].metadata.to_openai_tool()]}
    *_, streamed = llm.stream_complete("Hi", **given)
    for response in (llm.complete("Hi", **given), streamed, await llm.acomplete("Hi", **given)):
        assert response.text == "Well."
        (call,) = response.additional_kwargs["tool_calls"]
        assert call["function"] == {"name": "stay", "arguments": "{}"}
        assert response.raw["finish_reason"] == "tool_calls"
    assert "tool_calls" not in llm.complete("Hi").additional_kwargs


LOW = {"level": "low"}


@pytest.mark.parametrize(
    ("message", "calls"),
    [
        ({"blocks": [ToolCallBlock(tool_name="pick", tool_kwargs='{"level": "low"}')]}, [LOW]),
        ({"blocks": [ToolCallBlock(tool_name="pick", tool_kwargs="")]}, [{}]),
        ({"blocks": [ToolCallBlock(tool_name="pick", tool_kwargs='{"level"')]}, []),
        ({"additional_kwargs": {"tool_calls": [{"function": {"name": "pick"}}]}}, [{}]),
        ({"additional_kwargs": {"tool_calls": [{"name": "pick", "input": LOW}]}}, [LOW]),
        ({"additional_kwargs": {"tool_calls": [{"name": "pick", "arguments": "[1]"}]}}, []),
        ({"content": "No."}, []),
    ],
)
def test_calls_are_read_in_every_form(message: Any, calls: list[Any]) -> None:
    llm = saying("x")
    response = ChatResponse(message=ChatMessage(role="assistant", **message))
    assert calls_of(llm, response) == [("pick", arguments) for arguments in calls]
    if calls:
        assert llm.get_tool_calls_from_response(response)
    else:
        with pytest.raises(AnswerError, match="No tool was called"):
            llm.get_tool_calls_from_response(response)


def test_user_message_and_history_are_put_together() -> None:
    llm, prompts = replying("Yes.", "Yes.")
    history = [ChatMessage(content="Before."), ChatMessage(role="assistant", content="Well.")]
    llm.chat_with_tools(TOOLS, ChatMessage(content="Now."), chat_history=history)
    assert len(history) == 2
    assert prompts[0].index("Before.") < prompts[0].index("Well.") < prompts[0].index("Now.")
    llm.chat_with_tools(TOOLS, "Now.")
    assert "Now." in prompts[1]


def test_parallel_calls() -> None:
    text = f"Both.\n{CALL}\n{STAY}"
    llm = saying(text)
    response = llm.chat_with_tools(TOOLS, "Hi", allow_parallel_tool_calls=True)
    assert response.message.content == "Both."
    assert calls_of(llm, response) == [("pick", {"level": "low", "size": 1}), ("stay", {})]
    listed = response.message.additional_kwargs["tool_calls"]
    assert [json.loads(call["function"]["arguments"]) for call in listed] == [
        *({"level": "low", "size": 1}, {})
    ]
    assert len({call["id"] for call in listed}) == 2
    outcome = llm.predict_and_call(TOOLS, "Hi", allow_parallel_tool_calls=True)
    assert str(outcome) == "low1\n\nstayed"
    # without, there is one: LlamaIndex raises on a second
    for one in (llm.chat_with_tools(TOOLS, "Hi"), *llm.stream_chat_with_tools(TOOLS, "Hi")):
        assert len(calls_of(llm, one)) <= 1
    assert str(llm.predict_and_call(TOOLS, "Hi")) == "low1"


@pytest.mark.parametrize(
    "text",
    [
        CALL.replace('"', "'"),
        CALL[:60],
        '<tool_call>\n{"name": "pick", "arguments": 3}\n</tool_call>',
        '<tool_call>\n{"arguments": {}}\n</tool_call>',
        "I like <tool_call> tags",
        "Well,\n<tool_call>hello</tool_call>\n\nworld",
        f"{STAY.replace('{}', '[1]')}\nend\n",
    ],
)
def test_a_malformed_call_is_text_and_is_not_made(text: str) -> None:
    llm = saying(text)
    response = llm.chat_with_tools(TOOLS, "Hi")
    assert calls_of(llm, response) == []
    assert response.message.content == text
    with pytest.raises(AnswerError, match="No tool was called") as caught:
        llm.get_tool_calls_from_response(response)
    assert isinstance(caught.value, ValueError)
    assert "tool_required=True" in caught.value.hint
    streamed = list(llm.stream_chat_with_tools(TOOLS, "Hi"))
    assert streamed[-1].message.content == response.message.content
    assert "".join(r.delta or "" for r in streamed) == response.message.content


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"one.\n\n{STAY}\n\ntwo.", "one.\n\ntwo."),
        (f"one.{STAY}\ntwo.", "one.\ntwo."),
        (f"one. {STAY}\n\n", "one."),
        (f"\n{STAY}\n\ntwo.", "two."),
    ],
)
def test_texts_around_a_call_stay_apart(text: str, said: str) -> None:
    llm = saying(text)
    response = llm.chat_with_tools(TOOLS, "Hi")
    assert response.message.content == said
    assert calls_of(llm, response) == [("stay", {})]
    streamed = list(llm.stream_chat_with_tools(TOOLS, "Hi", mode="draft"))
    assert "".join(r.delta or "" for r in streamed) == said
    assert streamed[-1].message.content == said


async def test_half_a_character_in_a_call_kills_no_agent() -> None:
    def echo(text: str) -> str:
        """Say it again."""
        return f"Heard {text}."

    call = r'<tool_call>{"name": "echo", "arguments": {"text": "a\ud83d"}}</tool_call>'
    llm, prompts = replying(call, "Done.")
    assert str(await FunctionAgent(tools=[echo], llm=llm).run("Hi")) == "Done."
    assert "Heard a\ufffd." in prompts[1]


def test_a_call_that_is_cut_off_is_not_made() -> None:
    ids = tiny_model().encode(CALL)
    for count in range(12, len(ids), 7):
        llm = saying(CALL, max_tokens=count)
        for response in llm.stream_chat_with_tools(TOOLS, "Hi"):
            assert calls_of(llm, response) == []
        assert response.raw["finish_reason"] == "length"


def test_thoughts_come_before_a_call() -> None:
    llm = saying(f"<think>\nHm.\n</think>\n\n{CALL}", "qwen3")
    response = llm.chat_with_tools(TOOLS, "Hi")
    thought, call = response.message.blocks
    assert isinstance(thought, ThinkingBlock)
    assert isinstance(call, ToolCallBlock)
    again = ChatMessage.model_validate_json(response.message.model_dump_json())
    assert again.blocks == response.message.blocks


class Part(BaseModel):
    """A part."""

    kind: Literal["wheel", "door"]


class Car(BaseModel):
    """A car."""

    color: Literal["red", "blue"]
    parts: list[Part] = Field(max_length=2)
    fast: bool


PROMPT = PromptTemplate("Describe a {kind} car.")


@pytest.mark.parametrize("threshold", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("temperature", [0.0, 1.5])
async def test_objects_are_of_the_class(threshold: float, temperature: float) -> None:
    llm = undecided(threshold, max_tokens=300, temperature=temperature, seed=7)
    car = llm.structured_predict(Car, PROMPT, kind="fast")
    assert isinstance(car, Car)
    assert await llm.astructured_predict(Car, PROMPT, kind="fast") == car
    parts = list(llm.stream_structured_predict(Car, PROMPT, kind="fast"))
    assert parts[-1] == car
    stream = await llm.astream_structured_predict(Car, PROMPT, kind="fast")
    assert [part.model_dump() async for part in stream] == [part.model_dump() for part in parts]
    assert all(before != after for before, after in pairwise(parts))


def test_parts_of_an_object_come_as_they_are_written() -> None:
    llm = saying('{"name": "Ann", "age": 5}', mode="draft")  # which comes token by token

    class Person(BaseModel):
        name: str
        age: int

    parts = list(llm.stream_structured_predict(Person, PromptTemplate("Who?")))
    assert isinstance(parts[0], FlexibleModel)
    names = [part.name for part in parts]
    assert "A" in names
    assert names == sorted(names)
    assert parts[-1] == Person(name="Ann", age=5)
    assert sum(isinstance(part, Person) for part in parts) == 1


def test_half_an_object_is_an_error() -> None:
    llm = undecided(max_tokens=12)
    with pytest.raises(AnswerError, match="max_tokens") as caught:
        llm.structured_predict(Car, PROMPT, kind="x")
    assert isinstance(caught.value, parse.ParseError)
    with pytest.raises(AnswerError, match="max_tokens"):
        list(llm.stream_structured_predict(Car, PROMPT, kind="x"))
    given: dict[str, Any] = {"max_tokens": 300, "tool_choice": "x", "tool_required": True}
    assert llm.structured_predict(Car, PROMPT, llm_kwargs=given, kind="x")


@pytest.mark.parametrize("wanted", [int, dict, None, Part(kind="door"), list[Part], {"a": 1}])
@pytest.mark.parametrize("mode", [PydanticProgramMode.DEFAULT, PydanticProgramMode.LLM])
async def test_what_is_no_class_of_pydantic_is_refused(wanted: Any, mode: Any) -> None:
    llm = saying("x", pydantic_program_mode=mode)
    with pytest.raises(parse.InvalidRequestError, match=r"output_cls is .*BaseModel"):
        llm.structured_predict(wanted, PROMPT, kind="x")
    with pytest.raises(parse.InvalidRequestError, match="output_cls is"):
        await llm.astructured_predict(wanted, PROMPT, kind="x")
    with pytest.raises(parse.InvalidRequestError, match="output_cls is"):
        list(llm.stream_structured_predict(wanted, PROMPT, kind="x"))
    with pytest.raises(parse.InvalidRequestError, match="output_cls is"):
        _ = [part async for part in await llm.astream_structured_predict(wanted, PROMPT, kind="x")]


async def test_a_response_format_beside_a_class_is_refused() -> None:
    llm, given = undecided(), {"response_format": {"type": "json_object"}}
    with pytest.raises(parse.InvalidRequestError, match="response_format beside output_cls"):
        llm.structured_predict(Part, PROMPT, llm_kwargs=given, kind="x")
    with pytest.raises(parse.InvalidRequestError, match="response_format"):
        await llm.astructured_predict(Part, PROMPT, llm_kwargs=given, kind="x")
    with pytest.raises(parse.InvalidRequestError, match="response_format"):
        list(llm.stream_structured_predict(Part, PROMPT, llm_kwargs=given, kind="x"))


def test_what_a_validator_refuses_is_an_error() -> None:
    class Even(BaseModel):
        number: int

        @field_validator("number")
        @classmethod
        def _even(cls, value: int) -> int:
            if value % 2:
                raise ValueError("it is odd")
            return value

    with pytest.raises(AnswerError, match="odd"):
        saying('{"number": 3}').structured_predict(Even, PromptTemplate("Which?"))
    assert saying('{"number": 4}').structured_predict(Even, PromptTemplate("Which?")).number == 4


async def test_other_program_modes_are_left_to_llamaindex() -> None:
    llm = undecided(0.0, max_tokens=300, pydantic_program_mode=PydanticProgramMode.FUNCTION)
    assert isinstance(llm.structured_predict(Car, PROMPT, kind="x"), Car)
    assert isinstance(await llm.astructured_predict(Car, PROMPT, kind="x"), Car)
    told, prompts = replying(
        *['{"kind": "door"}'] * 3, pydantic_program_mode=PydanticProgramMode.LLM
    )
    assert told.structured_predict(Part, PromptTemplate("Which?")) == Part(kind="door")
    assert list(told.stream_structured_predict(Part, PromptTemplate("Which?")))[-1].kind == "door"
    stream = await told.astream_structured_predict(Part, PromptTemplate("Which?"))
    assert [part async for part in stream][-1].kind == "door"
    assert len(prompts) == 3


def test_programs_of_llamaindex_work_too() -> None:
    program = FunctionCallingProgram.from_defaults(
        Car, prompt=PROMPT, llm=undecided(0.5, max_tokens=300)
    )
    assert isinstance(program(kind="x"), Car)
    assert isinstance(asyncio.run(program.acall(kind="x")), Car)


def test_schema_and_question_reach_the_model_as_they_are() -> None:
    llm, prompts = replying('{"kind": "door"}')
    prompt = ChatPromptTemplate.from_messages([("system", "Be brief."), ("user", "Say {what}.")])
    assert llm.structured_predict(Part, prompt, what="{it}").kind == "door"
    assert "Say {it}." in prompts[0]
    assert '"enum": ["wheel", "door"]' in prompts[0]
    assert "{{" not in prompts[0]


def test_structured_llms_are_enforced_too() -> None:
    llm = undecided(max_tokens=300).as_structured_llm(Car)
    answer = llm.chat([ChatMessage(content="Which {one}?")])
    assert Car.model_validate_json(answer.message.content or "") == answer.raw
