"""Which words the judge chooses from, and what is refused."""

from __future__ import annotations

import re

import pytest

from parse_engine.config import ParseConfig
from parse_engine.errors import InvalidRequestError, UnsupportedModelError
from parse_engine.judge import choose_labels, make_judge
from parse_engine.labels import BUILT_IN
from tests.judge_cases import (
    BRIEF,
    CHATML_END,
    CONVERSATION,
    EXPECTED,
    QUESTION,
    WORDS,
    judge_of,
    quote_of,
    with_template,
)
from tests.tiny_tokenizers import COMMON_WORDS, FAMILIES, LABEL_WORDS, chat_tokenizer


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("sentencepiece", [False, True])
def test_labels_are_the_next_token(family: str, sentencepiece: bool) -> None:
    tokenizer = chat_tokenizer(family, sentencepiece=sentencepiece)
    labels = judge_of(tokenizer).labels
    assert (labels.right, labels.wrong) == WORDS
    lead = " " if family in ("llama2", "mistral") else ""
    for word, token in ((labels.right, labels.right_id), (labels.wrong, labels.wrong_id)):
        answered = tokenizer.encode(EXPECTED[family][0] + lead + word)
        # A byte-level vocabulary without " Correct" has the word without the space only.
        bare = tokenizer.encode(EXPECTED[family][0] + word)
        assert token == (answered if sentencepiece else bare)[-1]
        expected = f"▁{word}" if lead and sentencepiece else word
        assert tokenizer.convert_ids_to_tokens(token) == expected


@pytest.mark.parametrize(("words", "question"), BUILT_IN.items())
def test_the_first_pair_in_the_vocabulary_is_taken(words: tuple[str, str], question: str) -> None:
    others = LABEL_WORDS[LABEL_WORDS.index(words[0]) :]
    tokenizer = chat_tokenizer(words=(*others, *COMMON_WORDS))
    judge = judge_of(tokenizer)
    assert (judge.labels.right, judge.labels.wrong) == words
    assert question in tokenizer.decode(judge.suffix_ids)
    told = tokenizer.decode(judge.brief_ids)
    assert f"exactly one word: {words[0]} if" in told
    assert f"{words[1]} if anything" in told


def test_a_pair_must_be_tokens_of_one_form() -> None:
    # Where the answer begins with a space, " Correct" is one token here and " Incorrect" is two.
    tokenizer = chat_tokenizer("mistral", words=(" Correct", *LABEL_WORDS))
    labels = judge_of(tokenizer).labels
    assert (labels.right, labels.wrong) == ("Yes", "No")


def test_a_vocabulary_without_any_pair_is_refused() -> None:
    tokenizer = chat_tokenizer(words=("Correct", "Yes", "True"))
    with pytest.raises(UnsupportedModelError, match=r"'Incorrect' is 9 tokens.*labels=\("):
        judge_of(tokenizer)


def test_a_pair_of_unknown_words_is_no_pair() -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = {"<unk>": 0, "user": 1, "assistant": 2, "Yes": 3, "No": 4}
    core = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>")
    tokenizer.chat_template = chat_tokenizer().chat_template
    labels = choose_labels(tokenizer, ParseConfig(), {})
    assert (labels.right_id, labels.wrong_id) == (3, 4)


def test_custom_labels_are_taken_alone_with_their_question_and_brief() -> None:
    tokenizer = chat_tokenizer(words=("Good", "Bad", *LABEL_WORDS))
    judge = judge_of(tokenizer, labels=("Good", "Bad"))
    assert (judge.labels.right, judge.labels.wrong) == ("Good", "Bad")
    assert judge.labels.question == "Good or Bad so far?"
    assert "exactly one word: Good if" in tokenizer.decode(judge.brief_ids)


def test_custom_labels_of_several_tokens_are_refused_with_their_pieces() -> None:
    message = re.escape(
        "'Richtig' is 7 tokens ('R' 'i' 'c' 'h' 't' 'i' 'g') and 'No' is 1 token ('No')"
    )
    with pytest.raises(InvalidRequestError, match=message) as caught:
        judge_of(chat_tokenizer(), labels=("Richtig", "No"))
    assert "one token each" in caught.value.hint


def test_own_question_and_brief() -> None:
    tokenizer = chat_tokenizer("qwen2.5")
    judge = judge_of(tokenizer, question=" Any bug? ", brief="\nFind bugs {in} code.\n")
    assert tokenizer.decode(judge.suffix_ids) == CHATML_END.replace(QUESTION, "Any bug?")
    assert tokenizer.decode(judge.brief_ids) == (
        "<|im_start|>system\nFind bugs {in} code.<|im_end|>\n"
    )
    quote = quote_of(tokenizer, CONVERSATION, question=" Any bug? ", brief="Find bugs.")
    assert "system\nFind bugs.<|im_end|>" in tokenizer.decode(quote.head_ids)
    assert tokenizer.decode(quote.suffix_ids).startswith("\n\nAny bug?<|im_end|>")


def test_no_chat_template_is_refused() -> None:
    tokenizer = chat_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(UnsupportedModelError, match="no chat template") as caught:
        judge_of(tokenizer)
    assert "tokenizer.chat_template" in caught.value.hint


def test_a_template_given_by_the_caller_is_used() -> None:
    tokenizer = chat_tokenizer()
    template = tokenizer.chat_template
    tokenizer.chat_template = None
    judge = make_judge(tokenizer, ParseConfig(), {"chat_template": template})
    assert tokenizer.decode(judge.suffix_ids) == CHATML_END


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('Only one turn, please') }}", "Only one turn, please"),
        ("{{ messages[0].content }}", "does not show one of the turns"),
        ("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}", "one of the turns"),
        (
            "{% for m in messages %}{{ m.content if loop.index < 3 }}{% endfor %}",
            "does not show the question",
        ),
        (
            "{% for m in messages if messages | length > 2 %}\n{{ m.content }}\n{% endfor %}",
            "does not show the instructions",
        ),
        (
            "{% for m in messages %}\n{{ m.content }}\n{% endfor %}That was all.",
            "does not show the instructions",
        ),
        ("{{ messages[0].nothing.more }}", "UndefinedError"),
    ],
)
def test_a_template_that_cannot_hold_the_judge_is_refused(template: str, message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        judge_of(with_template(template))


def test_a_template_that_needs_a_users_turn_gets_the_brief_in_one() -> None:
    template = chat_tokenizer().chat_template
    needs_user = (
        "{% if 'user' not in messages | map(attribute='role') | list %}"
        "{{ raise_exception('No user query found in messages.') }}{% endif %}"
    )
    tokenizer = with_template(needs_user + template)
    told = tokenizer.decode(judge_of(tokenizer).brief_ids)
    assert told == f"<|im_start|>user\n{BRIEF}<|im_end|>\n"


def test_a_template_that_drops_the_system_turn_gets_the_brief_in_a_users() -> None:
    tokenizer = with_template(
        chat_tokenizer().chat_template.replace(
            "in messages", "in messages if message.role != 'system'"
        )
    )
    assert tokenizer.decode(judge_of(tokenizer).brief_ids) == (
        f"<|im_start|>user\n{BRIEF}<|im_end|>\n"
    )
    head = tokenizer.decode(quote_of(tokenizer, CONVERSATION).head_ids)
    assert head.startswith(f"<|im_start|>user\n{BRIEF}\n\nConversation:")
