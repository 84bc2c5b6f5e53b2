"""Choosing the next token from a generator of the call's own."""

from __future__ import annotations

import torch
from transformers import (
    LogitsProcessor,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from parse_engine.request import Sampling


class SampleFromGenerator(LogitsProcessor):
    """Make greedy choice a sample: add Gumbel noise to the logits (Gumbel-max trick).

    ``generate`` draws from the process-wide random state, which two calls in two threads share;
    the noise comes from a generator that belongs to one call.

    Parameters
    ----------
    generator : torch.Generator
        Source of the noise, on the device of the logits.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def __call__(  # noqa: D102 - as its base class says
        self,
        input_ids: torch.LongTensor,  # noqa: ARG002 - the base class's signature
        scores: torch.FloatTensor,
    ) -> torch.FloatTensor:
        noise = torch.empty_like(scores).exponential_(generator=self.generator)
        noisy = scores - noise.log()
        assert isinstance(noisy, torch.Tensor)
        return noisy  # type: ignore[return-value]


def sampling_processors(sampling: Sampling, device: torch.device) -> list[LogitsProcessor]:
    """Return the logits processors of one stage of one call; none for greedy decoding."""
    if sampling.temperature == 0:
        return []
    generator = torch.Generator(device)
    if sampling.seed is None:
        generator.seed()
    else:
        generator.manual_seed(sampling.seed)
    processors: list[LogitsProcessor] = [TemperatureLogitsWarper(float(sampling.temperature))]
    if sampling.top_k:
        processors.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        processors.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        processors.append(MinPLogitsWarper(sampling.min_p))
    return [*processors, SampleFromGenerator(generator)]
