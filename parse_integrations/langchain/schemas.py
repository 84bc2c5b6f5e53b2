"""JSON schemas of tools and answers, kept whole where LangChain's conversion loses a part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from pydantic import BaseModel

# What a dict has that is a JSON schema and no description of a function.
KEYWORDS = ("type", "properties", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "items")


def openai_tool(tool: Any, strict: bool | None = None) -> dict[str, Any]:
    """Return the schema of a tool as chat templates take it.

    LangChain writes references out, and a reference inside of what it refers to as anything at all:
    recursive arguments keep their references here.
    """
    converted = convert_to_openai_tool(tool, strict=strict)
    model = tool.args_schema if isinstance(tool, BaseTool) else tool
    given = _pydantic_schema(model)
    if given is None or not recursive(given):
        return converted
    arguments = {key: value for key, value in given.items() if key not in ("title", "description")}
    return {**converted, "function": {**converted["function"], "parameters": arguments}}


def answer_schema(schema: Any, strict: bool | None) -> dict[str, Any]:
    """Return the schema of an answer: a JSON schema as it is, anything else converted."""
    if isinstance(schema, Mapping) and any(keyword in schema for keyword in KEYWORDS):
        return dict(schema)
    given = _pydantic_schema(schema)
    if given is not None and (recursive(given) or given.get("type") != "object"):
        return given
    return convert_to_json_schema(schema, strict=strict)


def recursive(schema: Mapping[str, Any]) -> bool:
    """Whether a definition of a schema refers to itself, directly or by others."""
    definitions = schema.get("$defs", {})
    reaches = {name: _references(body) for name, body in definitions.items()}
    for _ in definitions:
        reaches = {
            name: found.union(*(reaches.get(each, set()) for each in found))
            for name, found in reaches.items()
        }
    return any(name in found for name, found in reaches.items())


def _references(value: Any) -> set[str]:
    if isinstance(value, list):
        return {name for each in value for name in _references(each)}
    if not isinstance(value, Mapping):
        return set()
    own = {str(value["$ref"]).rpartition("/")[2]} if "$ref" in value else set()
    return own | {name for each in value.values() for name in _references(each)}


def _pydantic_schema(model: Any) -> dict[str, Any] | None:
    if isinstance(model, type) and issubclass(model, BaseModel):
        return model.model_json_schema()
    return None
