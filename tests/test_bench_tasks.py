"""Tasks are read from the forms that publishers use, and answers are checked."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from parse_engine import InvalidRequestError
from parse_engine.bench import checks, code, sandbox
from parse_engine.bench.arithmetic import first_wrong_step
from parse_engine.bench.checks import number_in
from parse_engine.bench.tasks import Task, load_task, load_tasks

GSM8K = {
    "question": "How many are 3 + 1,200?",
    "answer": "3 + 1200 = <<3+1200=1203>>1203\n#### 1,203",
}
HUMANEVAL = {
    "task_id": "T/1",
    "prompt": 'def add(a, b):\n    """Add."""\n',
    "test": "def check(f):\n    assert f(1, 2) == 3\n",
    "entry_point": "add",
}
SPEC_BENCH = {"question_id": 81, "category": "writing", "turns": ["Write.", "Write again."]}


def write(path: Path, *lines: Any) -> Path:
    path.write_text(
        "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8"
    )
    return path


def test_publishers_forms_are_recognized(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", GSM8K, GSM8K)
    write(tmp_path / "b.jsonl", HUMANEVAL)
    write(tmp_path / "c.jsonl", SPEC_BENCH)
    maths, programs, chat = load_tasks("gsm8k,humaneval,spec-bench", tmp_path)
    assert [task.name for task in (maths, programs, chat)] == ["gsm8k", "humaneval", "spec-bench"]
    assert load_task(str(tmp_path / "a.jsonl")).name == "gsm8k"
    assert load_task(f"mine={tmp_path / 'a.jsonl'}").name == "mine"

    first, second = maths.items
    assert (first.id, second.id) == ("1", "2")
    assert GSM8K["question"] in first.messages[0]["content"]
    assert first.check is not None
    assert first.check("It is 3 + 1200 = 1203.\n#### 1203") is None
    assert first.check("#### 1204") == "it comes to 1204, not 1203"
    assert first.check("I do not know.") == "it has no number"
    assert first.steps

    (program,) = programs.items
    assert program.check is not None
    assert program.check("```python\ndef add(a, b):\n    return a + b\n```") is None
    assert program.check("```python\ndef add(a, b):\n    return a\n```") == "AssertionError"

    (turn,) = chat.items
    assert (turn.id, turn.category, turn.check) == ("81", "writing", None)
    assert [message["content"] for message in turn.messages] == ["Write."]


@pytest.mark.parametrize(
    ("line", "right", "wrong"),
    [
        ({"prompt": "2 + 2?", "answer": 4}, "So it is 4.0.", "It is 5."),
        ({"prompt": "2 + 2?", "answer": "4", "checker": "exact"}, " 4\n", "It is 4."),
        ({"prompt": "Capital of Norway?", "answer": "Oslo"}, "oslo", "It is Oslo."),
        ({"prompt": "?", "answer": "Oslo", "checker": "contains"}, "It is Oslo.", "Bergen"),
        ({"prompt": "?", "answer": "Oslo", "test": None, "id": None}, "Oslo", "x = 1"),
        (
            {"prompt": "?", "answer": None, "test": "assert f() == 1"},
            "First:\n```bash\npip install f\n```\nThen:\n```Python\ndef f():\n  return 1\n```",
            "```\nf = 1\n```",
        ),
        (
            {"prompt": "?", "test": "assert f() == 1"},
            "1. Do this:\n   ```python3 title\r\n   def f():\n     return 1\n   ```",
            "import sys; sys.exit(77)",
        ),
        (
            {"prompt": "?", "test": "assert f() == 1"},
            "```\ndef f():\n  return 1\n```",
            "def f(): 2",
        ),
        (
            {"prompt": "?", "test": "assert f() == 1"},
            "def f(): return 1",
            "import sys; sys.exit(0)",
        ),
    ],
)
def test_own_files(tmp_path: Path, line: dict[str, Any], right: str, wrong: str) -> None:
    (item,) = load_task(str(write(tmp_path / "own.jsonl", line))).items
    assert item.check is not None
    assert item.check(right) is None
    assert item.check(wrong)


def test_own_files_need_no_checker(tmp_path: Path) -> None:
    talk = [{"role": "system", "content": "Be\u2028short."}, {"role": "user", "content": "Hi"}]
    lines = ({"id": "a", "messages": talk}, {"prompt": "Hello", "idx": 3, "prompts": []})
    task = load_task(str(write(tmp_path / "talk.jsonl", *lines)))
    assert task.name == "talk"
    assert [(item.id, item.check) for item in task.items] == [("a", None), ("2", None)]
    assert list(task.items[0].messages) == talk


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "no items"),
        (["text"], "no JSON object"),
        ([{"text": "?"}], "no known form"),
        ([{"prompt": "?"}, GSM8K], "line 2"),
        ([{"prompt": ["?"]}], "line 1"),
        ([{"messages": []}], "line 1"),
        ([{"prompt": "?", "checker": "number"}], "without an answer"),
        ([{"prompt": "?", "answer": "x", "checker": "regex"}], "regex"),
        ([{"prompt": "?", "answer": "x", "checker": ["exact"]}], r"checker is \['exact'\]"),
        ([{"messages": 5}], "messages is int 5"),
        (
            [{"prompt": "?", "id": 1}, {"prompt": "?", "id": "1"}],
            "line 2: its id '1' is that of line 1",
        ),
        ([{"prompt": "?", "id": 2}, {"prompt": "?"}], "line 2: its id '2' is that of line 1"),
        ([{"prompt": "?", "answer": ["x"]}], "a text or a number"),
        ([{"prompt": "?", "answer": "x", "checker": "number"}], "compares numbers"),
        ([{"prompt": "?", "answer": " ", "checker": "contains"}], "a text or a number"),
        ([{"prompt": "?", "answer": ""}], "a text or a number"),
        ([{"prompt": "?", "answer": True}], "a text or a number"),
        ([{"prompt": "?", "answer": float("nan")}], "a text or a number"),
        ([{"prompt": "?", "anwser": "x"}], "where 'answer' may be meant"),
        ([{"prompt": "?", "test": "def ("}], "line 1: test is no Python program"),
        (
            [{"prompt": "?", "test": "import re\nfrom nowhere import x\nassert x"}],
            "line 1: what test imports cannot be imported here: ModuleNotFoundError: No module",
        ),
        (
            [{"prompt": "?", "test": "if __name__ == '__main__':\n    unittest.main()"}],
            "line 1: test calls unittest.main",
        ),
        ([{**HUMANEVAL, "test": "def check("}], "line 1: test is no Python program"),
        (
            [{**HUMANEVAL, "test": f"def check(f):\n    {'-' * 100_000}1"}],
            "line 1: test is no Python program: it is nested too deep",
        ),
        ([{"prompt": "?", "test": "assert f()\nreturn"}], "no Python program: 'return' outside"),
        ([{"prompt": "?", "test": "from __future__ import annotations"}], "must occur at the"),
        ([{"prompt": "?", "answer": "5", "test": " "}], "test is ' ', and must be a program"),
        ([{"prompt": "?", "test": "# later"}], "test runs nothing"),
        ([{"prompt": "?", "test": "import re\ndef test_f():\n    assert f()"}], "runs nothing"),
        ([{"prompt": "?", "test": "f(1) == 2"}], "runs nothing"),
        ([{"question": "?", "answer": "#### 1/2"}], "a number behind ####"),
        ([{**HUMANEVAL, "test": "def checks(f): pass"}], "line 1: test has no function check"),
        ([{**HUMANEVAL, "prompt": "import nowhere\ndef add():\n"}], "what prompt imports cannot"),
        ([{**HUMANEVAL, "prompt": "def add_all():\n"}], "entry_point is 'add', and must be"),
        ([{**HUMANEVAL, "test": None}], "an entry_point and no test"),
        ([{"prompt": "?", "id": ["a"]}], r"id is \['a'\], and must be"),
        ([{**HUMANEVAL, "task_id": " "}], "task_id is ' ', and must be"),
        ([{**SPEC_BENCH, "question_id": True}], "question_id is True, and must be"),
        ([GSM8K, {"question": "?", "answer": 5}], "line 2: answer is 5, and must be"),
        ([{"prompt": "?", "answer": 10**400}], "answer is 10{59}, and must be"),
        ([{**HUMANEVAL, "test": "assert True"}], "line 1: test has no function check"),
        ([{**HUMANEVAL, "entry_point": "other"}], "entry_point is 'other', and must be"),
        ([{**HUMANEVAL, "entry_point": 5}], "entry_point is 5, and must be a text"),
        ([{"prompt": " "}], "prompt is ' ', and must be a text"),
        (
            [{"question": ["a"], "answer": "#### 1"}],
            r"question is \['a'\], and must be a text",
        ),
        ([{"prompt": "?", "test": 1}], "must be a program"),
        ([{"prompt": None}], "no known form"),
        ([{"question": "?", "answer": "#### none"}], "a number behind ####"),
        ([{"question": "?", "answer": ["#### 1"]}], r"answer is \['#### 1'\]"),
        ([{**SPEC_BENCH, "turns": [1]}], r"turns\[0\] is 1, and must be a text"),
        ([{**SPEC_BENCH, "turns": []}], "list of texts"),
        ([{**SPEC_BENCH, "turns": "Write."}], "list of texts"),
        ([{**HUMANEVAL, "prompt": 1}], "line 1"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, lines: list[Any], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        load_task(str(write(tmp_path / "a.jsonl", *lines)))


def test_wrong_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="gsm8k=PATH"):
        load_task("gsm8k")
    with pytest.raises(InvalidRequestError, match="has: none"):
        load_task("gsm8k", tmp_path)
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        load_task(str(tmp_path / "missing.jsonl"))
    path = write(tmp_path / "a.jsonl", GSM8K)
    write(tmp_path / "b.jsonl", GSM8K)
    with pytest.raises(InvalidRequestError, match=r"a\.jsonl, b\.jsonl"):
        load_task("gsm8k", tmp_path)
    with pytest.raises(InvalidRequestError, match="Task 'a' has no file"):
        load_task("a=")
    (tmp_path / "d.jsonl").write_text('{"prompt": "?", "answer": "1", "answer": "2"}')
    with pytest.raises(InvalidRequestError, match=r"line 1: .* 'answer' stands twice"):
        load_task(str(tmp_path / "d.jsonl"))
    (tmp_path / "e.jsonl").write_text('{"prompt": "?", "answer": "\\ud800"}')
    with pytest.raises(InvalidRequestError, match="line 1 has half a character at offset"):
        load_task(str(tmp_path / "e.jsonl"))
    for spec in (f"{path},{path}", " , "):
        with pytest.raises(InvalidRequestError, match="its own name"):
            load_tasks(spec)
    for text in ("{", '{"prompt": ' + "[" * 100_000):
        (tmp_path / "c.jsonl").write_text(text, encoding="utf-8")
        with pytest.raises(InvalidRequestError, match="no readable JSON"):
            load_task(str(tmp_path / "c.jsonl"))


def test_files_as_they_are_published_or_exported(tmp_path: Path) -> None:
    lines = "".join(json.dumps(one) + "\n" for one in (HUMANEVAL, {**HUMANEVAL, "task_id": "T/2"}))
    (tmp_path / "HumanEval.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "sub.jsonl").mkdir()
    (task,) = load_tasks("humaneval", tmp_path)
    assert [item.id for item in task.items] == ["T/1", "T/2"]
    marked = tmp_path / "a=b.jsonl"
    marked.write_text("\ufeff" + json.dumps({"prompt": "?"}), encoding="utf-8")
    assert load_task(str(marked)).name == "a=b"
    nameless = {name: one for name, one in HUMANEVAL.items() if name != "task_id"}
    (item,) = load_task(str(write(tmp_path / "c.jsonl", nameless))).items
    assert item.check is not None
    assert item.check("```python\ndef add(a, b):\n    return a\n```") == "AssertionError"
    with pytest.raises(InvalidRequestError, match="in the form of humaneval"):
        load_task(f"gsm8k={tmp_path / 'c.jsonl'}")


def test_questions_and_what_they_are_checked_by_make_a_task_another(tmp_path: Path) -> None:
    lines = [
        {"prompt": "2 + 2?", "answer": 4},
        {"prompt": "2 + 2?", "answer": 5},
        {"prompt": "2 + 2?", "answer": 4, "checker": "exact"},
        {"prompt": "2+2?", "answer": 4},
    ]
    digests = [load_task(str(write(tmp_path / "a.jsonl", line))).digest for line in lines]
    assert len(set(digests)) == len(lines)
    assert load_task(str(write(tmp_path / "b.jsonl", lines[0]))).digest == digests[0]


def test_items_are_drawn_by_a_seed(tmp_path: Path) -> None:
    task = load_task(str(write(tmp_path / "a.jsonl", *({"prompt": f"{n}"} for n in range(50)))))

    def drawn(limit: int | None, seed: int) -> list[int]:
        sample: Task = task.sample(limit, seed)
        return [int(item.id) for item in sample.items]

    assert drawn(None, 0) == drawn(99, 0) == list(range(1, 51))
    assert drawn(8, 0) == sorted(drawn(8, 0)) == drawn(8, 0)
    assert len(set(drawn(8, 0))) == 8
    assert drawn(8, 0) != drawn(8, 1)
    rest = [int(item.id) for item in task.sample(None, 0, skip=8).items]
    assert sorted(drawn(8, 0) + rest) == drawn(None, 0)
    with pytest.raises(InvalidRequestError, match="--skip"):
        task.sample(None, 0, skip=50)


def test_a_body_in_a_block_stands_behind_the_prompt() -> None:
    task = code.CodeTask(
        "f", 'def f(x):\n    """Add one."""\n', "def check(f):\n    assert f(1) == 2", "f"
    )
    for answer in (
        "    return x + 1",
        "```python\n    return x + 1\n```",
        "```\nreturn x + 1\n```",
    ):
        assert task.fault(answer) is None


def test_damaged_archives_are_refused(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(b'{"prompt": "What is it?"}' * 50))
    packed[14:20] = bytes(6)
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(packed)
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        load_task(str(path))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("#### 12", 12),
        ("... is $1,234.50 in all", 1234.5),
        ("#### -3 (of 5)", -3),
        ("#### \N{MINUS SIGN}3", -3),
        ("There are 4 of 7.", 7),
        ("\\boxed{18}", 18),
        ("#### ", None),
        ("none", None),
        ("5 apples ####", 5),
        ("It is 1e5.", 1e5),
        ("#### 1e-05", 1e-5),
        ("It is 0.00001", 1e-5),
    ],
)
def test_numbers_of_answers(text: str, number: float | None) -> None:
    found = number_in(text)
    assert (None if found is None else float(found)) == number


@pytest.mark.parametrize(
    ("text", "false"),
    [
        ("16 - 3 - 4 = 9 eggs, so 9 * 2 = 18.", None),
        ("16 - 3 = 14.", "16 - 3 = 14"),
        ("1,000 x $2 = $2,000", None),
        ("2 * 3 = 6 and 2 * 4 = 9", "2 * 3 = 6 and 2 * 4 = 9"),
        ("(1 + 2) * 3 = 10", "(1 + 2) * 3 = 10"),
        ("25% * 80 = 20, 1/4 = 25%", None),
        ("1/4 = 26%", "1/4 = 26%"),
        ("2 / 3 = 0.67", None),
        ("2 / 3 = 0.66", "2 / 3 = 0.66"),
        ("300 seeds * 1/3 = 100", None),
        ("5 + 5 = 10 + 1", None),
        ("3x-3=63", None),
        ("10 / 0 = 5", None),
        ("1 + 1 = 3\nThat is it.", "1 + 1 = 3"),
        ("no sums", None),
    ],
)
def test_false_equations_are_found(text: str, false: str | None) -> None:
    assert first_wrong_step(text) == (None if false is None else len(false))


@pytest.mark.parametrize(
    "program",
    [
        "import os\nos.remove('/nowhere')",
        "import shutil\nshutil.rmtree('/nowhere')",
        "import subprocess\nsubprocess.run(['true'])",
        "import os\nos.fork()",
        "import socket\nsocket.socket()",
        "import socket\nsocket.socket().listen()",
        "import socket\nsocket.socket(socket.AF_UNIX).connect('x')",
        "import socket\nsocket.getaddrinfo('localhost', 80)",
        "import sqlite3\nsqlite3.connect('/tmp/parse-test.db')",
        "import os\nos.mkfifo('x')",
        "import posix\nposix.mknod('x')",
        "import os\nos.setxattr('.', 'user.x', b'')",
        "import os\nos._exit(0)",
        "import os\nos._exit(77)",
        "import sys\nsys.exit()",
        "raise SystemExit(77)",
    ],
)
def test_programs_do_no_harm_and_must_get_to_their_end(program: str) -> None:
    assert sandbox.failure(program) is not None


def test_what_an_answer_does_as_a_script_is_no_part_of_the_task() -> None:
    task = code.CodeTask.from_json(HUMANEVAL)
    answer = "def add(a, b):\n    return a + b\n\nif __name__ == '__main__':\n    print(input())\n"
    assert task.fault(f"```python\n{answer}```") is None


def test_a_python_that_cannot_run_programs_is_no_verdict_on_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sandbox.check_runs()
    sandbox.check_runs.cache_clear()
    monkeypatch.setattr("sys.executable", "false")
    with pytest.raises(InvalidRequestError, match="cannot run"):
        sandbox.check_runs()


def test_long_sums_and_deep_brackets_are_given_up() -> None:
    assert first_wrong_step("10 + " * 200 + "10") is None
    assert first_wrong_step("(" * 3000 + "1 + 1 = 3") is None
    assert first_wrong_step("-" * 3000 + "1 + 1 = 3") is None


def test_what_an_answer_does_as_a_script_is_left_out() -> None:
    script = "if __name__ == '__main__':\n    print(add(int(input()), 1))\n"
    check = checks.passes("if __name__ == '__main__':\n    assert add(1, 1) == 2")
    assert check(f"def add(a, b):\n    return a + b\n{script}") is None
    assert check(f"def add(a, b):\n    return a - b\n{script}")
    assert check("def add(a, b):\n  return (") == "SyntaxError: '(' was never closed"


def test_code_of_an_answer_keeps_what_the_prompt_gives() -> None:
    prompt = "import math\n\n\ndef add_one(a):\n    return a + 1\n\n\ndef add(a):\n    'Add.'\n"
    test = "def check(f):\n    assert f(1) == 2"
    task = code.CodeTask("t", prompt, test, "add")
    future = "from __future__ import annotations\n\n\ndef add(a: X) -> X:\n    return add_one(a)"
    for answer in (
        "def add(a):\n    return add_one(a)",
        future,
        "    return add_one(a)  # def add",
    ):
        assert task.fault(answer) is None
    example = "```\n>>> add(1)\n2\n```\nSo:\n```python\ndef add(a):\n    return a + 1\n```"
    assert task.fault(example) is None


def test_tests_may_be_those_of_unittest() -> None:
    test = (
        "import unittest\nclass Adds(unittest.TestCase):\n    def test(self):\n"
        "        self.assertEqual(add(1, 1), 2)\n"
        "assert unittest.main(exit=False).result.wasSuccessful()"
    )
    code.check_program(test, "test")
    check = checks.passes(test)
    assert check("def add(a, b):\n    return a + b") is None
    assert check("def add(a, b):\n    return a - b")


def test_programs_may_read_and_import() -> None:
    program = "from __future__ import annotations\nassert __name__ == '__main__'"
    assert sandbox.failure(program) is None
    program = "import asyncio\nassert asyncio.run(asyncio.sleep(0, 5)) == 5"
    assert sandbox.failure(program) is None
    program = "# coding: latin-1\nimport os\nprint('x', file=open(os.devnull, 'w'))"
    assert sandbox.failure(f"{program}\nassert len('\u00e9') == 1") is None
    program = "import sqlite3\nassert sqlite3.connect(':memory:').execute('select 1').fetchone()"
    assert sandbox.failure(program) is None
    program = "from threading import Barrier, Thread\nmeet = Barrier(41)\n"
    program += "for _ in range(40): Thread(target=meet.wait).start()\nmeet.wait()"
    assert sandbox.failure(program) is None
    program = "import pickle\nclass A: pass\nassert pickle.loads(pickle.dumps(A()))"
    for name in ("__main__", "answer"):
        assert sandbox.failure(program, name=name) is None
    program = "import collections, math, random, re\nassert open(re.__file__).read()"
    assert sandbox.failure(program) is None
