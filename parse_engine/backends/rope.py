"""Rotary frequencies that follow the length of the text, kept apart between calls."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

from parse_engine.backends.kinds import MOVING_ROPE

if TYPE_CHECKING:
    from parse_engine.backends.model import Model


def steady_rope(*models: Model | None) -> None:
    """Make each forward pass compute its rotary frequencies from its own length alone.

    Where they follow the length, a long text leaves its frequencies in the module, and a text that
    comes later, or at the same time in another thread, would use them. So one forward of the module
    runs at a time, and starts as if nothing had been read before: a look at position 0 sets the
    frequencies back. Done once a network, however many engines use it.
    """
    for module in (m for model in models if model for m in model.network.modules()):
        if _moves(module) and not hasattr(module, "_parse_steady"):
            _guard(module)


def _moves(module: Any) -> bool:
    types = getattr(module, "rope_type", None)
    return not set(types.values() if isinstance(types, dict) else [types]).isdisjoint(MOVING_ROPE)


def _guard(module: Any) -> None:
    lock, forward = threading.Lock(), module.forward

    def alone(x: torch.Tensor, position_ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        with lock:
            forward(x, torch.zeros_like(position_ids[..., :1]), *args, **kwargs)
            return forward(x, position_ids, *args, **kwargs)

    module.forward = alone
    module._parse_steady = True
