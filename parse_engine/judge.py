"""What the judge is asked, in the target's own chat template and tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parse_engine.config import ParseConfig
from parse_engine.errors import UnsupportedModelError
from parse_engine.labels import DRAFT_MARK, Labels, brief_for, choose_labels, render_suffix
from parse_engine.render import (
    adds_bos,
    cut_at,
    encode,
    encode_inside,
    encode_plain,
    lost,
    render,
    special_tokens,
)
from parse_engine.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["Judge", "Labels", "QuotePrompt", "choose_labels", "make_judge", "make_quote"]

# Stands for the caller's conversation, which never passes through the template.
TALK_MARK = "PARSE-CONVERSATION-STANDS-HERE"


@dataclass(frozen=True)
class Judge:
    """The judge of layout ``brief``, which asks after the draft.

    Parameters
    ----------
    labels : Labels
        The words whose probabilities are compared.
    suffix_ids : tuple of int
        S ids that follow each prefix: end of the assistant's turn, question, start of an answer.
    brief_ids : tuple of int
        B ids of the judge's instructions, with a BOS of their own where the model has one.
    brief_hidden : int
        How many ids at the start of the brief the suffixes do not see: 1 for a BOS, else 0.
    """

    labels: Labels
    suffix_ids: tuple[int, ...]
    brief_ids: tuple[int, ...]
    brief_hidden: int


@dataclass(frozen=True)
class QuotePrompt:
    """The judge of layout ``quote``, with the draft in a conversation of its own.

    Parameters
    ----------
    head_ids : tuple of int
        Instructions and conversation, up to where the draft begins.
    suffix_ids : tuple of int
        S ids that follow each prefix: rest of the user's turn with the question, start of an
        answer.
    """

    head_ids: tuple[int, ...]
    suffix_ids: tuple[int, ...]


def make_judge(
    tokenizer: PreTrainedTokenizerBase, config: ParseConfig, template_kwargs: Mapping[str, Any]
) -> Judge:
    """Render question and instructions of layout ``brief``.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
        The target's tokenizer, with a chat template.
    config : ParseConfig
        Its ``labels``, ``question`` and ``brief`` count.
    template_kwargs : mapping
        What the caller passes to the target's chat template.

    Returns
    -------
    Judge
        Valid for every call with the same model and wording.

    Raises
    ------
    InvalidRequestError
        If the labels of the config are not one token each.
    UnsupportedModelError
        If the chat template is missing or cannot hold the judge's conversation, or if no built-in
        labels fit the vocabulary.
    """
    labels = choose_labels(tokenizer, config, template_kwargs)
    suffix = render_suffix(tokenizer, labels.question, template_kwargs).text
    brief = brief_for((labels.right, labels.wrong), config)
    text = _render_brief(tokenizer, brief, template_kwargs)
    bos = str(tokenizer.bos_token or "")
    # Some models name the opening of every turn as their BOS, which has no part in this.
    has_bos = adds_bos(tokenizer) or (bos != "" and text.startswith(bos) and bos not in suffix)
    if has_bos:
        text = text.removeprefix(bos)
    turn = _own_turn(tokenizer, text, brief)
    return Judge(
        labels=labels,
        suffix_ids=encode_inside(tokenizer, suffix),
        brief_ids=encode(tokenizer, bos + turn if has_bos else turn),
        brief_hidden=int(has_bos),
    )


def make_quote(
    tokenizer: PreTrainedTokenizerBase,
    labels: Labels,
    config: ParseConfig,
    messages: Sequence[Message],
    template_kwargs: Mapping[str, Any],
) -> QuotePrompt:
    """Render the judge's conversation of layout ``quote`` around the place of the draft.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
        The target's tokenizer, with a chat template.
    labels : Labels
        As ``choose_labels`` gave them.
    config : ParseConfig
        Its ``brief`` counts.
    messages : sequence of Message
        The conversation that the draft answers.
    template_kwargs : mapping
        What the caller passes to the target's chat template.

    Returns
    -------
    QuotePrompt
        For this conversation.

    Raises
    ------
    UnsupportedModelError
        If the chat template is missing or cannot hold the judge's conversation.
    """
    brief = brief_for((labels.right, labels.wrong), config)
    text = _render_quote(tokenizer, brief, labels.question, template_kwargs)
    head, rest = cut_at(text, TALK_MARK)
    middle, suffix = cut_at(rest, DRAFT_MARK)
    talk = encode_plain(tokenizer, _transcript(messages))
    return QuotePrompt(
        head_ids=(*encode(tokenizer, head), *talk, *encode_inside(tokenizer, middle)),
        suffix_ids=encode_inside(tokenizer, suffix),
    )


def _render_brief(
    tokenizer: PreTrainedTokenizerBase, brief: str, template_kwargs: Mapping[str, Any]
) -> str:
    """Render the instructions as a system turn, or as a user's where there is no system turn."""
    refusals: list[UnsupportedModelError] = []
    for role, next_role in (("system", "user"), ("user", "assistant")):
        turns = [(role, brief), (next_role, DRAFT_MARK)]
        try:
            text = render(tokenizer, turns[:1], template_kwargs, answer_next=False)
            longer = render(tokenizer, turns, template_kwargs, answer_next=False)
        except UnsupportedModelError as error:
            refusals.append(error)
            continue
        # The turn must be the beginning of a longer conversation. Some templates close a
        # conversation with EOS, which is no part of the turn.
        if not longer.startswith(text):
            text = text.removesuffix(str(tokenizer.eos_token or ""))
        if longer.startswith(text) and brief in text:
            return text
        refusals.append(lost("the instructions", longer))
    raise refusals[-1]


def _own_turn(tokenizer: PreTrainedTokenizerBase, text: str, brief: str) -> str:
    """Drop turns that the template puts before that of the instructions."""
    openings = [token for token in special_tokens(tokenizer) if text.startswith(token)]
    opening = max(openings, key=len, default="")
    return text[text.rindex(opening, 0, text.index(brief)) :] if opening else text


def _render_quote(
    tokenizer: PreTrainedTokenizerBase,
    brief: str,
    question: str,
    template_kwargs: Mapping[str, Any],
) -> str:
    """Render instructions and request, in one turn where the template has no system turn."""
    request = f"Conversation:\n\n{TALK_MARK}\n\nAnswer so far:\n{DRAFT_MARK}\n\n{question}"
    refusals: list[UnsupportedModelError] = []
    for turns in (
        [("system", brief), ("user", request)],
        [("user", f"{brief}\n\n{request}")],
    ):
        try:
            text = render(tokenizer, turns, template_kwargs, answer_next=True)
        except UnsupportedModelError as error:
            refusals.append(error)
            continue
        if brief in text and question in text:
            return text
        refusals.append(lost("the instructions", text))
    raise refusals[-1]


def _transcript(messages: Sequence[Message]) -> str:
    """Write a conversation as plain text with named roles."""
    turns = []
    for message in messages:
        content = message.get("content") or ""
        if not isinstance(content, str):
            content = "".join(str(part["text"]) for part in content)
        calls = message.get("tool_calls")
        said = [content, json.dumps(calls, ensure_ascii=False) if calls else ""]
        turns.append(f"{str(message['role']).capitalize()}: " + "\n".join(filter(None, said)))
    return "\n\n".join(turns)
