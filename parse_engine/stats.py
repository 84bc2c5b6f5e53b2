"""What one call cost and saved, and how to add it up over many calls."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from typing import Any

from parse_engine.config import Mode, VerdictKind

logger = logging.getLogger("parse_engine")


@dataclass(frozen=True, kw_only=True)
class CallStats:
    """Statistics of one call, flat and plain.

    Parameters
    ----------
    mode : {"parse", "target", "draft"}
        The mode that was asked for.
    drafted_tokens : int
        T, the length of the draft in the target's tokens.
    accepted_tokens : int
        t*, the number of drafted tokens that stayed.
    regenerated_tokens : int
        R, the tokens that the target wrote, end-of-turn token and trimmed stop tokens included.
    accepted_fraction : float
        accepted_tokens / drafted_tokens; 0.0 without a draft.
    prefixes : int
        N, the number of prefixes that got a verdict.
    full_verdict : float or None
        The verdict of the whole draft; None where nothing was judged.
    accepted_verdict : float or None
        The verdict of the accepted prefix; None where nothing was accepted.
    threshold : float
        The verdict that was asked for.
    verdict_kind : str
        Which number these three are: see ``verdict`` in ParseConfig; with a calibration
        ``calibrated``.
    draft_s, verify_s, regenerate_s : float
        Seconds in each stage.
    target_tokens_processed : int
        Token positions that went through the target's layers.
    fallback : str or None
        Why speculation was not used although it was asked for.
    path : {"packed", "fan_out"} or None
        How the prefixes were judged: in one masked pass, or each on a copy of the cache.
    judge_layout : {"brief", "quote"} or None
        The layout that was really used; None, as ``path``, where the judge was not asked.
    outside_bound : str or None
        Why a draft that was accepted whole by a calibrated verdict is none of those that the
        calibration promises something about.
    """

    mode: Mode
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    regenerated_tokens: int = 0
    accepted_fraction: float = 0.0
    prefixes: int = 0
    full_verdict: float | None = None
    accepted_verdict: float | None = None
    threshold: float = 0.0
    verdict_kind: VerdictKind = "p_correct"
    draft_s: float = 0.0
    verify_s: float = 0.0
    regenerate_s: float = 0.0
    target_tokens_processed: int = 0
    fallback: str | None = None
    path: str | None = None
    judge_layout: str | None = None
    outside_bound: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a plain dict, ready for JSON."""
        return asdict(self)


@dataclass
class StatsCollector:
    """The statistics of all finished calls made inside ``with parse_stats() as s:``.

    Calls made in other threads and tasks count too, where they run in a copy of the context, as
    ``asyncio`` tasks, ``asyncio.to_thread`` and the engine's own workers do.
    """

    calls: list[CallStats] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, stats: CallStats) -> None:
        """Count one finished call."""
        with self._lock:
            self.calls.append(stats)

    @property
    def drafted_tokens(self) -> int:
        """Drafted tokens of all calls."""
        return sum(call.drafted_tokens for call in self.calls)

    @property
    def accepted_tokens(self) -> int:
        """Accepted tokens of all calls."""
        return sum(call.accepted_tokens for call in self.calls)

    @property
    def regenerated_tokens(self) -> int:
        """Tokens written by the target in all calls."""
        return sum(call.regenerated_tokens for call in self.calls)

    @property
    def target_tokens_processed(self) -> int:
        """Token positions processed by the target in all calls."""
        return sum(call.target_tokens_processed for call in self.calls)

    @property
    def accepted_fraction(self) -> float:
        """Accepted over drafted tokens; 0.0 without a draft."""
        return self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else 0.0

    @property
    def accepted_whole(self) -> int:
        """Calls whose draft was accepted to its end."""
        return sum(0 < call.drafted_tokens == call.accepted_tokens for call in self.calls)

    @property
    def fallbacks(self) -> int:
        """Calls that could not use speculation."""
        return sum(call.fallback is not None for call in self.calls)

    @property
    def seconds(self) -> float:
        """Seconds in all stages of all calls."""
        return sum(call.draft_s + call.verify_s + call.regenerate_s for call in self.calls)


_collectors: ContextVar[tuple[StatsCollector, ...]] = ContextVar("parse_stats", default=())


@contextmanager
def parse_stats() -> Iterator[StatsCollector]:
    """Collect the statistics of the calls made inside the block; blocks may be nested.

    A call is counted when it comes to its end: not if it fails, runs out of time or is closed.

    Yields
    ------
    StatsCollector
        Filled as calls finish; stays readable after the block.
    """
    collector = StatsCollector()
    token = _collectors.set((*_collectors.get(), collector))
    try:
        yield collector
    finally:
        _collectors.reset(token)


def record(stats: CallStats) -> None:
    """Count a finished call in every open ``parse_stats()`` block and log it in one line."""
    for collector in _collectors.get():
        collector.add(stats)
    if logger.isEnabledFor(logging.INFO):
        logger.info("parse_call %s", json.dumps(stats.as_dict()), extra={"parse": stats})
