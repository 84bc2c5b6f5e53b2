"""The arguments of the command line."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from parse_engine.config import AcceptRule, CutRule, JudgeLayout, Mode, VerdictRule, VerifyOrder
from parse_engine.strict_json import strict_loads

if TYPE_CHECKING:
    from parse_engine.backends.source import LoadOptions

PROGRAM = "python -m parse_engine"
SETTINGS = (
    *("verdict", "calibration", "accept_rule", "cut_at", "max_prefixes"),
    *("judge_layout", "verify_order"),
)
DEFAULT_MAX_NEW_TOKENS = 512
MOST = 10**9  # of anything that is counted
DEFAULT_QUESTION = (
    "Write a Python function longest_run(values) that returns the length of the longest run of "
    "equal neighbours in a list: 3 for [1, 2, 2, 2, 5, 5], and 0 for an empty list. "
    "Answer with the code only."
)


def build_parser() -> argparse.ArgumentParser:
    """Describe the commands; what follows ``bench`` has parsers of its own."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="PARSE: a small model drafts, a large one judges every prefix of the draft in "
        "one pass and writes only what follows the part that it approves of.",
        epilog=f'Try: {PROGRAM} compare --demo "Write a Python function that reverses a string."',
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    run = _command(commands, "run", "answer a question and show what was kept and rewritten")
    _add_question(run)
    _add_call(run)
    run.add_argument("--mode", choices=get_args(Mode), default="parse", help="default: parse")
    output = run.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print one JSON object")
    output.add_argument(
        "--stream",
        action="store_true",
        help="print the answer as it is verified and written, and the figures on standard error",
    )

    compare = _command(commands, "compare", "answer with PARSE and with the target alone, timed")
    _add_question(compare)
    _add_call(compare, temperature="default: 0, so that the comparison can be repeated")
    compare.add_argument(
        "--repeat", type=count, default=1, metavar="N", help="medians of N alternating runs"
    )
    compare.add_argument("--json", action="store_true", help="print one JSON object")

    verify = _command(commands, "verify", "judge a given answer without writing anything")
    verify.add_argument("file", metavar="FILE", help="the answer; - for standard input")
    verify.add_argument("--question", required=True, metavar="TEXT", help="what was asked")
    verify.add_argument("--system", metavar="TEXT", help="system message")
    verify.add_argument("--json", action="store_true", help="print one JSON object")

    for command in (run, compare, verify):
        _add_models(command)
        add_settings(command).add_argument(
            "--threshold", type=float, metavar="P", help="verdict that a prefix must reach, 0 to 1"
        )

    models = _command(commands, "models", "say what models can do as targets, and why not more")
    models.add_argument("model", nargs="*", metavar="MODEL", help="model id, folder or .gguf file")
    models.add_argument("--demo", action="store_true", help="the demo pair, fetched when missing")
    add_loading(models)
    models.add_argument("--json", action="store_true", help="print one JSON object")

    commands.add_parser("bench", help="measure speed, accuracy and cost; see bench --help")
    commands.add_parser(
        "calibrate", help="choose verdict and threshold for two models; see calibrate --help"
    )

    demo = _command(commands, "demo", "fetch the demo pair and print its two folders")
    demo.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, does: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=does, description=f"{does[0].upper()}{does[1:]}.")
    parser.set_defaults(parser=parser)
    return parser


def _add_question(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "question",
        nargs="?",
        metavar="QUESTION",
        help="unset or -: read from standard input; unset on a terminal: an example",
    )
    parser.add_argument("--system", metavar="TEXT", help="system message")


