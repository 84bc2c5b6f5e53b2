"""Structured output: what is bound to the model, and how its answer is read."""

from __future__ import annotations

from operator import itemgetter
from typing import Any, ClassVar, Literal

from langchain_core.exceptions import OutputParserException
from langchain_core.language_models import LanguageModelInput
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
from langchain_core.output_parsers.openai_tools import (
    JsonOutputKeyToolsParser,
    PydanticToolsParser,
)
from langchain_core.outputs import ChatGeneration, Generation
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.utils.pydantic import is_basemodel_subclass

from parse_engine import InvalidRequestError
from parse_integrations.langchain.schemas import answer_schema, openai_tool

Method = Literal["json_schema", "function_calling", "json_mode"]


class _Whole:
    """Refuses answers that were cut off; LangChain's parsers complete them to something."""

    calls: ClassVar[bool] = False  # whether the answer is a tool call

    def parse_result(self, result: list[Generation], *, partial: bool = False) -> Any:
        message = result[0].message if isinstance(result[0], ChatGeneration) else None
        if message is not None and not partial:
            broken = getattr(message, "invalid_tool_calls", [])
            called = getattr(message, "tool_calls", [])
            cut_off = message.response_metadata.get("finish_reason") == "length"
            if broken or cut_off or (self.calls and not called):
                written = broken[0]["args"] if broken else message.text
                problem = "is not what was asked for"
                if cut_off:
                    problem = "was cut off. Give more max_tokens"
                raise OutputParserException(
                    f"The answer {problem}. It was: {written!r}",
                    llm_output=str(written),
                )
        return super().parse_result(result, partial=partial)  # type: ignore[misc]


class _WholeJson(_Whole, JsonOutputParser):
    pass


class _WholePydantic(_Whole, PydanticOutputParser):  # type: ignore[type-arg]
    pass


class _WholeTool(_Whole, JsonOutputKeyToolsParser):
    calls: ClassVar[bool] = True


class _WholePydanticTool(_Whole, PydanticToolsParser):
    calls: ClassVar[bool] = True


def structured(
    llm: BaseChatModel,
    schema: dict[str, Any] | type | None,
    *,
    method: Method,
    include_raw: bool,
    strict: bool | None,
    settings: dict[str, Any],
) -> Runnable[LanguageModelInput, Any]:
    """Return a model whose answers are objects of a schema; see ``with_structured_output``."""
    if method not in ("json_schema", "function_calling", "json_mode"):
        raise InvalidRequestError(
            f"method is {method!r}.", "Choose json_schema, function_calling or json_mode."
        )
    if schema is None and method != "json_mode":
        raise InvalidRequestError("schema is missing.", "Give one, or method='json_mode'.")
    if "response_format" in settings:
        raise InvalidRequestError(
            "There is a response_format beside a schema.",
            "Leave it out, or bind it to the model, which returns the answer as text.",
        )
    pydantic = isinstance(schema, type) and is_basemodel_subclass(schema)
    noted = {"kwargs": {"method": method, "strict": strict}, "schema": schema}
    note = {"ls_structured_output_format": noted} if schema is not None else {}
    parser: Any
    if method == "function_calling":
        assert schema is not None
        name = openai_tool(schema)["function"]["name"]
        bound: Any = llm.bind_tools(
            [schema], tool_choice=name, strict=strict, parallel_tool_calls=False, **note, **settings
        )
        if pydantic:
            parser = _WholePydanticTool(tools=[schema], first_tool_only=True)  # type: ignore[list-item]
        else:
            parser = _WholeTool(key_name=name, first_tool_only=True)
    else:
        wanted: dict[str, Any] = {"type": "json_object"}
        if method == "json_schema":
            assert schema is not None
            json_schema = answer_schema(schema, strict)
            named = {"name": json_schema.get("title", "answer"), "schema": json_schema}
            wanted = {"type": "json_schema", "json_schema": named}
        bound = llm.bind(response_format=wanted, **note, **settings)
        parser = _WholeJson()
        if pydantic:
            parser = _WholePydantic(pydantic_object=schema)  # type: ignore[arg-type]
    if not include_raw:
        chain: Runnable[LanguageModelInput, Any] = bound | parser
        return chain
    parsed = RunnablePassthrough.assign(
        parsed=itemgetter("raw") | parser, parsing_error=lambda _: None
    )
    failed = RunnablePassthrough.assign(parsed=lambda _: None)
    return RunnableMap(raw=bound) | parsed.with_fallbacks([failed], exception_key="parsing_error")
