"""Text as it grows: characters, stop strings, thinking."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parse_engine.accept import longest_valid_prefix
from parse_engine.answer import AnswerText
from parse_engine.regions import answer_parser
from parse_engine.text import TextBuilder, decode_all
from tests.tiny_tokenizers import FAMILIES, chat_tokenizer


def grow(chunks: list[str], stop: tuple[str, ...]) -> tuple[str, list[str]]:
    answer = AnswerText(stop)
    shown = []
    for chunk in chunks:
        shown += answer.feed(chunk, "regenerated")
    shown += answer.finish()
    return answer.text, [delta.text for delta in shown]


@given(
    chunks=st.lists(st.text(alphabet="ab\n", max_size=4), max_size=12),
    stop=st.lists(st.text(alphabet="ab\n", min_size=1, max_size=4), max_size=3),
)
def test_stop_strings_cut_any_chunking_at_the_same_place(
    chunks: list[str], stop: list[str]
) -> None:
    # reference: the shortest beginning of the whole text that contains a stop string
    whole = "".join(chunks)
    ends = [end for end in range(len(whole) + 1) if any(s in whole[:end] for s in stop)]
    text, deltas = grow(chunks, tuple(stop))
    assert "".join(deltas) == text
    assert whole.startswith(text)
    assert not any(s in text for s in stop)
    if not ends:
        assert text == whole
    else:
        first = min(whole.find(s) for s in stop if s in whole)
        assert len(text) >= first
        assert len(text) < ends[0] or first == len(text)


def test_text_that_may_become_a_stop_string_is_held_back() -> None:
    answer = AnswerText(("STOP",))
    assert [d.text for d in answer.feed("one ST", "accepted")] == ["one "]
    assert [d.text for d in answer.feed("Y", "regenerated")] == ["ST", "Y"]
    assert [d.source for d in answer.feed(" S", "regenerated")] == ["regenerated"]
    assert [d.text for d in answer.finish()] == ["S"]


@pytest.mark.parametrize("template", ["qwen3", "llama3", "llama2", "gpt_oss", "gemma3"])
@pytest.mark.parametrize("sentencepiece", [False, True])
def test_builder_gives_what_decoding_everything_gives(template: str, sentencepiece: bool) -> None:
    tokenizer = chat_tokenizer(template, sentencepiece=sentencepiece)
    for text in ("né世😀 The answer\n\n is", "  two  spaces", "\U0001f469\u200d\U0001f680é", "a"):
        ids = tokenizer.encode(text, add_special_tokens=False)
        built, ends = decode_all(tokenizer, ids)
        assert built == tokenizer.decode(ids)
        assert ends[-1] == len(built)
        for count, end in enumerate(ends, start=1):
            if end is not None:
                assert tokenizer.decode(ids[:count]) == built[:end]


@given(data=st.lists(st.integers(0, 255), max_size=40))
def test_any_bytes_become_text_once_and_for_all(data: list[int]) -> None:
    tokenizer = chat_tokenizer("qwen2.5")
    builder = TextBuilder(tokenizer)
    pieces = [builder.push(token) for token in data]
    pieces.append(builder.finish())
    assert "".join(pieces) == builder.text == tokenizer.decode(data)
    assert len(builder.char_ends) == len(data)


def test_special_tokens_have_no_text() -> None:
    tokenizer = chat_tokenizer("qwen3")
    ids = tokenizer.encode("<think>\nhm\n</think>\n\nHi<|im_end|>", add_special_tokens=False)
    text, ends = decode_all(tokenizer, ids)
    assert text == "<think>\nhm\n</think>\n\nHi"
    assert ends[-1] == ends[-2] == len(text)


THOUGHTS = {
    "qwen3": ("<think>\nhm\n</think>\n\nHi <b>", "hm", "Hi <b>"),
    "qwen3_thinking": ("hm\n</think>\n\nHi", "hm", "Hi"),
    "deepseek": ("hm\n</think>\n\nHi", "hm", "Hi"),
    "gpt_oss": (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
        "<|channel|>final<|message|>Hi <|x|>",
        "hm",
        "Hi <|x|>",
    ),
    "qwen2.5": ("<think>x</think>", "", "<think>x</think>"),
}


@pytest.mark.parametrize("template", THOUGHTS)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_thinking_is_kept_apart(template: str, size: int) -> None:
    raw, thought, said = THOUGHTS[template]
    tokenizer = chat_tokenizer(template)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "x"}], tokenize=False, add_generation_prompt=True
    )
    answer = AnswerText((), answer_parser(tokenizer, str(prompt)))
    deltas = []
    for start in range(0, len(raw), size):
        deltas += answer.feed(raw[start : start + size], "regenerated")
    deltas += answer.finish()
    assert (answer.reasoning, answer.text) == (thought, said)
    assert "".join(d.text for d in deltas if d.reasoning) == thought
    assert "".join(d.text for d in deltas if not d.reasoning) == said


def test_every_family_has_a_builder() -> None:
    for template in FAMILIES:
        tokenizer = chat_tokenizer(template)
        assert decode_all(tokenizer, tokenizer.encode("Hi", add_special_tokens=False))[0] == "Hi"


# The accept rule


@given(verdicts=st.lists(st.floats(0, 1), max_size=10), threshold=st.floats(0, 1))
def test_accept_rules(verdicts: list[float], threshold: float) -> None:
    unbroken = longest_valid_prefix(verdicts, threshold, "unbroken")
    longest = longest_valid_prefix(verdicts, threshold, "longest")
    passing = [i for i, verdict in enumerate(verdicts) if verdict >= threshold]
    assert longest == (max(passing) if passing else None)
    if verdicts and verdicts[-1] >= threshold:
        assert unbroken == len(verdicts) - 1
    else:
        expected = 0
        while expected < len(verdicts) and verdicts[expected] >= threshold:
            expected += 1
        assert unbroken == (expected - 1 if expected else None)


def test_no_prefix_no_acceptance() -> None:
    assert longest_valid_prefix([], 0.0, "unbroken") is None
