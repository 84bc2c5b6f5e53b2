"""Tool calls that were written: read out of an answer, and nothing else of it lost."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from parse_integrations.tool_formats import BARE, CALLS, Tool, ToolFormat, tool_name, write_calls

Call = tuple[str | None, dict[str, Any] | None]  # name and arguments; None where malformed
HIDDEN = "\ufdd0"  # no character, and so in no answer
JSON_BEGINS = re.compile(r"\s*[\[{]")


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
        What the model wrote, marks included; of what is no call, with the white space before it.
    """

    id: str
    name: str | None
    arguments: dict[str, Any] | None
    raw: str


class CallReader:
    """Splits the text of an answer into what is said and what is called, as it comes.

    What is no call comes through as it is. Of the white space around a call only what keeps two
    texts apart does. A closing mark inside of a JSON string closes nothing.

    Parameters
    ----------
    tool_format : ToolFormat
        How the model writes calls.
    tools : sequence of dict
        What can be called; arguments of the wrong simple type are cast to what the schema says.
    """

    def __init__(self, tool_format: ToolFormat, tools: Sequence[Tool]) -> None:
        from transformers.utils.chat_parsing import ResponseParser
        from transformers.utils.chat_parsing.response_templates import load_response_template

        self._format = tool_format
        self._names = {tool_name(tool) for tool in tools}
        self._template = load_response_template(dict(tool_format.response_template))
        self._parser = ResponseParser(self._template, prefix="", tools=[dict(t) for t in tools])
        self._closing = "".join(tool_format.closing).strip()[:1]
        self._answer = ""
        self._at = 0  # up to where the parser's events tell of the answer
        self._start: int | None = None  # where what is inside of the marks of a call begins
        self._quoted = self._escaped = False  # whether a JSON string is open there
        self._raw = ""  # the region of a call
        self._gaps = [""]  # white space after the last text, parted by calls
        self._spoken = False  # whether there is a text before it

    def feed(self, text: str) -> list[str | ToolCall]:
        """Take more of the answer; calls are returned when they are closed."""
        self._answer += text
        pieces: list[str | ToolCall] = []
        for part in re.findall(r'["\\\n]|[^"\\\n]+', text):
            for piece in self._read(self._parser.feed(self._hidden(part)), whole=True):
                if isinstance(piece, str) and pieces and isinstance(pieces[-1], str):
                    pieces[-1] += piece
                else:
                    pieces.append(piece)
        return pieces

    def finish(self, *, ended: bool) -> list[str | ToolCall]:
        """Return what is left; ``ended`` says that the model came to its end by itself."""
        _, events = self._parser.finalize()
        pieces = self._read(events, whole=ended)
        if len(self._gaps) == 1 and self._gaps[0]:  # no call before the end
            pieces.append(self._gaps[0])
        return pieces

    def _hidden(self, part: str) -> str:
        """Return a part of the answer as the parser may see it: without marks inside of strings.

        Parameters
        ----------
        part : str
            A quote, a backslash, a newline, or a text without these.
        """
        start = self._at if self._start is None else self._start
        if not JSON_BEGINS.match(self._answer, start, self._at):
            self._quoted = self._escaped = False
            return part
        escaped, self._escaped = self._escaped, False
        if part == "\n":  # JSON has none in strings: one that is still open is malformed
            self._quoted = False
        elif part == '"' and not escaped:
            self._quoted = not self._quoted
        elif part == "\\":
            self._escaped = self._quoted and not escaped
        elif self._quoted and self._closing:
            return part.replace(self._closing, HIDDEN)
        return part

    def _read(self, events: list[dict[str, Any]], *, whole: bool) -> list[str | ToolCall]:
        pieces: list[str | ToolCall] = []
        for event in events:
            field = self._template.fields[event["field"]]
            calling = event["field"] in (CALLS, BARE)
            if event["type"] == "region_open":
                self._raw = self._mark(field.open_re)
                self._start = self._at if calling else None
            elif event["type"] == "region_chunk":
                start, self._at = self._at, self._at + len(event["text"])
                text = self._answer[start : self._at]
                if calling:
                    self._raw += text
                else:
                    pieces += self._say(text)
            elif calling:
                self._raw += self._mark(field.close_re)
                self._start = None
                pieces += self._region(event, whole=whole)
        return pieces

    def _mark(self, pattern: Any) -> str:
        """Return the mark that a region begins or ends with, which no event tells."""
        found = pattern.match(self._answer, self._at) if pattern else None
        mark = str(found.group()) if found else ""
        self._at += len(mark)
        return mark

    def _say(self, text: str) -> list[str]:
        """Return a text and the white space before it; that after it waits for what follows."""
        words = text.strip()
        if not words:
            self._gaps[-1] += text
            return []
        before, _, after = text.partition(words)
        self._gaps[-1] += before
        said = self._gap() + words
        self._gaps = [after]
        self._spoken = True
        return [said]

    def _gap(self) -> str:
        if len(self._gaps) == 1:
            return self._gaps[0]
        return (max(self._gaps, key=len) or "\n") if self._spoken else ""

    def _region(self, event: dict[str, Any], *, whole: bool) -> list[str | ToolCall]:
        """Return the calls of a region, and its text where it makes none or one is malformed."""
        if event["field"] == BARE:
            found = self._bare_calls() if whole else []
        else:
            found = self._calls(event["value"], whole=whole)
        if not found:
            return [*self._say(self._raw)]
        found = self._whole_characters(found)
        pieces: list[str | ToolCall] = []
        broken = [name for name, arguments in found if arguments is None]
        if broken:
            written = self._gap() + self._raw
            pieces.append(ToolCall(_new_id(), broken[0], None, written))
            self._gaps = [""]
            self._spoken = True
        calls = [(name, arguments) for name, arguments in found if arguments is not None]
        if calls:  # white space may belong to the marks
            before, _, after = self._raw.partition(self._raw.strip())
            self._gaps[-1] += before
            self._gaps.append(after)
        return [*pieces, *(ToolCall(_new_id(), *call, self._raw) for call in calls)]

    def _bare_calls(self) -> list[Call]:
        text = self._raw.strip().removeprefix("```").removeprefix("json").removesuffix("```")
        found = _found_calls(text) if f'"{self._format.arguments}"' in text else []
        whole = all(self._offers(name) and isinstance(given, dict) for name, given in found)
        return found if whole else []

    def _offers(self, name: Any) -> bool:
        return isinstance(name, str) and name in self._names

    def _calls(self, value: Any, *, whole: bool) -> list[Call]:
        found = _found_calls(value.get("function") if isinstance(value, Mapping) else value)
        if not self._format.opening and not all(self._offers(name) for name, _ in found):
            return []  # without a mark, JSON with a name may be an answer too
        calls: list[Call] = []
        for name, arguments in found or [(None, None)]:
            if isinstance(arguments, str):
                arguments = _json_values(arguments)[:1]
                arguments = arguments[0] if arguments else None
            if not whole or not isinstance(name, str) or not isinstance(arguments, dict):
                arguments = None
            calls.append((name if isinstance(name, str) else None, arguments))
        return calls

    def _whole_characters(self, calls: list[Call]) -> list[Call]:
        """Show what was hidden; replace halves of characters, which nobody can store or send."""
        written = json.dumps(calls, ensure_ascii=False).replace(HIDDEN, self._closing)
        mended: list[Call] = json.loads(re.sub("[\ud800-\udfff]", "\ufffd", written))
        return mended


def _new_id() -> str:
    return f"call_{uuid4().hex}"


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
