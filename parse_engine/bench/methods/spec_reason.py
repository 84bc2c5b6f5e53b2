"""SpecReason (arXiv 2504.07891): the draft writes a step, the target scores it, and so on.

A step ends at a blank line. The target gives each step of the draft a score of 0 to 9 in one token;
from 7 on it stays, otherwise the target writes this step itself. Both models keep their caches; the
question about the score is read after the step and forgotten again.

Simplified: the paper scores the steps of a thinking phase, and these are the steps of the answer,
which is one step where it has no blank line. The score is the likeliest of the ten digits (the
authors' greedy scoring). The wording is our own.
"""

from __future__ import annotations

from parse_engine.backends.model import Model
from parse_engine.bench.methods.duet import Duet
from parse_engine.bench.methods.job import Answer, Job
from parse_engine.errors import UnsupportedModelError
from parse_engine.labels import render_suffix
from parse_engine.render import encode_inside

THRESHOLD = 7
QUESTION = (
    "Look at the last step only. Are its facts right, and does it follow from what was said before "
    "it? Style does not matter. Give it a score from 0 (wrong) to 9 (right)."
)
OPENING = "Score: "  # the target's answer is begun for it, so that the next token is the digit


def answer(job: Job) -> Answer:
    """Write an answer step by step."""
    duet = Duet(job)
    threshold = THRESHOLD if job.level is None else job.level
    question, digits = scoring(duet.target.model)
    scores: list[int] = []
    while duet.room > 0:
        step = duet.write(duet.draft, duet.room, ends_step, stays=False)
        logits = duet.judge(step, question)
        scores.append(int(logits[list(digits)].argmax()))
        if scores[-1] >= threshold:
            duet.keep(duet.draft, step)
        else:
            duet.keep(duet.target, duet.write(duet.target, duet.room, ends_step, stays=True))
    return Answer.of(
        duet.writer,
        ended=duet.ended,
        drafted=duet.drafted,
        accepted=duet.accepted,
        scores=scores,
    )


def ends_step(text: str) -> bool:
    """Whether a text has come to a blank line."""
    return "\n\n" in text.lstrip()


def scoring(target: Model) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids of the question about a step, and of the digits that may follow it.

    Raises
    ------
    UnsupportedModelError
        If the target's digits are not one token each.
    """
    suffix = render_suffix(target.tokenizer, QUESTION, target.template_kwargs)
    asked = [
        encode_inside(target.tokenizer, f"{suffix.text}{suffix.lead}{OPENING}{digit}")
        for digit in range(10)
    ]
    question, digits = asked[0][:-1], tuple(ids[-1] for ids in asked)
    if len(set(digits)) < 10 or any(ids[:-1] != question for ids in asked):
        raise UnsupportedModelError(
            f"{target.name} does not write each digit as one token.",
            "Leave out the method spec_reason.",
        )
    return question, digits
