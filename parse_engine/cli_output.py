"""What the command line prints: progress on standard error, answers on standard output."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from parse_engine.types import DraftProgress, Event, Generation, Source, TextDelta, Verified
from parse_engine.view import COLOURS
from parse_engine.view_rows import Kind, visible

if TYPE_CHECKING:
    from parse_engine.describe import Description
    from parse_engine.engine import Engine
    from parse_engine.types import Message

KINDS: dict[Source, Kind] = {
    "accepted": "kept",
    "regenerated": "rewritten",
    "draft": "unverified",
}


class Terminal(Console):
    """A console that leaves a closed pipe to ``main``."""

    def on_broken_pipe(self) -> None:
        """Let the error through; rich would exit with another code."""
        raise BrokenPipeError


def progress() -> Console:
    """Return a console on standard error that is silent unless someone is watching."""
    return Console(stderr=True, quiet=not sys.stderr.isatty(), highlight=False)


def follow(
    engine: Engine,
    messages: list[Message],
    call: dict[str, Any],
    *,
    doing: str = "Answering",
    show: Callable[[TextDelta], None] | None = None,
) -> Generation:
    """Answer a conversation, with the progress on standard error until there is text to show.

    Parameters
    ----------
    engine : Engine
        Writes the answer.
    messages : list of dict
        The conversation.
    call : dict
        Options of the call.
    doing : str
        What the progress begins with.
    show : callable, optional
        Receives each piece of the answer as it becomes sure.

    Returns
    -------
    Generation
        The answer.
    """
    event: Event | None = None
    # Few frames a second: drawing them takes time from the models.
    with progress().status(doing, refresh_per_second=4) as status:
        for event in engine.stream(messages, **call):
            if isinstance(event, DraftProgress):
                status.update(f"{doing}: drafting, token {event.tokens}")
            elif isinstance(event, Verified):
                kept = f"{event.accepted_tokens} of {event.drafted_tokens} drafted tokens kept"
                status.update(f"{doing}: {kept}")
            elif isinstance(event, TextDelta) and show is not None:
                status.stop()
                show(event)
    assert isinstance(event, Generation), "the engine's last event is the answer"
    return event


def show_delta(terminal: Console, delta: TextDelta) -> None:
    """Write a piece of the answer; thinking is for the eye only, not for a file or pipe."""
    if not terminal.is_terminal:
        if not delta.reasoning:
            sys.stdout.write(delta.text)
            sys.stdout.flush()
        return
    style = "dim" if delta.reasoning else COLOURS[KINDS[delta.source]]
    terminal.out(visible(delta.text), style=style, end="")


def header(engine: Engine, messages: list[Message]) -> Table:
    """Say what is asked, of which models, with which settings."""
    from parse_engine.binding import fit_verdict  # which loads torch

    config = engine.config
    rule = fit_verdict(config, engine.same_tokenizer).acceptance
    cut = f"every {rule.cut_at} tokens" if isinstance(rule.cut_at, int) else rule.cut_at
    judged = f", judge layout {config.judge_layout}" if rule.asks_judge else ""
    names = {"user": "question", "system": "system"}
    facts = {names[message["role"]]: str(message["content"]) for message in messages}
    facts |= {
        "draft model": engine.draft.name if engine.draft else "none",
        "target model": engine.target.name,
        "settings": f"verdict {rule.kind}, threshold {rule.threshold:.3g}, cut at {cut}, "
        f"accept {rule.accept_rule}{judged}",
    }
    table = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        style = "bold" if name == "question" else ""
        table.add_row(Text(name, "dim"), Text(visible(value), style, overflow="fold"))
    table.add_row()
    return table


def description_table(found: Description) -> Table:
    """Say what a model can do as a target."""
    facts = {
        "model": f"{found.name} ({found.kind})",
        "context": f"{found.context_window} tokens",
        "path": found.path or "none: it cannot judge prefixes",
        "layouts": ", ".join(found.layouts) or "none",
        "labels": " / ".join(found.labels or ()) or "none",
        "tokens": f"{found.suffix_tokens} a prefix, {found.brief_tokens} of instructions once",
        "why": found.why or "full speed: nothing stands in the way",
    }
    table = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        style = "bold" if name == "model" else ""
        table.add_row(Text(name, "dim"), Text(visible(value), style, overflow="fold"))
    table.add_row()
    return table


def as_json(generation: Generation) -> dict[str, Any]:
    """Return what a script may want to know of an answer."""
    judged, usage = generation.verdicts, generation.usage
    return {
        "text": generation.text,
        "reasoning": generation.reasoning,
        "finish_reason": generation.finish_reason,
        "usage": {**asdict(usage), "total_tokens": usage.total_tokens},
        "stats": generation.stats.as_dict(),
        "verdicts": asdict(judged) if judged else None,
    }


def print_json(value: dict[str, Any]) -> None:
    """Print one object in one line, in ASCII, which every encoding can carry."""
    print(json.dumps(value))
