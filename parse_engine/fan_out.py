"""Judging without a mask: a copy of the cache at each cut, and the question read on it.

For models whose state cannot be cropped or masked. The copies cost memory and the questions cost a
forward pass each, but nothing is done that the model does not do when it reads by itself.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from parse_engine.backends.model import Model
from parse_engine.prefill import prefill

if TYPE_CHECKING:
    from transformers import Cache


def read_in_steps(
    target: Model,
    head: Sequence[int],
    draft_ids: Sequence[int],
    ends: Sequence[int],
    *,
    signals: bool,
) -> tuple[dict[int, Cache], torch.Tensor | None]:
    """Read prompt and draft, each token once, and keep a copy of the cache at each prefix's end.

    Parameters
    ----------
    target : Model
        The judge.
    head, draft_ids : sequence of int
        The judge's prompt up to where the draft begins, and the draft.
    ends : sequence of int
        Prefix ends, in tokens from the start of the head.
    signals : bool
        Whether the log-probabilities of the drafted tokens are wanted.

    Returns
    -------
    (dict of int to Cache, Tensor or None)
        A cache for each end, each good for one use, and the signals as ``prefill`` gives them.
    """
    cache = DynamicCache(config=target.network.config)
    copies: dict[int, Cache] = {}

    def keep(end: int) -> None:
        copies[end] = _copy(cache)

    found = prefill(target, cache, head, draft_ids, signals=signals, stops=ends, at_stop=keep)
    for end, kept in copies.items():
        _share_keys(kept, cache, end)
    return copies, found


def fan_out_logits(
    target: Model, copies: dict[int, Cache], suffix_ids: Sequence[int], ends: Sequence[int]
) -> torch.Tensor:
    """Return the logits after the suffix at each of N ends, shape [N, vocabulary].

    The caches are used up: one after the other, so that no more than one grows.
    """
    return torch.cat([target.forward(suffix_ids, copies.pop(end)) for end in ends])


def _copy(cache: Cache) -> Cache:
    """Copy the states of a cache, but not the keys and values that it will hold to its end."""
    twin = copy.copy(cache)
    twin.layers = []
    for layer in cache.layers:
        if type(layer) is DynamicLayer:
            bare = copy.copy(layer)
            bare.keys = bare.values = None
            twin.layers.append(bare)
        else:
            twin.layers.append(copy.deepcopy(layer))
    return twin


def _share_keys(kept: Cache, whole: Cache, end: int) -> None:
    """Let a copy see the beginning of the keys and values that the whole text's cache holds.

    Such a layer grows by concatenation, which leaves the shared part as it is.
    """
    for layer, source in zip(kept.layers, whole.layers, strict=True):
        if type(layer) is type(source) is DynamicLayer and source.keys is not None:
            assert source.values is not None
            layer.keys, layer.values = source.keys[:, :, :end], source.values[:, :, :end]
