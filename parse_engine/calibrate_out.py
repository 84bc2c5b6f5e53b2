"""Whether a calibration can be written to a place, before hours are spent on what goes there."""

from __future__ import annotations

import json
import os
from pathlib import Path

from parse_engine.errors import InvalidRequestError


def check_out(path: Path, rows: Path | None) -> None:
    """Refuse a place where no file can be written, before hours are spent on what goes there."""
    if rows == path:
        raise InvalidRequestError(f"--rows is {str(rows)!r}, as --out is.", "Give it a folder.")
    try:
        there = next(one for one in (path, *path.absolute().parents) if one.exists())
        fits = there.is_file() if there == path else there.is_dir()
    except OSError:  # a name that is too long
        fits = False
    if not path.name or not fits or not os.access(there, os.W_OK):
        raise InvalidRequestError(
            f"The calibration cannot be written to {str(path)!r}.",
            "Give the path of a file, in a folder that you may write to.",
        )
    if there == path and path.stat().st_size and not is_calibration(path):
        raise InvalidRequestError(
            f"{str(path)!r} is there already, and is no calibration.", "Give another path."
        )


def is_calibration(path: Path) -> bool:
    """Whether a file looks like what an earlier calibrate wrote, which a new one may replace."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and {"format", "bound", "binding"} <= found.keys()
