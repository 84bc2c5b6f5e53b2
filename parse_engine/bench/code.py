"""Checking a written program by running it, in a process of its own, with limits."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import Any

SECONDS = 10
BYTES = 1 << 30
FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
# A program that ends before its last line has not passed, whatever it says.
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
exec(program, {{"__name__": "__main__"}})
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
        """Run an answer's code against the tests."""
        return runs(f"{self.program(answer)}\n{self.test}\ncheck({self.entry_point})\n")

    def program(self, answer: str) -> str:
        """Return the code of an answer, behind the imports that the task gave."""
        code = code_of(answer)
        given = self.prompt.split(f"def {self.entry_point}")[0]
        if f"def {self.entry_point}" not in code:
            return self.prompt + code
        return f"{given}\n{code}"


def code_of(answer: str) -> str:
    """Return the first block of code of an answer; without one the answer is code."""
    found = FENCE.search(answer)
    return found[1] if found else answer


def runs(program: str) -> bool:
    """Whether a program gets to its end, within limits of time, memory and files.

    It runs in an empty folder of its own, sees no environment, and may read but not write.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-c", RUNNER],
                input=program.encode("utf-8", errors="replace"),
                cwd=folder,
                env={},
                stdout=subprocess.DEVNULL,  # a program may print without end
                stderr=subprocess.DEVNULL,
                timeout=SECONDS,
                preexec_fn=_limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
    return done.returncode == PASSED


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
