"""Text in the target's chat template, and its token ids."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from parse_engine.errors import UnsupportedModelError
from parse_engine.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

OTHER_TEMPLATE = (
    "Use an instruct model with a chat template of its own, set tokenizer.chat_template, or give "
    'chat_template_kwargs={"chat_template": ...}.'
)


def render(
    tokenizer: PreTrainedTokenizerBase,
    turns: Sequence[tuple[str, str]],
    template_kwargs: Mapping[str, Any],
    *,
    answer_next: bool,
) -> str:
    """Render a conversation of the judge's.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
        The target's tokenizer.
    turns : sequence of (str, str)
        Role and content of each turn.
    template_kwargs : mapping
        What the caller passes to the target's chat template.
    answer_next : bool
        Whether the text goes on to where the assistant's answer begins, past its thinking.

    Returns
    -------
    str
        The text, with special tokens spelled out.

    Raises
    ------
    UnsupportedModelError
        If there is no chat template or if it raises.
    """
    settings = {
        **template_kwargs,
        "tools": None,  # those of the caller's conversation are no tools of the judge's
        "enable_thinking": False,
        "add_generation_prompt": answer_next,
        "continue_final_message": False,
        "tokenize": False,
    }
    if not (tokenizer.chat_template or settings.get("chat_template")):
        raise UnsupportedModelError("The target has no chat template.", OTHER_TEMPLATE)
    messages: list[Message] = [{"role": role, "content": content} for role, content in turns]
    try:
        text = str(tokenizer.apply_chat_template(messages, **settings))
    except Exception as error:  # a template is a program of its own and may raise anything
        raise UnsupportedModelError(
            f"The target's chat template refuses a conversation of {[role for role, _ in turns]}: "
            f"{type(error).__name__}: {error}.",
            OTHER_TEMPLATE,
        ) from error
    return open_answer(text) if answer_next else text


def open_answer(text: str) -> str:
    """Go from the start of the assistant's turn to where its answer begins."""
    if text.endswith(("<think>", "<think>\n")):
        return text + "\n</think>\n\n"
    if text.endswith("<|start|>assistant"):
        return text + "<|channel|>final<|message|>"
    return text


def cut_at(text: str, mark: str) -> tuple[str, str]:
    """Return what stands before and after a mark.

    Raises
    ------
    UnsupportedModelError
        If the template dropped the mark or shows it twice.
    """
    if text.count(mark) != 1:
        raise lost("one of the turns", text)
    before, _, after = text.partition(mark)
    return before, after


def lost(what: str, text: str) -> UnsupportedModelError:
    """Say that a template did not keep a part of the judge's conversation."""
    return UnsupportedModelError(
        f"The target's chat template does not show {what} of the judge once and whole: {text!r}.",
        OTHER_TEMPLATE,
    )


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[int, ...]:
    """Encode rendered text, in which special tokens are spelled out."""
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def continuation(
    tokenizer: PreTrainedTokenizerBase, before: str, text: str
) -> tuple[int, ...] | None:
    """Return the ids of a text that stands after another; None if the two share a token."""
    head = encode(tokenizer, before)
    ids = encode(tokenizer, before + text)
    return ids[len(head) :] if ids[: len(head)] == head else None


def encode_inside(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[int, ...]:
    """Encode what stands after other text: SentencePiece puts a space before a first word."""
    ids = continuation(tokenizer, "x", text)
    return encode(tokenizer, text) if ids is None else ids


def encode_plain(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[int, ...]:
    """Encode a caller's text: what is spelled like a special token is none in it."""
    names = "|".join(re.escape(token) for token in special_tokens(tokenizer))
    inside = [match.start() + 1 for match in re.finditer(f"(?={names})", text)] if names else []
    pieces = [text[start:end] for start, end in pairwise([0, *inside, len(text)])]
    return tuple(token for piece in pieces for token in encode_inside(tokenizer, piece))


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return the spelling of all special tokens."""
    return [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]


def adds_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the tokenizer itself puts a BOS before a text."""
    bos = tokenizer.bos_token_id
    return bos is not None and tokenizer.encode("x")[:1] == [bos]
