"""Tools and structured output."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

import pytest
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, ToolCallBlock
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import LLM
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import BaseTool, FunctionTool
from pydantic import BaseModel

from parse_integrations.llama_index.conformance.recording import recorded_events


class Paint(BaseModel):
    """A paint."""

    color: Literal["red", "blue"]
    shiny: bool


class Place(BaseModel):
    """Where."""

    city: Literal["Oslo", "Rome"]


def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return f"It is raining in {city}."


def get_time() -> str:
    """Get the time."""
    return "It is noon."


TOOLS: list[BaseTool] = [
    FunctionTool.from_defaults(get_weather, fn_schema=Place),
    FunctionTool.from_defaults(get_time),
]
WEATHER = "How is the weather in Oslo? Use the tool."
PAINT = PromptTemplate("Describe {which} paint.")
WAYS = ("chat_with_tools", "stream_chat_with_tools", "achat_with_tools", "astream_chat_with_tools")


def with_tools(llm: FunctionCallingLLM, way: str, tools: list[BaseTool], **given: Any) -> list[Any]:
    """Offer tools in one of the four ways, and return all responses."""
    call = getattr(llm, way)

    async def acall() -> list[Any]:
        answer = await call(tools, WEATHER, **given)
        return [response async for response in answer] if "stream" in way else [answer]

    if way.startswith("a"):
        return asyncio.run(acall())
    answer = call(tools, WEATHER, **given)
    return list(answer) if "stream" in way else [answer]


class AbilityTests:
    """What a model promises that says ``is_function_calling_model``."""

    enforces_tools = True

    @pytest.fixture(scope="class")
    @classmethod
    def caller(cls, llm: LLM) -> FunctionCallingLLM:
        """Return the LLM, if it calls tools."""
        if not llm.metadata.is_function_calling_model:
            pytest.skip("it calls no tools")
        assert isinstance(llm, FunctionCallingLLM)
        return llm

    @pytest.fixture(scope="class")
    @classmethod
    def enforcer(cls, caller: FunctionCallingLLM) -> FunctionCallingLLM:
        """Return the LLM, if a call can be enforced."""
        if not cls.enforces_tools:
            pytest.skip("it does not enforce calls")
        return caller

    @pytest.mark.parametrize("way", WAYS)
    def test_a_required_tool_is_called(self, enforcer: FunctionCallingLLM, way: str) -> None:
        """With arguments of its schema; as blocks, and in the older place that programs read."""
        *_, response = with_tools(enforcer, way, TOOLS[:1], tool_required=True)
        (call,) = enforcer.get_tool_calls_from_response(response)
        assert call.tool_name == "get_weather"
        assert call.tool_kwargs["city"] in ("Oslo", "Rome")
        assert call.tool_id
        blocks = [b for b in response.message.blocks if isinstance(b, ToolCallBlock)]
        assert [block.tool_name for block in blocks] == ["get_weather"]
        assert response.message.additional_kwargs["tool_calls"]

    @pytest.mark.parametrize("way", WAYS)
    def test_tools_need_not_be_called(self, caller: FunctionCallingLLM, way: str) -> None:
        """Agents read the calls of every part of a stream, most of which have none."""
        for response in with_tools(caller, way, TOOLS):
            assert isinstance(response, ChatResponse)
            calls = caller.get_tool_calls_from_response(response, error_on_no_tool_call=False)
            assert isinstance(calls, list)

    def test_no_call_is_an_error_where_one_is_needed(self, caller: FunctionCallingLLM) -> None:
        """And an empty list where none is."""
        response = ChatResponse(message=ChatMessage(role="assistant", content="No."))
        assert caller.get_tool_calls_from_response(response, error_on_no_tool_call=False) == []
        with pytest.raises(ValueError):  # noqa: PT011 - each package has words of its own
            caller.get_tool_calls_from_response(response)

    def test_results_of_tools_are_read(self, enforcer: FunctionCallingLLM) -> None:
        """A call and its result go back into the conversation, as agents send them."""
        asked = ChatMessage(role="user", content=WEATHER)
        called = enforcer.chat_with_tools(TOOLS[:1], asked, tool_required=True)
        (call,) = enforcer.get_tool_calls_from_response(called)
        result = ChatMessage(
            role="tool",
            content=get_weather("Oslo"),
            additional_kwargs={"tool_call_id": call.tool_id, "name": call.tool_name},
        )
        history = [asked, called.message, result]
        answer = enforcer.chat_with_tools(TOOLS[:1], chat_history=history)
        assert answer.message.role == "assistant"
        assert answer.message.blocks

    def test_tools_are_called_for_the_caller(self, enforcer: FunctionCallingLLM) -> None:
        """predict_and_call runs what was called, and hands back what it returned."""
        given: dict[str, Any] = {"tool_required": True, "error_on_tool_error": True}
        outcome = enforcer.predict_and_call(TOOLS[:1], WEATHER, **given)
        assert str(outcome).startswith("It is raining in")
        assert outcome.sources[0].tool_name == "get_weather"
        again = asyncio.run(enforcer.apredict_and_call(TOOLS[:1], WEATHER, **given))
        assert str(again) == str(outcome)

    def test_messages_with_calls_can_be_stored(self, enforcer: FunctionCallingLLM) -> None:
        """Chat stores and the contexts of workflows write them as JSON."""
        called = enforcer.chat_with_tools(TOOLS[:1], WEATHER, tool_required=True)
        stored = json.loads(called.message.model_dump_json())
        again = ChatResponse(message=ChatMessage.model_validate(stored))
        ours, theirs = (enforcer.get_tool_calls_from_response(r) for r in (called, again))
        assert ours == theirs

    def test_objects_are_predicted(self, enforcer: FunctionCallingLLM) -> None:
        """structured_predict and its async form give an object of the class."""
        found = enforcer.structured_predict(Paint, PAINT, which="red")
        assert isinstance(found, Paint)
        again = asyncio.run(enforcer.astructured_predict(Paint, PAINT, which="red"))
        assert again == found

    def test_objects_are_streamed(self, enforcer: FunctionCallingLLM) -> None:
        """Parts of an object come first, the whole of it last."""
        with recorded_events() as events:
            parts = list(enforcer.stream_structured_predict(Paint, PAINT, which="red"))
        assert isinstance(parts[-1], Paint)
        names = [event.class_name() for event in events]
        assert names.count("LLMStructuredPredictStartEvent") == 1
        assert names.count("LLMStructuredPredictEndEvent") == 1

        async def collect() -> list[Any]:
            stream = await enforcer.astream_structured_predict(Paint, PAINT, which="red")
            return [part async for part in stream]

        assert asyncio.run(collect())[-1] == parts[-1]

    def test_structured_llms_answer_in_json(self, enforcer: FunctionCallingLLM) -> None:
        """as_structured_llm, which agents and query engines use for ``output_cls``."""
        structured = enforcer.as_structured_llm(Paint)
        messages = [ChatMessage(role="user", content="Describe red paint.")]
        answer = structured.chat(messages)
        found = Paint.model_validate_json(answer.message.content or "")
        assert answer.raw == found
        assert asyncio.run(structured.achat(messages)).raw == found
        assert list(structured.stream_chat(messages))[-1].raw == found
        assert structured.complete("Describe red paint.").text == answer.message.content
