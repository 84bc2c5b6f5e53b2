"""What a method is given, and what it gives back."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from parse_engine.bench.meter import Meter
from parse_engine.call import Call, prepare
from parse_engine.config import Mode
from parse_engine.engine import Engine
from parse_engine.errors import InvalidRequestError, UnsupportedModelError
from parse_engine.options import CallOptions
from parse_engine.types import Event, FinishReason, Message, TextDelta
from parse_engine.writing import Writer


@dataclass
class Job:
    """One question for one method; made when the clock starts.

    Parameters
    ----------
    engine : Engine
        The two models, and the settings of PARSE.
    messages : sequence of dict
        The conversation to answer.
    limit : int
        Most tokens of the answer.
    level : float, optional
        What stands behind the @ of a method: a threshold or a score.
    acceptance : dict
        Options of a call that say what drafts are accepted by, where the method was given some.
    meter : Meter
        Counts the target's passes while the method runs.
    """

    engine: Engine
    messages: Sequence[Message]
    limit: int
    level: float | None
    acceptance: CallOptions
    meter: Meter
    first_s: float | None = None
    _start: float = field(default_factory=time.perf_counter)

    def listen(self, event: Event | None) -> None:
        """Note when the first text of the answer is out."""
        if isinstance(event, TextDelta):
            self.first_text()

    def first_text(self) -> None:
        """Note that text is written which is sure to stay."""
        if self.first_s is None:
            self.first_s = time.perf_counter() - self._start

    @property
    def options(self) -> CallOptions:
        """How every method writes: greedily, so that methods and not luck are compared."""
        return {"max_new_tokens": self.limit, "temperature": 0.0}

    def call(self, mode: Mode = "parse") -> Call:
        """Check and render the question for methods that are made of the engine's stages."""
        options: CallOptions = {**self.options, "mode": mode}
        if mode == "parse":
            options |= self.acceptance
        return prepare(
            self.messages, options, self.engine.config, self.engine.target, self.engine.draft
        )

    def writer(self, call: Call) -> Writer:
        """Return what collects the answer, in the target's tokens."""
        return Writer(self.engine.target, call.prompt.text, (), "regenerated", self.listen)


@dataclass(frozen=True)
class Answer:
    """What a method wrote.

    Parameters
    ----------
    text : str
        The answer, without reasoning.
    tokens : int
        Its length in the target's tokens, reasoning included, end-of-turn token left out.
    finish_reason : {"stop", "length"}
        Whether it ended by itself or at the limit.
    drafted, accepted : int, optional
        Tokens that were proposed to the target, and those of them that stayed; None where nothing
        is proposed.
    details : dict
        What else there is to know of this method, ready for JSON.
    """

    text: str
    tokens: int
    finish_reason: FinishReason
    drafted: int | None = None
    accepted: int | None = None
    details: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, writer: Writer, *, ended: bool, drafted: int, accepted: int, **details: Any
    ) -> Answer:
        """Close a writer and return what it holds."""
        writer.finish()
        reason: FinishReason = "stop" if ended or writer.ended else "length"
        tokens = len(writer.token_ids)
        return cls(writer.text, tokens, reason, drafted, accepted, details)


@dataclass(frozen=True)
class Method:
    """A way to answer with two models.

    Parameters
    ----------
    answer : callable
        Takes a Job and returns the Answer.
    does : str
        One line that says how.
    level : str
        What a number behind an @ means; empty where the method takes none.
    highest : float
        The largest such number.
    exact : bool
        Whether the answer is the target's own, up to rounding.
    verdicts : bool
        Whether it can be told what verdict to accept by.
    """

    answer: Callable[[Job], Answer]
    does: str
    level: str = ""
    highest: float = 1.0
    exact: bool = False
    verdicts: bool = False


def croppable_pair(engine: Engine) -> None:
    """Refuse models whose caches cannot go back to an earlier token.

    Raises
    ------
    UnsupportedModelError, InvalidRequestError
        If one of the two models is of such a kind, or there is no draft model.
    """
    if engine.draft is None:
        raise InvalidRequestError("There is no draft model.", "Give --draft.")
    for model in (engine.target, engine.draft):
        if model.plan.path != "packed" or model.plan.rope_switch is not None:
            raise UnsupportedModelError(
                f"{model.name} keeps a state that cannot go back to an earlier token: "
                f"{model.plan.why or 'its rotary frequencies follow the length'}.",
                "Leave out the methods in which two models take turns.",
            )
