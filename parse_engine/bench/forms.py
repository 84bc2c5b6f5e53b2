"""What the models are asked in a measurement, and how an answer is checked.

A file has one JSON object a line, in one of these forms, told by the keys of its first line:

- ``gsm8k``: ``question``, ``answer`` (its last line is ``#### n``), as openai/grade-school-math;
- ``humaneval``: ``task_id``, ``prompt``, ``test``, ``entry_point``, as openai/human-eval;
- ``spec-bench``: ``question_id``, ``category``, ``turns``, as hemingkx/Spec-Bench. Only the first
  turn is asked: later ones are about answers that differ from method to method;
- your own: ``prompt`` (a text) or ``messages`` (role and content), optionally ``id``, and
  optionally how to check an answer: ``answer``, compared by the ``checker`` ``number`` (the default
  where it is one), ``exact`` (the default for other texts) or ``contains``; or ``test``, a Python
  program that is run behind the code of the answer (its first block of Python, without what that
  does as a script) and must get to its end. Where there are both, ``test`` counts and not
  ``answer``, ``messages`` and not ``prompt``.

Programs have 10 seconds and 1 GiB, and may neither write files, start others nor use the network.
What a test imports must be installed where this runs. Each row of the results says what was wrong
with an answer, as its ``fault``.

A file may be packed with gzip. What is null counts as not given.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from parse_engine.bench import checks
from parse_engine.bench.checks import Check
from parse_engine.bench.code import CodeTask, check_program
from parse_engine.config import is_number
from parse_engine.errors import InvalidRequestError
from parse_engine.request import check_messages
from parse_engine.types import Message

KEYS = ("id", "prompt", "messages", "answer", "checker", "test")
FORMS = ("gsm8k", "humaneval", "spec-bench")
# Small models that are told of the form of the answer first give nothing but the answer.
ASK_MATHS = (
    "Think step by step and show each calculation. Then write the final answer as a number on a "
    "last line that starts with ####."
)
HINT = "python -m parse_engine bench run --help describes the forms of files."


@dataclass(frozen=True)
class Item:
    """One question.

    Parameters
    ----------
    id : str
        Its name, unique in its task.
    messages : tuple of dict
        The conversation to answer.
    check : callable, optional
        Says what is wrong with the text of an answer, None if it is right; unset where nobody can.
    category : str
        A part of the task; empty where it has none.
    steps : bool
        Whether the steps of an answer can be checked one by one, by ``first_wrong_step``.
    source : str
        What tells its line from others: question, answer, test and checker.
    """

    id: str
    messages: tuple[Message, ...]
    check: Check | None = None
    category: str = ""
    steps: bool = False
    source: str = ""


def form_of(line: dict[str, Any]) -> str | None:
    """Tell the form of a file from a line of it; None for what is none."""
    if {"prompt", "test", "entry_point"} <= line.keys():
        return "humaneval"
    if {"question", "answer"} <= line.keys():
        return "gsm8k"
    if "turns" in line:
        return "spec-bench"
    return "own" if "prompt" in line or "messages" in line else None


def read_item(form: str | None, path: Path, number: int, line: dict[str, Any]) -> Item:
    """Read the line of a file that has this number, in the form of the first one.

    Raises
    ------
    InvalidRequestError
        If it is in another form, or no answer to it could be right.
    """
    try:
        if form is None or form_of(line) != form:
            raise ValueError(
                f"keys {sorted(line)} are in no known form, or not in the first line's"
            )
        item = READERS[form](line, str(number))
        source = json.dumps(line, sort_keys=True)
        return replace(item, messages=check_messages(item.messages), source=source)
    except ValueError as error:
        said = f"{path}, line {number}: {str(error).removesuffix('.')}."
        raise InvalidRequestError(said, HINT) from error


def _ask(name: str, text: Any, added: str = "") -> tuple[Message, ...]:
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{name} is {text!r:.60}, and must be a text")
    return ({"role": "user", "content": text + added},)


def _name(line: dict[str, Any], key: str, number: str) -> str:
    """Return what an item is called: what its line says, or else its number."""
    name = line.get(key, number)
    if isinstance(name, bool) or not isinstance(name, int | str) or not str(name).strip():
        raise ValueError(f"{key} is {name!r:.60}, and must be a text or a whole number")
    return str(name)


def _maths(line: dict[str, Any], number: str) -> Item:
    answer = line["answer"]
    marked = isinstance(answer, str) and "####" in answer
    if not marked or not checks.is_number(answer.rpartition("####")[2]):
        raise ValueError(f"answer is {answer!r:.60}, and must be a text with a number behind ####")
    messages = _ask("question", line["question"], f"\n\n{ASK_MATHS}")
    return Item(number, messages, checks.number(answer), steps=True)


def _code(line: dict[str, Any], number: str) -> Item:
    task = CodeTask.from_json({**line, "task_id": _name(line, "task_id", number)})
    check_program(task.given, "prompt")
    check_program(f"{task.test}\ncheck({task.entry_point})", "test")
    return Item(task.name, tuple(task.messages), task.fault)


def _turns(line: dict[str, Any], number: str) -> Item:
    turns = line["turns"]
    if not isinstance(turns, list) or not turns:
        raise ValueError(f"turns is {turns!r:.60}, and must be a list of texts")
    name, category = _name(line, "question_id", number), str(line.get("category", ""))
    return Item(name, _ask("turns[0]", turns[0]), category=category)


def _own(line: dict[str, Any], number: str) -> Item:
    for key in line.keys() - KEYS:
        meant = get_close_matches(key, KEYS[1:], 1, 0.8)  # much is close to a name as short as id
        if meant and meant[0] not in line:
            raise ValueError(f"it has {key!r}, where {meant[0]!r} may be meant")
    messages = line["messages"] if "messages" in line else _ask("prompt", line["prompt"])
    if "entry_point" in line and "test" not in line:
        raise ValueError("it has an entry_point and no test")
    return Item(_name(line, "id", number), messages, _own_check(line))


def _own_check(line: dict[str, Any]) -> Check | None:
    if "test" in line:
        if not isinstance(line["test"], str) or not line["test"].strip():
            raise ValueError(f"test is {line['test']!r:.60}, and must be a program")
        check_program(line["test"], "test")
        return checks.passes(line["test"])
    if "answer" not in line:
        if "checker" in line:
            raise ValueError("a checker without an answer to compare with")
        return None
    given = line["answer"]
    if not is_number(given) and not (isinstance(given, str) and given.strip()):
        raise ValueError(f"answer is {given!r:.60}, and must be a text or a number")
    answer = str(given)
    usual = "number" if checks.is_number(answer) else "exact"
    checker = line.get("checker", usual)
    if not isinstance(checker, str) or checker not in checks.CHECKERS:
        raise ValueError(
            f"checker is {checker!r:.60}, and must be one of {', '.join(checks.CHECKERS)}"
        )
    if checker == "number" and checks.number_in(answer) is None:
        raise ValueError(f"answer is {answer!r:.60}, and the checker compares numbers")
    return checks.CHECKERS[checker](answer)


READERS: dict[str, Callable[[dict[str, Any], str], Item]] = {
    "gsm8k": _maths,
    "humaneval": _code,
    "spec-bench": _turns,
    "own": _own,
}
