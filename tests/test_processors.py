"""Logits processors of a call: they restrict draft and target, and see what was accepted."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from parse_engine import Engine
from parse_engine.backends.model import Model
from tests.tiny_models import tiny_model

ASK = [{"role": "user", "content": "What is that?"}]
WANTED = "The answer is that. It is so.\nSo far it is the model.\n"


class Dictated:
    """Allows one text only, whatever was accepted of it already."""

    def __init__(self, model: Model, start: int) -> None:
        self.ids = (*model.encode(WANTED), min(model.eos_ids))
        self.start = start
        self.first_seen: int | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        written = input_ids[0, self.start :].tolist()
        if self.first_seen is None:
            self.first_seen = len(written)
        assert tuple(written) == self.ids[: len(written)]
        allowed = torch.full_like(scores, float("-inf"))
        allowed[0, self.ids[len(written)]] = 0.0
        return allowed


@pytest.fixture
def engine() -> Engine:
    return Engine(tiny_model(seed=0), tiny_model(seed=1))


@pytest.mark.parametrize("mode", ["parse", "target", "draft"])
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_every_model_writes_only_what_is_allowed(
    engine: Engine, mode: Any, temperature: float
) -> None:
    answer = engine.generate(
        ASK,
        logits_processors=lambda model, start: [Dictated(model, start)],
        mode=mode,
        temperature=temperature,
        threshold=0.5,
    )
    assert answer.text == WANTED
    assert answer.finish_reason == "stop"


def test_regeneration_goes_on_after_the_accepted_text(engine: Engine) -> None:
    made: list[Dictated] = []

    def make(model: Model, start: int) -> list[Dictated]:
        made.append(Dictated(model, start))
        return made[-1:]

    verdicts = engine.verify(ASK, WANTED, cut_at=1, max_prefixes=1000).p_correct
    partly = 0
    for threshold in (*verdicts[::4], 1.0):
        made.clear()
        answer = engine.generate(
            ASK,
            logits_processors=make,
            cut_at=1,
            max_prefixes=1000,
            verify_order="all",
            threshold=threshold,
            accept_rule="longest",
        )
        assert answer.text == WANTED
        drafting, *regenerating = made
        assert drafting.first_seen == 0
        accepted, drafted = answer.stats.accepted_tokens, answer.stats.drafted_tokens
        assert [one.first_seen for one in regenerating] == [accepted] * (accepted < drafted)
        partly += 0 < accepted < drafted
    assert partly


def test_processors_that_are_no_function_are_refused(engine: Engine) -> None:
    from parse_engine import InvalidRequestError

    with pytest.raises(InvalidRequestError, match="logits_processors"):
        engine.generate(ASK, logits_processors=[Dictated])  # type: ignore[arg-type]
