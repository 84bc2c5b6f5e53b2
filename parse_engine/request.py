"""What a caller may ask for, checked before any model runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parse_engine.config import check_count, is_number
from parse_engine.errors import InvalidRequestError
from parse_engine.types import DraftForm, Message

if TYPE_CHECKING:
    from transformers import GenerationConfig

    from parse_engine.backends.model import Model, Prompt

# Makes what restricts the writing of one model in one call, given the model and the number of
# tokens before the answer. Each is called as transformers' LogitsProcessor is: all token ids so far
# and the scores of the next token, shapes [1, length] and [1, vocabulary]; returns scores.
LogitsProcessors = Callable[["Model", int], Sequence[Callable[[Any, Any], Any]]]

ROLES = ("system", "developer", "user", "assistant", "tool")
DEFAULT_MAX_NEW_TOKENS = 2048
SMALLEST_TEMPERATURE = 1e-4  # below it logits overflow, and a sample is the best token anyway


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    Parameters
    ----------
    temperature : float
        0 is greedy.
    top_p, top_k, min_p : float, int, float
        Restrictions of the distribution; 1, 0 and 0 are none.
    seed : int, optional
        Makes the same call give the same answer.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None


@dataclass(frozen=True)
class Request:
    """A checked call: the conversation and how to write the answer."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]
    max_new_tokens: int
    sampling: Sampling
    stop: tuple[str, ...]
    logits_processors: LogitsProcessors | None = None
    prompt: str | None = None
    draft_form: DraftForm | None = None
    timeout: float | None = None

    def for_draft(self) -> DraftForm:
        """Return what the draft model is asked."""
        return self.draft_form or DraftForm(self.messages, self.tools)

    def render(self, model: Model, *, drafts: bool) -> Prompt:
        """Return what a model reads to draft or to answer: a prompt, or messages in its form."""
        if self.prompt is not None and not (drafts and self.draft_form):
            return model.take(self.prompt)
        asked = self.for_draft() if drafts else self
        return model.render(asked.messages, asked.tools)

    def processors(self, model: Model, start: int) -> list[Callable[[Any, Any], Any]]:
        """Return new processors for a model whose answer starts after ``start`` tokens."""
        make = self.logits_processors
        return [] if make is None else list(make(model, start))


def check_request(
    messages: Sequence[Message],
    defaults: GenerationConfig | None,
    *,
    tools: Sequence[Mapping[str, Any]] | None,
    max_new_tokens: int | None,
    temperature: float | None,
    top_p: float | None,
    top_k: int | None,
    seed: int | None,
    stop: str | Sequence[str] | None,
    logits_processors: LogitsProcessors | None = None,
    prompt: str | None = None,
    draft_form: DraftForm | None = None,
    timeout: float | None = None,
) -> Request:
    """Check the arguments of a call and fill what is unset from the target's generation config.

    Raises
    ------
    InvalidRequestError
        If an argument has a wrong type or value.
    """
    if max_new_tokens is not None:
        check_count("max_new_tokens", max_new_tokens)
    limit = max_new_tokens or getattr(defaults, "max_new_tokens", None) or DEFAULT_MAX_NEW_TOKENS
    return Request(
        messages=check_messages(messages),
        tools=check_tools(tools),
        max_new_tokens=limit,
        sampling=check_sampling(defaults, temperature, top_p, top_k, seed),
        stop=check_stop(stop),
        logits_processors=check_processors(logits_processors),
        prompt=check_prompt(prompt, tools),
        draft_form=check_draft_form(draft_form),
        timeout=check_timeout(timeout),
    )


def check_timeout(timeout: float | None) -> float | None:
    """Refuse what is no number of seconds above 0."""
    if timeout is not None and not (is_number(timeout) and timeout > 0):
        raise InvalidRequestError(f"timeout is {timeout!r}.", "Give seconds above 0.")
    return timeout


def check_draft_form(form: DraftForm | None) -> DraftForm | None:
    """Refuse a draft form whose conversation no chat template can take."""
    if form is None:
        return None
    if not isinstance(form, DraftForm):
        raise InvalidRequestError(f"draft_form is {_short(form)}.", "Give a DraftForm, or None.")
    return DraftForm(check_messages(form.messages), check_tools(form.tools), form.rewrite)


