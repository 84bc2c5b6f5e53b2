"""Which model to load and how: the loading settings of target and draft model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import torch

from parse_engine.backends.kinds import ATTENTION
from parse_engine.errors import InvalidRequestError, ModelNotFoundError, UnsupportedModelError


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """Which model to load, and how.

    Parameters
    ----------
    model : str or Path
        Hub id, local folder, ``.gguf`` file, or ``org/name/file.gguf`` on the hub.
    dtype : str or torch.dtype
        Such as "bfloat16"; "auto" is the checkpoint's own. A GGUF file has none of its own: it is
        unpacked to bfloat16.
    device_map : str, dict, optional
        Where the layers go, as accelerate takes it; "auto" fills the accelerators there are.
    quantization_config : transformers quantization config, optional
        For example ``BitsAndBytesConfig(load_in_4bit=True)``. A GGUF file is unpacked unless a
        ``GgufConfig`` says to keep it packed, which needs compiled kernels from the hub.
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

    Raises
    ------
    InvalidRequestError
        If a setting has a wrong type or value.
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
        named = getattr(torch, self.dtype, None) if isinstance(self.dtype, str) else self.dtype
        if self.dtype != "auto" and not isinstance(named, torch.dtype):
            raise InvalidRequestError(
                f"dtype is {self.dtype!r}.", 'Give "auto", or a torch dtype such as "bfloat16".'
            )
        if not isinstance(self.chat_template_kwargs, Mapping | None):
            raise InvalidRequestError(
                f"chat_template_kwargs is {self.chat_template_kwargs!r}.",
                'Give a dict, such as {"enable_thinking": False}.',
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
        If a setting is unknown, or has a wrong type or value.
    UnsupportedModelError
        If the target's attention cannot take the mask of the packed pass.
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
    attention = ours.get("attn_implementation")
    if attention is not None and attention not in ATTENTION:  # said before anything is loaded
        raise UnsupportedModelError(
            f"attn_implementation={attention!r} cannot take the mask of the packed pass.",
            f"Use one of {', '.join(ATTENTION)} for the target, or leave it unset. "
            "For the draft model there is draft_attn_implementation.",
        )
    return (
        ModelSource(model=target, **ours),
        ModelSource(model=draft, **theirs) if draft is not None else None,
    )


def locate(model: str | Path) -> tuple[str, str | None]:
    """Return what ``from_pretrained`` is given: a folder or hub id, and the GGUF file in it.

    Raises
    ------
    ModelNotFoundError
        If it can only be a path, and there is nothing that can be loaded.
    """
    path, name = Path(model).expanduser(), str(model)
    if path.is_dir():
        return str(path), None
    if path.is_file():
        if path.suffix == ".gguf":
            return str(path.parent), path.name
        raise ModelNotFoundError(
            f"{name} is a file that is not a GGUF file.",
            "Give a folder with config.json and safetensors, or a .gguf file.",
        )
    parts = name.split("/")
    on_hub = isinstance(model, str) and parts[0] not in ("", ".", "..", "~")
    if on_hub and name.endswith(".gguf") and len(parts) > 2:
        return "/".join(parts[:2]), "/".join(parts[2:])
    if on_hub and not name.endswith(".gguf") and len(parts) <= 2:
        return name, None
    raise ModelNotFoundError(f"There is no file or folder {name}.", f"Check the path. {WAYS_OUT}")


WAYS_OUT = (
    "Give a local folder with config.json and safetensors, or a .gguf file; "
    "or use the demo pair, which needs no hub: Engine.demo(), --demo on the command line."
)
