"""What the models are asked in a measurement, and how an answer is checked.

A file has one JSON object a line, in one of these forms, told by the keys of its first line:

- ``gsm8k``: ``question``, ``answer`` (its last line is ``#### n``), as openai/grade-school-math;
- ``humaneval``: ``task_id``, ``prompt``, ``test``, ``entry_point``, as openai/human-eval;
- ``spec-bench``: ``question_id``, ``category``, ``turns``, as hemingkx/Spec-Bench. Only the first
  turn is asked: later ones are about answers that differ from method to method;
- your own: ``prompt`` (a text) or ``messages`` (role and content), optionally ``id``, and
  optionally how to check an answer: ``answer``, compared by the ``checker`` ``number`` (the default
  where it is one), ``exact`` (the default for other texts) or ``contains``; or ``test``, a Python
  program that is run behind the code of the answer and must get to its end. Where there are both,
  ``test`` counts and not ``answer``, ``messages`` and not ``prompt``.

Programs have 10 seconds and 1 GiB, and may neither write files, start others nor use the network.
What a test imports must be installed where this runs. Each row of the results says what was wrong
with an answer, as its ``fault``.

A file may be packed with gzip. What is null counts as not given.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import zlib
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from parse_engine.bench import checks
from parse_engine.bench.checks import Check
from parse_engine.bench.code import CodeTask, check_test
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


@dataclass(frozen=True)
class Task:
    """A named list of questions."""

    name: str
    items: tuple[Item, ...]

    @property
    def digest(self) -> str:
        """What tells it from tasks with other questions or other answers to check by."""
        listed = json.dumps([[item.id, item.source] for item in self.items])
        return hashlib.sha256(listed.encode()).hexdigest()[:16]

    def sample(self, limit: int | None, seed: int, skip: int = 0) -> Task:
        """Return so many items, drawn by a seed, in the order of the file; all if None.

        The first ``skip`` that the seed draws are left out: with the same seed, those that another
        measurement has with this as its limit.

        Raises
        ------
        InvalidRequestError
            If no item is left.
        """
        drawn = random.Random(seed).sample(range(len(self.items)), len(self.items))
        chosen = sorted(drawn[skip:] if limit is None else drawn[skip : skip + limit])
        if not chosen:
            raise InvalidRequestError(
                f"Task {self.name} has {len(self.items)} items, and {skip} are left out.",
                "Give a smaller --skip.",
            )
        return replace(self, items=tuple(self.items[index] for index in chosen))


def load_tasks(spec: str, data: Path | None = None) -> tuple[Task, ...]:
    """Read the tasks that are named in a list with commas.

    Parameters
    ----------
    spec : str
        Each is a path, ``NAME=PATH``, or the name of one of the publishers' forms, whose file is
        then looked for in ``data``.
    data : Path, optional
        A folder of files.

    Raises
    ------
    InvalidRequestError
        If a file is missing, or has a line that is in none of the forms.
    """
    tasks = tuple(load_task(word.strip(), data) for word in spec.split(",") if word.strip())
    names = [task.name for task in tasks]
    if not names or len(set(names)) < len(names):
        raise InvalidRequestError(
            f"tasks is {spec!r}.",
            "Name at least one, with commas between them, and give each its own name: NAME=PATH.",
        )
    return tasks


def load_task(spec: str, data: Path | None = None) -> Task:
    """Read one task: a path, ``NAME=PATH``, or a publisher's form whose file lies in ``data``."""
    name, equals, given = spec.partition("=")
    if not equals or Path(spec).is_file():
        name, equals, given = "", "", spec
    path = _find(spec, data) if given in FORMS and not equals else Path(given)
    lines = read_lines(path)
    form = form_of(lines[0][1])
    if name in FORMS and form != name:
        raise InvalidRequestError(
            f"{path} is named {name}, and is in the form of {form}.", "Choose another name."
        )
    items = tuple(_item(form, path, number, line) for number, line in lines)
    ids = [item.id for item in items]
    if len(set(ids)) < len(ids):
        twice = next(one for one in ids if ids.count(one) > 1)
        raise InvalidRequestError(f"{path} has the id {twice!r} twice.", "Give each item its own.")
    return Task(name or (form if form in FORMS else path.stem), items)


def form_of(line: dict[str, Any]) -> str | None:
    """Tell the form of a file from a line of it; None for what is none."""
    if {"prompt", "test", "entry_point"} <= line.keys():
        return "humaneval"
    if {"question", "answer"} <= line.keys() and "####" in str(line["answer"]):
        return "gsm8k"
    if "turns" in line:
        return "spec-bench"
    return "own" if "prompt" in line or "messages" in line else None


