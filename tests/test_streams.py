"""Reading events as they come: threads, event loops, closing early, errors."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from parse_engine import (
    CallTimeoutError,
    DraftProgress,
    Engine,
    Generation,
    InvalidRequestError,
    ParseConfig,
    TextDelta,
    parse_stats,
)
from parse_engine.backends.model import Model
from tests.conftest import forward_log
from tests.scripted import scripted
from tests.tiny_models import tiny_model

ASK = [{"role": "user", "content": "What is that?"}]
TEXT = "The answer is that. It is the return of a model.\n"


@pytest.fixture
def engine() -> Engine:
    return Engine(tiny_model(seed=0), tiny_model(seed=1), ParseConfig(threshold=0.5, cut_at=4))


def calls_running() -> int:
    return sum(thread.name == "parse-call" for thread in threading.enumerate())


def wait_for_calls() -> None:
    for thread in threading.enumerate():
        if thread.name == "parse-call":
            thread.join()


@dataclass(frozen=True, eq=False)
class Held(Model):
    """Writes nothing until it is let."""

    free: threading.Event = field(default_factory=threading.Event)
    begun: threading.Event = field(default_factory=threading.Event)

    def write(self, *args: Any, **settings: Any) -> tuple[int, ...]:
        self.begun.set()
        self.free.wait()
        return super().write(*args, **settings)


def held_engine() -> tuple[Engine, Held]:
    model = tiny_model()
    held = Held("held", model.network, model.tokenizer)
    return Engine(held, config=ParseConfig(mode="target")), held


async def test_timeouts_do_not_wait_for_a_forward_pass() -> None:
    engine, held = held_engine()
    try:
        with pytest.raises(CallTimeoutError, match="not finished in 0"):
            engine.generate(ASK, timeout=0.01)
        with pytest.raises(CallTimeoutError):
            next(engine.stream(ASK, timeout=0.01))
        with pytest.raises(CallTimeoutError):
            await engine.agenerate(ASK, timeout=0.01)
        assert calls_running() == 3
    finally:
        held.free.set()
    wait_for_calls()
    assert engine.generate(ASK, max_new_tokens=3, timeout=60).token_ids


def test_an_interrupt_does_not_wait_for_a_forward_pass() -> None:
    engine, held = held_engine()
    threading.Thread(target=interrupt_after, args=(held.begun,), daemon=True).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            next(engine.stream(ASK, max_new_tokens=3))
        assert calls_running() == 1
    finally:
        held.free.set()
    wait_for_calls()


def interrupt_after(begun: threading.Event) -> None:
    """Do what Ctrl-C does, once something has begun."""
    begun.wait()
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)


@pytest.mark.parametrize("timeout", [0, -1, "5", float("nan"), True])
def test_timeouts_that_are_no_seconds_are_refused(engine: Engine, timeout: Any) -> None:
    with pytest.raises(InvalidRequestError, match="timeout"):
        engine.generate(ASK, timeout=timeout)


@pytest.mark.parametrize("kind", [DraftProgress, TextDelta])
def test_closing_the_iterator_stops_the_models_within_one_token(engine: Engine, kind: type) -> None:
    stream = engine.stream(ASK, max_new_tokens=2000)
    seen = 0
    for event in stream:
        seen += isinstance(event, kind)
        if seen == 3:
            break
    with forward_log(engine.target) as target_log, forward_log(_draft(engine)) as draft_log:
        stream.close()
        assert calls_running() == 0
    # one token may have been under way; the worker runs ahead of its reader, but not after this
    assert len(target_log) + len(draft_log) <= 2
    assert engine.generate(ASK, max_new_tokens=3).token_ids


def test_dropped_iterator_stops_too(engine: Engine) -> None:
    stream = engine.stream(ASK, max_new_tokens=2000)
    next(stream)
    del stream
    gc.collect()
    wait_for_calls()
    assert calls_running() == 0


def test_stream_that_is_never_started_runs_nothing(engine: Engine) -> None:
    with forward_log(engine.target) as log:
        stream = engine.stream(ASK, max_new_tokens=5)
        assert log == []
        del stream


def test_two_streams_in_two_threads_interleave(engine: Engine) -> None:
    alone = [engine.generate(ASK, max_new_tokens=n) for n in (30, 31)]
    turns: list[int] = []
    gate = threading.Barrier(2)
    answers: dict[int, Generation] = {}

    def read(number: int) -> None:
        for event in engine.stream(ASK, max_new_tokens=30 + number):
            if len(turns) < 2 or isinstance(event, TextDelta):
                turns.append(number)
            if isinstance(event, DraftProgress) and event.tokens == 1:
                gate.wait()  # both are under way at once, or this never returns
            if isinstance(event, Generation):
                answers[number] = event

    threads = [threading.Thread(target=read, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answers[number].token_ids for number in (0, 1)] == [a.token_ids for a in alone]


def test_stream_that_nobody_reads_blocks_nobody(engine: Engine) -> None:
    idle = engine.stream(ASK, max_new_tokens=50)
    next(idle)
    answer = engine.generate(ASK, max_new_tokens=10)
    assert len(answer.token_ids) <= 10
    idle.close()


def test_many_calls_at_once_give_what_each_gives_alone(engine: Engine) -> None:
    wanted = [engine.generate(ASK, max_new_tokens=4 + n % 5).token_ids for n in range(32)]
    got: list[Any] = [None] * 32

    def call(number: int) -> None:
        got[number] = engine.generate(ASK, max_new_tokens=4 + number % 5).token_ids

    threads = [threading.Thread(target=call, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == wanted


def test_errors_of_the_call_arrive_where_the_events_are_read() -> None:
    target = tiny_model()
    engine = Engine(target, scripted(target, TEXT, error=RuntimeError("boom")))
    with pytest.raises(RuntimeError, match="boom"):
        list(engine.stream(ASK, mode="draft"))


def test_statistics_reach_the_block_that_opened_the_stream(engine: Engine) -> None:
    with parse_stats() as stats:
        streams = [engine.stream(ASK, max_new_tokens=5) for _ in range(2)]
        for stream in streams:
            list(stream)
    assert len(stats.calls) == 2


# Event loops


async def test_agenerate_and_astream_give_what_generate_gives(engine: Engine) -> None:
    wanted = engine.generate(ASK, max_new_tokens=20)
    assert (await engine.agenerate(ASK, max_new_tokens=20)).token_ids == wanted.token_ids
    events = [event async for event in engine.astream(ASK, max_new_tokens=20)]
    assert isinstance(events[-1], Generation)
    assert events[-1].token_ids == wanted.token_ids
    assert "".join(e.text for e in events if isinstance(e, TextDelta)) == wanted.text


async def test_loop_runs_while_the_models_do(engine: Engine) -> None:
    beats = 0
    under_way = asyncio.Event()

    async def beat() -> None:
        nonlocal beats
        while not under_way.is_set():
            beats += 1
            await asyncio.sleep(0)

    heart = asyncio.create_task(beat())
    async for event in engine.astream(ASK, max_new_tokens=30):
        if isinstance(event, Generation):
            under_way.set()
    await heart
    assert beats > 30  # at least once a token: each token is an event of its own


async def test_cancelling_the_task_stops_the_models(engine: Engine) -> None:
    started = asyncio.Event()

    async def call() -> None:
        async for _ in engine.astream(ASK, max_new_tokens=2000):
            started.set()

    task = asyncio.create_task(call())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(wait_for_calls)
    assert calls_running() == 0
    assert (await engine.agenerate(ASK, max_new_tokens=3)).token_ids


async def test_cancelled_agenerate_stops_the_models(engine: Engine) -> None:
    task = asyncio.create_task(engine.agenerate(ASK, max_new_tokens=2000))
    while not calls_running():
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(wait_for_calls)
    assert calls_running() == 0


async def test_async_errors_arrive() -> None:
    target = tiny_model()
    engine = Engine(target, scripted(target, TEXT, error=RuntimeError("boom")))
    with pytest.raises(RuntimeError, match="boom"):
        await engine.agenerate(ASK, mode="draft")


async def test_async_statistics_reach_their_own_task(engine: Engine) -> None:
    async def task(count: int) -> list[int]:
        with parse_stats() as stats:
            for _ in range(count):
                await engine.agenerate(ASK, max_new_tokens=3)
        return [call.drafted_tokens for call in stats.calls]

    with parse_stats() as total:
        one, three = await asyncio.gather(task(1), task(3))
    assert (len(one), len(three), len(total.calls)) == (1, 3, 4)


def test_loop_that_closed_in_between_leaves_no_noise(engine: Engine) -> None:
    async def first_event() -> None:
        async for _ in engine.astream(ASK, max_new_tokens=500):
            break

    asyncio.run(first_event())
    wait_for_calls()
    assert calls_running() == 0


def _draft(engine: Engine) -> Model:
    assert engine.draft is not None
    return engine.draft


@pytest.fixture(autouse=True)
def _no_call_is_left_running() -> Iterator[None]:
    yield
    wait_for_calls()
