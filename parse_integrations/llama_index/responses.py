"""Running a call: the engine's events as LlamaIndex's responses, and the one event about them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing, closing
from functools import wraps
from typing import Any, TypeVar, cast

from llama_index.core.base.llms.types import (
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    CompletionResponseAsyncGen,
    CompletionResponseGen,
)

from parse_engine import Event
from parse_integrations.calls import Asked
from parse_integrations.llama_index.events import Report
from parse_integrations.llama_index.messages import ResponseMaker, completion

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


def reported(callback: Callable[[], Callable[..., Any]]) -> Callable[[Endpoint], Endpoint]:
    """Decorate an endpoint that streams with a callback of LlamaIndex, and let closing through.

    LlamaIndex's wrapper does not close what it reads from, and the event that it sends instead
    keeps it alive: the models would go on for nobody.

    Parameters
    ----------
    callback : callable
        ``llm_chat_callback`` or ``llm_completion_callback``.
    """

    def decorate(endpoint: Endpoint) -> Endpoint:
        @wraps(endpoint)
        def wrapped(llm: Any, *args: Any, **kwargs: Any) -> Any:
            opened: list[Generator[Any, None, None]] = []

            def open_(llm: Any, *args: Any, **kwargs: Any) -> Any:
                opened.append(endpoint(llm, *args, **kwargs))
                return opened[0]

            return _both(callback()(open_)(llm, *args, **kwargs), opened[0])

        return cast(Endpoint, wrapped)

    return decorate


def _both(
    shown: Generator[Any, None, None], source: Generator[Any, None, None]
) -> Generator[Any, None, None]:
    with closing(source), closing(shown):
        yield from shown


def areported(callback: Callable[[], Callable[..., Any]]) -> Callable[[Endpoint], Endpoint]:
    """Decorate an async endpoint that streams; see ``reported``."""

    def decorate(endpoint: Endpoint) -> Endpoint:
        @wraps(endpoint)
        async def wrapped(llm: Any, *args: Any, **kwargs: Any) -> Any:
            opened: list[AsyncGenerator[Any, None]] = []

            async def open_(llm: Any, *args: Any, **kwargs: Any) -> Any:
                opened.append(await endpoint(llm, *args, **kwargs))
                return opened[0]

            return _aboth(await callback()(open_)(llm, *args, **kwargs), opened[0])

        return cast(Endpoint, wrapped)

    return decorate


async def _aboth(
    shown: AsyncGenerator[Any, None], source: AsyncGenerator[Any, None]
) -> AsyncGenerator[Any, None]:
    async with aclosing(source), aclosing(shown):
        async for response in shown:
            yield response


def stream(asked: Asked, report: Report) -> ChatResponseGen:
    """Answer and yield a response for each piece; the context is taken at once."""
    return _responses(asked, report, asked.stream())


def _responses(
    asked: Asked, report: Report, running: Generator[Event, None, None]
) -> ChatResponseGen:
    maker = ResponseMaker(asked)
    with report, closing(running) as events:
        for event in events:
            report.see(event)
            yield from maker.responses(asked.pieces(event))


def astream(asked: Asked, report: Report) -> ChatResponseAsyncGen:
    """Answer and yield a response for each piece, without blocking the event loop."""
    return _aresponses(asked, report, asked.astream())


async def _aresponses(
    asked: Asked, report: Report, running: AsyncGenerator[Event, None]
) -> ChatResponseAsyncGen:
    maker = ResponseMaker(asked)
    with report:
        async with aclosing(running) as events:
            async for event in events:
                report.see(event)
                for response in maker.responses(asked.pieces(event)):
                    yield response


def last(responses: ChatResponseGen) -> ChatResponse:
    """Return the last response, which has everything."""
    for response in responses:
        found = response
    return found.model_copy(update={"delta": None})


async def alast(responses: ChatResponseAsyncGen) -> ChatResponse:
    """Return the last response, which has everything."""
    async with aclosing(responses) as each:
        async for response in each:
            found = response
    return found.model_copy(update={"delta": None})


def completions(responses: ChatResponseGen) -> CompletionResponseGen:
    """Yield the same as responses of the completion endpoints."""
    with closing(responses):
        for response in responses:
            yield completion(response)


async def acompletions(responses: ChatResponseAsyncGen) -> CompletionResponseAsyncGen:
    """Yield the same as responses of the completion endpoints."""
    async with aclosing(responses):
        async for response in responses:
            yield completion(response)
