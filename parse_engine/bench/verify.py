"""What verification costs: ``python -m parse_engine bench verify``.

Ratios of alternating runs in one process; absolute seconds belong to the machine.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from parse_engine.bench.common import add_models, alternate, machine, open_engine, ratio
from parse_engine.bench.memory import peak_bytes

if TYPE_CHECKING:
    from transformers import Cache

    from parse_engine.backends.model import Model
    from parse_engine.engine import Engine

QUESTIONS = (
    "Write a Python function that returns the longest common prefix of a list of strings.",
    "Explain in three sentences why the sky is blue.",
    "Write a SQL query that counts orders by month.",
)


@dataclass(frozen=True)
class Bench:
    """An engine, a text to judge, and how often to measure."""

    engine: Engine
    repeat: int

    @property
    def target(self) -> Model:
        """The judge."""
        return self.engine.target

    def ids(self, count: int) -> tuple[int, ...]:
        """Return as many ids of some text as are asked for."""
        text = self.target.encode("The quick brown fox jumps over the lazy dog, then rests.\n")
        return (text * (count // len(text) + 1))[:count]

    def read(self, ids: Sequence[int]) -> Cache:
        """Return a cache of ids."""
        from transformers import DynamicCache

        cache = DynamicCache()
        self.target.forward(ids, cache)
        return cache

    def judge(self, cache: Cache, ends: Sequence[int]) -> None:
        """Judge prefixes in one packed pass."""
        from parse_engine.reading import judge_logits

        engine = self.engine
        judge_logits(
            self.target, cache, engine.ability.brief, engine.ability.judge.suffix_ids, ends
        )


PROMPT, DRAFT = 80, 256


def main(argv: Sequence[str]) -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m parse_engine bench verify", description=__doc__
    )
    add_models(parser)
    parser.add_argument("--repeat", type=int, default=5, help="alternating runs of each way")
    parser.add_argument(
        "--only", nargs="+", choices=MEASURES, default=list(MEASURES), help="some of the measures"
    )
    args = parser.parse_args(argv)
    bench = Bench(open_engine(parser, args), args.repeat)
    print(
        f"{bench.target.name}, {machine()}, medians of {args.repeat} alternating runs", flush=True
    )
    for name in args.only:
        title, measure = MEASURES[name]
        print(f"\n{title}", flush=True)
        for line in measure(bench):
            print(f"  {line}", flush=True)
    return 0


def mask(bench: Bench) -> Iterator[str]:
    """Compare the masked pass with a plain causal forward of as many tokens on its cache."""
    size = len(bench.engine.ability.judge.suffix_ids)
    cache = bench.read(bench.ids(PROMPT + DRAFT))
    for count in (1, 8, 32):
        ends = prefix_ends(count)

        def plain(count: int = count) -> None:
            from parse_engine.reading import append_brief

            length = cache.get_seq_length()
            append_brief(cache, bench.engine.ability.brief)
            bench.target.forward(bench.ids(count * size), cache)
            cache.crop(length - cache.get_seq_length())

        seconds = alternate(
            {"masked": partial(bench.judge, cache, ends), "plain": plain}, bench.repeat
        )
        times = ratio(seconds["masked"], seconds["plain"])
        median = statistics.median(seconds["masked"])
        yield f"N = {count:2}, {count * size} tokens: {times:.2f}x ({median:.2f} s)"


def naive(bench: Bench) -> Iterator[str]:
    """Compare one packed pass with 32 full forwards, and with 32 checks that reuse the cache."""
    ids = bench.ids(PROMPT + DRAFT)
    suffix = bench.engine.ability.judge.suffix_ids
    cache = bench.read(ids)
    ends = prefix_ends(32)

    def full() -> None:
        for end in ends:
            bench.read((*ids[:end], *suffix))

    def sequential() -> None:
        for end in ends:
            bench.judge(cache, [end])

    packed = partial(bench.judge, cache, ends)
    seconds = alternate({"packed": packed, "sequential": sequential}, bench.repeat)
    yield f"sequential / packed: {ratio(seconds['sequential'], seconds['packed']):.1f}x"
    seconds = alternate({"packed": packed, "full": full}, max(1, bench.repeat // 2))
    yield f"full / packed: {ratio(seconds['full'], seconds['packed']):.1f}x"
    read = alternate({"read": partial(bench.read, ids), "packed": packed}, bench.repeat)
    both = [a + b for a, b in zip(read["read"], read["packed"], strict=True)]
    share = statistics.median(seconds["full"]) / statistics.median(both)
    yield f"full / (prefill of prompt and draft, then packed): {share:.1f}x"


def order(bench: Bench) -> Iterator[str]:
    """Compare both orders of verification, by how often the whole draft is accepted."""
    cache = bench.read(bench.ids(PROMPT + DRAFT))
    count = max(2, (DRAFT - 1) // len(bench.engine.ability.judge.suffix_ids))
    ends = prefix_ends(count)
    seconds = alternate(
        {
            "whole": partial(bench.judge, cache, ends[-1:]),
            "others": partial(bench.judge, cache, ends[:-1]),
            "all": partial(bench.judge, cache, ends),
        },
        bench.repeat,
    )
    whole, others, at_once = (statistics.median(seconds[name]) for name in seconds)
    yield f"N = {count}: whole {whole:.2f} s, others {others:.2f} s, all {at_once:.2f} s"
    for accepted in (0.0, 0.25, 0.5, 0.75, 1.0):
        cost = (whole + (1 - accepted) * others) / at_once
        yield f"accepted whole {accepted:4.0%}: whole first / all at once {cost:.2f}x"
    yield f"whole first is cheaper from {1 - (at_once - whole) / others:.0%} on"


def overhead(bench: Bench) -> Iterator[str]:
    """Compare the engine's wall time with the sum of its model forwards."""
    ratios = []
    for question in QUESTIONS * max(1, bench.repeat // len(QUESTIONS)):
        with forward_seconds(bench.engine) as inside:
            start = time.perf_counter()
            bench.engine.generate(ask(question), max_new_tokens=96, temperature=0, threshold=0.9)
            wall = time.perf_counter() - start
        ratios.append(wall / sum(inside))
    yield f"{statistics.median(ratios):.3f}x (each: {', '.join(f'{r:.3f}' for r in ratios)})"


def alone(bench: Bench) -> Iterator[str]:
    """Compare mode target with model.generate."""
    import torch

    prompt = bench.target.render(ask(QUESTIONS[0])).ids
    inputs = torch.tensor([prompt], device=bench.target.network.device)
    generate: Callable[..., Any] = bench.target.network.generate  # type: ignore[assignment]
    eos_ids = sorted(bench.target.eos_ids)
    seconds = alternate(
        {
            "mode target": lambda: bench.engine.generate(
                ask(QUESTIONS[0]), max_new_tokens=48, temperature=0, mode="target"
            ),
            "generate": lambda: generate(
                inputs, do_sample=False, max_new_tokens=48, eos_token_id=eos_ids
            ),
        },
        bench.repeat,
    )
    yield f"{ratio(seconds['mode target'], seconds['generate']):.3f}x"


def signals(bench: Bench) -> Iterator[str]:
    """Compare the prefill with and without the log-probabilities of the drafted tokens."""
    from transformers import DynamicCache

    from parse_engine.prefill import prefill

    ids = bench.ids(PROMPT + DRAFT)
    head, draft = ids[:PROMPT], ids[PROMPT:]

    def run(on: bool) -> None:
        prefill(bench.target, DynamicCache(), head, draft, signals=on)

    seconds = alternate({"on": partial(run, True), "off": partial(run, False)}, bench.repeat)
    yield f"{ratio(seconds['on'], seconds['off']):.2f}x of a prefill without them"


def memory(bench: Bench) -> Iterator[str]:
    """Measure the peak memory of the masked pass and of a plain one."""
    length, count = PROMPT + 4096, 32
    rows = count * len(bench.engine.ability.judge.suffix_ids)
    cache = bench.read(bench.ids(length))
    ends = [PROMPT + 4096 * (i + 1) // count for i in range(count)]
    brief = bench.engine.ability.brief
    hidden = brief.length if brief is not None else 0

    def plain() -> None:
        bench.target.forward(bench.ids(rows), cache)
        cache.crop(length - cache.get_seq_length())

    for name, run in (("masked", partial(bench.judge, cache, ends)), ("plain causal", plain)):
        run()
        yield f"{name} pass of {rows} tokens: {peak_bytes(run) / 1e6:.0f} MB above its start"
    columns = length + hidden + rows
    yield f"the mask: {rows} x {columns} = {rows * columns / 1e6:.1f} MB as bool"
    yield f"a square mask would be {columns} x {columns} = {columns**2 / 1e6:.1f} MB"


MEASURES: dict[str, tuple[str, Callable[[Bench], Iterator[str]]]] = {
    "mask": (
        "(a) the masked pass / a plain causal forward of as many tokens on the same cache",
        mask,
    ),
    "naive": (
        "(b) N = 32: separate checks / one packed pass",
        naive,
    ),
    "order": (
        "(c) the whole draft first / all at once, by how often the whole draft is accepted",
        order,
    ),
    "overhead": (
        "(d) the engine's wall time / the sum of its model forwards",
        overhead,
    ),
    "alone": (
        "(e) mode target / model.generate",
        alone,
    ),
    "signals": (
        "the target's log-probabilities of the drafted tokens, on top of the prefill",
        signals,
    ),
    "memory": (
        "(f) peak memory of the masked pass at N = 32 and 4,096 drafted tokens",
        memory,
    ),
}


def prefix_ends(count: int) -> list[int]:
    """Return prefix ends that are spread evenly over the draft."""
    return [PROMPT + DRAFT * (i + 1) // count for i in range(count)]


def ask(question: str) -> list[dict[str, Any]]:
    """Return a question as a conversation."""
    return [{"role": "user", "content": question}]


@contextmanager
def forward_seconds(engine: Engine) -> Iterator[list[float]]:
    """Log the seconds of every forward of both models, whoever calls them."""
    log: list[float] = []
    starts: list[float] = []
    handles = []
    for model in (engine.target, engine.draft):
        if model is not None:
            network = model.network
            handles += [
                network.register_forward_pre_hook(lambda *_: starts.append(time.perf_counter())),
                network.register_forward_hook(
                    lambda *_: log.append(time.perf_counter() - starts.pop())
                ),
            ]
    try:
        yield log
    finally:
        for handle in handles:
            handle.remove()
