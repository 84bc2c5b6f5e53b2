"""Drafts of known correctness: written in batches, several an item, checked, kept as they come."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from transformers import LogitsProcessorList

from parse_engine.backends.generation import writing_config
from parse_engine.backends.model import Model
from parse_engine.bench.common import same_models
from parse_engine.bench.forms import Item
from parse_engine.bench.tasks import Task
from parse_engine.call import Call, prepare
from parse_engine.draft import write_draft
from parse_engine.errors import ContextOverflowError
from parse_engine.options import CallOptions
from parse_engine.request import Sampling
from parse_engine.sampling import sampling_processors
from parse_engine.writing import Writer

if TYPE_CHECKING:
    from parse_engine.bench.store import Store
    from parse_engine.engine import Engine


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
    fault : str or None
        What the checker finds wrong with the text.
    """

    task: str
    item: str
    sample: int
    ids: tuple[int, ...]
    text: str
    complete: bool
    fault: str | None

    @property
    def right(self) -> bool:
        """Whether nothing is wrong with it."""
        return self.fault is None

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


@dataclass(frozen=True, eq=False)
class Replay(Model):
    """A draft model that writes what it has written before."""

    script: tuple[int, ...] = ()

    def write(
        self,
        ids: Sequence[int],  # noqa: ARG002 - as its base class has it
        *,
        limit: int,  # noqa: ARG002
        on_token: Callable[[int], bool],
        **settings: Any,  # noqa: ARG002
    ) -> tuple[int, ...]:
        """Go through the script, as if it were written now."""
        for token in self.script:
            if on_token(token):
                break
        return self.script


def make_drafts(
    engine: Engine,
    tasks: Sequence[Task],
    how: Drafting,
    store: Store,
    fault_of: Callable[[Item, str], str | None],
) -> Iterator[LabelledDraft]:
    """Write and check the drafts that a store does not have yet, and yield each as it is stored.

    Parameters
    ----------
    engine : Engine
        Its models: who drafts, and whose tokens the drafts are kept in.
    tasks : sequence of Task
        What is asked.
    how : Drafting
        Samples, limit, batch.
    store : Store
        Keeps the rows. One that has drafts of other models is refused.
    fault_of : callable
        Says what is wrong with the text of an answer to an item, None if it is right.
    """
    model = engine.draft
    assert model is not None
    done = store.rows()
    models = same_models(engine, store, done)
    for task in tasks:
        for sample in range(how.samples):
            left = [i for i in task.items if (task.name, i.id, method(sample)) not in done]
            for start in range(0, len(left), how.batch):
                items = left[start : start + how.batch]
                place = zlib.crc32(f"{task.name} {items[0].id}".encode())
                calls = [_call(engine, item, how, sample, place) for item in items]
                prompts = [model.render(call.request.messages).ids for call in calls]
                sampling = calls[0].request.sampling
                written = write_batch(model, prompts, how.limit, sampling)
                for item, call, ids in zip(items, calls, written, strict=True):
                    draft = _labelled(engine, task, item, sample, call, ids, fault_of)
                    store.add({**draft.row(), "models": models})
                    yield draft


def check_prompts(engine: Engine, tasks: Sequence[Task], how: Drafting) -> None:
    """Refuse what does not fit into a context, before hours are spent on what does.

    Raises
    ------
    ContextOverflowError
        With the item.
    """
    model = engine.draft
    assert model is not None
    for task in tasks:
        for item in task.items:
            try:
                call = _call(engine, item, how, 0, 0)  # refuses what the target cannot hold
                _check_width(model, len(model.render(call.request.messages).ids))
            except ContextOverflowError as error:
                raise ContextOverflowError(
                    f"Item {item.id} of {task.name}: {error.problem}", "Leave it out of the file."
                ) from error


def _check_width(model: Model, width: int) -> None:
    if width >= model.context_window:
        raise ContextOverflowError(
            f"A prompt has {width} tokens; the context of {model.name} holds "
            f"{model.context_window}.",
            "Leave the item out, or use a model with a longer context.",
        )


def _call(engine: Engine, item: Item, how: Drafting, sample: int, place: int) -> Call:
    """Check and render a question as the engine does; each place has chances of its own."""
    options: CallOptions = {
        "mode": "target",
        "max_new_tokens": how.limit,
        "temperature": how.temperature if sample else 0.0,
        "seed": how.seed + 100_003 * sample + place,
    }
    return prepare(item.messages, options, engine.config, engine.target, engine.draft)


def _labelled(
    engine: Engine,
    task: Task,
    item: Item,
    sample: int,
    call: Call,
    ids: tuple[int, ...],
    fault_of: Callable[[Item, str], str | None],
) -> LabelledDraft:
    """Make of written tokens what the engine would, and check what it would answer by them."""
    model, target = engine.draft, engine.target
    assert model is not None
    replay = Replay(model.name, model.network, model.tokenizer, model.template_kwargs, ids)
    same = engine.same_tokenizer
    draft = write_draft(
        *(replay, target, call.prompt, call.request, call.limit, lambda _: None),
        same_tokenizer=same,
    )
    writer = Writer(target, call.prompt.text, (), "draft", lambda _: None)
    writer.accept(draft.ids)
    writer.finish()
    text = writer.text
    fault = fault_of(item, text)
    return LabelledDraft(task.name, item.id, sample, draft.ids, text, draft.complete, fault)


def write_batch(
    model: Model, prompts: Sequence[Sequence[int]], limit: int, sampling: Sampling
) -> list[tuple[int, ...]]:
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
    list of tuple of int
        For each prompt the new tokens; the last is an end of turn, unless the limit came first.
    """
    width = max(map(len, prompts))
    _check_width(model, width)
    # Padded with a token that the prompt has anyway, so that a repetition penalty counts none anew.
    padded = [[ids[0]] * (width - len(ids)) + list(ids) for ids in prompts]
    inputs = torch.tensor(padded, device=model.network.device)
    places = torch.arange(width, device=inputs.device)
    starts = torch.tensor([width - len(ids) for ids in prompts], device=inputs.device)
    generate = cast(Callable[..., torch.Tensor], model.network.generate)
    output = generate(
        inputs,
        attention_mask=(places >= starts[:, None]).long(),
        generation_config=writing_config(min(limit, model.context_window - width), model.eos_ids),
        logits_processor=LogitsProcessorList(sampling_processors(sampling, inputs.device)),
    )
    answers = []
    for ids in output[:, width:].tolist():
        ends = (n for n, token in enumerate(ids, start=1) if token in model.eos_ids)
        answers.append(tuple(ids[: next(ends, len(ids))]))
    return answers
