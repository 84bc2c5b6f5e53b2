"""Loading models: hub id, local folder or GGUF file; the same weights only once."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict
from weakref import WeakValueDictionary

from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from parse_engine.backends.model import Model
from parse_engine.errors import InvalidRequestError, ModelNotFoundError, UnsupportedModelError


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """Which model to load, and how.

    Parameters
    ----------
    model : str or Path
        Hub id, local folder, ``.gguf`` file, or ``org/name/file.gguf`` on the hub.
    dtype : str or torch.dtype
        Such as "bfloat16"; "auto" is the checkpoint's own.
    device_map : str, dict, optional
        Where the layers go, as accelerate takes it; "auto" fills the accelerators there are.
    quantization_config : transformers quantization config, optional
        For example ``BitsAndBytesConfig(load_in_4bit=True)``.
    revision : str, optional
        Branch, tag or commit on the hub.
    local_files_only : bool
        Make no network call at all.
    attn_implementation : str, optional
        "sdpa" or "eager" for a target; unset, transformers chooses.
    chat_template_kwargs : mapping, optional
        Extra arguments of the chat template, such as ``{"enable_thinking": False}``.
    trust_remote_code : bool
        Run code that comes with the model. Never done unless asked for.
    """

    model: str | Path
    dtype: Any = "auto"
    device_map: Any = "auto"
    quantization_config: Any = None
    revision: str | None = None
    local_files_only: bool = False
    attn_implementation: str | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.model, str | Path) or not str(self.model).strip():
            raise InvalidRequestError(
                f"The model is {self.model!r}.",
                "Give a hub id, a local folder, or a .gguf file.",
            )


class LoadOptions(TypedDict, total=False):
    """Loading settings of the target, and of the draft model with the prefix ``draft_``."""

    dtype: Any
    device_map: Any
    quantization_config: Any
    revision: str | None
    local_files_only: bool
    attn_implementation: str | None
    chat_template_kwargs: Mapping[str, Any] | None
    trust_remote_code: bool
    draft_dtype: Any
    draft_device_map: Any
    draft_quantization_config: Any
    draft_revision: str | None
    draft_local_files_only: bool
    draft_attn_implementation: str | None
    draft_chat_template_kwargs: Mapping[str, Any] | None
    draft_trust_remote_code: bool


INHERITED = ("dtype", "device_map", "local_files_only", "chat_template_kwargs")


def sources(
    target: str | Path, draft: str | Path | None, options: LoadOptions
) -> tuple[ModelSource, ModelSource | None]:
    """Sort loading settings by model; where unset, the draft model follows the target in some.

    Raises
    ------
    InvalidRequestError
        If a setting is unknown.
    """
    known = LoadOptions.__annotations__
    for name in options:
        if name not in known:
            raise InvalidRequestError(
                f"There is no loading setting {name!r}.", f"The settings are: {', '.join(known)}."
            )
    given: dict[str, Any] = dict(options)
    prefix = "draft_"
    ours = {name: value for name, value in given.items() if not name.startswith(prefix)}
    theirs = {name: ours[name] for name in INHERITED if name in ours}
    theirs |= {n.removeprefix(prefix): v for n, v in given.items() if n.startswith(prefix)}
    return (
        ModelSource(model=target, **ours),
        ModelSource(model=draft, **theirs) if draft is not None else None,
    )


_networks: WeakValueDictionary[str, PreTrainedModel] = WeakValueDictionary()
_loading = threading.Lock()


def load(source: ModelSource) -> Model:
    """Load a model, or share it with another engine that has it already.

    Raises
    ------
    ModelNotFoundError
        If there is no such model, or it cannot be reached.
    UnsupportedModelError
        If it cannot be loaded safely.
    """
    location, gguf_file = locate(source)
    common: dict[str, Any] = {
        "revision": source.revision or "main",
        "local_files_only": source.local_files_only,
        "trust_remote_code": source.trust_remote_code,
    }
    if gguf_file is not None:
        common["gguf_file"] = gguf_file
    try:
        tokenizer = AutoTokenizer.from_pretrained(location, **common)
        with _loading:  # two engines that start together load the same weights once
            key = _key(source)
            network = _networks.get(key)
            if network is None:
                network = _networks[key] = AutoModelForCausalLM.from_pretrained(
                    location,
                    dtype=source.dtype,
                    device_map=source.device_map,
                    quantization_config=source.quantization_config,
                    attn_implementation=source.attn_implementation,
                    use_safetensors=None if gguf_file else True,
                    **common,
                )
                network.eval()  # type: ignore[no-untyped-call]
    except OSError as error:
        raise _not_found(source, error) from error
    except (ValueError, ImportError) as error:
        raise UnsupportedModelError(
            f"{source.model} could not be loaded: {error}",
            "See the loading settings: dtype, device_map, quantization_config, trust_remote_code.",
        ) from error
    return Model(str(source.model), network, tokenizer, dict(source.chat_template_kwargs or {}))


def _key(source: ModelSource) -> str:
    """Name what decides about the weights; quantization configs compare by their settings."""
    quantization = source.quantization_config
    if hasattr(quantization, "to_dict"):
        quantization = quantization.to_dict()
    model = Path(source.model).resolve() if Path(source.model).exists() else source.model
    settings = (source.dtype, source.device_map, source.revision, source.attn_implementation)
    return repr((str(model), *map(str, settings), quantization, source.trust_remote_code))


def locate(source: ModelSource) -> tuple[str, str | None]:
    """Return what ``from_pretrained`` is given: a folder or hub id, and the GGUF file in it."""
    path = Path(source.model).expanduser()
    if path.is_dir():
        return str(path), None
    if path.is_file():
        if path.suffix == ".gguf":
            return str(path.parent), path.name
        raise ModelNotFoundError(
            f"{source.model} is a file that is not a GGUF file.",
            "Give a folder with config.json and safetensors, or a .gguf file.",
        )
    name = str(source.model)
    if name.endswith(".gguf") and name.count("/") == 2 and not name.startswith(("/", ".", "~")):
        return name.rsplit("/", 1)[0], name.rsplit("/", 1)[1]
    if name.startswith(("/", ".", "~")) or name.endswith(".gguf") or name.count("/") > 1:
        raise ModelNotFoundError(f"There is no file or folder {name}.", "Check the path.")
    return name, None


def _not_found(source: ModelSource, error: OSError) -> ModelNotFoundError:
    ways_out = (
        "Give a local folder with config.json and safetensors, or a .gguf file; "
        "or use the demo pair, which needs no hub: Engine.demo(), --demo on the command line."
    )
    where = "on this machine" if source.local_files_only else "on this machine or the model hub"
    first_line = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
    return ModelNotFoundError(
        f"The model {source.model} was not found {where} ({first_line})", ways_out
    )
