"""Drafts of another family: thinking and answer as the target itself would write them."""

from __future__ import annotations

import pytest

from parse_engine import Engine, InvalidRequestError, ParseConfig
from parse_engine.types import DraftForm
from tests.scripted import scripted
from tests.tiny_models import tiny_model

ASK = [{"role": "user", "content": "How far is it?"}]
THOUGHT = {
    "qwen3": "<think>\nhm, far\n</think>\n\nIt is far.",
    "qwen3_thinking": "hm, far\n</think>\n\nIt is far.",  # the prompt has opened the thought
    "gpt_oss": "<|channel|>analysis<|message|>hm, far<|end|><|start|>assistant<|channel|>final"
    "<|message|>It is far.",
    "qwen2.5": "It is far.",
}


@pytest.mark.parametrize("target", sorted(THOUGHT))
@pytest.mark.parametrize("draft", sorted(THOUGHT))
def test_thinking_is_written_in_the_targets_form(draft: str, target: str) -> None:
    judge, writer = tiny_model(template=target), tiny_model(template=draft)
    engine = Engine(judge, scripted(writer, THOUGHT[draft]), ParseConfig(threshold=0))
    answer = engine.generate(ASK)
    assert answer.text == "It is far."
    thinks = "qwen2.5" not in (draft, target)
    assert answer.reasoning == ("hm, far" if thinks else "")
    assert answer.stats.fallback is None
    assert answer.stats.accepted_fraction == 1.0
    if thinks:
        assert answer.token_ids == judge.encode(THOUGHT[target])


def test_an_answer_without_a_thought_is_no_thought() -> None:
    judge, writer = tiny_model(template="qwen3_thinking"), tiny_model(template="qwen2.5")
    engine = Engine(judge, scripted(writer, "It is far."), ParseConfig(threshold=0))
    answer = engine.generate(ASK)
    assert (answer.reasoning, answer.text) == ("", "It is far.")
    assert answer.finish_reason == "stop"


@pytest.mark.parametrize("target", ["qwen3_thinking", "gpt_oss"])
@pytest.mark.parametrize("ends", [False, True])
def test_a_thought_that_is_cut_off_is_gone_on_with(target: str, ends: bool) -> None:
    judge, writer = tiny_model(template=target), tiny_model(template="qwen3")
    draft = scripted(writer, "<think>\nhm, far", ends=ends)
    answer = Engine(judge, draft, ParseConfig(threshold=0)).generate(ASK, max_new_tokens=60)
    assert answer.accepted_text.endswith("hm, far")
    assert answer.stats.regenerated_tokens > 0


def test_what_is_spelled_like_a_mark_in_an_answer_is_text() -> None:
    judge, writer = tiny_model(template="gpt_oss"), tiny_model(template="qwen2.5")
    text = "Write <|channel|>final<|message|> so."
    answer = Engine(judge, scripted(writer, text), ParseConfig(threshold=0)).generate(ASK)
    assert answer.text == text


def test_the_draft_model_is_asked_in_its_own_form() -> None:
    judge, writer = tiny_model(template="qwen2.5"), tiny_model(template="llama3")
    draft = scripted(writer, "far")
    other = [{"role": "user", "content": "Say how far."}]
    form = DraftForm(other, rewrite=lambda text, ended: f"{text}{ended}")
    engine = Engine(judge, draft, ParseConfig(threshold=0))
    assert engine.generate(ASK, draft_form=form).text == "farTrue"
    assert draft.seen[-1]["ids"] == writer.render(other).ids
    assert engine.generate(ASK, draft_form=form, mode="draft").text == "far"
    assert draft.seen[-1]["ids"] == writer.render(other).ids


@pytest.mark.parametrize("form", ["x", DraftForm([]), DraftForm([{"role": "boss"}])])
def test_forms_that_no_template_takes_are_refused(form: object) -> None:
    engine = Engine(tiny_model(), tiny_model(seed=1))
    with pytest.raises(InvalidRequestError):
        engine.generate(ASK, draft_form=form)  # type: ignore[typeddict-item]
