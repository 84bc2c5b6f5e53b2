"""What transformers' ``generate`` is kept to, and how its tokens are watched."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import torch
from transformers import GenerationConfig, LogitsProcessor, StoppingCriteria

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# What a model's generation config may ask of ``generate`` that has no place in writing one token at
# a time on a cache of our own.
PLAIN: dict[str, Any] = {
    "use_cache": True,
    "return_dict_in_generate": None,
    "prompt_lookup_num_tokens": None,
    "assistant_early_exit": None,
    "use_mtp": None,
    "stop_strings": None,
    "penalty_alpha": None,
    "dola_layers": None,
    "token_healing": None,
    "prefill_chunk_size": None,
}


def plain_generation(*networks: PreTrainedModel) -> None:
    """Take out of the models' generation configs what would break or change our writing."""
    for config in (network.generation_config for network in networks):
        if config is None:
            continue
        for name, value in PLAIN.items():
            if hasattr(config, name):
                setattr(config, name, value)
        if config.cache_implementation in ("dynamic", "hybrid"):
            config.cache_implementation = None


def writing_config(limit: int, eos_ids: Collection[int]) -> GenerationConfig:
    """Return what ``generate`` is asked wherever tokens are written one at a time.

    Parameters
    ----------
    limit : int
        Most new tokens.
    eos_ids : collection of int
        Token ids that end a turn.
    """
    ends = sorted(eos_ids)
    return GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=False,  # sampling is a logits processor, with a generator of its own
        temperature=1.0,
        top_p=1.0,
        top_k=50,
        num_beams=1,
        num_return_sequences=1,
        max_new_tokens=limit,
        eos_token_id=ends or None,
        pad_token_id=ends[0] if ends else 0,
    )


class TokenWatch(StoppingCriteria):
    """Hands each new token to a callback, which says whether to stop.

    Where ``generate`` looks at this a step late (on mps), the token after the last is not reported.
    """

    def __init__(self, on_token: Callable[[int], bool]) -> None:
        self.on_token = on_token
        self.stopped = False

    def __call__(  # noqa: D102 - as its base class says
        self,
        input_ids: torch.LongTensor,
        scores: torch.FloatTensor,  # noqa: ARG002 - the base class's signature
        **kwargs: Any,  # noqa: ARG002
    ) -> torch.BoolTensor:
        self.stopped = self.stopped or self.on_token(int(input_ids[0, -1]))
        done = torch.full((1,), self.stopped, dtype=torch.bool, device=input_ids.device)
        assert isinstance(done, torch.Tensor)
        return done  # type: ignore[return-value]


class TokenLogprobs(LogitsProcessor):
    """Notes the log-probability of each token that is written, before anything changes it.

    It has to be the first of the logits processors. A token is known one step later.
    """

    def __init__(self) -> None:
        self._noted: list[float] = []
        self._scores: torch.Tensor | None = None

    def __call__(  # noqa: D102 - as its base class says
        self, input_ids: torch.LongTensor, scores: torch.FloatTensor
    ) -> torch.FloatTensor:
        self._note(int(input_ids[0, -1]))
        self._scores = scores[0].clone()  # later processors may write into it
        return scores

    def of(self, ids: Sequence[int]) -> tuple[float, ...] | None:
        """Return those of the tokens that were written; None if this was not told of each."""
        if len(self._noted) == len(ids) - 1:
            self._note(ids[-1])
        return tuple(self._noted) if len(self._noted) == len(ids) else None

    def _note(self, token: int) -> None:
        if self._scores is not None:
            scores = self._scores.float()
            self._noted.append(float(scores[token] - scores.logsumexp(0)))
            self._scores = None
