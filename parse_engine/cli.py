"""The command line: answer a question, compare with the target alone, judge an answer."""

from __future__ import annotations

import argparse
import io
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from parse_engine import bench
from parse_engine.cli_args import DEFAULT_QUESTION, SETTINGS, build_parser, loading_of
from parse_engine.cli_output import (
    Terminal,
    as_json,
    description_table,
    follow,
    header,
    print_json,
    progress,
    show_delta,
)
from parse_engine.config import ParseConfig
from parse_engine.errors import FallbackWarning, InvalidRequestError, ParseError
from parse_engine.types import Generation
from parse_engine.view import LOSSY, comparison, figures_line, render, verdict_table

if TYPE_CHECKING:
    from parse_engine.engine import Engine
    from parse_engine.types import Message

OpenEngine = Callable[[argparse.Namespace, ParseConfig], "Engine"]

WARM_UP_TOKENS = 8
WARMED_UP = "Both ways were warmed up with one short answer before the timing."


def main(argv: Sequence[str] | None = None, *, open_engine: OpenEngine | None = None) -> int:
    """Run one command.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments without the program's name; unset, those of the process.
    open_engine : callable, optional
        Makes the engine from the arguments and settings; unset, the models are loaded.

    Returns
    -------
    int
        0 done, 1 an error of this project, 130 interrupted, 141 standard output was closed.

    Raises
    ------
    SystemExit
        By argparse: 0 after ``--help``, 2 for wrong usage.
    """
    if sys.stdout is None:  # closed by the caller, who does not want to see it
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - open to the end of the process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a mark the encoding lacks is no reason to fail
            stream.reconfigure(errors="replace")
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if arguments[:1] == ["bench"]:
            return bench.main(arguments[1:])
        if arguments[:1] == ["calibrate"]:
            from parse_engine import cli_calibrate

            return cli_calibrate.main(arguments[1:])
        args = build_parser().parse_args(arguments)
        return _command(args, _open_engine if open_engine is None else open_engine)
    except ParseError as error:
        return _complain(error)
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        _forget_output()
        return 141
    except OSError as error:
        _forget_output()
        print(f"Standard output or a file could not be used: {error}", file=sys.stderr)
        return 1


