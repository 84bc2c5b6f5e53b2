"""Drafts of known correctness: written in batches, several an item, checked, kept as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from transformers import GenerationConfig, LogitsProcessorList

from parse_engine.bench.tasks import Item, Task
from parse_engine.draft import tokenizers_equal
from parse_engine.errors import ContextOverflowError
from parse_engine.render import encode_plain
from parse_engine.request import Sampling
from parse_engine.sampling import sampling_processors
from parse_engine.writing import Writer

if TYPE_CHECKING:
    from parse_engine.backends.model import Model, Prompt
    from parse_engine.bench.store import Store


@dataclass(frozen=True)
class LabelledDraft:
    """An answer of the draft model, and whether it is right.

    Parameters
    ----------
    task, item : str
        What it answers.
    sample : int
        Its number among the drafts of the item; 0 is the greedy one.
    ids : tuple of int
        Its tokens, in the target's vocabulary, without end of turn.
    text : str
        The answer in it, without thinking.
    complete : bool
        Whether the draft model ended by itself. What its limit cut off is no answer to judge.
    right : bool
        What the checker says of the text.
    """

    task: str
    item: str
    sample: int
    ids: tuple[int, ...]
    text: str
    complete: bool
    right: bool

    @property
    def key(self) -> tuple[str, str, int]:
        """What tells it from other drafts."""
        return self.task, self.item, self.sample

    def row(self) -> dict[str, Any]:
        """Return it as a row of a Store."""
        return {**asdict(self), "method": method(self.sample)}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> LabelledDraft:
        """Read a row back."""
        plain = {name: row[name] for name in cls.__dataclass_fields__}
        return cls(**{**plain, "ids": tuple(row["ids"])})


@dataclass(frozen=True)
class Drafting:
    """How drafts are written.

    Parameters
    ----------
    samples : int
        Drafts an item: the first is greedy, the others are sampled.
    temperature : float
        Of the sampled ones.
    seed : int
        Makes the same drafts again, if the batches are the same.
    limit : int
        Most tokens of a draft.
    batch : int
        Prompts that are answered at once.
    """

    samples: int
    temperature: float
    seed: int
    limit: int
    batch: int


def method(sample: int) -> str:
    """Name what a row of a Store holds."""
    return f"draft {sample}"


def make_drafts(
    model: Model,
    target: Model,
    tasks: Sequence[Task],
    how: Drafting,
    store: Store,
    check: Callable[[Task, Item, str], bool],
) -> Iterator[LabelledDraft]:
    """Write and check the drafts that a store does not have yet, and yield each as it is stored.

    Parameters
    ----------
    model, target : Model
        Who drafts, and whose tokens the drafts are kept in.
    tasks : sequence of Task
        What is asked.
    how : Drafting
        Samples, limit, batch.
    store : Store
        Keeps the rows.
    check : callable
        Says whether the text of an answer to an item is right.
    """
    same = tokenizers_equal(model, target)
    done = store.rows()
    for task in tasks:
        for sample in range(how.samples):
            left = [i for i in task.items if (task.name, i.id, method(sample)) not in done]
            sampling = Sampling(how.temperature if sample else 0.0, seed=how.seed + sample)
            for start in range(0, len(left), how.batch):
                items = left[start : start + how.batch]
                prompts = [model.render(list(item.messages)) for item in items]
                written = write_batch(model, [one.ids for one in prompts], how.limit, sampling)
                for item, prompt, (ids, complete) in zip(items, prompts, written, strict=True):
                    text, raw = _texts(model, prompt, ids)
                    kept = ids if same else encode_plain(target.tokenizer, raw)
                    right = check(task, item, text)
                    draft = LabelledDraft(
                        task.name, item.id, sample, tuple(kept), text, complete, right
                    )
                    store.add(draft.row())
                    yield draft


def _texts(model: Model, prompt: Prompt, ids: Sequence[int]) -> tuple[str, str]:
    """Return the answer in some tokens, without thinking, and all of their text."""
    writer = Writer(model, prompt.text, (), "draft", lambda _: None)
    for token in ids:
        writer.add(token)
    writer.finish()
    return writer.text, writer.written_text


def write_batch(
    model: Model, prompts: Sequence[Sequence[int]], limit: int, sampling: Sampling
) -> list[tuple[tuple[int, ...], bool]]:
    """Answer several prompts at once with transformers' ``generate``.

    Parameters
    ----------
    model : Model
        Who writes.
    prompts : sequence of sequence of int
        Token ids; the shorter ones are padded on the left.
    limit : int
        Most tokens of an answer.
    sampling : Sampling
        How tokens are chosen.

    Returns
    -------
    list of (tuple of int, bool)
        For each prompt the new tokens, without end of turn, and whether there was one.
    """
    width = max(map(len, prompts))
    if width >= model.context_window:
        raise ContextOverflowError(
            f"A prompt has {width} tokens; the context of {model.name} holds "
            f"{model.context_window}.",
            "Leave the item out, or use a model with a longer context.",
        )
    # Padded with a token that the prompt has anyway, so that a repetition penalty counts none anew.
    padded = [[ids[0]] * (width - len(ids)) + list(ids) for ids in prompts]
    inputs = torch.tensor(padded, device=model.network.device)
    places = torch.arange(width, device=inputs.device)
    starts = torch.tensor([width - len(ids) for ids in prompts], device=inputs.device)
    eos_ids = sorted(model.eos_ids)
    generate = cast(Callable[..., torch.Tensor], model.network.generate)
    output = generate(
        inputs,
        attention_mask=(places >= starts[:, None]).long(),
        generation_config=GenerationConfig(  # type: ignore[no-untyped-call]
            do_sample=False,  # sampling is a logits processor, with a generator of its own
            temperature=1.0,
            top_p=1.0,
            top_k=50,
            num_beams=1,
            num_return_sequences=1,
            max_new_tokens=min(limit, model.context_window - width),
            eos_token_id=eos_ids or None,
            pad_token_id=eos_ids[0] if eos_ids else 0,
        ),
        logits_processor=LogitsProcessorList(sampling_processors(sampling, inputs.device)),
    )
    answers = []
    for ids in output[:, width:].tolist():
        end = next((n for n, token in enumerate(ids) if token in model.eos_ids), None)
        answers.append((tuple(ids[:end]), end is not None))
    return answers
