"""What kind of model a configuration describes, and how its verdicts can be computed rightly."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from parse_engine.errors import UnsupportedModelError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

Path = Literal["packed", "fan_out"]

ATTENTION = ("sdpa", "eager")  # what takes a mask of our own; flash attention cannot
FIXED_ROPE = ("default", "linear", "llama3", "yarn", "proportional", "mrope")
MOVING_ROPE = ("dynamic", "longrope")  # frequencies follow the length of the text
# Models with layers of kinds of their own that go on from a cache with several tokens at once,
# tried one by one in float32. Others may drop a state without a word, which half precision could
# hide behind its rounding.
GOES_ON = (
    *("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "olmo_hybrid"),
    *("mamba2", "zamba2", "nemotron_h", "granitemoehybrid", "falcon_h1", "deepseek_v4"),
    *("lfm2", "lfm2_moe", "lfm3", "lara_mini", "zaya", "deepseek_v32", "glm_moe_dsa"),
    *("axk2", "hy_v4"),
)
RECURRENT = ("linear_attention", "conv", "mamba", "hybrid", "hybrid_sliding")
ALL_LAYERS = "all"  # one mask serves every layer


@dataclass(frozen=True)
class Reach:
    """How far back the layers of one kind see; both unset: to the beginning.

    Parameters
    ----------
    window : int, optional
        A position sees itself and the ``window - 1`` before it.
    chunk : int, optional
        A position sees those before it in its own chunk of so many positions.
    """

    window: int | None = None
    chunk: int | None = None


@dataclass(frozen=True)
class Plan:
    """How verdicts of one model are computed.

    Parameters
    ----------
    path : {"packed", "fan_out"}
        One masked pass over all suffixes, or a copy of the cache for each of them.
    brief : bool
        Whether the judge's instructions may stand, unseen by the text, before its first position.
    reaches : mapping of str to Reach
        By kind of layer; ``ALL_LAYERS`` alone where the model takes one mask for all.
    rope_switch : int, optional
        Texts with more tokens get other rotary frequencies: no cache may cross this length.
    why : str
        Why not in the best way (packed, with a brief); empty where it is.
    doubtful : bool
        Whether the check at load must agree as closely as float32 does, to be believed.
    """

    path: Path = "packed"
    brief: bool = True
    reaches: Mapping[str, Reach] = field(default_factory=lambda: {ALL_LAYERS: Reach()})
    rope_switch: int | None = None
    why: str = ""
    doubtful: bool = False

    @property
    def brief_reach(self) -> int | None:
        """How far the brief is seen from: None where some layer sees to the beginning."""
        windows = [reach.window for reach in self.reaches.values()]
        return None if None in windows else max(w for w in windows if w is not None)


def plan_for(name: str, network: PreTrainedModel) -> Plan:
    """Read off a model's configuration how its verdicts can be computed.

    Parameters
    ----------
    name : str
        The model's name, for messages.
    network : PreTrainedModel
        The model.

    Returns
    -------
    Plan
        To be confirmed by a check of the model itself.

    Raises
    ------
    UnsupportedModelError
        If there is no right way.
    """
    config = network.config.get_text_config(decoder=True)
    _refuse_unknown(name, network, config)
    switch = _rope_switch(config)
    reaches = _reaches(network, config)
    reason = _fan_out_reason(network, config)
    if reason is None and reaches is None:
        reason = "it has layers whose attention is of a kind of its own"
    if reason is not None or reaches is None:
        own_kinds = _is_recurrent(network, config) or reaches is None
        doubtful = own_kinds and config.model_type not in GOES_ON
        why = reason or ""
        return Plan("fan_out", brief=False, rope_switch=switch, why=why, doubtful=doubtful)
    reason = _quote_reason(network, config, reaches)
    return Plan("packed", reason is None, reaches, switch, reason or "")


def context_window(config: PreTrainedConfig) -> int:
    """Return the number of positions that a model was made for."""
    window = getattr(config, "max_position_embeddings", None)
    if not window or window < 0:  # a recurrent model, or one whose attention knows distances only
        return 1 << 20
    stretched = [r["factor"] for r in _rope_parameters(config) if r.get("rope_type") == "dynamic"]
    return int(window * max([1.0, *stretched]))


def _refuse_unknown(name: str, network: PreTrainedModel, config: PreTrainedConfig) -> None:
    """Refuse what a check on a few tokens could not find out."""
    unknown = _rope_types(config) - {*FIXED_ROPE, *MOVING_ROPE}
    if network.config.is_encoder_decoder:
        reason = "it is an encoder-decoder model"
    elif getattr(config, "is_decoder", None) is False and hasattr(config, "type_vocab_size"):
        reason = "it is an encoder, which also sees what follows a token"
    elif getattr(config, "use_bidirectional_attention", None) is True:
        reason = "its attention also sees what follows a token"
    elif unknown:
        reason = f"its rotary frequencies are of the unknown kind {', '.join(sorted(unknown))}"
    else:
        return
    raise UnsupportedModelError(
        f"{name} ({network.config.model_type}) cannot judge prefixes: {reason}.",
        'Use another target, or mode="target", which answers with this model alone.',
    )


def _fan_out_reason(network: PreTrainedModel, config: PreTrainedConfig) -> str | None:
    """Return why the packed pass is out of the question, None if it is not."""
    attention = config._attn_implementation
    if _is_recurrent(network, config):
        return "it keeps a recurrent state, which cannot be cropped"
    if not getattr(network, "_supports_attention_backend", False):
        return "its attention has rules of its own, which a mask does not override"
    if attention not in ATTENTION:
        return f'attn_implementation="{attention}" takes no mask of our own ("sdpa" does)'
    if "position_ids" not in inspect.signature(network.forward).parameters:
        return "its positions cannot be set"
    if getattr(config, "attn_temperature_tuning", False):
        return "its attention is scaled by places in the cache"
    if getattr(config, "alibi", False):
        return "its attention is biased by the distance in the cache"
    return None


def _is_recurrent(network: PreTrainedModel, config: PreTrainedConfig) -> bool:
    kinds = set(getattr(config, "layer_types", None) or ())
    return getattr(network, "_is_stateful", False) or bool(kinds & set(RECURRENT))


def _quote_reason(
    network: PreTrainedModel, config: PreTrainedConfig, reaches: Mapping[str, Reach]
) -> str | None:
    """Return why no brief can stand before the text, None if it can."""
    ropes = _rope_parameters(config)
    generation = network.generation_config
    cache = getattr(generation, "cache_implementation", None) if generation else None
    if not ropes:
        return "its positions are not rotary, and there are none before the first"
    if any("llama_4_scaling_beta" in rope for rope in ropes):
        return "its attention is scaled by position, and there is no scale before the first"
    if any(reach.chunk is not None for reach in reaches.values()):
        return "its attention works in chunks"
    if cache not in (None, "dynamic", "hybrid"):  # transformers takes hybrid for unset
        return f'its generation config asks for a cache of the kind "{cache}", which is not cropped'
    return None


def _reaches(network: PreTrainedModel, config: PreTrainedConfig) -> dict[str, Reach] | None:
    """Return how far each kind of layer sees; None where there are kinds that we do not know."""
    kinds = set(getattr(config, "layer_types", None) or ())
    # some models have a configuration a layer, which may hold a window or not
    windows = {getattr(layer, "sliding_window", None) for layer in config.per_layer_config}
    window = max((w for w in windows if w), default=None)
    known = {
        "full_attention": Reach(),
        "sliding_attention": Reach(window=window),
        "chunked_attention": Reach(chunk=getattr(config, "attention_chunk_size", None)),
    }
    if not kinds <= set(known) or len(windows - {None}) > 1:
        return None
    if "sliding_attention" in kinds and not window:
        return None
    if kinds - {"full_attention"}:
        return {kind: known[kind] for kind in sorted(kinds)}
    if not kinds and getattr(config, "attention_chunk_size", None):
        return None
    # A window without a list of layers is in all of them, if the model's code knows windows at all:
    # some Llama checkpoints carry the window of the Mistral that they were made from.
    everywhere = window if not kinds and _makes_windows(network) else None
    return {ALL_LAYERS: Reach(window=everywhere)}


def _makes_windows(network: PreTrainedModel) -> bool:
    """Whether the code of a model makes masks with a window from its configuration."""
    modules = {sys.modules[type(module).__module__] for module in network.modules()}
    return any(hasattr(module, "create_sliding_window_causal_mask") for module in modules)


def _rope_switch(config: PreTrainedConfig) -> int | None:
    """Return the length beyond which the rotary frequencies are others."""
    lengths = [
        rope.get("original_max_position_embeddings") or config.max_position_embeddings
        if rope["rope_type"] == "longrope"
        else config.max_position_embeddings
        for rope in _rope_parameters(config)
        if rope.get("rope_type") in MOVING_ROPE
    ]
    return min(lengths, default=None)


def _rope_parameters(config: PreTrainedConfig) -> list[dict[str, Any]]:
    """Return the rotary parameters of every kind of layer: some models have one set a kind."""
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return nested or ([parameters] if parameters else [])


def _rope_types(config: PreTrainedConfig) -> set[str]:
    return {str(rope.get("rope_type", "default")) for rope in _rope_parameters(config)}
