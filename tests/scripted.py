"""Draft models that write what a test wants them to write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from parse_engine.backends.model import Model


@dataclass(frozen=True, eq=False)
class ScriptedModel(Model):
    """Writes a given text, token by token, within the limit, or raises in the middle of it."""

    script: tuple[int, ...] = ()
    error: BaseException | None = None
    seen: list[dict[str, Any]] = field(default_factory=list, repr=False)

    def write(
        self,
        ids: Sequence[int],
        *,
        limit: int,
        on_token: Callable[[int], bool],
        **settings: Any,
    ) -> tuple[int, ...]:
        self.seen.append({"ids": tuple(ids), "limit": limit, **settings})
        written: list[int] = []
        for token in self.script[:limit]:
            written.append(token)
            if on_token(token):
                break
        if self.error is not None:
            raise self.error
        return tuple(written)


def scripted(
    model: Model,
    text: str | Sequence[int],
    *,
    ends: bool = True,
    error: BaseException | None = None,
) -> ScriptedModel:
    """Make a draft model that writes ``text`` in a model's tokens, and its end of turn."""
    ids = model.encode(text) if isinstance(text, str) else tuple(text)
    eos = (min(model.eos_ids),) if ends else ()
    return ScriptedModel(
        f"scripted-{model.name}",
        model.network,
        model.tokenizer,
        model.template_kwargs,
        script=(*ids, *eos),
        error=error,
    )


def with_tokenizer(model: Model, tokenizer: Any) -> Model:
    """Return the same network under another tokenizer."""
    return replace(model, tokenizer=tokenizer)
