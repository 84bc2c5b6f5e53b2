"""What of an answer is code, and whether that passes the tests of its task."""

from __future__ import annotations

import ast
import re
import textwrap
from dataclasses import dataclass
from functools import cache
from typing import Any

from parse_engine.bench.sandbox import check_runs, failure

FENCE = re.compile(r"```[ \t]*([\w+-]*)[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL)
PYTHON = ("python", "python3", "py", "")


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


def check_test(program: str) -> None:
    """Make sure that a test can be run: else every answer would count as wrong.

    Raises
    ------
    ValueError
        If it is no program, imports what cannot be imported, with what Python says, or never gets
        to its end.
    InvalidRequestError
        If no program can be run here.
    """
    try:
        tree = ast.parse(program, "test")
    except (SyntaxError, MemoryError, RecursionError) as error:  # the latter two if nested deep
        raise ValueError(f"test is no Python program: {error!r}") from error
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and ast.unparse(node).startswith("unittest.main("):
            raise ValueError(
                "test calls unittest.main(), which ends the program or hides what fails; write "
                "assert unittest.main(exit=False).result.wasSuccessful()"
            )
    check_runs()
    imports = [
        ast.unparse(line) for line in tree.body if isinstance(line, ast.Import | ast.ImportFrom)
    ]
    _check_imports("\n".join(imports))


@cache  # many tests of a file import the same
def _check_imports(imports: str) -> None:
    why = failure(imports)
    if why is not None:
        raise ValueError(f"what test imports cannot be imported here: {why}")
