"""Running the eight endpoints of an LLM, and writing down what they return and report."""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, ChatResponse
from llama_index.core.callbacks import TokenCountingHandler
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.llms.llm import LLM
from llama_index_instrumentation import get_dispatcher
from llama_index_instrumentation.base import BaseEvent
from pydantic import PrivateAttr

SYNC = ("chat", "complete", "stream_chat", "stream_complete")
ASYNC = ("achat", "acomplete", "astream_chat", "astream_complete")
ENDPOINTS = (*SYNC, *ASYNC)
STREAMS = tuple(name for name in ENDPOINTS if "stream" in name)


class _Recorder(BaseEventHandler):
    _events: list[BaseEvent] = PrivateAttr(default_factory=list)

    @classmethod
    def class_name(cls) -> str:
        return "ConformanceRecorder"

    def handle(self, event: BaseEvent, **kwargs: Any) -> None:  # noqa: ARG002
        self._events.append(event)


@contextmanager
def recorded_events() -> Iterator[list[BaseEvent]]:
    """Write down all events of LlamaIndex that are sent inside the block.

    Yields
    ------
    list of BaseEvent
        Filled as they come.
    """
    dispatcher, recorder = get_dispatcher(), _Recorder()
    dispatcher.add_event_handler(recorder)
    try:
        yield recorder._events
    finally:
        dispatcher.event_handlers.remove(recorder)


@dataclass
class Run:
    """What one endpoint returned and reported.

    Parameters
    ----------
    responses : list
        All responses of a stream, or the one.
    events : list of str
        Names of LlamaIndex's own events about LLMs.
    counts : list of (int, int)
        Prompt and completion tokens of each call that a TokenCountingHandler saw.
    """

    responses: list[Any]
    events: list[str]
    counts: list[tuple[int, int]] = field(default_factory=list)

    @property
    def last(self) -> Any:
        """The response that has everything."""
        return self.responses[-1]

    @property
    def text(self) -> str:
        """Its text."""
        return text_of(self.last)


def text_of(response: Any) -> str:
    """Return the text of a response of either kind."""
    if isinstance(response, ChatResponse):
        return response.message.content or ""
    return str(response.text)


def collect(llm: LLM, endpoint: str, question: str) -> list[Any]:
    """Ask an endpoint, and return all its responses."""
    asked: Any = question
    if "chat" in endpoint:
        asked = [ChatMessage(role="user", content=question)]
    call: Callable[..., Any] = getattr(llm, endpoint)
    if endpoint in ASYNC:
        return asyncio.run(acollect(call, asked, streams="stream" in endpoint))
    return list(call(asked)) if "stream" in endpoint else [call(asked)]


async def acollect(call: Callable[..., Any], asked: Any, *, streams: bool) -> list[Any]:
    """Await an endpoint, and return all its responses."""
    answer = await call(asked)
    return [response async for response in answer] if streams else [answer]


def run(llm: LLM, endpoint: str, question: str) -> Run:
    """Ask an endpoint while all that listens to it is listened to."""
    counter = TokenCountingHandler(tokenizer=lambda text: list(text.split()))
    llm.callback_manager.add_handler(counter)
    try:
        with recorded_events() as events:
            responses = collect(llm, endpoint, question)
    finally:
        llm.callback_manager.remove_handler(counter)
    names = [event.class_name() for event in events]
    counts = [(e.prompt_token_count, e.completion_token_count) for e in counter.llm_token_counts]
    kinds = ("LLMChat", "LLMCompletion", "Exception")
    return Run(responses, [name for name in names if name.startswith(kinds)], counts)


class Runs:
    """Runs each endpoint once, when it is first asked for.

    Parameters
    ----------
    llm : LLM
        The model.
    question : str
        What all are asked.
    """

    def __init__(self, llm: LLM, question: str) -> None:
        self._llm = llm
        self._question = question
        self._made: dict[str, Run] = {}

    def __getitem__(self, endpoint: str) -> Run:
        if endpoint not in self._made:
            self._made[endpoint] = run(self._llm, endpoint, self._question)
        return self._made[endpoint]


def at_work() -> set[threading.Thread]:
    """Return the threads that run something: all but those of pools that wait for work."""
    frames = sys._current_frames()
    waiting = concurrent.futures.thread._worker.__code__
    return {
        thread
        for thread in threading.enumerate()
        if thread.ident in frames and frames[thread.ident].f_code is not waiting
    }


async def still_at_work(before: set[threading.Thread], patience: float) -> set[threading.Thread]:
    """Return the threads that were not at work before and are, after some seconds at most.

    Parameters
    ----------
    before : set of Thread
        What ``at_work`` returned.
    patience : float
        Seconds in which they may stop.
    """
    end = time.monotonic() + patience
    while (left := at_work() - before) and time.monotonic() < end:
        await asyncio.sleep(0.01)  # the event loop may have to close what was left
    return left
