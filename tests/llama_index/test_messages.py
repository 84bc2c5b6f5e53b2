"""Messages of LlamaIndex as chat templates take them, and answers as LlamaIndex takes them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llama_index.core.base.llms.types import (
    CacheControl,
    CachePoint,
    ChatMessage,
    CitableBlock,
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from llama_index.core.llms.llm import ToolSelection

from parse_engine import errors as parse
from parse_integrations.llama_index.messages import to_dicts
from parse_integrations.messages import in_call_order
from tests.llama_index.llms import replying, saying

CALL = {"name": "add", "arguments": '{"a": 1}'}


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        (ChatMessage(content="Hi"), {"role": "user", "content": "Hi"}),
        (ChatMessage(role="developer", content="x"), {"role": "system", "content": "x"}),
        (ChatMessage(role="chatbot", content="x"), {"role": "assistant", "content": "x"}),
        (ChatMessage(role="model", content="x"), {"role": "assistant", "content": "x"}),
        (ChatMessage(role="user"), {"role": "user", "content": ""}),
        (
            ChatMessage(
                role="user",
                content=[
                    TextBlock(text="a"),
                    CitableBlock(title="t", source="s", content="b"),
                    CachePoint(cache_control=CacheControl(type="ephemeral")),
                ],
            ),
            {"role": "user", "content": "a\nb"},
        ),
        (
            ChatMessage(
                role="tool", content="3", additional_kwargs={"tool_call_id": "1", "name": "add"}
            ),
            {"role": "tool", "content": "3", "tool_call_id": "1", "name": "add"},
        ),
        (
            ChatMessage(role="function", content="3", additional_kwargs={"name": "add"}),
            {"role": "tool", "content": "3", "tool_call_id": "add", "name": "add"},
        ),
        (
            ChatMessage(
                role="assistant",
                content=[
                    ThinkingBlock(content="Hm."),
                    TextBlock(text="So"),
                    ToolCallBlock(tool_call_id="1", tool_name="add", tool_kwargs={"a": 1}),
                ],
                additional_kwargs={"tool_calls": [{"id": "1", "function": CALL}]},
            ),
            {
                "role": "assistant",
                "content": "So",
                "reasoning_content": "Hm.",
                "tool_calls": [
                    {
                        "id": "1",
                        "type": "function",
                        "function": {"name": "add", "arguments": {"a": 1}},
                    }
                ],
            },
        ),
        (
            ChatMessage(
                role="assistant", additional_kwargs={"tool_calls": [{"id": "1", "function": CALL}]}
            ),
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {
                        "id": "1",
                        "type": "function",
                        "function": {"name": "add", "arguments": {"a": 1}},
                    }
                ],
            },
        ),
    ],
)
def test_messages_as_templates_take_them(message: ChatMessage, wanted: dict[str, Any]) -> None:
    assert to_dicts([message]) == [wanted]


def test_calls_that_are_no_json_stay_visible() -> None:
    call = ToolCallBlock(tool_call_id="1", tool_name="add", tool_kwargs='{"a": ')
    (message,) = to_dicts([ChatMessage(role="assistant", blocks=[call])])
    assert "tool_calls" not in message
    assert "add" in message["content"]
    assert '{\\"a\\": ' in message["content"] or '{"a": ' in message["content"]


@pytest.mark.parametrize("messages", [[{"role": "user", "content": "Hi"}], []])
def test_what_is_no_conversation_is_refused(messages: Any) -> None:
    with pytest.raises(parse.InvalidRequestError, match="message"):
        saying("x").chat(messages)


async def test_messages_that_the_start_event_used_up_are_refused() -> None:
    for given in (iter([ChatMessage(content="Hi")]), (ChatMessage(content=c) for c in "ab")):
        with pytest.raises(
            parse.InvalidRequestError, match=r"messages is of the type .*Give a list"
        ):
            saying("x").chat(given)  # type: ignore[arg-type]
    assert saying("x").chat((ChatMessage(content="Hi"),)).message.content == "x"


@pytest.mark.parametrize(
    "call",
    [
        {"id": "1", "type": "tool_use", "name": "f", "input": {"a": 1}},
        {"toolUseId": "1", "name": "f", "input": {"a": 1}},
        {"id": "1", "function": {"name": "f", "arguments": '{"a": 1}'}},
        {"id": "1", "name": "f", "args": {"a": 1}},
        ToolSelection(tool_id="1", tool_name="f", tool_kwargs={"a": 1}),
    ],
)
def test_calls_of_other_packages_are_read(call: Any) -> None:
    message = ChatMessage(role="assistant", additional_kwargs={"tool_calls": [call]})
    (read,) = to_dicts([message])[0]["tool_calls"]
    assert read == {
        "id": "1",
        "type": "function",
        "function": {"name": "f", "arguments": {"a": 1}},
    }


@pytest.mark.parametrize(
    "calls", ["junk", ["junk"], 5, {"id": "1"}, [{"id": "1", "function": None}], [object()]]
)
def test_calls_that_cannot_be_read_are_refused(calls: Any) -> None:
    message = ChatMessage(role="assistant", additional_kwargs={"tool_calls": calls})
    with pytest.raises(parse.InvalidRequestError, match="cannot be read"):
        to_dicts([message])


def test_results_are_told_in_the_order_of_their_calls() -> None:
    calls: Any = [ToolCallBlock(tool_call_id=n, tool_name="f", tool_kwargs={}) for n in "abc"]
    results = [
        ChatMessage(role="tool", content=f"result {n}", additional_kwargs={"tool_call_id": n})
        for n in "cab"
    ]
    history = [
        ChatMessage(role="user", content="Hi"),
        ChatMessage(role="assistant", blocks=calls),
        *results,
    ]
    told = in_call_order(to_dicts(history))
    assert [m["content"] for m in told[2:]] == ["result a", "result b", "result c"]


def test_images_are_refused_before_any_model_runs() -> None:
    picture = ChatMessage(content=[ImageBlock(image=b"x")])
    with pytest.raises(parse.InvalidRequestError, match="image"):
        saying("x").chat([picture])


@pytest.mark.parametrize("template", ["qwen2.5", "llama3", "mistral_v7", "gemma2", "phi3"])
def test_every_family_reads_what_was_said(template: str) -> None:
    """A system message in the middle, as LlamaIndex's templates bring it, and repeated roles."""
    history = [
        ChatMessage(role="user", content="First."),
        ChatMessage(role="user", content="Second."),
        ChatMessage(role="assistant", content="Third."),
        ChatMessage(role="system", content="Fourth."),
        ChatMessage(role="user", content="Fifth."),
    ]
    llm = saying("Yes.", template)
    assert llm.chat(history).message.content == "Yes."
    (seen,) = llm.engine.draft.seen
    prompt = llm.engine.draft.tokenizer.decode(list(seen["ids"]))
    for word in ("First.", "Second.", "Third.", "Fourth.", "Fifth."):
        assert prompt.count(word) == 1


