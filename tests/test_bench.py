"""The measurements run, and programs are checked within limits."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from parse_engine import Engine, bench
from parse_engine.bench import code, common, memory, sandbox, verify
from tests.scripted import scripted
from tests.tiny_models import tiny_model

TASK = code.CodeTask(
    "add", 'def add(a, b):\n    """Add."""\n', "def check(f):\n    assert f(1, 2) == 3\n", "add"
)


@pytest.mark.parametrize(
    ("answer", "passed"),
    [
        ("```python\ndef add(a, b):\n    return a + b\n```", True),
        ("Sure:\n```\ndef add(a, b):\n    return a + b\n```\nDone.", True),
        ("def add(a, b):\n    return a + b", True),
        ("    return a + b\n", True),
        ("```python\ndef add(a, b):\n    return a + b", True),
        ("```python\ndef add(a, b):\n    return a - b\n```", False),
        ("def add(a, b:\n", False),
        ("", False),
    ],
)
def test_answers_are_checked_by_running_them(answer: str, passed: bool) -> None:
    assert (TASK.fault(answer) is None) is passed


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("while True: pass", "more than 1 s|signal"),
        ("x = 'x' * (1 << 31)", "^MemoryError$"),
        ("raise SystemExit(3)", "^SystemExit: 3$"),
        ("import os\nos._exit(0)", "before its last line"),
        ("import os\nos.abort()", "signal 6"),
        ("f = open('x', 'w'); f.write('y'); f.close()", "^PermissionError: open is not allowed"),
        ("import nowhere", "^ModuleNotFoundError: No module named 'nowhere'$"),
        ("assert 1 + 1 == 3, 'so much'", "^AssertionError: so much$"),
        ("a b", "^SyntaxError: invalid syntax$"),
        ("raise ValueError('\\ud800' + 'x' * 10**6)", "^ValueError: .{1,300}$"),
        ("import sys\nprint('x' * 10**6, file=sys.stderr)\nprint('y' * 10**6)\n1 / 0", "^ZeroDiv"),
    ],
)
def test_programs_that_fail_say_why(
    program: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "SECONDS", 1)
    assert re.search(said, sandbox.failure(program) or "")


def test_what_a_program_prints_is_no_failure() -> None:
    assert (
        sandbox.failure("import sys\nprint('x' * 10**6)\nprint('y' * 10**6, file=sys.stderr)")
        is None
    )


def test_programs_see_nothing_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "x")
    program = "import os\nassert 'SECRET' not in os.environ\nassert not os.listdir('.')"
    assert sandbox.failure(program) is None
    assert not Path("x").exists()


def test_every_measure_of_verification_yields_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tiny_model()
    engine = Engine(target, scripted(target, "The answer is that.\n"))
    monkeypatch.setattr(verify, "open_engine", lambda parser, args: engine)
    measures = [name for name in verify.MEASURES if name != "memory"]
    assert bench.main(["verify", "--repeat", "1", "--only", *measures]) == 0
    shown = capsys.readouterr().out
    for name in measures:
        assert verify.MEASURES[name][0] in shown
    assert "transformers" in shown


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads Linux's /proc")
def test_peak_memory_counts_what_a_piece_of_work_takes() -> None:
    size = 64 << 20
    assert memory.peak_bytes(lambda: bytearray(os.urandom(1) * size)) > size // 2
    assert memory.peak_bytes(lambda: None) < size // 2


def test_alternate_takes_turns() -> None:
    order: list[str] = []
    ways = {"a": lambda: order.append("a"), "b": lambda: order.append("b")}
    seconds = common.alternate(ways, 2)
    assert order == ["a", "b", "a", "b", "a", "b"]
    assert [len(runs) for runs in seconds.values()] == [2, 2]
    assert common.ratio([2.0, 9.0, 4.0], [1.0, 3.0, 2.0]) == 2.0


def test_unknown_measurement_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["speed"]) == 2
    assert "usage" in capsys.readouterr().err
    assert bench.main([]) == 0
