"""Checking a written program by running it, in a process of its own, with limits."""

from __future__ import annotations

import ast
import re
import resource
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from functools import cache
from typing import Any

from parse_engine.errors import InvalidRequestError

SECONDS = 10
BYTES = 1 << 30
FENCE = re.compile(r"```[ \t]*([\w+-]*)[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL)
PYTHON = ("python", "python3", "py", "")
# A program that ends before its last line has not passed, whatever code it exits with.
PASSED = 77
# Reads the program and runs it, with writing, deleting, other processes and the network refused. It
# keeps a model's mistakes from doing harm; it is no prison for somebody who means to break out.
RUNNER = f"""
import os, sys

def guard(event, args, writes=os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
    opens = event == "open" and isinstance(args[2], int) and args[2] & writes
    changes = event.startswith("os.") and event[3:] in (
        "chmod", "chown", "exec", "fork", "forkpty", "kill", "killpg", "link", "mkdir",
        "posix_spawn", "remove", "rename", "rmdir", "spawn", "symlink", "system", "truncate",
        "utime",
    )
    if opens or changes or event.startswith(("subprocess.", "shutil.", "socket.", "pty.")):
        raise PermissionError(f"{{event}} is not allowed here")

program = compile(sys.stdin.buffer.read(), "answer", "exec")
sys.addaudithook(guard)
try:
    exec(program, {{"__name__": sys.argv[1]}})
except SystemExit:
    raise SystemExit(1)
raise SystemExit({PASSED})
"""


@dataclass(frozen=True)
class CodeTask:
    """A function to write, and the tests that it must pass (HumanEval, arXiv 2107.03374)."""

    name: str
    prompt: str
    test: str
    entry_point: str

    @classmethod
    def from_json(cls, item: dict[str, Any]) -> CodeTask:
        """Read one line of the publisher's file."""
        return cls(item["task_id"], item["prompt"], item["test"], item["entry_point"])

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The task as a conversation."""
        ask = (
            "Complete this Python function. Answer with the whole function only, in one code block."
        )
        return [{"role": "user", "content": f"{ask}\n\n```python\n{self.prompt.strip()}\n```"}]

    def passed_by(self, answer: str) -> bool:
        """Run an answer's code against the tests; what it would do as a script is left out."""
        program = f"{self.program(answer)}\n{self.test}\ncheck({self.entry_point})\n"
        return runs(program, name="answer")

    def program(self, answer: str) -> str:
        """Return the code of an answer, behind the imports that the task gave."""
        code = code_of(answer)
        given = self.prompt.split(f"def {self.entry_point}")[0]
        if f"def {self.entry_point}" not in code:
            return self.prompt + code
        return f"{given}\n{code}"


def code_of(answer: str) -> str:
    """Return the first block of Python of an answer; without a block the answer is code."""
    blocks = FENCE.findall(answer)
    python = [code for tag, code in blocks if tag.lower() in PYTHON]
    found = python or [code for _, code in blocks]
    return textwrap.dedent(found[0]) if found else answer


def runs(program: str, *, name: str = "__main__") -> bool:
    """Whether a program gets to its end, within limits of time, memory and files.

    It runs in an empty folder of its own, sees no environment, and may read but not write.

    Parameters
    ----------
    program : str
        Python.
    name : str
        What it sees as ``__name__``.
    """
    done = _run(program, name)
    return done is not None and done.returncode == PASSED


def check_test(program: str) -> None:
    """Make sure that a test is a program: else every answer would count as wrong.

    Raises
    ------
    ValueError
        With what Python says.
    """
    try:
        ast.parse(program, "test")
    except SyntaxError as error:
        raise ValueError(f"test is no Python program: {error}") from error


@cache
def check_runs() -> None:
    """Make sure that programs can be run here at all: else every answer would count as wrong.

    Raises
    ------
    InvalidRequestError
        With what Python says.
    """
    done = _run("", "__main__", errors=subprocess.PIPE)
    if done is None or done.returncode != PASSED:
        said = done.stderr.decode(errors="replace").strip() if done else f"not in {SECONDS} s"
        raise InvalidRequestError(
            f"{sys.executable} cannot run an empty program without an environment and in "
            f"{BYTES >> 20} MiB: {said}.",
            "Leave out the tasks whose answers are programs, or use a Python that can.",
        )


def _run(
    program: str, name: str, errors: int = subprocess.DEVNULL
) -> subprocess.CompletedProcess[bytes] | None:
    """Run a program with all limits; None if it takes too long."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return subprocess.run(
                [sys.executable, "-I", "-c", RUNNER, name],
                input=program.encode("utf-8", errors="replace"),
                cwd=folder,
                env={},
                stdout=subprocess.DEVNULL,  # a program may print without end
                stderr=errors,
                timeout=SECONDS,
                preexec_fn=_limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