@pytest.mark.parametrize("way", ["chat", "stream_chat", "complete", "stream_complete"])
def test_thoughts_are_apart(way: str) -> None:
    llm = saying("<think>\nHm, hm.\n</think>\n\nThe answer.", "qwen3")
    asked: Any = "Hi" if "complete" in way else [ChatMessage(content="Hi")]
    answer = getattr(llm, way)(asked)
    responses = list(answer) if "stream" in way else [answer]
    last = responses[-1]
    if "complete" in way:
        assert last.text == "The answer."
        assert last.additional_kwargs["thinking"] == "Hm, hm."
        return
    thought, text = last.message.blocks
    assert isinstance(thought, ThinkingBlock)
    assert thought.content == "Hm, hm."
    assert thought.num_tokens == len(llm.tokenizer("Hm, hm."))
    assert text == TextBlock(text="The answer.")
    if "stream" in way:
        thinking = [r.additional_kwargs.get("thinking_delta", "") for r in responses]
        assert "".join(thinking) == "Hm, hm."
        assert "".join(r.delta or "" for r in responses) == "The answer."


def test_raw_tells_everything_in_plain_json() -> None:
    llm, _ = replying("Yes.")
    response = llm.chat([ChatMessage(content="Hi")])
    raw = json.loads(json.dumps(response.raw))
    assert set(raw) == {"usage", "finish_reason", "parse"}
    usage = raw["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert raw["finish_reason"] == "stop"
    assert raw["parse"]["accepted_tokens"] == raw["parse"]["drafted_tokens"] > 0
    assert response.delta is None
