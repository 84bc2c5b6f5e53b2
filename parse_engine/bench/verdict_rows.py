"""The target's verdicts on drafts of known correctness, kept as they come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parse_engine.bench.drafts import LabelledDraft
from parse_engine.bench.tasks import Task
from parse_engine.call import judge_draft, prepare
from parse_engine.draft import make_draft, read_back
from parse_engine.errors import ContextOverflowError
from parse_engine.verdicts import check_finite

if TYPE_CHECKING:
    from parse_engine.bench.store import Store
    from parse_engine.engine import Engine

SIGNALS = ("p_correct", "mean_logprob", "min_logprob", "max_gap", "accept_logprob")


@dataclass(frozen=True)
class Judged:
    """A draft with what the target thinks of each prefix.

    Parameters
    ----------
    draft : LabelledDraft
        The draft.
    token_ends, ends : tuple of int
        Where the prefixes end, in tokens and in characters; the whole draft is the last.
    signals : mapping of str to tuple of float
        For each prefix p_correct, where it was asked for, the target's log-probabilities, and what
        the comparison with the draft model's comes to, where their tokenizers are the same.
    """

    draft: LabelledDraft
    token_ends: tuple[int, ...]
    ends: tuple[int, ...]
    signals: Mapping[str, tuple[float, ...]]

    def at(self, prefix: int) -> dict[str, float]:
        """Return the signals of one prefix and its length; -1 is the whole draft."""
        found = {name: values[prefix] for name, values in self.signals.items()}
        return {**found, "tokens": float(self.token_ends[prefix])}


def known_in(judged: Sequence[Judged], names: Iterable[str]) -> bool:
    """Whether all of these drafts have all of these signals."""
    made = {"sum_logprob": "mean_logprob"}
    wanted = {made.get(name, name) for name in names}
    return all(wanted <= one.signals.keys() for one in judged)


def judge_drafts(
    engine: Engine, tasks: Sequence[Task], drafts: Iterable[LabelledDraft], way: str, store: Store
) -> Iterator[None]:
    """Judge the drafts that a store has no verdicts on yet, and yield after each.

    Parameters
    ----------
    engine : Engine
        Its config says how: layout, wording, cuts, and whether the judge is asked.
    tasks : sequence of Task
        Where the drafts come from.
    drafts : iterable of LabelledDraft
        What is judged; drafts that were cut off are not.
    way : str
        Names the way to judge in the rows.
    store : Store
        Keeps the rows. What does not fit into the target's context gets one with the error.

    Raises
    ------
    VerificationError
        If a verdict is not a number.
    """
    items = {(task.name, item.id): item for task in tasks for item in task.items}
    done = store.rows()
    for draft in drafts:
        row = {"task": draft.task, "item": draft.item, "method": f"{way} {draft.sample}"}
        if tuple(row.values()) in done or not draft.complete or not draft.ids:
            continue
        messages = items[draft.task, draft.item].messages
        call = prepare(
            messages,
            {"mode": "target", "verify_order": "all"},
            *(engine.config, engine.target, engine.draft),
        )
        given = make_draft(engine.target, draft.ids, len(draft.ids), complete=True)
        if engine.same_tokenizer and engine.draft is not None:
            given = read_back(given, engine.draft, call.request)
        try:
            checked = judge_draft(engine.target, engine.ability, call, given)
        except ContextOverflowError as error:  # as in a call, where it is a fallback
            store.add({**row, "error": str(error)})
            yield
            continue
        verdicts = checked.verdicts
        check_finite(engine.target, verdicts)
        signals = {name: getattr(verdicts, name) for name in SIGNALS}
        found = {name: values for name, values in signals.items() if values is not None}
        places = {"token_ends": verdicts.token_ends, "ends": verdicts.ends}
        store.add({**row, "layout": checked.layout, **places, "signals": found})
        yield


def read_judged(
    rows: Mapping[Any, Mapping[str, Any]], way: str, layout: str | None = None
) -> list[Judged]:
    """Return the drafts of a store that were judged in a way, and, if named, really in a layout."""
    drafts = [LabelledDraft.from_row(row) for row in rows.values() if "text" in row]
    judged = []
    for draft in drafts:
        row = rows.get((draft.task, draft.item, f"{way} {draft.sample}"))
        if row is not None and "error" not in row and layout in (None, row["layout"]):
            signals = {name: tuple(values) for name, values in row["signals"].items()}
            judged.append(Judged(draft, tuple(row["token_ends"]), tuple(row["ends"]), signals))
    return judged
