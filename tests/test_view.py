from __future__ import annotations

import io
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from parse_engine.stats import CallStats
from parse_engine.types import Generation, Usage, Verdicts
from parse_engine.view import LOSSY, comparison, generation_html, render, verdict_table
from parse_engine.view_rows import figures, rows

KEPT = "def half(x):\n"
REJECTED = "    return x * 2\n"
REWRITTEN = "    return x / 2\n"


def judged(ends: tuple[int, ...], p_correct: tuple[float, ...]) -> Verdicts:
    return Verdicts(
        *(ends, ends, p_correct, None, None, None, None, ("Correct", "Incorrect")),
        verdict=p_correct,
        kind="p_correct",
    )


def make(
    kept: str = KEPT,
    rejected: str = REJECTED,
    rewritten: str = REWRITTEN,
    verdicts: Verdicts | None = None,
    **stats: object,
) -> Generation:
    figures = {
        "mode": "parse",
        "drafted_tokens": 12,
        "accepted_tokens": 5,
        "accepted_fraction": 5 / 12,
        "regenerated_tokens": 7,
        "prefixes": 2,
        "threshold": 0.8,
        "draft_s": 1.5,
        "verify_s": 0.25,
        "regenerate_s": 2.0,
        "target_tokens_processed": 77,
        **stats,
    }
    return Generation(
        text=kept + rewritten,
        reasoning="",
        finish_reason="stop",
        usage=Usage(10, 12),
        stats=CallStats(**figures),  # type: ignore[arg-type]
        verdicts=verdicts,
        token_ids=(),
        draft_text=kept + rejected,
        accepted_text=kept,
        regenerated_text=rewritten,
    )


JUDGED = make(verdicts=judged((len(KEPT), len(KEPT + REJECTED)), (0.934, 0.412)))
ALONE = make("", "", "def half(x):\n    return x / 2", mode="target", drafted_tokens=0, prefixes=0)


def plain(renderable: RenderableType, width: int = 80, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, newline="\n")
    Console(file=file, width=width, color_system=None).print(renderable)
    file.flush()
    return raw.getvalue().decode(encoding)


def coloured(renderable: RenderableType) -> str:
    file = io.StringIO()
    Console(file=file, width=80, force_terminal=True, color_system="truecolor").print(renderable)
    return file.getvalue()


def test_plain_text_tells_the_three_kinds_apart_by_signs() -> None:
    lines = plain(render(JUDGED)).splitlines()
    assert "✓ def half(x): [0.93]" in lines
    assert "✗     return x * 2 [0.41!]" in lines
    assert "+     return x / 2" in lines
    assert lines[0].startswith("PARSE ─")


def test_plain_text_carries_no_escape_sequences() -> None:
    assert "\x1b" not in plain(render(JUDGED))


def test_an_ascii_terminal_gets_ascii_signs() -> None:
    lines = plain(render(JUDGED), encoding="ascii").splitlines()
    assert "= def half(x): [0.93]" in lines
    assert "-     return x * 2 [0.41!]" in lines


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("p_correct", "the target's P(Correct) of all"),
        ("joint_prob", "probability of just these tokens"),
        ("min_prob", "probability of the least probable token"),
        ("mean_prob", "mean (geometric) probability"),
        ("min_ratio", "ratio of a token's probability"),
        ("calibrated", "the calibrated verdict"),
    ],
)
def test_the_numbers_are_those_that_were_compared(kind: Any, said: str) -> None:
    read_off = replace(
        judged((len(KEPT), len(KEPT + REJECTED)), (0.934, 0.412)),
        p_correct=None,
        verdict=(0.31, 0.00042),
        kind=kind,
    )
    shown = plain(render(make(verdicts=read_off, threshold=0.1)), width=200)
    assert said in shown
    assert "[0.31]" in shown
    assert "[0.0004!]" in shown
    assert "0.93" not in shown
    table = plain(verdict_table(KEPT + REJECTED, read_off, 0.1))
    assert ("verdict" in table) is (kind != "p_correct")
    assert "[0.0004!]" in table


