"""Callbacks: what PARSE did in all calls of an app, and the verdicts as they come."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import Any

from langchain_core.callbacks import (
    AsyncCallbackManagerForLLMRun,
    BaseCallbackHandler,
    CallbackManagerForLLMRun,
)
from langchain_core.callbacks.manager import (
    adispatch_custom_event,
    ahandle_event,
    dispatch_custom_event,
    handle_event,
)
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.runnables.config import ensure_config, get_callback_manager_for_config
from langchain_core.tracers.context import register_configure_hook

from parse_engine import Verified
from parse_integrations.langchain.messages import PROVIDER

VERDICTS_EVENT = "parse_verdicts"


@dataclass
class ParseTotals:
    """The figures of some calls, added up.

    Parameters
    ----------
    calls : int
        Answered calls; those answered from a cache are not counted.
    drafted_tokens, accepted_tokens, regenerated_tokens : int
        Tokens that the draft model wrote, that stayed, and that the target wrote.
    accepted_whole : int
        Calls whose draft stayed to its end.
    fallbacks : int
        Calls that could not use speculation although it was asked for.
    draft_s, verify_s, regenerate_s : float
        Seconds in each stage.
    """

    calls: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    regenerated_tokens: int = 0
    accepted_whole: int = 0
    fallbacks: int = 0
    draft_s: float = 0.0
    verify_s: float = 0.0
    regenerate_s: float = 0.0

    @property
    def accepted_fraction(self) -> float:
        """Accepted over drafted tokens; 0.0 without a draft."""
        return self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else 0.0

    @property
    def saved_s(self) -> float | None:
        """Seconds saved: what the target would have needed for the accepted tokens, less drafting
        and verification. Negative where PARSE cost more. The target's seconds per token are those
        of its own writing in these calls; None where it wrote nothing.
        """  # noqa: D205 - it is one thought
        if not self.regenerated_tokens:
            return None
        per_token = self.regenerate_s / self.regenerated_tokens
        return self.accepted_tokens * per_token - self.draft_s - self.verify_s

    def add(self, stats: Mapping[str, Any]) -> None:
        """Count one call by its ``parse_*`` statistics."""
        self.calls += 1
        drafted, accepted = stats["parse_drafted_tokens"], stats["parse_accepted_tokens"]
        self.accepted_whole += 0 < drafted == accepted
        self.fallbacks += stats["parse_fallback"] is not None
        for name in ("drafted_tokens", "accepted_tokens", "regenerated_tokens"):
            setattr(self, name, getattr(self, name) + stats[f"parse_{name}"])
        for name in ("draft_s", "verify_s", "regenerate_s"):
            setattr(self, name, getattr(self, name) + stats[f"parse_{name}"])


class ParseStatsCallbackHandler(BaseCallbackHandler):
    """Adds up what PARSE did in the calls that it listens to; prints as a small table.

    One handler may listen to many models, threads and tasks.

    Parameters
    ----------
    around : ParseStatsCallbackHandler, optional
        Another one that counts the same calls too.

    Attributes
    ----------
    total : ParseTotals
        All calls.
    by_model : dict of str to ParseTotals
        The same by target.
    """

    def __init__(self, *, around: ParseStatsCallbackHandler | None = None) -> None:
        super().__init__()
        self._around = around
        self._lock = threading.Lock()
        self._counted: set[Any] = set()  # a chain may bring a handler along that is asked anyway
        self.total = ParseTotals()
        self.by_model: dict[str, ParseTotals] = {}

    def on_llm_end(self, response: LLMResult, *, run_id: Any = None, **kwargs: Any) -> None:
        """Count a call that has come to its end, however it was made."""
        if self._around is not None:
            self._around.on_llm_end(response, run_id=run_id, **kwargs)
        message = _answer(response)
        if message is None:
            return
        stats = message.response_metadata
        usage: dict[str, Any] = {**(message.usage_metadata or {})}
        cached = usage.get("total_cost") == 0
        if cached or "parse_drafted_tokens" not in stats:
            return
        with self._lock:
            if run_id in self._counted:
                return
            if run_id is not None:
                self._counted.add(run_id)
            of_model = self.by_model.setdefault(str(stats.get("model_name")), ParseTotals())
            for totals in (self.total, of_model):
                totals.add(stats)

    def __str__(self) -> str:
        with self._lock:
            rows = [*self.by_model.items(), ("total", self.total)]
            return _table(rows if len(rows) > 2 else rows[:1])

    __repr__ = __str__


def _answer(response: LLMResult) -> AIMessage | None:
    generations = response.generations
    first = generations[0][0] if generations and generations[0] else None
    message = first.message if isinstance(first, ChatGeneration) else None
    return message if isinstance(message, AIMessage) else None


def _table(rows: list[tuple[str, ParseTotals]]) -> str:
    columns = [
        ("", [name for name, _ in rows]),
        *(
            (field.name.replace("_", " "), [_cell(getattr(t, field.name)) for _, t in rows])
            for field in fields(ParseTotals)
        ),
        ("accepted fraction", [f"{t.accepted_fraction:.0%}" for _, t in rows]),
        ("saved s", [_cell(t.saved_s) for _, t in rows]),
    ]
    lines = []
    width = max(len(title) for title, _ in columns)
    widths = [max(len(cells[n]) for _, cells in columns) for n in range(len(rows))]
    for title, cells in columns:
        shown = "  ".join(cell.rjust(size) for cell, size in zip(cells, widths, strict=True))
        lines.append(f"{title.ljust(width)}  {shown}".rstrip())
    return "\n".join(lines)


def _cell(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


_listening: ContextVar[ParseStatsCallbackHandler | None] = ContextVar(
    "parse_stats_callback", default=None
)
register_configure_hook(_listening, inheritable=True)


@contextmanager
def get_parse_stats_callback() -> Iterator[ParseStatsCallbackHandler]:
    """Listen to every call made inside the block, whichever chain or agent makes it.

    Blocks may be nested: the outer one counts what the inner one does.

    Yields
    ------
    ParseStatsCallbackHandler
        Filled as calls finish; stays readable after the block.
    """
    handler = ParseStatsCallbackHandler(around=_listening.get())
    token = _listening.set(handler)
    try:
        yield handler
    finally:
        _listening.reset(token)


def _data(event: Verified) -> dict[str, Any]:
    return {
        "provider": PROVIDER,
        "ends": list(event.verdicts.ends),
        "p_correct": list(event.verdicts.p_correct),
        "accepted_tokens": event.accepted_tokens,
        "drafted_tokens": event.drafted_tokens,
    }


def _inside_a_chain() -> bool:
    return get_callback_manager_for_config(ensure_config()).parent_run_id is not None


def announce(event: Any, run_manager: CallbackManagerForLLMRun | None) -> None:
    """Hand the verdicts on a draft to handlers that listen to custom events.

    LangChain gives a stream no run manager: the event is then one of the chain around the model,
    if there is one.
    """
    if not isinstance(event, Verified):
        return
    if run_manager is None:
        if _inside_a_chain():
            dispatch_custom_event(VERDICTS_EVENT, _data(event))
    else:
        # not dispatch_custom_event, which fails where there is no chain around the model
        handle_event(
            run_manager.handlers,
            "on_custom_event",
            "ignore_custom_event",
            VERDICTS_EVENT,
            _data(event),
            run_id=run_manager.run_id,
        )


async def aannounce(event: Any, run_manager: AsyncCallbackManagerForLLMRun | None) -> None:
    """Hand the verdicts on a draft to handlers that listen to custom events; see ``announce``."""
    if not isinstance(event, Verified):
        return
    if run_manager is None:
        if _inside_a_chain():
            await adispatch_custom_event(VERDICTS_EVENT, _data(event))
    else:
        await ahandle_event(
            run_manager.handlers,
            "on_custom_event",
            "ignore_custom_event",
            VERDICTS_EVENT,
            _data(event),
            run_id=run_manager.run_id,
        )
