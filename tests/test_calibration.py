"""A calibration is kept whole, bound to what it was made on, and refused for all else."""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from parse_engine import (
    BoundWarning,
    CalibrationError,
    Engine,
    FallbackWarning,
    InvalidRequestError,
    ParseConfig,
    read_calibration,
)
from parse_engine.backends.model import Model
from parse_engine.binding import bind
from parse_engine.calibration import Combination
from tests.calibrations import ASKING, FREE, TEXT, calibrated
from tests.scripted import scripted
from tests.tiny_folders import save_tiny
from tests.tiny_kinds import kind_model
from tests.tiny_models import tiny_model, tiny_network
from tests.tiny_tokenizers import chat_tokenizer

ASK = [{"role": "user", "content": "What is that?"}]


@pytest.mark.parametrize("combination", [FREE, ASKING])
def test_acceptance_goes_by_the_calibration(combination: Combination) -> None:
    engine, made = calibrated(combination)
    options: Any = {"verify_order": "all", "max_prefixes": 9}
    answer = engine.generate(ASK, max_new_tokens=90, calibration=made, **options)
    assert answer.verdicts is not None
    assert answer.stats.verdict_kind == answer.verdicts.kind == "calibrated"
    assert answer.stats.threshold == made.threshold
    assert (answer.verdicts.p_correct is None) == (combination.p_correct == 0)
    assert len(answer.verdicts.ends) > 3
    for n, verdict in enumerate(answer.verdicts.verdict):
        names = ("p_correct", "mean_logprob", "min_logprob", "max_gap")
        values = {name: getattr(answer.verdicts, name) for name in names}
        signals = {name: column[n] for name, column in values.items() if column is not None}
        signals["tokens"] = answer.verdicts.token_ends[n]
        assert verdict == combination.verdict(signals)
    passed = [n for n, verdict in enumerate(answer.verdicts.verdict) if verdict >= 0.4]
    kept = answer.verdicts.token_ends[passed[-1]] if passed else 0  # its rule is the longest
    assert answer.stats.accepted_tokens == kept


def test_round_trip_through_values_and_files(tmp_path: Path) -> None:
    _, made = calibrated()
    made.save(tmp_path / "calibration.json")
    for given in (
        *(made, made.as_dict(), json.loads(json.dumps(made.as_dict()))),
        *(tmp_path / "calibration.json", str(tmp_path / "calibration.json")),
    ):
        assert read_calibration(given) == made
        assert ParseConfig(calibration=given).calibration == made


