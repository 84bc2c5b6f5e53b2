"""The notebooks run, and keep what they promise."""

from __future__ import annotations

import asyncio
import inspect
import json
from ast import PyCF_ALLOW_TOP_LEVEL_AWAIT
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import parse_engine.demo
from tests.tiny_folders import save_tiny

NOTEBOOKS = sorted((Path(__file__).parent.parent / "cookbook").glob("*.ipynb"))


def cells(path: Path) -> list[dict[str, Any]]:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = notebook["cells"]
    return found


def run(path: Path) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(cells(path)):
        if cell["cell_type"] == "code":
            source, where = "".join(cell["source"]), f"cell {number}"
            code = compile(
                source, where, "exec", flags=PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
            )
            awaited = eval(code, names)
            if inspect.iscoroutine(awaited):  # there are notebooks that await at the top
                asyncio.run(awaited)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_stripped_and_end_in_assertions(path: Path) -> None:
    code = [cell for cell in cells(path) if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in code)
    assert "assert " in "".join(code[-1]["source"])
    assert cells(path)[0]["cell_type"] == "markdown"


@pytest.mark.usefixtures("llama_index_globals")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run_on_tiny_models(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, draft = save_tiny(tmp_path / "a", seed=0), save_tiny(tmp_path / "b", seed=1)
    pair = SimpleNamespace(target=target, draft=draft)
    monkeypatch.setattr(parse_engine.demo, "ensure_demo_pair", lambda: pair)
    run(path)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.usefixtures("llama_index_globals")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run_on_the_real_pair(path: Path) -> None:
    torch.set_num_threads(2)
    run(path)
