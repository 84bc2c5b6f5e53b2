"""Tool calls that are wanted: which tools are offered, and which must be called."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from parse_engine import InvalidRequestError
from parse_engine.request import check_text, check_tools
from parse_integrations.tool_formats import Tool, tool_name


def check_offered(tools: Any) -> tuple[Tool, ...]:
    """Refuse tools without a name, with half a character, or without arguments by name.

    Parameters
    ----------
    tools : sequence of dict or None
        JSON schemas as chat templates take them.
    """
    offered = check_tools(tools)
    for index, tool in enumerate(offered):
        check_text(f"tools[{index}]", json.dumps(tool, ensure_ascii=False, default=str))
        name, parameters = tool_name(tool), tool.get("function", tool).get("parameters") or {}
        kind = parameters.get("type", "object") if isinstance(parameters, Mapping) else parameters
        if kind != "object":
            raise InvalidRequestError(
                f"The arguments of the tool {name!r} are of the type {kind!r}.",
                'Calls have named arguments: "parameters" must be a schema of the type object.',
            )
    return offered


def check_choice(choice: Any, tools: Sequence[Tool]) -> str:
    """Return ``auto``, ``none``, ``any``, or the name of the tool that must be called.

    Parameters
    ----------
    choice : str, bool, dict or None
        As LangChain, LlamaIndex and OpenAI name it.
    tools : sequence of dict
        What can be called.
    """
    given = choice
    if isinstance(choice, Mapping):
        named = choice.get("function", choice)
        named = named.get("name") if isinstance(named, Mapping) else None
        choice = named or choice.get("type") or choice
    if choice is None or choice is False or choice == "auto":
        return "auto"
    if choice == "none":
        return "none"
    names = [tool_name(tool) for tool in tools]
    if choice is True or choice in ("any", "required"):
        choice = "any"
    elif choice not in names:
        raise InvalidRequestError(
            f"tool_choice is {given!r}.",
            f"Choose auto, none, any, or one of the tools: {', '.join(names) or 'there are none'}.",
        )
    if not names:
        raise InvalidRequestError("A tool call is required, but there are no tools.", "Give tools.")
    assert isinstance(choice, str)
    return choice


def check_parallel(value: Any) -> bool | None:
    """Refuse a ``parallel_tool_calls`` that is no switch; None is unset."""
    if value is None or isinstance(value, bool):
        return value
    raise InvalidRequestError(f"parallel_tool_calls is {value!r}.", "Give True or False.")
