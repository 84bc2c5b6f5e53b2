"""Statistics of all calls of an app."""

from __future__ import annotations

import asyncio
import gc
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.runnables import RunnableLambda

from parse_engine import Engine, ParseConfig
from parse_integrations.langchain import (
    ChatParse,
    ParseStatsCallbackHandler,
    ParseTotals,
    get_parse_stats_callback,
)
from tests.langchain.llms import LINES, saying, undecided
from tests.scripted import scripted
from tests.tiny_models import tiny_model


def test_figures_of_one_call_are_those_of_its_message() -> None:
    with get_parse_stats_callback() as cb:
        answer = undecided(max_tokens=9).invoke("Hi")
    stats = answer.response_metadata
    assert cb.total.calls == 1
    for name in ("drafted_tokens", "accepted_tokens", "regenerated_tokens", "draft_s", "verify_s"):
        assert getattr(cb.total, name) == stats[f"parse_{name}"]
    assert cb.total.regenerate_s == stats["parse_regenerate_s"] > 0
    assert cb.total.accepted_fraction == 0.0
    assert cb.by_model == {"tiny-qwen2-0": cb.total}


async def test_every_path_is_counted_once() -> None:
    llm = saying(LINES)
    with get_parse_stats_callback() as cb:
        llm.invoke("Hi")
        list(llm.stream("Hi"))
        await llm.ainvoke("Hi")
        _ = [chunk async for chunk in llm.astream("Hi")]
        _ = llm.stream_events("Hi", version="v3").output
        llm.batch(["Hi", "Ho"])
        await llm.abatch(["Hi", "Ho"])
    assert cb.total.calls == cb.total.accepted_whole == 9
    assert cb.total.accepted_tokens == cb.total.drafted_tokens == 9 * 24
    llm.invoke("Hi")
    assert cb.total.calls == 9


def test_handler_given_by_hand_and_by_block_count_alike() -> None:
    handler = ParseStatsCallbackHandler()
    chain = saying(LINES) | RunnableLambda(lambda message: message.text)
    with get_parse_stats_callback() as cb:
        chain.invoke("Hi", config={"callbacks": [handler, cb]})
    assert handler.total.calls == cb.total.calls == 1
    assert handler.total.drafted_tokens == cb.total.drafted_tokens


def test_nested_blocks() -> None:
    llm = saying(LINES)

    def inner(question: str) -> Any:
        with get_parse_stats_callback() as of_inner:
            llm.invoke(question)
        return of_inner

    with get_parse_stats_callback() as outer:
        llm.invoke("Hi")
        assert inner("Hi").total.calls == 1
        # a chain hands the outer handler down to the call that the inner block listens to
        assert RunnableLambda(inner).invoke("Hi").total.calls == 1
    assert outer.total.calls == 3


def test_a_block_that_fails_stops_listening() -> None:
    llm = saying(LINES)
    with pytest.raises(KeyError), get_parse_stats_callback() as cb:
        raise KeyError
    llm.invoke("Hi")
    assert cb.total.calls == 0


async def test_threads_and_tasks() -> None:
    llm = saying(LINES)
    with get_parse_stats_callback() as cb:
        with ThreadPoolExecutor(8) as pool:
            contexts = [copy_context() for _ in range(16)]
            list(pool.map(lambda context: context.run(llm.invoke, "Hi"), contexts))
        await asyncio.gather(*(llm.ainvoke("Hi") for _ in range(16)))
    assert cb.total.calls == cb.total.accepted_whole == 32

    async def one_listener(count: int) -> int:
        with get_parse_stats_callback() as mine:
            for _ in range(count):
                await llm.ainvoke("Hi")
        return mine.total.calls

    assert await asyncio.gather(*map(one_listener, (1, 2, 3))) == [1, 2, 3]


def test_cached_replies_are_not_counted() -> None:
    llm = saying(LINES, cache=InMemoryCache())
    with get_parse_stats_callback() as cb:
        first, second = llm.invoke("Hi"), llm.invoke("Hi")
    assert first.text == second.text
    assert cb.total.calls == 1


def test_models_apart_and_in_total() -> None:
    other = tiny_model("llama", seed=3)
    second = ChatParse(engine=Engine(other, scripted(other, LINES), ParseConfig(threshold=0.0)))
    with get_parse_stats_callback() as cb:
        saying(LINES).invoke("Hi")
        second.invoke("Hi")
        second.invoke("Hi")
    assert {name: totals.calls for name, totals in cb.by_model.items()} == {
        "tiny-qwen2-0": 1,
        "tiny-llama-3": 2,
    }
    assert cb.total.calls == 3
    lines = str(cb).splitlines()
    assert lines[0].split() == ["tiny-qwen2-0", "tiny-llama-3", "total"]
    assert lines[1].split() == ["calls", "1", "2", "3"]


def test_fallbacks_are_counted() -> None:
    model = tiny_model()
    llm = ChatParse(engine=Engine(model, scripted(model, "")), max_tokens=3)
    with get_parse_stats_callback() as cb, pytest.warns(UserWarning, match="target alone"):
        llm.invoke("Hi")
    assert cb.total.fallbacks == 1


def test_time_saved_is_measured_or_unknown() -> None:
    totals = ParseTotals(calls=1, accepted_tokens=100, draft_s=20.0, verify_s=3.0)
    assert totals.saved_s is None
    totals.regenerated_tokens, totals.regenerate_s = 10, 5.0
    assert totals.saved_s == 100 * 0.5 - 20 - 3
    totals.draft_s = 60.0
    assert totals.saved_s == -13


def test_other_models_are_left_out() -> None:
    from langchain_core.language_models import FakeListChatModel

    with get_parse_stats_callback() as cb:
        FakeListChatModel(responses=["x"]).invoke("Hi")
    assert cb.total.calls == 0
    assert "calls" in str(cb)


def test_blocks_leave_nothing_behind() -> None:
    with get_parse_stats_callback() as cb:
        saying(LINES).invoke("Hi")
    kept = len(gc.get_objects())
    for _ in range(50):
        with get_parse_stats_callback():
            pass
    gc.collect()
    assert len(gc.get_objects()) < kept + 200
    assert cb.total.calls == 1