def _forget_output() -> None:
    """Write nothing more: Python flushes standard output once more at exit, and would complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _command(args: argparse.Namespace, open_engine: OpenEngine) -> int:
    commands = {
        "run": _run,
        "compare": _compare,
        "verify": _verify,
        "models": _models,
        "demo": _demo,
    }
    if args.command not in ("demo", "models"):
        _check_models(args)
    try:
        with warnings.catch_warnings():
            # A fallback stands in every kind of output already.
            warnings.simplefilter("ignore", FallbackWarning)
            commands[args.command](args, open_engine)
    except ParseError as error:
        return _complain(error, as_json=args.json)
    finally:
        sys.stdout.flush()
    return 0


def _complain(error: ParseError, *, as_json: bool = False) -> int:
    kind = type(error).__name__
    if as_json:
        print_json({"error": {"type": kind, "problem": error.problem, "hint": error.hint}})
    print(f"{kind}: {error.problem} {error.hint}", file=sys.stderr)
    return 1


def _run(args: argparse.Namespace, open_engine: OpenEngine) -> None:
    messages = _messages(args, _question(args))
    engine = _open(args, open_engine)
    call = {**_call(args), "mode": args.mode}
    if args.json:
        print_json(as_json(follow(engine, messages, call)))
    elif args.stream:
        terminal = Terminal(highlight=False)
        answer = follow(engine, messages, call, show=lambda delta: show_delta(terminal, delta))
        print(flush=True)
        Console(stderr=True, highlight=False).print(figures_line(answer))
    else:
        terminal = Terminal(highlight=False)
        terminal.print(header(engine, messages))
        terminal.print(render(follow(engine, messages, call)))


def _compare(args: argparse.Namespace, open_engine: OpenEngine) -> None:
    messages = _messages(args, _question(args))
    args.verify_order = args.verify_order or "all"  # a verdict to show at each cut point
    engine = _open(args, open_engine)
    terminal = Terminal(highlight=False)
    if not args.json:
        terminal.print(header(engine, messages))
    call = _call(args)
    if args.temperature is None:
        call["temperature"] = 0.0  # what is compared should not depend on luck
    modes = ("parse", "target")
    for mode in modes:
        short = {**call, "mode": mode, "max_new_tokens": WARM_UP_TOKENS}
        follow(engine, messages, short, doing="Warming up")
    runs: dict[str, list[tuple[float, Generation]]] = {mode: [] for mode in modes}
    for number in range(args.repeat):
        for mode in modes:
            doing = f"Run {number + 1} of {args.repeat}, {mode}"
            start = time.perf_counter()
            answer = follow(engine, messages, {**call, "mode": mode}, doing=doing)
            runs[mode].append((time.perf_counter() - start, answer))
    # The run in the middle stands for all, so that its seconds, stages and text belong together.
    (parse_s, parse), (alone_s, alone) = (
        sorted(runs[mode], key=lambda run: run[0])[(args.repeat - 1) // 2] for mode in modes
    )
    if not args.json:
        terminal.print(comparison(parse, parse_s, alone, alone_s, runs=args.repeat))
        terminal.print(Text(WARMED_UP, "dim"))
        return
    seconds = {mode: [round(run[0], 4) for run in runs[mode]] for mode in modes}
    print_json(
        {
            "target_model": engine.target.name,
            "draft_model": engine.draft.name if engine.draft else None,
            "parse": {**as_json(parse), "seconds": seconds["parse"]},
            "target": {**as_json(alone), "seconds": seconds["target"]},
            "speedup": round(alone_s / parse_s, 4),
            "notes": [LOSSY, WARMED_UP],
        }
    )


def _verify(args: argparse.Namespace, open_engine: OpenEngine) -> None:
    messages = _messages(args, args.question)
    text = _read(args.file)
    args.verdict = args.verdict or (None if args.calibration else "p_correct")
    engine = _open(args, open_engine)
    with progress().status("Judging"):
        verdicts = engine.verify(messages, text)
    threshold = engine.config.acceptance.threshold
    if args.json:
        print_json({"threshold": threshold, "verdicts": asdict(verdicts)})
        return
    terminal = Terminal(highlight=False)
    terminal.print(header(engine, messages))
    terminal.print(verdict_table(text, verdicts, threshold))


def _models(args: argparse.Namespace, _: OpenEngine) -> None:
    if not args.model and not args.demo:
        args.parser.error("no models given. Name some, or use --demo.")
    from parse_engine.backends.loading import load, sources
    from parse_engine.demo import ensure_demo_pair
    from parse_engine.describe import describe

    names = list(args.model)
    if args.demo:
        pair = ensure_demo_pair()
        names += [str(pair.target), str(pair.draft)]
    found = []
    for name in names:
        found.append(describe(load(sources(name, None, loading_of(args))[0])))
        if not args.json:
            Terminal(highlight=False).print(description_table(found[-1]))
    if args.json:
        print_json({"models": [asdict(one) for one in found]})


def _demo(args: argparse.Namespace, _: OpenEngine) -> None:
    from parse_engine.demo import ensure_demo_pair

    pair = ensure_demo_pair()
    if args.json:
        print_json({"target": str(pair.target), "draft": str(pair.draft)})
    else:
        print(f"target {pair.target}\ndraft  {pair.draft}")


def _open(args: argparse.Namespace, open_engine: OpenEngine) -> Engine:
    given = {name: getattr(args, name) for name in ("threshold", *SETTINGS)}
    config = ParseConfig(**{name: value for name, value in given.items() if value is not None})
    progress().print("Loading the models", style="dim")
    return open_engine(args, config)


def _open_engine(args: argparse.Namespace, config: ParseConfig) -> Engine:
    from transformers.utils import logging

    from parse_engine.engine import Engine

    if not sys.stderr.isatty():
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    if args.demo:
        return Engine.demo(config=config)
    return Engine.from_pretrained(args.target, args.draft, config=config, **loading_of(args))


def _check_models(args: argparse.Namespace) -> None:
    if args.demo and (args.target or args.draft or args.dtype or args.chat_template_kwargs):
        args.parser.error(
            "--demo brings its own pair: leave out --target, --draft, --dtype and "
            "--chat-template-kwargs."
        )
    if not args.demo and not args.target:
        args.parser.error(
            "no models given. Use --demo, which fetches a small pair once (Qwen2.5-Coder 0.5B and "
            "1.5B, 1.6 GB), or --target MODEL --draft MODEL, each a model id or a folder."
        )
    drafts = args.command == "compare" or (args.command == "run" and args.mode != "target")
    if drafts and not args.demo and not args.draft:
        args.parser.error("no draft model given. Use --draft MODEL, or run --mode target.")


def _call(args: argparse.Namespace) -> dict[str, Any]:
    names = ("max_new_tokens", "temperature", "top_p", "top_k", "seed", "stop")
    return {name: getattr(args, name) for name in names}


def _messages(args: argparse.Namespace, question: str) -> list[Message]:
    if not question.strip():
        raise InvalidRequestError("The question is empty.", "Give it as an argument or on stdin.")
    system = [{"role": "system", "content": args.system}] if args.system else []
    return [*system, {"role": "user", "content": question}]


def _question(args: argparse.Namespace) -> str:
    if args.question is None and sys.stdin is not None and sys.stdin.isatty():
        return DEFAULT_QUESTION
    return _read("-").strip() if args.question in (None, "-") else str(args.question)


def _read(path: str) -> str:
    """Read a file, or standard input where the path is "-"."""
    if path == "-" and sys.stdin is None:
        raise InvalidRequestError("Standard input is closed.", "Give the text as an argument.")
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(
            f"{path!r} cannot be read: {error}.", "Give a text file in UTF-8, or - for stdin."
        ) from error
