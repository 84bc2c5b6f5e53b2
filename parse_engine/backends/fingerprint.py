"""What tells one model from another, wherever it lies and whatever it is called."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from parse_engine.backends.model import Model

SAMPLES = 16  # values of each weight: any training changes some of them in every matrix it touches
# Tokenizers that split this alike are taken for the same.
PROBE = "def f(x):\n    return x*2.5e-3  # naïve\n\n世界 😀 1234567 don't I'M \t<b>ÀÉ</b>\r\n"


def fingerprint(model: Model) -> str:
    """Return a short text that is the same for the same weights, tokenizer and chat template.

    Reads a few values of each weight, which takes milliseconds where hashing all of them would
    take as long as loading.
    """
    found = hashlib.sha256()
    for name, weight in sorted(model.network.named_parameters()):
        found.update(f"{name} {tuple(weight.shape)} {weight.dtype}\n".encode())
        if weight.device.type == "meta":  # on disk: its name and shape must do
            continue
        flat = weight.detach().reshape(-1)
        at = torch.linspace(0, len(flat) - 1, min(SAMPLES, len(flat)), dtype=torch.float64)
        values = flat[at.round().long().to(flat.device)].cpu().contiguous()
        found.update(values.view(torch.uint8).numpy().tobytes())
    tokenizer = model.tokenizer
    ids = list(tokenizer(PROBE, add_special_tokens=False).input_ids)
    parts = (ids, len(tokenizer), tokenizer.chat_template, sorted(model.template_kwargs.items()))
    found.update(repr(parts).encode())
    return found.hexdigest()[:16]
