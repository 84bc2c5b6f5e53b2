"""Stored, copied and sent elsewhere."""

from __future__ import annotations

import copy
import json
import pickle

from llama_index.core.llms.llm import LLM


class LastingTests:
    """What LlamaIndex's storage and workers need of an LLM."""

    question = "Name three colors."

    def test_it_has_a_name_of_its_own(self, llm: LLM) -> None:
        """Under which it is stored."""
        assert llm.class_name() not in ("", "base_component", "custom_llm")

    def test_settings_survive_a_dict(self, llm: LLM) -> None:
        """to_dict gives plain JSON without credentials, and from_dict the same model."""
        stored = json.loads(json.dumps(llm.to_dict()))
        again = type(llm).from_dict(stored)
        assert again.to_dict() == llm.to_dict()
        assert again.complete(self.question).text == llm.complete(self.question).text

    def test_it_can_be_pickled(self, llm: LLM) -> None:
        """Processes that ingest documents get a copy."""
        again = pickle.loads(pickle.dumps(llm))
        assert again.to_dict() == llm.to_dict()
        assert again.complete(self.question).text == llm.complete(self.question).text

    def test_it_can_be_copied(self, llm: LLM) -> None:
        """And the copy answers the same."""
        again = copy.deepcopy(llm)
        assert again.complete(self.question).text == llm.complete(self.question).text
