"""Query engines, chat engines and agents of LlamaIndex, with answers that are known."""

from __future__ import annotations

from typing import Any

import pytest
from llama_index.core import Settings, get_response_synthesizer
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent, ReActAgent
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.chat_engine import (
    CondensePlusContextChatEngine,
    CondenseQuestionChatEngine,
    ContextChatEngine,
    SimpleChatEngine,
)
from llama_index.core.chat_engine.types import BaseChatEngine
from llama_index.core.query_engine import RetrieverQueryEngine, SubQuestionQueryEngine
from llama_index.core.response_synthesizers import ResponseMode
from llama_index.core.retrievers import BaseRetriever, QueryFusionRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.core.tools import QueryEngineTool
from pydantic import BaseModel

from parse_engine import parse_stats
from parse_integrations.llama_index import ParseLLM
from tests.llama_index.llms import replying, saying, undecided

FACTS = ("The sky is green.", "Grass is blue.", "Snow is hot.")


class Facts(BaseRetriever):
    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [NodeWithScore(node=TextNode(text=text), score=1.0) for text in FACTS]


@pytest.fixture(autouse=True)
def no_defaults(llama_index_globals: None) -> None:
    """What is not given would be OpenAI's."""
    Settings.llm = saying("the default")
    Settings.tokenizer = Settings.llm.tokenizer  # type: ignore[attr-defined]


MODES = (
    *(ResponseMode.COMPACT, ResponseMode.REFINE, ResponseMode.TREE_SUMMARIZE),
    *(ResponseMode.ACCUMULATE, ResponseMode.SIMPLE_SUMMARIZE, ResponseMode.COMPACT_ACCUMULATE),
)


def engine_of(llm: ParseLLM, mode: ResponseMode, *, streaming: bool = False) -> Any:
    synthesizer = get_response_synthesizer(llm=llm, response_mode=mode, streaming=streaming)
    return RetrieverQueryEngine(retriever=Facts(), response_synthesizer=synthesizer)


@pytest.mark.parametrize("mode", MODES)
async def test_query_engines(mode: ResponseMode) -> None:
    calls = 3 if mode in (ResponseMode.REFINE, ResponseMode.ACCUMULATE) else 1
    llm, prompts = replying(*["It is green."] * 2 * calls)
    with parse_stats() as stats:
        answer = engine_of(llm, mode).query("What color is the sky?")
        again = await engine_of(llm, mode).aquery("What color is the sky?")
    assert "It is green." in str(answer)
    assert str(again) == str(answer)
    assert len(stats.calls) == stats.accepted_whole == 2 * calls
    assert all(any(fact in prompt for prompt in prompts) for fact in FACTS)


@pytest.mark.parametrize("mode", MODES[:3])
async def test_query_engines_stream(mode: ResponseMode) -> None:
    calls = 3 if mode == ResponseMode.REFINE else 1
    llm, _ = replying(*["It is green."] * 2 * calls)
    with parse_stats() as stats:
        answer = engine_of(llm, mode, streaming=True).query("What color is the sky?")
        assert "".join(answer.response_gen) == "It is green."
        again = await engine_of(llm, mode, streaming=True).aquery("What color is the sky?")
        assert "".join([token async for token in again.async_response_gen()]) == "It is green."
    assert len(stats.calls) == 2 * calls


async def test_settings_llm_is_enough() -> None:
    llm, prompts = replying("It is green.")
    Settings.llm = llm
    engine = RetrieverQueryEngine.from_args(Facts())
    assert str(engine.query("What color is the sky?")) == "It is green."
    assert "The sky is green." in prompts[0]


def test_query_engine_with_an_output_class() -> None:
    class Color(BaseModel):
        color: str

    llm, _ = replying('{"color": "green"}')
    synthesizer = get_response_synthesizer(llm=llm.as_structured_llm(Color))
    answer = RetrieverQueryEngine(Facts(), synthesizer).query("What color is the sky?")
    assert answer.response == Color(color="green")  # type: ignore[union-attr]


def test_fusion_retriever_asks_for_queries() -> None:
    llm, prompts = replying("color of the sky\ncolor of grass")
    retriever: Any = QueryFusionRetriever([Facts()], llm=llm, num_queries=3, similarity_top_k=3)
    assert {node.text for node in retriever.retrieve("Colors?")} == set(FACTS)
    assert "Colors?" in prompts[0]


def test_sub_questions() -> None:
    written = '```json\n{"items": [{"sub_question": "Sky?", "tool_name": "facts"}]}\n```'
    llm, prompts = replying(written, "Green.", "All is green.")
    tool = QueryEngineTool.from_defaults(
        engine_of(llm, ResponseMode.COMPACT), name="facts", description="All facts."
    )
    from llama_index.core.question_gen import LLMQuestionGenerator

    engine = SubQuestionQueryEngine.from_defaults(
        [tool],
        llm=llm,
        question_gen=LLMQuestionGenerator.from_defaults(llm),
        response_synthesizer=get_response_synthesizer(llm=llm),
        use_async=False,
        verbose=False,
    )
    assert str(engine.query("What color is everything?")) == "All is green."
    assert len(prompts) == 3


def chat_engine(kind: str, llm: ParseLLM) -> BaseChatEngine:
    if kind == "simple":
        return SimpleChatEngine.from_defaults(llm=llm)
    if kind == "context":
        return ContextChatEngine.from_defaults(Facts(), llm=llm)
    if kind == "condense_question":
        return CondenseQuestionChatEngine.from_defaults(
            engine_of(llm, ResponseMode.COMPACT), llm=llm
        )
    return CondensePlusContextChatEngine.from_defaults(Facts(), llm=llm)


