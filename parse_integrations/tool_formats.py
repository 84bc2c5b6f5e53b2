"""How families of models write tool calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from parse_engine import InvalidRequestError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Tool = Mapping[str, Any]
CALLS = "tool_calls"  # the field of a response template that holds calls

# Smaller models leave out the marks, or put fences in their place: an answer that is nothing but
# JSON with the name of a tool and arguments is a call too.
BARE = "bare_calls"
BARE_REGION = {"open_pattern": r'\A(?=\s*(?:```(?:json)?\s*)?\{\s*"name"\s*:)'}

# The field without marks is the answer. A mark that no call follows is a word like any other.
# Non-JSON is kept as text, so that nothing is lost.
HERMES_TEMPLATE: dict[str, Any] = {
    "start_anchor_pattern": r"\Z",
    "fields": {
        CALLS: {
            "open_pattern": r"<tool_call>(?=\s*[\[{])",
            "close": "</tool_call>",
            "content": "json",
            "content_args": {"allow_non_json": True},
            "repeats": True,
            "transform": {"type": "function", "function": "{content}"},
        },
        BARE: BARE_REGION,
        "answer": {},
    },
}
# The whole answer is one call, or several with semicolons between them.
LLAMA_TEMPLATE: dict[str, Any] = {
    "start_anchor_pattern": r"\Z",
    "fields": {
        CALLS: {
            "open_pattern": r'\A\s*(?:<\|python_tag\|>\s*)?(?=\{\s*"name"\s*:)',
            "repeats": True,
        },
        "answer": {},
    },
}
# [TOOL_CALLS] [{...}, {...}], or in later versions [TOOL_CALLS]name[ARGS]{...} for each call.
MISTRAL_TEMPLATE: dict[str, Any] = {
    "start_anchor_pattern": r"\Z",
    "fields": {
        CALLS: {
            "open_pattern": r"\[TOOL_CALLS\](?=\s*(?:[\[{]|[^\s\[\]{}]+\s*\[(?:ARGS|CALL_ID)\]))",
            "repeats": True,
        },
        "answer": {},
    },
}


@dataclass(frozen=True)
class ToolFormat:
    """How a family of models writes tool calls; the default is that of Hermes and Qwen.

    Parameters
    ----------
    response_template : mapping
        A response template of transformers, with the field ``tool_calls`` for the calls and one
        without marks for the answer.
    opening, closing : tuple of str
        What stands before and after a call (or the list of calls); each mark is an entry of its
        own, for in some vocabularies it is one token.
    between : str or None
        What stands between two calls; None where there can be only one.
    arguments : str
        The key of the arguments, beside ``name``.
    listed : bool
        Whether the calls are the elements of one JSON list.
    closed : bool
        Whether a call ends with a mark; otherwise it ends with the answer.
    """

    response_template: Mapping[str, Any] = field(default_factory=lambda: HERMES_TEMPLATE)
    opening: tuple[str, ...] = ("<tool_call>", "\n")
    closing: tuple[str, ...] = ("\n", "</tool_call>")
    between: str | None = "\n"
    arguments: str = "arguments"
    listed: bool = False
    closed: bool = True


FORMATS: dict[str, ToolFormat] = {
    "hermes": ToolFormat(),
    "llama3_json": ToolFormat(LLAMA_TEMPLATE, (), (), None, "parameters", closed=False),
    "mistral": ToolFormat(MISTRAL_TEMPLATE, ("[TOOL_CALLS]",), (), ", ", listed=True, closed=False),
}


def format_of(tokenizer: PreTrainedTokenizerBase, tools: Sequence[Tool]) -> ToolFormat | None:
    """Read off a chat template how calls are written; None if it is none of the known ways."""
    template = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("tool_use" if tools else "default", template.get("default"))
    if not isinstance(template, str) or "tools" not in template:
        return None
    if "[TOOL_CALLS]" in template:
        return FORMATS["mistral"]
    if "<tool_call>" in template:
        return None if "<function=" in template or "<arg_key>" in template else FORMATS["hermes"]
    return FORMATS["llama3_json"] if '"parameters"' in template else None


def check_format(given: str | ToolFormat | None) -> ToolFormat | None:
    """Return the format of a name; refuse names that are not known."""
    if given is None or isinstance(given, ToolFormat):
        return given
    if not isinstance(given, str) or given not in FORMATS:
        raise InvalidRequestError(
            f"tool_format is {given!r}.", f"Choose one of {', '.join(FORMATS)}, or a ToolFormat."
        )
    return FORMATS[given]


def tool_name(tool: Tool) -> str:
    """Return the name of a tool given as a JSON schema."""
    named = tool.get("function", tool)
    name = named.get("name") if isinstance(named, Mapping) else None
    if not isinstance(name, str) or not name:
        raise InvalidRequestError(
            f"A tool has no name: {dict(tool)!r}.",
            'Give {"type": "function", "function": {"name": ..., "parameters": ...}}.',
        )
    return name


def write_calls(tool_format: ToolFormat, calls: Sequence[Mapping[str, Any]]) -> str:
    """Write calls as the model itself would."""
    bodies = [
        json.dumps(
            {
                "name": call["function"]["name"],
                tool_format.arguments: call["function"]["arguments"],
            },
            ensure_ascii=False,
        )
        for call in calls
    ]
    before, after = "".join(tool_format.opening), "".join(tool_format.closing)
    if tool_format.listed:
        return f"{before}[{', '.join(bodies)}]{after}"
    return (tool_format.between or "\n").join(f"{before}{body}{after}" for body in bodies)


def write_result(content: str) -> str:
    """Write the result of a call as text."""
    return f"<tool_response>\n{content}\n</tool_response>"


def describe_tools(tool_format: ToolFormat, tools: Sequence[Tool]) -> str:
    """Tell a model in words which tools there are and how to call them."""
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    example = write_calls(
        tool_format, [{"function": {"name": "<name>", "arguments": {"<argument>": "<value>"}}}]
    )
    return (
        "You can call functions. These are their signatures:\n"
        f"<tools>\n{listed}\n</tools>\n"
        f"To call one, answer in exactly this form:\n{example}\n"
        "The results come back in <tool_response></tool_response>."
    )
