"""Tiny random models of real architectures, made in process."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from parse_engine.backends.model import Model
from tests.tiny_tokenizers import chat_tokenizer

SIZE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
MOE: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "decoder_sparse_step": 1,
}
# Architectures with full attention in every layer, and what makes them so.
FULL_ATTENTION: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "qwen3_moe": MOE,
    "phi3": {"sliding_window": None},
    "glm4": {},
    "olmo2": {},
    "granite": {"logits_scaling": 4.0, "attention_multiplier": 0.3},
    "smollm3": {"no_rope_layers": [1, 0, 1]},
    "cohere2": {"layer_types": ["full_attention"] * 3, "sliding_window": 4096},
}


def tiny_network(kind: str, vocab_size: int, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """Make a network with random weights, large enough to have strong opinions."""
    settings = {**SIZE, **FULL_ATTENTION.get(kind, {}), "vocab_size": vocab_size, **changes}
    attention = settings.pop("attn_implementation", "sdpa")
    config = AutoConfig.for_model(kind, **settings)
    torch.manual_seed(seed)
    network = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation=attention
    )
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if weight.dim() > 1:
                weight.normal_(0, 0.5 if "lm_head" in name or "embed" in name else 0.25)
    return network.eval()


@lru_cache(maxsize=64)
def tiny_model(
    kind: str = "qwen2", template: str = "qwen2.5", seed: int = 0, attention: str = "sdpa"
) -> Model:
    """Return a tiny model with a tokenizer; the same arguments give the same object."""
    tokenizer = chat_tokenizer(template)
    network = tiny_network(kind, len(tokenizer), seed, attn_implementation=attention)
    network.generation_config.eos_token_id = tokenizer.eos_token_id
    return Model(f"tiny-{kind}-{seed}", network, tokenizer)


def other_family() -> Model:
    """Return a tiny model whose tokenizer splits text otherwise."""
    tokenizer = chat_tokenizer("chatml", words=("Yes", "No", " that", " is"))
    network = tiny_network("qwen2", len(tokenizer), seed=1)
    network.generation_config.eos_token_id = tokenizer.eos_token_id
    return Model("tiny-other", network, tokenizer)
