"""One call of a chat model, from what a framework hands over to what the engine is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from parse_engine import DraftForm, Event, Generation, TextDelta
from parse_integrations.messages import Message, fit
from parse_integrations.structured import Grammar, ask_for, response_schema
from parse_integrations.tool_formats import Tool, ToolFormat, tool_name
from parse_integrations.tools import CallReader, ToolCall, check_choice, rewrite_calls

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
    """A call that is ready: ``engine.stream(messages, **options)``, read by ``pieces``.

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
    """

    engine: Engine
    messages: list[Message]
    options: dict[str, Any]
    reader: CallReader | None

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
) -> Asked:
    """Make a call ready: the conversation fitted to the templates, the grammar, the reader.

    Parameters
    ----------
    engine : Engine
        Who answers.
    messages : sequence of dict
        Role and content, a text; assistants may have ``tool_calls``, tools a ``tool_call_id``.
    options : mapping
        How to write and settings of PARSE, as the engine names them.
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

    Raises
    ------
    InvalidRequestError
        If something is wrong; no model was run.
    """
    offered = tuple(tools or ())
    choice = check_choice(tool_choice, offered)
    if choice == "none":
        offered = ()
    schema = response_schema(response_format)
    if schema is not None and schema != {"type": "object"}:
        messages = [ask_for(schema), *messages]
    alone = (options.get("mode") or engine.config.mode) == "draft"
    writer = engine.draft if alone and engine.draft is not None else engine.target
    fitted = fit(writer, messages, offered, tool_format)
    grammar = None
    if choice not in ("auto", "none"):
        called = [tool for tool in offered if choice in ("any", tool_name(tool))]
        several = choice == "any" and parallel_tool_calls is True  # weak models know no end
        grammar = Grammar(called, fitted.tool_format, several)
    elif schema is not None:
        grammar = Grammar(offered, fitted.tool_format, parallel_tool_calls is not False, schema)
    wanted = dict(options)
    if fitted.tools:
        wanted["tools"] = fitted.tools
    if grammar is not None:
        grammar.processors(writer, 0)  # says what is wrong before any model runs
        wanted["logits_processors"] = grammar.processors
    if engine.draft is not None and writer is engine.target:
        form = tool_format if _same_template(engine.draft, engine.target) else None
        drafted = fit(engine.draft, messages, offered, form)
        rewrite = None
        if offered and grammar is None and drafted.tool_format != fitted.tool_format:
            rewrite = partial(rewrite_calls, offered, drafted.tool_format, fitted.tool_format)
        wanted["draft_form"] = DraftForm(drafted.messages, drafted.tools, rewrite)
    reader = CallReader(fitted.tool_format, offered) if offered else None
    return Asked(engine, fitted.messages, wanted, reader)


def _same_template(one: Model, other: Model) -> bool:
    return bool(one.tokenizer.chat_template == other.tokenizer.chat_template)
