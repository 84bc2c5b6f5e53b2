"""From LlamaIndex's messages to those of chat templates, and from an answer to responses."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from llama_index.core.base.llms.types import (
    CachePoint,
    ChatMessage,
    ChatResponse,
    CitableBlock,
    CitationBlock,
    CompletionResponse,
    ContentBlock,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)

from parse_engine import Generation, InvalidRequestError
from parse_integrations.call_reader import ToolCall
from parse_integrations.calls import Asked, Piece, Thought, finish_reason
from parse_integrations.llama_index.tools import written_calls
from parse_integrations.messages import Message

ROLES = {
    MessageRole.DEVELOPER: "system",
    MessageRole.FUNCTION: "tool",
    MessageRole.CHATBOT: "assistant",
    MessageRole.MODEL: "assistant",
}


def to_dicts(messages: Sequence[ChatMessage]) -> list[Message]:
    """Return messages as chat templates take them.

    Raises
    ------
    InvalidRequestError
        If one holds an image, audio, or anything else that is no text; or if they are no list.
    """
    if not isinstance(messages, Sequence):
        raise InvalidRequestError(
            f"messages is of the type {type(messages).__name__}.",
            "Give a list: LlamaIndex's event that a call starts has used up anything else.",
        )
    return [_to_dict(message) for message in messages]


def _to_dict(message: ChatMessage) -> Message:
    if not isinstance(message, ChatMessage):
        raise InvalidRequestError(
            f"A message is {type(message).__name__}: {message!r}.",
            'Give ChatMessage(role="user", content="...").',
        )
    role = ROLES.get(message.role, message.role.value)
    texts = [text for block in message.blocks if (text := _text(block)) is not None]
    result: Message = {"role": role, "content": "\n".join(texts)}
    extra = message.additional_kwargs
    if isinstance(extra.get("name"), str):
        result["name"] = extra["name"]
    if role == "tool":
        result["tool_call_id"] = extra.get("tool_call_id", extra.get("name"))
    if role != "assistant":
        return result
    thoughts = [b.content for b in message.blocks if isinstance(b, ThinkingBlock) and b.content]
    if thoughts:
        result["reasoning_content"] = "\n".join(thoughts)
    named = written_calls(message)
    if any(arguments is None for _, _, arguments in named):  # what was no call stays visible
        written = [f"{name} {json.dumps(args)}" if args else name for _, name, args in named]
        result["content"] = "\n".join(text for text in (result["content"], *written) if text)
    elif named:
        result["tool_calls"] = [
            {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
            for id_, name, arguments in named
        ]
    return result


def _text(block: ContentBlock) -> str | None:
    if isinstance(block, TextBlock):
        return block.text
    if isinstance(block, CitableBlock):
        return "\n".join(text for inner in block.content if (text := _text(inner)) is not None)
    if isinstance(block, CitationBlock):
        return _text(block.cited_content)
    if isinstance(block, ThinkingBlock | ToolCallBlock | CachePoint):
        return None
    raise InvalidRequestError(
        f"A message has a block of the type {block.block_type!r}.",
        "Only text is supported: the models read no images, audio or files.",
    )


class ResponseMaker:
    """Turns the pieces of one answer into responses, each with all that came before.

    Usage, finish reason and statistics are on the last one. A call that is malformed or cut off is
    no call: what was written is text, so that it is seen and nothing is done with half of it.

    Parameters
    ----------
    asked : Asked
        The call.
    """

    def __init__(self, asked: Asked) -> None:
        self._target = asked.engine.target
        self._several = asked.several
        self._text = ""
        self._thoughts = ""
        self._calls: list[ToolCall] = []

    def responses(self, pieces: Sequence[Piece]) -> Iterator[ChatResponse]:
        """Yield a response for each piece."""
        for piece in pieces:
            if isinstance(piece, Thought):
                self._thoughts += piece.text
                yield self._response("", thinking_delta=piece.text)
            elif isinstance(piece, Generation):
                yield self._response("", answer=piece)
            elif isinstance(piece, ToolCall) and piece.arguments is not None:
                if self._several or not self._calls:
                    self._calls.append(piece)
                    yield self._response("")
            else:
                text = piece.raw if isinstance(piece, ToolCall) else piece
                self._text += text
                yield self._response(text)

    def _response(self, delta: str, answer: Generation | None = None, **extra: Any) -> ChatResponse:
        blocks: list[ContentBlock] = []
        if self._thoughts:
            length = len(self._target.encode(self._thoughts)) if answer else None
            blocks.append(ThinkingBlock(content=self._thoughts, num_tokens=length))
        if self._text or not self._calls:
            blocks.append(TextBlock(text=self._text))
        listed = []
        for call in self._calls:
            name, arguments = str(call.name), call.arguments or {}
            blocks.append(
                ToolCallBlock(tool_call_id=call.id, tool_name=name, tool_kwargs=arguments)
            )
            written = json.dumps(arguments, ensure_ascii=False)
            function = {"name": name, "arguments": written}
            listed.append({"id": call.id, "type": "function", "function": function})
        message = ChatMessage(
            role=MessageRole.ASSISTANT,
            blocks=blocks,
            additional_kwargs={"tool_calls": listed} if listed else {},
        )
        raw = self._raw(answer) if answer else None
        return ChatResponse(message=message, delta=delta, raw=raw, additional_kwargs=extra)

    def _raw(self, answer: Generation) -> dict[str, Any]:
        usage = answer.usage
        return {
            "usage": {
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": usage.completion_tokens,
                "total_tokens": usage.total_tokens,
            },
            "finish_reason": finish_reason(answer, called=bool(self._calls)),
            "parse": answer.stats.as_dict(),
        }


def completion(response: ChatResponse) -> CompletionResponse:
    """Return a response of the chat endpoints as one of the completion endpoints."""
    thoughts = [b.content for b in response.message.blocks if isinstance(b, ThinkingBlock)]
    thinking = {"thinking": thoughts[0]} if thoughts else {}
    return CompletionResponse(
        text=response.message.content or "",
        delta=response.delta,
        raw=response.raw,
        additional_kwargs={**response.message.additional_kwargs, **thinking},
    )
