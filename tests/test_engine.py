"""What the engine promises of every answer."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parse_engine import (
    CallStats,
    DraftProgress,
    Engine,
    FallbackWarning,
    Generation,
    ParseConfig,
    TextDelta,
    VerificationError,
    Verified,
    parse_stats,
)
from parse_engine.backends.model import Model
from tests.conftest import forward_log
from tests.scripted import scripted, with_tokenizer
from tests.tiny_models import tiny_model
from tests.tiny_tokenizers import chat_tokenizer

ASK = [{"role": "user", "content": "What is that?"}]
TEXT = "The answer is that. It is the return of a model. So far so good.\n\nThat is it.\n"
texts = st.text(alphabet="abc .\n{}'\"é世😀", min_size=1, max_size=60)


def greedy_alone(target: Model, ids: tuple[int, ...], count: int) -> tuple[int, ...]:
    """What transformers' generate writes after ids, without end of turn."""
    output = target.network.generate(
        torch.tensor([ids]),
        do_sample=False,
        max_new_tokens=count,
        eos_token_id=sorted(target.eos_ids),
        pad_token_id=0,
    )
    return tuple(i for i in output[0, len(ids) :].tolist() if i not in target.eos_ids)


def engine_with(text: Any, *, seed: int = 0, **config: Any) -> Engine:
    target = tiny_model(seed=seed)
    return Engine(target, scripted(target, text), ParseConfig(**config))


@settings(max_examples=40, deadline=None)
@given(
    text=texts,
    threshold=st.floats(0, 1),
    cut_at=st.sampled_from(["auto", "line", "sentence", 1, 3]),
    rule=st.sampled_from(["unbroken", "longest"]),
    order=st.sampled_from(["whole_first", "all"]),
    prefixes=st.integers(1, 9),
    verdict=st.sampled_from(["p_correct", "joint_prob", "min_prob", "mean_prob", "min_ratio"]),
    seed=st.integers(0, 3),
)
def test_answer_is_accepted_prefix_and_what_the_target_alone_writes_after_it(
    text: str,
    threshold: float,
    cut_at: Any,
    rule: Any,
    order: Any,
    prefixes: int,
    verdict: Any,
    seed: int,
) -> None:
    engine = engine_with(
        text,
        seed=seed,
        threshold=threshold,
        cut_at=cut_at,
        accept_rule=rule,
        verify_order=order,
        max_prefixes=prefixes,
        verdict=verdict,
    )
    target = engine.target
    asked = len(engine.ability.judge.suffix_ids) if verdict == "p_correct" else 0
    prompt = target.render(ASK).ids
    limit = 24

    with forward_log(target) as log:
        answer = engine.generate(ASK, max_new_tokens=limit)

    draft = target.encode(text)[:limit]
    accepted = draft[: answer.stats.accepted_tokens]
    whole = answer.stats.accepted_tokens == len(target.encode(text))
    room = limit - len(accepted)
    rest = greedy_alone(target, prompt + accepted, room) if room and not whole else ()
    assert answer.token_ids == accepted + rest
    # no token is processed twice
    assert sum(log) == answer.stats.target_tokens_processed
    assert answer.stats.target_tokens_processed == (
        len(prompt) + len(draft) + answer.stats.prefixes * asked + answer.stats.regenerated_tokens
    )
    # the rule of acceptance
    assert answer.verdicts is not None
    passed = [value >= threshold for value in answer.verdicts.verdict]
    assert answer.stats.prefixes == len(passed) <= prefixes
    kept = answer.verdicts.token_ends.index(len(accepted)) if accepted else -1
    if passed[-1]:
        assert kept == len(passed) - 1
    elif rule == "unbroken":
        assert all(passed[: kept + 1])
        assert not passed[kept + 1]
    else:
        assert not any(passed[kept + 1 :])
        assert kept == -1 or passed[kept]
    # nothing unverified gets out
    assert answer.accepted_text == answer.draft_text[: len(answer.accepted_text)]
    assert answer.text == answer.accepted_text + answer.regenerated_text


