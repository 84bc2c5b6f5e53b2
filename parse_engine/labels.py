"""The two words a judge chooses from, and what it is told and asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parse_engine.config import ParseConfig
from parse_engine.errors import InvalidRequestError, UnsupportedModelError
from parse_engine.render import adds_bos, continuation, cut_at, encode, lost, render

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Stands for the draft while a template is rendered around it. No caller's message is rendered with
# it, so none can be taken for it.
DRAFT_MARK = "PARSE-DRAFT-STANDS-HERE"

# Tried in this order, each with the question that asks for it. A question stands after every
# prefix, so each of its tokens is paid for as often as there are prefixes.
BUILT_IN = {
    ("Correct", "Incorrect"): "Correct so far?",
    ("Yes", "No"): "Correct so far?",
    ("True", "False"): "True so far?",
}
BRIEF = (
    "You check the work of an assistant who answers a user's request. You see the beginning of "
    "the answer. It may break off anywhere, even inside a sentence or a line of code: being "
    "unfinished is not an error. When you are asked, judge all of the answer that you see: is "
    "every fact, every step and every line of code right, and does it lead to what the user "
    "wants? Reply with exactly one word: {right} if everything so far is right and on course, "
    "{wrong} if anything in it is wrong, invented, or off course."
)


@dataclass(frozen=True)
class Labels:
    """The words for a right and a wrong prefix.

    Parameters
    ----------
    right, wrong : str
        The words.
    right_id, wrong_id : int
        The one token that each is, in the place where the judge answers.
    question : str
        The question that asks for them.
    """

    right: str
    wrong: str
    right_id: int
    wrong_id: int
    question: str


@dataclass(frozen=True)
class Suffix:
    """What makes the judge answer next, as text.

    Parameters
    ----------
    text : str
        End of the assistant's turn, question, start of an answer.
    lead : str
        What the template puts between the start of an answer and its first word: "" or " ".
    """

    text: str
    lead: str


def choose_labels(
    tokenizer: PreTrainedTokenizerBase, config: ParseConfig, template_kwargs: Mapping[str, Any]
) -> Labels:
    """Choose the words whose probabilities are compared.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
        The target's tokenizer, with a chat template.
    config : ParseConfig
        Its ``labels`` and ``question`` count.
    template_kwargs : mapping
        What the caller passes to the target's chat template.

    Returns
    -------
    Labels
        Those of the config, or the first built-in pair that is one token each where the judge
        answers.

    Raises
    ------
    InvalidRequestError
        If the labels of the config are not one token each.
    UnsupportedModelError
        If no built-in pair is, or if the chat template cannot be used.
    """
    failures = []
    for words in BUILT_IN if config.labels is None else (config.labels,):
        question = (config.question or question_for(words)).strip()
        suffix = render_suffix(tokenizer, question, template_kwargs)
        ids = label_ids(tokenizer, suffix, words)
        if ids is not None:
            return Labels(*words, *ids, question)
        failures.append(spelling(tokenizer, suffix, words))
    if config.labels is not None:
        raise InvalidRequestError(
            f"labels is {config.labels!r}: where the judge answers, {failures[0]}.",
            "Choose two words that are one token each, or leave labels unset.",
        )
    raise UnsupportedModelError(
        f"No built-in labels fit the target's vocabulary: {'; '.join(failures)}.",
        'Give two words that are one token each: labels=("good", "bad").',
    )


def render_suffix(
    tokenizer: PreTrainedTokenizerBase, question: str, template_kwargs: Mapping[str, Any]
) -> Suffix:
    """Render what follows a draft that stands in the assistant's turn."""
    turns = [("user", "Hello"), ("assistant", DRAFT_MARK), ("user", question)]
    text = render(tokenizer, turns, template_kwargs, answer_next=True)
    before, after = cut_at(text, DRAFT_MARK)
    if question not in after:
        raise lost("the question", text)
    if adds_bos(tokenizer):  # some formats repeat the BOS at every turn
        after = after.replace(str(tokenizer.bos_token), "")
    # A template that writes " word" in the assistant's turn wants the label written so too.
    return Suffix(after, " " if before.endswith(" ") and not after.endswith(" ") else "")


def question_for(words: tuple[str, str]) -> str:
    """Return the question that asks for two words."""
    return BUILT_IN.get(words, f"{words[0]} or {words[1]} so far?")


def brief_for(words: tuple[str, str], config: ParseConfig) -> str:
    """Return what the judge is told to do."""
    text = config.brief or BRIEF.format(right=words[0], wrong=words[1])
    return text.strip()  # templates strip it too, and it must be found again


def label_ids(
    tokenizer: PreTrainedTokenizerBase, suffix: Suffix, words: tuple[str, str]
) -> tuple[int, int] | None:
    """Return the ids of two words where the judge answers; None if they are not one token each."""
    answered = [encode(tokenizer, suffix.text + suffix.lead + word) for word in words]
    right, wrong = (ids[-1] for ids in answered)
    # Only the last token may differ, and it must be the whole word. What precedes it may differ
    # from the suffix's own tokens: GPT-2's tokenizer cuts white space otherwise at a text's end.
    if answered[0][:-1] != answered[1][:-1]:
        return None
    spelled = [str(tokenizer.decode([token])).strip() for token in (right, wrong)]
    return (right, wrong) if spelled == list(words) else None


def spelling(tokenizer: PreTrainedTokenizerBase, suffix: Suffix, words: tuple[str, str]) -> str:
    """Say how two words are tokenized where the judge answers."""
    said = []
    for word in words:
        ids = continuation(tokenizer, suffix.text, suffix.lead + word) or encode(tokenizer, word)
        pieces = " ".join(repr(tokenizer.decode([i])) for i in ids)
        said.append(f"{word!r} is {len(ids)} token{'s' * (len(ids) != 1)} ({pieces})")
    return " and ".join(said)
