"""Prefix verification without the packed pass: one prefix after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from parse_engine.bench.methods.job import Answer, Job
from parse_engine.call import draft_answer, draft_cuts
from parse_engine.config import AcceptRule
from parse_engine.errors import InvalidRequestError
from parse_engine.judge import make_quote
from parse_engine.reading import read_draft
from parse_engine.regenerate import regenerate
from parse_engine.types import Cut
from parse_engine.verdicts import label_shares


def answer(job: Job) -> Answer:
    """Ask about one prefix at a time, and stop asking once the answer is known.

    The draft, the cuts, the questions and the cache are PARSE's, and so are the verdicts up to
    rounding: only the passes differ. Prompt and draft are read once. The whole draft is asked about
    first, for that may settle it; then, under the rule ``unbroken``, prefixes from the shortest on
    up to the first that fails; under ``longest`` from the longest down to the first that passes.
    """
    engine, call = job.engine, job.call()
    call = replace(call, config=call.config.by_asking())
    target, config, able = engine.target, call.config, engine.ability
    if config.acceptance.kind != "p_correct":
        raise InvalidRequestError(
            f"The verdict is {config.acceptance.kind}, and sequential verification asks the judge.",
            'Leave the method out, or compare with verdict="p_correct".',
        )
    draft = draft_answer(call, engine.draft, target, job.listen, job.engine.same_tokenizer)
    writer = job.writer(call)
    accepted, asked, cache = 0, 0, None
    if draft.ids:
        cuts = draft_cuts(able, call, draft)
        head, suffix = call.prompt.ids, able.judge.suffix_ids
        shown = able.brief_for(len(head) + len(draft.ids))
        if config.judge_layout == "quote" or shown is None:
            quote = make_quote(
                *(target.tokenizer, able.judge.labels, config, job.messages),
                target.template_kwargs,
            )
            shown, head, suffix = None, quote.head_ids, quote.suffix_ids
        ends = [len(head) + cut.tokens for cut in cuts]
        reading = read_draft(
            *(target, able.plan, shown, head, draft.ids, suffix, ends), signals=config.signals
        )

        def passes(cut: Cut) -> bool:
            nonlocal asked
            asked += 1
            logits = reading.logits([len(head) + cut.tokens])
            return label_shares(logits, able.judge.labels)[0] >= config.acceptance.threshold

        accepted = longest_by_asking(cuts, passes, config.acceptance.accept_rule)
        cache = reading.cache if shown is not None else None
    writer.accept(draft.ids[:accepted])
    whole = draft.complete and 0 < accepted == len(draft.ids)
    if not whole and accepted < call.limit:
        regenerate(
            target,
            (*call.prompt.ids, *draft.ids[:accepted]),
            cache,
            call.limit - accepted,
            call.request.sampling,
            writer.add,
        )
    about = {"verdict_kind": "p_correct", "threshold": config.acceptance.threshold, "asked": asked}
    return Answer.of(writer, ended=whole, drafted=len(draft.ids), accepted=accepted, **about)


def longest_by_asking(cuts: Sequence[Cut], passes: Callable[[Cut], bool], rule: AcceptRule) -> int:
    """Return the number of tokens that stay, with as few questions as the rule allows."""
    if passes(cuts[-1]):
        return cuts[-1].tokens
    if rule == "longest":
        return next((cut.tokens for cut in reversed(cuts[:-1]) if passes(cut)), 0)
    kept = 0
    for cut in cuts[:-1]:
        if not passes(cut):
            break
        kept = cut.tokens
    return kept
