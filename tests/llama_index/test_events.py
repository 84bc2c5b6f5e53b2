"""What is reported of a call: LlamaIndex's events, one of ours, token counts, statistics."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.callbacks import CallbackManager, TokenCountingHandler
from llama_index.core.prompts import PromptTemplate

from parse_engine import parse_stats
from parse_integrations.llama_index import ParseLLM, ParseVerificationEvent
from parse_integrations.llama_index.conformance.recording import (
    ENDPOINTS,
    STREAMS,
    collect,
    recorded_events,
)
from tests import engines
from tests.llama_index.llms import LINES, saying, undecided

HI = [ChatMessage(content="Hi")]


def ours(events: list[Any]) -> list[ParseVerificationEvent]:
    return [event for event in events if isinstance(event, ParseVerificationEvent)]


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_one_event_a_call_tells_what_was_accepted(endpoint: str) -> None:
    llm = saying(LINES, verify_order="all", cut_at="line", max_prefixes=9)
    with recorded_events() as events:
        response = collect(llm, endpoint, "Hi")[-1]
    (event,) = ours(events)
    assert event.class_name() == "ParseVerificationEvent"
    assert event.model_name == "tiny-qwen2-0"
    assert event.draft_model_name == "scripted-tiny-qwen2-0"
    assert event.ends == [10, 24]
    assert len(event.verdict) == 2
    assert event.verdict_kind == "p_correct"
    assert event.accepted_tokens == event.drafted_tokens > 0
    assert event.stats == response.raw["parse"]
    names = [each.class_name() for each in events]
    assert names.index("ParseVerificationEvent") < len(names) - 1 - names[::-1].index(
        "LLMChatEndEvent" if "chat" in endpoint else "LLMCompletionEndEvent"
    )
    start = events[0]
    assert event.span_id == start.span_id is not None
    assert start.model_dict["draft_model_name"] == "scripted-tiny-qwen2-0"
    assert event.model_dump()["class_name"] == "ParseVerificationEvent"


def test_the_event_can_be_switched_off() -> None:
    with recorded_events() as events:
        saying(LINES, verification_events=False).complete("Hi")
    assert not ours(events)


def test_calls_without_verdicts_are_told_too() -> None:
    with recorded_events() as events:
        undecided(mode="target", max_tokens=3).complete("Hi")
    (event,) = ours(events)
    assert event.verdict == []
    assert event.stats is not None
    assert event.stats["mode"] == "target"


@pytest.mark.parametrize("endpoint", STREAMS)
def test_calls_that_are_given_up_are_told_without_statistics(endpoint: str) -> None:
    llm = undecided(max_tokens=4000)
    asked: Any = HI if "chat" in endpoint else "Hi"

    async def give_up() -> None:
        stream = await getattr(llm, endpoint)(asked)
        await anext(stream)
        await stream.aclose()

    with recorded_events() as events:
        if endpoint.startswith("a"):
            asyncio.run(give_up())
        else:
            stream = getattr(llm, endpoint)(asked)
            next(stream)
            stream.close()
    (event,) = ours(events)
    assert event.stats is None
    assert event.drafted_tokens > 0


def test_calls_that_fail_or_are_refused() -> None:
    with recorded_events() as events:
        with pytest.raises(RuntimeError):
            ParseLLM(engine=engines.broken()).complete("Hi")
        with pytest.raises(ValueError, match="treshold"):
            saying(LINES).complete("Hi", treshold=1)
    (event,) = ours(events)  # what was refused never was a call
    assert event.stats is None


async def test_streams_read_elsewhere_are_told_under_their_own_call() -> None:
    llm = undecided(max_tokens=3)
    with recorded_events() as events:
        streams = [await llm.astream_chat(HI) for _ in range(2)]
        for stream in reversed(streams):
            async for _ in stream:
                pass
    starts = [e.span_id for e in events if e.class_name() == "LLMChatStartEvent"]
    assert [event.span_id for event in ours(events)] == starts[::-1]


def test_token_counters_count_once_and_right() -> None:
    counter = TokenCountingHandler(tokenizer=lambda text: list(text.split()))
    llm = undecided(max_tokens=5, callback_manager=CallbackManager([counter]))
    usage = llm.chat(HI).raw["usage"]
    assert counter.prompt_llm_token_count == usage["prompt_tokens"]
    assert counter.completion_llm_token_count == usage["completion_tokens"]
    list(llm.stream_complete("Hi"))
    assert len(counter.llm_token_counts) == 2
    assert counter.total_llm_token_count == 2 * usage["total_tokens"]
    llm.predict(PromptTemplate("Hi"))
    assert counter.total_llm_token_count == 3 * usage["total_tokens"]


def test_statistics_are_added_up_over_all_endpoints() -> None:
    llm = saying(LINES)
    with parse_stats() as stats:
        for endpoint in ENDPOINTS:
            collect(llm, endpoint, "Hi")
    assert len(stats.calls) == stats.accepted_whole == len(ENDPOINTS)


def test_a_stream_counts_where_it_was_asked_for() -> None:
    llm = saying(LINES)
    with parse_stats() as stats:
        stream = llm.stream_chat(HI)
    assert list(stream)
    assert len(stats.calls) == 1