def test_the_legend_explains_what_occurs_and_nothing_else() -> None:
    shown = plain(render(JUDGED), width=200)
    assert "✓ draft, kept   ✗ draft, rejected   + written by the target" in shown
    assert "P(Correct)" in shown
    assert "! under the threshold 0.8" in shown
    whole = plain(render(make(rejected="", rewritten="")), width=200)
    assert "rejected" not in whole
    assert "P(" not in whole


def test_figures_give_tokens_prefixes_and_seconds() -> None:
    assert figures(JUDGED) == [
        "12 tokens drafted",
        "5 kept (42%)",
        "7 written by the target",
        "2 prefixes judged",
        "draft 1.50 s",
        "verify 0.25 s",
        "regenerate 2.00 s",
        "77 tokens through the target",
    ]
    assert figures(replace(JUDGED, finish_reason="length"))[-1] == "stopped at the token limit"


def test_only_rejected_text_is_struck_through() -> None:
    shown = coloured(render(JUDGED))
    struck = re.findall(r"\x1b\[9;[\d;]*m([^\x1b]*)", shown)
    assert struck == ["return x * 2"]


def test_a_failing_verdict_is_red_and_a_passing_one_dim() -> None:
    shown = coloured(render(JUDGED))
    assert "\x1b[2m [0.93]" in shown
    assert re.search(r"\x1b\[38;2;215;68;62m \[0\.41!\]", shown)


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert "38;2" not in coloured(render(JUDGED))


def test_rich_markup_in_an_answer_is_shown_as_it_is() -> None:
    shown = plain(render(make("[bold red]x[/bold red] :smile: [0.50]\n", "[/]\n")))
    assert "[bold red]x[/bold red] :smile: [0.50]" in shown
    assert "✗ [/]" in shown


def test_markup_in_title_and_fallback_is_shown_as_it_is() -> None:
    shown = plain(render(make(fallback="draft broke: [/red]"), title="[b]t[/b]"))
    assert "[b]t[/b]" in shown
    assert "Speculation was not used: draft broke: [/red]" in shown


def test_control_characters_cannot_reach_the_terminal() -> None:
    hostile = make("a\x1b[2Jb\x9b31m\x07c\rd\x7f\n", "", "")
    assert "a␛[2Jb\ufffd31m␇cd␡" in plain(render(hostile))
    assert "\x1b" not in generation_html(hostile)


def test_a_cut_inside_a_line_goes_on_in_the_next_row() -> None:
    text = make("It is 4.", " Not 5.\nOr so", " Maybe 6.")
    assert [(row.kind, row.continues) for row in rows(text)] == [
        ("kept", False),
        ("rejected", True),
        ("rejected", False),
        ("rewritten", True),
    ]
    assert "✗ ... Not 5." in plain(render(text))


def test_a_rest_that_starts_with_a_line_break_starts_a_new_line() -> None:
    found = rows(make("one", "\ntwo", "\nthree"))
    assert [(row.kind, row.spans[0][0]) for row in found] == [
        ("kept", "one"),
        ("rejected", "two"),
        ("rewritten", "three"),
    ]


def test_two_verdicts_in_one_line_stand_where_their_prefixes_end() -> None:
    text = "One. Two. Three."
    found = rows(make(text, "", "", judged((5, 10, 16), (0.9, 0.8, 0.7))))
    assert [row.spans for row in found] == [(("One.", 0.9), (" Two.", 0.8), (" Three.", 0.7))]


def test_without_a_draft_all_is_written_by_the_target() -> None:
    shown = plain(render(ALONE))
    assert shown.startswith("The target model alone ─")
    assert "+ def half(x):" in shown
    assert "drafted" not in shown


def test_a_draft_alone_is_shown_as_not_judged() -> None:
    draft = make("", REJECTED, "", mode="draft", regenerated_tokens=0, prefixes=0)
    shown = plain(render(draft))
    assert "?     return x * 2" in shown
    assert "draft, not judged" in shown
    assert "rejected" not in shown


