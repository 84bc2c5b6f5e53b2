"""Structured output: objects of a schema, whatever the models would write."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import aclosing, closing
from typing import Any, Generic, TypeVar, cast

from llama_index.core.base.llms.types import ChatMessage, ChatResponse
from llama_index.core.instrumentation.events.llm import (
    LLMStructuredPredictEndEvent,
    LLMStructuredPredictStartEvent,
)
from llama_index.core.program.utils import FlexibleModel, create_flexible_model
from llama_index.core.prompts import PromptTemplate
from llama_index.core.types import PydanticProgramMode
from llama_index_instrumentation import get_dispatcher
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from parse_engine import InvalidRequestError
from parse_integrations.errors import AnswerError
from parse_integrations.llama_index.settings import ParseLLMSettings

Model = TypeVar("Model", bound=BaseModel)
# LlamaIndex's programs take these for their own calls, and so do not pass them on
NOT_PASSED = ("tool_required", "tool_choice", "allow_parallel_tool_calls")

dispatcher = get_dispatcher(__name__)


class StructuredParse(ParseLLMSettings):
    """The structured methods of ParseLLM: draft and target can write nothing but the schema.

    Another ``pydantic_program_mode`` than the default is LlamaIndex's own way, by tool calls or by
    asking for JSON.
    """

    def structured_predict(
        self,
        output_cls: type[Model],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> Model:
        """Return an object of a pydantic model.

        Parameters
        ----------
        output_cls : type of BaseModel
            What is wanted.
        prompt : PromptTemplate
            The question.
        llm_kwargs : dict, optional
            Settings of the call, such as ``max_tokens``.
        **prompt_args
            Variables of the prompt.

        Raises
        ------
        AnswerError
            If the answer was cut off, or a validator of the model refuses it.
        """
        if not self._constrains(output_cls):
            made = super().structured_predict(output_cls, prompt, llm_kwargs, **prompt_args)
            return cast(Model, made)
        _started(output_cls, prompt, prompt_args)
        messages = self._question(prompt, prompt_args)
        found = whole(output_cls, self.chat(messages, **_settings(output_cls, llm_kwargs)))
        dispatcher.event(LLMStructuredPredictEndEvent(output=found))
        return found

    async def astructured_predict(
        self,
        output_cls: type[Model],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> Model:
        """Return an object of a pydantic model; see ``structured_predict``."""
        if not self._constrains(output_cls):
            made = await super().astructured_predict(output_cls, prompt, llm_kwargs, **prompt_args)
            return cast(Model, made)
        _started(output_cls, prompt, prompt_args)
        messages = self._question(prompt, prompt_args)
        found = whole(output_cls, await self.achat(messages, **_settings(output_cls, llm_kwargs)))
        dispatcher.event(LLMStructuredPredictEndEvent(output=found))
        return found

    def _structured_stream_call(
        self,
        output_cls: type[Model],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> Generator[Any, None, None]:
        # the body of stream_structured_predict, which sends the events itself
        if not self._constrains(output_cls):
            return super()._structured_stream_call(output_cls, prompt, llm_kwargs, **prompt_args)
        messages = self._question(prompt, prompt_args)
        responses = self.stream_chat(messages, **_settings(output_cls, llm_kwargs))
        return _objects(output_cls, responses)

    async def _structured_astream_call(
        self,
        output_cls: type[Model],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> AsyncGenerator[Any, None]:
        if not self._constrains(output_cls):
            return await super()._structured_astream_call(
                output_cls, prompt, llm_kwargs, **prompt_args
            )
        messages = self._question(prompt, prompt_args)
        responses = await self.astream_chat(messages, **_settings(output_cls, llm_kwargs))
        return _aobjects(output_cls, responses)

    def _constrains(self, output_cls: Any) -> bool:
        if not isinstance(output_cls, type) or not issubclass(output_cls, BaseModel):
            raise InvalidRequestError(
                f"output_cls is {output_cls!r}.", "Give a class of yours that inherits BaseModel."
            )
        return self.pydantic_program_mode == PydanticProgramMode.DEFAULT

    def _question(self, prompt: PromptTemplate, given: Mapping[str, Any]) -> list[ChatMessage]:
        return self._extend_messages(prompt.format_messages(llm=self, **given))


def _started(output_cls: type[Model], prompt: PromptTemplate, given: dict[str, Any]) -> None:
    dispatcher.event(
        LLMStructuredPredictStartEvent(output_cls=output_cls, template=prompt, template_args=given)
    )


def _settings(output_cls: type[Model], given: Mapping[str, Any] | None) -> dict[str, Any]:
    if "response_format" in (given or {}):
        raise InvalidRequestError(
            "llm_kwargs has a response_format beside output_cls.",
            "Leave it out, or give it to chat, which returns the answer as text.",
        )
    schema = {"name": output_cls.__name__, "schema": output_cls.model_json_schema()}
    passed = {name: value for name, value in (given or {}).items() if name not in NOT_PASSED}
    return {"response_format": {"type": "json_schema", "json_schema": schema}, **passed}


def whole(output_cls: type[Model], response: ChatResponse) -> Model:
    """Return the object that an answer is; refuse half of one."""
    text = response.message.content or ""
    try:
        return output_cls.model_validate_json(text)
    except ValidationError as error:
        if (response.raw or {}).get("finish_reason") == "length":
            problem, hint = "The answer was cut off", "Give more max_tokens."
        else:
            problem, hint = f"The answer is no {output_cls.__name__}", f"It says: {error}"
        raise AnswerError(f"{problem}: {text!r}.", hint) from error


class _Growing(Generic[Model]):
    """The object that a streamed answer becomes.

    It is of a class where any field may be missing, until it can be of the one that is wanted.
    """

    def __init__(self, output_cls: type[Model]) -> None:
        self._wanted = output_cls
        self._flexible = create_flexible_model(output_cls)
        self._shown: Model | FlexibleModel | None = None

    def grown(self, response: ChatResponse) -> list[Model | FlexibleModel]:
        """Return what there is of the object, if that is more than before."""
        try:
            data = from_json(response.message.content or "", allow_partial="trailing-strings")
        except ValueError:
            return []  # nothing yet
        if not data or not isinstance(data, dict):
            return []
        return self._new(self._made(data))

    def _made(self, data: dict[str, Any]) -> Model | FlexibleModel:
        try:
            return self._wanted.model_validate(data)
        except ValidationError:
            return self._flexible(**data)

    def whole(self, response: ChatResponse) -> list[Model | FlexibleModel]:
        """Return the object that the answer is, if it was not shown; refuse half of one."""
        return self._new(whole(self._wanted, response))

    def _new(self, found: Model | FlexibleModel) -> list[Model | FlexibleModel]:
        if found == self._shown:
            return []
        self._shown = found
        return [found]


def _objects(
    output_cls: type[Model], responses: Generator[ChatResponse, None, None]
) -> Generator[Model | FlexibleModel, None, None]:
    growing = _Growing(output_cls)
    with closing(responses):
        for response in responses:
            yield from growing.grown(response)
    yield from growing.whole(response)


async def _aobjects(
    output_cls: type[Model], responses: AsyncGenerator[ChatResponse, None]
) -> AsyncGenerator[Model | FlexibleModel, None]:
    growing = _Growing(output_cls)
    async with aclosing(responses):
        async for response in responses:
            for found in growing.grown(response):
                yield found
    for found in growing.whole(response):
        yield found
