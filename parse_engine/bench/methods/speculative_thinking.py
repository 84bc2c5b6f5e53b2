"""Speculative Thinking (arXiv 2504.12329): the draft writes, the target takes over where it doubts.

After each blank line the next tokens of the draft are looked at. If they affirm or reflect ("wait",
"alternatively", "yes"), the target writes the next 20 tokens in their place; if what it writes is
about verifying, it writes up to 125 more. Then the draft model goes on. Nothing is judged.

The numbers and most of the words are those of the authors' configuration. Simplified: the third
takeover, which puts a sentence of its own into the answer after 15 reflections, is left out; cue
words are whole words; the tokens that are looked at end with their paragraph, and stay where there
is no cue (the authors write them a second time).
"""

from __future__ import annotations

import re

from parse_engine.bench.methods.duet import Duet
from parse_engine.bench.methods.job import Answer, Job
from parse_engine.bench.methods.spec_reason import ends_step

LOOK_AHEAD, TAKEOVER, VERIFICATION = 20, 20, 125
VERIFY = re.compile(r"\b(verify|think again|recap|check)\b", re.IGNORECASE)
CUE = re.compile(
    r"\b(wait|hmm|alternatively|hold on|another|yeah|yes|final answer|confident)\b"
    rf"|{VERIFY.pattern}",
    re.IGNORECASE,
)


def answer(job: Job) -> Answer:
    """Let the draft write, and the target where the draft comes to a turning point."""
    duet = Duet(job)
    after_break, takeovers = False, 0
    while duet.room > 0:
        limit = LOOK_AHEAD if after_break else duet.room
        turn = duet.write(duet.draft, limit, ends_step, stays=not after_break)
        if after_break and CUE.search(turn.text):
            take_over(duet)
            takeovers += 1
            after_break = False
        else:
            duet.keep(duet.draft, turn)
            after_break = ends_step(turn.text)
    return Answer.of(
        duet.writer,
        ended=duet.ended,
        drafted=duet.drafted,
        accepted=duet.accepted,
        takeovers=takeovers,
    )


def take_over(duet: Duet) -> None:
    """Let the target write on for a bounded number of tokens."""
    turn = duet.write(duet.target, TAKEOVER, lambda _: False, stays=True)
    duet.keep(duet.target, turn)
    if VERIFY.search(turn.text) and duet.room > 0:
        more = duet.write(duet.target, VERIFICATION, lambda _: False, stays=True)
        duet.keep(duet.target, more)
