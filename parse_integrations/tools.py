"""Tool calls: which are wanted, and how they are read out of an answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from parse_engine import InvalidRequestError
from parse_engine.request import check_tools
from parse_integrations.tool_formats import BARE, CALLS, Tool, ToolFormat, tool_name, write_calls


def check_offered(tools: Any) -> tuple[Tool, ...]:
    """Refuse tools without a name, or with arguments that are no JSON object.

    Parameters
    ----------
    tools : sequence of dict or None
        JSON schemas as chat templates take them.
    """
    offered = check_tools(tools)
    for tool in offered:
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
    if isinstance(choice, Mapping):
        named = choice.get("function", choice)
        choice = named.get("name", choice.get("type")) if isinstance(named, Mapping) else choice
    if choice is None or choice is False or choice == "auto":
        return "auto"
    if choice == "none":
        return "none"
    names = [tool_name(tool) for tool in tools]
    if choice is True or choice in ("any", "required"):
        choice = "any"
    elif choice not in names:
        raise InvalidRequestError(
            f"tool_choice is {choice!r}.",
            f"Choose auto, none, any, or one of the tools: {', '.join(names) or 'there are none'}.",
        )
    if not names:
        raise InvalidRequestError("tool_choice asks for a call without tools.", "Give tools.")
    assert isinstance(choice, str)
    return choice


@dataclass(frozen=True)
class ToolCall:
    """A call that a model wrote.

    Parameters
    ----------
    id : str
        Made here: no two calls have the same.
    name : str or None
        Which tool; None where that cannot be read.
    arguments : dict or None
        None where the call is malformed or half written.
    raw : str
        What the model wrote, the mark before it included.
    """

    id: str
    name: str | None
    arguments: dict[str, Any] | None
    raw: str


class CallReader:
    """Splits the text of an answer into what is said and what is called, as it comes.

    Parameters
    ----------
    tool_format : ToolFormat
        How the model writes calls.
    tools : sequence of dict
        What can be called; arguments of the wrong simple type are cast to what the schema says.
    """

    def __init__(self, tool_format: ToolFormat, tools: Sequence[Tool]) -> None:
        from transformers.utils.chat_parsing import ResponseParser

        self._format = tool_format
        self._names = {tool_name(tool) for tool in tools}
        self._parser = ResponseParser(
            dict(tool_format.response_template), prefix="", tools=[dict(t) for t in tools]
        )
        self._raw = ""

    def feed(self, text: str) -> list[str | ToolCall]:
        """Take more of the answer; calls are returned when they are closed."""
        return self._read(self._parser.feed(text), whole=True)

    def finish(self, *, ended: bool) -> list[str | ToolCall]:
        """Return what is left; ``ended`` says that the model came to its end by itself."""
        _, events = self._parser.finalize()
        return self._read(events, whole=ended)

    def _read(self, events: list[dict[str, Any]], *, whole: bool) -> list[str | ToolCall]:
        pieces: list[str | ToolCall] = []
        for event in events:
            calling = event["field"] in (CALLS, BARE)
            if event["type"] == "region_open" and calling:
                self._raw = ""
            elif event["type"] == "region_chunk" and calling:
                self._raw += event["text"]
            elif event["type"] == "region_chunk":
                pieces.append(event["text"])
            elif event["type"] == "region_close" and event["field"] == BARE:
                pieces += self._bare_calls(whole=whole)
            elif event["type"] == "region_close" and calling:
                pieces += self._calls(event["value"], whole=whole)
        return pieces

    def _bare_calls(self, *, whole: bool) -> list[str | ToolCall]:
        text = self._raw.strip().removeprefix("```").removeprefix("json").removesuffix("```")
        found = _found_calls(text) if whole and f'"{self._format.arguments}"' in text else []
        for name, arguments in found:
            if name not in self._names or not isinstance(arguments, dict):
                return [self._raw]
        calls = [ToolCall(f"call_{uuid4().hex}", *each, self._raw) for each in found]
        return [*calls] or [self._raw]

    def _calls(self, value: Any, *, whole: bool) -> list[str | ToolCall]:
        raw = "".join(self._format.opening) + self._raw
        found = _found_calls(value.get("function") if isinstance(value, Mapping) else value)
        if not self._format.opening and not {name for name, _ in found} <= self._names:
            return [raw]  # without a mark, JSON with a name may be an answer too
        calls: list[str | ToolCall] = []
        for name, arguments in found or [(None, None)]:
            if isinstance(arguments, str):
                arguments = _json_values(arguments)[:1]
                arguments = arguments[0] if arguments else None
            if not whole or not isinstance(name, str) or not isinstance(arguments, dict):
                arguments = None
            known = name if isinstance(name, str) else None
            calls.append(ToolCall(f"call_{uuid4().hex}", known, arguments, raw))
        return calls


def rewrite_calls(
    tools: Sequence[Tool], given: ToolFormat, wanted: ToolFormat, answer: str, ended: bool
) -> str:
    """Write the calls in an answer as another family of models does.

    Parameters
    ----------
    tools : sequence of dict
        What can be called.
    given, wanted : ToolFormat
        How the calls are written, and how they are to be.
    answer : str
        The text with calls in it.
    ended : bool
        Whether it is whole; of one that was cut off, a half call is dropped.
    """
    reader = CallReader(given, tools)
    parts: list[str] = []
    calls: list[dict[str, Any]] = []
    for piece in (*reader.feed(answer), *reader.finish(ended=ended)):
        if isinstance(piece, str):
            parts.append(piece)
        elif piece.arguments is not None:
            calls.append({"function": {"name": piece.name, "arguments": piece.arguments}})
        elif ended:
            parts.append(piece.raw)
    said = "".join(parts)
    if not calls:
        return answer if ended else said
    # families that speak before they call do it on lines of their own
    return "\n".join(text for text in (said.strip(), write_calls(wanted, calls)) if text)


def _found_calls(value: Any) -> list[tuple[Any, Any]]:
    """Return name and arguments of each call in what a region held; empty if it is malformed."""
    if isinstance(value, str) and "[ARGS]" in value:
        parts = [part.partition("[ARGS]") for part in value.split("[TOOL_CALLS]")]
        return [(name.split("[CALL_ID]")[0].strip(), args) for name, _, args in parts]
    values = _json_values(value) if isinstance(value, str) else [value]
    calls = [call for each in values for call in (each if isinstance(each, list) else [each])]
    if not all(isinstance(call, Mapping) for call in calls):
        return []
    return [(call.get("name"), call.get("arguments", call.get("parameters", {}))) for call in calls]


def _json_values(text: str) -> list[Any]:
    """Return the JSON values of a text, with semicolons between them; empty if one is broken."""
    decoder, values, at = json.JSONDecoder(), [], 0
    text = text.strip()
    try:
        while at < len(text):
            value, at = decoder.raw_decode(text, at)
            values.append(value)
            while at < len(text) and text[at] in "; \r\n\t":
                at += 1
    except ValueError:
        return []
    return values
