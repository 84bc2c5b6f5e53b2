"""Two models that take turns in one answer, each on a cache of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from transformers import DynamicCache

from parse_engine.backends.model import Model
from parse_engine.bench.methods.job import Job, croppable_pair
from parse_engine.regenerate import regenerate
from parse_engine.render import encode_plain
from parse_engine.request import Sampling
from parse_engine.text import TextBuilder

GREEDY = Sampling()


@dataclass
class Voice:
    """One of the models: the conversation and the answer so far in its tokens, and its cache.

    The cache may be behind the tokens, or ahead of them with what was not kept.
    """

    model: Model
    ids: tuple[int, ...]
    cache: DynamicCache = field(default_factory=DynamicCache)

    def read(self, more: Sequence[int]) -> torch.Tensor:
        """Read what the cache lacks, then more that is forgotten again.

        Returns
        -------
        Tensor, shape [vocabulary]
            The logits after the last of it.
        """
        self.forget()
        missing = self.ids[self.cache.get_seq_length() :]
        logits = self.model.forward((*missing, *more), self.cache)[-1]
        self.forget()
        return logits

    def forget(self) -> None:
        """Drop from the cache what is no part of the answer; to be done before other text is."""
        self.cache.crop(min(0, len(self.ids) - self.cache.get_seq_length()))


@dataclass(frozen=True)
class Turn:
    """What one of the models wrote.

    Parameters
    ----------
    ids : tuple of int
        In its own tokens, without end-of-turn token.
    text : str
        The same as text.
    ended : bool
        Whether it ended the answer.
    """

    ids: tuple[int, ...]
    text: str
    ended: bool


class Duet:
    """An answer that grows by turns of two models.

    Parameters
    ----------
    job : Job
        The question.
    """

    def __init__(self, job: Job) -> None:
        croppable_pair(job.engine)
        assert job.engine.draft is not None
        call = job.call("target")
        self.request = call.request
        self.target = Voice(job.engine.target, call.prompt.ids)
        prompt = job.engine.draft.render(call.request.messages)
        self.draft = Voice(job.engine.draft, prompt.ids)
        self.writer = job.writer(call)
        self.limit = call.limit
        self.ended = False
        self.drafted = self.accepted = 0
        self._same = job.engine.same_tokenizer
        self._first_text = job.first_text
        self._start = len(call.prompt.ids)

    @property
    def room(self) -> int:
        """Tokens that the answer may still have; none once it has ended."""
        return 0 if self.ended else self.limit - (len(self.target.ids) - self._start)

    def write(self, voice: Voice, limit: int, until: Callable[[str], bool], *, stays: bool) -> Turn:
        """Let a model go on until its own text of this turn fulfils a condition, or ends.

        ``stays`` says that the turn is kept, whatever it will be, so that it can be shown at once.
        """
        builder = TextBuilder(voice.model.tokenizer)
        eos_ids = voice.model.eos_ids

        def on_token(token: int) -> bool:
            if token in eos_ids:
                return True
            builder.push(token)
            if stays and builder.text:
                self._first_text()
            return until(builder.text)

        written, _ = regenerate(
            voice.model, voice.ids, voice.cache, min(limit, self.room), GREEDY, on_token
        )
        builder.finish()
        ended = written[-1] in eos_ids
        ids = written[:-1] if ended else written
        if voice is self.draft:
            self.drafted += len(ids)
        return Turn(ids, builder.text, ended)

    def judge(self, turn: Turn, question: Sequence[int]) -> torch.Tensor:
        """Return the target's logits after a turn of the draft model and a question about it.

        Shape [vocabulary]. The target has read the turn then, and need not read it again to keep
        it; the question is forgotten.
        """
        before = self.target.ids
        self.target.ids += self._for(self.target, turn)
        logits = self.target.read(question)
        self.target.ids = before
        return logits

    def keep(self, voice: Voice, turn: Turn) -> None:
        """Let a turn be part of the answer, for both models."""
        other = self.target if voice is self.draft else self.draft
        before = len(self.target.ids)
        theirs = self._for(other, turn)
        if voice is self.target:
            self.draft.forget()  # what it wrote in place of this turn
        voice.ids += turn.ids
        other.ids += theirs
        for token in self.target.ids[before:]:
            self.writer.add(token)
        if voice is self.draft:
            self.accepted += len(turn.ids)
        # a turn that is nothing in the target's tokens would be written for ever
        self.ended = turn.ended or len(self.target.ids) == before

    def _for(self, other: Voice, turn: Turn) -> tuple[int, ...]:
        """Return a turn in the other model's tokens; no more of the target's than there is room."""
        ids = turn.ids if self._same else encode_plain(other.model.tokenizer, turn.text)
        return ids[: self.room] if other is self.target else ids
