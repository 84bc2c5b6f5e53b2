"""What is wrong with an answer, if anything is: by a number, by a text, by running it."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal

from parse_engine.bench.code import code_of, without_script
from parse_engine.bench.sandbox import failure

Check = Callable[[str], str | None]  # says what is wrong with a text, None if it is right

_NUMBER = r"[-\u2212+]?(?:\d[\d,]*)?\.?\d+(?:[eE][-+]?\d{1,3}(?!\d))?"
_FIND_NUMBER = re.compile(rf"(?<![\w.]){_NUMBER}")


def number_in(text: str) -> Decimal | None:
    """Return the number after the last ``####``, or else the last number of a text; None without.

    Thousands may be marked by commas.
    """
    after = text.rpartition("####")[2]
    found = _FIND_NUMBER.findall(after) or _FIND_NUMBER.findall(text)
    if not found:
        return None
    # behind the mark the number comes first, in a text it comes last
    chosen = found[0] if "####" in text and _FIND_NUMBER.search(after) else found[-1]
    return Decimal(chosen.replace(",", "").replace("\u2212", "-"))


def is_number(text: str) -> bool:
    """Whether a text is a number and nothing else."""
    return re.fullmatch(rf"\s*{_NUMBER}\s*", text) is not None


def number(answer: str) -> Check:
    """Check that the number an answer comes to is the right one."""
    right = number_in(answer)

    def fault(text: str) -> str | None:
        found = number_in(text)
        if found is None:
            return "it has no number"
        return None if found == right else f"it comes to {found!s:.60}, not {right}"

    return fault


def exact(answer: str) -> Check:
    """Check that a text is the right one, but for white space around it and capitals."""
    wanted = answer.strip()
    said = f"it is not {wanted!r}"
    return lambda text: None if text.strip().casefold() == wanted.casefold() else said


def contains(answer: str) -> Check:
    """Check that the right answer stands somewhere in a text, but for capitals."""
    wanted = answer.strip()
    said = f"it does not contain {wanted!r}"
    return lambda text: None if wanted.casefold() in text.casefold() else said


def passes(test: str) -> Check:
    """Check that a test program runs without an error behind the code of an answer."""
    return lambda text: failure(f"{without_script(code_of(text))}\n{test}\n")


CHECKERS: dict[str, Callable[[str], Check]] = {
    "number": number,
    "exact": exact,
    "contains": contains,
}