ZERO = asdict(Combination(bias=0.0, p_correct=1.0)) | {"p_correct": 0.0}
TRIED = {"temperature": 0.0, "wrong_items": 40, "accepted": 1}
RESTRICTED = {"top_p": 1.0, "top_k": 50, "min_p": 0.0, "max_new_tokens": 320}
BOUND = {"false_accept": 0.15, "confidence": 0.95, "tested": [TRIED], **RESTRICTED}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": 99}, "format 99"),
        ({"threshold": 0.0}, "was changed"),
        ({"bound": {**BOUND, "max_new_tokens": 10**9}}, "was changed"),
        ({"bound": {**BOUND, "tested": [{**TRIED, "wrong_items": 10**400}]}}, "damaged"),
        ({"threshold": 2}, "threshold"),
        ({"threshold": "high"}, "threshold"),
        ({"combination": {**ZERO, "bias": 1.0, "luck": 2.0}}, "luck"),
        ({"combination": {**ZERO, "bias": float("nan")}}, "bias"),
        ({"combination": {"bias": 1.0, "p_correct": 2.0}}, "lacks.*accept_logprob"),
        ({"combination": ZERO}, "no signal"),
        ({"combination": {**ZERO, "sum_logprob": -1.0}}, "sum_logprob around"),
        ({"combination": {**ZERO, "max_gap": 1.0}}, "max_gap around"),
        ({"bound": {**BOUND, "false_accept": 2}}, "a share of 2"),
        ({"bound": {**BOUND, "confidence": 1.0}}, "confidence 1.0"),
        ({"bound": {**BOUND, "max_new_tokens": -1}}, "-1 as the most tokens"),
        ({"bound": {**BOUND, "top_k": "all"}}, "all. as top_k"),
        ({"bound": {**BOUND, "tested": []}}, "nothing that it was tested on"),
        ({"bound": {**BOUND, "tested": [{**TRIED, "accepted": 17}]}}, "17 accepted of 40"),
        ({"bound": {**BOUND, "tested": [{**TRIED, "accepted": 41}]}}, "41 accepted of 40"),
        ({"bound": {**BOUND, "tested": [{**TRIED, "temperature": -1}]}}, "temperature of -1"),
        ({"bound": {**BOUND, "tested": None}}, "damaged"),
        ({"bound": None}, "damaged"),
        ({"combination": "x"}, "damaged"),
        ({"binding": [[]]}, "damaged"),
        ({"cut_at": "foo"}, "damaged: cut_at is 'foo'"),
        ({"combination": []}, "damaged"),
        ({"accept_rule": "any"}, "accept_rule"),
        ({"cut_at": 0}, "cut_at"),
        ({"binding": None}, "damaged"),
        ({"more": 1}, "more"),
    ],
)
def test_damaged_calibrations_are_refused(change: dict[str, Any], said: str) -> None:
    _, made = calibrated()
    with pytest.raises(CalibrationError, match=said):
        read_calibration({**made.as_dict(), **change})


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    _, made = calibrated()
    made.save(tmp_path / "twice.json")
    text = (tmp_path / "twice.json").read_text()
    (tmp_path / "twice.json").write_text(text.replace("{", '{"threshold": 0.9,', 1))
    names = ("missing.json", "broken.json", "list.json", "deep.json", "twice.json")
    for name in names:
        with pytest.raises(CalibrationError, match=name):
            ParseConfig(calibration=tmp_path / name)


def test_what_would_void_the_bound_is_refused() -> None:
    _, made = calibrated()
    with pytest.raises(InvalidRequestError, match="below"):
        ParseConfig(calibration=made, threshold=0.3)
    with pytest.raises(InvalidRequestError, match="verdict"):
        ParseConfig(calibration=made, verdict="p_correct")
    with pytest.raises(InvalidRequestError, match="signals"):
        ParseConfig(calibration=made, signals=False)
    stricter = ParseConfig(calibration=made, threshold=0.5, cut_at="line").acceptance
    assert (stricter.threshold, stricter.cut_at, stricter.accept_rule) == (0.5, "line", "longest")


