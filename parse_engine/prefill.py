"""The target reads prompt and draft, and says what it thinks of each drafted token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from transformers import DynamicCache

from parse_engine.backends.kinds import Plan
from parse_engine.backends.model import Model

if TYPE_CHECKING:
    from transformers import Cache

PREFILL_CHUNK = 512  # rows of logits at a time: 512 x 152k x 2 bytes are 156 MB
SIGNAL_CHUNK = 64  # rows of logits in float32 at a time


def empty_cache(target: Model, plan: Plan) -> DynamicCache:
    """Return what a target reads into: a plain cache, or one of its own kind, not to be cropped."""
    return DynamicCache() if plan.path == "packed" else DynamicCache(config=target.network.config)


def prefill(
    target: Model,
    cache: Cache,
    head: Sequence[int],
    draft_ids: Sequence[int],
    *,
    signals: bool,
    stops: Sequence[int] = (),
    at_stop: Callable[[int], None] = lambda _: None,
) -> torch.Tensor | None:
    """Read prompt and draft into the cache, each token once.

    Parameters
    ----------
    target : Model
        Who reads.
    cache : Cache
        Empty before the call.
    head, draft_ids : sequence of int
        What stands before the draft, and the draft.
    signals : bool
        Whether the log-probabilities of the drafted tokens are wanted.
    stops : sequence of int
        Numbers of tokens at which ``at_stop`` is called, when the cache holds just so many.
    at_stop : callable
        Called with each of the stops, in order.

    Returns
    -------
    Tensor of float32, shape [2, T], or None
        For each drafted token its log-probability and its distance to the target's best token, in
        nats, both >= 0 towards the better; None where ``signals`` is off.
    """
    ids = (*head, *draft_ids)
    rows: list[torch.Tensor] = []
    waiting = sorted(set(stops))
    start, first = 0, len(head) - 1  # the logits at position p are about token p + 1
    while start < len(ids):
        end = max(start, first) + PREFILL_CHUNK if signals else len(ids)
        end = min(end, len(ids), *waiting[:1])
        wanted = max(1, end - max(start, first)) if signals else 1
        logits = target.forward(ids[start:end], cache, keep=wanted)
        if signals and end > first:
            nexts = ids[end - wanted + 1 : end + 1]
            rows.append(token_signals(logits[: len(nexts)], nexts))
        if waiting and end == waiting[0]:
            at_stop(waiting.pop(0))
        start = end
    return torch.cat(rows, dim=1) if signals else None


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
