"""Files of questions, one JSON object a line."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from parse_engine.bench.forms import FORMS, HINT, Item, form_of, read_item
from parse_engine.errors import InvalidRequestError
from parse_engine.request import check_text
from parse_engine.strict_json import strict_loads

MAGIC = b"\x1f\x8b"  # what gzip begins with


@dataclass(frozen=True)
class Task:
    """A named list of questions."""

    name: str
    items: tuple[Item, ...]

    @property
    def digest(self) -> str:
        """What tells it from tasks with other questions or other answers to check by."""
        listed = json.dumps([[item.id, item.source] for item in self.items])
        return hashlib.sha256(listed.encode()).hexdigest()[:16]

    def sample(self, limit: int | None, seed: int, skip: int = 0) -> Task:
        """Return so many items, drawn by a seed, in the order of the file; all if None.

        The first ``skip`` that the seed draws are left out: with the same seed, those that another
        measurement has with this as its limit.

        Raises
        ------
        InvalidRequestError
            If no item is left.
        """
        drawn = random.Random(seed).sample(range(len(self.items)), len(self.items))
        chosen = sorted(drawn[skip:] if limit is None else drawn[skip : skip + limit])
        if not chosen:
            raise InvalidRequestError(
                f"Task {self.name} has {len(self.items)} items, and {skip} are left out.",
                "Give a smaller --skip.",
            )
        return replace(self, items=tuple(self.items[index] for index in chosen))


def load_tasks(spec: str, data: Path | None = None) -> tuple[Task, ...]:
    """Read the tasks that are named in a list with commas.

    Parameters
    ----------
    spec : str
        Each is a path, ``NAME=PATH``, or the name of one of the publishers' forms, whose file is
        then looked for in ``data``.
    data : Path, optional
        A folder of files.

    Raises
    ------
    InvalidRequestError
        If a file is missing, or has a line that is in none of the forms.
    """
    tasks = tuple(load_task(word.strip(), data) for word in spec.split(",") if word.strip())
    names = [task.name for task in tasks]
    if not names or len(set(names)) < len(names):
        raise InvalidRequestError(
            f"tasks is {spec!r}.",
            "Name at least one, with commas between them, and give each its own name: NAME=PATH.",
        )
    return tasks


def load_task(spec: str, data: Path | None = None) -> Task:
    """Read one task: a path, ``NAME=PATH``, or a publisher's form whose file lies in ``data``."""
    name, equals, given = spec.partition("=")
    if not equals or Path(spec).is_file():
        name, equals, given = "", "", spec
    if not given.strip():
        raise InvalidRequestError(f"Task {name!r} has no file.", f"Give its path: {name}=PATH.")
    path = _find(spec, data) if given in FORMS and not equals else Path(given)
    lines = read_lines(path)
    form = form_of(lines[0][1])
    if name in FORMS and form not in (name, None):
        raise InvalidRequestError(
            f"{path} is named {name}, and is in the form of {form}.", "Choose another name."
        )
    items = tuple(read_item(form, path, number, line) for number, line in lines)
    first: dict[str, int] = {}
    for (number, _), item in zip(lines, items, strict=True):
        if (other := first.setdefault(item.id, number)) != number:
            raise InvalidRequestError(
                f"{path}, line {number}: its id {item.id!r} is that of line {other} too.",
                "Give each item an id of its own; that of a line without one is its number.",
            )
    return Task(
        name or (form if form in FORMS else Path(path.name.removesuffix(".gz")).stem), items
    )


def read_lines(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """Return the objects of a JSONL file with the numbers of their lines."""
    try:
        text = _unpacked(path).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InvalidRequestError(
            f"The task file {str(path)!r} cannot be read: {error}.",
            f"Give the path of a JSONL file, or one of {', '.join(FORMS)} with --data FOLDER.",
        ) from error
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = strict_loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidRequestError(
                f"{path}, line {number}: no readable JSON: {error}.", HINT
            ) from error
        if not isinstance(value, dict):
            raise InvalidRequestError(f"{path}, line {number}: no JSON object.", HINT)
        check_text(f"{path}, line {number}", json.dumps(value, ensure_ascii=False))
        given = {name: one for name, one in value.items() if one is not None}
        found.append((number, given))
    if not found:
        raise InvalidRequestError(f"The task file {str(path)!r} has no items.", HINT)
    return found


def _find(name: str, data: Path | None) -> Path:
    """Return the one file of a folder that is in a publisher's form."""
    if data is None:
        raise InvalidRequestError(
            f"Task {name!r} needs its file, and none is fetched.",
            f"Give {name}=PATH to the publisher's file, or the folder that it lies in: --data DIR.",
        )
    paths = sorted(path for path in data.glob("*.jsonl*") if path.suffix in (".jsonl", ".gz"))
    found = [path for path in paths if _first_form(path) == name]
    if len(found) != 1:
        listed = ", ".join(path.name for path in found) or "none"
        raise InvalidRequestError(
            f"{str(data)!r} should have one file in the form of {name}, and has: {listed}.",
            f"Say which: {name}=PATH.",
        )
    return found[0]


def _first_form(path: Path) -> str | None:
    try:
        return form_of(read_lines(path)[0][1])
    except InvalidRequestError:
        return None


def _unpacked(path: Path) -> bytes:
    found = path.read_bytes()
    packed = found.startswith(MAGIC) or path.suffix == ".gz"
    return gzip.decompress(found) if packed else found
