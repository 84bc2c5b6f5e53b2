"""From LangChain's messages to those of chat templates, and from an answer to message chunks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk

from parse_engine import Generation, InvalidRequestError
from parse_integrations.call_reader import ToolCall
from parse_integrations.calls import Piece, Thought, finish_reason
from parse_integrations.messages import Message, text_of

PROVIDER = "parse"
ROLES = {"human": "user", "ai": "assistant", "developer": "system", "function": "tool"}
# Of tool calls in a stream: blocks with one index are one block, and LangChain counts texts from 0.
FIRST_INDEX = 1000
# Blocks of an assistant's content that LangChain also has elsewhere, or that are its thoughts.
NO_TEXT = {
    *("tool_use", "tool_call", "tool_call_chunk", "invalid_tool_call", "input_json_delta"),
    *("reasoning", "thinking", "redacted_thinking"),
}


def to_dicts(messages: Sequence[BaseMessage]) -> list[Message]:
    """Return messages as chat templates take them.

    Raises
    ------
    InvalidRequestError
        If one holds anything but text, or is of a kind that no template knows.
    """
    return [_to_dict(message) for message in messages]


def _to_dict(message: BaseMessage) -> Message:
    named = {"name": message.name} if message.name else {}
    if isinstance(message, AIMessage):
        return {"role": "assistant", **named, **_assistant(message)}
    content = text_of(message.content)
    if isinstance(message, HumanMessage):
        return {"role": "user", "content": content, **named}
    if isinstance(message, SystemMessage):
        return {"role": "system", "content": content, **named}
    if isinstance(message, ToolMessage):
        if message.status == "error" and not content.lower().startswith("error"):
            content = f"Error: {content}"
        return {"role": "tool", "content": content, "tool_call_id": message.tool_call_id, **named}
    if isinstance(message, FunctionMessage):
        return {"role": "tool", "content": content, "tool_call_id": message.name, **named}
    if isinstance(message, ChatMessage):
        return {"role": ROLES.get(message.role, message.role), "content": content, **named}
    raise InvalidRequestError(
        f"There is a message of the type {type(message).__name__}.",
        "Give human, AI, system and tool messages.",
    )


def _assistant(message: AIMessage) -> Message:
    content: Any = message.content
    if isinstance(content, list):
        content = [
            block
            for block in content
            if not (isinstance(block, dict) and block.get("type") in NO_TEXT)
        ]
    # what could not be read as a call stays visible, or the model would not know what failed
    texts = [text_of(content), *(call["args"] or "" for call in message.invalid_tool_calls)]
    result: Message = {"content": "\n".join(text for text in texts if text)}
    if message.tool_calls:
        result["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": call["args"]},
            }
            for call in message.tool_calls
        ]
    reasoning = message.additional_kwargs.get("reasoning_content")
    if isinstance(reasoning, str) and reasoning:
        result["reasoning_content"] = reasoning
    return result


class ChunkMaker:
    """Turns the pieces of one answer into message chunks.

    Usage, finish reason and statistics are on the last chunk and on no other: LangChain adds chunks
    up, and would join two names and fail on two numbers. A call is one chunk.

    Parameters
    ----------
    model_name : str
        The target's name.
    """

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self._called = False
        self._index = FIRST_INDEX

    def chunks(self, pieces: Sequence[Piece]) -> Iterator[ChatGenerationChunk]:
        """Yield a chunk for each piece."""
        for piece in pieces:
            if isinstance(piece, str):
                message = AIMessageChunk(content=piece)
            elif isinstance(piece, Thought):
                message = AIMessageChunk(
                    content="", additional_kwargs={"reasoning_content": piece.text}
                )
            elif isinstance(piece, ToolCall):
                message = self._call(piece)
            else:
                message = self._last(piece)
            yield ChatGenerationChunk(message=message)

    def _call(self, call: ToolCall) -> AIMessageChunk:
        self._index += 1
        if call.arguments is None:
            written = _marked(call.raw)
        else:
            self._called = True
            written = json.dumps(call.arguments, ensure_ascii=False)
        chunk = tool_call_chunk(name=call.name, args=written, id=call.id, index=self._index)
        return AIMessageChunk(content="", tool_call_chunks=[chunk])

    def _last(self, answer: Generation) -> AIMessageChunk:
        return AIMessageChunk(
            content="",
            chunk_position="last",
            usage_metadata=UsageMetadata(
                input_tokens=answer.usage.prompt_tokens,
                output_tokens=answer.usage.completion_tokens,
                total_tokens=answer.usage.total_tokens,
            ),
            response_metadata={
                "model_name": self._model_name,
                "model_provider": PROVIDER,
                "finish_reason": finish_reason(answer, called=self._called),
                **{f"parse_{name}": value for name, value in answer.stats.as_dict().items()},
            },
        )


def _marked(raw: str) -> str:
    """Return the text of a call that cannot be made, so that nobody takes it for one.

    LangChain completes arguments in chunks that are the beginning of an object, and makes a call of
    half a call. No text that starts with a mark is that.
    """
    raw = raw.lstrip()
    return raw if raw.startswith(("<", "[TOOL")) else f"<|python_tag|>{raw}"
