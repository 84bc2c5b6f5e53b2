"""Prompts of the user's own: formatted ones, functions that make them, system prompts, parsers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

import pytest
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.core.types import BaseOutputParser
from pydantic import BaseModel

from parse_engine import Engine, ParseConfig
from parse_engine import errors as parse
from parse_integrations.llama_index import ParseLLM
from tests.engines import undecided as undecided_engine
from tests.llama_index.llms import replying, saying, undecided
from tests.scripted import scripted
from tests.tiny_models import tiny_model

HI = [ChatMessage(content="Hi")]


def shout(messages: Sequence[ChatMessage]) -> str:
    return "".join(f"[{m.role.value}] {m.content}\n" for m in messages) + "[assistant] "


def test_a_formatted_prompt_goes_to_both_models_as_it_stands() -> None:
    llm, prompts = replying("Yes.", "Yes.", "Yes.")
    assert llm.complete("<s>Q: why? A:", formatted=True).text == "Yes."
    assert prompts[-1] == "<s>Q: why? A:"
    assert llm.complete("Q: why? A:").text == "Yes."
    assert prompts[-1] != "Q: why? A:"
    assert "user" in prompts[-1]
    asyncio.run(llm.acomplete("plain", formatted=True))
    assert prompts[-1] == "plain"


def test_a_formatted_prompt_gives_what_the_template_would_have() -> None:
    llm = undecided(max_tokens=8)
    messages = [{"role": "user", "content": "Hi"}]
    rendered = llm.engine.target.render(messages)
    answer = llm.complete(rendered.text, formatted=True)
    assert answer.text == llm.complete("Hi").text
    assert answer.raw["usage"]["prompt_tokens"] == len(rendered.ids)


def test_a_draft_model_of_another_family_gets_its_own_template() -> None:
    target = tiny_model(template="qwen2.5")
    draft = scripted(tiny_model(template="llama3", seed=1), "Yes.")
    llm = ParseLLM(engine=Engine(target, draft, ParseConfig(threshold=0.0)))
    llm.messages_to_prompt = shout
    assert llm.chat(HI).message.content == "Yes."
    (seen,) = draft.seen
    assert "[user]" not in draft.tokenizer.decode(list(seen["ids"]))


@pytest.mark.parametrize("prompt", ["", 5, "\ud800"])
def test_wrong_prompts_are_refused(prompt: Any) -> None:
    with pytest.raises(parse.InvalidRequestError, match="prompt"):
        undecided_engine().generate([{"role": "user", "content": "Hi"}], prompt=prompt)
    with pytest.raises(parse.InvalidRequestError, match="tools beside a prompt"):
        undecided_engine().generate(
            [{"role": "user", "content": "Hi"}], prompt="Hi", tools=[{"name": "x"}]
        )


def test_bos_is_added_where_the_tokenizer_adds_it() -> None:
    model = tiny_model(template="llama3")
    assert model.take("Hi").ids == model.encode("Hi") or model.take("Hi").ids[0] == (
        model.tokenizer.bos_token_id
    )


def test_messages_to_prompt_takes_the_place_of_the_template() -> None:
    llm, prompts = replying("Yes.", "No.", messages_to_prompt=shout)
    llm.chat([ChatMessage(role="system", content="Brief."), *HI])
    assert prompts[-1] == "[system] Brief.\n[user] Hi\n[assistant] "
    assert llm.predict(PromptTemplate("Say {it}"), it="no") == "No."
    assert prompts[-1] == "[user] Say no\n[assistant] "


def test_messages_to_prompt_with_tools_and_schemas() -> None:
    def pick(n: int) -> str:
        """Pick."""
        return str(n)

    class Size(BaseModel):
        size: Literal["s", "m"]

    llm, prompts = replying(
        '<tool_call>\n{"name": "pick", "arguments": {"n": 3}}\n</tool_call>',
        '{"size": "m"}',
        messages_to_prompt=shout,
    )
    outcome = llm.predict_and_call([FunctionTool.from_defaults(pick)], "Three.")
    assert str(outcome) == "3"
    assert '"pick"' in prompts[0]
    assert prompts[0].endswith("[user] Three.\n[assistant] ")
    assert llm.structured_predict(Size, PromptTemplate("How big?")) == Size(size="m")
    assert '"size"' in prompts[1]


def test_completion_to_prompt_takes_the_place_of_the_template() -> None:
    llm, prompts = replying(
        *("a", "b", "c", "d"),
        completion_to_prompt=lambda prompt: f"<<{prompt}>>",
        system_prompt="Brief.",
        query_wrapper_prompt=PromptTemplate("Q: {query_str}"),
    )
    assert not llm.metadata.is_chat_model
    llm.complete("Hi")
    assert prompts[-1] == "<<Hi>>"
    llm.complete("<<Hi>>", formatted=True)
    assert prompts[-1] == "<<Hi>>"
    llm.predict(PromptTemplate("Say {it}"), it="no")
    assert prompts[-1] == "Q: Brief.\n\n<<Say no>>"
    llm.chat(HI)
    assert "user" in prompts[-1]


def test_system_prompt_and_query_wrapper_reach_what_is_predicted() -> None:
    llm, prompts = replying(
        *("a", "b", '{"big": true}'),
        system_prompt="Be brief.",
        query_wrapper_prompt=PromptTemplate("Now: {query_str}!"),
    )

    class Size(BaseModel):
        big: bool

    assert llm.predict(PromptTemplate("Say {it}"), it="a") == "a"
    assert "Be brief." in prompts[0]
    assert "Now: Say a!" in prompts[0]
    assert "".join(llm.stream(PromptTemplate("Say b"))) == "b"
    assert "Now: Say b!" in prompts[1]
    assert llm.structured_predict(Size, PromptTemplate("How big?")).big
    assert "Be brief." in prompts[2]
    assert "Now: How big?!" in prompts[2]


def test_output_parsers_are_used() -> None:
    class Upper(BaseOutputParser):
        def parse(self, output: str) -> str:
            return output.upper()

        def format(self, query: str) -> str:
            return f"{query} In capitals."

    llm, prompts = replying("yes", "yes", output_parser=Upper())
    assert llm.predict(PromptTemplate("Say yes.")) == "YES"
    assert "Say yes. In capitals." in prompts[0]
    assert asyncio.run(llm.apredict(PromptTemplate("Say yes."))) == "YES"


@pytest.mark.parametrize("written", [None, 5, "", ["Hi"]])
def test_what_is_no_prompt_is_refused(written: Any) -> None:
    llm = saying("x", messages_to_prompt=lambda _: written, completion_to_prompt=lambda _: written)
    with pytest.raises(parse.InvalidRequestError, match="messages_to_prompt returned") as caught:
        llm.chat([ChatMessage(content="Hi")])
    assert "a text" in caught.value.hint
    with pytest.raises(parse.InvalidRequestError, match="completion_to_prompt returned"):
        llm.complete("Hi")
    assert llm.complete("Hi", formatted=True).text == "x"
