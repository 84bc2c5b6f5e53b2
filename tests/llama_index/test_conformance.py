"""ParseLLM passes the conformance suite, whoever writes the answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from parse_integrations.llama_index import ParseLLM
from parse_integrations.llama_index.conformance import LLMConformance
from tests import engines
from tests.tiny_folders import save_tiny


class _OnTinyModels(LLMConformance):
    threshold: float

    @pytest.fixture(scope="class")
    @classmethod
    def llm(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ParseLLM]:
        target, draft = (save_tiny(tmp_path_factory.mktemp("m"), seed=seed) for seed in (0, 1))
        made = ParseLLM(
            model=str(target),
            draft_model=str(draft),
            local_files_only=True,
            threshold=cls.threshold,
            temperature=0,
            max_tokens=80,
        )
        yield made
        made.close()

    @pytest.fixture(scope="class")
    @classmethod
    def broken_llm(cls) -> ParseLLM:
        return ParseLLM(engine=engines.broken())


class TestTargetWrites(_OnTinyModels):
    threshold = 1.0


class TestDraftIsAccepted(_OnTinyModels):
    threshold = 0.0
