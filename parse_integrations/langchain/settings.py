"""The settings of ChatParse: checked, identified, copied and pickled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from os import PathLike
from typing import TYPE_CHECKING, Any, Self

from langchain_core.language_models.base import LangSmithParams
from langchain_core.language_models.chat_models import BaseChatModel
from pydantic import ConfigDict, Field, SecretStr, field_validator, model_validator

from parse_engine import InvalidRequestError, ParseConfig
from parse_engine.calibration import read_calibration
from parse_engine.config import (
    AcceptRule,
    CutRule,
    JudgeLayout,
    Mode,
    VerdictRule,
    VerifyOrder,
    check_count,
)
from parse_engine.options import WORDING
from parse_engine.request import check_sampling, check_stop
from parse_integrations.engines import loaded, release
from parse_integrations.langchain.messages import PROVIDER
from parse_integrations.tool_formats import ToolFormat, check_format

if TYPE_CHECKING:
    from parse_engine import Engine

_OWN = (
    *("dtype", "device_map", "quantization_config", "revision", "local_files_only"),
    *("attn_implementation", "chat_template_kwargs", "trust_remote_code"),
)
LOADING = (*_OWN, *(f"draft_{name}" for name in _OWN))
ALGORITHM = tuple(field.name for field in fields(ParseConfig) if field.name not in WORDING)
SAMPLING = ("temperature", "top_p", "top_k", "seed")


class ParseSettings(BaseChatModel):
    """The fields of ChatParse; see there."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    model: str | None = None
    draft_model: str | None = None
    engine: Any = Field(default=None, exclude=True, repr=False)

    verdict: VerdictRule | None = None
    threshold: float | None = None
    accept_rule: AcceptRule | None = None
    cut_at: CutRule | int | None = None
    calibration: dict[str, Any] | None = None
    max_prefixes: int | None = None
    judge_layout: JudgeLayout | None = None
    verify_order: VerifyOrder | None = None
    labels: tuple[str, str] | None = None
    brief: str | None = None
    question: str | None = None
    signals: bool | None = None
    max_draft_tokens: int | None = None
    mode: Mode | None = None

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: list[str] | None = None
    timeout: float | None = None
    streaming: bool = False
    tool_format: str | ToolFormat | None = None

    dtype: str | None = None
    device_map: Any = None
    quantization_config: Any = None
    revision: str | None = None
    local_files_only: bool | None = None
    attn_implementation: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    trust_remote_code: bool | None = None
    draft_dtype: str | None = None
    draft_device_map: Any = None
    draft_quantization_config: Any = None
    draft_revision: str | None = None
    draft_local_files_only: bool | None = None
    draft_attn_implementation: str | None = None
    draft_chat_template_kwargs: dict[str, Any] | None = None
    draft_trust_remote_code: bool | None = None

    max_retries: int | None = None
    api_key: SecretStr | None = Field(default=None, exclude=True, repr=False)

    @field_validator("model", "draft_model", mode="before")
    @classmethod
    def _path_as_text(cls, value: Any) -> Any:
        return str(value) if isinstance(value, PathLike) else value

    @field_validator("calibration", mode="before")
    @classmethod
    def _calibration_as_values(cls, value: Any) -> Any:
        """Keep what a file says and not its path, so that copies and caches see the same."""
        return value if value is None else read_calibration(value).as_dict()

    @field_validator("dtype", "draft_dtype", mode="before")
    @classmethod
    def _dtype_as_text(cls, value: Any) -> Any:
        return value if value is None else str(value).removeprefix("torch.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Say what is wrong when the model is made, and not at the first call."""
        if (self.model is None) == (self.engine is None):
            raise InvalidRequestError(
                f"model is {self.model!r} and engine is {self.engine!r}.",
                "Give model=... and draft_model=..., or an engine that is loaded already.",
            )
        ready = [
            name for name in ("draft_model", *WORDING, *LOADING) if getattr(self, name) is not None
        ]
        if self.engine is not None and ready:
            raise InvalidRequestError(
                f"{', '.join(ready)} cannot be set beside engine=....", "Set it on the engine."
            )
        if self.engine is None and self.draft_model is None and self.mode != "target":
            raise InvalidRequestError(
                "draft_model is missing.",
                'Give draft_model=..., or mode="target" to let the target answer alone.',
            )
        ParseConfig(**self._set((*ALGORITHM, *WORDING)))
        check_sampling(None, **{name: getattr(self, name) for name in SAMPLING})
        check_stop(self.stop)
        check_format(self.tool_format)
        if self.max_tokens is not None:
            check_count("max_tokens", self.max_tokens)
        if self.timeout is not None and not self.timeout > 0:
            raise InvalidRequestError(f"timeout is {self.timeout!r}.", "Give seconds above 0.")
        return self

    def _set(self, names: tuple[str, ...]) -> dict[str, Any]:
        """Return the fields of these names that are set."""
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}

    def _engine(self, model: str | None = None) -> Engine:
        """Return the engine, loading the models where they are not loaded."""
        if self.engine is None:
            return loaded(
                model or str(self.model), self.draft_model, self._set(LOADING), self._set(WORDING)
            )
        engine: Engine = self.engine
        if model not in (None, engine.target.name):
            raise InvalidRequestError(
                f"model is {model!r}, but the engine has loaded {engine.target.name}.",
                "Make ChatParse with model=... and draft_model=... to change models by call.",
            )
        return engine

    def load(self) -> Self:
        """Load the models now and not at the first call; what is loaded is used again.

        Returns
        -------
        ChatParse
            The same, with ``profile["max_input_tokens"]`` known.
        """
        from parse_integrations.langchain.errors import langchain_errors

        with langchain_errors():
            engine = self._engine()
            if self.mode in (None, "parse") and self.engine is None:
                _ = engine.ability  # raises where the target cannot judge
        if self.profile is not None:
            self.profile.setdefault("max_input_tokens", engine.target.context_window)
        return self

    def close(self) -> None:
        """Let go of the models; memory is free once no call and no engine of yours uses them.

        The next call loads them again. An engine that you made yourself stays as it is.
        """
        if self.engine is None:
            release(str(self.model), self.draft_model, self._set(LOADING), self._set(WORDING))

    def _resolve_model_profile(self) -> Any:
        from importlib.util import find_spec

        enforced = find_spec("llguidance") is not None
        profile: dict[str, Any] = {
            **{"text_inputs": True, "text_outputs": True, "tool_calling": True},
            **{"image_inputs": False, "audio_inputs": False, "video_inputs": False},
            **{"pdf_inputs": False, "image_outputs": False, "audio_outputs": False},
            **{"structured_output": enforced, "tool_choice": enforced, "temperature": True},
        }
        if self.engine is not None:
            profile["max_input_tokens"] = self.engine.target.context_window
        return profile

    @property
    def _llm_type(self) -> str:
        return "parse-chat"

    @property
    def _identifying_params(self) -> Mapping[str, Any]:
        """All that decides about an answer: the key of caches, and what traces show."""
        names = ("model", "draft_model", *SAMPLING, "max_tokens", "stop", "tool_format")
        params = self._set((*names, *ALGORITHM, *WORDING, *LOADING))
        for name in ("quantization_config", "draft_quantization_config", "tool_format"):
            if name in params and not isinstance(params[name], str):
                value = params[name]
                params[name] = str(value.to_dict() if hasattr(value, "to_dict") else value)
        if self.engine is not None:
            for role in ("target", "draft"):
                if (model := getattr(self.engine, role)) is not None:
                    commit = getattr(model.network.config, "_commit_hash", None)
                    params[role] = f"{model.name} {commit} {model.network.dtype}"
                    params[f"{role}_template_kwargs"] = dict(model.template_kwargs)
            params["config"] = repr(self.engine.config)
        return params

    def _get_invocation_params(
        self, stop: list[str] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        return super()._get_invocation_params(stop=self.stop if stop is None else stop, **kwargs)

    def _get_llm_string(self, stop: list[str] | None = None, **kwargs: Any) -> str:
        # Not what is serialized, as the base class has it: an engine is not.
        if kwargs.get("calibration") is not None:  # what a file says, not its path
            kwargs["calibration"] = read_calibration(kwargs["calibration"]).as_dict()
        return str(sorted({**self._get_invocation_params(stop=stop, **kwargs), **kwargs}.items()))

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = super()._get_ls_params(stop=self.stop if stop is None else stop, **kwargs)
        params["ls_provider"] = PROVIDER
        if self.engine is not None and not isinstance(kwargs.get("model"), str):
            params["ls_model_name"] = self.engine.target.name
        return params

    @classmethod
    def is_lc_serializable(cls) -> bool:
        """Whether ``dumpd`` and ``load`` of LangChain work: yes, with ids and settings."""
        return True

    @classmethod
    def get_lc_namespace(cls) -> list[str]:
        """Return where ``load`` finds the class."""
        return ["parse_integrations", "langchain"]

    @property
    def lc_secrets(self) -> dict[str, str]:
        """Name the environment variable that ``load`` reads instead of a serialized key."""
        return {"api_key": "PARSE_API_KEY"}

    def to_json(self) -> Any:
        """Serialize for LangChain; with an engine there is only a note that it cannot be."""
        return super().to_json() if self.engine is None else self.to_json_not_implemented()

    def __getstate__(self) -> dict[Any, Any]:
        if self.engine is not None:
            raise InvalidRequestError(
                "A ChatParse made from an engine cannot be pickled: the engine holds the models.",
                "Make it with model=... and draft_model=...; they are loaded where it is used.",
            )
        return super().__getstate__()

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Copy the settings; loaded models are shared."""
        return super().__deepcopy__({**(memo or {}), id(self.engine): self.engine})
