"""A draft of another family, in the form that the target itself would write."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from parse_engine.answer import AnswerText
from parse_engine.regions import (
    CALL_MARKS,
    HARMONY_REGIONS,
    THINK_REGIONS,
    answer_parser,
    opened_by,
    regions_of,
)
from parse_engine.render import encode, encode_plain

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from parse_engine.backends.model import Model, Prompt
    from parse_engine.types import RewriteCalls


def thinks_alike(draft: Model, draft_prompt: Prompt, target: Model, target_prompt: Prompt) -> bool:
    """Whether two models mark their thinking alike, and have both or neither begun to think."""
    one, other = regions_of(draft.tokenizer), regions_of(target.tokenizer)
    opened = opened_by(one, draft_prompt.text), opened_by(other, target_prompt.text)
    return one is other and opened[0] == opened[1]


def translate(
    text: str,
    draft: Model,
    draft_prompt: Prompt,
    target: Model,
    target_prompt: Prompt,
    rewrite: RewriteCalls | None,
    *,
    ended: bool,
) -> tuple[tuple[int, ...], bool]:
    """Split a draft into thinking and answer, and put both as the target would write them.

    A target that does not think gets the answer alone. One whose prompt has begun to think, with a
    draft that did not, gets an empty thought.

    Parameters
    ----------
    text : str
        What the draft model wrote, marks included.
    draft, draft_prompt, target, target_prompt : Model, Prompt
        Who wrote it after what, and who is to judge it after what.
    rewrite : callable, optional
        Writes the tool calls of an answer in the target's form.
    ended : bool
        Whether the draft model came to its end.

    Returns
    -------
    (tuple of int, bool)
        Ids of the target's tokenizer, and whether they come to an end too: thinking alone does not.
    """
    answer = AnswerText((), answer_parser(draft.tokenizer, draft_prompt.text))
    answer.feed(text, "draft")
    answer.finish()
    said = rewrite(answer.text, ended) if rewrite else answer.text
    pieces = [*_thought(target, target_prompt, answer.reasoning, said), *_marked(said, rewrite)]
    ids = _encode(target.tokenizer, pieces)
    return ids, ended and bool(answer.text)


# a text, and whether it is a mark, which is one token where the vocabulary has it
Piece = tuple[str, bool]


def _thought(target: Model, prompt: Prompt, thought: str, said: str) -> list[Piece]:
    """Return the thought, and the way from it to the answer if there is one."""
    regions = regions_of(target.tokenizer)
    opened = opened_by(regions, prompt.text)
    if regions is THINK_REGIONS and (thought or opened):
        opening: list[Piece] = [] if opened else [("<think>", True), ("\n", False)]
        closing: list[Piece] = [("\n", False), ("</think>", True), ("\n\n", False)]
        return [*opening, (thought, False), *(closing if said else ())]
    if regions is HARMONY_REGIONS:
        thinking = [*_channel("analysis"), (thought, False)] if thought else []
        turn: list[Piece] = [("<|end|>", True), ("<|start|>", True), ("assistant", False)]
        answering = [*(turn if thought else ()), *_channel("final")]
        return [*thinking, *(answering if said else ())]
    return []


def _channel(name: str) -> list[Piece]:
    return [("<|channel|>", True), (name, False), ("<|message|>", True)]


def _marked(said: str, rewrite: RewriteCalls | None) -> list[Piece]:
    """Tell the marks of calls from the rest of an answer whose calls were rewritten."""
    if rewrite is None:
        return [(said, False)]
    marks = "|".join(re.escape(mark) for mark in CALL_MARKS)
    return [(part, part in CALL_MARKS) for part in re.split(f"({marks})", said)]


def _encode(tokenizer: PreTrainedTokenizerBase, pieces: Sequence[Piece]) -> tuple[int, ...]:
    return tuple(
        token
        for text, is_mark in _joined(pieces)
        for token in (encode(tokenizer, text) if is_mark else encode_plain(tokenizer, text))
    )


def _joined(pieces: Iterable[Piece]) -> list[Piece]:
    """Join texts that stand beside each other: they may share a token."""
    joined: list[Piece] = []
    for text, is_mark in pieces:
        if joined and not is_mark and not joined[-1][1]:
            joined[-1] = (joined[-1][0] + text, False)
        elif text:
            joined.append((text, is_mark))
    return joined
