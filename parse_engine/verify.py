"""The target gives its verdict on all prefixes of a draft, in one masked pass if it is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from parse_engine.backends.kinds import Path, Plan
from parse_engine.backends.model import Model
from parse_engine.config import JudgeLayout, ParseConfig
from parse_engine.errors import ContextOverflowError, VerificationError
from parse_engine.judge import Judge, make_quote
from parse_engine.prefill import empty_cache, prefill
from parse_engine.reading import Brief, read_draft
from parse_engine.types import Cut, Draft, Message, Verdicts
from parse_engine.verdicts import label_shares, make_verdicts

if TYPE_CHECKING:
    from transformers import Cache


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
    path : {"packed", "fan_out"} or None
        How the prefixes were judged; None where the judge was not asked.
    layout : {"brief", "quote"} or None
        Where the judge's instructions stood; None likewise.
    """

    verdicts: Verdicts
    cache: Cache | None
    tokens_processed: int
    path: Path | None
    layout: JudgeLayout | None


def verify(
    target: Model,
    able: Ability,
    messages: Sequence[Message],
    prompt_ids: Sequence[int],
    draft: Draft,
    cuts: Sequence[Cut],
    config: ParseConfig,
) -> Checked:
    """Read prompt and draft once, then give a verdict on the prefixes that end at the cuts.

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
        Verdict, threshold, layout, order, signals.

    Raises
    ------
    ContextOverflowError
        If the question does not fit behind the draft, or the text crosses the length at which the
        target's rotary frequencies change.
    VerificationError
        If the text is too long for the layout that the calibration was made in.
    """
    if not config.acceptance.asks_judge:
        return _read(target, able, prompt_ids, draft, cuts, config)
    plan, judge, accept = able.plan, able.judge, config.acceptance
    shown = able.brief_for(len(prompt_ids) + len(draft.ids))
    if config.judge_layout == "quote":
        shown = None
    elif shown is None and able.brief is not None and config.calibration is not None:
        raise VerificationError(
            f"Prompt and draft have {len(prompt_ids) + len(draft.ids)} tokens, too many for layout "
            "brief on this target, and the calibration was made in it.",
            'Shorten the conversation, or calibrate with judge_layout="quote".',
        )
    head, suffix = tuple(prompt_ids), judge.suffix_ids
    if shown is None:
        quote = make_quote(target.tokenizer, judge.labels, config, messages, target.template_kwargs)
        head, suffix = quote.head_ids, quote.suffix_ids
    _check_length(target, plan, len(head) + len(draft.ids) + len(suffix))

    ends = [len(head) + cut.tokens for cut in cuts]
    reading = read_draft(target, plan, shown, head, draft.ids, suffix, ends, signals=config.signals)

    def ask(some: slice) -> list[float]:
        return label_shares(reading.logits(ends[some]), judge.labels)

    def verdicts(some: slice, p_correct: Sequence[float]) -> Verdicts:
        signals = reading.signals, draft.logprobs
        return make_verdicts(cuts[some], p_correct, *signals, judge.labels, accept)

    if config.verify_order == "whole_first" and len(cuts) > 1:
        p_whole = ask(slice(-1, None))
        found = verdicts(slice(-1, None), p_whole)
        if found.verdict[0] < accept.threshold:
            found = verdicts(slice(None), ask(slice(-1)) + p_whole)
    else:
        found = verdicts(slice(None), ask(slice(None)))
    return Checked(
        verdicts=found,
        cache=None if shown is None else reading.cache,
        tokens_processed=len(head) + len(draft.ids) + len(found.ends) * len(suffix),
        path=plan.path,
        layout="quote" if shown is None else "brief",
    )


def _read(
    target: Model,
    able: Ability,
    prompt_ids: Sequence[int],
    draft: Draft,
    cuts: Sequence[Cut],
    config: ParseConfig,
) -> Checked:
    """Give the verdicts that need no question: they are read off the prefill."""
    _check_length(target, able.plan, len(prompt_ids) + len(draft.ids))
    packed = able.plan.path == "packed"
    # a cache of the model's own kind may not be croppable, so it serves for reading only
    cache = empty_cache(target, able.plan)
    signals = prefill(target, cache, prompt_ids, draft.ids, signals=True)
    return Checked(
        verdicts=make_verdicts(
            cuts, None, signals, draft.logprobs, able.judge.labels, config.acceptance
        ),
        cache=cache if packed else None,
        tokens_processed=len(prompt_ids) + len(draft.ids),
        path=None,
        layout=None,
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
