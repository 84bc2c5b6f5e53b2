"""The target judges all prefixes of a draft in one masked forward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from parse_engine.backends.kinds import Path, Plan
from parse_engine.backends.model import Model
from parse_engine.config import JudgeLayout, ParseConfig
from parse_engine.errors import ContextOverflowError
from parse_engine.fan_out import fan_out_logits, read_in_steps
from parse_engine.judge import Judge, make_quote
from parse_engine.pack import pack
from parse_engine.prefill import prefill
from parse_engine.types import Cut, Draft, Message, Verdicts
from parse_engine.verdicts import label_shares, make_verdicts

if TYPE_CHECKING:
    from transformers import Cache


@dataclass(frozen=True)
class Brief:
    """The keys and values of the judge's instructions, computed once.

    Parameters
    ----------
    states : tuple of (Tensor, Tensor)
        Keys and values of each layer, shape [1, heads, B, head size].
    length : int
        B.
    """

    states: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    length: int


@dataclass(frozen=True)
class Ability:
    """How a target judges, confirmed on the model itself.

    Parameters
    ----------
    judge : Judge
        What it is asked.
    plan : Plan
        The way that gives the right verdicts.
    brief : Brief or None
        The keys and values of the judge's instructions; None where they cannot stand before the
        text, which is then judged in layout ``quote``.
    """

    judge: Judge
    plan: Plan
    brief: Brief | None

    def layout(self, wanted: JudgeLayout) -> JudgeLayout:
        """Return the layout that a short text is judged in."""
        return "quote" if self.brief is None else wanted

    def lost_cause(self, tokens: int) -> str | None:
        """Return why no draft after a prompt of so many tokens can be judged, None if one may."""
        switch = self.plan.rope_switch
        if switch is None or tokens < switch:
            return None
        return (
            f"the prompt has {tokens} tokens; from {switch} on the target's rotary frequencies are "
            "others, and nothing that was read before can be used"
        )

    def brief_for(self, tokens: int) -> Brief | None:
        """Return the brief if it can be seen from the end of so many tokens and a suffix.

        Where every layer has a window, instructions out of sight would be instructions not given.
        """
        if self.brief is None or self.plan.brief_reach is None:
            return self.brief
        span = self.brief.length + tokens + len(self.judge.suffix_ids)
        return self.brief if span <= self.plan.brief_reach else None


@dataclass(frozen=True)
class Reading:
    """Prompt and draft, read by the target.

    Parameters
    ----------
    cache : Cache or None
        Keys and values of prompt and draft, which can be cropped; None on path ``fan_out``.
    logits : callable
        Takes N prefix ends, returns the logits after a suffix at each, shape [N, vocabulary]. Each
        end may be asked for once.
    signals : Tensor or None
        Log-probability and gap of each drafted token, as ``prefill`` gives them.
    """

    cache: Cache | None
    logits: Callable[[Sequence[int]], torch.Tensor]
    signals: torch.Tensor | None


@dataclass(frozen=True)
class Checked:
    """What verification leaves behind.

    Parameters
    ----------
    verdicts : Verdicts
        One verdict a judged prefix, shortest first.
    cache : Cache or None
        The target's cache of prompt and draft, to regenerate from; None after layout ``quote``.
    tokens_processed : int
        Token positions that went through the target.
    path : {"packed", "fan_out"}
        How the prefixes were judged.
    layout : {"brief", "quote"}
        Where the judge's instructions stood.
    """

    verdicts: Verdicts
    cache: Cache | None
    tokens_processed: int
    path: Path
    layout: JudgeLayout


def read_brief(target: Model, judge: Judge) -> Brief:
    """Compute the brief's keys and values, at positions -B .. -1, before any prompt.

    The brief sees only itself, so one computation serves every call. A leading BOS that the
    suffixes do not see is dropped afterwards.
    """
    length = len(judge.brief_ids)
    cache = DynamicCache()
    target.forward(judge.brief_ids, cache, positions=torch.arange(-length, 0))
    hidden = judge.brief_hidden
    states = []
    for layer in cache.layers:
        assert isinstance(layer, DynamicLayer)
        assert layer.keys is not None
        assert layer.values is not None
        states.append((layer.keys[:, :, hidden:].clone(), layer.values[:, :, hidden:].clone()))
    return Brief(tuple(states), length - hidden)


def verify(
    target: Model,
    able: Ability,
    messages: Sequence[Message],
    prompt_ids: Sequence[int],
    draft: Draft,
    cuts: Sequence[Cut],
    config: ParseConfig,
) -> Checked:
    """Prefill prompt and draft once, then judge the prefixes that end at the cuts.

    Parameters
    ----------
    target : Model
        The judge.
    able : Ability
        How it judges, and what it is asked.
    messages : sequence of Message
        The conversation, which layout ``quote`` renders anew.
    prompt_ids : sequence of int
        P token ids of the conversation.
    draft : Draft
        T token ids.
    cuts : sequence of Cut
        N prefixes, the whole draft last.
    config : ParseConfig
        Layout, order, threshold, signals.

    Raises
    ------
    ContextOverflowError
        If the question does not fit behind the draft, or the text crosses the length at which the
        target's rotary frequencies change.
    """
    plan, judge = able.plan, able.judge
    shown = able.brief_for(len(prompt_ids) + len(draft.ids))
    if config.judge_layout == "quote":
        shown = None
    head, suffix = tuple(prompt_ids), judge.suffix_ids
    if shown is None:
        quote = make_quote(target.tokenizer, judge.labels, config, messages, target.template_kwargs)
        head, suffix = quote.head_ids, quote.suffix_ids
    _check_length(target, plan, len(head) + len(draft.ids) + len(suffix))

    ends = [len(head) + cut.tokens for cut in cuts]
    reading = read_draft(target, plan, shown, head, draft.ids, suffix, ends, signals=config.signals)

    def ask(some: slice) -> list[float]:
        return label_shares(reading.logits(ends[some]), judge.labels)

    judged = list(cuts)
    if config.verify_order == "whole_first" and len(cuts) > 1:
        p_correct = ask(slice(-1, None))
        if p_correct[0] >= config.threshold:
            judged = judged[-1:]
        else:
            p_correct = ask(slice(-1)) + p_correct
    else:
        p_correct = ask(slice(None))
    return Checked(
        verdicts=make_verdicts(judged, p_correct, reading.signals, judge.labels),
        cache=None if shown is None else reading.cache,
        tokens_processed=len(head) + len(draft.ids) + len(judged) * len(suffix),
        path=plan.path,
        layout="quote" if shown is None else "brief",
    )


def _check_length(target: Model, plan: Plan, needed: int) -> None:
    if needed > target.context_window:
        raise ContextOverflowError(
            f"Conversation, draft and question have {needed} tokens, which does not fit into the "
            f"context of {target.name}, {target.context_window}.",
            "Shorten the conversation, or limit the draft with max_draft_tokens.",
        )
    if plan.rope_switch is not None and needed > plan.rope_switch:
        raise ContextOverflowError(
            f"Conversation, draft and question have {needed} tokens; beyond {plan.rope_switch} the "
            f"rotary frequencies of {target.name} are others, and nothing that was read before "
            "can be used.",
            "Shorten the conversation, or limit the draft with max_draft_tokens.",
        )


def read_draft(
    target: Model,
    plan: Plan,
    brief: Brief | None,
    head: Sequence[int],
    draft_ids: Sequence[int],
    suffix_ids: Sequence[int],
    ends: Sequence[int],
    *,
    signals: bool,
) -> Reading:
    """Read prompt and draft, each token once, so that prefixes that end at ``ends`` can be judged.

    Parameters
    ----------
    ends : sequence of int
        Prefix ends, in tokens from the start of the head.
    """
    if plan.path == "packed":
        cache = DynamicCache()
        found = prefill(target, cache, head, draft_ids, signals=signals)
        return Reading(cache, partial(judge_logits, target, cache, brief, suffix_ids), found)
    copies, found = read_in_steps(target, head, draft_ids, ends, signals=signals)
    return Reading(None, partial(fan_out_logits, target, copies, suffix_ids), found)


def judge_logits(
    target: Model,
    cache: Cache,
    brief: Brief | None,
    suffix_ids: Sequence[int],
    ends: Sequence[int],
) -> torch.Tensor:
    """Ask about every prefix in one masked pass, and leave the cache as it was.

    Parameters
    ----------
    ends : sequence of int
        N prefix ends, in tokens from the start of the cache.

    Returns
    -------
    Tensor, shape [N, vocabulary]
        The logits after each suffix.
    """
    context = cache.get_seq_length()
    append_brief(cache, brief)
    packed = pack(suffix_ids, ends, context, brief.length if brief else 0)
    logits = target.forward(
        packed.ids,
        cache,
        keep=packed.last,
        positions=packed.positions,
        mask=packed.mask,
        key_positions=packed.key_positions,
    )
    cache.crop(context - cache.get_seq_length())
    return logits


def append_brief(cache: Cache, brief: Brief | None) -> None:
    """Put the brief's keys and values behind what the cache holds."""
    for layer, (keys, values) in enumerate(brief.states if brief is not None else ()):
        cache.update(keys, values, layer)
