"""Figures about verdicts are right, and a bound holds as often as it says."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parse_engine import (
    CalibrationError,
    ContextOverflowError,
    Engine,
    InvalidRequestError,
    ParseConfig,
    cli_calibrate,
)
from parse_engine.backends.model import Model
from parse_engine.bench import judge, verdict_rows
from parse_engine.bench.binomial import at_most, trials_needed, upper_bound
from parse_engine.bench.drafts import Drafting, LabelledDraft, make_drafts, write_batch
from parse_engine.bench.forms import Item
from parse_engine.bench.judge_summary import located
from parse_engine.bench.kept import Cutting, choose_cuts, kept_rows
from parse_engine.bench.logistic import cross_validated, fit
from parse_engine.bench.roc import at_false_accept, auc, auc_by_item, curve, reliability
from parse_engine.bench.store import Store
from parse_engine.bench.tasks import Task
from parse_engine.bench.verdict_rows import Judged
from parse_engine.binding import bind
from parse_engine.calibrate import calibrate, split, wrong_drafts
from parse_engine.calibration import Combination, logistic, read_calibration
from parse_engine.cli import main
from parse_engine.request import Sampling
from tests.calibrations import calibrated
from tests.tiny_kinds import kind_model
from tests.tiny_models import other_family, tiny_model

FAULT = {True: None, False: "it is wrong"}

labelled = st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=40)


@given(labelled)
def test_auc_is_the_share_of_pairs_in_order(drafts: list[tuple[int, bool]]) -> None:
    good = [score for score, right in drafts if right]
    bad = [score for score, right in drafts if not right]
    found = auc([score for score, _ in drafts], [right for _, right in drafts])
    if not good or not bad:
        assert math.isnan(found)
        return
    pairs = [1.0 if g > b else 0.5 if g == b else 0.0 for g in good for b in bad]
    assert found == pytest.approx(sum(pairs) / len(pairs))


@given(labelled, st.floats(0, 1))
def test_curves_count_what_each_threshold_accepts(
    drafts: list[tuple[int, bool]], most: float
) -> None:
    scores, right = [float(score) for score, _ in drafts], [truth for _, truth in drafts]
    points = curve(scores, right)
    for point in points:
        for truth, share in ((False, point.false_accept), (True, point.true_accept)):
            some = [score >= point.threshold for score, r in drafts if r is truth]
            assert share == pytest.approx(sum(some) / max(1, len(some)))
    best = at_false_accept(points, most)
    assert best.false_accept <= most
    allowed = [p.true_accept for p in points if p.false_accept <= most]
    assert best.true_accept == max(allowed, default=0.0)


def test_intervals_widen_when_drafts_of_an_item_are_alike() -> None:
    chance = random.Random(0)
    right = [n % 2 == 0 for n in range(60)]
    scores = [chance.gauss(1.0 if truth else 0.0, 1) for truth in right]
    apart = auc_by_item(scores, right, list(range(60)))
    alike = auc_by_item(scores * 2, right * 2, list(range(60)) * 2)
    apart_twice = auc_by_item(scores * 2, right * 2, list(range(120)))
    assert apart.low < apart.value < apart.high
    assert alike.high - alike.low == pytest.approx(apart.high - apart.low, rel=0.2)
    assert apart_twice.high - apart_twice.low < 0.85 * (alike.high - alike.low)


def test_reliability_bins_hold_all_answers() -> None:
    bins = reliability([n / 100 for n in range(100)], [n >= 50 for n in range(100)], bins=4)
    assert [one.count for one in bins] == [25] * 4
    assert [one.right for one in bins] == [0, 0, 1, 1]


def test_exact_bounds_agree_with_known_ones() -> None:
    assert trials_needed(0, 0.05, 0.95) == 59
    assert trials_needed(0, 0.15, 0.95) == 19
    assert upper_bound(0, 59, 0.95) == pytest.approx(1 - 0.05 ** (1 / 59))
    assert upper_bound(2, 50, 0.95) == pytest.approx(0.12061, abs=1e-4)  # Clopper-Pearson tables
    assert upper_bound(7, 7, 0.95) == 1.0


@given(st.integers(0, 60), st.integers(1, 60), st.floats(0.01, 0.99))
def test_probabilities_of_counts_add_up(seen: int, trials: int, share: float) -> None:
    exact = sum(
        math.comb(trials, k) * share**k * (1 - share) ** (trials - k)
        for k in range(min(seen, trials) + 1)
    )
    assert at_most(seen, trials, share) == pytest.approx(exact, abs=1e-9)


def test_a_fit_finds_the_weights_and_no_wrong_signs() -> None:
    chance = random.Random(1)
    rows, right = [], []
    for _ in range(4000):
        least, gap = -chance.expovariate(0.5), chance.expovariate(0.5)
        rows.append({"min_logprob": least, "max_gap": gap, "p_correct": chance.random()})
        right.append(chance.random() < logistic(2 + 0.8 * least + 0.3 * gap))
    found = fit(rows, right, ("p_correct", "min_logprob", "max_gap"))
    assert found.min_logprob == pytest.approx(0.7, abs=0.2)
    assert found.p_correct == pytest.approx(0, abs=0.1)
    assert found.max_gap == pytest.approx(0, abs=0.01)  # it counts the wrong way: left out


def test_cross_validation_does_not_see_the_item_it_judges() -> None:
    # every item has its own level, which tells nothing of other items
    rows = [{"min_logprob": -float(n % 7)} for n in range(70)]
    right = [random.Random(n // 2).random() < 0.5 for n in range(70)]
    found = cross_validated(rows, right, [n // 2 for n in range(70)], ("min_logprob",))
    assert abs(auc(found, right) - 0.5) < 0.2


# Calibration on drafts that are made up: a verdict that tells something

HOW = Drafting(samples=2, temperature=0.8, seed=0, limit=320, batch=8)
SAMPLING = Sampling(temperature=0.8)


def drafts_of(
    items: int,
    seed: int,
    *,
    samples: int = 2,
    strength: float = 1.5,
    wrong: float = 0.5,
    lift: float = 0.0,
) -> list[Judged]:
    """Make up drafts; those without temperature look better by ``lift``, right or wrong."""
    chance = random.Random(seed)
    found = []
    for item in range(items):
        hard = chance.random() < wrong
        for sample in range(samples):
            right = not hard if chance.random() < 0.8 else hard
            level = chance.gauss(strength if right else 0, 1) + (0 if sample else lift)
            signals = {
                "p_correct": tuple(logistic(chance.gauss(0.3 * right, 1)) for _ in range(2)),
                "mean_logprob": (-0.5, -0.5 + 0.05 * level),
                "min_logprob": (-3 + level, -3.5 + level),
                "max_gap": (3 - level, 3 - level),
            }
            draft = LabelledDraft("t", str(item), sample, (1,) * 10, "x = 1", True, FAULT[right])
            found.append(Judged(draft, (4, 10), (2, 5), signals))
    return found


def false_accepts(found: Any, judged: Sequence[Judged]) -> list[float]:
    """Return the share of wrong drafts that is accepted, without temperature and with it."""
    shares = []
    for sampled in (False, True):
        wrong = [o for o in judged if not o.draft.right and bool(o.draft.sample) is sampled]
        passed = [found.combination.verdict(one.at(-1)) >= found.threshold for one in wrong]
        shares.append(sum(passed) / len(passed))
    return shares


def test_the_bound_holds_as_often_as_it_says() -> None:
    fresh = drafts_of(4000, seed=10_000, lift=1.0)
    broken = accepted = 0
    for seed in range(30):
        found = calibrate(
            drafts_of(160, seed, lift=1.0), 0.15, 0.9, replace(HOW, seed=seed), 160, SAMPLING
        )
        broken += any(share > 0.15 for share in false_accepts(found, fresh))
        accepted += found.true_accept > 0.2
    # a share of 0.1 may break it: more than 7 of 30 would come of that once in a hundred times
    assert broken <= 7
    assert accepted > 24


def test_halves_have_no_item_in_common() -> None:
    judged = drafts_of(41, seed=3)
    first, second = split(judged, 0)
    assert not {one.draft.item for one in first} & {one.draft.item for one in second}
    assert len(first) + len(second) == len(judged)


def test_the_drafts_that_count_are_drawn_before_it_is_known_which_are_right() -> None:
    judged = drafts_of(400, seed=1, samples=9, wrong=0.3)
    wrong = wrong_drafts(judged, replace(HOW, samples=9))
    assert {one.draft.sample for one in wrong[0.0]} == {0}
    items = [one.draft.item for one in wrong[0.8]]
    assert len(set(items)) == len(items)
    # as many as one draft an item has, and not as many as any of eight
    assert len(items) == pytest.approx(len(wrong[0.0]), rel=0.25)


def unlike(judged: list[Judged]) -> list[Judged]:
    """Make the wrong drafts of the half for the bound look best of all."""
    first, second = split(judged, 0)
    best = {"p_correct": (0.99,), "mean_logprob": (0.0,), "min_logprob": (9.0,), "max_gap": (0.0,)}
    return first + [one if one.draft.right else replace(one, signals=best) for one in second]


@pytest.mark.parametrize(
    ("judged", "most", "said"),
    [
        (drafts_of(60, seed=0), 0.05, "takes 59"),
        (drafts_of(60, seed=0), 0.01, "takes 299"),
        ([one for one in drafts_of(60, seed=0) if one.draft.right], 0.15, "more items"),
        (unlike(drafts_of(120, seed=0)), 0.15, "More items would not help"),
        ([one for one in drafts_of(120, seed=0) if not one.draft.right], 0.15, "easier items"),
        (drafts_of(60, seed=0)[::2], 0.05, "without temperature"),
        (drafts_of(60, seed=0), 0.05, "--samples 1"),
        (drafts_of(60, seed=0)[:60], 0.05, "30 items have no finished draft"),
    ],
)
def test_what_the_data_cannot_support_is_not_promised(
    judged: list[Judged], most: float, said: str
) -> None:
    with pytest.raises(CalibrationError, match=said):
        calibrate(judged, most, 0.95, HOW, 60, SAMPLING)


def test_cuts_that_keep_right_text_and_no_wrong_text_are_chosen() -> None:
    def judged(right: bool, *levels: float) -> Judged:
        draft = LabelledDraft("t", "1", 0, (1,) * 9, "x", True, FAULT[right])
        ends = tuple(3 * n for n in range(1, len(levels) + 1))
        return Judged(draft, ends, ends, {"min_logprob": levels, "mean_logprob": levels})

    verdict = Combination(bias=0.0, min_logprob=1.0)
    fine = [judged(True, 2, 1, 1), judged(False, -1, -1, -1)]
    coarse = [judged(True, 2, 1, 1), judged(False, 1, -1, -1)]
    assert choose_cuts({"auto": coarse, 4: fine}, verdict, 0.5) == Cutting(4, "unbroken", 1, 0)
    found = choose_cuts({"auto": fine, 4: coarse}, verdict, 0.5)
    assert found == Cutting("auto", "unbroken", 1, 0)
    broken = [judged(True, -1, 1, -1), judged(False, -1, -1, -1)]
    found = choose_cuts({"auto": broken}, verdict, 0.5)
    assert (found.accept_rule, found.kept_wrong) == ("longest", 0)
    assert found.kept_right == pytest.approx(2 / 3)


def test_what_is_kept_is_counted_by_verdict_rule_and_place() -> None:
    def judged(right: bool, ends: tuple[int, ...], **signals: tuple[float, ...]) -> Judged:
        return Judged(
            LabelledDraft("t", "1", 0, (1,) * 9, "x", True, FAULT[right]), ends, ends, signals
        )

    sure, unsure = 0.0, -9.0  # log-probabilities: above and below the default of min_prob
    asked = [
        judged(True, (4, 8), p_correct=(0.5, 0.99), min_logprob=(sure, sure)),
        judged(True, (4, 8, 12), p_correct=(0.5, 0.99, 0.5), min_logprob=(sure, sure, unsure)),
        judged(False, (5, 10), p_correct=(0.5, 0.5), min_logprob=(unsure, unsure)),
    ]
    cut = [judged(True, (1, 11, 12), min_logprob=(sure, sure, unsure))]
    rows = kept_rows({"brief/default": asked, "brief/terse": asked[:1]}, {"cut 1": cut})
    none = {"whole": 0.0, "tokens": 0.0}
    expected = [
        ("brief/default", "p_correct", "unbroken", {"whole": 0.5, "tokens": 8 / 20}, none),
        ("brief/default", "p_correct", "longest", {"whole": 0.5, "tokens": 16 / 20}, none),
        ("brief/terse", "p_correct", "unbroken", {"whole": 1.0, "tokens": 1.0}, None),
        ("cut 1", "min_prob", "unbroken", {"whole": 0.0, "tokens": 11 / 12}, None),
    ]
    assert [tuple(row.values()) for row in rows] == expected


def test_errors_are_located_where_the_first_false_equation_is() -> None:
    text = "2 + 2 = 4\n3 * 3 = 10\n1 + 1 = 2\n"
    draft = LabelledDraft("t", "1", 0, (1,) * 9, text, True, "it is wrong")
    ends = (110, 121, 131)  # a thought of 100 characters comes before the text

    def judged(*levels: float) -> Judged:
        return Judged(draft, (3, 6, 9), ends, {"p_correct": levels, "mean_logprob": levels})

    cases = {
        "before": (0.1, 0.9, 0.9), "at": (0.9, 0.2, 0.9),
        "after": (0.9, 0.9, 0.1), "never": (0.9, 0.9, 0.9),
    }  # fmt: skip
    found = located([judged(*levels) for levels in cases.values()], lambda s: s["p_correct"], 0.5)
    assert found == {"drafts": 4, "before": 1, "at": 1, "after": 1, "never": 1}


# On tiny models


def talkative(seed: int, ends: int = 60) -> Model:
    """A tiny model in which many tokens end a turn, so that its answers have some end."""
    model = tiny_model(seed=seed)
    network = deepcopy(model.network)
    usual = [i for i in range(len(model.tokenizer)) if i not in model.tokenizer.all_special_ids]
    network.generation_config.eos_token_id = [model.tokenizer.eos_token_id, *usual[5::6][:ends]]
    return Model(f"talkative-{seed}", network, model.tokenizer)


def test_a_batch_writes_what_each_prompt_alone_gets() -> None:
    model = talkative(1)
    asks = ["Hi", "What is that, and why? Say it again.", "So?"]
    prompts = [model.render([{"role": "user", "content": ask}]).ids for ask in asks]
    together = write_batch(model, prompts, 12, Sampling())
    alone = [write_batch(model, [ids], 12, Sampling())[0] for ids in prompts]
    assert together == alone
    for ids, written in zip(prompts, together, strict=True):
        plain = model.write(ids, limit=12, sampling=Sampling(), on_token=lambda _: False)
        assert written == plain


def test_drafts_are_those_that_the_engine_would_judge(tmp_path: Path) -> None:
    engine = Engine(tiny_model(seed=0), talkative(1), ParseConfig(threshold=0))
    asks = ("Hi", "What is that?", "So?", "Say it again, but longer.")
    items = tuple(Item(ask, ({"role": "user", "content": ask},), len) for ask in asks)
    store = Store(tmp_path)
    store.open({})
    how = Drafting(samples=2, temperature=1.0, seed=3, limit=15, batch=3)
    drafts = list(
        make_drafts(
            engine, [Task("t", items)], how, store, lambda i, t: None if "a" in t else "no a"
        )
    )
    assert [draft.sample for draft in drafts] == [0] * 4 + [1] * 4
    for draft in drafts[:4]:
        ask = [{"role": "user", "content": draft.item}]
        answer = engine.generate(ask, max_new_tokens=15, temperature=0)
        if draft.ids:
            assert answer.token_ids[: len(draft.ids)] == draft.ids
            assert answer.stats.drafted_tokens == len(draft.ids)
            assert draft.complete == (
                answer.stats.regenerated_tokens == 0 and answer.finish_reason == "stop"
            )
        assert draft.right == ("a" in draft.text)
    assert any(one.ids != other.ids for one, other in zip(drafts[:4], drafts[4:], strict=True))


@pytest.fixture
def tiny_pair(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Stands for the models that the options name."""
    engine = Engine(tiny_model(seed=0), talkative(1))

    def open_engine(parser: Any, args: Any, config: ParseConfig | None = None) -> Engine:
        return Engine(engine.target, engine.draft, config)

    for module in (judge, cli_calibrate):
        monkeypatch.setattr(module, "open_engine", open_engine)
    return engine


