"""The settings of ChatParse: checked, identified, copied and pickled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from langchain_core.language_models.base import LangSmithParams
from langchain_core.language_models.chat_models import BaseChatModel
from pydantic import ConfigDict, Field, SecretStr

from parse_engine.calibration import read_calibration
from parse_engine.options import WORDING
from parse_integrations.langchain.errors import langchain_errors
from parse_integrations.langchain.messages import PROVIDER
from parse_integrations.settings import ALGORITHM, LOADING, SAMPLING, PairSettings


class ParseSettings(PairSettings, BaseChatModel):
    """The fields of ChatParse; see there."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    streaming: bool = False
    max_retries: int | None = None
    api_key: SecretStr | None = Field(default=None, exclude=True, repr=False)

    def load(self) -> Self:
        """Load the models now and not at the first call; what is loaded is used again.

        Returns
        -------
        ChatParse
            The same, with ``profile["max_input_tokens"]`` known.
        """
        with langchain_errors():
            engine = self._ready_engine()
        if self.profile is not None:
            self.profile.setdefault("max_input_tokens", engine.target.context_window)
        return self

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
