"""What a verdict is made of, and what it costs."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parse_engine import Engine, FallbackWarning, InvalidRequestError, ParseConfig
from parse_engine.labels import Labels
from parse_engine.types import Cut
from parse_engine.verdicts import make_verdicts
from tests.conftest import forward_log
from tests.scripted import scripted, with_tokenizer
from tests.tiny_kinds import kind_model
from tests.tiny_models import tiny_model
from tests.tiny_tokenizers import chat_tokenizer

ASK = [{"role": "user", "content": "What is that?"}]
TEXT = "The answer is that. It is the return of a model. So far so good.\n\nThat is it.\n"
LABELS = Labels("Correct", "Incorrect", 0, 1, "Correct so far?")
FREE = ("accept_prob", "joint_prob", "min_prob", "mean_prob", "min_ratio")


@settings(max_examples=100, deadline=None)
@given(
    tokens=st.lists(
        st.tuples(st.floats(-30, 0), st.floats(0, 30), st.floats(-30, 0)), min_size=1, max_size=30
    ),
    changed=st.floats(-30, 0),
    kind=st.sampled_from(FREE),
    data=st.data(),
)
def test_a_verdict_looks_at_its_own_prefix_only(
    tokens: list[tuple[float, float, float]], changed: float, kind: Any, data: st.DataObject
) -> None:
    acceptance = ParseConfig(verdict=kind).acceptance
    cuts = [Cut(n, n) for n in range(1, len(tokens) + 1)]
    signals, drafted = torch.tensor(tokens).T[:2], [row[2] for row in tokens]
    verdict = make_verdicts(cuts, None, signals, drafted, LABELS, acceptance).verdict
    assert all(0 <= value <= 1 for value in verdict)
    at = data.draw(st.integers(0, len(tokens) - 1))
    other = signals.clone()
    other[0, at], other[1, at] = changed, -changed
    again = make_verdicts(cuts, None, other, drafted, LABELS, acceptance).verdict
    assert again[:at] == verdict[:at]
    # a prefix alone gets what it gets among others
    mine = signals[:, : at + 1], drafted[: at + 1]
    alone = make_verdicts(cuts[at : at + 1], None, *mine, LABELS, acceptance)
    assert alone.verdict == (verdict[at],)
    if kind != "mean_prob":  # what is improbable stays so in every longer prefix
        # up to rounding: a sum is taken from a mean and a length
        assert all(longer <= prefix * (1 + 1e-9) for prefix, longer in pairwise(verdict))


def test_verdicts_are_the_targets_own_probabilities() -> None:
    target = tiny_model()
    draft = tiny_model(seed=1)
    engine = Engine(target, draft, ParseConfig(cut_at=5))
    prompt, ids = target.render(ASK).ids, target.encode(TEXT)
    every = torch.tensor([[*prompt, *ids]])
    with torch.no_grad():
        probability, drafted = (
            model.network(every).logits[0, len(prompt) - 1 : -1].double().softmax(1)
            for model in (target, draft)
        )
    at = torch.tensor(ids)[:, None]
    chosen = probability.gather(1, at)[:, 0]
    ratio = chosen / probability.amax(1)
    kept = (chosen / drafted.gather(1, at)[:, 0]).clamp(max=1)
    for kind in FREE:
        found = engine.verify(ASK, TEXT, verdict=kind)
        assert found.kind == kind
        assert found.p_correct is None
        for end, value in zip(found.token_ends, found.verdict, strict=True):
            wanted = {
                "accept_prob": kept[:end].prod(),
                "joint_prob": chosen[:end].prod(),
                "min_prob": chosen[:end].min(),
                "mean_prob": chosen[:end].log().mean().exp(),
                "min_ratio": ratio[:end].min(),
            }[kind]
            assert value == pytest.approx(float(wanted), rel=1e-3)


@pytest.mark.parametrize("kind", [kind for kind in FREE if kind != "accept_prob"])
def test_a_verdict_that_asks_nothing_costs_one_prefill(kind: Any) -> None:
    target = tiny_model()
    engine = Engine(target, scripted(target, TEXT), ParseConfig(verdict=kind, threshold=0))
    with forward_log(target) as log:
        answer = engine.generate(ASK, max_new_tokens=200)
    read = len(target.render(ASK).ids) + len(target.encode(TEXT))
    assert answer.text == TEXT
    assert log == [read]
    assert answer.stats.target_tokens_processed == read
    assert answer.stats.verdict_kind == kind
    assert answer.stats.path is answer.stats.judge_layout is None
    assert answer.verdicts is not None
    assert answer.verdicts.p_correct is None
    assert answer.stats.full_verdict == answer.verdicts.verdict[-1]


@pytest.mark.parametrize("temperature", [0, 1.3])
def test_the_draft_model_is_heard_while_it_writes(temperature: float) -> None:
    target, draft = tiny_model(), tiny_model(seed=1)
    engine = Engine(target, draft, ParseConfig(verdict="accept_prob", threshold=0, cut_at=3))
    options: Any = {"max_new_tokens": 40, "temperature": temperature, "seed": 5, "top_k": 20}
    with forward_log(draft) as log:
        answer = engine.generate(ASK, **options)
    assert len(log) <= 40  # the prompt and the tokens: the draft is not read again
    prompt, ids = target.render(ASK).ids, answer.token_ids
    with torch.no_grad():
        ours, theirs = (
            model.network(torch.tensor([[*prompt, *ids]]))
            .logits[0, len(prompt) - 1 : -1]
            .log_softmax(1)
            .gather(1, torch.tensor(ids)[:, None])[:, 0]
            for model in (target, draft)
        )
    kept = (ours - theirs).clamp(max=0).cumsum(0)
    assert answer.verdicts is not None
    wanted = [float(kept[end - 1]) for end in answer.verdicts.token_ends]
    assert answer.verdicts.accept_logprob == pytest.approx(wanted, abs=1e-3)


def test_a_draft_that_is_written_anew_is_read_back() -> None:
    target, draft = tiny_model(), tiny_model(seed=1)
    engine = Engine(target, draft, ParseConfig(verdict="accept_prob", threshold=0, cut_at=2))
    free = engine.generate(ASK, max_new_tokens=40, temperature=0)
    stop = free.draft_text[len(free.draft_text) // 2 :][:4]
    answer = engine.generate(ASK, max_new_tokens=40, temperature=0, stop=stop)
    assert answer.draft_text in free.draft_text
    assert answer.verdicts is not None
    read = engine.verify(ASK, answer.draft_text)
    assert answer.verdicts.verdict == pytest.approx(read.verdict, rel=1e-3)


def test_a_model_would_keep_all_that_it_drafts() -> None:
    target = tiny_model()
    engine = Engine(target, target, ParseConfig(verdict="accept_prob", threshold=0.99))
    answer = engine.generate(ASK, max_new_tokens=40, temperature=0)
    assert answer.stats.accepted_fraction == 1
    assert answer.stats.full_verdict == pytest.approx(1, abs=1e-3)


def test_comparing_takes_one_tokenizer() -> None:
    target = tiny_model()
    config = ParseConfig(verdict="accept_prob")
    other = with_tokenizer(tiny_model(seed=1), chat_tokenizer("llama3", words=("Yes", "No")))
    with pytest.raises(InvalidRequestError, match="splits text otherwise"):
        Engine(target, other, config)
    with pytest.raises(InvalidRequestError, match="no draft model"):
        Engine(target, config=ParseConfig(verdict="joint_prob")).verify(
            ASK, TEXT, verdict="accept_prob"
        )
    assert Engine(target, other, ParseConfig(mode="target", verdict="accept_prob"))
    with pytest.raises(InvalidRequestError, match="joint_prob"):
        Engine(target, other).generate(ASK, verdict="accept_prob")


def test_a_target_that_cannot_be_masked_reads_off_too() -> None:
    target = kind_model("qwen3_next")
    engine = Engine(target, scripted(target, TEXT), ParseConfig(verdict="min_prob", threshold=1))
    with forward_log(target) as log:
        answer = engine.generate(ASK, max_new_tokens=12)
    assert answer.stats.accepted_tokens == 0
    assert answer.token_ids == engine.generate(ASK, max_new_tokens=12, mode="target").token_ids
    assert sum(log[: log.index(1) if 1 in log else None]) <= answer.stats.target_tokens_processed


def test_layout_has_no_part_in_what_is_not_asked() -> None:
    target = tiny_model()
    engine = Engine(target, scripted(target, TEXT), ParseConfig(verdict="min_prob", cut_at=4))
    found = [engine.verify(ASK, TEXT, judge_layout=layout) for layout in ("brief", "quote")]
    assert found[0] == found[1]


def test_verdicts_of_generate_and_verify_are_the_same() -> None:
    target = tiny_model()
    engine = Engine(target, scripted(target, TEXT), ParseConfig(cut_at=4, verify_order="all"))
    for kind in ("p_correct", *FREE):
        answer = engine.generate(ASK, max_new_tokens=200, verdict=kind, threshold=0)
        assert answer.verdicts is not None
        asked = engine.verify(ASK, TEXT, verdict=kind)
        assert asked.ends == answer.verdicts.ends
        assert asked.verdict == pytest.approx(answer.verdicts.verdict, abs=1e-6)


def test_signals_that_a_verdict_needs_cannot_be_switched_off() -> None:
    for kind in FREE:
        with pytest.raises(InvalidRequestError, match="signals"):
            ParseConfig(verdict=kind, signals=False)
    assert ParseConfig(verdict="p_correct", signals=False).acceptance.asks_judge


def test_unset_verdict_is_the_judges_where_the_judge_is_spoken_of() -> None:
    for said in ({"threshold": 0.8}, {"brief": "Be strict."}, {"question": "Is it right?"}):
        assert ParseConfig(**said).acceptance.kind == "p_correct"
    for said in ({"labels": ("Yes", "No")}, {"judge_layout": "quote"}, {"signals": False}):
        assert ParseConfig(**said).acceptance.kind == "p_correct"
    assert ParseConfig(verdict="min_prob", threshold=0.8).acceptance.kind == "min_prob"
    assert ParseConfig(cut_at=5, verify_order="all").acceptance.kind == "accept_prob"


def test_unset_verdict_is_one_that_the_two_models_can_give() -> None:
    target = tiny_model()
    other = with_tokenizer(tiny_model(seed=1), chat_tokenizer("llama3", words=("Yes", "No")))
    for draft, kind in ((tiny_model(seed=1), "accept_prob"), (other, "joint_prob")):
        engine = Engine(target, draft)
        answer = engine.generate(ASK, max_new_tokens=20, temperature=0)
        assert answer.stats.verdict_kind == kind
        assert answer.stats.threshold == ParseConfig(verdict=kind).acceptance.threshold
        asked = engine.generate(ASK, max_new_tokens=20, temperature=0, threshold=0.5)
        assert asked.stats.verdict_kind == engine.verify(ASK, TEXT).kind == "p_correct"


def test_unset_threshold_follows_the_verdict() -> None:
    assert ParseConfig().acceptance == ParseConfig(verdict="accept_prob").acceptance
    defaults = {kind: ParseConfig(verdict=kind).acceptance.threshold for kind in FREE}
    assert all(0 < value < 1 for value in defaults.values())
    assert ParseConfig(verdict="min_prob", threshold=0.5).acceptance.threshold == 0.5


def test_verdicts_that_are_not_finite_are_refused_without_a_question_too() -> None:
    from copy import deepcopy

    from parse_engine.backends.model import Model

    target = tiny_model()
    broken = Model("broken", deepcopy(target.network), target.tokenizer)
    engine = Engine(broken, scripted(broken, TEXT), ParseConfig(verdict="mean_prob"))
    with torch.no_grad():
        broken.network.get_output_embeddings().weight.fill_(math.nan)
    with pytest.warns(FallbackWarning, match="not finite"):
        answer = engine.generate(ASK, max_new_tokens=3)
    assert answer.stats.accepted_tokens == 0
