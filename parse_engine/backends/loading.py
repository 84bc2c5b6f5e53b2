"""Loading models: hub id, local folder or GGUF file; the same weights only once."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    PreTrainedModel,
)

from parse_engine.backends.hub import find, said
from parse_engine.backends.kinds import context_window
from parse_engine.backends.model import Model
from parse_engine.backends.source import WAYS_OUT, LoadOptions, ModelSource, locate, sources
from parse_engine.errors import (
    InvalidRequestError,
    ModelNotFoundError,
    ParseError,
    UnsupportedModelError,
)

__all__ = ["LoadOptions", "ModelSource", "load", "locate", "sources"]

_networks: WeakValueDictionary[str, PreTrainedModel] = WeakValueDictionary()
_loading = threading.Lock()

PICKLED = (
    "Pickled weights are not read, for they can run code: use another version of the model, or "
    "save it as safetensors with model.save_pretrained(folder)."
)
DAMAGED = "The model looks incomplete or damaged: fetch or save it again."
TOKENIZER_FILES = (
    "It needs the tokenizer's files, such as tokenizer.json and tokenizer_config.json, beside "
    "config.json: tokenizer.save_pretrained(folder) writes them."
)


def load(source: ModelSource) -> Model:
    """Load a model, or share its weights with another engine that has them already.

    Raises
    ------
    ModelNotFoundError
        If there is no such model, or it cannot be reached.
    UnsupportedModelError
        If it cannot be loaded, or not safely.
    """
    place, common = _place(source)
    gguf_file = common.get("gguf_file")
    if gguf_file is not None and source.quantization_config is None:
        # packed weights would compute in kernels that are fetched from the hub
        dtype = torch.bfloat16 if source.dtype == "auto" else source.dtype
        source = replace(source, dtype=dtype, quantization_config=GgufConfig(dequantize=True))
    if Path(place).is_dir() and gguf_file is None:
        _check_folder(Path(place))
    try:
        tokenizer = AutoTokenizer.from_pretrained(place, **common)
    except Exception as error:  # a damaged file makes it raise whatever there is
        raise _failure(
            source,
            f"The tokenizer of {source.model} could not be loaded",
            error,
            DAMAGED if gguf_file else TOKENIZER_FILES,
        ) from error
    if len(tokenizer) < 16:  # from no files transformers makes one of special tokens only
        raise ModelNotFoundError(f"{source.model} has no tokenizer.", TOKENIZER_FILES)
    with _loading:  # two engines that start together load the same weights once
        key = _key(source, place, common)
        network = _networks.get(key)
        if network is None:
            network = _networks[key] = _read_weights(source, place, common)
    return Model(str(source.model), network, tokenizer, dict(source.chat_template_kwargs or {}))


def read_context_window(source: ModelSource) -> int:
    """Return the number of positions that a model was made for, without loading its weights.

    Raises
    ------
    ModelNotFoundError
        If there is no such model, or it cannot be reached.
    """
    place, common = _place(source)
    try:
        config = AutoConfig.from_pretrained(place, **common)
    except Exception as error:  # a damaged file makes it raise whatever there is
        problem = f"The configuration of {source.model} could not be read"
        raise _failure(source, problem, error, DAMAGED) from error
    return context_window(config.get_text_config(decoder=True))


def _place(source: ModelSource) -> tuple[str, dict[str, Any]]:
    """Return what ``from_pretrained`` is given: a folder or hub id, and how to read it."""
    place, gguf_file = locate(source.model)
    common: dict[str, Any] = {
        "local_files_only": source.local_files_only,
        "trust_remote_code": source.trust_remote_code,
    }
    if gguf_file is not None:
        common["gguf_file"] = gguf_file
    if not Path(place).is_dir():
        place, common["revision"] = find(
            place,
            gguf_file or "config.json",
            source.revision,
            local_files_only=source.local_files_only,
        )
    elif source.revision is not None:
        raise InvalidRequestError(
            f"revision is {source.revision!r}, but {source.model} is on this machine.",
            "Leave revision unset: it chooses among the versions on the hub.",
        )
    return place, common


def _read_weights(source: ModelSource, place: str, common: Mapping[str, Any]) -> PreTrainedModel:
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            place,
            dtype=source.dtype,
            device_map=source.device_map,
            # transformers writes into it, and it is the caller's
            quantization_config=copy.deepcopy(source.quantization_config),
            attn_implementation=source.attn_implementation,
            use_safetensors=None if "gguf_file" in common else True,
            ignore_mismatched_sizes=True,  # reported, and refused below with their names
            output_loading_info=True,
            **common,
        )
    except Exception as error:  # as above
        problem = f"{source.model} could not be loaded"
        raise _failure(source, problem, error, _hint(error)) from error
    network, report = loaded
    assert isinstance(network, PreTrainedModel)
    _check_weights(str(source.model), network, report)
    if network.device.type == "meta":
        raise UnsupportedModelError(
            f"{source.model} with device_map={source.device_map!r} has its first layer on disk.",
            "Keep the embeddings on a device; later layers may be on disk.",
        )
    return network


def _check_folder(folder: Path) -> None:
    """Refuse a folder that is no model, or whose weights are pickled and could run code."""
    if not (folder / "config.json").is_file():
        raise ModelNotFoundError(f"The folder {folder} has no config.json.", WAYS_OUT)
    if any(folder.glob("*.safetensors")):
        return
    pickled = sorted(p.name for pattern in ("*.bin", "*.pt", "*.pth") for p in folder.glob(pattern))
    if pickled:
        raise UnsupportedModelError(
            f"{folder} has its weights in {pickled[0]} only, and no safetensors.", PICKLED
        )
    raise ModelNotFoundError(f"The folder {folder} has no weights (*.safetensors).", WAYS_OUT)


def _check_weights(name: str, network: PreTrainedModel, report: Mapping[str, Any]) -> None:
    """Refuse a network that has not all its weights from the checkpoint: the rest are random.

    Weights that the network has no place for are no harm where they belong to a part that it does
    not have, such as an image encoder or heads that predict further tokens. Inside a part that it
    has, they say that the configuration describes another model. Quantized checkpoints bring
    scales that transformers has no use for.
    """
    parts = {part for part, _ in network.named_modules()}
    quantized = getattr(network, "hf_quantizer", None) is not None
    faults = {
        "missing": report["missing_keys"],
        "of another shape": [key for key, *_ in report["mismatched_keys"]],
        "left over": [
            key
            for key in report["unexpected_keys"]
            if not quantized and ".".join(key.split(".")[:-1][:2]) in parts
        ],
    }
    for fault, keys in faults.items():
        if keys:
            shown = sorted(keys)[:4] + (["..."] if len(keys) > 4 else [])
            raise UnsupportedModelError(
                f"The weights of {name} do not fit its config.json: "
                f"{len(keys)} {fault} ({', '.join(shown)}).",
                "Get checkpoint and config.json from the same model; it must be a whole causal "
                "language model.",
            )


def _key(source: ModelSource, place: str, common: Mapping[str, Any]) -> str:
    """Name what decides about the weights; quantization configs compare by their settings."""
    folder = Path(place)
    files: list[tuple[str, int]] = []
    if folder.is_dir():  # a model that was saved anew at the same place is another one
        place = str(folder.resolve())
        found = [folder / common["gguf_file"]] if "gguf_file" in common else folder.iterdir()
        files = sorted((path.name, path.stat().st_mtime_ns) for path in found)
    quantization = source.quantization_config
    if hasattr(quantization, "to_dict"):
        quantization = quantization.to_dict()
    dtype = str(source.dtype).removeprefix("torch.")
    settings = (source.device_map, source.attn_implementation, source.trust_remote_code)
    where = (place, common.get("gguf_file"), common.get("revision"), files)
    return repr((*where, dtype, *settings, quantization))


def _failure(source: ModelSource, problem: str, error: Exception, hint: str) -> ParseError:
    """Translate an error of the libraries that load a model."""
    lines = str(error).strip().splitlines() or ["no reason given"]
    text = f"{problem}: {type(error).__name__}: {said(Exception(lines[0]))}"
    if isinstance(error, OSError) and not Path(source.model).expanduser().exists():
        return ModelNotFoundError(text, f"{hint} {WAYS_OUT}")
    return UnsupportedModelError(text, hint)


def _hint(error: Exception) -> str:
    if isinstance(error, ImportError):
        return "Install what it names, or leave out the setting that needs it."
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return "Load it in 4 bits (quantization_config), or spread it (device_map='auto')."
    if "trust_remote_code" in str(error):
        return (
            "This model brings its own code. With trust_remote_code=True it is run on this "
            "machine: read it first. Models of a kind that transformers knows need none."
        )
    if isinstance(error, OSError) and "use_safetensors" in str(error):
        return PICKLED
    if isinstance(error, OSError) or type(error).__name__ == "SafetensorError":
        return DAMAGED
    return (
        "See the loading settings: dtype, device_map, quantization_config, attn_implementation, "
        "trust_remote_code."
    )