@pytest.mark.parametrize("kind", ["llama", "qwen3", "qwen3_moe", "phi3", "smollm3", "cohere2"])
@pytest.mark.parametrize("layout", ["brief", "quote"])
def test_everything_rejected_is_the_target_alone(kind: str, layout: Any) -> None:
    target = tiny_model(kind)
    config = ParseConfig(threshold=1, judge_layout=layout, cut_at=4)
    engine = Engine(target, scripted(target, TEXT), config)
    prompt = target.render(ASK).ids
    with forward_log(target) as log:
        answer = engine.generate(ASK, max_new_tokens=40)
    assert answer.stats.accepted_tokens == 0
    assert answer.token_ids == greedy_alone(target, prompt, 40)
    assert answer.token_ids == engine.generate(ASK, max_new_tokens=40, mode="target").token_ids
    assert sum(log) == answer.stats.target_tokens_processed


def test_layout_quote_reads_the_judges_prompt_and_the_draft_apart() -> None:
    engine = engine_with(TEXT, judge_layout="quote", threshold=0)
    with forward_log(engine.target) as log:
        answer = engine.generate(ASK, max_new_tokens=200)
    assert answer.text == TEXT
    assert sum(log) == answer.stats.target_tokens_processed
    assert len(log) == 2  # judge's prompt with the draft, then one suffix


def test_both_orders_accept_the_same() -> None:
    for threshold in (0.05, 0.3, 0.5, 0.7, 0.95):
        answers = [
            engine_with(TEXT, cut_at=3, max_prefixes=9, threshold=threshold).generate(
                ASK, max_new_tokens=60, verify_order=order
            )
            for order in ("whole_first", "all")
        ]
        assert answers[0].token_ids == answers[1].token_ids
        assert answers[0].stats.accepted_tokens == answers[1].stats.accepted_tokens


def test_draft_accepted_whole_is_the_answer() -> None:
    answer = engine_with(TEXT, threshold=0).generate(ASK, max_new_tokens=300)
    assert answer.text == answer.accepted_text == answer.draft_text == TEXT
    assert answer.regenerated_text == ""
    assert answer.finish_reason == "stop"
    assert answer.stats.accepted_fraction == 1.0
    assert answer.stats.regenerated_tokens == 0
    assert answer.stats.prefixes == 1
    assert answer.stats.accepted_verdict == answer.stats.full_verdict


def test_cut_off_draft_accepted_whole_is_continued() -> None:
    engine = engine_with(TEXT, threshold=0, max_draft_tokens=10)
    answer = engine.generate(ASK, max_new_tokens=20)
    prompt, draft = engine.target.render(ASK).ids, engine.target.encode(TEXT)[:10]
    assert answer.stats.accepted_tokens == answer.stats.drafted_tokens == 10
    assert answer.token_ids == draft + greedy_alone(engine.target, prompt + draft, 10)
    assert answer.usage.completion_tokens == 20


def test_limit_counts_draft_and_regeneration_together() -> None:
    answer = engine_with(TEXT, threshold=0).generate(ASK, max_new_tokens=7)
    assert len(answer.token_ids) == 7
    assert answer.finish_reason == "length"
    assert answer.stats.regenerated_tokens == 0


def test_usage_counts_prompt_and_answer() -> None:
    engine = engine_with(TEXT, threshold=1)
    answer = engine.generate(ASK, max_new_tokens=9)
    assert answer.usage.prompt_tokens == len(engine.target.render(ASK).ids)
    assert answer.usage.completion_tokens == len(answer.token_ids)
    assert answer.usage.total_tokens == sum(
        (answer.usage.prompt_tokens, answer.usage.completion_tokens)
    )


def test_mode_draft_is_the_draft_models_own_answer() -> None:
    target = tiny_model(seed=0)
    draft = tiny_model(seed=1)
    engine = Engine(target, draft)
    with forward_log(target) as log:
        answer = engine.generate(ASK, max_new_tokens=12, mode="draft")
    assert answer.token_ids == greedy_alone(draft, draft.render(ASK).ids, 12)
    assert log == []
    assert answer.stats.target_tokens_processed == 0
    assert answer.stats.mode == "draft"


