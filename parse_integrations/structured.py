"""Constrained decoding: what draft and target may write, as a grammar for llguidance."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from parse_engine import InvalidRequestError, UnsupportedModelError
from parse_integrations.tool_formats import FORMATS, Tool, ToolFormat, tool_name

if TYPE_CHECKING:
    import torch

    from parse_engine.backends.model import Model

logger = logging.getLogger("parse_integrations")

# JSON as models write it on one line; free white space would let a weak model write no end of it.
LAYOUT = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "lenient": True,
}


@dataclass(frozen=True)
class Grammar:
    """What an answer must be: calls of these tools, or JSON of this schema, or either.

    Parameters
    ----------
    tools : sequence of dict
        What can be called; empty for no calls.
    tool_format : ToolFormat
        How calls are written.
    several : bool
        Whether there may be more than one call.
    schema : mapping, optional
        The JSON schema of an answer that is no call.
    """

    tools: Sequence[Tool] = ()
    tool_format: ToolFormat = FORMATS["hermes"]
    several: bool = True
    schema: Mapping[str, Any] | None = None

    def lark(self, mark: Callable[[str], str]) -> str:
        """Return the grammar in llguidance's form of Lark.

        Parameters
        ----------
        mark : callable
            Returns how a text is named in the grammar: a token, or a literal.
        """
        rules: list[str] = []
        starts: list[str] = []
        if self.tools:
            starts.append("calls")
            rules += self._call_rules(mark)
        if self.schema is not None:
            starts.append("answer")
            rules.append(f"answer: %json {_schema(self.schema)}")
        return "\n".join([f"start: {' | '.join(starts)}", *rules])

    def _call_rules(self, mark: Callable[[str], str]) -> list[str]:
        form = self.tool_format
        before, after = (" ".join(map(mark, part)) for part in (form.opening, form.closing))
        more = form.between is not None and self.several
        repeated = f"({mark(form.between)} {{}})*" if more and form.between else ""
        if form.listed:
            items = f"call {repeated.format('call')}"
            rules = [f'calls: {before} "[" {items} "]" {after}']
        else:
            rules = [f"calls: whole {repeated.format('whole')}", f"whole: {before} call {after}"]
        names = [f"call_{number}" for number in range(len(self.tools))]
        rules.append(f"call: {' | '.join(names)}")
        for rule, tool in zip(names, self.tools, strict=True):
            opening = f'{{"name": {_text(tool_name(tool))}, "{form.arguments}": '
            parameters = tool.get("function", tool).get("parameters")
            given = parameters or {"type": "object", "properties": {}}
            rules.append(f'{rule}: {_text(opening)} args_{rule} "}}"')
            rules.append(f"args_{rule}: %json {_schema(given)}")
        return rules

    def processors(self, model: Model, start: int) -> list[Constraint]:
        """Return the logits processor of one model in one call, as the engine wants it.

        Raises
        ------
        InvalidRequestError
            If a schema cannot be turned into a grammar.
        UnsupportedModelError
            If the model's tokenizer is of a kind that the grammar cannot work with.
        """
        llguidance = _library()
        tokenizer = _tokenizer(model)

        def mark(text: str) -> str:
            ids = model.encode(text)
            if len(ids) == 1 and tokenizer.is_special_token(ids[0]):
                return f"<[{ids[0]}]>"
            return _text(text)

        matcher = llguidance.LLMatcher(tokenizer, self.lark(mark), log_level=0)
        if matcher.is_error():
            raise InvalidRequestError(
                f"The schema cannot be enforced: {matcher.get_error()}",
                "Use a simpler JSON schema, or tool_choice='auto' or no response_format.",
            )
        for warning in matcher.get_grammar_warnings():
            logger.warning("A part of the schema is not enforced: %s", warning)
        return [Constraint(matcher, model, start)]


class Constraint:
    """A logits processor that allows only what a grammar allows.

    Where the prompt has opened the model's thinking, the grammar begins after its end.

    Parameters
    ----------
    matcher : llguidance.LLMatcher
        The grammar, at its beginning.
    model : Model
        Whose tokens are written.
    start : int
        The number of tokens before the answer.
    """

    def __init__(self, matcher: Any, model: Model, start: int) -> None:
        self._matcher = matcher
        self._tokenizer = model.tokenizer
        self._read = start  # ids that the matcher has seen, or need not see
        self._thinking: bool | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Set the scores of all tokens that the grammar does not allow next to minus infinity."""
        import torch

        ids = input_ids[0].tolist()
        if self._thinking is None:
            before = self._tokenizer.decode(ids[max(0, self._read - 8) : self._read])
            self._thinking = str(before).rstrip().endswith("<think>")
        while self._thinking and self._read < len(ids):
            self._read += 1
            window = ids[max(0, self._read - 8) : self._read]
            self._thinking = "</think>" not in str(self._tokenizer.decode(window))
        if self._thinking:
            return scores
        new = ids[self._read :]
        self._read = len(ids)
        if new and not self._matcher.consume_tokens(new):
            raise RuntimeError(f"the text left the grammar: {self._matcher.get_error()}")
        packed = torch.frombuffer(bytearray(self._matcher.compute_bitmask()), dtype=torch.uint8)
        bits = (packed[:, None] >> torch.arange(8, dtype=torch.uint8)) & 1
        allowed = torch.zeros(scores.shape[-1], dtype=torch.bool)
        shown = bits.flatten()[: scores.shape[-1]].bool()
        allowed[: len(shown)] = shown
        return scores.masked_fill(~allowed.to(scores.device), float("-inf"))


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _schema(schema: Mapping[str, Any]) -> str:
    """Return a schema as JSON text, with objects closed against names that they do not declare."""
    closed = dict(schema) if _combines(schema) else _closed(schema)
    assert isinstance(closed, dict)
    return json.dumps({**closed, "x-guidance": LAYOUT})


