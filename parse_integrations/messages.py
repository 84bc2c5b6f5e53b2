"""Conversations, in the form that a model's chat template can take."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from parse_engine import InvalidRequestError
from parse_engine.request import check_messages, check_text
from parse_integrations.tool_formats import (
    Tool,
    ToolFormat,
    describe_tools,
    format_of,
    write_calls,
    write_result,
)

if TYPE_CHECKING:
    from parse_engine.backends.model import Model

Message = dict[str, Any]


def text_of(content: Any) -> str:
    """Return the text of a message's content: a string, or a list of strings and text blocks.

    Raises
    ------
    InvalidRequestError
        If it holds an image, audio, a file, or anything else that is no text.
    """
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if not isinstance(content, Sequence):
        raise InvalidRequestError(f"A message has the content {content!r}.", "Give a text.")
    return "".join(_block_text(block) for block in content)


def _block_text(block: Any) -> str:
    if isinstance(block, str):
        return block
    kind = block.get("type", "text") if isinstance(block, Mapping) else type(block).__name__
    if kind == "text":
        if isinstance(block.get("text"), str):
            return str(block["text"])
        raise InvalidRequestError(f"A text block has no text: {block!r}.", 'Give "text": "...".')
    raise InvalidRequestError(
        f"A message has a content block of the type {kind!r}.",
        "Only text is supported: the models read no images, audio or files.",
    )


def check_conversation(messages: Sequence[Message]) -> None:
    """Refuse what no chat template can take: no messages, half characters, calls that are no JSON.

    Parameters
    ----------
    messages : sequence of dict
        Role and content; assistants may have ``tool_calls``.
    """
    for index, message in enumerate(check_messages(messages)):
        check_text(f"messages[{index}]", message["content"] or "")
        try:
            written = json.dumps(message.get("tool_calls"), ensure_ascii=False)
        except (TypeError, ValueError) as error:
            raise InvalidRequestError(
                f"A tool call in messages[{index}] cannot be written as JSON: {error}.",
                "Give arguments of texts, numbers, lists and dicts.",
            ) from error
        check_text(f"messages[{index}]", written)


def in_call_order(messages: Sequence[Message]) -> list[Message]:
    """Sort the results of parallel calls as the calls are: many templates print no ids."""
    ordered: list[Message] = []
    places: dict[Any, int] = {}
    for is_results, group in groupby(messages, key=lambda message: message["role"] == "tool"):
        run = list(group)
        if is_results:
            run.sort(key=lambda result: places.get(result.get("tool_call_id"), len(places)))
        else:
            calls = run[-1].get("tool_calls", ())
            places = {call.get("id"): place for place, call in enumerate(calls)}
        ordered += run
    return ordered


def merge(messages: Iterable[Message]) -> list[Message]:
    """Join messages of the same role in a row, as strict templates want it; not tool results."""
    merged: list[Message] = []
    for message in messages:
        last = merged[-1] if merged else None
        if last is None or message["role"] != last["role"] or message["role"] == "tool":
            merged.append(dict(message))
            continue
        texts = (last["content"], message["content"])
        joined = {**last, **message, "content": "\n\n".join(text for text in texts if text)}
        if calls := (*last.get("tool_calls", ()), *message.get("tool_calls", ())):
            joined["tool_calls"] = list(calls)
        if last.get("name") != message.get("name"):
            joined.pop("name", None)
        merged[-1] = joined
    return merged


@dataclass(frozen=True)
class Conversation:
    """A conversation that a model's template carries whole.

    Parameters
    ----------
    messages : list of dict
        Role and content.
    tools : tuple of dict
        Tools that the template itself writes into the prompt.
    tool_format : ToolFormat
        How the model writes calls.
    """

    messages: list[Message]
    tools: tuple[Tool, ...]
    tool_format: ToolFormat


def fit(
    model: Model,
    messages: Sequence[Message],
    tools: Sequence[Tool] = (),
    tool_format: ToolFormat | None = None,
) -> Conversation:
    """Bring a conversation into a form that a model's template takes and that loses nothing.

    Tried in this order: as it is, all system messages first, system messages in the user's; ids of
    calls shortened, as Mistral's templates want them, and calls one by one, as Llama's do; at last
    tools, calls and results as plain text, for templates that know nothing of tools.

    Parameters
    ----------
    model : Model
        Whose chat template is meant.
    messages : sequence of dict
        Role and content, a text; assistants may have ``tool_calls``, tools a ``tool_call_id``.
    tools : sequence of dict
        JSON schemas as chat templates take them.
    tool_format : ToolFormat, optional
        How the model writes calls. Unset: read off its template.
    """
    native = tool_format or format_of(model.tokenizer, tools)
    said = merge(in_call_order(messages))
    candidates = list(_candidates(said, tuple(tools), native, tool_format))
    for candidate in candidates:
        if _carries(_render(model, candidate), candidate):
            return candidate
    return candidates[0]  # which the template does not take: the engine says what is wrong


def _candidates(
    messages: list[Message],
    tools: tuple[Tool, ...],
    native: ToolFormat | None,
    wanted: ToolFormat | None,
) -> Iterator[Conversation]:
    forms: list[tuple[list[Message], tuple[Tool, ...], ToolFormat]] = []
    if native is not None:
        forms.append((messages, tools, native))
    prose = wanted or ToolFormat()
    forms.append((as_text(messages, tools, prose), (), prose))
    reshape: tuple[Callable[[list[Message]], list[Message]], ...] = (
        lambda given: given,
        _short_ids,
        _one_by_one,
        lambda given: _one_by_one(_short_ids(given)),
    )
    called = any(message.get("tool_calls") for message in messages)
    for given, offered, form in forms:
        for place in (lambda given: given, _system_first, _system_in_user):
            for change in reshape if called and offered is tools else reshape[:1]:
                yield Conversation(change(place(given)), offered, form)


def _render(model: Model, candidate: Conversation) -> str | None:
    """Return the prompt that a model's template makes; None if it refuses the messages."""
    try:
        return model.render(candidate.messages, candidate.tools).text
    except InvalidRequestError:
        return None


