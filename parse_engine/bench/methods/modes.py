"""The engine itself: PARSE, each model alone, and PARSE without prefixes."""

from __future__ import annotations

from typing import Any

from parse_engine.bench.methods.job import Answer, Job
from parse_engine.options import CallOptions
from parse_engine.render import encode_plain
from parse_engine.types import Generation, Verdicts

# What is kept of the statistics of an answer.
SHOWN = (
    *("verdict_kind", "threshold", "regenerated_tokens", "prefixes", "full_verdict", "fallback"),
    *("path", "judge_layout"),
)


def parse(job: Job) -> Answer:
    """Draft, judge all prefixes in one pass, keep the longest valid one, write the rest."""
    return _answer(job, job.acceptance)


def cascade(job: Job) -> Answer:
    """Judge the whole draft only; where it fails, the target writes the answer from its start.

    What model cascades do, in PARSE's terms: there is one prefix, the whole. The target keeps its
    cache of the prompt.
    """
    return _answer(job, {**job.acceptance, "max_prefixes": 1})


def target(job: Job) -> Answer:
    """Let the target answer alone: what all others are compared with."""
    return _answer(job, {"mode": "target"})


def draft(job: Job) -> Answer:
    """Let the draft model answer alone: the most that can be gained, at its accuracy."""
    return _answer(job, {"mode": "draft"})


def _answer(job: Job, options: CallOptions) -> Answer:
    # not as a stream, whose thread makes OpenMP's waits longer: every method runs on this one
    call = job.engine.prepare(job.messages, job.options | options)
    last = job.engine.answer(call, job.listen)
    stats = last.stats
    alone = stats.mode != "parse"
    tokens = len(last.token_ids)
    if stats.mode == "draft" and not job.engine.same_tokenizer:
        tokens = len(encode_plain(job.engine.target.tokenizer, last.text))
    return Answer(
        text=last.text,
        tokens=tokens,
        finish_reason=last.finish_reason,
        drafted=None if alone else stats.drafted_tokens,
        accepted=None if alone else stats.accepted_tokens,
        details={} if alone else _details(last),
    )


def _details(answer: Generation) -> dict[str, Any]:
    stats = answer.stats.as_dict()
    return {
        **{name: stats[name] for name in SHOWN},
        "stage_s": {name: stats[f"{name}_s"] for name in ("draft", "verify", "regenerate")},
        "draft_text": answer.draft_text,
        "verdicts": _verdicts(answer.verdicts),
    }


def _verdicts(verdicts: Verdicts | None) -> dict[str, Any] | None:
    if verdicts is None:
        return None
    return {"token_ends": verdicts.token_ends, "verdict": verdicts.verdict}
