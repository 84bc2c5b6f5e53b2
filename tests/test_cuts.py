# ruff: noqa: RUF001 - the punctuation of other scripts is meant
from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from parse_engine.cuts import cut_points
from parse_engine.errors import InvalidRequestError
from parse_engine.types import Cut, Draft

ALL = 10**9  # more prefixes than any draft has
untimed = settings(deadline=None)


def draft_of(text: str, *, size: int = 1) -> Draft:
    """A draft whose tokens are ``size`` characters long."""
    ends = [min(start + size, len(text)) for start in range(0, len(text), size)]
    return Draft(tuple(range(len(ends))), text, tuple(ends), True)


def draft_of_tokens(*tokens: str) -> Draft:
    """A draft of the given tokens; an empty one stands for a special token without text."""
    ends = [len("".join(tokens[:count])) for count in range(1, len(tokens) + 1)]
    return Draft(tuple(range(len(tokens))), "".join(tokens), tuple(ends), True)


def units(draft: Draft, rule: Any) -> list[str]:
    """The pieces of a draft between its cuts."""
    ends = [0, *(cut.chars for cut in cut_points(draft, rule, ALL))]
    return [draft.text[start:end] for start, end in pairwise(ends)]


def check(marked: str, *rules: Any) -> None:
    """Cut a text and find the cuts where ``¦`` stands, whatever the rule of those given."""
    for rule in rules:
        assert units(draft_of(marked.replace("¦", "")), rule) == marked.split("¦"), rule


# Pieces that mean something to the rules, one a word; "_" is a space, "$" a newline.
PIECES = r"""
    Dr._No e.g._this 3.14 Yes. _Why?! ... … 好。 「はい！」 1._ **a.**_ $ $$ __$ _ ``` ```python$
    $```$ ~~~$ x_=_1$ { } [ ] , : " \ "key":_ {"a":_[1,_{"b":_"},_"}]} null [1,_2 <tool_call>
    </tool_call> <tool_call>${"name":_"f"}$</tool_call>$ é e+ 🎉 👩+👩+👧 🇩🇪 नमस्ते। 한국어. def_f():$
    ____return_1;$
"""
words = [word.translate({95: " ", 36: "\n", 43: "\u200d\u0301"}) for word in PIECES.split()]
words += ["\r\n", "\t", "\u2028", "\ufeff", "\x00"]
texts = st.lists(st.sampled_from(words) | st.text(max_size=4), max_size=30).map("".join)
rules: Any = st.sampled_from(["auto", "line", "sentence", 1, 2, 7])
counts = st.integers(1, 40)


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    """Tokens of one or more bytes, some without text; the last may end in half a character."""
    data = draw(texts).encode()
    data = data[: max(len(data) - draw(st.integers(0, 3)), 0)]
    size = draw(st.sampled_from([1, 2, 3, 8, 40]))
    without_text = draw(st.lists(st.integers(0, len(data)), max_size=5)) if data else []
    ends: list[int | None] = []
    for stop in sorted(
        [*without_text, *(min(n + size, len(data)) for n in range(0, len(data), size))]
    ):
        head = data[:stop].decode(errors="ignore")
        ends.append(len(head) if len(head.encode()) == stop else None)
    text = data.decode(errors=draw(st.sampled_from(["ignore", "replace"])))
    return Draft(tuple(range(len(ends))), text, tuple(ends), False)


@untimed
@given(drafts(), rules, counts)
@example(Draft((), "", (), True), "auto", 3)
@example(Draft((1, 2), "", (None, None), False), "auto", 3)
@example(Draft((1, 2), "", (0, 0), True), 1, 3)
@example(Draft((1, 2, 3), "a\ufffd", (1, None, None), False), 1, 3)
def test_cuts_increase_stay_between_characters_and_end_with_the_whole_draft(
    draft: Draft, rule: Any, max_prefixes: int
) -> None:
    cuts = cut_points(draft, rule, max_prefixes)
    whole = (Cut(len(draft.ids), len(draft.text)),) if draft.ids else ()
    assert cuts[-1:] == whole
    assert len(cuts) <= max_prefixes
    assert cut_points(draft, rule, 1) == whole
    for cut in cuts[:-1]:
        assert draft.char_ends[cut.tokens - 1] == cut.chars > 0
    for shorter, longer in pairwise(cuts):
        assert shorter.tokens < longer.tokens
        assert shorter.chars < longer.chars  # no two prefixes with the same text


@untimed
@given(drafts(), rules, counts)
def test_a_limit_picks_among_the_cuts_and_uses_all_it_may(
    draft: Draft, rule: Any, max_prefixes: int
) -> None:
    everything = cut_points(draft, rule, ALL)
    some = cut_points(draft, rule, max_prefixes)
    assert set(some) <= set(everything)
    assert len(some) == min(max_prefixes, len(everything))


