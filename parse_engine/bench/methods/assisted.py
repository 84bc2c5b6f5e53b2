"""Token-level speculative decoding as transformers has it: a draft model, or the prompt itself.

Leviathan et al. (arXiv 2211.17192) and Saxena's prompt lookup, with the library's own settings: the
draft model proposes up to 20 tokens at a time and stops where it is unsure; prompt lookup proposes
the ten tokens that followed the last two (or the last one) earlier in the text. The target checks a
proposal in one pass and keeps what it would have written itself, so the answer is the target's own
up to rounding. Each call starts on empty caches: from a warm one both are wrong in transformers
5.24.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from transformers import (
    GenerationConfig,
    PreTrainedModel,
    StoppingCriteria,
    StoppingCriteriaList,
)

from parse_engine.bench.methods.job import Answer, Job
from parse_engine.writing import Writer

LOOKUP_TOKENS = 10  # proposed at a time; the number that transformers' documentation uses


def assisted(job: Job) -> Answer:
    """Let the draft model propose tokens; across vocabularies, its text in the target's tokens.

    The library takes vocabularies of the same size for the same, and wants no tokenizers then.
    """
    target, draft = job.engine.target, job.engine.draft
    assert draft is not None
    how: dict[str, Any] = {"assistant_model": draft.network}
    size = target.network.config.get_text_config().vocab_size
    own = draft.network.config.get_text_config().vocab_size
    if own > size or (own < size and not job.engine.same_tokenizer):
        how |= {"tokenizer": target.tokenizer, "assistant_tokenizer": draft.tokenizer}
        return _generate(job, how, {})
    with sized(draft.network, size):
        return _generate(job, how, {})


@contextmanager
def sized(network: PreTrainedModel, size: int) -> Iterator[None]:
    """Let a vocabulary that is padded to a larger size pass for the same: its ids are."""
    config = network.config.get_text_config()
    own, config.vocab_size = config.vocab_size, size
    try:
        yield
    finally:
        config.vocab_size = own


def prompt_lookup(job: Job) -> Answer:
    """Propose what followed the last tokens earlier in prompt and answer; needs no draft model."""
    return _generate(job, {}, {"prompt_lookup_num_tokens": LOOKUP_TOKENS})


def _generate(job: Job, how: dict[str, Any], settings: dict[str, Any]) -> Answer:
    target, call = job.engine.target, job.call("target")
    writer = job.writer(call)
    prompt = torch.tensor([call.prompt.ids], device=target.network.device)
    eos_ids = sorted(target.eos_ids)
    generate = cast(Callable[..., torch.Tensor], target.network.generate)
    output = generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        generation_config=GenerationConfig(  # type: ignore[no-untyped-call]
            do_sample=False,
            max_new_tokens=call.limit,
            eos_token_id=eos_ids or None,
            pad_token_id=eos_ids[0] if eos_ids else 0,
            **settings,
        ),
        stopping_criteria=StoppingCriteriaList([Steps(len(call.prompt.ids), writer)]),
        **how,
    )
    # a pass reads the last token, or the prompt, and what is proposed; it yields one token more
    passes, written = len(job.meter.positions), output.shape[1] - prompt.shape[1]
    drafted = sum(job.meter.positions) - prompt.shape[1] - (passes - 1)
    return Answer.of(writer, ended=False, drafted=drafted, accepted=written - passes, passes=passes)


class Steps(StoppingCriteria):
    """Hands every new token to a writer, however many a step brings.

    Parameters
    ----------
    start : int
        Tokens of the prompt.
    writer : Writer
        Says when the answer is over.
    """

    def __init__(self, start: int, writer: Writer) -> None:
        self.seen = start
        self.writer = writer

    def __call__(  # noqa: D102 - as its base class says
        self,
        input_ids: torch.LongTensor,
        scores: torch.FloatTensor,  # noqa: ARG002 - the base class's signature
        **kwargs: Any,  # noqa: ARG002
    ) -> torch.BoolTensor:
        new = input_ids[0, self.seen :].tolist()
        self.seen = input_ids.shape[1]
        for token in new:
            self.writer.add(token)
        done = self.writer.ended
        return torch.full((1,), done, dtype=torch.bool, device=input_ids.device)  # type: ignore[return-value]
