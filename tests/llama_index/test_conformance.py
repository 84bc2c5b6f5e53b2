"""ParseLLM passes the conformance suite, whoever writes the answer; others are judged rightly."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from llama_index.core.base.llms.types import CompletionResponse, LLMMetadata
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.llms.custom import CustomLLM
from pydantic import PrivateAttr

from parse_integrations.llama_index import ParseLLM
from parse_integrations.llama_index.conformance import LLMConformance, endpoints
from parse_integrations.llama_index.conformance.endpoints import EndpointTests
from parse_integrations.llama_index.conformance.recording import Runs
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


class _Plain(CustomLLM):
    """Answers at once, and blocks whoever waits for it."""

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(model_name="plain")

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **given: Any) -> CompletionResponse:
        return CompletionResponse(text="Red.")

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **given: Any) -> Any:
        return (CompletionResponse(text=text, delta=text) for text in ("Red.",))


class _Leaky(_Plain):
    """Goes on in a pool after its stream was closed."""

    _pool: ThreadPoolExecutor = PrivateAttr(default_factory=lambda: ThreadPoolExecutor(1))
    _end: threading.Event = PrivateAttr(default_factory=threading.Event)

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **given: Any) -> Any:
        written: queue.Queue[str] = queue.Queue()

        def write() -> None:
            written.put("Red.")
            self._end.wait()

        self._pool.submit(write)
        return (CompletionResponse(text=written.get(), delta="Red.") for _ in range(1))


class _Hurried(EndpointTests):
    patience = 0.1


@pytest.mark.parametrize("ran_before", [False, True])
def test_work_that_goes_on_in_a_pool_is_found(ran_before: bool) -> None:
    llm = _Leaky()
    if ran_before:  # the thread is old then
        llm._pool.submit(int).result()
    try:
        with pytest.raises(AssertionError, match="goes on in ThreadPoolExecutor"):
            _Hurried().test_closing_a_stream_stops_the_model(llm, Runs(llm, "?"), "stream_complete")
        llm._end.set()
        _Hurried().test_closing_a_stream_stops_the_model(llm, Runs(llm, "?"), "stream_complete")
    finally:
        llm._end.set()
        llm._pool.shutdown()


def test_an_instant_answer_is_not_called_blocking(monkeypatch: pytest.MonkeyPatch) -> None:
    for instant, outcome, said in (
        (60.0, pytest.skip.Exception, "too soon to tell"),
        (0.0, AssertionError, "the event loop was blocked: 1 responses in"),
    ):
        monkeypatch.setattr(endpoints, "INSTANT", instant)
        with pytest.raises(outcome, match=said):
            EndpointTests().test_the_event_loop_is_not_blocked(_Plain(), "acomplete")


def test_importing_the_suite_loads_no_models_and_no_torch() -> None:
    code = (
        "import sys, parse_integrations.llama_index.conformance\n"
        "assert not {'torch', 'transformers', 'llguidance'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
