"""The event that tells handlers of LlamaIndex what was drafted, judged and accepted."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from llama_index_instrumentation import get_dispatcher
from llama_index_instrumentation.base import BaseEvent
from llama_index_instrumentation.span import active_span_id

from parse_engine import Event, Generation, Verified
from parse_integrations.calls import Asked

dispatcher = get_dispatcher(__name__)


class ParseVerificationEvent(BaseEvent):
    """What PARSE did in one call; sent before LlamaIndex's own event that the call has ended.

    Parameters
    ----------
    model_name : str
        The target.
    draft_model_name : str, optional
        The draft model.
    ends : list of int
        Character offset into the draft at which each judged prefix ends; empty where none was.
    verdict : list of float
        The verdict on each: the number that was compared with the threshold.
    verdict_kind : str, optional
        Which number that is; None where none was.
    drafted_tokens, accepted_tokens : int
        Length of the draft, and how much of it stayed.
    stats : dict, optional
        All statistics of the call; None where the caller went away, or the call failed.
    """

    model_name: str
    draft_model_name: str | None = None
    ends: list[int] = []  # noqa: RUF012 - pydantic copies it
    verdict: list[float] = []  # noqa: RUF012
    verdict_kind: str | None = None
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    stats: dict[str, Any] | None = None

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which handlers and traces know the event."""
        return "ParseVerificationEvent"


class Report:
    """Sends one event for a call: with its statistics, or when it ends without any.

    Made where the call is, for streams are read in other places, under other spans.

    Parameters
    ----------
    asked : Asked
        The call.
    wanted : bool
        Whether the event is sent at all.
    """

    def __init__(self, asked: Asked, *, wanted: bool) -> None:
        draft = asked.engine.draft
        self._wanted = wanted
        self._event = ParseVerificationEvent(
            model_name=asked.engine.target.name,
            draft_model_name=draft.name if draft else None,
            span_id=active_span_id.get(),
        )

    def see(self, event: Event) -> None:
        """Take an event of the engine."""
        if isinstance(event, Verified):
            self._event.ends = list(event.verdicts.ends)
            self._event.verdict = list(event.verdicts.verdict)
            self._event.verdict_kind = event.verdicts.kind
            self._event.drafted_tokens = event.drafted_tokens
            self._event.accepted_tokens = event.accepted_tokens
        elif isinstance(event, Generation):
            self._event.drafted_tokens = event.stats.drafted_tokens
            self._event.accepted_tokens = event.stats.accepted_tokens
            self._event.stats = event.stats.as_dict()
            self._send()

    def _send(self) -> None:
        if self._wanted:
            self._wanted = False
            dispatcher.event(self._event)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._send()