def test_real_draft_model_end_to_end() -> None:
    target, draft = tiny_model(seed=0), tiny_model(seed=1)
    engine = Engine(target, draft, ParseConfig(threshold=0.4, cut_at=4))
    answer = engine.generate(ASK, max_new_tokens=40)
    alone = draft.network.generate(
        torch.tensor([draft.render(ASK).ids]),
        do_sample=False,
        max_new_tokens=40,
        eos_token_id=sorted(draft.eos_ids),
        pad_token_id=0,
    )
    ids = [i for i in alone[0, len(draft.render(ASK).ids) :].tolist() if i not in draft.eos_ids]
    assert answer.stats.drafted_tokens == len(ids)


# Events


def test_generate_is_the_stream_folded() -> None:
    engine = engine_with(TEXT, threshold=0.4, cut_at=3, max_prefixes=9)
    for options in ({}, {"threshold": 1}, {"threshold": 0}, {"mode": "target"}, {"mode": "draft"}):
        events = list(engine.stream(ASK, max_new_tokens=60, **options))
        folded = engine.generate(ASK, max_new_tokens=60, **options)
        last = events[-1]
        assert isinstance(last, Generation)
        assert last.token_ids == folded.token_ids
        assert last.verdicts == folded.verdicts
        assert "".join(e.text for e in events if isinstance(e, TextDelta)) == folded.text
        assert sum(isinstance(e, Generation) for e in events) == 1


def test_events_come_in_order_and_the_draft_stays_inside() -> None:
    engine = engine_with(TEXT, threshold=0.4, cut_at=3, max_prefixes=9, verify_order="all")
    events = list(engine.stream(ASK, max_new_tokens=120))
    kinds = [type(event) for event in events]
    progress = [e.tokens for e in events if isinstance(e, DraftProgress)]
    assert progress == list(range(1, len(progress) + 1))
    (verified,) = [e for e in events if isinstance(e, Verified)]
    assert kinds.index(Verified) == len(progress)
    assert TextDelta not in kinds[: len(progress) + 1]
    shown = "".join(e.text for e in events if isinstance(e, TextDelta) and e.source == "accepted")
    assert shown == events[-1].accepted_text  # type: ignore[union-attr]
    assert verified.accepted_tokens == events[-1].stats.accepted_tokens  # type: ignore[union-attr]


@settings(max_examples=25, deadline=None)
@given(data=st.binary(min_size=1, max_size=30), threshold=st.sampled_from([0, 0.5, 1]))
def test_deltas_are_never_half_a_character(data: bytes, threshold: float) -> None:
    tokenizer = chat_tokenizer("qwen2.5")
    letters = tokenizer.convert_ids_to_tokens(list(range(256)))
    by_byte = {tokenizer.backend_tokenizer.decoder.decode([c]): i for i, c in enumerate(letters)}
    text = data.decode("utf-8", errors="ignore") + "né世😀"
    assert by_byte
    engine = engine_with(text, threshold=threshold)
    events = list(engine.stream(ASK, max_new_tokens=30))
    answer = events[-1]
    assert isinstance(answer, Generation)
    whole = engine.target.tokenizer.decode(answer.token_ids, skip_special_tokens=True)
    assert answer.text == whole
    for delta in [e.text for e in events if isinstance(e, TextDelta)][:-1]:
        assert not delta.endswith("\ufffd")


# Stop strings


@pytest.mark.parametrize("threshold", [0, 0.5, 1])
@pytest.mark.parametrize("stop", ["of", "It is", ".", " so far so", "\n\nThat", ["zzz", "good"]])
def test_stop_string_ends_the_draft_before_it(stop: Any, threshold: float) -> None:
    answer = engine_with(TEXT, threshold=threshold).generate(ASK, max_new_tokens=99, stop=stop)
    stops = [stop] if isinstance(stop, str) else stop
    end = min(TEXT.find(s) for s in stops if s in TEXT) if any(s in TEXT for s in stops) else None
    assert answer.draft_text == TEXT[:end]
    assert not any(s in answer.text for s in stops)
    if threshold == 0 and end is not None:
        assert answer.text == TEXT[:end]
        assert answer.finish_reason == "stop"