@pytest.mark.parametrize("kind", ["simple", "context", "condense_question", "condense_plus"])
async def test_chat_engines(kind: str) -> None:
    condenses = kind.startswith("condense")
    texts = ["Green.", *(["What about grass?"] * condenses), "Blue."]
    llm, prompts = replying(*texts, *texts)
    with parse_stats() as stats:
        chat = chat_engine(kind, llm)
        assert str(chat.chat("What color is the sky?")) == "Green."
        assert str(chat.chat("And grass?")) == "Blue."
        again = chat_engine(kind, llm)
        assert str(await again.achat("What color is the sky?")) == "Green."
        assert str(await again.achat("And grass?")) == "Blue."
    assert len(stats.calls) == len(prompts) == 2 * len(texts)
    assert len(chat.chat_history) == 4


@pytest.mark.parametrize("kind", ["simple", "context", "condense_plus"])
async def test_chat_engines_stream(kind: str) -> None:
    llm, _ = replying("Green.", "Green.")
    with parse_stats() as stats:
        answer = chat_engine(kind, llm).stream_chat("What color is the sky?")
        assert "".join(answer.response_gen) == "Green."
        again = await chat_engine(kind, llm).astream_chat("What color is the sky?")
        assert "".join([token async for token in again.async_response_gen()]) == "Green."
    assert len(stats.calls) == 2


def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


def clock() -> str:
    """Tell the time."""
    return "noon"


TWO_CALLS = (
    '<tool_call>\n{"name": "multiply", "arguments": {"a": 17, "b": 3}}\n</tool_call>\n'
    '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
)
QUESTION = "What is 17 times 3, and the time?"


@pytest.mark.parametrize("streaming", [True, False])
async def test_function_agent(streaming: bool) -> None:
    llm, prompts = replying(TWO_CALLS, "It is 51, and noon.")
    agent = FunctionAgent(tools=[multiply, clock], llm=llm, streaming=streaming)
    with parse_stats() as stats:
        output = await agent.run(QUESTION)
    assert str(output) == "It is 51, and noon."
    assert sorted(call.tool_name for call in output.tool_calls) == ["clock", "multiply"]
    assert "51" in prompts[1]
    assert "noon" in prompts[1]
    assert output.raw["parse"]["accepted_fraction"] == 1.0
    assert len(stats.calls) == stats.accepted_whole == 2


async def test_function_agent_can_be_made_to_call_a_tool() -> None:
    llm = undecided(max_tokens=200)
    agent = FunctionAgent(
        tools=[clock], llm=llm, initial_tool_choice="clock", allow_parallel_tool_calls=False
    )
    output = await agent.run("Hi", max_iterations=3)
    assert [call.tool_name for call in output.tool_calls] == ["clock"]


async def test_agent_does_not_crash_on_a_malformed_call() -> None:
    llm, _ = replying("<tool_call>\n{'name': 'multiply'}\n</tool_call>")
    output = await FunctionAgent(tools=[multiply], llm=llm).run(QUESTION)
    assert "{'name': 'multiply'}" in str(output)
    assert not output.tool_calls


REACT = (
    "Thought: I need a tool.\nAction: multiply\nAction Input: {'a': 17, 'b': 3}\n"
    "Observation: 99\nThought: Done.\nAnswer: It is 99."
)


@pytest.mark.parametrize("streaming", [True, False])
async def test_react_agent_waits_for_the_observation(streaming: bool) -> None:
    """Stopped before it, for otherwise the model makes one up."""
    llm, prompts = replying(
        REACT, "Thought: I can answer.\nAnswer: It is 51.", stop=["\nObservation:"]
    )
    agent = ReActAgent(tools=[multiply], llm=llm, streaming=streaming)
    with parse_stats() as stats:
        output = await agent.run(QUESTION)
    assert str(output) == "It is 51."
    assert "Observation: 51" in prompts[1]
    assert "99" not in prompts[1]
    assert len(stats.calls) == 2


async def test_agents_hand_over() -> None:
    hand = (
        '<tool_call>\n{"name": "handoff", "arguments": '
        '{"to_agent": "second", "reason": "it can multiply"}}\n</tool_call>'
    )
    call = '<tool_call>\n{"name": "multiply", "arguments": {"a": 17, "b": 3}}\n</tool_call>'
    llm, prompts = replying(hand, call, "It is 51.")
    first = FunctionAgent(
        name="first", description="Talks.", llm=llm, can_handoff_to=["second"], tools=[clock]
    )
    second = FunctionAgent(name="second", description="Multiplies.", llm=llm, tools=[multiply])
    with parse_stats() as stats:
        output = await AgentWorkflow(agents=[first, second], root_agent="first").run(QUESTION)
    assert str(output) == "It is 51."
    assert output.current_agent_name == "second"
    assert len(stats.calls) == len(prompts) == 3


async def test_workflow_of_functions_takes_the_function_agent() -> None:
    llm, _ = replying(TWO_CALLS, "It is 51, and noon.")
    flow = AgentWorkflow.from_tools_or_functions([multiply, clock], llm=llm)
    assert isinstance(next(iter(flow.agents.values())), FunctionAgent)
    handler = flow.run(QUESTION, chat_history=[ChatMessage(content="Hello.")])
    events = [event async for event in handler.stream_events()]
    assert str(await handler) == "It is 51, and noon."
    deltas = [event.delta for event in events if type(event).__name__ == "AgentStream"]
    assert "It is 51" in "".join(deltas)
