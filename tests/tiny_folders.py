"""Tiny models on disk, as save_pretrained writes them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.tiny_models import tiny_model


def save_tiny(folder: Path, seed: int = 0, **tiny: Any) -> Path:
    model = tiny_model(seed=seed, **tiny)
    model.network.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    return folder


def changed_copy(
    folder: Path, place: Path, *, without: str = "", files: dict[str, bytes] | None = None
) -> Path:
    """Copy a folder without the files that match a pattern, and with other files."""
    shutil.copytree(folder, place)
    for path in place.glob(without) if without else ():
        path.unlink()
    for name, content in (files or {}).items():
        (place / name).write_bytes(content)
    return place


def edit_json(path: Path, edit: Callable[[dict[str, Any]], object]) -> Path:
    content = json.loads(path.read_text("utf-8"))
    edit(content)
    path.write_text(json.dumps(content), "utf-8")
    return path.parent


def edit_weights(folder: Path, edit: Callable[[dict[str, Any]], object]) -> Path:
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    weights = load_file(path)
    edit(weights)
    save_file(weights, path, {"format": "pt"})
    return folder
