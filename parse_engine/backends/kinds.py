"""What kind of model a configuration describes, and whether the packed pass is right for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from parse_engine.errors import UnsupportedModelError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

ATTENTION = ("sdpa", "eager")  # what takes a mask of our own; flash attention cannot
FIXED_ROPE = ("default", "linear", "llama3", "yarn", "proportional")


def check_kind(name: str, network: PreTrainedModel) -> None:
    """Refuse a model whose attention, cache or positions cannot do the packed pass.

    Raises
    ------
    UnsupportedModelError
        With the reason.
    """
    reason = unsupported_reason(network.config.get_text_config(), network)
    if reason is not None:
        raise UnsupportedModelError(
            f"{name} ({network.config.model_type}) cannot judge in one packed pass: {reason}.",
            "Use a target with full attention in every layer, such as Qwen2.5, Qwen3 or Llama 3.",
        )
    attention = network.config._attn_implementation
    if attention not in ATTENTION:
        raise UnsupportedModelError(
            f"{name} is loaded with attn_implementation={attention!r}, "
            "which cannot take the mask of the packed pass.",
            'Load the target with attn_implementation="sdpa" (the default).',
        )


def unsupported_reason(config: PreTrainedConfig, network: PreTrainedModel) -> str | None:
    """Return why a model cannot do the packed pass, None if it can."""
    kinds = _layer_kinds(config)
    rope = _rope_types(config)
    moving = sorted(rope - set(FIXED_ROPE))
    if getattr(network.config, "is_encoder_decoder", False):
        return "it is an encoder-decoder model"
    if getattr(network, "_is_stateful", False) or kinds & {"linear_attention", "mamba", "conv"}:
        return "it keeps a recurrent state, which cannot be cropped"
    if kinds - {"full_attention"}:
        return f"it has layers of the kind {', '.join(sorted(kinds - {'full_attention'}))}"
    if getattr(config, "attention_chunk_size", None) and not kinds:
        return "its attention works in chunks"
    if getattr(config, "num_kv_shared_layers", 0):
        return "its layers share keys and values, which cannot be cropped"
    if moving:
        return f"its rotary frequencies follow the length (rope type {', '.join(moving)})"
    if any("llama_4_scaling_beta" in rope for rope in _rope_parameters(config)):
        return "its attention is scaled by position"
    if not rope:
        return "its positions are learned, so the judge's brief has no place before the prompt"
    return None


def _layer_kinds(config: PreTrainedConfig) -> set[str]:
    """Return the kinds of the layers; a window without a list of layers is in all of them."""
    kinds = getattr(config, "layer_types", None)
    if kinds:
        return set(kinds)
    window = getattr(config, "sliding_window", None)
    return (
        {"sliding_attention"} if window and getattr(config, "use_sliding_window", True) else set()
    )


def _rope_parameters(config: PreTrainedConfig) -> list[dict[str, Any]]:
    """Return the rotary parameters of every kind of layer: some models have one set a kind."""
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return nested or ([parameters] if parameters else [])


def _rope_types(config: PreTrainedConfig) -> set[str]:
    return {str(rope.get("rope_type", "default")) for rope in _rope_parameters(config)}