def task_file(folder: Path, count: int, **more: Any) -> Path:
    path = folder / "task.jsonl"
    lines = [json.dumps({"prompt": f"Say {n} of {n * 7}.", **more}) for n in range(count)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_judge_measures_and_goes_on_where_it_was(
    tmp_path: Path, tiny_pair: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    path = task_file(tmp_path, 24, answer="a", checker="contains")
    argv = ["bench", "judge", "--tasks", str(path), "--out", str(tmp_path / "out")]
    argv += ["--max-new-tokens", "24", "--layouts", "brief,quote", "--wordings", "default,yes_no"]
    argv += ["--cuts", "line,3"]
    assert main(argv) == 0
    shown = capsys.readouterr().out
    assert "| brief/default | AUC |" in shown
    assert "| cut auto | AUC |" in shown
    assert "| quote/yes_no | AUC |" in shown
    assert "| cut 3 | accept_prob | unbroken |" in shown
    assert "not lossless" in shown
    rows = (tmp_path / "out" / "results.jsonl").read_text().splitlines()
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    (task,) = summary["tasks"]
    assert task["complete"]["drafts"] + task["cut_off"]["drafts"] == 48
    signals = {"brief/default": ("p_correct", "all"), "cut auto": ("min_prob", "log-probabilities")}
    for way, names in signals.items():
        for signal in names:
            assert 0 <= task["ways"][way][signal]["auc"]["value"] <= 1
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("<svg") == 15
    assert "<th>quote/yes_no</th><th>AUC</th>" in page
    assert "|" not in page
    assert "<h2>task</h2>" in page
    # the last verdict and half of the one before are lost: only these are made again
    text = "\n".join(rows[:-1])
    (tmp_path / "out" / "results.jsonl").write_text(text[:-20])
    assert main(argv) == 0
    assert capsys.readouterr().out == shown
    assert (tmp_path / "out" / "results.jsonl").read_text().splitlines()[-2:] == rows[-2:]


def test_calibrate_writes_what_the_engine_takes(
    tmp_path: Path, tiny_pair: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    path = task_file(tmp_path, 100, answer="a", checker="contains")
    out = tmp_path / "calibration.json"
    argv = ["calibrate", "--tasks", str(path), "--out", str(out), "--max-new-tokens", "24"]
    argv += ["--max-false-accept", "0.5", "--cuts", "auto,4"]
    assert main(argv) == 0
    shown = capsys.readouterr().out
    made = read_calibration(out)
    for one in made.bound.tested:
        assert f"{one.accepted} of {one.wrong_items}" in shown
    assert [one.temperature for one in made.bound.tested] == [0, 0.8]
    assert made.bound.max_new_tokens == 24
    assert made.bound.false_accept == 0.5
    assert made.task == "task"
    engine = Engine(tiny_pair.target, tiny_pair.draft, ParseConfig(calibration=str(out)))
    answer = engine.generate([{"role": "user", "content": "Say 1."}], max_new_tokens=20)
    assert answer.stats.verdict_kind == "calibrated"
    assert answer.stats.threshold == made.threshold
    assert "Chosen: " in shown
    assert "logprob" not in shown  # verdicts have the names that every other command gives them
    assert main([*argv[:-1], "auto"]) == 0  # nothing is drafted or judged again
    assert "voids the confidence" not in capsys.readouterr().out
    assert main([*argv, "--confidence", "0.9"]) == 0
    assert "tested for 0.5 with confidence 0.95 before" in capsys.readouterr().out
    assert main([*argv, "--max-false-accept", "0.999"]) == 0
    assert "at most 99.9% of the wrong drafts" in capsys.readouterr().out
    assert main(argv) == 0
    capsys.readouterr()
    argv = [
        "bench",
        "judge",
        "--tasks",
        str(path),
        "--max-new-tokens",
        "24",
        "--calibration",
        str(out),
    ]
    assert main([*argv, "--out", str(tmp_path / "out")]) == 0
    assert "The calibration accepts" in capsys.readouterr().out


def test_calibrate_refuses_and_writes_nothing(
    tmp_path: Path, tiny_pair: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    path = task_file(tmp_path, 8, answer="a", checker="contains")
    out = tmp_path / "calibration.json"
    assert (
        main(["calibrate", "--tasks", str(path), "--out", str(out), "--max-new-tokens", "9"]) == 1
    )
    assert "takes 19" in capsys.readouterr().err
    assert not out.exists()


def test_without_answers_the_targets_own_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = talkative(0)
    pair = Engine(target, talkative(0, ends=50))
    monkeypatch.setattr(
        cli_calibrate,
        "open_engine",
        lambda parser, args, config: Engine(target, pair.draft, config),
    )
    path = task_file(tmp_path, 40)
    out = tmp_path / "calibration.json"
    argv = ["calibrate", "--tasks", str(path), "--out", str(out), "--max-new-tokens", "40"]
    main([*argv, "--agree", "exact", "--max-false-accept", "0.6"])
    rows = [
        json.loads(line)
        for line in (tmp_path / "calibration.json.rows" / "results.jsonl").read_text().splitlines()
    ]
    answers = {row["item"]: row["answer"] for row in rows if row["method"] == "target"}
    finished = {r["item"] for r in rows if r["method"] == "target" and r["finish_reason"] == "stop"}
    drafts = [row for row in rows if "text" in row]
    assert {row["item"] for row in drafts} == finished
    for row in drafts:
        same = row["text"].strip().casefold() == answers[row["item"]].strip().casefold()
        assert (row["fault"] is None) is same
    assert any(row["fault"] is None for row in drafts)


def judge_argv(tmp_path: Path, count: int = 12, *more: str) -> list[str]:
    path = task_file(tmp_path, count, answer="a", checker="contains")
    argv = ["bench", "judge", "--tasks", str(path), "--out", str(tmp_path / "out")]
    return [*argv, "--max-new-tokens", "24", *more]


def test_judge_measures_a_draft_model_with_another_tokenizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        judge, "open_engine", lambda _, __, config: Engine(tiny_model(), other_family(), config)
    )
    assert main(judge_argv(tmp_path, 12, "--cuts", "line")) == 0
    shown = capsys.readouterr().out
    assert "joint_prob" in shown
    assert "accept_prob" not in shown


def test_drafts_of_other_models_of_the_same_names_are_not_gone_on_with(
    tmp_path: Path, tiny_pair: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = judge_argv(tmp_path)
    assert main(argv) == 0
    trained = Engine(tiny_pair.target, talkative(2))
    monkeypatch.setattr(judge, "open_engine", lambda _, __, config: trained)
    with pytest.raises(InvalidRequestError, match="other models of these names"):
        judge.main([*argv[2:], "--samples", "3"])


def test_what_does_not_fit_is_not_judged_and_no_obstacle(
    tmp_path: Path,
    tiny_pair: Engine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def narrow(*args: Any) -> Any:
        raise ContextOverflowError("It does not fit.", "Shorten it.")

    argv = judge_argv(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(verdict_rows, "judge_draft", narrow)
        assert main(argv) == 0
    first = capsys.readouterr().out
    assert "brief/default: 0 right, 0 wrong: too few" in first
    monkeypatch.setattr(judge, "open_engine", None)  # nothing is left to do
    assert main(argv) == 0
    assert capsys.readouterr().out == first


def test_verdicts_of_another_layout_do_not_pass_for_those_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target, draft = kind_model("gpt2"), talkative(1)  # learned positions: no brief before them
    assert Engine(target, draft).layout == "quote"
    monkeypatch.setattr(
        judge, "open_engine", lambda parser, args, config: Engine(target, draft, config)
    )
    assert main([*judge_argv(tmp_path), "--layouts", "brief,quote"]) == 0
    shown = capsys.readouterr().out
    (task,) = json.loads((tmp_path / "out" / "summary.json").read_text())["tasks"]
    judged = sum(
        row["method"].startswith("quote") for row in Store(tmp_path / "out").rows().values()
    )
    assert judged > 0
    assert task["unjudged"] == {"brief/default": judged, "quote/default": 0, "cut auto": 0}
    assert f"brief/default: {judged} finished drafts are left out" in shown
    assert "quote/default: 0 finished" not in shown


def test_a_calibration_is_tried_where_it_was_made(
    tmp_path: Path, tiny_pair: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = Engine(tiny_pair.target, tiny_pair.draft, ParseConfig(judge_layout="quote"))
    _, made = calibrated()
    binding = bind(engine.target, engine.draft, engine.ability, engine.config, asks_judge=True)
    assert binding.layout == "quote"
    file = tmp_path / "made.json"
    replace(made, binding=binding).save(file)
    argv = judge_argv(tmp_path, 24, "--calibration", str(file))
    with pytest.raises(SystemExit):
        main(argv)
    assert "takes quote among --layouts" in capsys.readouterr().err
    assert main([*argv, "--layouts", "brief,quote"]) == 0
    assert "The calibration accepts" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["calibrate"], ["bench", "judge"]])
def test_a_prompt_that_does_not_fit_is_named_before_anything_is_drafted(
    command: list[str], tmp_path: Path, tiny_pair: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    path = task_file(tmp_path, 4, answer="a", checker="contains")
    with path.open("a") as out:
        out.write(json.dumps({"prompt": "so " * 9000, "id": "long", "answer": "so"}))
    argv = [*command, "--tasks", str(path), "--out", str(tmp_path / "out")]
    assert main([*argv, "--max-new-tokens", "5"]) == 1
    assert "Item long of task: The prompt has" in capsys.readouterr().err
    results = [*tmp_path.glob("out*/results.jsonl")]
    assert not results


def test_promises_that_are_none_and_places_for_no_file_are_refused_at_once(
    tmp_path: Path, tiny_pair: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    path = task_file(tmp_path, 4, answer="a", checker="contains")
    argv = ["calibrate", "--tasks", str(path), "--out"]
    for place in (str(tmp_path), "", str(path / "made.json"), str(path / "in" / "a"), "a" * 300):
        assert main([*argv, place]) == 1
        assert "cannot be written" in capsys.readouterr().err
    place = str(tmp_path / "made.json")
    assert main([*argv, place, "--rows", place]) == 1
    assert "as --out is" in capsys.readouterr().err
    assert main([*argv, str(path)]) == 1
    assert "is there already, and is no calibration" in capsys.readouterr().err
    wrong = [str(tmp_path / "new" / "made.json"), "--labels", "Yes,Yes"]
    assert main([*argv, *wrong]) == 1
    assert "labels is ('Yes', 'Yes')" in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == [path]
    for confidence in ("0.0001", "1", "0"):
        with pytest.raises(SystemExit):
            main([*argv, str(tmp_path / "made.json"), "--confidence", confidence])
    assert "less sure than a coin" in capsys.readouterr().err


def test_a_prompt_that_stands_there_twice_is_refused_before_anything_is_drafted(
    tmp_path: Path, tiny_pair: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    path = task_file(tmp_path, 4, answer="a", checker="contains")
    lines = path.read_text().splitlines()
    again = json.dumps({**json.loads(lines[0]), "id": "again"})
    path.write_text("\n".join([*lines, again]) + "\n")
    assert main(["calibrate", "--tasks", str(path), "--out", str(tmp_path / "made.json")]) == 1
    assert "again of task have the same prompt" in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == [path]


def test_folders_of_other_commands_are_refused(tmp_path: Path, tiny_pair: Engine) -> None:
    argv = judge_argv(tmp_path, 4)
    assert main(argv) == 0
    files = argv[argv.index("--tasks") + 1], argv[argv.index("--out") + 1]
    calibrating = ["--tasks", files[0], "--out", str(tmp_path / "made.json"), "--rows", files[1]]
    with pytest.raises(InvalidRequestError, match="by bench judge, not calibrate"):
        cli_calibrate.main(calibrating)


def test_answers_without_a_number_are_not_compared_by_it(
    tmp_path: Path, tiny_pair: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    path = task_file(tmp_path, 4)
    argv = ["calibrate", "--tasks", str(path), "--out", str(tmp_path / "made.json")]
    assert main([*argv, "--max-new-tokens", "5"]) == 1
    assert "has no number to compare" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [
        *(["--max-false-accept", "15"], ["--temperature", "-1"], ["--layouts", ","]),
        *(["--cuts", ","], ["--cuts", "words"]),
    ],
)
def test_wrong_options_are_usage_errors(
    tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main([*judge_argv(tmp_path), *options])
    assert end.value.code == 2
    assert options[1].strip() in capsys.readouterr().err
