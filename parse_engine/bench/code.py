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
SAID = 300  # characters of what a program ends with
FENCE = re.compile(r"```[ \t]*([\w+-]*)[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL)
PYTHON = ("python", "python3", "py", "")
# A program that ends before its last line has not passed, whatever code it exits with.
PASSED = 77
# Reads the program and runs it, with writing, deleting, other processes and the network refused.
# What the program prints goes nowhere; what it fails with is said. This keeps a model's mistakes
# from doing harm; it is no prison for somebody who means to break out.
RUNNER = f"""
import os, sys
from traceback import format_exception_only

said, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
os.dup2(nowhere, 1)
os.dup2(nowhere, 2)

def guard(event, args, writes=os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
    opens = event == "open" and isinstance(args[2], int) and args[2] & writes
    changes = event.startswith("os.") and event[3:] in (
        "chmod", "chown", "exec", "fork", "forkpty", "kill", "killpg", "link", "mkdir",
        "posix_spawn", "remove", "rename", "rmdir", "spawn", "symlink", "system", "truncate",
        "utime",
    )
    if opens or changes or event.startswith(("subprocess.", "shutil.", "socket.", "pty.")):
        raise PermissionError(f"{{event}} is not allowed here")

program = sys.stdin.buffer.read()
sys.addaudithook(guard)
try:
    exec(compile(program, "answer", "exec"), {{"__name__": sys.argv[1]}})
except BaseException as error:
    last = format_exception_only(error)[-1].strip()[:{SAID}]
    os.write(said, last.encode(errors="backslashreplace"))
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
        """Read one line of the publisher's file.

        Raises
        ------
        ValueError
            If no answer to it could be right.
        """
        keys = ("prompt", "test", "entry_point")
        for key in keys:
            if not isinstance(item[key], str):
                raise ValueError(f"{key} is {item[key]!r}, and must be a text")
        prompt, test, name = (item[key] for key in keys)
        if not name.isidentifier() or f"def {name}" not in prompt:
            raise ValueError(f"entry_point is {name!r}, and must be a function that prompt begins")
        if "check" not in test:
            raise ValueError("test has no function check, which is what an answer is given to")
        return cls(str(item["task_id"]), prompt, test, name)

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The task as a conversation."""
        ask = (
            "Complete this Python function. Answer with the whole function only, in one code block."
        )
        return [{"role": "user", "content": f"{ask}\n\n```python\n{self.prompt.strip()}\n```"}]

    def fault(self, answer: str) -> str | None:
        """Run an answer's code against the tests; what it would do as a script is left out."""
        program = f"{self.program(answer)}\n{self.test}\ncheck({self.entry_point})\n"
        return failure(program, name="answer")

    def program(self, answer: str) -> str:
        """Return the code of an answer, behind the imports that the task gave."""
        code = code_of(answer)
        given = self.prompt.split(f"def {self.entry_point}")[0]
        if f"def {self.entry_point}" not in code:
            body = code if code[:1].isspace() else textwrap.indent(code, "    ")
            return f"{self.prompt.rstrip()}\n{body}"
        return f"{given}\n{code}"


def code_of(answer: str) -> str:
    """Return the first block of Python of an answer; without a block the answer is code."""
    blocks = FENCE.findall(answer)
    python = [code for tag, code in blocks if tag.lower() in PYTHON]
    found = python or [code for _, code in blocks]
    return textwrap.dedent(found[0]) if found else answer


def failure(program: str, *, name: str = "__main__") -> str | None:
    """Return why a program does not get to its end, None if it does, within limits.

    It runs in an empty folder of its own, sees no environment, and may read but not write.

    Parameters
    ----------
    program : str
        Python.
    name : str
        What it sees as ``__name__``.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-c", RUNNER, name],
                input=program.encode("utf-8", errors="replace"),
                cwd=folder,
                env={},
                capture_output=True,
                timeout=SECONDS,
                preexec_fn=_limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"it takes more than {SECONDS} s"
    if done.returncode == PASSED:
        return None
    if done.returncode < 0:
        return f"it is ended by signal {-done.returncode}"
    # of the program only the first is heard, of a Python that cannot start the second
    said = (done.stdout or done.stderr).decode(errors="replace").strip()
    return said or "it ends before its last line"


def check_test(program: str) -> None:
    """Make sure that a test can be run: else every answer would count as wrong.

    Raises
    ------
    ValueError
        If it is no program, or imports what cannot be imported, with what Python says.
    InvalidRequestError
        If no program can be run here.
    """
    try:
        lines = ast.parse(program, "test").body
    except (SyntaxError, MemoryError, RecursionError) as error:  # the latter two if nested deep
        raise ValueError(f"test is no Python program: {error!r}") from error
    check_runs()
    imports = [ast.unparse(line) for line in lines if isinstance(line, ast.Import | ast.ImportFrom)]
    _check_imports("\n".join(imports))


@cache  # many tests of a file import the same
def _check_imports(imports: str) -> None:
    why = failure(imports)
    if why is not None:
        raise ValueError(f"what test imports cannot be imported here: {why}")


@cache
def check_runs() -> None:
    """Make sure that programs can be run here at all: else every answer would count as wrong.

    Raises
    ------
    InvalidRequestError
        With what Python says.
    """
    why = failure("")
    if why is not None:
        raise InvalidRequestError(
            f"{sys.executable} cannot run an empty program without an environment and in "
            f"{BYTES >> 20} MiB: {why}.",
            "Leave out the tasks whose answers are programs, or use a Python that can.",
        )


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
