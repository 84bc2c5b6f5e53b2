"""What a run leaves on disk: what was measured, and one line an answer, so that it can go on later.

``manifest.json`` says what is measured. A folder holds one measurement: a run with other models,
tasks or settings is refused. ``results.jsonl`` grows by one line an item and method, and a line is
on disk before the next answer begins. Both carry a checksum of what was written, for figures are
of that and nothing else.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from parse_engine.errors import InvalidRequestError

Row = dict[str, Any]
Key = tuple[str, str, str]  # task, item, method
MANIFEST, RESULTS, REPORT, LOCK = "manifest.json", "results.jsonl", "report.html", ".lock"
CHECKSUM = "crc32"
SHOWN = 120  # characters of a difference in a message


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
            found = read_manifest(path)
            by, ours = found.get("command"), plain.get("command")
            if by != ours:
                raise InvalidRequestError(
                    f"{str(self.folder)!r} holds another measurement: one by {by}, not {ours}.",
                    "Choose another folder.",
                )
            differ = [
                name for name in sorted({*found, *plain}) if found.get(name) != plain.get(name)
            ]
            if differ:
                listed = "; ".join(
                    _change(name, found.get(name), plain.get(name)) for name in differ
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
        partial.write_text(sealed(plain, indent=2), encoding="utf-8")
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
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for name in (MANIFEST, RESULTS, REPORT):
                if (self.folder / name).is_dir():
                    raise IsADirectoryError(f"its {name} is a folder")
            lock = FileLock(self.folder / LOCK)
            lock.acquire(timeout=0)
        except Timeout as error:
            raise InvalidRequestError(
                f"Another run writes to {str(self.folder)!r}.",
                "Wait until it is done, or choose another folder.",
            ) from error
        except OSError as error:
            raise InvalidRequestError(
                f"Results cannot be written to {str(self.folder)!r}: {error}.",
                "Give a folder that can be written to; it is made where it is missing.",
            ) from error
        try:
            yield
        finally:
            lock.release()

    def add(self, row: Mapping[str, Any]) -> None:
        """Write a row; it is on disk when this returns."""
        with (self.folder / RESULTS).open("a", encoding="utf-8") as out:
            out.write(sealed(row))
            out.flush()
            os.fsync(out.fileno())

    def rows(self) -> dict[Key, Row]:
        """Return the rows, the newest of each item and method; not one that was torn off.

        Raises
        ------
        InvalidRequestError
            If a line is damaged.
        """
        path = self.folder / RESULTS
        try:
            text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        except OSError as error:
            raise InvalidRequestError(
                f"{path} cannot be read: {error}.", "Choose another folder."
            ) from error
        rows = {}
        for number, line in enumerate(text[: text.rfind("\n") + 1].split("\n")[:-1], 1):
            try:
                row = opened(line)
                rows[key_of(row)] = row
            except (ValueError, RecursionError) as error:
                raise InvalidRequestError(
                    f"{path}, line {number} is damaged: {error}.",
                    "Take the line out: what it held is measured again.",
                ) from error
        return rows

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
        return read_manifest(path)

    def write(self, name: str, text: str) -> Path:
        """Write what was made of the rows; return where it lies."""
        path = self.folder / name
        try:
            # names of files may hold what is no text
            path.write_text(text, encoding="utf-8", errors="replace")
        except OSError as error:
            raise InvalidRequestError(
                f"{str(path)!r} cannot be written: {error}.",
                "Take away what lies there, and give the command again.",
            ) from error
        return path

    def _drop_torn_line(self) -> None:
        """Cut off a last line that was not written to its end: its answer is asked for again."""
        path = self.folder / RESULTS
        if not path.exists():
            return
        os.truncate(path, path.read_bytes().rfind(b"\n") + 1)


def read_manifest(path: Path) -> dict[str, Any]:
    """Read what is measured from its file."""
    try:
        return opened(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidRequestError(
            f"{path} cannot be read: {error}.", "Choose another folder."
        ) from error


def sealed(values: Mapping[str, Any], indent: int | None = None) -> str:
    """Return names and values as JSON with their checksum."""
    return json.dumps({**values, CHECKSUM: _checksum(values)}, indent=indent) + "\n"


def opened(text: str) -> dict[str, Any]:
    """Return what ``sealed`` made a text of.

    Raises
    ------
    ValueError
        If it made none such.
    """
    values = json.loads(text)
    if not isinstance(values, dict):
        raise ValueError("it is no JSON object")
    if values.pop(CHECKSUM, None) != _checksum(values):
        raise ValueError("it was changed after it was written")
    return values


def _checksum(values: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(values).encode())


def _change(name: str, before: Any, now: Any) -> str:
    """Say what differs, where it is short enough to be seen."""
    shown = f"{name} was {before!r} and is {now!r}"
    return shown if len(shown) <= SHOWN else f"{name} differs"
