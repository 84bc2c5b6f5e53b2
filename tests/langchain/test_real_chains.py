"""Chains, agents and graphs on the real pair, with the statistics read back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import pytest
import torch
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain.agents.structured_output import ProviderStrategy
from langchain_core.documents import Document
from langchain_core.messages import AIMessageChunk, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnablePassthrough
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel

from parse_engine.demo import ensure_demo_pair
from parse_integrations.langchain import (
    ChatParse,
    ParseStatsCallbackHandler,
    get_parse_stats_callback,
)
from tests.corpus import best, chunks

pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.fixture(autouse=True, scope="module")
def all_cores() -> None:
    torch.set_num_threads(2)


@pytest.fixture(scope="module")
def llm() -> Iterator[ChatParse]:
    pair = ensure_demo_pair()
    made = ChatParse(
        model=str(pair.target),
        draft_model=str(pair.draft),
        local_files_only=True,
        threshold=0.6,
        temperature=0,
        max_tokens=80,
    )
    yield made.load()
    made.close()


class BM25(BaseRetriever):
    """Okapi BM25 over words."""

    texts: list[str]

    def _get_relevant_documents(self, query: str, **kwargs: Any) -> list[Document]:
        return [Document(self.texts[number]) for number in best(self.texts, query)]


def test_rag(llm: ChatParse) -> None:
    texts = chunks()
    assert len(texts) >= 200
    prompt = ChatPromptTemplate.from_messages(
        [
            ("system", "Answer in one sentence, by these texts only:\n\n{texts}"),
            ("user", "{question}"),
        ]
    )
    retriever = BM25(texts=texts)
    chain = (
        {
            "texts": retriever | (lambda documents: "\n\n".join(d.page_content for d in documents)),
            "question": RunnablePassthrough(),
        }
        | prompt
        | llm
        | StrOutputParser()
    )
    question = "Which exception does an assert statement raise when its condition is false?"
    with get_parse_stats_callback() as cb:
        answer = chain.invoke(question)
    assert "AssertionError" in answer
    assert cb.total.calls == 1
    assert cb.total.fallbacks == 0
    assert cb.total.drafted_tokens > 0
    streamed = "".join(chain.stream(question))
    assert streamed == answer


def multiply(a: int, b: int) -> int:
    """Multiply two whole numbers."""
    return a * b


def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return f"It is raining in {city}."


class CallFirst(AgentMiddleware):
    """A call, then an answer: small models do not know when to do which."""

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        return handler(self.forced(request))

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        return await handler(self.forced(request))

    def forced(self, request: Any) -> Any:
        answered = isinstance(request.messages[-1], ToolMessage)
        return request.override(tool_choice="none" if answered else "any")


async def test_agent(llm: ChatParse) -> None:
    handler = ParseStatsCallbackHandler()
    question: Any = {"messages": [("user", "What is the weather in Paris? Use the tool.")]}
    agent = create_agent(llm, [multiply, get_weather], middleware=[CallFirst()])
    state = agent.invoke(question, config={"callbacks": [handler]})
    results = [m.content for m in state["messages"] if isinstance(m, ToolMessage)]
    assert results[0] == "It is raining in Paris."
    assert handler.total.calls == len(results) + 1
    assert "rain" in state["messages"][-1].text.lower()
    again = await agent.ainvoke(question)
    assert again["messages"][-1].text == state["messages"][-1].text
    parts = list(agent.stream(question, stream_mode="messages"))
    pieces = [part[0] for part in parts if isinstance(part[0], AIMessageChunk)]
    assert "".join(piece.text for piece in pieces) == state["messages"][-1].text


class Order(BaseModel):
    """An order of a customer."""

    item: str
    count: int
    urgent: bool
    unit: Literal["piece", "box"]


def test_extraction(llm: ChatParse) -> None:
    text = "Please send us 12 boxes of green pencils, it is urgent!"
    with get_parse_stats_callback() as cb:
        order = llm.with_structured_output(Order).invoke(f"Extract the order: {text}")
    assert order.count == 12
    assert "pencil" in order.item
    assert order.urgent
    assert cb.total.calls == 1
    agent = create_agent(llm, [], response_format=ProviderStrategy(Order))
    state = agent.invoke({"messages": [("user", f"Extract the order: {text}")]})
    assert state["structured_response"] == order


def test_graph_with_memory(llm: ChatParse) -> None:
    def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [llm.invoke(state["messages"], max_tokens=30)]}

    builder = StateGraph(MessagesState)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    graph: Any = builder.compile(checkpointer=InMemorySaver())
    thread = {"configurable": {"thread_id": "1"}}
    with get_parse_stats_callback() as cb:
        graph.invoke({"messages": [("user", "My name is Ottilie.")]}, thread)
        state = graph.invoke({"messages": [("user", "What is my name?")]}, thread)
    assert "Ottilie" in state["messages"][-1].text
    assert cb.total.calls == 2
