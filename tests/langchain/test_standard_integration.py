"""LangChain's own integration tests for chat models, on the real pair."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from langchain_tests.integration_tests import ChatModelIntegrationTests

from parse_engine.demo import ensure_demo_pair
from parse_integrations.langchain import ChatParse

pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.fixture(autouse=True, scope="module")
def all_cores() -> None:
    torch.set_num_threads(2)


class TestChatParseOnTheRealPair(ChatModelIntegrationTests):
    @property
    def chat_model_class(self) -> type[ChatParse]:
        return ChatParse

    @property
    def chat_model_params(self) -> dict[str, Any]:
        pair = ensure_demo_pair()
        return {
            "model": str(pair.target),
            "draft_model": str(pair.draft),
            "local_files_only": True,
            "temperature": 0,
            "max_tokens": 100,  # the small models repeat a call until their limit
        }

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supports_model_override(self) -> bool:
        return True

    @property
    def model_override_value(self) -> str:
        return str(ensure_demo_pair().draft)

    @property
    def enable_vcr_tests(self) -> bool:
        return False  # there are no requests to record
