"""The target judges all prefixes of a draft in one masked forward pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from parse_engine.backends.model import Model
from parse_engine.config import ParseConfig
from parse_engine.errors import ContextOverflowError, VerificationError
from parse_engine.judge import Judge, Labels, make_quote
from parse_engine.pack import pack
from parse_engine.types import Cut, Draft, Message, Verdicts

if TYPE_CHECKING:
    from transformers import Cache

PREFILL_CHUNK = 512  # rows of logits at a time: 512 x 152k x 2 bytes are 156 MB
SIGNAL_CHUNK = 64  # rows of logits in float32 at a time


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
    """

    verdicts: Verdicts
    cache: Cache | None
    tokens_processed: int


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
    judge: Judge,
    brief: Brief,
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
    judge, brief : Judge, Brief
        What it is asked, and the keys and values of its instructions.
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
        If the question does not fit behind the draft.
    """
    if config.judge_layout == "quote":
        quote = make_quote(target.tokenizer, judge.labels, config, messages, target.template_kwargs)
        head, suffix, shown = quote.head_ids, quote.suffix_ids, None
    else:
        head, suffix, shown = tuple(prompt_ids), judge.suffix_ids, brief
    needed = len(head) + len(draft.ids) + len(suffix)
    if needed > target.context_window:
        raise ContextOverflowError(
            f"Conversation, draft and question have {needed} tokens, which does not fit into the "
            f"context of {target.name}, {target.context_window}.",
            "Shorten the conversation, or limit the draft with max_draft_tokens.",
        )
    cache = DynamicCache()
    signals = prefill(target, cache, head, draft.ids, signals=config.signals)

    def ask(some: Sequence[Cut]) -> list[float]:
        ends = [len(head) + cut.tokens for cut in some]
        return ask_judge(target, cache, shown, suffix, ends, judge.labels)

    judged = list(cuts)
    if config.verify_order == "whole_first" and len(cuts) > 1:
        p_correct = ask(cuts[-1:])
        if p_correct[0] >= config.threshold:
            judged = judged[-1:]
        else:
            p_correct = ask(cuts[:-1]) + p_correct
    else:
        p_correct = ask(cuts)
    return Checked(
        verdicts=make_verdicts(judged, p_correct, signals, judge.labels),
        cache=None if config.judge_layout == "quote" else cache,
        tokens_processed=len(head) + len(draft.ids) + len(judged) * len(suffix),
    )


def prefill(
    target: Model,
    cache: Cache,
    head: Sequence[int],
    draft_ids: Sequence[int],
    *,
    signals: bool,
) -> torch.Tensor | None:
    """Read prompt and draft into the cache, each token once.

    Returns
    -------
    Tensor of float32, shape [2, T], or None
        For each drafted token its log-probability and its distance to the target's best token, in
        nats, both >= 0 towards the better; None where ``signals`` is off.
    """
    ids = (*head, *draft_ids)
    if not signals:
        target.forward(ids, cache)
        return None
    rows = []
    start, first = 0, len(head) - 1  # the logits at position p are about token p + 1
    while start < len(ids):
        end = min(len(ids), max(start, first) + PREFILL_CHUNK)
        wanted = end - max(start, first)
        logits = target.forward(ids[start:end], cache, keep=wanted)
        nexts = ids[end - wanted + 1 : end + 1]
        rows.append(token_signals(logits[: len(nexts)], nexts))
        start = end
    return torch.cat(rows, dim=1)


def token_signals(logits: torch.Tensor, ids: Sequence[int]) -> torch.Tensor:
    """Return log-probability and gap to the best token of each id, shape [2, rows], float32.

    Works through ``SIGNAL_CHUNK`` rows at a time, so that no float32 copy of all logits exists.
    """
    wanted = torch.tensor(list(ids), device=logits.device)
    parts = [torch.empty(2, 0)]
    for start in range(0, len(ids), SIGNAL_CHUNK):
        scores = logits[start : start + SIGNAL_CHUNK].float()
        token = wanted[start : start + SIGNAL_CHUNK]
        chosen = scores.gather(1, token[:, None])[:, 0]
        logprob = chosen - scores.logsumexp(dim=1)
        gap = scores.amax(dim=1) - chosen
        parts.append(torch.stack([logprob, gap]).cpu())
    return torch.cat(parts, dim=1)


def ask_judge(
    target: Model,
    cache: Cache,
    brief: Brief | None,
    suffix_ids: Sequence[int],
    ends: Sequence[int],
    labels: Labels,
) -> list[float]:
    """Ask about every prefix in one masked pass, and leave the cache as it was.

    Parameters
    ----------
    ends : sequence of int
        N prefix ends, in tokens from the start of the cache.

    Returns
    -------
    list of float
        P(right label) / (P(right label) + P(wrong label)) for each prefix.
    """
    logits = judge_logits(target, cache, brief, suffix_ids, ends)
    pair = logits[:, [labels.right_id, labels.wrong_id]].float()
    return [float(p) for p in pair.softmax(dim=1)[:, 0]]


def check_finite(target: Model, verdicts: Verdicts) -> None:
    """Refuse verdicts that are not numbers: nothing may be accepted by them.

    Raises
    ------
    VerificationError
        With what to try.
    """
    if not all(math.isfinite(p) for p in verdicts.p_correct):
        raise VerificationError(
            f"The verdicts of {target.name} are not finite: {verdicts.p_correct}.",
            'Try judge_layout="quote", or load the target with dtype="float32".',
        )


def judge_logits(
    target: Model,
    cache: Cache,
    brief: Brief | None,
    suffix_ids: Sequence[int],
    ends: Sequence[int],
) -> torch.Tensor:
    """Return the logits after each suffix, shape [N, vocabulary]; the cache stays as it was."""
    context = cache.get_seq_length()
    append_brief(cache, brief)
    packed = pack(suffix_ids, ends, context, brief.length if brief else 0)
    logits = target.forward(
        packed.ids, cache, keep=packed.last, positions=packed.positions, mask=packed.mask
    )
    cache.crop(context - cache.get_seq_length())
    return logits


def append_brief(cache: Cache, brief: Brief | None) -> None:
    """Put the brief's keys and values behind what the cache holds."""
    for layer, (keys, values) in enumerate(brief.states if brief is not None else ()):
        cache.update(keys, values, layer)


def make_verdicts(
    cuts: Sequence[Cut], p_correct: Sequence[float], signals: torch.Tensor | None, labels: Labels
) -> Verdicts:
    """Put verdicts and signals of each prefix side by side; a prefix's signals look at it alone."""
    tokens = [cut.tokens for cut in cuts]
    mean = least = gap = None
    if signals is not None:
        at = torch.tensor(tokens) - 1
        logprob, distance = signals[0].double(), signals[1].double()
        mean = tuple((logprob.cumsum(0)[at] / (at + 1)).tolist())
        least = tuple(logprob.cummin(0).values[at].tolist())
        gap = tuple(distance.cummax(0).values[at].tolist())
    return Verdicts(
        ends=tuple(cut.chars for cut in cuts),
        token_ends=tuple(tokens),
        p_correct=tuple(p_correct),
        mean_logprob=mean,
        min_logprob=least,
        max_gap=gap,
        labels=(labels.right, labels.wrong),
    )
