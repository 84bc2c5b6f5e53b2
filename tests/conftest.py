from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from parse_engine.backends.model import Model

torch.set_num_threads(1)  # tiny tensors: more threads only wait for each other
# Ctrl-C is turned off for what a shell runs in the background, children too: tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def forward_log(model: Model) -> Iterator[list[int]]:
    """Log how many token positions go through each forward of a model's network."""
    log: list[int] = []
    handle = model.network.register_forward_pre_hook(
        lambda module, args, kwargs: log.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    try:
        yield log
    finally:
        handle.remove()


@pytest.fixture
def llama_index_globals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test set LlamaIndex's Settings without leaving them to the next."""
    core = pytest.importorskip("llama_index.core")
    for name in vars(core.Settings):
        monkeypatch.setattr(core.Settings, name, None)
    monkeypatch.setattr(core, "global_tokenizer", None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--humaneval", help="HumanEval items, one JSON object a line")
