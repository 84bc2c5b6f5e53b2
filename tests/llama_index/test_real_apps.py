"""Query engines, chat engines and agents on the real pair, with the statistics read back.

Answers of models this small are checked where the task lets them be right: a word that stands in
the retrieved text, the result of a tool. Where a call of a tool is needed it is enforced; the
ReActAgent, which cannot enforce one, is judged by its form.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import pytest
import torch
from llama_index.core import Settings, get_response_synthesizer
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent, ReActAgent
from llama_index.core.chat_engine import (
    CondensePlusContextChatEngine,
    CondenseQuestionChatEngine,
    ContextChatEngine,
    SimpleChatEngine,
)
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import ResponseMode
from llama_index.core.retrievers import BaseRetriever, QueryFusionRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.core.tools import FunctionTool
from pydantic import BaseModel

from parse_engine import StatsCollector, parse_stats
from parse_engine.demo import ensure_demo_pair
from parse_integrations.llama_index import ParseLLM
from tests.corpus import best, chunks

pytestmark = [pytest.mark.real, pytest.mark.slow]
QUESTION = "Which exception is raised when a local variable is used before it has been bound?"


@pytest.fixture(autouse=True, scope="module")
def all_cores() -> None:
    torch.set_num_threads(2)


@pytest.fixture(scope="module")
def loaded() -> Iterator[ParseLLM]:
    pair = ensure_demo_pair()
    made = ParseLLM(
        model=str(pair.target),
        draft_model=str(pair.draft),
        local_files_only=True,
        threshold=0.6,
        temperature=0,
        max_tokens=40,
    )
    yield made.load()
    made.close()


@pytest.fixture
def llm(loaded: ParseLLM, llama_index_globals: None) -> ParseLLM:
    Settings.llm = loaded
    Settings.tokenizer = loaded.tokenizer
    return loaded


class BM25(BaseRetriever):
    """The two texts of the reference of Python that suit best."""

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        texts = chunks()
        assert len(texts) >= 200
        found = best(texts, query_bundle.query_str, 2)
        return [NodeWithScore(node=TextNode(text=texts[number]), score=1.0) for number in found]


def engine_of(llm: ParseLLM, mode: ResponseMode, *, streaming: bool = False) -> Any:
    synthesizer = get_response_synthesizer(llm=llm, response_mode=mode, streaming=streaming)
    return RetrieverQueryEngine(retriever=BM25(), response_synthesizer=synthesizer)


def check(stats: StatsCollector, calls: int) -> None:
    """Every call of the run was drafted and judged."""
    assert len(stats.calls) == calls
    assert stats.fallbacks == 0
    assert all(call.drafted_tokens > 0 and call.prefixes > 0 for call in stats.calls)
    assert 0 <= stats.accepted_fraction <= 1


@pytest.mark.parametrize(
    ("mode", "calls"),
    [
        (ResponseMode.COMPACT, 1),
        (ResponseMode.REFINE, 2),
        (ResponseMode.TREE_SUMMARIZE, 1),
        (ResponseMode.ACCUMULATE, 2),
        (ResponseMode.SIMPLE_SUMMARIZE, 1),
    ],
)
def test_query_engines(llm: ParseLLM, mode: ResponseMode, calls: int) -> None:
    with parse_stats() as stats:
        answer = engine_of(llm, mode).query(QUESTION)
    print(mode, "|", answer, "|", stats.accepted_tokens, "of", stats.drafted_tokens)
    assert "UnboundLocalError" in str(answer)
    check(stats, calls)


async def test_query_engine_streams_and_awaits_the_same(llm: ParseLLM) -> None:
    wanted = str(engine_of(llm, ResponseMode.COMPACT).query(QUESTION))
    with parse_stats() as stats:
        streamed = engine_of(llm, ResponseMode.COMPACT, streaming=True).query(QUESTION)
        assert "".join(streamed.response_gen) == wanted
        assert str(await engine_of(llm, ResponseMode.COMPACT).aquery(QUESTION)) == wanted
        again = await engine_of(llm, ResponseMode.COMPACT, streaming=True).aquery(QUESTION)
        assert "".join([token async for token in again.async_response_gen()]) == wanted
    check(stats, 3)


def test_fusion_of_queries(llm: ParseLLM) -> None:
    retriever: Any = QueryFusionRetriever([BM25()], llm=llm, num_queries=2, similarity_top_k=2)
    with parse_stats() as stats:
        found = retriever.retrieve(QUESTION)
    assert any("UnboundLocalError" in node.text for node in found)
    check(stats, 1)


class Answer(BaseModel):
    """An exception of Python."""

    exception: Literal["KeyError", "UnboundLocalError", "ValueError"]


def test_query_engine_with_an_output_class(llm: ParseLLM) -> None:
    synthesizer = get_response_synthesizer(llm=llm.as_structured_llm(Answer))
    with parse_stats() as stats:
        answer = RetrieverQueryEngine(BM25(), synthesizer).query(QUESTION)
    assert answer.response == Answer(exception="UnboundLocalError")  # type: ignore[union-attr]
    check(stats, 1)


def test_simple_chat_engine_remembers(llm: ParseLLM) -> None:
    with parse_stats() as stats:
        chat = SimpleChatEngine.from_defaults(llm=llm)
        chat.chat("My name is Ottilie. Say hello.")
        answer = chat.stream_chat("What is my name?")
        assert "Ottilie" in "".join(answer.response_gen)
    check(stats, 2)


@pytest.mark.parametrize("kind", ["context", "condense_question", "condense_plus_context"])
async def test_chat_engines_over_the_corpus(llm: ParseLLM, kind: str) -> None:
    made = {
        "context": lambda: ContextChatEngine.from_defaults(BM25(), llm=llm),
        "condense_question": lambda: CondenseQuestionChatEngine.from_defaults(
            engine_of(llm, ResponseMode.COMPACT), llm=llm
        ),
        "condense_plus_context": lambda: CondensePlusContextChatEngine.from_defaults(
            BM25(), llm=llm
        ),
    }
    chat: Any = made[kind]()
    with parse_stats() as stats:
        assert "UnboundLocalError" in str(chat.chat(QUESTION))
        assert str(await chat.achat("Of which exception is that a subclass?"))
    check(stats, 2 if kind == "context" else 3)


async def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return f"It is raining in {city}."


def get_time(city: str) -> str:
    """Get the time of day in a city."""
    return f"It is noon in {city}."


@pytest.mark.parametrize(("direct", "streaming"), [(True, True), (True, False), (False, True)])
async def test_function_agent(llm: ParseLLM, direct: bool, streaming: bool) -> None:
    """The first call is enforced. What follows on its result is not judged: models of this size go
    on to call, in a form that is none, where they should answer.
    """
    weather = FunctionTool.from_defaults(async_fn=get_weather, return_direct=direct)
    agent = FunctionAgent(
        tools=[weather, get_time],
        llm=llm,
        initial_tool_choice="get_weather",
        allow_parallel_tool_calls=False,
        early_stopping_method="generate",
        streaming=streaming,
    )
    with parse_stats() as stats:
        output = await agent.run("What is the weather in Paris?", max_iterations=3)
    first = output.tool_calls[0]
    assert (first.tool_name, first.tool_kwargs) == ("get_weather", {"city": "Paris"})
    if direct:
        assert str(output) == "It is raining in Paris."
    check(stats, 1 if direct else len(stats.calls))


async def test_react_agent(llm: ParseLLM) -> None:
    """Stopped before an observation, so that no observation is made up."""
    stopping = llm.model_copy(update={"stop": ["\nObservation:"], "max_tokens": 60})
    agent = ReActAgent(tools=[get_weather], llm=stopping, early_stopping_method="generate")
    with parse_stats() as stats:
        output = await agent.run(
            "What is the weather in Paris? Use the tool.",
            max_iterations=4,
            early_stopping_method="generate",
        )
    assert str(output)
    assert "Observation:" not in str(output)
    check(stats, len(stats.calls))
    assert stats.calls


async def test_agent_workflow(llm: ParseLLM) -> None:
    agent = FunctionAgent(
        name="weather",
        description="Knows the weather.",
        llm=llm,
        tools=[get_weather],
        initial_tool_choice="get_weather",
        allow_parallel_tool_calls=False,
    )
    with parse_stats() as stats:
        output = await AgentWorkflow(
            agents=[agent], root_agent="weather", early_stopping_method="generate"
        ).run("What is the weather in Oslo?", max_iterations=3)
    assert "Oslo" in str(output.tool_calls[0].tool_output)
    check(stats, len(stats.calls))
