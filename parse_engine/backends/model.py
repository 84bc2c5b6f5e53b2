"""A causal language model in this process: prompts, masked forward passes, writing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import torch
from transformers import (
    LogitsProcessorList,
    StoppingCriteriaList,
)

from parse_engine.backends.fingerprint import fingerprint
from parse_engine.backends.generation import TokenWatch, writing_config
from parse_engine.backends.kinds import ALL_LAYERS, Plan, context_window, plan_for
from parse_engine.errors import InvalidRequestError, UnsupportedModelError
from parse_engine.pack import within
from parse_engine.render import adds_bos
from parse_engine.request import Sampling
from parse_engine.sampling import sampling_processors
from parse_engine.types import Message

if TYPE_CHECKING:
    from transformers import Cache, PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class Prompt:
    """A rendered conversation.

    Parameters
    ----------
    text : str
        What the chat template made of the messages.
    ids : tuple of int
        The same as P token ids.
    """

    text: str
    ids: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Model:
    """A loaded model with its tokenizer.

    Parameters
    ----------
    name : str
        Hub id or folder, for messages and statistics.
    network : PreTrainedModel
        The model, in evaluation mode.
    tokenizer : PreTrainedTokenizerBase
        Its tokenizer, with a chat template.
    template_kwargs : mapping
        Extra arguments of the chat template, such as ``enable_thinking``.
    """

    name: str
    network: PreTrainedModel = field(repr=False)
    tokenizer: PreTrainedTokenizerBase = field(repr=False)
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def eos_ids(self) -> frozenset[int]:
        """Every token id that the model or its tokenizer declares to end a turn."""
        declared = (
            self.network.generation_config.eos_token_id if self.network.generation_config else None,
            getattr(self.network.config.get_text_config(), "eos_token_id", None),
            self.tokenizer.eos_token_id,
        )
        ids: set[int] = set()
        for value in declared:
            if value is not None:
                ids.update(value if isinstance(value, list | tuple) else [value])
        return frozenset(ids)

    @cached_property
    def plan(self) -> Plan:
        """How this kind of model can judge; raises UnsupportedModelError where it cannot."""
        return plan_for(self.name, self.network)

    @cached_property
    def fingerprint(self) -> str:
        """What tells this model from others, wherever it lies."""
        return fingerprint(self)

    @property
    def context_window(self) -> int:
        """The number of positions that the model was made for."""
        return context_window(self.network.config.get_text_config(decoder=True))

    def render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> Prompt:
        """Render a conversation through the model's own chat template.

        Raises
        ------
        UnsupportedModelError
            If the tokenizer has no chat template.
        InvalidRequestError
            If the template refuses the messages.
        """
        if not self.tokenizer.chat_template:
            raise UnsupportedModelError(
                f"{self.name} has no chat template.",
                "Use an instruction-tuned model, or set tokenizer.chat_template.",
            )
        try:
            text = self.tokenizer.apply_chat_template(
                list(messages),
                tools=[dict(tool) for tool in tools] if tools else None,
                add_generation_prompt=True,
                tokenize=False,
                **self.template_kwargs,
            )
        except Exception as error:  # templates raise errors of their own kinds
            raise InvalidRequestError(
                f"The chat template of {self.name} refused the messages: {error}",
                "Give the roles in the order that this model's template expects.",
            ) from error
        assert isinstance(text, str)
        return Prompt(text, self.encode(text))

    def take(self, text: str) -> Prompt:
        """Take a prompt as it stands; only a BOS that the tokenizer puts before texts is added."""
        ids = self.encode(text)
        bos = self.tokenizer.bos_token_id
        if adds_bos(self.tokenizer) and ids[:1] != (bos,):
            ids = (bos, *ids)
        return Prompt(text, ids)

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the token ids of a text, without adding special tokens."""
        return tuple(self.tokenizer(text, add_special_tokens=False).input_ids)

    @torch.no_grad()
    def forward(
        self,
        ids: Sequence[int],
        cache: Cache,
        *,
        keep: int | torch.Tensor = 1,
        positions: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
        key_positions: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run token ids through the model and leave their keys and values in the cache.

        Parameters
        ----------
        ids : sequence of int
            Q token ids.
        cache : Cache
            Holds C positions before the call and C + Q after it.
        keep : int or Tensor of int, shape [L]
            For which of the Q positions logits are wanted: the last ``keep``, or these.
        positions : Tensor of int, shape [Q], optional
            Logical positions. Unset: C, C + 1, ...
        mask : Tensor of bool, shape [Q, C + Q], optional
            Who sees whom; layers with a window see less of it. Unset: causal.
        key_positions : Tensor of int, shape [C + Q], optional
            With a mask, the logical positions of its columns.

        Returns
        -------
        Tensor, shape [L, vocabulary]
            Logits in the model's dtype.
        """
        device = self.network.device
        wanted = keep if isinstance(keep, int) else keep.to(device)
        given: dict[str, Any] = {}  # some models know nothing of positions, and need not
        if positions is not None:
            given["position_ids"] = positions[None].to(device)
        if mask is not None:
            assert positions is not None
            assert key_positions is not None
            given["attention_mask"] = self._attention_masks(mask, positions, key_positions)
        output = self.network(
            input_ids=torch.tensor([list(ids)], device=device),
            cache=cache,
            use_cache=True,
            logits_to_keep=wanted,
            **given,
        )
        logits = output.logits[0]
        assert isinstance(logits, torch.Tensor)
        rows = keep if isinstance(keep, int) else len(keep)
        if len(logits) != rows:  # a model that does not know logits_to_keep
            logits = logits[-rows:] if isinstance(wanted, int) else logits[wanted]
        return logits

    def _attention_masks(
        self, mask: torch.Tensor, positions: torch.Tensor, key_positions: torch.Tensor
    ) -> torch.Tensor | dict[str, torch.Tensor]:
        """Give a mask the form that the model takes: one, or one a kind of layer."""
        masks = {
            kind: self._attention_mask(within(reach, mask, positions, key_positions))
            for kind, reach in self.plan.reaches.items()
        }
        return masks.get(ALL_LAYERS, masks)

    def _attention_mask(self, mask: torch.Tensor) -> torch.Tensor:
        """Give a mask the form that the attention takes, shape [1, 1, Q, K]."""
        mask = mask.to(self.network.device)
        if self.network.config.get_text_config(decoder=True)._attn_implementation == "sdpa":
            return mask[None, None]
        # eager adds its mask to the scores: a bool one would be silently wrong
        scores = torch.zeros(mask.shape, dtype=self.network.dtype, device=mask.device)
        return scores.masked_fill(~mask, torch.finfo(self.network.dtype).min)[None, None]

    def write(
        self,
        ids: Sequence[int],
        *,
        limit: int,
        sampling: Sampling,
        on_token: Callable[[int], bool],
        cache: Cache | None = None,
        processors: Sequence[Callable[[Any, Any], Any]] = (),
    ) -> tuple[int, ...]:
        """Continue a text token by token with transformers' ``generate``.

        Parameters
        ----------
        ids : sequence of int
            The whole text so far, also what the cache holds already.
        limit : int
            Most tokens to write, at least 1.
        sampling : Sampling
            How to choose the next token.
        on_token : callable
            Called with each new token id; returns whether it is the last. What it raises ends the
            writing.
        cache : Cache, optional
            Keys and values of the beginning of ``ids``; at least the last id must be missing.
            Unset: the model's own kind of cache, empty.
        processors : sequence of callable
            Logits processors, applied before sampling: they get all ids so far, and the scores.

        Returns
        -------
        tuple of int
            The new token ids; the last may be an end-of-turn token.
        """
        if cache is not None and cache.get_seq_length() >= len(ids):
            raise ValueError("the cache holds the whole text: crop it so that one token is left")
        inputs = torch.tensor([list(ids)], device=self.network.device)
        generate = cast(Callable[..., torch.Tensor], self.network.generate)
        output = generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            **({} if cache is None else {"cache": cache}),
            generation_config=writing_config(limit, self.eos_ids),
            logits_processor=LogitsProcessorList(
                [*processors, *sampling_processors(sampling, inputs.device)]
            ),
            stopping_criteria=StoppingCriteriaList([TokenWatch(on_token)]),
        )
        return tuple(output[0, len(ids) :].tolist())
