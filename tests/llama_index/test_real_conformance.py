"""ParseLLM passes the conformance suite on the real pair."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from parse_engine.demo import ensure_demo_pair
from parse_integrations.llama_index import ParseLLM
from parse_integrations.llama_index.conformance import LLMConformance

pytestmark = [pytest.mark.real, pytest.mark.slow]


class TestRealPair(LLMConformance):
    question = "Name three colors, nothing else."

    @pytest.fixture(scope="class")
    @classmethod
    def llm(cls) -> Iterator[ParseLLM]:
        torch.set_num_threads(2)
        pair = ensure_demo_pair()
        made = ParseLLM(
            model=str(pair.target),
            draft_model=str(pair.draft),
            local_files_only=True,
            threshold=0.6,
            temperature=0,
            max_tokens=32,
        )
        yield made
        made.close()
