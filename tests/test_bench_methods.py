"""Each method of the benchmark writes what it says it writes, and processes no token twice."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from parse_engine import Engine, InvalidRequestError, ParseConfig, UnsupportedModelError
from parse_engine.backends.model import Model
from parse_engine.bench.meter import measuring
from parse_engine.bench.methods import (
    METHODS,
    Entry,
    parse_methods,
    spec_reason,
    speculative_thinking,
)
from parse_engine.bench.methods.job import Answer, Job
from parse_engine.config import THRESHOLDS
from parse_engine.text import TextBuilder, decode_all
from tests.calibrations import calibrated
from tests.conftest import forward_log
from tests.scripted import scripted, with_tokenizer
from tests.tiny_kinds import kind_model
from tests.tiny_models import other_family, tiny_model, tiny_network
from tests.tiny_tokenizers import chat_tokenizer

ASK = [{"role": "user", "content": "What is that?"}]
LIMIT = 40


DRAFTS = {"same": lambda: tiny_model(seed=1), "other family": other_family}


def run(
    engine: Engine, name: str, level: float | None = None, limit: int = LIMIT
) -> tuple[Answer, Job]:
    with measuring(engine.target.network) as meter:
        entry = Entry(name, name, level)
        job = Job(engine, ASK, limit, level, entry.acceptance, meter)
        answer = entry.method.answer(job)
    assert (job.first_s is not None) == bool(answer.text)
    assert answer.finish_reason == "stop" or answer.tokens == limit
    return answer, job


def alone(engine: Engine, mode: Any = "target", limit: int = LIMIT) -> str:
    return engine.generate(ASK, max_new_tokens=limit, temperature=0, mode=mode).text


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["target", "assisted", "prompt_lookup"])
def test_exact_methods_write_what_the_target_alone_writes(name: str, seed: int, draft: str) -> None:
    engine = Engine(tiny_model(seed=seed), DRAFTS[draft]())
    assert METHODS[name].exact
    answer, _ = run(engine, name)
    assert answer.text == alone(engine)
    if name != "target":
        assert answer.drafted is not None
        assert answer.accepted is not None
        assert 0 <= answer.accepted <= answer.drafted


def test_a_vocabulary_that_is_padded_otherwise_is_the_same_for_assisted_decoding() -> None:
    draft = tiny_model(seed=1)
    size = len(draft.tokenizer)
    network = tiny_network("qwen2", size + 64)
    network.lm_head.weight.data[size:] = 0  # it never writes what stands for no token
    network.generation_config.eos_token_id = draft.tokenizer.eos_token_id
    engine = Engine(Model("padded", network, draft.tokenizer), draft)
    assert engine.same_tokenizer
    answer, _ = run(engine, "assisted")
    assert answer.text == alone(engine)
    assert draft.network.config.vocab_size == size


def test_a_model_that_drafts_for_itself_has_everything_accepted() -> None:
    model = tiny_model(seed=2)
    twin = replace(model, network=copy.deepcopy(model.network))
    answer, _ = run(Engine(model, twin), "assisted")
    assert answer.accepted == answer.drafted
    assert answer.details["passes"] < answer.tokens


def test_cascade_keeps_the_whole_draft_or_nothing_of_it() -> None:
    engine = Engine(tiny_model(), tiny_model(seed=1))
    rejected, _ = run(engine, "cascade", 1.0)
    assert rejected.text == alone(engine)
    assert rejected.accepted == 0
    kept, _ = run(engine, "cascade", 0.0)
    assert kept.text == alone(engine, "draft")
    assert kept.accepted == kept.drafted
    assert kept.details["prefixes"] == 1


@pytest.mark.parametrize("kind", ["qwen2", "mamba2"])
@pytest.mark.parametrize("rule", ["unbroken", "longest"])
@pytest.mark.parametrize("layout", ["brief", "quote"])
def test_sequential_accepts_what_the_packed_pass_accepts(kind: str, rule: Any, layout: Any) -> None:
    target = tiny_model() if kind == "qwen2" else kind_model(kind)
    text = "The answer is that.\nIt is the return of a model.\nSo far so good.\nThat is it.\n"
    config = ParseConfig(
        accept_rule=rule, judge_layout=layout, verify_order="all", cut_at="line", max_prefixes=9
    )
    engine = Engine(target, scripted(target, text), config)
    verdicts = engine.verify(ASK, text).p_correct
    asked = set()
    for threshold in (0.0, *verdicts, 1.0):
        packed, _ = run(engine, "parse", threshold, 90)
        single, _ = run(engine, "sequential", threshold, 90)
        assert single.text == packed.text
        assert (single.drafted, single.accepted) == (packed.drafted, packed.accepted)
        asked.add(single.details["asked"])
        assert single.details["asked"] <= len(verdicts)
    assert 1 in asked  # the whole draft may settle it


def test_sequential_stops_asking_when_the_answer_is_known() -> None:
    target = tiny_model()
    engine = Engine(
        target,
        scripted(target, "The answer is that.\n" * 4),
        ParseConfig(cut_at="line", max_prefixes=9),
    )
    with forward_log(target) as log:
        answer, job = run(engine, "sequential", 1.0)
    assert answer.details["asked"] == 2  # the whole, and the shortest
    assert job.meter.positions == log
    prompt, suffix = target.render(ASK).ids, engine.ability.judge.suffix_ids
    written = sum(count == 1 for count in log)
    assert answer.drafted is not None
    assert sum(log) == len(prompt) + answer.drafted + 2 * len(suffix) + written


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("kind", ["qwen2", "gemma3", "mistral"])
def test_spec_reason_is_the_draft_or_the_target_at_its_ends(kind: str, draft: str) -> None:
    target = tiny_model() if kind == "qwen2" else kind_model(kind)
    engine = Engine(target, DRAFTS[draft](), ParseConfig(mode="target"))
    never, _ = run(engine, "spec_reason", 10)
    assert never.text == alone(engine)
    assert never.accepted == 0
    always, _ = run(engine, "spec_reason", 0)
    assert alone(engine, "draft").startswith(always.text.rstrip("\ufffd"))
    assert always.accepted == always.drafted


def plain_write(
    model: Model, ids: tuple[int, ...], limit: int, until: Callable[[str], bool]
) -> tuple[tuple[int, ...], bool]:
    """Write greedily, reading the whole text anew for every token."""
    new: tuple[int, ...] = ()
    builder = TextBuilder(model.tokenizer)
    while len(new) < limit and not (new and until(builder.text)):
        with torch.no_grad():
            logits = model.network(input_ids=torch.tensor([[*ids, *new]])).logits[0, -1]
        token = int(logits.argmax())
        if token in model.eos_ids:
            return new, True
        new = (*new, token)
        builder.push(token)
    return new, False


@pytest.mark.parametrize("seed", range(4))
def test_spec_reason_decides_as_without_caches(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def short_step(text: str) -> bool:
        return len(text) >= 6

    monkeypatch.setattr(spec_reason, "ends_step", short_step)
    engine = Engine(tiny_model(seed=seed), tiny_model(seed=seed + 1))
    target, draft = engine.target, engine.draft
    assert draft is not None
    question, digits = spec_reason.scoring(target)
    prompt, theirs = target.render(ASK).ids, draft.render(ASK).ids
    answer: tuple[int, ...] = ()
    scores, ended = [], False
    while len(answer) < LIMIT and not ended:
        room = LIMIT - len(answer)
        step, ended = plain_write(draft, theirs + answer, room, short_step)
        ids = torch.tensor([[*prompt, *answer, *step, *question]])
        with torch.no_grad():
            scores.append(int(target.network(input_ids=ids).logits[0, -1][list(digits)].argmax()))
        if scores[-1] < 5:
            step, ended = plain_write(target, prompt + answer, room, short_step)
        answer += step

    found, job = run(engine, "spec_reason", 5)
    assert found.details["scores"] == scores
    assert found.text == decode_all(target.tokenizer, answer)[0]
    assert min(scores) < 5 <= max(scores) or seed < 2  # both happen
    assert found.drafted is not None
    refed = sum(score < 5 for score in scores)
    limit = len(prompt) + found.drafted + len(scores) * len(question) + len(answer) + refed
    assert sum(job.meter.positions) <= limit


def test_digits_that_are_no_tokens_are_refused() -> None:
    words = ("12", "Score", "Correct", "Incorrect")
    model = with_tokenizer(tiny_model(), chat_tokenizer("qwen2.5", words=words))
    assert len(spec_reason.scoring(model)[1]) == 10
    tokenizer = chat_tokenizer("qwen2.5")
    tokenizer.add_tokens([": 1"])
    with pytest.raises(UnsupportedModelError, match="digit"):
        spec_reason.scoring(with_tokenizer(tiny_model(), tokenizer))


@pytest.mark.parametrize("seed", range(4))
def test_speculative_thinking_takes_over_as_without_caches(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short_step(text: str) -> bool:
        return len(text) >= 6

    cue, verify = re.compile("[aeio]"), re.compile("[b-m]")
    monkeypatch.setattr(speculative_thinking, "ends_step", short_step)
    monkeypatch.setattr(speculative_thinking, "CUE", cue)
    monkeypatch.setattr(speculative_thinking, "VERIFY", verify)
    monkeypatch.setattr(speculative_thinking, "TAKEOVER", 4)
    monkeypatch.setattr(speculative_thinking, "VERIFICATION", 5)
    engine = Engine(tiny_model(seed=seed), tiny_model(seed=seed + 1))
    target, draft = engine.target, engine.draft
    assert draft is not None
    prompt, theirs = target.render(ASK).ids, draft.render(ASK).ids
    answer: tuple[int, ...] = ()
    after, ended, takeovers, limit = False, False, 0, 60
    while len(answer) < limit and not ended:
        room = limit - len(answer)
        turn, ended = plain_write(
            draft, theirs + answer, min(20, room) if after else room, short_step
        )
        text = decode_all(target.tokenizer, turn)[0]
        if after and cue.search(text):
            takeovers += 1
            turn, ended = plain_write(target, prompt + answer, min(4, room), lambda _: False)
            answer += turn
            text, room = decode_all(target.tokenizer, turn)[0], limit - len(answer)
            if verify.search(text) and room > 0 and not ended:
                turn, ended = plain_write(target, prompt + answer, min(5, room), lambda _: False)
                answer += turn
            after = False
        else:
            answer += turn
            after = short_step(text)

    found, _ = run(engine, "speculative_thinking", limit=limit)
    assert found.details["takeovers"] == takeovers
    assert found.text == decode_all(target.tokenizer, answer)[0]
    assert takeovers or seed


def test_cues_are_whole_words() -> None:
    cue = speculative_thinking.CUE
    assert cue.search("Wait, let me")
    assert cue.search("We check that")
    assert not cue.search("The waiter, checked")


def test_turns_need_caches_that_can_go_back() -> None:
    engine = Engine(kind_model("mamba2"), tiny_model())
    with pytest.raises(UnsupportedModelError, match="go back"):
        run(engine, "spec_reason")


def test_the_draft_alone_is_the_draft() -> None:
    engine = Engine(tiny_model(), DRAFTS["other family"]())
    answer, job = run(engine, "draft")
    assert answer.text == alone(engine, "draft")
    assert not job.meter.positions
    assert answer.tokens == len(engine.target.encode(answer.text))


def test_methods_are_read_from_a_list() -> None:
    entries = parse_methods("parse, cascade@0.5,spec_reason@3", (0.5, 0.9))
    assert [entry.label for entry in entries] == [
        *("target", "parse@0.5", "parse@0.9", "cascade@0.5", "spec_reason@3"),
    ]
    assert [entry.label for entry in parse_methods("all")] == list(METHODS)
    more = parse_methods("all,parse:min_prob,draft")
    assert [entry.label for entry in more] == [*METHODS, "parse:min_prob"]
    assert [entry.label for entry in parse_methods("parse,target,parse")] == ["parse", "target"]
    fine = parse_methods("parse", (0.9999999, 0.99999999))
    assert [entry.level for entry in fine[1:]] == [0.9999999, 0.99999999]
    assert parse_methods(",".join(entry.label for entry in fine)) == fine


def test_methods_are_told_what_to_accept_by(tmp_path: Path) -> None:
    file = tmp_path / "a:b@c.json"
    _, made = calibrated()
    made.save(file)
    entries = parse_methods(f"parse:joint_prob,cascade:min_prob@0.2,parse:{file},parse@0.5")
    assert [(entry.label, entry.acceptance) for entry in entries[1:]] == [
        ("parse:joint_prob", {"verdict": "joint_prob", "threshold": THRESHOLDS["joint_prob"]}),
        ("cascade:min_prob@0.2", {"verdict": "min_prob", "threshold": 0.2}),
        (f"parse:{file}", {"calibration": made, "threshold": made.threshold}),
        ("parse@0.5", {"threshold": 0.5}),
    ]
    (stricter,) = parse_methods(f"parse:{file}@0.75")[1:]
    assert stricter.acceptance == {"calibration": made, "threshold": 0.75}
    for spec in ("parse:none.json", "target:min_prob", "spec_reason:min_prob", "parse:"):
        with pytest.raises(InvalidRequestError, match="is no verdict"):
            parse_methods(spec)


@pytest.mark.parametrize(
    "spec",
    [
        "eagle",
        "parse@2",
        "parse@x",
        "target@1",
        "spec_reason@11",
        "parse@x@0.3",
        "parse@0.9:min_prob@0.1",
    ],
)
def test_unknown_methods_and_numbers_are_refused(spec: str) -> None:
    with pytest.raises(InvalidRequestError, match=re.escape(spec.partition("@")[0])):
        parse_methods(spec)
