"""Tools, and calls in messages, in the forms that LlamaIndex and its packages give them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, ToolCallBlock
from llama_index.core.tools.types import BaseTool
from pydantic import BaseModel

from parse_engine import InvalidRequestError

Written = tuple[str | None, str, dict[str, Any] | None]  # id, name, arguments

# The names that OpenAI, Anthropic, Bedrock and LlamaIndex itself give to the parts of a call.
IDS = ("id", "tool_call_id", "tool_id", "toolUseId")
NAMES = ("name", "tool_name")
ARGUMENTS = ("arguments", "tool_kwargs", "input", "args", "parameters")


def tool_schemas(tools: Any) -> list[dict[str, Any]]:
    """Return tools as chat templates take them; refuse what is no tool of LlamaIndex.

    Parameters
    ----------
    tools : sequence of BaseTool
        What can be called.
    """
    if isinstance(tools, str | Mapping) or not isinstance(tools, Iterable):
        raise InvalidRequestError(f"tools is {tools!r}.", "Give a list of tools; [] for none.")
    return [_schema(index, tool) for index, tool in enumerate(tools)]


def _schema(index: int, tool: Any) -> dict[str, Any]:
    if isinstance(tool, BaseTool):
        made = tool.metadata.to_openai_tool(skip_length_check=True)
        # under its own name, by which LlamaIndex looks it up, and not as OpenAI spells names
        return {**made, "function": {**made["function"], "name": tool.metadata.name}}
    raise InvalidRequestError(
        f"tools[{index}] is of the type {type(tool).__name__}: {tool!r}.",
        f"Give FunctionTool.from_defaults({getattr(tool, '__name__', '...')}), "
        "or another tool of LlamaIndex.",
    )


def written_calls(message: ChatMessage) -> list[Written]:
    """Return id, name and arguments of each call in a message, in any form that is known.

    Arguments that cannot be read are None; what was written is in the name then.

    Parameters
    ----------
    message : ChatMessage
        Of this LLM, of another one, or out of a store.
    """
    calls: Any = [block for block in message.blocks if isinstance(block, ToolCallBlock)]
    # other LLMs may have them in the older place only
    calls = calls or message.additional_kwargs.get("tool_calls") or ()
    if not isinstance(calls, list | tuple):
        raise _unreadable(calls)
    return [_named(call) for call in calls]


def _named(call: Any) -> Written:
    given = call.model_dump() if isinstance(call, BaseModel) else call
    function = (given.get("function") or given) if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping):
        raise _unreadable(call)
    id_, name = _first(given, IDS), _first(function, NAMES)
    if not isinstance(name, str) or not name:
        raise _unreadable(call)
    arguments = _first(function, ARGUMENTS)
    if arguments is None:
        arguments = {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError:
            return id_, f"{name} {arguments}", None
    if not isinstance(arguments, Mapping):
        return id_, f"{name} {arguments}", None
    return id_, name, dict(arguments)


def _first(given: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((given[name] for name in names if given.get(name) is not None), None)


def _unreadable(calls: Any) -> InvalidRequestError:
    return InvalidRequestError(
        f"A message has tool calls that cannot be read: {calls!r}.",
        'Give ToolCallBlocks, or additional_kwargs={"tool_calls": [{"id": ..., "function": '
        '{"name": ..., "arguments": ...}}]}.',
    )
