"""Calibrations for tiny models."""

from __future__ import annotations

from typing import Any

from parse_engine import Calibration, Engine, ParseConfig
from parse_engine.binding import bind
from parse_engine.bound import Bound, Tested
from parse_engine.calibration import Combination
from tests.scripted import scripted
from tests.tiny_models import tiny_model

TEXT = "The answer is that. It is the return of a model. So far so good.\n\nThat is it.\n"
FREE = Combination(bias=1.0, min_logprob=0.3, sum_logprob=0.01)
ASKING = Combination(bias=0.2, p_correct=0.5, min_logprob=0.1, max_gap=-0.05)


def calibrated(
    combination: Combination = ASKING, threshold: float = 0.4, **config: Any
) -> tuple[Engine, Calibration]:
    target = tiny_model()
    engine = Engine(target, scripted(target, TEXT), ParseConfig(**config))
    asks = combination.p_correct != 0
    made = Calibration(
        combination=combination,
        threshold=threshold,
        accept_rule="longest",
        cut_at=4,
        bound=Bound(
            false_accept=0.15,
            confidence=0.95,
            tested=(Tested(temperature=0.0, wrong_items=40, accepted=1),),
            max_new_tokens=320,
            top_p=1.0,
            top_k=50,
            min_p=0.0,
        ),
        binding=bind(target, engine.draft, engine.ability, engine.config, asks_judge=asks),
        task="tiny",
        reference="checker",
    )
    return engine, made