def test_what_the_bound_says_nothing_about_is_said() -> None:
    engine, made = calibrated()
    bound = replace(made.bound, max_new_tokens=4)
    lax = replace(made, threshold=0.0)
    whole = ParseConfig(calibration=lax)
    asked: Any = {"max_new_tokens": 60, "temperature": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        covered = Engine(engine.target, engine.draft, whole).generate(ASK, **asked)
    assert covered.stats.accepted_fraction == 1
    assert covered.stats.outside_bound is None
    short = Engine(engine.target, engine.draft, ParseConfig(calibration=replace(lax, bound=bound)))
    with pytest.warns(BoundWarning, match="at most 4"):
        assert "at most 4" in str(short.generate(ASK, **asked).stats.outside_bound)
    with pytest.warns(BoundWarning, match=r"temperature is 0\.7, and the calibration is of 0"):
        engine.generate(ASK, **{**asked, "temperature": 0.7}, calibration=lax)
    warm = replace(lax, bound=replace(bound, tested=(replace(bound.tested[0], temperature=0.7),)))
    covering = replace(warm, bound=replace(warm.bound, max_new_tokens=320))
    sampled: Any = {**asked, "temperature": 0.7, "seed": 1, "calibration": covering}
    for restricted, said in (({"top_p": 0.5}, "top_p is 0.5"), ({"top_k": 3}, "top_k is 3, and")):
        with pytest.warns(BoundWarning, match=said):
            engine.generate(ASK, **sampled, **restricted)
    with warnings.catch_warnings():
        warnings.simplefilter("error", BoundWarning)
        engine.generate(ASK, **sampled)
        engine.generate(ASK, **asked, top_p=0.5, calibration=lax)  # greedy all the same
    with pytest.warns(BoundWarning, match="a limit cut the draft off"):
        engine.generate(ASK, max_new_tokens=2, temperature=0, calibration=lax)
    # of what is rejected nothing was promised
    assert short.generate(ASK, **asked, threshold=1.0).stats.outside_bound is None


def other_weights(model: Model) -> Model:
    network = tiny_network("qwen2", len(model.tokenizer))
    with torch.no_grad():
        network.model.layers[1].mlp.up_proj.weight.add_(0.01)
    network.generation_config.eos_token_id = model.tokenizer.eos_token_id
    return Model(model.name, network, model.tokenizer)


def test_calibrations_for_something_else_are_refused() -> None:
    engine, made = calibrated()
    target, draft = engine.target, engine.draft
    assert draft is not None
    config = ParseConfig(calibration=made)
    assert Engine(target, draft, config).generate(ASK, max_new_tokens=4).stats.fallback is None
    tokenizer = chat_tokenizer("chatml", words=("Correct", "Incorrect", " answ"))
    cases = [
        (other_weights(target), draft, config, "target"),
        (target, scripted(other_weights(target), TEXT), config, "draft model"),
        (Model("other", target.network, tokenizer), draft, config, "target"),
        (target, draft, replace(config, judge_layout="quote"), "layout"),
        (target, draft, replace(config, brief="Be kind."), "wording"),
        (target, draft, replace(config, labels=("Yes", "No")), "wording"),
    ]
    for one, two, settings, said in cases:
        with pytest.raises(CalibrationError, match=said):
            Engine(one, two, settings)
    for name, value in (("dtype", "bfloat16"), ("backend", "elsewhere")):
        wrong = replace(made, binding=replace(made.binding, **{name: value}))
        with pytest.raises(CalibrationError, match=name):
            engine.generate(ASK, calibration=wrong)
        with pytest.raises(CalibrationError, match=name):
            engine.verify(ASK, TEXT, calibration=wrong)


def test_a_verdict_that_asks_nothing_is_not_bound_to_how_it_is_asked() -> None:
    engine, made = calibrated(FREE)
    config = ParseConfig(calibration=made, judge_layout="quote", brief="Be kind.")
    other = Engine(engine.target, engine.draft, config)
    assert other.generate(ASK, max_new_tokens=9).stats.fallback is None


def test_signals_of_layout_quote_are_read_where_they_were_measured() -> None:
    engine, made = calibrated(FREE, judge_layout="quote")
    asking = bind(*(engine.target, engine.draft, engine.ability, engine.config), asks_judge=True)
    made = replace(made, binding=asking)
    answer = engine.generate(ASK, max_new_tokens=9, calibration=made)
    assert answer.stats.judge_layout == "quote"
    assert answer.verdicts is not None
    assert answer.verdicts.p_correct is not None
    with pytest.raises(CalibrationError, match="layout"):
        engine.generate(ASK, max_new_tokens=9, calibration=made, judge_layout="brief")


def test_the_target_alone_needs_no_fitting_calibration() -> None:
    engine, made = calibrated()
    config = ParseConfig(calibration=made, mode="target")
    assert Engine(other_weights(engine.target), config=config).generate(ASK, max_new_tokens=2)


def test_a_model_is_known_in_another_folder(tmp_path: Path) -> None:
    prints = []
    for name in ("one", "two"):
        folder = save_tiny(tmp_path / name)
        prints.append(Engine.from_pretrained(folder).target.fingerprint)
    assert prints[0] == prints[1] != tiny_model(seed=1).fingerprint


def test_a_text_too_long_for_the_layout_falls_back_to_the_target() -> None:
    target = kind_model("mistral_wide")
    engine = Engine(target, scripted(target, "so far " * 300))
    _, made = calibrated()
    binding = bind(target, engine.draft, engine.ability, engine.config, asks_judge=True)
    made = replace(made, binding=binding)
    assert engine.generate(ASK, max_new_tokens=40, calibration=made).stats.fallback is None
    with pytest.warns(FallbackWarning, match="calibration was made in it"):
        answer = engine.generate(ASK, max_new_tokens=600, calibration=made)
    assert answer.stats.accepted_tokens == 0
