"""An answer as it grows out of accepted and newly written tokens."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable

from parse_engine.answer import AnswerText
from parse_engine.backends.model import Model
from parse_engine.regions import answer_parser
from parse_engine.text import TextBuilder
from parse_engine.types import Event, Source, TextDelta


class Writer:
    """Turns tokens into the text of an answer, and emits each piece as it becomes sure.

    Parameters
    ----------
    model : Model
        Whose tokens they are.
    prompt_text : str
        The rendered conversation, which may have opened the model's thinking.
    stop : tuple of str
        Stop strings.
    source : {"regenerated", "draft"}
        What new tokens are called in the events.
    emit : callable
        Receives the events; None asks only whether somebody still listens.
    """

    def __init__(
        self,
        model: Model,
        prompt_text: str,
        stop: tuple[str, ...],
        source: Source,
        emit: Callable[[Event | None], None],
    ) -> None:
        self._builder = TextBuilder(model.tokenizer)
        self._answer = AnswerText(stop, answer_parser(model.tokenizer, prompt_text))
        self._eos_ids = model.eos_ids
        self._source = source
        self._emit = emit
        self._ids: list[int] = []
        self.accepted_text = ""
        self.ended = False

    def accept(self, ids: Iterable[int]) -> None:
        """Take over drafted tokens that the target approved."""
        for token in ids:
            self._ids.append(token)
            self._builder.push(token)
        if self._builder.text:
            self._show(self._answer.feed(self._builder.text, "accepted"))
        self.accepted_text = self._answer.raw
        self.ended = self._answer.stopped

    def add(self, token: int) -> bool:
        """Take a newly written token; return whether the answer is over."""
        self._emit(None)  # raises where nobody listens any more, also while nothing is shown
        if token in self._eos_ids:
            self.ended = True
            return True
        self._ids.append(token)
        self._show(self._answer.feed(self._builder.push(token), self._source))
        self.ended = self._answer.stopped
        return self.ended

    def finish(self) -> None:
        """Emit what was held back: the answer is over."""
        if not self._answer.stopped:
            self._show(self._answer.feed(self._builder.finish(), self._source))
        self._show(self._answer.finish())

    @property
    def text(self) -> str:
        """The answer without thinking."""
        return self._answer.text

    @property
    def reasoning(self) -> str:
        """What the model thought."""
        return self._answer.reasoning

    @property
    def written_text(self) -> str:
        """What followed the accepted text, thinking and marks included."""
        return self._answer.raw[len(self.accepted_text) :]

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The answer's tokens, without end-of-turn token and what a stop string cut off."""
        if not self._answer.stopped:
            return tuple(self._ids)
        starts, last = [], 0
        for end in self._builder.char_ends:
            starts.append(last)
            last = last if end is None else end
        return tuple(self._ids[: bisect_left(starts, len(self._answer.raw))])

    def _show(self, deltas: Iterable[TextDelta]) -> None:
        for delta in deltas:
            self._emit(delta)
