"""The target reads prompt and draft once, and answers the judge's question after any prefix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from parse_engine.backends.kinds import Plan
from parse_engine.backends.model import Model
from parse_engine.fan_out import fan_out_logits, read_in_steps
from parse_engine.judge import Judge
from parse_engine.pack import pack
from parse_engine.prefill import prefill

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
