"""What a run leaves on disk: what was measured, and one line an answer, so that it can go on later.

``manifest.json`` says what is measured. A folder holds one measurement: a run with other models,
tasks or settings is refused. ``results.jsonl`` grows by one line an item and method, and a line is
on disk before the next answer begins.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from parse_engine.errors import InvalidRequestError

Row = dict[str, Any]
Key = tuple[str, str, str]  # task, item, method
MANIFEST, RESULTS, REPORT, LOCK = "manifest.json", "results.jsonl", "report.html", ".lock"


def key_of(row: Mapping[str, Any]) -> Key:
    """Return what a row is about."""
    return row["task"], row["item"], row["method"]


class Store:
    """The folder of one measurement.

    Parameters
    ----------
    folder : Path
        Where it lies.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, manifest: Mapping[str, Any]) -> dict[Key, Row]:
        """Begin a measurement, or go on with it; return the rows that are there already.

        Raises
        ------
        InvalidRequestError
            If the folder holds another measurement.
        """
        plain = json.loads(json.dumps(manifest))
        path, results = self.folder / MANIFEST, self.folder / RESULTS
        begun = results.exists() and results.stat().st_size > 0
        if path.exists() and begun:  # a manifest alone is of a run that was refused
            found = read_json(path)
            differ = [
                name for name in sorted({*found, *plain}) if found.get(name) != plain.get(name)
            ]
            if differ:
                listed = "; ".join(
                    f"{name} was {found.get(name)!r} and is {plain.get(name)!r}" for name in differ
                )
                raise InvalidRequestError(
                    f"{str(self.folder)!r} holds another measurement: {listed}.",
                    "Choose another folder, or give the same settings to go on with it.",
                )
            self._drop_torn_line()
            return self.rows()
        self.folder.mkdir(parents=True, exist_ok=True)
        if begun:
            raise InvalidRequestError(
                f"{str(self.folder)!r} has results and no {MANIFEST}.", "Choose another folder."
            )
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(plain, indent=2) + "\n", encoding="utf-8")
        partial.replace(path)
        return {}

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other runs out of the folder meanwhile.

        Raises
        ------
        InvalidRequestError
            If one is there.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(self.folder / LOCK, timeout=0):
                yield
        except Timeout as error:
            raise InvalidRequestError(
                f"Another run writes to {str(self.folder)!r}.",
                "Wait until it is done, or choose another folder.",
            ) from error

    def add(self, row: Mapping[str, Any]) -> None:
        """Write a row; it is on disk when this returns."""
        with (self.folder / RESULTS).open("a", encoding="utf-8") as out:
            out.write(json.dumps(row) + "\n")
            out.flush()
            os.fsync(out.fileno())

    def rows(self) -> dict[Key, Row]:
        """Return the rows, the newest of each item and method; not one that was torn off."""
        path = self.folder / RESULTS
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        rows = (json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines())
        return {key_of(row): row for row in rows}

    @property
    def manifest(self) -> dict[str, Any]:
        """What is measured here.

        Raises
        ------
        InvalidRequestError
            If nothing is.
        """
        path = self.folder / MANIFEST
        if not path.exists():
            raise InvalidRequestError(
                f"{str(self.folder)!r} holds no measurement: it has no {MANIFEST}.",
                "Give the folder that bench run wrote to.",
            )
        return read_json(path)

    def _drop_torn_line(self) -> None:
        """Cut off a last line that was not written to its end: its answer is asked for again."""
        path = self.folder / RESULTS
        if not path.exists():
            return
        os.truncate(path, path.read_bytes().rfind(b"\n") + 1)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file."""
    value = json.loads(path.read_text(encoding="utf-8"))
    assert isinstance(value, dict)
    return value
