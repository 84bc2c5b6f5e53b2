"""The settings of ParseLLM, what it says of itself, and how it is stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from llama_index.core.base.llms.generic_utils import messages_to_prompt
from llama_index.core.base.llms.types import ChatMessage, LLMMetadata, TextBlock
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import default_completion_to_prompt
from pydantic import ConfigDict, StrictBool, StrictInt, field_serializer, model_validator

from parse_engine import InvalidRequestError
from parse_engine.config import check_count
from parse_engine.options import WORDING
from parse_engine.request import DEFAULT_MAX_NEW_TOKENS, check_text
from parse_integrations import engines
from parse_integrations.settings import LOADING, PairSettings


class ParseMetadata(LLMMetadata):
    """What ParseLLM says of itself.

    Parameters
    ----------
    draft_model_name : str, optional
        The model that drafts; ``model_name`` is the target.
    """

    draft_model_name: str | None = None


class ParseLLMSettings(PairSettings, FunctionCallingLLM):
    """The fields of ParseLLM; see there."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    context_window: StrictInt | None = None
    verification_events: StrictBool = True

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex stores the class."""
        return "parse_llm"

    @model_validator(mode="after")
    def _check_window(self) -> Self:
        if self.context_window is not None:
            check_count("context_window", self.context_window)
        return self

    @field_serializer("quantization_config", "draft_quantization_config")
    def _as_dict(self, value: Any) -> Any:
        return value.to_dict() if hasattr(value, "to_dict") else value

    @property
    def metadata(self) -> ParseMetadata:
        """What LlamaIndex asks before it makes prompts; reads a configuration, but no weights."""
        window = self.context_window
        if window is None and self.engine is not None:
            window = int(self.engine.target.context_window)
        if window is None:
            window = engines.context_window(*self._pair())
        return ParseMetadata(
            context_window=window,
            # prompts may fill what this leaves: not all of a small model's context goes to answers
            num_output=self.max_tokens or min(DEFAULT_MAX_NEW_TOKENS, window // 4),
            **self._of_itself(),
        )

    def to_payload(self) -> dict[str, Any]:
        """Return what events of LlamaIndex show of the model; nothing is read or loaded for it."""
        known = self.context_window is not None or self.engine is not None
        if known or engines.known_window(*self._pair()) is not None:
            return super().to_payload()
        return {"class_name": self.class_name(), **self._of_itself()}

    def _of_itself(self) -> dict[str, Any]:
        name, draft_name = self.model, self.draft_model
        if self.engine is not None:
            name = self.engine.target.name
            draft_name = self.engine.draft.name if self.engine.draft else None
        return {
            "model_name": name,
            "draft_model_name": draft_name,
            # who formats completions wants them to be used
            "is_chat_model": self.completion_to_prompt is default_completion_to_prompt,
            "is_function_calling_model": True,
        }

    def _pair(self) -> tuple[str, str | None, dict[str, Any], dict[str, Any]]:
        return str(self.model), self.draft_model, self._set(LOADING), self._set(WORDING)

    @property
    def tokenizer(self) -> Callable[[str], list[int]]:
        """The target's, for ``Settings.tokenizer``; the models are loaded when it is used."""
        return self._token_ids

    def _token_ids(self, text: str) -> list[int]:
        check_text("text", text)
        return list(self._engine().target.encode(text))

    def load(self) -> Self:
        """Load the models now and not at the first call; what is loaded is used again.

        Returns
        -------
        ParseLLM
            The same.
        """
        self._ready_engine()
        return self

    def __getstate__(self) -> dict[Any, Any]:
        # LlamaIndex takes what cannot be pickled off the object itself, and not off a copy
        state = super(ParseLLMSettings, self.model_copy()).__getstate__()
        for name, value in self.__dict__.items():
            # without it the copy would answer otherwise; who listens here need not listen there
            if name not in state["__dict__"] and name not in ("callback_manager", "rate_limiter"):
                raise InvalidRequestError(
                    f"A ParseLLM with this {name} cannot be pickled: {value!r}.",
                    "Give a function or class that stands in a module, and no lambda.",
                )
        return state

    @classmethod
    def from_dict(cls, data: dict[str, Any], **kwargs: Any) -> Self:
        """Make an LLM of what ``to_dict`` returned.

        Parameters
        ----------
        data : dict
            The settings.
        **kwargs
            Over those: ``engine`` where it was made from one, which no dict can hold.
        """
        if {**data, **kwargs}.get("model") is None and kwargs.get("engine") is None:
            raise InvalidRequestError(
                f"The dict names no model: model is {data.get('model')!r}.",
                "If the LLM was made from an engine, give it again: "
                "ParseLLM.from_dict(data, engine=engine).",
            )
        made: Self = super().from_dict(data, **kwargs)
        return made

    def _extend_messages(self, messages: list[ChatMessage]) -> list[ChatMessage]:
        """Add the system prompt, and wrap the question as completions are wrapped."""
        messages = list(super()._extend_messages(messages))
        if self.query_wrapper_prompt is not None and messages:
            last = messages[-1]
            wrapped = self.query_wrapper_prompt.format(query_str=last.content or "")
            messages[-1] = last.model_copy(update={"blocks": [TextBlock(text=wrapped)]})
        return messages

    @property
    def _writes_messages(self) -> bool:
        """Whether a function of the user's makes prompts of messages."""
        return self.messages_to_prompt is not messages_to_prompt
