"""What LangChain's messages become in the prompts of draft and target."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from langchain_core.exceptions import ContextOverflowError, ModelInvalidRequestError
from langchain_core.messages import (
    AIMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.utils.function_calling import tool_example_to_messages
from pydantic import BaseModel

from parse_engine import Engine, ParseConfig
from parse_engine import errors as parse
from parse_integrations.langchain import ChatParse
from parse_integrations.langchain.messages import to_dicts
from parse_integrations.messages import Conversation, fit
from tests.langchain.llms import LINES, replying, saying
from tests.scripted import scripted
from tests.tiny_models import tiny_model

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def called(*ids: str) -> AIMessage:
    calls: Any = [{"name": "add", "args": {"a": n}, "id": id_} for n, id_ in enumerate(ids)]
    return AIMessage("", tool_calls=calls)


def fitted(messages: list[Any], template: str, tools: Any = ()) -> tuple[Conversation, str]:
    engine = Engine(tiny_model(template=template), config=ParseConfig(mode="target"))
    conversation = fit(engine.target, to_dicts(messages), tools)
    return conversation, engine.target.render(conversation.messages, conversation.tools).text


DOUBLE = [
    *(SystemMessage("S-one"), SystemMessage("S-two")),
    *(HumanMessage("H-one"), HumanMessage("H-two")),
    *(AIMessage("A-one"), AIMessage("A-two")),
    HumanMessage("H-three"),
]
TEMPLATES = ["qwen2.5", "qwen3", "llama3", "mistral", "mistral_v7", "gemma2", "phi3", "llama2"]


@pytest.mark.parametrize("template", TEMPLATES)
def test_repeated_roles_are_joined_and_nothing_is_lost(template: str) -> None:
    conversation, prompt = fitted(DOUBLE, template)
    roles = [message["role"] for message in conversation.messages]
    assert all(one != other for one, other in pairwise(roles))
    for message in DOUBLE:
        assert prompt.count(str(message.content)) == 1


@pytest.mark.parametrize("template", TEMPLATES)
def test_system_messages_in_the_middle_are_not_lost(template: str) -> None:
    messages = [HumanMessage("H-one"), AIMessage("A-one"), SystemMessage("S"), HumanMessage("H-2")]
    assert "S" in fitted(messages, template)[1]


def test_templates_that_know_no_system_message_get_it_from_the_user() -> None:
    conversation, _ = fitted(DOUBLE, "gemma2")
    assert conversation.messages[0] == {
        "role": "user",
        "content": "S-one\n\nS-two\n\nH-one\n\nH-two",
    }


def test_a_draft_model_of_another_family_can_read_the_conversation_too() -> None:
    target = tiny_model(template="qwen2.5")
    draft = scripted(tiny_model(template="gemma2"), LINES)
    ChatParse(engine=Engine(target, draft), threshold=0.0).invoke(DOUBLE)
    prompt = draft.tokenizer.decode(draft.seen[0]["ids"])
    assert prompt.count("S-two") == 1
    assert "system" not in prompt


@pytest.mark.parametrize("template", ["qwen2.5", "mistral_v7", "gemma2", "phi3"])
def test_calls_results_and_tools_reach_every_prompt(template: str) -> None:
    history = [
        HumanMessage("What is 1+2?"),
        called("c1", "c2"),
        ToolMessage("three", tool_call_id="c1"),
        ToolMessage(["fo", {"type": "text", "text": "ur"}], tool_call_id="c2"),
    ]
    _, prompt = fitted(history, template, (TOOL,))
    for part in ('{"name": "add", "arguments": {"a": 0}}', '"arguments": {"a": 1}', "three"):
        assert part in prompt
    assert "four" in prompt
    assert json.dumps(TOOL) in prompt


def test_failed_tools_are_told() -> None:
    failed = ToolMessage("no such city", tool_call_id="c1", status="error")
    assert "Error: no such city" in fitted([HumanMessage("x"), called("c1"), failed], "qwen2.5")[1]


def test_what_was_no_call_stays_visible() -> None:
    broken: Any = [{"name": None, "args": "<tool_call> {'a'", "id": "c", "error": None}]
    history = [HumanMessage("x"), AIMessage("", invalid_tool_calls=broken), HumanMessage("again")]
    assert "<tool_call> {'a'" in fitted(history, "qwen2.5")[1]


def test_blocks_of_an_assistant_that_are_no_text_are_not_refused() -> None:
    blocks: Any = [
        {"type": "reasoning", "reasoning": "hidden"},
        {"type": "text", "text": "shown"},
        {"type": "tool_use", "id": "c1", "name": "add", "input": {}},
    ]
    message = AIMessage(blocks, tool_calls=called("c1").tool_calls)
    (first,) = to_dicts([message])
    assert first["content"] == "shown"
    assert first["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 0}}


def test_other_kinds_of_messages() -> None:
    converted = to_dicts(
        [
            ChatMessage("a", role="user"),
            ChatMessage("b", role="developer"),
            FunctionMessage("c", name="f"),
            HumanMessage("d", name="Ann"),
        ]
    )
    assert [(m["role"], m["content"]) for m in converted] == [
        *(("user", "a"), ("system", "b"), ("tool", "c"), ("user", "d"))
    ]
    assert converted[3]["name"] == "Ann"
    with pytest.raises(parse.InvalidRequestError, match="RemoveMessage"):
        to_dicts([RemoveMessage(id="1")])


@pytest.mark.parametrize("kind", ["image_url", "image", "audio", "file", "input_audio", "video"])
def test_images_and_audio_are_refused_before_any_model_runs(kind: str) -> None:
    message = HumanMessage([{"type": "text", "text": "What is it?"}, {"type": kind, kind: {}}])
    with pytest.raises(parse.InvalidRequestError, match=kind) as refused:
        saying(LINES).invoke([message])
    assert isinstance(refused.value, ModelInvalidRequestError)


def test_prompts_that_are_too_long_are_of_langchains_family() -> None:
    with pytest.raises(ContextOverflowError) as refused:
        saying(LINES).invoke("x" * 5000)
    assert isinstance(refused.value, parse.ContextOverflowError)


class Person(BaseModel):
    """A person."""

    name: str


def test_few_shot_examples_of_langchain_are_taken() -> None:
    examples = tool_example_to_messages("Ann is here.", [Person(name="Ann")], ai_response="Done.")
    llm, prompts = replying(LINES)
    llm.bind_tools([Person]).invoke([*examples, HumanMessage("Bob is here.")])
    (prompt,) = prompts
    assert prompt.index('"arguments": {"name": "Ann"}') < prompt.index("Bob")


def test_number_of_tokens_is_that_of_the_prompt() -> None:
    llm = saying(LINES, max_tokens=3)
    answer = llm.invoke(DOUBLE)
    assert answer.usage_metadata is not None
    assert llm.get_num_tokens_from_messages(DOUBLE) == answer.usage_metadata["input_tokens"]
    with_tools = llm.get_num_tokens_from_messages(DOUBLE, tools=[Person])
    assert with_tools > answer.usage_metadata["input_tokens"]
    assert llm.get_num_tokens("The answer") == len(llm.get_token_ids("The answer")) == 2