def read_lines(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """Return the objects of a JSONL file with the numbers of their lines."""
    try:
        text = _unpacked(path).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InvalidRequestError(
            f"The task file {str(path)!r} cannot be read: {error}.",
            f"Give the path of a JSONL file, or one of {', '.join(FORMS)} with --data FOLDER.",
        ) from error
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidRequestError(f"{path}, line {number}: no JSON: {error}.", HINT) from error
        if not isinstance(value, dict):
            raise InvalidRequestError(f"{path}, line {number}: no JSON object.", HINT)
        given = {name: one for name, one in value.items() if one is not None}
        found.append((number, given))
    if not found:
        raise InvalidRequestError(f"The task file {str(path)!r} has no items.", HINT)
    return found


def _find(name: str, data: Path | None) -> Path:
    """Return the one file of a folder that is in a publisher's form."""
    if data is None:
        raise InvalidRequestError(
            f"Task {name!r} needs its file, and none is fetched.",
            f"Give {name}=PATH to the publisher's file, or the folder that it lies in: --data DIR.",
        )
    paths = sorted(path for path in data.glob("*.jsonl*") if path.suffix in (".jsonl", ".gz"))
    found = [path for path in paths if _first_form(path) == name]
    if len(found) != 1:
        listed = ", ".join(path.name for path in found) or "none"
        raise InvalidRequestError(
            f"{str(data)!r} should have one file in the form of {name}, and has: {listed}.",
            f"Say which: {name}=PATH.",
        )
    return found[0]


def _first_form(path: Path) -> str | None:
    try:
        return form_of(read_lines(path)[0][1])
    except InvalidRequestError:
        return None


def _unpacked(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def _item(form: str | None, path: Path, number: int, line: dict[str, Any]) -> Item:
    readers = {"gsm8k": _maths, "humaneval": _code, "spec-bench": _turns, "own": _own}
    try:
        if form is None or form_of(line) != form:
            raise ValueError(
                f"keys {sorted(line)} are in no known form, or not in the first line's"
            )
        item = readers[form](line, str(number))
        source = json.dumps(line, sort_keys=True)
        return replace(item, messages=check_messages(item.messages), source=source)
    except (LookupError, AttributeError, TypeError, ValueError) as error:
        said = f"{path}, line {number}: {str(error).removesuffix('.')}."
        raise InvalidRequestError(said, HINT) from error


def _ask(text: str, added: str = "") -> tuple[Message, ...]:
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"what is asked is {text!r}, and must be a text")
    return ({"role": "user", "content": text + added},)


def _maths(line: dict[str, Any], number: str) -> Item:
    if checks.number_in(line["answer"].rpartition("####")[2]) is None:
        raise ValueError("no number behind ####")
    check = checks.number(line["answer"])
    return Item(number, _ask(line["question"], f"\n\n{ASK_MATHS}"), check, steps=True)


def _code(line: dict[str, Any], number: str) -> Item:
    task = CodeTask.from_json({"task_id": number, **line})
    check_test(task.test)
    return Item(task.name, tuple(task.messages), task.fault)


def _turns(line: dict[str, Any], number: str) -> Item:
    turns = line["turns"]
    if not isinstance(turns, list) or not turns or not isinstance(turns[0], str):
        raise ValueError(f"turns is {turns!r}, and must be a list of texts")
    name, category = str(line.get("question_id", number)), str(line.get("category", ""))
    return Item(name, _ask(turns[0]), category=category)


def _own(line: dict[str, Any], number: str) -> Item:
    for key in line.keys() - KEYS:
        meant = get_close_matches(key, KEYS[1:], 1, 0.8)  # much is close to a name as short as id
        if meant and meant[0] not in line:
            raise ValueError(f"it has {key!r}: is {meant[0]!r} meant?")
    messages = tuple(line["messages"]) if "messages" in line else _ask(line["prompt"])
    return Item(str(line.get("id", number)), messages, _own_check(line))


def _own_check(line: dict[str, Any]) -> Check | None:
    if "test" in line:
        if not isinstance(line["test"], str):
            raise ValueError(f"test is {line['test']!r}, and must be a program")
        check_test(line["test"])
        return checks.passes(line["test"])
    if "answer" not in line:
        if "checker" in line:
            raise ValueError("a checker without an answer to compare with")
        return None
    given = line["answer"]
    if not is_number(given) and not (isinstance(given, str) and given.strip()):
        raise ValueError(f"answer is {line['answer']!r}, and must be a text or a number")
    answer = str(line["answer"])
    usual = "number" if checks.is_number(answer) else "exact"
    checker = line.get("checker", usual)
    if checker not in checks.CHECKERS:
        raise ValueError(f"checker is {checker!r}, and must be one of {', '.join(checks.CHECKERS)}")
    if checker == "number" and checks.number_in(answer) is None:
        raise ValueError(f"answer is {answer!r}, and the checker compares numbers")
    return checks.CHECKERS[checker](answer)