def check_messages(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Refuse what a chat template cannot take: no list of dicts with known roles and content."""
    example = '[{"role": "user", "content": "Hello"}]'
    if isinstance(messages, str | Mapping) or not isinstance(messages, Iterable):
        raise InvalidRequestError(
            f"messages is {_short(messages)}.", f"Give a list of messages: {example}."
        )
    checked = tuple(messages)
    if not checked:
        raise InvalidRequestError("messages is empty.", f"Give at least one message: {example}.")
    for index, message in enumerate(checked):
        where = f"messages[{index}]"
        if not isinstance(message, Mapping):
            raise InvalidRequestError(f"{where} is {_short(message)}.", f"Give dicts: {example}.")
        role = message.get("role")
        if not isinstance(role, str) or role not in ROLES:
            raise InvalidRequestError(
                f"{where} has the role {role!r}.", f"Choose one of: {', '.join(ROLES)}."
            )
    return tuple(
        {**message, "content": _content(f"messages[{index}]", message)}
        for index, message in enumerate(checked)
    )


def _content(where: str, message: Mapping[str, Any]) -> str | None:
    """Return the content as templates take it, text parts joined."""
    content, calls = message.get("content"), message.get("tool_calls")
    if isinstance(content, list | tuple):
        if not content or not all(
            isinstance(part, Mapping)
            and part.get("type") == "text"
            and isinstance(part.get("text"), str)
            for part in content
        ):
            raise InvalidRequestError(
                f"{where} has the content {_short(content)}.",
                'Only text is supported: a string, or parts {"type": "text", "text": "..."}.',
            )
        content = "".join(part["text"] for part in content)
    if calls:
        try:
            json.dumps(calls)
        except (TypeError, ValueError) as error:
            raise InvalidRequestError(
                f"{where} has tool_calls that are not JSON: {error}.", "Give plain JSON values."
            ) from error
    if content is None and calls:
        return None
    if not isinstance(content, str):
        raise InvalidRequestError(f"{where} has the content {_short(content)}.", "Give a text.")
    check_text(where, content)
    return content


def check_text(where: str, text: str) -> None:
    """Refuse a text that is not Unicode: half a surrogate pair, as a wrong decoding leaves it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"{where} has half a character at offset {error.start}.",
            "Decode the text as what it is, or with errors='replace'.",
        ) from error


def check_tools(tools: Sequence[Mapping[str, Any]] | None) -> tuple[Mapping[str, Any], ...]:
    """Refuse tools that are not JSON schemas as chat templates take them."""
    if tools is None:
        return ()
    if isinstance(tools, str | Mapping) or not isinstance(tools, Sequence):
        raise InvalidRequestError(f"tools is {_short(tools)}.", "Give a list of tool schemas.")
    for index, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise InvalidRequestError(
                f"tools[{index}] is {_short(tool)}.",
                'Give JSON schemas: {"type": "function", "function": {"name": ...}}.',
            )
    return tuple(tools)


def check_stop(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """Refuse stop strings that are empty or no strings."""
    if stop is None:
        return ()
    strings = (stop,) if isinstance(stop, str) else stop
    if not isinstance(strings, Sequence) or not all(isinstance(s, str) and s for s in strings):
        raise InvalidRequestError(f"stop is {_short(stop)}.", "Give a list of non-empty strings.")
    return tuple(strings)


def check_prompt(prompt: str | None, tools: Sequence[Mapping[str, Any]] | None) -> str | None:
    """Refuse a prompt that is no text, or that stands beside tools: only templates write them."""
    if prompt is None:
        return None
    if not isinstance(prompt, str) or not prompt:
        raise InvalidRequestError(f"prompt is {_short(prompt)}.", "Give a text.")
    if tools:
        raise InvalidRequestError(
            "There are tools beside a prompt.", "Describe them in the prompt, or give messages."
        )
    check_text("prompt", prompt)
    return prompt


def check_processors(processors: LogitsProcessors | None) -> LogitsProcessors | None:
    """Refuse what cannot be called to make logits processors."""
    if processors is not None and not callable(processors):
        raise InvalidRequestError(
            f"logits_processors is {_short(processors)}.",
            "Give a function of a model and the number of tokens before its answer that returns "
            "a list of new processors: each model of each call needs its own.",
        )
    return processors


def check_sampling(
    defaults: GenerationConfig | None,
    temperature: float | None,
    top_p: float | None,
    top_k: int | None,
    seed: int | None,
) -> Sampling:
    """Check the sampling settings; unset ones are those of the target's generation config."""
    if temperature is not None and (not is_number(temperature) or not 0 <= temperature <= 100):
        raise InvalidRequestError(
            f"temperature is {temperature!r}.", "Give a number from 0 (greedy), usually up to 2."
        )
    if top_p is not None and (not is_number(top_p) or not 0 < top_p <= 1):
        raise InvalidRequestError(
            f"top_p is {top_p!r}.", "Give a number above 0 and not above 1 (no restriction)."
        )
    if top_k is not None and (not isinstance(top_k, int) or isinstance(top_k, bool) or top_k < 0):
        raise InvalidRequestError(
            f"top_k is {top_k!r}.", "Give a whole number; 0 is no restriction."
        )
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool) or seed < 0):
        raise InvalidRequestError(f"seed is {seed!r}.", "Give a whole number from 0.")
    if seed is not None and seed >= 1 << 63:
        raise InvalidRequestError(f"seed is {seed!r}.", "Give a number below 2**63.")

    def default(name: str, fallback: float) -> Any:
        value = getattr(defaults, name, None)
        return fallback if value is None else value

    if temperature is None:
        temperature = default("temperature", 1.0) if default("do_sample", False) else 0.0
    if temperature < SMALLEST_TEMPERATURE:
        temperature = 0.0
    return Sampling(
        temperature=float(temperature),
        top_p=default("top_p", 1.0) if top_p is None else top_p,
        top_k=default("top_k", 50) if top_k is None else top_k,
        min_p=default("min_p", 0.0),
        seed=seed,
    )


def _short(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 80 else text[:77] + '...'}"