@untimed
@given(drafts(), st.sampled_from(["auto", "line", "sentence"]))
def test_every_unit_has_a_letter_or_digit(draft: Draft, rule: Any) -> None:
    found = units(draft, rule)
    assert len(found) <= 1 or all(any(map(str.isalnum, unit)) for unit in found)


@untimed
@given(st.integers(1, 300), counts)
def test_cuts_are_spread_evenly_over_tokens(length: int, max_prefixes: int) -> None:
    cuts = cut_points(draft_of("x" * length), 1, max_prefixes)
    steps = [b - a for a, b in pairwise([0, *(cut.tokens for cut in cuts)])]
    assert max(steps) - min(steps) <= 1


def test_where_cuts_are_rare_the_nearest_are_taken() -> None:
    draft = draft_of("a\nb\nc\nd\ne\n" + "x" * 40 + "\n" + "y" * 48)
    assert [cut.tokens for cut in cut_points(draft, "line", 2)] == [51, 99]
    assert [cut.tokens for cut in cut_points(draft, "line", 3)] == [10, 51, 99]
    assert cut_points(draft_of("x" * 47 + "\n" + "y" * 60 + "\nz"), "line", 2)[0].tokens == 48


# --- tokens ---------------------------------------------------------------------------------------


def test_every_n_tokens() -> None:
    check("????¦????¦??", 4)
    check("????¦????", 4)
    check("???", 4)
    ends = (1, None, None, None, 2, 3, 4, None, None, 5)
    draft = Draft(tuple(range(10)), "a🎉bc好", ends, True)
    assert cut_points(draft, 2, ALL) == (Cut(5, 2), Cut(6, 3), Cut(10, 5))


def test_a_cut_moves_to_the_end_of_the_token_that_goes_over_it() -> None:
    draft = draft_of_tokens("a", " =", " 1", "\n    ", "b", " = 2\n", "\n", "c")
    assert units(draft, "line") == ["a = 1\n    ", "b = 2\n\n", "c"]
    draft = draft_of_tokens('{"', "a", '":"', "x", '","', "b", '":', "1", "}")
    assert units(draft, "auto") == ['{"a":"x","', 'b":1}']
    assert units(draft_of_tokens("a\nb\nc", "\nd"), "line") == ["a\nb\nc", "\nd"]


def test_of_two_prefixes_with_the_same_text_the_longer_stays() -> None:
    draft = draft_of_tokens("", "one\n", "", "two\n", "", "")
    assert cut_points(draft, "line", ALL) == (Cut(2, 4), Cut(6, 8))
    assert cut_points(draft, 1, ALL) == (Cut(3, 4), Cut(6, 8))


def test_a_draft_that_ends_in_half_a_character() -> None:
    draft = Draft((1, 2, 3, 4), "a\nb", (1, 2, 3, None), False)
    assert cut_points(draft, "line", ALL) == (Cut(2, 2), Cut(4, 3))
    assert cut_points(draft, 3, ALL) == (Cut(4, 3),)


# --- lines and sentences --------------------------------------------------------------------------


def test_lines() -> None:
    check("one\n\n  \n\n¦  two\n¦three", "line")
    check("one\r\n\r\n¦two\r\n¦three\r\n", "line")
    check("{\nint main()\n{\n¦  f();\n}\n\n¦g();\n", "line")  # a lone brace is no unit


@untimed
@given(st.lists(st.from_regex(r"[ \t]*[a-z0-9][ -;=-_a-z]*", fullmatch=True)))
def test_every_line_is_a_unit(lines: list[str]) -> None:
    text = "".join(line + "\n" for line in lines)
    assert units(draft_of(text), "line") == text.splitlines(keepends=True)


def test_a_line_that_opens_a_fence_is_no_unit() -> None:
    check("Here:\n\n¦```python\nx = 1\n¦y = 2\n```\n¦Done", "line", "sentence", "auto")


@pytest.mark.parametrize(
    "marked",
    [
        "One.¦ Two!¦ Three?¦ Four…¦ Five",
        "He said: “Go.”¦ Then (as I saw.)¦ Ann left.¦ Really?!¦ Yes.",
        "**It is bold.**¦ It is not.\n¦A line\n\n¦End",
        "今天很好。¦我们走吧！¦“好。”¦他说。¦「はい。」¦と言った。¦次？",
        "यह एक है।¦ वह दो है।",
        "It is 16 - 3 = 13.¦ So 13 * 2 = 26.\n¦1 + 1 = 2.¦ 2 + 2 = 4.",
        "The answer is no.¦ Next we ask.",
        "1. First.¦ More.\n¦2. Second.\n¦- **3.** Third\n¦a. Last.",
        "Use a tool, e.g. Python or i.e. C, here",
        "Dr. Smith and Mrs. Jones met Prof. Ito and J. R. R. Tolkien",
        "The U.S. Army, z.B. Fort Knox",
        "Pi is 3.14 and version 1.2.3 of foo.py is at example.com/a.b",
        "See Fig. 3, No. 5 and p. 12; Smith et al. (2020) say so, etc. and so on",
        "Wait... what is this… thing?¦ “Stop!” he cried",
        ". . . ? !",
    ],
)
def test_sentences(marked: str) -> None:
    check(marked, "sentence", "auto")


