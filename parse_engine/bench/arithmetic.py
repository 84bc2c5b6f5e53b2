"""Where the arithmetic of a text goes wrong."""

# ruff: noqa: RUF001 - the signs that people write are meant
from __future__ import annotations

import re
from decimal import Decimal, DivisionByZero, InvalidOperation

# Possessive quantifiers: a long sum without a result is given up at once.
_NUMBER = r"\$?+(?:\d++(?:,\d++)*+(?:\.\d++)?+|\.\d++)%?+"
_SIGN = r"(?:[-+*/×÷−]|(?<=[\d%) ])x(?=[\d(. ]))"
_TERM = rf"\(*{_NUMBER}\)*"
_EQUATION = re.compile(
    rf"(?<![\w.])(?P<left>[-+(]*+{_TERM}(?:[ \t]*{_SIGN}[ \t]*{_TERM})+)"
    rf"[ \t]*=[ \t]*(?P<right>-?{_NUMBER})"
)
_PART_OF_MORE = re.compile(rf"[ \t]*(?:{_SIGN}[ \t]*[\d($.]|=)|\w")
_SIGNS = str.maketrans({"x": "*", "×": "*", "÷": "/", "−": "-", ",": None, "$": None})


def first_wrong_step(text: str) -> int | None:
    """Return where the first false equation of a text ends, as a character offset; None without.

    A step that can be checked is arithmetic on numbers that are written out: ``16 - 3 = 13``. A
    wrong idea is none. A result may be rounded to the places that it is written with.
    """
    for found in _EQUATION.finditer(text):
        # "6 apples * 1/3 = 2" is about more than "1/3 = 2"
        before, after = text[: found.start()].rstrip()[-1:], text[found.end() :]
        if before in tuple("-+*/x×÷−=") or _PART_OF_MORE.match(after):
            continue
        left, right = _value(found["left"]), found["right"].translate(_SIGNS)
        if left is None:
            continue
        result = Decimal(right.rstrip("%"))
        places = Decimal(1).scaleb(int(result.as_tuple().exponent))
        # 1/4 = 25% is right, and so is 5 * 5 = 25% where percents are counted
        scales = (Decimal(1), Decimal(100)) if right.endswith("%") else (Decimal(1),)
        if all(abs(left * scale - result) > places / 2 for scale in scales):
            return found.end()
    return None


def _value(expression: str) -> Decimal | None:
    """Compute sums, products and brackets; None for what is none."""
    plain = re.sub(r"([\d.]+)%", r"(\1/100)", expression.translate(_SIGNS))
    tokens = re.findall(r"\d*\.?\d+|[-+*/()]", plain)
    try:
        value = _sum(tokens)
    except (IndexError, InvalidOperation, DivisionByZero, RecursionError):
        return None
    return None if tokens else value


def _sum(tokens: list[str]) -> Decimal:
    """Take a sum off the front of the tokens."""
    value = _product(tokens)
    while tokens and tokens[0] in "+-":
        value += _product(tokens) if tokens.pop(0) == "+" else -_product(tokens)
    return value


def _product(tokens: list[str]) -> Decimal:
    value = _atom(tokens)
    while tokens and tokens[0] in "*/":
        value = value * _atom(tokens) if tokens.pop(0) == "*" else value / _atom(tokens)
    return value


def _atom(tokens: list[str]) -> Decimal:
    token = tokens.pop(0)
    if token == "(":
        value = _sum(tokens)
        if tokens.pop(0) != ")":
            raise IndexError
        return value
    if token in "+-":
        return _atom(tokens) if token == "+" else -_atom(tokens)
    return Decimal(token)
