"""Running a program in a process of its own, with limits."""

from __future__ import annotations

import resource
import secrets
import signal
import subprocess
import sys
import tempfile
from functools import cache

from parse_engine.errors import InvalidRequestError

SECONDS = 10
BYTES = 1 << 30
SAID = 300  # characters of what a program ends with
# Reads the program and runs it, with writing, deleting, other processes and the network refused.
# What the program prints goes nowhere. What is said is what it fails with or, once it is through,
# the word that it was given for that and the program was not: one that ends before its last line
# has not passed, whatever code it exits with. This keeps a model's mistakes from doing harm; it is
# no prison for somebody who means to break out.
RUNNER = f"""
import os, posix, sys
from traceback import format_exception_only
from types import ModuleType

said, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
os.dup2(nowhere, 1)
os.dup2(nowhere, 2)

def guard(event, args, writes=os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
    changing = event == "open" and isinstance(args[2], int) and args[2] & writes
    opens = changing and args[0] != os.devnull
    changes = event.startswith("os.") and event[3:] in (
        "chmod", "chown", "exec", "fork", "forkpty", "kill", "killpg", "link", "mkdir",
        "posix_spawn", "remove", "removexattr", "rename", "rmdir", "setxattr", "spawn", "symlink",
        "system", "truncate", "utime",
    )
    stores = event == "sqlite3.connect" and args[0] != ":memory:"
    # an event loop has a pair of its own, of family 1 (AF_UNIX), which leads nowhere
    paired = event == "socket.__new__" and args[1] == 1
    connects = event.startswith("socket.") and not paired
    others = event.startswith(("subprocess.", "shutil.", "pty."))
    if opens or changes or stores or connects or others:
        raise PermissionError(f"{{event}} is not allowed here")

name, passed, program = sys.stdin.buffer.read().split(b"\\n", 2)
# what pickle and unittest look for: a module of this name; this one is kept alive
answer, runner = ModuleType(name.decode()), sys.modules["__main__"]
sys.modules[answer.__name__], sys.argv[:] = answer, [answer.__name__]
for silent in ("mkfifo", "mknod"):  # no event tells of these
    for module in (os, posix):
        delattr(module, silent)
sys.modules["readline"] = None  # nor of what it does to its history
os.environ.clear()
sys.addaudithook(guard)
try:
    exec(compile(program.decode(), "answer", "exec"), answer.__dict__)
except BaseException as error:
    last = format_exception_only(error)[-1].strip()[:{SAID}]
    os.write(said, last.encode(errors="backslashreplace"))
else:
    os.write(said, passed)
"""


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
    passed = secrets.token_hex()
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-c", RUNNER],
                input=f"{name}\n{passed}\n{program}".encode("utf-8", errors="replace"),
                cwd=folder,
                env={"MALLOC_ARENA_MAX": "1"},  # else each thread takes its share of memory
                capture_output=True,
                timeout=SECONDS,
                preexec_fn=_limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"it takes more than {SECONDS} s"
    # of the program only the first is heard, of a Python that cannot start the second
    said = (done.stdout or done.stderr).decode(errors="replace").strip()
    if said == passed:
        return None
    if done.returncode < 0:
        return f"it is ended by signal {-done.returncode}"
    return said or "it ends before its last line"


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
    signal.alarm(SECONDS + 1)  # it ends even if nobody is left to end it
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
