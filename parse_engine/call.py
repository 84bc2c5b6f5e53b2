"""One call: what is asked, what speculation came to, and its figures."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from parse_engine.backends.model import Model, Prompt
from parse_engine.binding import check_acceptance, outside_bound
from parse_engine.clock import Clock
from parse_engine.config import ParseConfig
from parse_engine.cuts import cut_points
from parse_engine.draft import make_draft, read_back, write_draft
from parse_engine.errors import (
    BoundWarning,
    ContextOverflowError,
    FallbackWarning,
    InvalidRequestError,
)
from parse_engine.options import CallOptions, split_options
from parse_engine.render import encode_plain
from parse_engine.request import Request, check_request
from parse_engine.stats import CallStats
from parse_engine.types import Cut, Draft, DraftProgress, Event, Message, Verdicts
from parse_engine.verdicts import check_finite
from parse_engine.verify import Ability, Checked, verify


@dataclass(frozen=True)
class Call:
    """A checked call: what is asked, under which settings, rendered for the model that writes."""

    request: Request
    config: ParseConfig
    writer: Model
    prompt: Prompt
    limit: int  # tokens that the answer may have


@dataclass(frozen=True)
class Speculation:
    """What drafting and verification came to."""

    draft: Draft | None = None
    checked: Checked | None = None
    accepted: int | None = None  # index of the accepted prefix
    fallback: str | None = None

    @property
    def accepted_ids(self) -> tuple[int, ...]:
        """The tokens that stay."""
        if self.draft is None or self.checked is None or self.accepted is None:
            return ()
        return self.draft.ids[: self.checked.verdicts.token_ends[self.accepted]]

    @property
    def verdicts(self) -> Verdicts | None:
        """What acceptance was decided by; None where it was not."""
        return self.checked.verdicts if self.checked and self.fallback is None else None

    @property
    def whole(self) -> Draft | None:
        """The draft, if all of it stays."""
        stays = self.draft is not None and len(self.accepted_ids) == len(self.draft.ids)
        return self.draft if stays else None

    @property
    def is_answer(self) -> bool:
        """Whether the draft stays whole, and had come to its end."""
        return self.whole is not None and self.whole.complete


def check_types(target: object, draft: object, config: object) -> None:
    """Refuse what no engine can be made of."""
    if not isinstance(target, Model) or not isinstance(draft, Model | None):
        wrong = draft if isinstance(target, Model) else target
        raise InvalidRequestError(
            f"A model is {type(wrong).__name__}.",
            "Use Engine.from_pretrained, or wrap network and tokenizer: Model(name, network, "
            "tokenizer) of parse_engine.backends.model.",
        )
    if not isinstance(config, ParseConfig | None):
        raise InvalidRequestError(f"config is {config!r}.", "Give a ParseConfig, or None.")


def prepare(
    messages: Sequence[Message],
    options: CallOptions,
    config: ParseConfig,
    target: Model,
    draft: Model | None,
) -> Call:
    """Check a call and render its prompt; no model runs before this is through.

    Raises
    ------
    InvalidRequestError
        If the messages or an option are wrong, or a draft model is needed and missing.
    ContextOverflowError
        If the prompt leaves no room for an answer.
    """
    writing, config = split_options(config, options)
    request = check_request(messages, target.network.generation_config, **writing)
    if config.mode != "target" and draft is None:
        raise InvalidRequestError(
            f"mode is {config.mode!r}, but the engine has no draft model.",
            'Give draft=... when you load the engine, or mode="target".',
        )
    writer = draft if config.mode == "draft" and draft is not None else target
    prompt = request.render(writer, drafts=writer is not target)
    room = writer.context_window - len(prompt.ids)
    if room < 1:
        raise ContextOverflowError(
            f"The prompt has {len(prompt.ids)} tokens; the context of {writer.name} "
            f"holds {writer.context_window}.",
            "Shorten the conversation, or use a model with a longer context.",
        )
    return Call(request, config, writer, prompt, min(request.max_new_tokens, room))


def draft_answer(
    call: Call,
    draft: Model | None,
    target: Model,
    emit: Callable[[Event], None],
    same_tokenizer: bool,
) -> Draft:
    """Let the draft model answer a call, within its limits."""
    assert draft is not None
    limit = min(call.limit, call.config.max_draft_tokens or call.limit)
    written = write_draft(
        draft,
        target,
        call.prompt,
        call.request,
        limit,
        lambda tokens: emit(DraftProgress(tokens)),
        same_tokenizer=same_tokenizer,
    )
    if call.config.acceptance.compares and written.ids and written.logprobs is None:
        return read_back(written, draft, call.request)
    return written


def judge_draft(target: Model, able: Ability, call: Call, draft: Draft) -> Checked:
    """Cut a draft and let the target judge the prefixes."""
    cuts, messages = draft_cuts(able, call, draft), call.request.messages
    return verify(target, able, messages, call.prompt.ids, draft, cuts, call.config)


def draft_cuts(able: Ability, call: Call, draft: Draft) -> tuple[Cut, ...]:
    """Cut a draft into as many prefixes as a call allows."""
    accept = call.config.acceptance
    # as many questions as stay shorter, all together, than the draft; what is read off is free
    affordable = len(draft.ids)
    if accept.asks_judge:
        affordable = max(1, (affordable - 1) // len(able.judge.suffix_ids))
    return cut_points(draft, accept.cut_at, call.config.max_prefixes or affordable)


def judge_text(
    target: Model, draft: Model | None, able: Ability, call: Call, text: str, same_tokenizer: bool
) -> Verdicts:
    """Judge a text that is given, as if it had been drafted.

    Raises
    ------
    InvalidRequestError
        If it has no tokens.
    ContextOverflowError, VerificationError
        If it does not fit, or the verdicts are no numbers.
    CalibrationError
        If the calibration is for another target or another way to judge.
    """
    # a text may come from anyone: the draft model counts only where it has to read it
    reader = draft if call.config.acceptance.compares else None
    check_acceptance(call.config, target, reader, able, same_tokenizer)
    ids = encode_plain(target.tokenizer, text)
    if not ids:
        raise InvalidRequestError(f"answer is {text!r}.", "Give a text that has tokens.")
    given = make_draft(target, ids, len(ids), complete=True)
    if reader is not None:
        given = read_back(given, reader, call.request)
    verdicts = judge_draft(target, able, call, given).verdicts
    check_finite(target, verdicts)
    return verdicts


def give_up(reason: str, draft: Draft | None = None, checked: Checked | None = None) -> Speculation:
    """Answer with the target alone, and say so."""
    warnings.warn(f"PARSE answered with the target alone: {reason}", FallbackWarning, stacklevel=2)
    return Speculation(draft, checked, fallback=reason)


def call_stats(
    call: Call,
    found: Speculation,
    written: Sequence[int],
    processed: int,
    clock: Clock,
) -> CallStats:
    """Put the figures of one call together."""
    config, drafted = call.config, len(found.draft.ids) if found.draft else 0
    accepted = len(found.accepted_ids)
    verdicts = found.verdicts.verdict if found.verdicts else ()
    alone = config.mode == "draft"
    outside = None
    if found.whole is not None:
        sampling = call.request.sampling
        outside = outside_bound(config, drafted, sampling, complete=found.whole.complete)
    if outside is not None:
        warnings.warn(f"No bound holds for this answer: {outside}.", BoundWarning, stacklevel=2)
    return CallStats(
        mode=config.mode,
        drafted_tokens=len(written) if alone else drafted,
        accepted_tokens=accepted,
        regenerated_tokens=0 if alone else len(written),
        accepted_fraction=accepted / drafted if drafted else 0.0,
        prefixes=len(found.checked.verdicts.ends) if found.checked else 0,
        full_verdict=verdicts[-1] if verdicts else None,
        accepted_verdict=verdicts[found.accepted] if found.accepted is not None else None,
        threshold=config.acceptance.threshold,
        verdict_kind=config.acceptance.kind,
        draft_s=clock.seconds["draft"],
        verify_s=clock.seconds["verify"],
        regenerate_s=clock.seconds["regenerated"],
        target_tokens_processed=0 if alone else processed,
        fallback=found.fallback,
        path=found.checked.path if found.checked else None,
        judge_layout=found.checked.layout if found.checked else None,
        outside_bound=outside,
    )