def _add_models(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("models")
    group.add_argument("--demo", action="store_true", help="the demo pair, fetched when missing")
    group.add_argument("--target", metavar="MODEL", help="model id or folder of the large model")
    group.add_argument("--draft", metavar="MODEL", help="model id or folder of the small model")
    add_loading(group)


def add_loading(parser: argparse._ActionsContainer) -> None:
    """Add the options that say how models are loaded, for both models the same."""
    parser.add_argument(
        "--dtype", metavar="NAME", help="such as bfloat16; default: the models' own"
    )
    parser.add_argument(
        "--chat-template-kwargs",
        type=json_object,
        metavar="JSON",
        help="what chat templates are given, such as '{\"enable_thinking\": false}'",
    )
    parser.add_argument(
        "--local-files-only", action="store_true", help="download nothing, fail instead"
    )


def loading_of(args: argparse.Namespace) -> LoadOptions:
    """Return the loading settings that these options set; the demo pair takes none of them."""
    found: LoadOptions = {"local_files_only": args.local_files_only}
    if args.dtype is not None:
        found["dtype"] = args.dtype
    if args.chat_template_kwargs:
        found["chat_template_kwargs"] = args.chat_template_kwargs
    return found


def add_settings(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add the options that stand for SETTINGS, fields of ParseConfig; unset, they are None."""
    group = parser.add_argument_group("how drafts are judged (defaults: those of ParseConfig)")
    group.add_argument(
        "--verdict", choices=get_args(VerdictRule), help="what is compared with the threshold"
    )
    group.add_argument(
        "--calibration", metavar="FILE", help="verdict and threshold, as calibrate wrote them"
    )
    group.add_argument(
        "--cut-at", type=cut_rule, metavar="RULE", help="auto, line, sentence or a number of tokens"
    )
    group.add_argument("--max-prefixes", type=count, metavar="N", help="most prefixes to judge")
    group.add_argument("--layout", dest="judge_layout", choices=get_args(JudgeLayout))
    group.add_argument(
        "--verify-order", choices=get_args(VerifyOrder), help="in compare: all, to show all"
    )
    group.add_argument("--accept-rule", choices=get_args(AcceptRule))
    return group


def _add_call(
    parser: argparse.ArgumentParser, *, temperature: str = "default: the target's own"
) -> None:
    group = parser.add_argument_group("how the answer is written")
    group.add_argument(
        "--max-new-tokens",
        type=count,
        metavar="N",
        default=DEFAULT_MAX_NEW_TOKENS,
        help=f"default: {DEFAULT_MAX_NEW_TOKENS}",
    )
    group.add_argument("--temperature", type=float, metavar="T", help=f"0 is greedy; {temperature}")
    group.add_argument("--top-p", type=float, metavar="P")
    group.add_argument("--top-k", type=int, metavar="K")
    group.add_argument("--seed", type=int, metavar="N")
    group.add_argument(
        "--stop", action="append", metavar="TEXT", help="end before this text; may be repeated"
    )


def json_object(text: str) -> dict[str, Any]:
    """Read names and values."""
    try:
        found = strict_loads(text)
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON object: {error}") from error
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON object")
    return found


def count(text: str) -> int:
    """Read a whole number of at least 1."""
    if not text.isdecimal() or not 1 <= int(text) <= MOST:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 to {MOST}")
    return int(text)


def cut_rule(text: str) -> CutRule | int:
    """Read where prefixes end."""
    if text.isdecimal():
        return count(text)
    for rule in get_args(CutRule):
        if text == rule:
            return cast(CutRule, rule)
    raise argparse.ArgumentTypeError(
        f"{text!r} is none of {', '.join(get_args(CutRule))} or a number of tokens"
    )


def names_in(text: str) -> tuple[str, ...]:
    """Read a list with commas, each name once."""
    return tuple(dict.fromkeys(words_in(text)))


def words_in(text: str) -> tuple[str, ...]:
    """Read a list with commas."""
    names = tuple(word.strip() for word in text.split(",") if word.strip())
    if not names:
        raise argparse.ArgumentTypeError(f"{text!r} names nothing")
    return names


def cut_rules(text: str) -> tuple[CutRule | int, ...]:
    """Read a list of places where prefixes end."""
    return tuple(cut_rule(word) for word in names_in(text))


def share(text: str) -> float:
    """Read a number between 0 and 1."""
    return _number_below(text, 1, "between 0 and 1")


def confidence(text: str) -> float:
    """Read how sure a promise must be: one that is broken as often as kept is none."""
    value = share(text)
    if value < 0.5:
        raise argparse.ArgumentTypeError(f"{text!r} is less sure than a coin: give 0.5 or more")
    return value


def folder(text: str) -> Path:
    """Read where results go; what is empty would be the working directory."""
    if not text.strip():
        raise argparse.ArgumentTypeError("name a folder; . is the one that you are in")
    return Path(text)


def temperature(text: str) -> float:
    """Read how freely the sampled drafts are written."""
    return _number_below(text, math.inf, "above 0")


def _number_below(text: str, top: float, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < top:
        raise argparse.ArgumentTypeError(f"{text!r} is no number {where}")
    return value
