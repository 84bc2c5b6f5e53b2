"""Running a call on a thread of its own, so that its events can be read as they come."""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing, suppress
from contextvars import Context
from queue import Empty, SimpleQueue
from time import monotonic

from parse_engine.errors import CallCancelledError, CallTimeoutError
from parse_engine.types import Event, Generation

Emit = Callable[[Event | None], None]
Work = Callable[[Emit], Generation]

# How long a wait may last: a signal that comes just before one is noticed only when it ends.
LISTEN_S = 0.5

_running: dict[threading.Thread, threading.Event] = {}


@atexit.register
def _stop_all() -> None:
    """Stop what still runs when the program ends: torch aborts if it is torn down at work."""
    for thread, cancelled in list(_running.items()):
        cancelled.set()
        thread.join()


def iterate(
    work: Work, context: Context, timeout: float | None = None
) -> Generator[Event, None, None]:
    """Yield the events of a call; closing the iterator stops the call within one token.

    Parameters
    ----------
    work : callable
        The call; gets a function that emits an event, or raises once nobody listens any more.
    context : Context
        The context variables that the call sees.
    timeout : float, optional
        Seconds that the call may take.

    Yields
    ------
    Event
        As they happen; the last is the Generation. Errors of the call are raised here.

    Raises
    ------
    CallTimeoutError
        In time, whatever the models do; they stop within one token or forward pass.
    """
    ends = _deadline(timeout)
    queue: SimpleQueue[Event | BaseException] = SimpleQueue()
    cancelled = threading.Event()
    thread = _start(work, context, queue.put, cancelled)
    try:
        while True:
            event = _next(queue, ends, timeout)
            if isinstance(event, BaseException):
                raise event
            yield event
            if isinstance(event, Generation):
                return
    except GeneratorExit:
        cancelled.set()
        thread.join()  # after a close the models are at rest; an interrupt does not wait for them
        raise
    finally:
        cancelled.set()


async def aiterate(
    work: Work, context: Context, timeout: float | None = None
) -> AsyncGenerator[Event, None]:
    """Yield the events of a call to an event loop that is never blocked by it.

    Cancelling the task, or closing the iterator, stops the call within one token. Takes and raises
    what ``iterate`` does.
    """
    ends = _deadline(timeout)
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[Event | BaseException] = asyncio.Queue()
    cancelled = threading.Event()

    def deliver(event: Event | BaseException) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody is left to listen
            loop.call_soon_threadsafe(queue.put_nowait, event)

    _start(work, context, deliver, cancelled)
    try:
        while True:
            event = await _anext(queue, ends, timeout)
            if isinstance(event, BaseException):
                raise event
            yield event
            if isinstance(event, Generation):
                return
    finally:
        cancelled.set()


def answer_of(events: Generator[Event, None, None]) -> Generation:
    """Return the Generation that a stream ends with."""
    *_, answer = events
    assert isinstance(answer, Generation)
    return answer


async def aanswer_of(events: AsyncGenerator[Event, None]) -> Generation:
    """Return the Generation that a stream ends with."""
    async with aclosing(events):
        *_, answer = [event async for event in events]
    assert isinstance(answer, Generation)
    return answer


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None else monotonic() + timeout


def _left(ends: float | None) -> float | None:
    return None if ends is None else max(0.0, ends - monotonic())


def _next(
    queue: SimpleQueue[Event | BaseException], ends: float | None, timeout: float | None
) -> Event | BaseException:
    while True:
        left = _left(ends)
        try:
            return queue.get(timeout=LISTEN_S if left is None else min(left, LISTEN_S))
        except Empty:
            if left is not None and left <= LISTEN_S:
                raise _too_late(timeout) from None


async def _anext(
    queue: asyncio.Queue[Event | BaseException], ends: float | None, timeout: float | None
) -> Event | BaseException:
    if ends is None or not queue.empty():  # what is there has come in time
        return await queue.get()
    try:
        return await asyncio.wait_for(queue.get(), _left(ends))
    except TimeoutError:
        raise _too_late(timeout) from None


def _too_late(timeout: float | None) -> CallTimeoutError:
    return CallTimeoutError(
        f"The answer was not finished in {timeout} seconds.",
        "Give a longer timeout, or ask for fewer tokens.",
    )


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
