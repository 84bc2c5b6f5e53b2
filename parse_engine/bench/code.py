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
PYTHON = ("python", "python3", "py")
FUTURE = re.compile(r"^from __future__ import .*$", re.MULTILINE)
CHECK = re.compile(r"^def check\s*\(|^from .*\bimport\b.*\bcheck\b", re.MULTILINE)


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
        if not name.isidentifier() or not _begun(name).search(prompt):
            raise ValueError(f"entry_point is {name!r}, and must be a function that prompt begins")
        if not CHECK.search(test):
            raise ValueError("test has no function check, which is what an answer is given to")
        return cls(str(item["task_id"]), prompt, test, name)

    @property
    def given(self) -> str:
        """What of the prompt comes before the function: imports, other functions."""
        return _begun(self.entry_point).split(self.prompt)[0]

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
        if not _begun(self.entry_point).search(code):
            body = code if code[:1].isspace() else textwrap.indent(code, "    ")
            return f"{self.prompt.rstrip()}\n{body}"
        first = "\n".join(FUTURE.findall(code))  # nothing may stand before these
        return f"{first}\n{self.given}\n{FUTURE.sub('', code)}"


def _begun(name: str) -> re.Pattern[str]:
    """Return what finds where a function of this name begins."""
    return re.compile(rf"^(?:async )?def {name}\s*\(", re.MULTILINE)


def code_of(answer: str) -> str:
    """Return the first block of an answer, of Python if one says so; without one it is code."""
    blocks = FENCE.findall(answer)
    python = [code for tag, code in blocks if tag.lower() in PYTHON]
    untold = [code for tag, code in blocks if not tag]
    found = python or untold or [code for _, code in blocks]
    return textwrap.dedent(found[0]) if found else answer


def without_script(code: str) -> str:
    """Return a program without what it does as a script, which reads input and the like."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return code  # running it will say so
    lines = code.split("\n")  # as ast counts them
    for node in tree.body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'":
            for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[number] = ""
    return "\n".join(lines)


def check_program(program: str, name: str) -> None:
    """Make sure that a part of a test can be run: else every answer would count as wrong.

    Parameters
    ----------
    program : str
        Python, to be run behind other lines.
    name : str
        What it is called in its file.

    Raises
    ------
    ValueError
        If it is no program, imports what cannot be imported, with what Python says, or never gets
        to its end.
    InvalidRequestError
        If no program can be run here.
    """
    try:
        tree = ast.parse(program, name)
        compile(f"pass\n{program}", name, "exec", dont_inherit=True)
    # the last two if nested deep
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        why = getattr(error, "msg", "") or str(error) or "it is nested too deep"
        raise ValueError(f"{name} is no Python program: {why}") from error
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and ast.unparse(node).startswith("unittest.main("):
            raise ValueError(
                f"{name} calls unittest.main(), which ends the program or hides what fails; write "
                "assert unittest.main(exit=False).result.wasSuccessful()"
            )
    if name == "test" and not any(map(_does_something, tree.body)):
        raise ValueError(
            "test runs nothing: it must call what it defines, and assert what is right"
        )
    check_runs()
    imports = [
        ast.unparse(line) for line in tree.body if isinstance(line, ast.Import | ast.ImportFrom)
    ]
    why = _fault_of_imports("\n".join(imports))
    if why is not None:
        raise ValueError(f"what {name} imports cannot be imported here: {why}")


def _does_something(line: ast.stmt) -> bool:
    """Whether a line of a program is more than a definition, an import or a remark."""
    if isinstance(line, ast.Expr):
        return not isinstance(line.value, ast.Constant | ast.Compare)
    idle = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
    return not isinstance(line, (*idle, ast.Pass))


@cache  # many tests of a file import the same
def _fault_of_imports(imports: str) -> str | None:
    return failure(imports)
