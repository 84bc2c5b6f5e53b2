"""Claims about real models, on the demo pair."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from parse_engine import Engine, ParseConfig, TextDelta, Verified
from parse_engine.backends.check import plain_logits
from parse_engine.demo import OTHER_DRAFT, ensure_demo_model, ensure_demo_pair
from parse_engine.reading import judge_logits
from tests.conftest import forward_log

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]

ASK = [
    {
        "role": "user",
        "content": "Write a Python function that adds two numbers. Answer with the code only.",
    }
]


@pytest.fixture(scope="module")
def engine() -> Engine:
    torch.set_num_threads(2)
    return Engine.demo()


@pytest.mark.smoke
@pytest.mark.parametrize("options", [{}, {"threshold": 0.5}], ids=["default", "paper"])
def test_parse_answers_a_real_question(engine: Engine, options: Any) -> None:
    with forward_log(engine.target) as log:
        events = list(engine.stream(ASK, max_new_tokens=48, temperature=0, **options))
    answer = events[-1]
    assert "def " in answer.text
    assert answer.text == answer.accepted_text + answer.regenerated_text
    assert "".join(e.text for e in events if isinstance(e, TextDelta)) == answer.text
    assert sum(log) == answer.stats.target_tokens_processed
    (verified,) = [event for event in events if isinstance(event, Verified)]
    assert all(0 <= verdict <= 1 for verdict in verified.verdicts.verdict)
    assert verified.verdicts.kind == ("p_correct" if options else "accept_prob")
    assert engine.labels == ("Correct", "Incorrect")


@pytest.mark.smoke
def test_judge_tells_right_from_wrong(engine: Engine) -> None:
    right = engine.verify(ASK, "```python\ndef add(a, b):\n    return a + b\n```")
    wrong = engine.verify(ASK, "```python\ndef add(a, b):\n    return a * b - 7\n```")
    assert right.p_correct[-1] > wrong.p_correct[-1]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_packed_pass_equals_separate_passes(
    dtype: str, record_property: pytest.RecordProperty
) -> None:
    pair = ensure_demo_pair()
    judge = Engine.from_pretrained(pair.target, dtype=dtype)
    target, brief, suffix = judge.target, judge.ability.brief, judge.ability.judge.suffix_ids
    prompt = target.render(ASK).ids
    draft = target.encode("```python\ndef add(a, b):\n    # the sum\n    return a + b\n```\n" * 4)
    ends = [len(prompt) + cut for cut in range(7, len(draft), 9)]
    cache = DynamicCache()
    target.forward((*prompt, *draft), cache)
    packed = judge_logits(target, cache, brief, suffix, ends).double().log_softmax(-1)
    labels = [judge.ability.judge.labels.right_id, judge.ability.judge.labels.wrong_id]
    worst = 0.0
    for row, end in zip(packed, ends, strict=True):
        plain = plain_logits(target, brief, (*prompt, *draft)[:end], suffix)
        difference = (row - plain.double().log_softmax(-1)).abs()
        worst = max(worst, float(difference[labels].max()))
    record_property("worst difference of a label's log-probability", worst)
    print(f"{dtype}: labels differ by at most {worst:.2g} nat")
    if dtype == "float32":  # bfloat16 rounds: reported, not asserted
        assert worst < 1e-4


def test_float32_is_what_the_target_alone_writes() -> None:
    pair = ensure_demo_pair()
    exact = Engine.from_pretrained(pair.target, pair.draft, dtype="float32")
    prompt = exact.target.render(ASK).ids
    for options in ({"threshold": 1}, {"threshold": 0, "max_draft_tokens": 12}):
        answer = exact.generate(ASK, max_new_tokens=40, temperature=0, **options)
        kept = answer.token_ids[: answer.stats.accepted_tokens]
        output = exact.target.network.generate(
            torch.tensor([[*prompt, *kept]]),
            do_sample=False,
            max_new_tokens=40 - len(kept),
            eos_token_id=sorted(exact.target.eos_ids),
        )
        alone = [i for i in output[0, len(prompt) :].tolist() if i not in exact.target.eos_ids]
        assert list(answer.token_ids) == alone


def test_draft_model_of_another_family_with_another_tokenizer(engine: Engine) -> None:
    other = Engine.from_pretrained(
        ensure_demo_pair().target, ensure_demo_model(OTHER_DRAFT), config=ParseConfig(threshold=0.5)
    )
    assert other.target.network is engine.target.network  # shared
    assert not other.same_tokenizer
    answer = other.generate(ASK, max_new_tokens=60, temperature=0)
    assert answer.draft_text
    assert answer.stats.drafted_tokens == len(other.target.encode(answer.draft_text))
    assert answer.text == answer.accepted_text + answer.regenerated_text


def test_twelve_humaneval_items(engine: Engine, request: pytest.FixtureRequest) -> None:
    path = request.config.getoption("--humaneval")
    if path is None:
        pytest.skip("needs the HumanEval items: --humaneval FILE")
    from parse_engine.bench.code import CodeTask

    for line in Path(path).read_text(encoding="utf-8").splitlines()[:12]:
        task = CodeTask.from_json(json.loads(line))
        with forward_log(engine.target) as log:
            answer = engine.generate(
                task.messages, max_new_tokens=320, temperature=0, verdict="p_correct"
            )
        stats, verdicts = answer.stats, answer.verdicts
        assert verdicts is not None
        assert sum(log) == stats.target_tokens_processed
        assert stats.prefixes == len(verdicts.p_correct)
        assert answer.text == answer.accepted_text + answer.regenerated_text
        assert answer.draft_text.startswith(answer.accepted_text)
        assert (stats.full_verdict, stats.fallback) == (verdicts.p_correct[-1], None)
        assert stats.accepted_tokens in (0, *verdicts.token_ends)


def test_every_method_of_the_benchmark_answers_on_the_real_pair(engine: Engine) -> None:
    from parse_engine.bench.forms import Item
    from parse_engine.bench.measure import measure, warm_up
    from parse_engine.bench.methods import METHODS, parse_methods
    from parse_engine.bench.tasks import Task

    item = Item("add", tuple(ASK), lambda text: None if "def " in text else "no function")
    entries = parse_methods("all")
    warm_up(engine, entries)
    rows = [measure(engine, Task("t", (item,)), item, entry, 32) for entry in entries]
    assert [row["method"] for row in rows] == list(METHODS)
    for row in rows:
        assert "error" not in row, row
        assert row["correct"], row
        assert 0 < row["first_s"] <= row["seconds"]
