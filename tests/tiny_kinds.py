"""Tiny models of every kind of cache, attention and position; windows are shorter than texts."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from transformers import DynamicCache

from parse_engine.backends.model import Model
from tests.tiny_models import MOE, tiny_network
from tests.tiny_tokenizers import chat_tokenizer

WINDOW = 9
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [1.0, 2.0, 4.0, 8.0],
    "original_max_position_embeddings": 1200,
}
SHARED_KV = {
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "sliding_window": WINDOW,
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 8,
}
MAMBA = {
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 8,
    "mamba_expand": 2,
}
# name -> (model type, what makes it of that kind)
PACKED: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral": ("mistral", {"sliding_window": WINDOW}),
    "mistral_wide": ("mistral", {"sliding_window": 900}),
    "mistral_eager": ("mistral", {"sliding_window": WINDOW, "attn_implementation": "eager"}),
    "mixtral": ("mixtral", {"sliding_window": None, "num_local_experts": 4}),
    "mixtral_windows": ("mixtral", {"sliding_window": WINDOW, "num_local_experts": 4}),
    "qwen3_moe": ("qwen3_moe", MOE),
    "qwen2_windows": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    ),
    "gemma2": (
        "gemma2",
        {"sliding_window": WINDOW, "layer_types": MIXED, "attn_implementation": "eager"},
    ),
    "gemma3": ("gemma3_text", {"sliding_window": WINDOW, "layer_types": MIXED}),
    "gemma3_eager": (
        "gemma3_text",
        {"sliding_window": WINDOW, "layer_types": MIXED, "attn_implementation": "eager"},
    ),
    "gemma3n": (
        "gemma3n_text",
        {
            **SHARED_KV,
            "laurel_rank": 4,
            "intermediate_size": [64] * 6,
            "activation_sparsity_pattern": [0.0] * 6,
        },
    ),
    "gemma4": ("gemma4_text", {**SHARED_KV, "global_head_dim": 8}),
    "gpt_oss": (
        "gpt_oss",
        {
            "sliding_window": WINDOW,
            "layer_types": MIXED,
            "num_local_experts": 4,
            "attn_implementation": "eager",
        },
    ),
    "cohere2": ("cohere2", {"sliding_window": WINDOW, "layer_types": MIXED}),
    "ministral3": (
        "ministral3",
        {
            "sliding_window": None,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 256.0,
                "original_max_position_embeddings": 16,
                "llama_4_scaling_beta": 0.3,
            },
        },
    ),
    "llama4_unscaled": (
        "llama4_text",
        {
            "layer_types": ["chunked_attention", "full_attention", "chunked_attention"],
            "attention_chunk_size": 16,
            "no_rope_layers": [1, 0, 1],
            "attn_temperature_tuning": False,
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
            "intermediate_size_mlp": 64,
        },
    ),
    "phi3_longrope": (
        "phi3",
        {
            "sliding_window": None,
            "rope_parameters": LONGROPE,
            "original_max_position_embeddings": 1200,
        },
    ),
    "llama_dynamic": (
        "llama",
        {
            "max_position_embeddings": 1200,
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
        },
    ),
    "gpt2": ("gpt2", {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 4096}),
}
FAN_OUT: dict[str, tuple[str, dict[str, Any]]] = {
    "llama4": (
        "llama4_text",
        {
            "layer_types": ["chunked_attention", "full_attention", "chunked_attention"],
            "attention_chunk_size": 16,
            "no_rope_layers": [1, 0, 1],
            "floor_scale": 8,
            "attn_scale": 0.1,
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
            "intermediate_size_mlp": 64,
        },
    ),
    "qwen3_next": (
        "qwen3_next",
        {
            **MOE,
            "num_hidden_layers": 4,
            "layer_types": ["linear_attention", "full_attention"] * 2,
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "shared_expert_intermediate_size": 32,
        },
    ),
    "mamba2": (
        "mamba2",
        {
            "num_heads": 8,
            "head_dim": 8,
            "state_size": 8,
            "n_groups": 1,
            "chunk_size": 16,
            "attn_implementation": "eager",
        },
    ),
    "granitemoehybrid": (
        "granitemoehybrid",
        {
            **MAMBA,
            "layer_types": ["mamba", "attention", "mamba"],
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "shared_intermediate_size": 32,
        },
    ),
    "lfm2": ("lfm2", {"layer_types": ["conv", "full_attention", "conv"]}),
    "bloom": ("bloom", {"n_head": 4, "n_layer": 3, "attn_implementation": "eager"}),
    "gpt_neo": (
        "gpt_neo",
        {
            "num_layers": 3,
            "num_heads": 4,
            "attention_types": [[["global", "local", "local"], 1]],
            "window_size": WINDOW,
            "attn_implementation": "eager",
        },
    ),
}
KINDS = {**PACKED, **FAN_OUT}


@lru_cache(maxsize=64)
def kind_model(kind: str) -> Model:
    """Return a tiny model of a kind; the same name gives the same object."""
    model_type, settings = KINDS[kind]
    tokenizer = chat_tokenizer("qwen2.5")
    network = tiny_network(model_type, len(tokenizer), **settings)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if "linear_attn" in name and weight.dim() > 1:
                weight.mul_(0.6)  # or a recurrent state blows rounding up
    network.generation_config.eos_token_id = tokenizer.eos_token_id
    return Model(f"tiny-{kind}", network, tokenizer)


def fresh_cache(model: Model) -> DynamicCache:
    """Return the cache that the library gives a model by default."""
    return DynamicCache(config=model.network.config)


def whole_text_logits(model: Model, ids: tuple[int, ...]) -> torch.Tensor:
    """Return what the model says after a text that it reads by itself, without any cache."""
    with torch.no_grad():
        return model.network(torch.tensor([ids])).logits[0, -1]
