"""Chat models on tiny networks whose drafts are dictated and accepted: their answers are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from parse_engine import Engine, ParseConfig
from parse_engine.backends.model import Model
from parse_integrations.langchain import ChatParse
from tests.scripted import scripted
from tests.tiny_models import tiny_model

LINES = "One line.\nAnother line.\n"


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


def saying(text: str, template: str = "qwen2.5", **settings: Any) -> ChatParse:
    """Return a chat model that answers with a text, as long as the limits allow it."""
    model = tiny_model(template=template)
    engine = Engine(model, scripted(model, text), ParseConfig(threshold=0.0))
    return ChatParse(engine=engine, **settings)


def replying(*texts: str, **settings: Any) -> tuple[ChatParse, list[str]]:
    """Return a chat model that answers with one text after the other, and the prompts it gets."""
    model = tiny_model()
    draft = Replies("replies", model.network, model.tokenizer, texts=list(texts))
    llm = ChatParse(engine=Engine(model, draft, ParseConfig(threshold=0.0)), **settings)
    return llm, draft.prompts


def undecided(threshold: float = 1.0, **settings: Any) -> ChatParse:
    """Return a chat model of two real tiny models; at threshold 1 the target writes all."""
    engine = Engine(tiny_model(seed=0), tiny_model(seed=1), ParseConfig(threshold=threshold))
    return ChatParse(engine=engine, **settings)
