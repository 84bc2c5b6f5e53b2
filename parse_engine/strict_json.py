"""JSON as ``json.loads`` reads it, but without names that stand there twice."""

from __future__ import annotations

import json
from typing import Any


def strict_loads(text: str) -> Any:
    """Read a JSON text.

    Raises
    ------
    ValueError
        If it is none, or an object has a name twice: of the two values the last would count.
    """
    return json.loads(text, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {twice!r} stands twice in one object")
    return made
