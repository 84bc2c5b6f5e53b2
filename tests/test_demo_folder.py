"""Where the demo pair is kept: the folder, its room, and one process at a time in it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from parse_engine.demo import (
    DRAFT,
    OTHER_DRAFT,
    TARGET,
    demo_folder,
    ensure,
    ensure_demo_gguf,
    only_process,
    peak_bytes,
)
from parse_engine.demo.fetch import Fetch
from parse_engine.errors import DemoDownloadError
from tests.demo_source import Source, never, start_python

CONTENT = bytes(range(256)) * 20
Reaction = Callable[[], object]


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path / "source", CONTENT)


@pytest.mark.parametrize(
    ("parse_dir", "xdg", "expected"),
    [
        ("/chosen/demo", "/cache", "/chosen/demo"),
        ("~/chosen", "/cache", "/home/me/chosen"),
        ("", "/cache", "/cache/parse-llm/demo"),
        ("", "", "/home/me/.cache/parse-llm/demo"),
        ("", "relative", "/home/me/.cache/parse-llm/demo"),
    ],
)
def test_demo_folder(
    monkeypatch: pytest.MonkeyPatch, parse_dir: str, xdg: str, expected: str
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("PARSE_DEMO_DIR", parse_dir)
    monkeypatch.setenv("XDG_CACHE_HOME", xdg)
    assert demo_folder() == Path(expected)


def test_demo_folder_without_any_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("PARSE_DEMO_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert demo_folder() == Path("/home/me/.cache/parse-llm/demo")


def test_a_folder_that_cannot_be_made_is_named(source: Source, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DemoDownloadError, match="cannot be kept") as caught:
        fetch_only(source, tmp_path / "file" / "demo")
    assert "PARSE_DEMO_DIR" in caught.value.hint


def test_too_small_a_disk_is_refused_before_anything_is_fetched(
    source: Source, tmp_path: Path
) -> None:
    huge = replace(source.model, gguf_bytes=10**18)
    with pytest.raises(DemoDownloadError, match=r"need 2000000000\.0 GB .* there are \d+\.\d GB"):
        ensure((huge,), tmp_path, converted=False, gguf=True, progress=False, fetch=never)


def test_peak_of_disk_use() -> None:
    pair = [TARGET, DRAFT]
    whole_pair = TARGET.folder_bytes + DRAFT.folder_bytes
    assert peak_bytes(pair, converted=True, gguf=False) == whole_pair + DRAFT.gguf_bytes
    assert peak_bytes(pair, converted=False, gguf=True) == 2 * TARGET.gguf_bytes
    assert peak_bytes([], converted=True, gguf=True) == 0


def test_what_an_interruption_left_counts_as_room(source: Source, tmp_path: Path) -> None:
    """A disk that had room for the whole at first has room for the rest."""
    huge = replace(source.model, gguf_bytes=10**13)
    parts = tmp_path / "parts" / "tiny"
    parts.mkdir(parents=True)
    with (parts / f"{huge.packages[0]}.whl").open("wb") as sparse:
        sparse.truncate(10**12)
    with pytest.raises(DemoDownloadError, match=r"need 19000\.0 GB"):
        ensure((huge,), tmp_path, converted=False, gguf=True, progress=False, fetch=never)


# one process at a time


def fetch_only(source: Source, folder: Path, fetch: Fetch | None = None) -> None:
    ensure(
        (source.model,),
        folder,
        converted=False,
        gguf=True,
        progress=False,
        fetch=fetch or source.fetch,
    )


def test_gguf_alone_is_kept_and_nothing_else(source: Source, tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    fetch_only(source, folder)
    assert {path.name for path in folder.iterdir()} <= {"tiny.gguf", ".lock"}
    assert (folder / "tiny.gguf").read_bytes() == CONTENT
    fetch_only(source, folder, never)


@pytest.fixture
def when_waiting() -> Iterator[Callable[[Reaction], None]]:
    """Call a function as soon as somebody says that they wait for another process."""

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "another process is at work" in record.getMessage():
                for reaction in reactions:
                    reaction()

    reactions: list[Reaction] = []
    logger, listener = logging.getLogger("parse_engine"), Listener()
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(listener)
    yield reactions.append
    logger.removeHandler(listener)
    logger.setLevel(level)


def test_the_second_waits_and_uses_what_the_first_made(
    source: Source, tmp_path: Path, when_waiting: Callable[[Reaction], None]
) -> None:
    folder = tmp_path / "demo"
    folder.mkdir()
    waiting = threading.Event()
    when_waiting(waiting.set)
    second = threading.Thread(target=fetch_only, args=(source, folder, source.fetch))
    with only_process(folder, progress=False):
        second.start()
        assert waiting.wait(60)
        (folder / "tiny.gguf").write_bytes(CONTENT)
    second.join(60)
    assert not second.is_alive()
    assert not source.fetched


HOLDER = """
import sys
from pathlib import Path
from parse_engine.demo import only_process

with only_process(Path(sys.argv[1]), progress=False):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_lock_holds_between_processes_and_dies_with_them(
    tmp_path: Path,
    when_waiting: Callable[[Reaction], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    with start_python(HOLDER, tmp_path) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        when_waiting(holder.kill)
        with only_process(tmp_path, progress=True):
            assert holder.wait(60) != 0
    assert f"at work in {tmp_path}; waiting" in capsys.readouterr().err


def test_a_file_that_is_there_is_not_fetched(tmp_path: Path) -> None:
    with (tmp_path / f"{OTHER_DRAFT.name}.gguf").open("wb") as sparse:
        sparse.truncate(OTHER_DRAFT.gguf_bytes)
    assert ensure_demo_gguf(OTHER_DRAFT, tmp_path) == tmp_path / f"{OTHER_DRAFT.name}.gguf"
