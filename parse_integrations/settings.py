"""The settings that both adapters have: checked, copied, and made an engine of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from os import PathLike
from typing import TYPE_CHECKING, Any, Self

from pydantic import (
    BaseModel,
    Field,
    PrivateAttr,
    StrictBool,
    StrictFloat,
    StrictInt,
    field_validator,
    model_validator,
)

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
from parse_engine.request import check_sampling, check_stop, check_timeout
from parse_integrations.calls import Asked, ask
from parse_integrations.engines import loaded, release
from parse_integrations.messages import Message
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
CALLING = ("tools", "tool_choice", "parallel_tool_calls", "response_format")
OF_A_CALL = (*SAMPLING, "max_tokens", "stop", "timeout", "tool_format", *CALLING, *ALGORITHM)
OF_THE_ENGINE = ("logits_processors", "draft_form", "prompt")


def check_known(owner: str, given: Iterable[str]) -> None:
    """Refuse settings that a call does not know, in the names of the adapter.

    Parameters
    ----------
    owner : str
        The name of the class.
    given : iterable of str
        Names of settings.
    """
    for name in given:
        if name in (*WORDING, *LOADING, "draft_model"):
            raise InvalidRequestError(
                f"{name} cannot change from call to call.",
                f"Make another {owner}; loaded models are shared.",
            )
        if name not in (*OF_A_CALL, *OF_THE_ENGINE):
            raise InvalidRequestError(
                f"A call has no setting {name!r}.", f"The settings are: {', '.join(OF_A_CALL)}."
            )


def check_engine(engine: Any) -> None:
    """Refuse what is no engine."""
    from parse_engine import Engine

    if not isinstance(engine, Engine):
        raise InvalidRequestError(
            f"engine is of the type {type(engine).__name__}.",
            "Give an Engine, as Engine.from_pretrained or Engine.demo return it.",
        )


class PairSettings(BaseModel):
    """Fields of a chat model that is made of two; see ChatParse and ParseLLM.

    Numbers and switches are strict, as they are for a single call: True is no number, and no text
    is one.
    """

    _models: set[str] = PrivateAttr(default_factory=set)  # that single calls named

    model: str | None = None
    draft_model: str | None = None
    engine: Any = Field(default=None, exclude=True, repr=False)

    verdict: VerdictRule | None = None
    threshold: StrictFloat | None = None
    accept_rule: AcceptRule | None = None
    cut_at: CutRule | StrictInt | None = None
    calibration: dict[str, Any] | None = None
    max_prefixes: StrictInt | None = None
    judge_layout: JudgeLayout | None = None
    verify_order: VerifyOrder | None = None
    labels: tuple[str, str] | None = None
    brief: str | None = None
    question: str | None = None
    signals: StrictBool | None = None
    max_draft_tokens: StrictInt | None = None
    mode: Mode | None = None

    temperature: StrictFloat | None = None
    top_p: StrictFloat | None = None
    top_k: StrictInt | None = None
    seed: StrictInt | None = None
    max_tokens: StrictInt | None = None
    stop: list[str] | None = None
    timeout: StrictFloat | None = None
    tool_format: str | ToolFormat | None = None

    dtype: str | None = None
    device_map: Any = None
    quantization_config: Any = None
    revision: str | None = None
    local_files_only: StrictBool | None = None
    attn_implementation: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    trust_remote_code: StrictBool | None = None
    draft_dtype: str | None = None
    draft_device_map: Any = None
    draft_quantization_config: Any = None
    draft_revision: str | None = None
    draft_local_files_only: StrictBool | None = None
    draft_attn_implementation: str | None = None
    draft_chat_template_kwargs: dict[str, Any] | None = None
    draft_trust_remote_code: StrictBool | None = None

    @field_validator("model", "draft_model", mode="before")
    @classmethod
    def _path_as_text(cls, value: Any) -> Any:
        return str(value) if isinstance(value, PathLike) else value

    @field_validator("calibration", mode="before")
    @classmethod
    def _calibration_as_values(cls, value: Any) -> Any:
        """Keep what a file says and not its path, so that copies and caches see the same."""
        return value if value is None else read_calibration(value).as_dict()

    @field_validator("stop", mode="before")
    @classmethod
    def _one_stop(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

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
        if self.engine is not None:
            check_engine(self.engine)
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
        check_timeout(self.timeout)
        return self

    def _set(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the fields of these names that are set."""
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}

    def _engine(self, model: str | None = None) -> Engine:
        """Return the engine, loading the models where they are not loaded."""
        if self.engine is None:
            if model is not None:
                self._models.add(model)
            return loaded(
                model or str(self.model), self.draft_model, self._set(LOADING), self._set(WORDING)
            )
        engine: Engine = self.engine
        if model not in (None, engine.target.name):
            raise InvalidRequestError(
                f"model is {model!r}, but the engine has loaded {engine.target.name}.",
                f"Make {type(self).__name__} with model=... and draft_model=... to change models "
                "by call.",
            )
        return engine

    def _ready_engine(self) -> Engine:
        """Load the models; raise the error that says why the target cannot judge if it has to."""
        engine = self._engine()
        if self.mode in (None, "parse") and self.engine is None:
            _ = engine.ability
        return engine

    def close(self) -> None:
        """Let go of the models; memory is free once no call and no engine of yours uses them.

        The next call loads them again. An engine that you made yourself stays as it is.
        """
        if self.engine is None:
            for model in (str(self.model), *self._models):
                release(model, self.draft_model, self._set(LOADING), self._set(WORDING))

    def _asked(
        self,
        engine: Engine,
        messages: Sequence[Message],
        given: Mapping[str, Any],
        write: Callable[[Sequence[Message]], str] | None = None,
    ) -> Asked:
        """Make a call ready: the settings of this model, and over them those of the call.

        Parameters
        ----------
        engine : Engine
            Who answers.
        messages : sequence of dict
            Role and content, as ``ask`` takes them.
        given : mapping
            Settings of the call by the names of the fields, tools, and options of the engine;
            what is None is unset.
        write : callable, optional
            As ``ask`` takes it.
        """
        check_known(type(self).__name__, given)
        kwargs = {name: value for name, value in given.items() if value is not None}
        if "max_tokens" in kwargs:
            check_count("max_tokens", kwargs["max_tokens"])
        options = self._set((*ALGORITHM, *SAMPLING, "stop"))
        if self.engine is None:
            options.setdefault("mode", "parse")
        options["max_new_tokens"] = kwargs.pop("max_tokens", self.max_tokens)
        options["timeout"] = kwargs.pop("timeout", self.timeout)
        calling = {name: kwargs.pop(name, None) for name in CALLING}
        form = check_format(kwargs.pop("tool_format", self.tool_format))
        options.update(kwargs)
        return ask(engine, messages, options, tool_format=form, write=write, **calling)

    def __getstate__(self) -> dict[Any, Any]:
        if self.engine is not None:
            raise InvalidRequestError(
                f"A {type(self).__name__} made from an engine cannot be pickled: the engine holds "
                "the models.",
                "Make it with model=... and draft_model=...; they are loaded where it is used.",
            )
        return super().__getstate__()

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Copy the settings; loaded models are shared, and so is the limit of their rate."""
        shared = {id(value): value for value in (self.engine, getattr(self, "rate_limiter", None))}
        return super().__deepcopy__({**(memo or {}), **shared})
