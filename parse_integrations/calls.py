"""One call of a chat model, from what a framework hands over to what the engine is asked."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from parse_engine import DraftForm, Event, Generation, TextDelta
from parse_engine.request import check_stop
from parse_integrations.call_reader import CallReader, ToolCall, rewrite_calls
from parse_integrations.messages import Conversation, Message, as_text, check_conversation, fit
from parse_integrations.structured import Grammar, ask_for, response_schema
from parse_integrations.tool_formats import Tool, ToolFormat, tool_name
from parse_integrations.tools import check_choice, check_offered, check_parallel

if TYPE_CHECKING:
    from parse_engine import Engine
    from parse_engine.backends.model import Model


@dataclass(frozen=True)
class Thought:
    """A piece of what the model thinks before it answers."""

    text: str


Piece = str | Thought | ToolCall | Generation


@dataclass(frozen=True)
class Asked:
    """A call that is ready: ``stream`` or ``astream`` run it, ``pieces`` reads the events.

    Parameters
    ----------
    engine : Engine
        Who answers.
    messages : list of dict
        The conversation.
    options : dict
        What the engine is asked.
    reader : CallReader or None
        Reads tool calls out of the answer; None where none were offered.
    several : bool
        Whether more than one tool call is wanted.
    """

    engine: Engine
    messages: list[Message]
    options: dict[str, Any]
    reader: CallReader | None
    several: bool = True

    def stream(self) -> Generator[Event, None, None]:
        """Answer and yield the engine's events; checked, and its context taken, at once."""
        return self.engine.stream(self.messages, **self.options)

    def astream(self) -> AsyncGenerator[Event, None]:
        """Answer and yield the engine's events without blocking the event loop."""
        return self.engine.astream(self.messages, **self.options)

    def pieces(self, event: Event) -> Sequence[Piece]:
        """Return what an event of the engine's stream says to the caller."""
        if isinstance(event, TextDelta):
            if event.reasoning:
                return [Thought(event.text)]
            return self.reader.feed(event.text) if self.reader else [event.text]
        if isinstance(event, Generation):
            ended = event.finish_reason == "stop"
            return [*(self.reader.finish(ended=ended) if self.reader else ()), event]
        return []


def finish_reason(answer: Generation, *, called: bool) -> str:
    """Return why an answer ended, in the words of OpenAI: ``stop``, ``length``, ``tool_calls``."""
    return "tool_calls" if called and answer.finish_reason == "stop" else answer.finish_reason


def ask(
    engine: Engine,
    messages: Sequence[Message],
    options: Mapping[str, Any],
    *,
    tools: Sequence[Tool] | None = None,
    tool_choice: Any = None,
    parallel_tool_calls: bool | None = None,
    response_format: Any = None,
    tool_format: ToolFormat | None = None,
    write: Callable[[Sequence[Message]], str] | None = None,
) -> Asked:
    """Make a call ready: the conversation fitted to the templates, the grammar, the reader.

    Parameters
    ----------
    engine : Engine
        Who answers.
    messages : sequence of dict
        Role and content, a text; assistants may have ``tool_calls``, tools a ``tool_call_id``.
    options : mapping
        How to write and settings of PARSE, as the engine names them. Where a grammar is enforced,
        stop strings end nothing.
    tools : sequence of dict, optional
        JSON schemas of what can be called.
    tool_choice : str, bool, dict, optional
        ``auto``, ``none``, ``any`` or a name; the last two are enforced.
    parallel_tool_calls : bool, optional
        Where a call is enforced, True allows several of them.
    response_format : mapping, optional
        The JSON that the answer must be; enforced.
    tool_format : ToolFormat, optional
        How the target writes calls. Unset: read off its template.
    write : callable, optional
        Writes the prompt, instead of the chat templates, from messages that have only a text each.

    Raises
    ------
    InvalidRequestError
        If something is wrong; no model was run.
    """
    check_conversation(messages)
    offered = check_offered(tools)
    choice = check_choice(tool_choice, offered)
    if choice == "none":
        offered = ()
    schema = response_schema(response_format)
    if schema is not None and schema != {"type": "object"}:
        messages = [ask_for(schema), *messages]
    alone = (options.get("mode") or engine.config.mode) == "draft"
    writer = engine.draft if alone and engine.draft is not None else engine.target
    if write is None:
        fitted = fit(writer, messages, offered, tool_format)
    else:
        form = tool_format or ToolFormat()
        fitted = Conversation(as_text(messages, offered, form), (), form)
    grammar = None
    several = check_parallel(parallel_tool_calls) is not False
    if choice not in ("auto", "none"):
        called = [tool for tool in offered if choice in ("any", tool_name(tool))]
        many = choice == "any" and parallel_tool_calls is True  # weak models know no end
        grammar = Grammar(called, fitted.tool_format, many)
    elif schema is not None:
        grammar = Grammar(offered, fitted.tool_format, several, schema)
    wanted = dict(options)
    if write is not None:
        wanted["prompt"] = write(fitted.messages)
    if fitted.tools:
        wanted["tools"] = fitted.tools
    if grammar is not None:
        grammar.processors(writer, 0)  # says what is wrong before any model runs
        wanted["logits_processors"] = grammar.processors
        check_stop(wanted.pop("stop", None))  # the grammar ends the answer: nothing cuts it short
    draft = engine.draft if "draft_form" not in wanted else None
    if draft is not None and writer is engine.target and not _same_template(draft, writer):
        drafted = fit(draft, messages, offered)
        rewrite = None
        if offered and grammar is None and drafted.tool_format != fitted.tool_format:
            rewrite = partial(rewrite_calls, offered, drafted.tool_format, fitted.tool_format)
        wanted["draft_form"] = DraftForm(drafted.messages, drafted.tools, rewrite)
    reader = CallReader(fitted.tool_format, offered) if offered else None
    return Asked(engine, fitted.messages, wanted, reader, several)


def _same_template(one: Model, other: Model) -> bool:
    return bool(one.tokenizer.chat_template == other.tokenizer.chat_template)
