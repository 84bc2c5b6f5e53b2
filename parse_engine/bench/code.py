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
        found = FENCE.search(answer)
        code = found[1] if found else answer
        given = self.prompt.split(f"def {self.entry_point}")[0]
        if f"def {self.entry_point}" not in code:
            return self.prompt + code
        return f"{given}\n{code}"


def runs(program: str) -> bool:
    """Whether a program ends without an error, within limits of time, memory and files."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-"],
                input=program.encode("utf-8", errors="replace"),
                cwd=folder,
                env={},
                capture_output=True,
                timeout=SECONDS,
                preexec_fn=_limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
    return done.returncode == 0


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
