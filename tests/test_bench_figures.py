"""The figures of a run are what they are called."""

from __future__ import annotations

import random
from typing import Any

import pytest

from parse_engine.bench import charts, report
from parse_engine.bench.intervals import bootstrap_median, paired_difference
from parse_engine.bench.summary import ALL, ideal_seconds, ratio_of, summarize
from parse_engine.bench.svg import apart, ticks


def row(method: str, item: int, **changes: Any) -> dict[str, Any]:
    return {
        "task": "t",
        "item": str(item),
        "category": "",
        "method": method,
        "seconds": 4.0,
        "first_s": 1.0,
        "tokens": 12,
        "finish_reason": "stop",
        "correct": True,
        "drafted": None,
        "accepted": None,
        "target_tokens": 100,
        "target_passes": {"several": 1, "one": 6},
        "stages": {"draft": 0.0, "read": 1.0, "write": 2.5, "other": 0.5},
        "prefill_s": None,
        "text": "",
        "details": {},
        **changes,
    }


def table(*rows: dict[str, Any]) -> dict[Any, dict[str, Any]]:
    return {(one["task"], one["item"], one["method"]): one for one in rows}


def test_speedup_is_the_median_of_ratios_of_the_same_items() -> None:
    rows = table(
        *(row("target", n, seconds=s) for n, s in enumerate((4.0, 6.0, 30.0))),
        *(row("parse", n, seconds=s) for n, s in enumerate((2.0, 2.0, 30.0))),
        row("parse", 9, seconds=1.0),  # no target to compare with
    )
    target, parse = summarize(rows, ["target", "parse"], ["t"])
    assert target.speedup is not None
    assert (target.speedup.value, target.speedup.low, target.speedup.high) == (1, 1, 1)
    assert parse.speedup is not None
    assert parse.speedup.value == 2.0
    assert parse.speedup.low == 1.0
    assert parse.speedup.high == 3.0
    assert parse.in_all == pytest.approx(40 / 34)
    assert parse.items == 4
    ratio = ratio_of(rows, "target", "parse")
    assert ratio is not None
    assert ratio.value == 2.0


def test_accuracy_acceptance_and_failures() -> None:
    rows = table(
        row("target", 1),
        row("target", 2),
        row("target", 3, correct=False),
        row("parse", 1, correct=False, drafted=10, accepted=5, finish_reason="length"),
        row("parse", 2, drafted=30, accepted=15),
        {"task": "t", "item": "3", "category": "", "method": "parse", "error": "E"},
        row("target", 1, task="u", correct=None),
        row("parse", 1, task="u", correct=None, drafted=0, accepted=0),
    )
    found = {
        (one.task, one.method): one for one in summarize(rows, ["target", "parse"], ["t", "u"])
    }
    parse = found["t", "parse"]
    assert (parse.right, parse.checked, parse.items, parse.failed) == (1, 2, 2, 1)
    assert parse.accepted_fraction == 0.5
    assert parse.cut_off == 1
    assert parse.difference is not None
    assert parse.difference.value == -0.5
    assert found["u", "parse"].difference is None
    assert found["u", "parse"].accepted_fraction is None
    both = found[ALL, "parse"]
    assert (both.items, both.checked, both.accepted_fraction) == (3, 2, 0.5)


def test_categories_of_a_task_have_figures_of_their_own() -> None:
    rows = table(
        *(row("target", n, category=c) for n, c in enumerate("aab")),
        *(row("draft", n, category=c, seconds=n + 1) for n, c in enumerate("aab")),
    )
    found = {(one.task, one.method): one for one in summarize(rows, ["target", "draft"], ["t"])}
    assert [key for key in found if key[1] == "draft"] == [
        *(("t", "draft"), ("t: a", "draft"), ("t: b", "draft"))
    ]
    speedup = found["t: a", "draft"].speedup
    assert speedup is not None
    assert speedup.value == 3.0
    assert found["t: b", "draft"].items == 1


def test_ideal_is_drafting_one_prefill_and_the_rewritten_tokens() -> None:
    details = {"stage_s": {"draft": 0.8}, "regenerated_tokens": 3}
    parse = row("parse", 1, seconds=3.0, prefill_s=0.7, details=details)
    target = row("target", 1)  # 6 steps in 3 seconds
    assert ideal_seconds(parse, target) == pytest.approx(0.8 + 0.7 + 3 * 0.5)
    assert ideal_seconds(row("draft", 1), target) is None
    (_, found) = summarize(table(parse, target), ["target", "parse"], ["t"])
    assert found.of_ideal is not None
    assert found.of_ideal.value == pytest.approx(1.0)


