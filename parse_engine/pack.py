"""Packing N questions about N prefixes into one forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from parse_engine.backends.kinds import Reach


@dataclass(frozen=True)
class Packed:
    """One masked forward pass over ``[s_1 | ... | s_N]``.

    Parameters
    ----------
    ids : tuple of int
        N * S token ids, the suffix N times.
    positions : Tensor of int, shape [N * S]
        Logical positions: suffix i continues from the end of prefix i.
    mask : Tensor of bool, shape [N * S, C + B + N * S]
        Who sees whom; the columns are the context, the brief and the suffixes.
    key_positions : Tensor of int, shape [C + B + N * S]
        Logical positions of the columns; the brief's are negative.
    last : Tensor of int, shape [N]
        The row of the last token of each suffix, whose logits hold the verdict.
    """

    ids: tuple[int, ...]
    positions: torch.Tensor
    mask: torch.Tensor
    key_positions: torch.Tensor
    last: torch.Tensor


def pack(suffix_ids: Sequence[int], prefix_ends: Sequence[int], context: int, brief: int) -> Packed:
    """Lay out one suffix a prefix so that all are answered at once, as if each were alone.

    Suffix i sees the context up to the end of its prefix, the whole brief, and itself causally;
    never the rest of the draft, nor another suffix (arXiv 2605.04263).

    Parameters
    ----------
    suffix_ids : sequence of int
        S token ids.
    prefix_ends : sequence of int
        For each of N prefixes its end, counted in tokens from the start of the context.
    context : int
        C, tokens in the cache before the brief.
    brief : int
        B, tokens of the brief behind them; 0 without one.

    Returns
    -------
    Packed
        Needs no square mask over the context: N * S rows only.
    """
    count, size = len(prefix_ends), len(suffix_ids)
    ends = torch.tensor(list(prefix_ends))
    owner = torch.arange(count).repeat_interleave(size)  # [N * S]
    step = torch.arange(size).repeat(count)  # [N * S]
    sees_context = torch.arange(context) < ends[owner][:, None]  # [N * S, C]
    sees_brief = torch.ones(count * size, brief, dtype=torch.bool)  # [N * S, B]
    sees_suffix = (owner[:, None] == owner) & (step[:, None] >= step)  # [N * S, N * S]
    positions = ends[owner] + step
    return Packed(
        ids=tuple(suffix_ids) * count,
        positions=positions,
        mask=torch.cat([sees_context, sees_brief, sees_suffix], dim=1),
        key_positions=torch.cat([torch.arange(context), torch.arange(-brief, 0), positions]),
        last=torch.arange(1, count + 1) * size - 1,
    )


def within(
    reach: Reach, mask: torch.Tensor, positions: torch.Tensor, key_positions: torch.Tensor
) -> torch.Tensor:
    """Narrow a mask to what layers of one kind reach, counted in logical positions.

    A cache that drops nothing holds more than a window, and in a packed pass neighbours in the
    cache are none in the text: both are why a window cannot be counted in places of the cache.

    Parameters
    ----------
    reach : Reach
        How far back the layers see.
    mask : Tensor of bool, shape [Q, K]
        Who sees whom at all.
    positions, key_positions : Tensor of int, shapes [Q] and [K]
        Logical positions of rows and columns.

    Returns
    -------
    Tensor of bool, shape [Q, K]
    """
    if reach.window is not None:
        mask = mask & (positions[:, None] - key_positions < reach.window)
    if reach.chunk is not None:
        mask = mask & (positions[:, None] // reach.chunk == key_positions // reach.chunk)
    return mask
