"""Drafts of known correctness: written in batches, kept in a file as they come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from transformers import GenerationConfig, LogitsProcessorList

from parse_engine.request import Sampling
from parse_engine.sampling import sampling_processors

if TYPE_CHECKING:
    from parse_engine.backends.model import Model


@dataclass(frozen=True)
class Written:
    """An answer that one model wrote.

    Parameters
    ----------
    text : str
        The answer, without end-of-turn token.
    complete : bool
        Whether the model ended by itself, and not at the limit of tokens.
    """

    text: str
    complete: bool


def write_batch(
    model: Model, prompts: Sequence[Sequence[int]], limit: int, sampling: Sampling
) -> list[Written]:
    """Answer several prompts at once with transformers' ``generate``.

    Parameters
    ----------
    model : Model
        Who writes.
    prompts : sequence of sequence of int
        Token ids; the shorter ones are padded on the left.
    limit : int
        Most tokens of an answer.
    sampling : Sampling
        How tokens are chosen.

    Returns
    -------
    list of Written
        In the order of the prompts.
    """
    width = max(map(len, prompts))
    # Padded with a token that the prompt has anyway, so that a repetition penalty counts none anew.
    padded = [[ids[0]] * (width - len(ids)) + list(ids) for ids in prompts]
    device = model.network.device
    inputs = torch.tensor(padded, device=device)
    room = torch.arange(width, device=device)
    padding = torch.tensor([width - len(ids) for ids in prompts], device=device)
    eos_ids = sorted(model.eos_ids)
    generate = cast(Callable[..., torch.Tensor], model.network.generate)
    with torch.no_grad():
        output = generate(
            inputs,
            attention_mask=(room >= padding[:, None]).long(),
            generation_config=GenerationConfig(  # type: ignore[no-untyped-call]
                do_sample=False,  # sampling is a logits processor, with a generator of its own
                temperature=1.0,
                top_p=1.0,
                top_k=50,
                num_beams=1,
                num_return_sequences=1,
                max_new_tokens=limit,
                eos_token_id=eos_ids or None,
                pad_token_id=eos_ids[0] if eos_ids else 0,
            ),
            logits_processor=LogitsProcessorList(sampling_processors(sampling, inputs.device)),
        )
    answers = []
    for ids in output[:, width:].tolist():
        end = next((n for n, token in enumerate(ids) if token in model.eos_ids), None)
        text = model.tokenizer.decode(ids[:end], skip_special_tokens=False)
        answers.append(Written(str(text), end is not None))
    return answers
