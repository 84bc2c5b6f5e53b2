"""Where the members of a JSON text end."""

from __future__ import annotations

import re

_START = re.compile(r'\s*(?:\{\s*(?:["}]|\Z)|\[\s*(?:["{\[\]\-\d]|true\b|false\b|null\b|\Z))')


def json_ends(text: str) -> list[int] | None:
    """Find the ends of complete members and elements, at any depth.

    A member is complete where a comma or a closing bracket follows: a number could go on otherwise.

    Parameters
    ----------
    text : str
        Perhaps JSON: one object or array, or several in a row, the last one possibly cut off.

    Returns
    -------
    list of int or None
        Ascending character offsets, each after a comma or a closing bracket; None if the text is
        not JSON as a whole.
    """
    if not _START.match(text):
        return None
    ends: list[int] = []
    depth = 0
    quoted = escaped = False
    for end, char in enumerate(text, start=1):
        if quoted:
            quoted = escaped or char != '"'
            escaped = char == "\\" and not escaped
        elif depth == 0 and char not in " \t\r\n,{[":
            return None
        elif char == '"':
            quoted = True
        elif char in "{[":
            depth += 1
        elif char in "}]":
            depth -= 1
            ends.append(end)
        elif char == ",":
            ends.append(end)
    return ends