def test_stop_string_in_regenerated_text_and_across_the_border() -> None:
    engine = engine_with("The answer", threshold=0, max_draft_tokens=2)
    free = engine.generate(ASK, max_new_tokens=30)
    border = len(free.accepted_text)
    assert 0 < border < len(free.text) - 6
    for start in (border - 2, border - 1, border, border + 3):
        stop = free.text[start : start + 4]
        at = free.text.index(stop)
        events = list(engine.stream(ASK, max_new_tokens=30, stop=stop))
        answer = events[-1]
        assert isinstance(answer, Generation)
        assert answer.text == free.text[:at]
        assert answer.finish_reason == "stop"
        assert "".join(e.text for e in events if isinstance(e, TextDelta)) == answer.text
        decoded = engine.target.tokenizer.decode(answer.token_ids, skip_special_tokens=True)
        assert decoded.startswith(answer.text)


# Sampling


def test_seed_makes_a_call_repeatable_and_leaves_the_global_state_alone() -> None:
    engine = Engine(tiny_model(seed=0), tiny_model(seed=1), ParseConfig(threshold=0.5))
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = engine.generate(ASK, max_new_tokens=20, temperature=1.0, seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    again = engine.generate(ASK, max_new_tokens=20, temperature=1.0, seed=3)
    other = engine.generate(ASK, max_new_tokens=20, temperature=1.0, seed=4)
    assert first.token_ids == again.token_ids != other.token_ids


def test_rejected_sample_is_the_targets_own_sample() -> None:
    engine = engine_with(TEXT, threshold=1)
    options: dict[str, Any] = {"max_new_tokens": 20, "temperature": 0.9, "top_p": 0.8, "seed": 11}
    assert (
        engine.generate(ASK, **options).token_ids
        == engine.generate(ASK, mode="target", **options).token_ids
    )


def test_samples_follow_the_targets_distribution() -> None:
    engine = engine_with(TEXT, threshold=1)
    target = engine.target
    prompt = target.render(ASK).ids
    logits = target.network(torch.tensor([prompt])).logits[0, -1].double()
    logits[sorted(target.eos_ids)] = -torch.inf
    top = logits.topk(3)
    wanted = (top.values / 2).softmax(0)
    draws = [
        engine.generate(
            ASK, max_new_tokens=1, temperature=2.0, top_k=3, seed=seed, mode="target"
        ).token_ids
        for seed in range(300)
    ]
    counts = [sum(draw == (int(token),) for draw in draws) for token in top.indices]
    assert sum(counts) == 300
    for count, probability in zip(counts, wanted.tolist(), strict=True):
        # five standard deviations of a binomial count
        assert (
            abs(count - 300 * probability) < 5 * (300 * probability * (1 - probability)) ** 0.5 + 1
        )


def test_unset_settings_are_those_of_the_targets_generation_config() -> None:
    target = tiny_model(seed=2)
    config = target.network.generation_config
    before = (config.do_sample, config.temperature, config.max_new_tokens)
    try:
        config.do_sample, config.temperature, config.max_new_tokens = True, 1.5, 6
        engine = Engine(target)
        one = engine.generate(ASK, seed=1, mode="target")
        named = engine.generate(ASK, seed=1, temperature=1.5, max_new_tokens=6, mode="target")
        greedy = engine.generate(ASK, temperature=0, mode="target")
    finally:
        config.do_sample, config.temperature, config.max_new_tokens = before
    assert one.token_ids == named.token_ids
    assert len(one.token_ids) <= 6
    assert greedy.token_ids == greedy_alone(target, target.render(ASK).ids, 6)


# Different tokenizers


def test_draft_text_is_encoded_again_for_a_target_with_other_tokens() -> None:
    target = tiny_model()
    words = ("Correct", "Incorrect", " answ", " model", " ret")
    draft = with_tokenizer(target, chat_tokenizer("chatml", words=words))
    assert draft.encode(TEXT) != target.encode(TEXT)
    engine = Engine(target, scripted(draft, TEXT + "né世😀"), ParseConfig(threshold=0))
    answer = engine.generate(ASK, max_new_tokens=300)
    assert answer.text == TEXT + "né世😀"
    assert answer.token_ids == target.encode(TEXT + "né世😀")
    partly = engine.generate(ASK, max_new_tokens=300, threshold=0.5, cut_at="line")
    assert partly.draft_text == TEXT + "né世😀"


# Failure


@pytest.mark.parametrize(
    "error", [RuntimeError("boom"), MemoryError("out of memory"), ValueError("bad"), KeyError("x")]
)
def test_failing_draft_model_costs_speed_never_the_answer(error: Exception) -> None:
    target = tiny_model()
    engine = Engine(target, scripted(target, TEXT, error=error))
    with pytest.warns(FallbackWarning, match="draft model failed"):
        answer = engine.generate(ASK, max_new_tokens=12)
    assert answer.token_ids == greedy_alone(target, target.render(ASK).ids, 12)
    assert answer.stats.fallback is not None
    assert type(error).__name__ in answer.stats.fallback
    assert answer.verdicts is None


def test_empty_draft_leads_to_the_target_alone() -> None:
    engine = engine_with("")
    with pytest.warns(FallbackWarning, match="wrote nothing"):
        answer = engine.generate(ASK, max_new_tokens=12)
    assert answer.token_ids == greedy_alone(engine.target, engine.target.render(ASK).ids, 12)
    assert answer.stats.fallback == "the draft model wrote nothing"


def test_a_draft_that_opens_with_a_stop_string_is_no_silent_one() -> None:
    with pytest.warns(FallbackWarning, match="before a stop string"):
        answer = engine_with(TEXT).generate(ASK, max_new_tokens=12, stop=TEXT[:3])
    assert answer.stats.fallback == "the draft model wrote nothing before a stop string"
    assert answer.text


def test_verdicts_that_are_not_finite_are_refused() -> None:
    from copy import deepcopy

    target = tiny_model()
    broken = Model("broken", deepcopy(target.network), target.tokenizer)
    engine = Engine(broken, scripted(broken, TEXT), ParseConfig(verdict="p_correct"))
    engine.ability.brief.states[0][0].fill_(torch.nan)
    with (
        forward_log(broken) as log,
        pytest.warns(FallbackWarning, match="not finite"),
    ):
        answer = engine.generate(ASK, max_new_tokens=12)
    assert sum(log) == answer.stats.target_tokens_processed
    assert answer.verdicts is answer.stats.full_verdict is None
    with pytest.raises(VerificationError, match="not finite"):
        engine.verify(ASK, TEXT)
    assert answer.token_ids == greedy_alone(target, target.render(ASK).ids, 12)
    assert answer.stats.fallback is not None


def test_interrupted_call_leaves_the_engine_usable() -> None:
    target = tiny_model()
    engine = Engine(target, scripted(target, TEXT, error=KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        engine.generate(ASK, max_new_tokens=12)
    answer = engine.generate(ASK, max_new_tokens=12, mode="target")
    assert answer.token_ids == greedy_alone(target, target.render(ASK).ids, 12)


# Statistics


def test_statistics_are_flat_plain_and_add_up() -> None:
    engine = engine_with(TEXT, threshold=0.5)
    with parse_stats() as stats:
        answers = [engine.generate(ASK, max_new_tokens=n) for n in (5, 9)]
        with parse_stats() as inner:
            answers.append(engine.generate(ASK, max_new_tokens=3))
    engine.generate(ASK, max_new_tokens=3)
    assert stats.calls == [answer.stats for answer in answers]
    assert inner.calls == [answers[-1].stats]
    assert stats.drafted_tokens == sum(a.stats.drafted_tokens for a in answers)
    assert stats.accepted_tokens == sum(a.stats.accepted_tokens for a in answers)
    for name in (field.name for field in fields(CallStats)):
        value = getattr(answers[0].stats, name)
        assert value is None or type(value) in (int, float, str)


def test_one_log_line_a_call(caplog: pytest.LogCaptureFixture, capsys: Any) -> None:
    engine = engine_with(TEXT)
    with caplog.at_level("INFO", logger="parse_engine"):
        answer = engine.generate(ASK, max_new_tokens=5)
    (line,) = [r for r in caplog.records if r.name == "parse_engine"]
    assert line.parse is answer.stats  # type: ignore[attr-defined]
    assert line.getMessage().startswith("parse_call {")
    assert capsys.readouterr() == ("", "")