def test_a_draft_written_as_the_answer_is_shown_too() -> None:
    assert "?     return x * 2" in plain(render(make("", "", REJECTED, mode="draft")))


def test_a_kept_draft_with_a_failing_prefix_is_explained() -> None:
    verdicts = judged((len(KEPT), len(KEPT + REWRITTEN)), (0.5, 0.9))
    whole = make(KEPT + REWRITTEN, "", "", verdicts, full_verdict=0.9)
    assert "the whole draft passed, so all of it is kept" in plain(render(whole), width=140)
    assert "the whole draft passed" not in plain(render(JUDGED), width=140)


def test_a_fallback_is_said() -> None:
    reason = "the draft model failed"
    broken = make("", "", fallback=reason, drafted_tokens=0, prefixes=0)
    assert f"Speculation was not used: {reason}" in plain(render(broken))
    assert reason in generation_html(broken)
    assert reason in plain(comparison(broken, 2, ALONE, 1))


def test_an_empty_answer_is_shown() -> None:
    empty = make("", "", "")
    assert "(no text)" in plain(render(empty))
    assert "(no text)" in generation_html(empty)


def test_wide_characters_are_wrapped_by_their_width() -> None:
    shown = plain(render(make("函数返回中间的值。" * 12 + " 🙂\n", "é\u0301\n", "")), width=40)
    assert shown.count("函") == 12
    assert "🙂" in shown
    assert max(len(line.rstrip()) for line in shown.splitlines() if "函" in line) <= 21


def test_huge_answers_are_shown_in_full() -> None:
    text = "x = 1\n" * 5000 + "y" * 50_000
    huge = make(text, "", "")
    assert plain(render(huge)).count("✓ x = 1\n") == 5000
    assert plain(render(huge)).count("y") >= 50_000
    assert generation_html(huge).count("x = 1") == 5000


def test_comparison_stands_side_by_side_where_there_is_room() -> None:
    wide = plain(comparison(JUDGED, 3.75, ALONE, 7.5), width=140)
    assert any("✓ def half" in line and "+ def half" in line for line in wide.splitlines())
    narrow = plain(comparison(JUDGED, 3.75, ALONE, 7.5), width=80)
    assert not any("✓ def half" in line and "+ def half" in line for line in narrow.splitlines())
    assert "The target alone ─" in narrow


def test_comparison_gives_stages_ratio_and_the_caveat() -> None:
    shown = plain(comparison(JUDGED, 3.75, ALONE, 7.5), width=140)
    assert "2.00x the speed of the target alone" in shown
    assert "(7.50 s / 3.75 s, one run on this machine)" in shown
    assert LOSSY in shown
    for words in ("12 drafted", "5 kept (2 prefixes judged)", "7 written", "12 answered"):
        assert words in shown
    for seconds in ("1.50", "0.25", "2.00", "3.75", "7.50"):
        assert seconds in shown


def test_comparison_admits_a_loss_and_says_how_often_it_ran() -> None:
    shown = plain(comparison(JUDGED, 4, ALONE, 2, runs=3), width=140)
    assert "0.50x the speed of the target alone, so slower" in shown
    assert "median of 3 runs on this machine" in shown


def test_the_bars_follow_each_other_on_one_axis() -> None:
    lines = plain(comparison(JUDGED, 3.75, ALONE, 7.5), width=140).splitlines()
    bars = {
        stage: (line.index("━"), line.rindex("━") + 1)
        for stage in ("draft model", "target verifies", "target regenerates", "target alone")
        for line in lines
        if stage in line and "━" in line
    }
    assert bars["draft model"][1] == bars["target verifies"][0]
    assert bars["target verifies"][1] == bars["target regenerates"][0]
    half = (bars["target alone"][1] - bars["target alone"][0]) / 2
    assert bars["target regenerates"][1] - bars["draft model"][0] == pytest.approx(half, abs=1)


