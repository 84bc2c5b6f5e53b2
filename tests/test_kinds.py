"""Every kind of model is judged rightly, or refused with a reason."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from parse_engine import Engine, ParseConfig
from parse_engine.backends.kinds import Reach
from parse_engine.backends.model import Model
from parse_engine.judge import make_judge
from parse_engine.pack import within
from parse_engine.reading import Brief, read_brief, read_draft
from tests.conftest import forward_log
from tests.scripted import scripted
from tests.test_engine import ASK, TEXT, greedy_alone
from tests.test_pack import draft_ids, log_probabilities
from tests.tiny_kinds import KINDS, PACKED, WINDOW, kind_model, whole_text_logits

CUTS = (1, 2, 7, 8, 23, 39, 40, 59, 60)
SHORT_SIGHTED = ("mistral", "mistral_eager", "mixtral_windows")  # a window in every layer
NO_BRIEF = ("ministral3", "llama4_unscaled", "gpt2", *SHORT_SIGHTED)


def worst(rows: torch.Tensor, references: list[torch.Tensor]) -> float:
    """Return the largest difference in log-probability."""
    both = zip(rows, references, strict=True)
    return max(float((log_probabilities(a) - log_probabilities(b)).abs().max()) for a, b in both)


def whole_text_with_brief(
    target: Model, brief_ids: tuple[int, ...], prefix: tuple[int, ...], suffix: tuple[int, ...]
) -> torch.Tensor:
    """Read brief, prefix and suffix at once, with no cache: only the suffix sees the brief."""
    b, p, s = len(brief_ids), len(prefix), len(suffix)
    positions = torch.cat([torch.arange(-b, 0), torch.arange(p + s)])
    mask = torch.ones(b + p + s, b + p + s, dtype=torch.bool).tril()
    mask[b : b + p, :b] = False
    masks: Any = {}
    for kind, reach in target.plan.reaches.items():
        visible = within(reach, mask, positions, positions)[None, None]
        scores = torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)
        sdpa = target.network.config._attn_implementation == "sdpa"
        masks[kind] = visible if sdpa else scores
    with torch.no_grad():
        return target.network(
            input_ids=torch.tensor([[*brief_ids, *prefix, *suffix]]),
            position_ids=positions[None],
            attention_mask=masks.get("all", masks),
            use_cache=False,
        ).logits[0, -1]


@pytest.mark.parametrize("kind", KINDS)
def test_path_and_layout_follow_from_the_configuration_and_pass_the_check(kind: str) -> None:
    engine = Engine(kind_model(kind))
    assert engine.path == ("packed" if kind in PACKED else "fan_out")
    assert engine.layout == ("brief" if kind in PACKED and kind not in NO_BRIEF else "quote")
    able = engine.ability
    assert bool(able.plan.why) == (engine.layout == "quote")
    assert (able.brief is not None) == (engine.layout == "brief")


@pytest.mark.parametrize("signals", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_layout_quote_equals_whole_texts_read_by_the_model_itself(kind: str, signals: bool) -> None:
    target = kind_model(kind)
    able = Engine(target).ability
    head, draft, suffix = draft_ids(target, 30, 1), draft_ids(target, 60), able.judge.suffix_ids
    ends = [len(head) + cut for cut in CUTS]

    reading = read_draft(target, able.plan, None, head, draft, suffix, ends, signals=signals)

    texts = [(*head, *draft[:cut], *suffix) for cut in CUTS]
    assert worst(reading.logits(ends), [whole_text_logits(target, text) for text in texts]) < 1e-4
    if signals:
        logits = target.network(torch.tensor([[*head, *draft]])).logits[0, len(head) - 1 : -1]
        scores = log_probabilities(logits).gather(1, torch.tensor(draft)[:, None])[:, 0]
        assert reading.signals is not None
        assert torch.allclose(reading.signals[0].double(), scores, atol=1e-4)


@pytest.mark.parametrize("kind", [kind for kind in PACKED if kind not in NO_BRIEF])
def test_layout_brief_equals_whole_texts_of_which_only_the_suffix_sees_the_brief(kind: str) -> None:
    target = kind_model(kind)
    able = Engine(target).ability
    assert able.brief is not None
    assert able.judge.brief_hidden == 0
    head, draft, suffix = draft_ids(target, 30, 1), draft_ids(target, 60), able.judge.suffix_ids
    ends = [len(head) + cut for cut in CUTS]

    reading = read_draft(target, able.plan, able.brief, head, draft, suffix, ends, signals=True)

    brief = able.judge.brief_ids
    texts = [(*head, *draft[:cut]) for cut in CUTS]
    references = [whole_text_with_brief(target, brief, text, suffix) for text in texts]
    assert worst(reading.logits(ends), references) < 1e-4


@pytest.mark.parametrize("layout", ["brief", "quote"])
@pytest.mark.parametrize("kind", KINDS)
def test_everything_rejected_is_what_the_target_alone_writes(kind: str, layout: Any) -> None:
    target = kind_model(kind)
    engine = Engine(target, scripted(target, TEXT), ParseConfig(threshold=1, judge_layout=layout))
    with forward_log(target) as log:
        answer = engine.generate(ASK, max_new_tokens=40, cut_at=4)
    assert answer.stats.fallback is None
    assert answer.stats.prefixes > 1
    assert answer.stats.accepted_tokens == 0
    assert answer.token_ids == greedy_alone(target, target.render(ASK).ids, 40)
    assert answer.token_ids == engine.generate(ASK, max_new_tokens=40, mode="target").token_ids
    assert sum(log) == answer.stats.target_tokens_processed
    assert answer.stats.path == engine.path
    assert answer.stats.judge_layout == engine.layout


@pytest.mark.parametrize("kind", KINDS)
def test_part_accepted_is_what_the_target_alone_writes_after_it(kind: str) -> None:
    target = kind_model(kind)
    prompt = target.render(ASK).ids
    for seed in range(9):
        draft = draft_ids(target, 40, seed)
        engine = Engine(target, scripted(target, draft), ParseConfig(cut_at=3, max_prefixes=9))
        options: dict[str, Any] = {"max_new_tokens": 60, "verify_order": "all"}
        verdicts = engine.generate(ASK, threshold=1, **options).verdicts
        assert verdicts is not None
        if max(verdicts.p_correct) > verdicts.p_correct[-1]:
            break
    with forward_log(target) as log:
        answer = engine.generate(
            ASK, threshold=max(verdicts.p_correct), accept_rule="longest", **options
        )
    accepted = draft[: answer.stats.accepted_tokens]
    assert 0 < len(accepted) < len(draft)
    assert answer.token_ids == accepted + greedy_alone(
        target, prompt + accepted, 60 - len(accepted)
    )
    assert sum(log) == answer.stats.target_tokens_processed
    assert answer.verdicts == verdicts


def test_a_brief_that_no_layer_could_see_gives_way_to_layout_quote() -> None:
    target = kind_model("mistral_wide")
    engine = Engine(target, scripted(target, "so far " * 300), ParseConfig(threshold=0))
    brief = engine.ability.brief
    assert brief is not None
    short = engine.generate(ASK, max_new_tokens=40)
    long = engine.generate(ASK, max_new_tokens=600)
    assert short.stats.judge_layout == engine.layout == "brief"
    assert long.stats.judge_layout == "quote"
    # the last length at which the last suffix sees the first token of the brief
    edge = 900 - brief.length - len(engine.ability.judge.suffix_ids)
    edge -= len(target.render(ASK).ids)
    for tokens, layout in ((edge, "brief"), (edge + 1, "quote")):
        at_edge = engine.generate(ASK, max_new_tokens=700, max_draft_tokens=tokens)
        assert at_edge.stats.judge_layout == layout


@pytest.mark.parametrize("kind", ["gemma3", "mistral", "qwen3_next"])
def test_long_prompt_and_many_prefixes(kind: str) -> None:
    target = kind_model(kind)
    able = Engine(target).ability
    suffix = able.judge.suffix_ids
    head = draft_ids(target, 8000, 3)  # rotary positions have no last one
    draft = draft_ids(target, 128, 4)
    ends = [len(head) + cut for cut in range(2, 130, 2)]
    assert len(ends) == 64
    reading = read_draft(target, able.plan, None, head, draft, suffix, ends, signals=False)
    found = reading.logits(ends)
    some = (0, 63)
    texts = [((*head, *draft)[: ends[i]] + suffix) for i in some]
    assert worst(found[list(some)], [whole_text_logits(target, t) for t in texts]) < 1e-4


# What would go wrong in silence


def gemma_readings(target: Model) -> tuple[Any, list[int], list[torch.Tensor]]:
    able = Engine(target).ability
    head, draft, suffix = draft_ids(target, 30, 1), draft_ids(target, 60), able.judge.suffix_ids
    ends = [len(head) + cut for cut in CUTS]
    references = [whole_text_logits(target, (*head, *draft[:cut], *suffix)) for cut in CUTS]
    return (target, able.plan, None, head, draft, suffix, ends), ends, references


def test_one_mask_for_both_kinds_of_layers_would_be_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = kind_model("gemma3")
    arguments, ends, references = gemma_readings(target)
    assert worst(read_draft(*arguments, signals=False).logits(ends), references) < 1e-4
    right = Model._attention_masks
    monkeypatch.setattr(Model, "_attention_masks", lambda *given: right(*given)["full_attention"])
    assert worst(read_draft(*arguments, signals=False).logits(ends), references) > 1e-2


def test_a_window_counted_in_places_of_the_cache_would_be_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments, ends, references = gemma_readings(kind_model("mistral"))
    right = Model._attention_masks

    def in_places(self: Model, mask: Any, positions: Any, keys: Any) -> Any:
        first = mask.shape[1] - mask.shape[0]
        return right(self, mask, torch.arange(first, mask.shape[1]), torch.arange(mask.shape[1]))

    monkeypatch.setattr(Model, "_attention_masks", in_places)
    assert worst(read_draft(*arguments, signals=False).logits(ends), references) > 1e-2


def test_a_bool_mask_in_eager_attention_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments, ends, references = gemma_readings(kind_model("gemma3_eager"))
    monkeypatch.setattr(Model, "_attention_mask", lambda self, mask: mask[None, None])
    assert worst(read_draft(*arguments, signals=False).logits(ends), references) > 1e-2


def test_the_check_at_load_notices_masks_that_do_not_arrive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for kind in ("gemma3", "mistral_wide", "qwen3_moe"):
        with monkeypatch.context() as patch:
            patch.setattr(Model, "_attention_masks", lambda *given: None)
            engine = Engine(kind_model(kind))
        assert engine.path == "fan_out"
        assert "other logits than separate passes" in engine.ability.plan.why


def test_a_cache_that_drops_what_left_the_window_cannot_be_cropped() -> None:
    from tests.tiny_kinds import fresh_cache

    target = kind_model("gemma3")
    cache = fresh_cache(target)
    target.forward(draft_ids(target, 3 * WINDOW), cache)
    with pytest.raises(RuntimeError, match="crop"):
        cache.crop(-4)


# Positions


@pytest.mark.parametrize("reach", [Reach(), Reach(window=4), Reach(chunk=4)])
def test_reach_is_counted_in_logical_positions(reach: Reach) -> None:
    keys, rows = torch.tensor([-2, -1, 0, 1, 2, 3, 4, 5, 6, 3]), torch.tensor([3, 6])
    seen = within(reach, torch.ones(2, 10, dtype=torch.bool), rows, keys)
    for row, at in enumerate(rows.tolist()):
        for column, key in enumerate(keys.tolist()):
            near = reach.window is None or at - key < reach.window
            same = reach.chunk is None or at // reach.chunk == key // reach.chunk
            assert bool(seen[row, column]) == (near and same)


def test_a_brief_before_scaled_positions_would_give_no_numbers() -> None:
    target = kind_model("ministral3")
    judge = make_judge(target.tokenizer, ParseConfig(), {})
    brief: Brief = read_brief(target, judge)
    assert not torch.isfinite(brief.states[-1][1]).all()
