"""One method answers one item, timed."""

from __future__ import annotations

import time
from collections.abc import Sequence

from parse_engine.bench.forms import Item
from parse_engine.bench.meter import Meter, measuring
from parse_engine.bench.methods import Entry
from parse_engine.bench.methods.job import Answer, Job
from parse_engine.bench.store import Row
from parse_engine.bench.tasks import Task
from parse_engine.engine import Engine
from parse_engine.errors import InvalidRequestError, ParseError, UnsupportedModelError
from parse_engine.prefill import empty_cache, prefill
from parse_engine.render import encode_plain

WARM_UP_TOKENS = 8
WARM_UP = Item("warm-up", ({"role": "user", "content": "Name a few colors."},))


def warm_up(engine: Engine, entries: Sequence[Entry]) -> None:
    """Let every method write a few tokens; what a method cannot do with these models it says now.

    Raises
    ------
    ParseError
        If a method does not work with these models, or they are one and the same.
    """
    if engine.draft is None or engine.draft.network is engine.target.network:
        raise InvalidRequestError(
            f"The target is {engine.target.name}, and no other model drafts.",
            "Give two models: --target and --draft.",
        )
    for entry in entries:
        try:
            answer_with(engine, WARM_UP, entry, WARM_UP_TOKENS)
        except ParseError:
            raise
        except Exception as error:
            raise UnsupportedModelError(
                f"{entry.label} does not work with these models: {type(error).__name__}: {error}.",
                f"Leave out the method {entry.name}.",
            ) from error


def measure(engine: Engine, task: Task, item: Item, entry: Entry, limit: int) -> Row:
    """Return what a method wrote and what it took, ready for JSON.

    An error is a row too, with its text: the other methods go on. So does the measurement where
    only the check or a figure fails.
    """
    about = {"task": task.name, "item": item.id, "category": item.category, "method": entry.label}
    try:
        answer, seconds, job, target, draft = answer_with(engine, item, entry, limit)
    except Exception as error:  # noqa: BLE001 - kept in the row, counted in the report
        return {**about, "error": f"{type(error).__name__}: {error}"}
    read, write = (target.seconds_of(several=several) for several in (True, False))
    helped = sum(draft.seconds)
    several = sum(count > 1 for count in target.positions)
    beside: dict[str, str] = {}
    correct = fault = prefill_s = None
    # beside the clock: what fails here costs a figure, never the answer
    try:
        if item.check:
            fault = item.check(answer.text)
            correct = fault is None
    except Exception as error:  # noqa: BLE001 - kept in the row, counted in the report
        beside["check_error"] = f"{type(error).__name__}: {error}"
    try:
        prefill_s = prefill_seconds(engine, item, answer) if entry.name == "parse" else None
    except Exception as error:  # noqa: BLE001
        beside["prefill_error"] = f"{type(error).__name__}: {error}"
    return {
        **about,
        "seconds": seconds,
        "first_s": job.first_s,
        "tokens": answer.tokens,
        "finish_reason": answer.finish_reason,
        "correct": correct,
        "fault": fault,
        "drafted": answer.drafted,
        "accepted": answer.accepted,
        "target_tokens": sum(target.positions),
        "target_passes": {"several": several, "one": len(target.positions) - several},
        "stages": {
            "draft": helped,
            "read": read,
            "write": write,
            "other": seconds - helped - read - write,
        },
        "prefill_s": prefill_s,
        "text": answer.text,
        "details": answer.details,
        **beside,
    }


def answer_with(
    engine: Engine, item: Item, entry: Entry, limit: int
) -> tuple[Answer, float, Job, Meter, Meter]:
    """Let a method answer; return the answer, the seconds, and what was counted meanwhile."""
    assert engine.draft is not None
    with (
        measuring(engine.target.network) as target,
        measuring(engine.draft.network) as draft,
    ):
        start = time.perf_counter()
        job = Job(engine, item.messages, limit, entry.level, entry.acceptance, target)
        answer = entry.method.answer(job)
        seconds = time.perf_counter() - start
    return answer, seconds, job, target, draft


def prefill_seconds(engine: Engine, item: Item, answer: Answer) -> float | None:
    """Time one prefill of prompt and draft by the target: the least that judging can cost."""
    target = engine.target
    draft_ids = encode_plain(target.tokenizer, answer.details["draft_text"])
    if not draft_ids:
        return None
    prompt = target.render(item.messages)
    cache = empty_cache(target, engine.ability.plan)
    start = time.perf_counter()
    prefill(target, cache, prompt.ids, draft_ids, signals=False)
    if target.network.device.type == "cuda":
        import torch

        torch.cuda.synchronize()
    return time.perf_counter() - start