def test_bootstrap_interval_holds_the_median_in_19_of_20_samples() -> None:
    draw = random.Random(1)
    held = 0
    for _ in range(100):
        estimate = bootstrap_median([draw.gauss(2, 1) for _ in range(24)])
        assert estimate is not None
        held += estimate.low <= 2 <= estimate.high
    assert held >= 88
    assert bootstrap_median([]) is None
    assert bootstrap_median([1.0, 2.0]) == bootstrap_median([1.0, 2.0])


def test_interval_of_a_difference_of_few_items_is_not_empty() -> None:
    same = paired_difference([True] * 24, [True] * 24)
    assert same is not None
    assert same.value == 0
    assert same.low == -same.high
    assert 0.05 < same.high < 0.1
    worse = paired_difference([False] * 12 + [True] * 12, [True] * 24)
    assert worse is not None
    assert worse.value == -0.5
    assert worse.high < -0.2
    assert paired_difference([], []) is None


def test_labels_are_moved_apart_and_stay_inside() -> None:
    assert apart([10, 11, 50], 13, 100) == [10, 23, 50]
    assert apart([100, 99, 100], 13, 100) == [87, 74, 100]
    assert ticks(0, 1) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert ticks(0, 7) == [0, 2, 4, 6]


def test_few_items_have_a_range_and_no_interval() -> None:
    few = bootstrap_median([1.0, 5.0, 2.0])
    assert few is not None
    assert (few.value, few.low, few.high) == (2.0, 1.0, 5.0)


def test_what_is_said_of_a_task_with_categories_is_said_of_all_of_it() -> None:
    details = {"stage_s": {"draft": 0.8}, "regenerated_tokens": 0}
    rows = table(
        *(row("target", n, category=c) for n, c in enumerate("aab")),
        *(
            row("parse", n, category=c, seconds=s, prefill_s=0.2, details=details)
            for n, c, s in zip(range(3), "aab", (1.0, 1.0, 4.0), strict=True)
        ),
    )
    manifest = {"tasks": [{"name": "t"}]}
    found = summarize(rows, ["target", "parse"], ["t"])
    (said,) = report.notes(manifest, rows, found)
    assert said.startswith("parse: 1.00 (0.25 to 1.00) of the ideal speed")


def test_figures_that_are_missing_are_not_numbers_in_a_table() -> None:
    rows = {("t", "1", "draft"): {**row("draft", 1), "error": "E"}}
    (line,) = report.cells(summarize(rows, ["draft"], ["t"]))
    assert "nan" not in line
    assert line[2] == "0 (+ 1 failed)"


def test_charts_leave_out_what_was_not_measured() -> None:
    rows = table(row("target", 1, correct=None), row("parse", 1, correct=None))
    found = summarize(rows, ["target", "parse"], ["t"])
    shades = charts.colours(["target", "parse"])
    assert charts.accuracy("t", found, shades) is None
    assert charts.thresholds("t", found) == []
    assert charts.by_position("t", {"parse": []}, shades) is None
    assert "parse" in charts.speedups("t <&>", found, shades)
    assert "t &lt;&amp;&gt;" in charts.speedups("t <&>", found, shades)


def test_speed_and_accuracy_are_drawn_as_the_threshold_of_each_verdict_varies() -> None:
    levels = {"parse": 5e-3, "parse:accept_prob@0.0001": 1e-4, "parse:accept_prob@0.9": 0.9}
    details = {
        **{method: ("accept_prob", level) for method, level in levels.items()},
        "parse:p_correct": ("p_correct", 0.97),
        "cascade": ("accept_prob", 5e-3),
    }
    rows = table(
        row("target", 1),
        *(
            row(method, 1, details={"verdict_kind": verdict, "threshold": level})
            for method, (verdict, level) in details.items()
        ),
    )
    found = summarize(rows, ["target", *details], ["t"])
    (chart,) = charts.thresholds("t", found)  # p_correct has one threshold only
    assert "t: accept_prob" in chart
    assert chart.count("<circle") == 3 * len(levels)
    assert "at 0.0001" in chart
    shades = charts.colours(list(details))
    assert len(set(shades.values())) == len(details)
    assert charts.colours(["cascade:min_prob@0.2"]) == {"cascade:min_prob@0.2": shades["cascade"]}
