"""invoke, stream, their async forms and event streams say the same, each thing once."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import torch
from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate

from parse_engine import Engine
from parse_integrations.langchain import ChatParse
from tests.engines import broken
from tests.langchain.llms import LINES, saying, undecided
from tests.scripted import scripted
from tests.tiny_models import tiny_model

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
THINKING = "<think>\nHm, hm.\n</think>\n\nThe answer."


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def joined(chunks: list[Any]) -> BaseMessage:
    total = chunks[0]
    for chunk in chunks[1:]:
        total = total + chunk
    assert isinstance(total, AIMessageChunk)
    return total


def invoke(llm: Any) -> BaseMessage:
    return llm.invoke("Hi")


def ainvoke(llm: Any) -> BaseMessage:
    return asyncio.run(llm.ainvoke("Hi"))


def stream(llm: Any) -> BaseMessage:
    return joined(list(llm.stream("Hi")))


def astream(llm: Any) -> BaseMessage:
    async def collect() -> list[Any]:
        return [chunk async for chunk in llm.astream("Hi")]

    return joined(asyncio.run(collect()))


def events(llm: Any) -> BaseMessage:
    return llm.stream_events("Hi", version="v3").output


def aevents(llm: Any) -> BaseMessage:
    async def collect() -> Any:
        return await (await llm.astream_events("Hi", version="v3"))

    return asyncio.run(collect())


def batch(llm: Any) -> BaseMessage:
    return llm.batch(["Hi"])[0]


def abatch(llm: Any) -> BaseMessage:
    return asyncio.run(llm.abatch(["Hi"]))[0]


def stream_inside_invoke(llm: Any) -> BaseMessage:
    return llm.invoke("Hi", stream=True)


PATHS = [invoke, ainvoke, stream, astream, events, aevents, batch, abatch, stream_inside_invoke]


def facts(message: BaseMessage) -> dict[str, Any]:
    assert isinstance(message, AIMessage)
    usage: Any = message.usage_metadata
    metadata = {k: v for k, v in message.response_metadata.items() if not k.endswith("_s")}
    metadata.pop("output_version", None)
    calls = [(call["name"], call["args"]) for call in message.tool_calls]
    broken = [(call["name"], call["args"]) for call in message.invalid_tool_calls]
    blocks = [
        {k: block.get(k) for k in ("type", "text", "reasoning", "name", "args")}
        for block in message.content_blocks
        # how a broken call is shown as a block is LangChain's own, and differs by path
        if block["type"] not in ("invalid_tool_call", "tool_call_chunk")
    ]
    return {
        "text": message.text,
        "usage": {k: usage[k] for k in ("input_tokens", "output_tokens", "total_tokens")},
        "metadata": metadata,
        "calls": calls,
        "broken": broken,
        "blocks": blocks,
    }


ANSWERS = {
    "text": (LINES, "qwen2.5", "stop"),
    "call": (CALL, "qwen2.5", "tool_calls"),
    "text and calls": (f"Let me see.\n{CALL}\n{CALL}", "qwen2.5", "tool_calls"),
    "half a call": (f"{CALL}\n{CALL[:40]}", "qwen2.5", "tool_calls"),
    "no JSON": (CALL.replace('"', "'"), "qwen2.5", "stop"),
    "thoughts": (THINKING, "qwen3", "stop"),
    "thoughts and call": (f"{THINKING}\n{CALL}", "qwen3", "tool_calls"),
}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
@pytest.mark.parametrize("version", [None, "v1"])
@pytest.mark.parametrize("answer", ANSWERS)
def test_all_paths_give_the_same_message(path: Any, version: str | None, answer: str) -> None:
    text, template, finish = ANSWERS[answer]
    llm = saying(text, template, output_version=version)
    bound: Any = llm.bind_tools([add]) if "call" in text else llm
    wanted = facts(
        saying(text, template).bind_tools([add]).invoke("Hi")
        if "call" in text
        else saying(text, template).invoke("Hi")
    )
    found = facts(path(bound))
    assert found == wanted
    assert found["metadata"]["finish_reason"] == finish
    assert found["metadata"]["model_name"] == "tiny-qwen2-0"
    assert found["metadata"]["model_provider"] == "parse"
    assert found["metadata"]["parse_accepted_tokens"] > 0
    assert found["usage"]["input_tokens"] > 0
    assert len(found["calls"]) == text.count("</tool_call>") * ("'" not in text)
    if "calls" in answer or "half" in answer:
        assert (("add", {"a": 1, "b": 2})) in found["calls"]
    if answer in ("half a call", "no JSON"):
        ((_, raw),) = found["broken"]
        assert raw.startswith("<tool_call>")
    if "thoughts" in answer:
        assert "Hm" not in found["text"]
        assert found["blocks"][0]["type"] == "reasoning"
        assert found["blocks"][0]["reasoning"] == "Hm, hm."


@pytest.mark.parametrize("version", [None, "v1"])
def test_usage_and_statistics_are_on_exactly_one_chunk(version: str | None) -> None:
    chunks = list(saying(LINES, output_version=version).stream("Hi"))
    assert len(chunks) > 1
    assert sum(chunk.usage_metadata is not None for chunk in chunks) == 1
    assert sum("parse_mode" in chunk.response_metadata for chunk in chunks) == 1
    assert [c.chunk_position for c in chunks] == [None] * (len(chunks) - 1) + ["last"]


class Tokens(BaseCallbackHandler):
    def __init__(self) -> None:
        self.seen = 0

    def on_llm_new_token(self, token: Any, **kwargs: Any) -> None:
        self.seen += 1


def test_each_token_is_reported_once() -> None:
    llm = undecided(max_tokens=8)
    handler = Tokens()
    chunks = list(llm.stream("Hi", config={"callbacks": [handler]}))
    assert handler.seen == len(chunks) > 2
    handler = Tokens()
    undecided(max_tokens=8, streaming=True).invoke("Hi", config={"callbacks": [handler]})
    assert handler.seen == len(chunks)


class Verdicts(BaseCallbackHandler):
    def __init__(self) -> None:
        self.data: list[Any] = []

    def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        assert name == "parse_verdicts"
        self.data.append(data)


class AsyncVerdicts(AsyncCallbackHandler):
    def __init__(self) -> None:
        self.data: list[Any] = []

    async def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        self.data.append(data)


def test_verdicts_reach_those_who_listen_without_a_chain_around() -> None:
    llm = saying(LINES, verify_order="all", cut_at="line", max_prefixes=9)
    handler = Verdicts()
    llm.invoke("Hi", config={"callbacks": [handler]})
    (data,) = handler.data
    assert data["ends"] == [10, 24]
    assert data["accepted_tokens"] == data["drafted_tokens"]
    assert len(data["verdict"]) == 2
    assert data["kind"] == "p_correct"
    listeners: list[Any] = [Verdicts(), AsyncVerdicts()]
    asyncio.run(llm.ainvoke("Hi", config={"callbacks": listeners}))
    assert [listener.data for listener in listeners] == [[data], [data]]


async def test_verdicts_of_a_stream_are_an_event_of_the_chain_around_it() -> None:
    prompt = ChatPromptTemplate.from_messages([("user", "{question}")])
    chain = prompt | saying(LINES) | StrOutputParser()
    handler, other = Verdicts(), AsyncVerdicts()
    assert "".join(chain.stream({"question": "Hi"}, {"callbacks": [handler]})) == LINES
    async for _ in chain.astream({"question": "Hi"}, {"callbacks": [other]}):
        pass
    assert len(handler.data) == 1
    assert other.data == handler.data
    events = [e async for e in chain.astream_events({"question": "Hi"}, version="v2")]
    assert [e["data"] for e in events if e["event"] == "on_custom_event"] == handler.data
    assert "".join(c.text for c in saying(LINES).stream("Hi")) == LINES  # nobody to tell


def test_closing_a_stream_stops_the_models() -> None:
    llm = undecided(max_tokens=4000)
    for _ in llm.stream("Hi"):
        break
    assert not [t for t in threading.enumerate() if t.name == "parse-call"]
    assert not torch.is_inference_mode_enabled()
    assert llm.invoke("Hi", max_tokens=2).usage_metadata["output_tokens"] == 2  # type: ignore[index]


async def test_cancelling_a_task_stops_the_models() -> None:
    llm = undecided(max_tokens=4000)
    started = asyncio.Event()

    async def read() -> None:
        async for _ in llm.astream("Hi"):
            started.set()

    task = asyncio.create_task(read())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for thread in [t for t in threading.enumerate() if t.name == "parse-call"]:
        await asyncio.to_thread(thread.join, 60)
        assert not thread.is_alive()
    assert not torch.is_inference_mode_enabled()


async def test_the_event_loop_is_not_blocked() -> None:
    """Another task runs between the chunks, and while no chunk is there yet."""
    turns = 0
    done = asyncio.Event()

    async def other() -> None:
        nonlocal turns
        while not done.is_set():
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    chunks = [chunk async for chunk in undecided(max_tokens=20).astream("Hi")]
    done.set()
    await task
    assert turns > len(chunks)


async def test_errors_arrive_on_every_path() -> None:
    llm = ChatParse(engine=broken())
    with pytest.raises(RuntimeError, match="out of memory"):
        llm.invoke("Hi")
    with pytest.raises(RuntimeError, match="out of memory"):
        await llm.ainvoke("Hi")
    with pytest.raises(RuntimeError, match="out of memory"):
        list(llm.stream("Hi"))
    with pytest.raises(RuntimeError, match="out of memory"):
        async for _ in llm.astream("Hi"):
            pass


def test_many_calls_at_the_same_time_do_not_mix() -> None:
    llm = undecided(max_tokens=6)
    questions = [f"Question {number % 8}" for number in range(32)]
    alone = {question: llm.invoke(question).text for question in set(questions)}
    together = llm.batch(questions, config={"max_concurrency": 8})
    assert [m.text for m in together] == [alone[q] for q in questions]

    async def at_once() -> list[Any]:
        return await asyncio.gather(*(llm.ainvoke(question) for question in questions))

    assert [m.text for m in asyncio.run(at_once())] == [alone[q] for q in questions]


def test_draft_that_fails_costs_no_answer() -> None:
    model = tiny_model()
    draft = scripted(model, "x", error=RuntimeError("lost"))
    llm = ChatParse(engine=Engine(model, draft), max_tokens=5)
    with pytest.warns(UserWarning, match="target alone"):
        answer = llm.invoke("Hi")
    assert "lost" in answer.response_metadata["parse_fallback"]
    assert answer.text