# Keywords whose values are data, or names that may be spelled like keywords.
DATA = ("const", "default", "enum", "examples")
NAMED = ("$defs", "definitions", "properties", "patternProperties", "dependentSchemas")


def _combines(schema: Any) -> bool:
    """Whether objects are put together from parts, none of which may be closed by itself."""
    if isinstance(schema, list):
        return any(map(_combines, schema))
    if not isinstance(schema, Mapping):
        return False
    parts = [name for name in ("allOf", "anyOf", "oneOf", "$ref", "if") if name in schema]
    if parts and ("properties" in schema or len(schema.get("allOf", ())) > 1):
        return True
    return any(
        any(map(_combines, value.values()))
        if name in NAMED and isinstance(value, Mapping)
        else _combines(value)
        for name, value in schema.items()
        if name not in DATA
    )


def _closed(value: Any) -> Any:
    if isinstance(value, list):
        return [_closed(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    inner: dict[str, Any] = {}
    for key, each in value.items():
        if key in DATA:
            inner[key] = each
        elif key in NAMED and isinstance(each, Mapping):
            inner[key] = {name: _closed(part) for name, part in each.items()}
        else:
            inner[key] = _closed(each)
    if isinstance(value.get("properties"), Mapping) and "additionalProperties" not in value:
        inner["additionalProperties"] = False
    return inner


def ask_for(schema: Mapping[str, Any]) -> dict[str, str]:
    """Return the system message that tells a model which JSON is wanted."""
    text = json.dumps(schema, ensure_ascii=False)
    return {"role": "system", "content": f"Answer with JSON only, in this schema:\n{text}"}


def _library() -> Any:
    try:
        import llguidance
        import llguidance.hf
    except ImportError as error:
        raise InvalidRequestError(
            "Enforced tool calls and structured output need llguidance, which is not installed.",
            "pip install llguidance",
        ) from error
    return llguidance


_tokenizers: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
_lock = threading.Lock()


def _tokenizer(model: Model) -> Any:
    """Return a model's vocabulary as llguidance wants it; made once, for it takes a second."""
    with _lock:
        if model.tokenizer not in _tokenizers:
            try:
                made = _library().hf.from_tokenizer(
                    model.tokenizer, eos_token=sorted(model.eos_ids)
                )
            except ValueError as error:
                raise UnsupportedModelError(
                    f"The output of {model.name} cannot be constrained: {error}.",
                    "Use a model with a fast tokenizer (tokenizer.json).",
                ) from error
            _tokenizers[model.tokenizer] = made
        return _tokenizers[model.tokenizer]


JSON_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def response_schema(response_format: Any) -> Mapping[str, Any] | None:
    """Return the JSON schema that a response format asks for; None for plain text.

    Parameters
    ----------
    response_format : mapping or None
        As OpenAI has it: ``{"type": "json_schema", "json_schema": {"schema": ...}}``,
        ``{"type": "json_object"}`` or ``{"type": "text"}``; or a JSON schema itself.
    """
    if response_format is None:
        return None
    kind = response_format.get("type") if isinstance(response_format, Mapping) else None
    schema: Any = None
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    if kind == "json_schema":
        inner = response_format.get("json_schema", response_format)
        schema = inner.get("schema") if isinstance(inner, Mapping) else None
    elif kind is None or all(each in JSON_TYPES for each in _listed(kind)):
        schema = response_format
    if not isinstance(schema, Mapping) or not schema:
        raise InvalidRequestError(
            f"response_format is {response_format!r}.",
            'Give {"type": "json_schema", "json_schema": {"name": ..., "schema": {...}}}, '
            '{"type": "json_object"}, {"type": "text"}, or a JSON schema itself.',
        )
    return schema
