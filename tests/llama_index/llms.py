"""LLMs on tiny networks whose drafts are dictated and accepted: their answers are known."""

from __future__ import annotations

from typing import Any

from parse_integrations.llama_index import ParseLLM
from tests import engines

LINES = "One line.\nAnother line.\n"


def saying(text: str, template: str = "qwen2.5", **settings: Any) -> ParseLLM:
    """Return an LLM that answers with a text, as long as the limits allow it."""
    return ParseLLM(engine=engines.saying(text, template), **settings)


def replying(*texts: str, **settings: Any) -> tuple[ParseLLM, list[str]]:
    """Return an LLM that answers with one text after the other, and the prompts it gets."""
    engine, prompts = engines.replying(*texts)
    return ParseLLM(engine=engine, **settings), prompts


def undecided(threshold: float = 1.0, **settings: Any) -> ParseLLM:
    """Return an LLM of two real tiny models; at threshold 1 the target writes all."""
    return ParseLLM(engine=engines.undecided(threshold), **settings)