def _carries(prompt: str | None, candidate: Conversation) -> bool:
    """Whether a prompt has all that was said: some templates drop what they do not know."""
    if prompt is None:
        return False
    wanted = [tool.get("function", tool).get("name", "") for tool in candidate.tools]
    for message in candidate.messages:
        calls = message.get("tool_calls", ())
        # Of assistants, thinking models leave out the thoughts; beside a call some leave out all.
        if message["role"] != "assistant" or (calls and "<think>" not in message["content"]):
            wanted.append(message["content"].strip())
        wanted += [call["function"]["name"] for call in calls]
    return all(any(form in prompt for form in _written(text)) for text in wanted)


def _written(text: str) -> tuple[str, str, str]:
    """Return the forms in which a template may show a text: as it is, or inside of JSON."""
    return text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]


def _system_first(messages: list[Message]) -> list[Message]:
    texts = [message["content"] for message in messages if message["role"] == "system"]
    others = [message for message in messages if message["role"] != "system"]
    first = [{"role": "system", "content": "\n\n".join(texts)}] if texts else []
    return first + merge(others)


def _system_in_user(messages: list[Message]) -> list[Message]:
    first, *others = _system_first(messages)
    if first["role"] != "system":
        return [first, *others]
    return merge([{**first, "role": "user"}, *others])


def _short_ids(messages: list[Message]) -> list[Message]:
    """Make ids of nine letters and digits, the same for the same id."""

    def short(given: Any) -> str:
        return hashlib.sha256(str(given).encode()).hexdigest()[:9]

    changed = []
    for message in messages:
        message = dict(message)
        if calls := message.get("tool_calls"):
            message["tool_calls"] = [{**call, "id": short(call.get("id"))} for call in calls]
        if "tool_call_id" in message:
            message["tool_call_id"] = short(message["tool_call_id"])
        changed.append(message)
    return changed


def _one_by_one(messages: list[Message]) -> list[Message]:
    """Give each call a message of its own, without text, and follow it with its result."""
    changed: list[Message] = []
    waiting = list(messages)
    while waiting:
        message = waiting.pop(0)
        if not (calls := message.get("tool_calls", ())):
            changed.append(message)
            continue
        if message["content"]:
            changed.append({key: value for key, value in message.items() if key != "tool_calls"})
        results: list[Message] = []  # those of this message: ids may come again
        while waiting and waiting[0]["role"] == "tool":
            results.append(waiting.pop(0))
        for call in calls:
            changed.append({**message, "content": "", "tool_calls": [call]})
            own = [each for each in results if each.get("tool_call_id") == call.get("id")]
            changed += own
            results = [each for each in results if each not in own]
        changed += results
    return changed


def as_text(
    messages: Sequence[Message], tools: Sequence[Tool], tool_format: ToolFormat
) -> list[Message]:
    """Write tools, calls and results as text, for templates that know nothing of them.

    Parameters
    ----------
    messages : sequence of dict
        The conversation.
    tools : sequence of dict
        What is offered; described in a system message.
    tool_format : ToolFormat
        How calls are written.

    Returns
    -------
    list of dict
        Messages of one role in a row are joined.
    """
    changed: list[Message] = []
    for message in messages:
        content = message["content"]
        if calls := message.get("tool_calls"):
            content = "\n".join(part for part in (content, write_calls(tool_format, calls)) if part)
        if message["role"] == "tool":
            changed.append({"role": "user", "content": write_result(content)})
        else:
            plain = {key: value for key, value in message.items() if key != "tool_calls"}
            changed.append({**plain, "content": content})
    if tools:
        changed.insert(0, {"role": "system", "content": describe_tools(tool_format, tools)})
    return merge(changed)
