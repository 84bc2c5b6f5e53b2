"""Running a call on a thread of its own, so that its events can be read as they come."""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import suppress
from contextvars import Context
from queue import SimpleQueue

from parse_engine.errors import CallCancelledError
from parse_engine.types import Event, Generation

Emit = Callable[[Event | None], None]
Work = Callable[[Emit], Generation]

_running: dict[threading.Thread, threading.Event] = {}


@atexit.register
def _stop_all() -> None:
    """Stop what still runs when the program ends: torch aborts if it is torn down at work."""
    for thread, cancelled in list(_running.items()):
        cancelled.set()
        thread.join()


def iterate(work: Work, context: Context) -> Generator[Event, None, None]:
    """Yield the events of a call; closing the iterator stops the call within one token.

    Parameters
    ----------
    work : callable
        The call; gets a function that emits an event, or raises once nobody listens any more.
    context : Context
        The context variables that the call sees.

    Yields
    ------
    Event
        As they happen; the last is the Generation. Errors of the call are raised here.
    """
    queue: SimpleQueue[Event | BaseException] = SimpleQueue()
    cancelled = threading.Event()
    thread = _start(work, context, queue.put, cancelled)
    try:
        while True:
            event = queue.get()
            if isinstance(event, BaseException):
                raise event
            yield event
            if isinstance(event, Generation):
                return
    finally:
        cancelled.set()
        thread.join()


async def aiterate(work: Work, context: Context) -> AsyncGenerator[Event, None]:
    """Yield the events of a call to an event loop that is never blocked by it.

    Cancelling the task, or closing the iterator, stops the call within one token.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[Event | BaseException] = asyncio.Queue()
    cancelled = threading.Event()

    def deliver(event: Event | BaseException) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody is left to listen
            loop.call_soon_threadsafe(queue.put_nowait, event)

    _start(work, context, deliver, cancelled)
    try:
        while True:
            event = await queue.get()
            if isinstance(event, BaseException):
                raise event
            yield event
            if isinstance(event, Generation):
                return
    finally:
        cancelled.set()


def _start(
    work: Work,
    context: Context,
    deliver: Callable[[Event | BaseException], None],
    cancelled: threading.Event,
) -> threading.Thread:
    def emit(event: Event | None) -> None:
        if cancelled.is_set():
            raise CallCancelledError()
        if event is not None:
            deliver(event)

    def run() -> None:
        try:
            outcome: Event | BaseException = work(emit)
        except BaseException as error:  # noqa: BLE001 - raised again where the events are read
            outcome = error
        deliver(outcome)
        _running.pop(threading.current_thread(), None)

    thread = threading.Thread(target=context.run, args=(run,), name="parse-call", daemon=True)
    _running[thread] = cancelled
    thread.start()
    return thread