# --- by content -----------------------------------------------------------------------------------


def test_auto_cuts_code_by_line() -> None:
    check('def f(x):\n¦    """Add. Then stop."""\n¦    return x + 1\n\n\n¦print(f(1))\n', "auto")
    check("int main()\n{\n¦  f(); // One. Two\n}\n", "auto")


def test_auto_cuts_prose_around_a_fence_by_sentence_and_the_fence_by_line() -> None:
    check(
        "Sure.¦ Here it is:\n\n¦```python\n# One. Two.\n¦x = 1\n```\n\n¦It works.¦ Try it.", "auto"
    )
    check("```py\na = 1\n¦b. C", "auto")
    check("````md\n```py\n¦One. Two\n```\n¦Three\n````\n¦So it is.¦ Yes.", "auto")


def test_auto_takes_lists_and_equations_for_prose() -> None:
    check("Plan:\n\n¦  - **One**, and\n¦  - Two = 2\n\n¦So x = 2.¦ It is done.", "auto")


@pytest.mark.parametrize("text", ["```python\n", "```json\n{", "```", "{", "\n\n", "</tool_call>"])
def test_too_little_for_a_cut_is_the_whole_draft_only(text: str) -> None:
    check(text, "auto")


def test_auto_cuts_after_each_tool_call() -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {"text": "One. Two.\\n```"}}\n</tool_call>'
    check(f"Let me see.¦ I look.\n¦{call}\n¦{call}¦{call}", "auto")
    check('<tool_call>\n{"name": "f",¦ "arguments": {"a": 1,¦ "b": "cut o', "auto")


def test_auto_cuts_json_after_each_member() -> None:
    check(r'{"a":"x, }\" ] y",¦"b":{"c":"\\",¦"d":{"e":[1,¦2],¦"f":[]}},¦"g":true}', "auto")
    check('```json\n{\n  "a": 1,¦\n  "b": {"c": "One. Two.",¦ "d": "it\'s', "auto")
    check('{"a": 1}¦\n{"a": 2}\n', "auto")


def test_brackets_alone_make_no_json() -> None:
    check("[1] Smith says so, and so.¦ It is true.", "auto")
    check("[a](b.c) is a link, see.¦ {x} is a set.", "auto")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('ab,:{}[]"\\\n🎉', max_size=6),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('k,{"\\'), inner),
    max_leaves=20,
).filter(lambda value: isinstance(value, list | dict))


@untimed
@given(json_values, st.sampled_from([None, 2]), st.booleans(), st.integers(0, 30))
def test_every_json_cut_ends_after_complete_members(
    value: Any, indent: int | None, minified: bool, missing: int
) -> None:
    separators = (",", ":") if minified else (", ", ": ")
    text = json.dumps(value, indent=indent, separators=separators, ensure_ascii=False)
    draft = draft_of(text[: max(len(text) - missing, 1)])
    for cut in cut_points(draft, "auto", ALL)[:-1]:
        # Closing what is open must give valid JSON; strings are taken out to count brackets.
        prefix = text[: cut.chars].removesuffix(",")
        bare = re.sub(r'"(?:\\.|[^"\\])*"', "", prefix, flags=re.DOTALL)
        while (shorter := re.sub(r"\[[^\[\]{}]*\]|\{[^\[\]{}]*\}", "", bare)) != bare:
            bare = shorter
        opened = re.sub(r"[^\[{]", "", bare)
        json.loads(prefix + opened[::-1].translate(str.maketrans("[{", "]}")))


# --- limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["auto", "line", "sentence", 3])
def test_a_megabyte_is_cut(rule: Any) -> None:
    text = "Some prose. More of it, e.g. this.\n\n```py\nx = {1: 2}\n```\n" * 18_000
    assert len(text) > 10**6
    assert len(cut_points(draft_of(text, size=4), rule, 16)) == 16


# A quadratic scan of these would take some 10**10 steps and run into the time limit of the suite.
@pytest.mark.parametrize("start", ["", "\n", "["])
@pytest.mark.parametrize(
    "piece",
    [*".\n {`~。", ".)", ",.", " \n", "[1,", '{"', "```\n", "```a\n", "<tool_call>", "Dr. "],
)
def test_long_runs_are_scanned_in_linear_time(start: str, piece: str) -> None:
    draft = draft_of(start + piece * (150_000 // len(piece)) + "`x y.", size=4)
    for rule in ("auto", "sentence"):
        assert "".join(units(draft, rule)) == draft.text


@pytest.mark.parametrize(
    ("rule", "max_prefixes"), [("lines", 3), (0, 3), (True, 3), (1.5, 3), ("auto", 0), (3, True)]
)
def test_wrong_settings_are_refused(rule: Any, max_prefixes: Any) -> None:
    with pytest.raises(InvalidRequestError):
        cut_points(draft_of("text"), rule, max_prefixes)