def test_answers_of_other_length_are_compared_by_token_too() -> None:
    shorter = replace(ALONE, usage=Usage(10, 6))
    shown = plain(comparison(JUDGED, 4, shorter, 4), width=140)
    assert "12 and 6 tokens long: for each token of the answer the ratio is 2.00x." in shown
    assert "tokens long" not in plain(comparison(JUDGED, 4, ALONE, 4), width=140)


def test_a_broken_line_of_code_keeps_its_indentation() -> None:
    lines = plain(render(make("\tif " + "some " * 12 + "thing:\n", "", "")), width=40).splitlines()
    assert [line for line in lines if line.startswith("✓")][:2] == [
        "✓     if some some some some some some",
        "✓     some some some some some some",
    ]


def test_comparison_takes_runs_of_no_time() -> None:
    assert "this machine" in plain(comparison(JUDGED, 0.0, ALONE, 0.0))


def test_the_verdict_table_shows_each_prefix_and_its_signals() -> None:
    text = KEPT + REJECTED
    verdicts = replace(JUDGED.verdicts, min_logprob=(-0.5, -4.25))  # type: ignore[type-var]
    assert verdicts is not None
    lines = plain(verdict_table(text, verdicts, 0.8)).splitlines()
    assert any("def half(x):" in line and "[0.93]" in line and "-0.50" in line for line in lines)
    assert any("return x * 2" in line and "[0.41!]" in line and "-4.25" in line for line in lines)
    assert not any("max gap" in line for line in lines)


class Page(HTMLParser):
    """Checks that elements are closed in order and collects what is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data


def page(html: str) -> Page:
    parsed = Page()
    parsed.feed(html)
    parsed.close()
    assert parsed.open == []
    return parsed


def test_html_shows_kinds_verdicts_legend_and_figures() -> None:
    shown = page(generation_html(JUDGED))
    assert "✓ def half(x): [0.93]" in shown.text
    assert "✗     return x * 2 [0.41!]" in shown.text
    assert "+     return x / 2" in shown.text
    assert "12 tokens drafted" in shown.text
    assert {"del", "ins", "pre"} <= set(shown.seen)
    assert '<small class="parse-low">[0.41!]' in generation_html(JUDGED)


def test_html_escapes_what_models_write() -> None:
    attack = '<script>alert(1)</script><img src=x onerror="x">&amp;</pre></div>'
    hostile = make(attack + "\n", attack, attack, fallback=attack)
    shown = page(generation_html(hostile))
    assert "script" not in shown.seen
    assert "img" not in shown.seen
    assert shown.text.count(attack) == 4


def test_html_needs_nothing_from_outside_and_knows_both_themes() -> None:
    html = generation_html(JUDGED)
    for outside in ("http", "url(", "@import", "<script", "src="):
        assert outside not in html
    for theme in ("prefers-color-scheme:dark", "data-jp-theme-light", "vscode-dark"):
        assert theme in html


@given(
    pieces=st.tuples(*[st.text(alphabet="ab .\n\t[<é", max_size=30)] * 3),
    places=st.lists(st.integers(1, 60), unique=True, max_size=6),
)
def test_no_text_and_no_verdict_is_lost(pieces: tuple[str, str, str], places: list[int]) -> None:
    kept, rejected, rewritten = pieces
    ends = tuple(sorted(end for end in places if end <= len(kept + rejected)))
    p_correct = tuple(number / 10 for number in range(len(ends)))
    found = rows(make(kept, rejected, rewritten, judged(ends, p_correct)))
    for kind, piece in zip(("kept", "rejected", "rewritten"), pieces, strict=True):
        lines = ["".join(text for text, _ in row.spans) for row in found if row.kind == kind]
        assert "".join(lines) == piece.replace("\n", "")
    shown = [p for row in found for _, p in row.spans if p is not None]
    assert tuple(shown) == p_correct
