"""Engines on tiny networks whose drafts are dictated and accepted: their answers are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from parse_engine import Engine, ParseConfig
from parse_engine.backends.model import Model
from tests.scripted import scripted
from tests.tiny_models import tiny_model


@dataclass(frozen=True, eq=False)
class Replies(Model):
    """Writes one text after the other, one a call."""

    texts: list[str] = field(default_factory=list)
    prompts: list[str] = field(default_factory=list)

    def write(
        self, ids: Sequence[int], *, limit: int, on_token: Callable[[int], bool], **settings: Any
    ) -> tuple[int, ...]:
        self.prompts.append(str(self.tokenizer.decode(list(ids))))
        script = (*self.encode(self.texts.pop(0)), min(self.eos_ids))
        written: list[int] = []
        for token in script[:limit]:
            written.append(token)
            if on_token(token):
                break
        return tuple(written)


class Broken(Model):
    """Fails when it has to write."""

    def write(self, *args: Any, **settings: Any) -> tuple[int, ...]:
        raise RuntimeError("out of memory")


def saying(text: str, template: str = "qwen2.5") -> Engine:
    """Return an engine that answers with a text, as long as the limits allow it."""
    model = tiny_model(template=template)
    return Engine(model, scripted(model, text), ParseConfig(threshold=0.0))


def replying(*texts: str) -> tuple[Engine, list[str]]:
    """Return an engine that answers with one text after the other, and the prompts it gets."""
    model = tiny_model()
    draft = Replies("replies", model.network, model.tokenizer, texts=list(texts))
    return Engine(model, draft, ParseConfig(threshold=0.0)), draft.prompts


def undecided(threshold: float = 1.0) -> Engine:
    """Return an engine of two real tiny models; at threshold 1 the target writes all."""
    return Engine(tiny_model(seed=0), tiny_model(seed=1), ParseConfig(threshold=threshold))


def broken() -> Engine:
    """Return an engine whose only writer fails."""
    model = tiny_model()
    failing = Broken("broken", model.network, model.tokenizer)
    return Engine(model, failing, ParseConfig(mode="draft"))
