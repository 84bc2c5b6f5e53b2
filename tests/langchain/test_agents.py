"""Agents and graphs of LangChain, with answers that are known."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest
from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.messages import AIMessage, AIMessageChunk, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel

from parse_integrations.langchain import get_parse_stats_callback
from tests.langchain.llms import replying, saying, undecided

QUESTION: Any = {"messages": [{"role": "user", "content": "What is 17 times 3, and the time?"}]}
TWO_CALLS = (
    '<tool_call>\n{"name": "multiply", "arguments": {"a": 17, "b": 3}}\n</tool_call>\n'
    '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
)


def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


def clock() -> str:
    """Tell the time."""
    return "noon"


class Verdict(BaseModel):
    """A verdict."""

    good: bool
    size: Literal["s", "m"]


def check(messages: list[Any], prompts: list[str]) -> None:
    results = [message.content for message in messages if isinstance(message, ToolMessage)]
    assert sorted(results) == ["51", "noon"]
    assert messages[-1].text == "It is 51, and noon."
    assert messages[-1].response_metadata["model_provider"] == "parse"
    assert "51" in prompts[1]
    assert "noon" in prompts[1]
    assert "multiply" in prompts[0]


def test_agent_calls_tools_and_reads_their_results() -> None:
    llm, prompts = replying(TWO_CALLS, "It is 51, and noon.")
    with get_parse_stats_callback() as cb:
        state = create_agent(llm, [multiply, clock]).invoke(QUESTION)
    check(state["messages"], prompts)
    assert cb.total.calls == cb.total.accepted_whole == 2


async def test_agent_async() -> None:
    llm, prompts = replying(TWO_CALLS, "It is 51, and noon.")
    state = await create_agent(llm, [multiply, clock]).ainvoke(QUESTION)
    check(state["messages"], prompts)


def test_agent_streams_messages_with_the_same_figures() -> None:
    llm, _ = replying(TWO_CALLS, "It is 51, and noon.")
    with get_parse_stats_callback() as cb:
        parts = list(create_agent(llm, [multiply, clock]).stream(QUESTION, stream_mode="messages"))
    chunks = [part[0] for part in parts if isinstance(part[0], AIMessageChunk)]
    assert "".join(chunk.text for chunk in chunks).strip() == "It is 51, and noon."
    assert sum(chunk.usage_metadata is not None for chunk in chunks) == 2
    assert [c["name"] for chunk in chunks for c in chunk.tool_call_chunks] == ["multiply", "clock"]
    assert cb.total.calls == 2


def test_agent_does_not_crash_on_a_malformed_call() -> None:
    llm, prompts = replying("<tool_call>\n{'name': 'multiply'}\n</tool_call>", "Sorry.")
    state = create_agent(llm, [multiply]).invoke(QUESTION)
    assert state["messages"][-1].invalid_tool_calls or state["messages"][-1].text == "Sorry."
    assert prompts


@pytest.mark.parametrize("threshold", [0.0, 1.0])
@pytest.mark.parametrize("strategy", [ToolStrategy, ProviderStrategy, None])
@pytest.mark.parametrize("tools", [[], [multiply]])
def test_agents_with_a_response_format(strategy: Any, threshold: float, tools: Any) -> None:
    if strategy is None:
        wanted: Any = Verdict
    else:
        wanted = strategy(Verdict)
    if tools and strategy is not ToolStrategy:
        llm, _ = replying('{"good": true, "size": "m"}')
    elif tools:
        llm, _ = replying(
            '<tool_call>\n{"name": "Verdict", "arguments": {"good": true, "size": "m"}}\n'
            "</tool_call>"
        )
    else:
        llm = undecided(threshold, max_tokens=200)
    state = create_agent(llm, tools, response_format=wanted).invoke(QUESTION)
    assert isinstance(state["structured_response"], Verdict)


def test_graph_with_a_checkpointer_remembers() -> None:
    llm, prompts = replying("Hello Ann.", "You are Ann.")

    def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [llm.invoke(state["messages"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    graph: Any = builder.compile(checkpointer=InMemorySaver())
    thread = {"configurable": {"thread_id": "1"}}
    graph.invoke({"messages": [("user", "I am Ann.")]}, thread)
    state = graph.invoke({"messages": [("user", "Who am I?")]}, thread)
    assert [m.text for m in state["messages"] if isinstance(m, AIMessage)] == [
        *("Hello Ann.", "You are Ann.")
    ]
    assert "Hello Ann." in prompts[1]


def test_chains_get_text_without_thoughts() -> None:
    prompt = ChatPromptTemplate.from_messages([("system", "Be brief."), ("user", "{question}")])
    chain = prompt | saying("<think>\nHm.\n</think>\n\nYes.", "qwen3") | StrOutputParser()
    assert chain.invoke({"question": "Is it?"}) == "Yes."
    assert "".join(chain.stream({"question": "Is it?"})) == "Yes."
    assert asyncio.run(chain.ainvoke({"question": "Is it?"})) == "Yes."
