"""The draft model writes a whole answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from transformers import DynamicCache

from parse_engine.answer import AnswerText
from parse_engine.backends.generation import TokenLogprobs
from parse_engine.backends.model import Model, Prompt
from parse_engine.errors import ContextOverflowError
from parse_engine.prefill import prefill
from parse_engine.render import encode_plain
from parse_engine.request import Request
from parse_engine.text import TextBuilder, decode_all
from parse_engine.translate import thinks_alike, translate
from parse_engine.types import Draft


def write_draft(
    model: Model,
    target: Model,
    target_prompt: Prompt,
    request: Request,
    limit: int,
    on_progress: Callable[[int], None],
    *,
    same_tokenizer: bool,
) -> Draft:
    """Let the draft model answer through its own chat template.

    Parameters
    ----------
    model, target : Model
        Who drafts, and whose tokens the draft is returned in.
    target_prompt : Prompt
        What the target would write after.
    request : Request
        The conversation and how to write.
    limit : int
        Most tokens of the draft.
    on_progress : callable
        Called after each token with the number of tokens so far; what it raises ends the drafting.
    same_tokenizer : bool
        Whether token ids may pass between the models; otherwise text does.

    Returns
    -------
    Draft
        Up to the first stop string and without end-of-turn token; may be empty.
    """
    prompt = request.render(model, drafts=True)
    rewrite = request.for_draft().rewrite
    room = _room(model, prompt, 1)
    builder = TextBuilder(model.tokenizer)
    answer = AnswerText(request.stop)
    eos_ids = model.eos_ids

    def on_token(token: int) -> bool:
        on_progress(len(builder.char_ends) + 1)
        if token in eos_ids:
            return True
        answer.feed(builder.push(token), "draft")
        return answer.stopped

    noted = TokenLogprobs()
    ids = model.write(
        prompt.ids,
        limit=min(limit, room),
        sampling=request.sampling,
        on_token=on_token,
        processors=[noted, *request.processors(model, len(prompt.ids))],
    )
    logprobs = noted.of(ids)
    ended = answer.stopped or ids[-1] in eos_ids
    ids = tuple(token for token in ids if token not in eos_ids)
    alike = rewrite is None and thinks_alike(model, prompt, target, target_prompt)
    if alike and same_tokenizer and not answer.stopped:
        return make_draft(target, ids, limit, complete=ended, logprobs=logprobs)
    builder.finish()
    text = answer.raw if answer.stopped else builder.text
    if alike:
        ids = encode_plain(target.tokenizer, text)
    else:
        ids, ended = translate(text, model, prompt, target, target_prompt, rewrite, ended=ended)
    return replace(make_draft(target, ids, limit, complete=ended), stopped=answer.stopped)


def make_draft(
    target: Model,
    ids: Sequence[int],
    limit: int,
    *,
    complete: bool,
    logprobs: Sequence[float] | None = None,
) -> Draft:
    """Describe a draft in the target's tokens: at most ``limit``, nothing after an end of turn."""
    eos_ids = target.eos_ids
    end = next((index for index, token in enumerate(ids) if token in eos_ids), len(ids))
    kept = tuple(ids[: min(end, limit)])
    text, char_ends = decode_all(target.tokenizer, kept)
    known = None if logprobs is None else tuple(logprobs[: len(kept)])
    return Draft(kept, text, char_ends, complete=complete and end <= limit, logprobs=known)


def read_back(draft: Draft, model: Model, request: Request) -> Draft:
    """Let the draft model read a text, of which it is not known what it thinks of each token.

    Parameters
    ----------
    draft : Draft
        Any text, not empty, in tokens that are the draft model's too.
    model : Model
        The draft model.
    request : Request
        The conversation.

    Returns
    -------
    Draft
        The same with ``logprobs``.
    """
    prompt = request.render(model, drafts=True)
    _room(model, prompt, len(draft.ids))
    signals = prefill(model, DynamicCache(), prompt.ids, draft.ids, signals=True)
    assert signals is not None
    return replace(draft, logprobs=tuple(signals[0].tolist()))


def _room(model: Model, prompt: Prompt, wanted: int) -> int:
    """Return how many tokens fit behind the prompt, of so many at least."""
    room = model.context_window - len(prompt.ids)
    if room < wanted:
        answer = f", and the answer {wanted}" if wanted > 1 else ""
        raise ContextOverflowError(
            f"The prompt has {len(prompt.ids)} tokens for {model.name}{answer}; "
            f"its context holds {model.context_window}.",
            "Shorten the conversation or use a draft model with a longer context.",
        )
    return room


def tokenizers_equal(one: Model, other: Model) -> bool:
    """Whether two models split any text into the same ids; sizes of a family differ in padding."""
    if one.tokenizer is other.tokenizer:
        return True
    first, second = _definition(one), _definition(other)
    return first == second and one.tokenizer.get_vocab() == other.tokenizer.get_vocab()


def _definition(model: Model) -> Mapping[str, str]:
    backend = getattr(model.tokenizer, "backend_tokenizer", None)
    if backend is None:
        return {"class": type(model.tokenizer).__name__}
    parts = ("normalizer", "pre_tokenizer", "decoder")
    return {part: repr(getattr(backend, part)) for part in parts}
