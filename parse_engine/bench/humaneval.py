"""PARSE beside the target alone on HumanEval items: ``python -m parse_engine bench humaneval``."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from parse_engine.bench.code import CodeTask
from parse_engine.bench.common import add_models, machine, open_engine
from parse_engine.config import ParseConfig


def main(argv: Sequence[str] | None = None) -> int:
    """Answer each item with PARSE and with the target alone, in turn, and compare."""
    parser = argparse.ArgumentParser(
        prog="python -m parse_engine bench humaneval", description=__doc__
    )
    parser.add_argument("file", type=Path, help="HumanEval items, one JSON object a line")
    add_models(parser)
    parser.add_argument("--limit", type=int, default=12, help="number of items")
    parser.add_argument("--max-new-tokens", type=int, default=320)
    parser.add_argument("--threshold", type=float, help="default: ParseConfig's")
    parser.add_argument("--verify-order", choices=("whole_first", "all"), default="whole_first")
    parser.add_argument("--out", type=Path, help="write one JSON object an item to this file")
    args = parser.parse_args(argv)
    from tqdm import tqdm

    config = ParseConfig(threshold=args.threshold, verify_order=args.verify_order)
    engine = open_engine(parser, args, config)
    lines = args.file.read_text(encoding="utf-8").splitlines()[: args.limit]
    tasks = [CodeTask.from_json(json.loads(line)) for line in lines]
    for mode in ("target", "draft"):  # warm up
        engine.generate(tasks[0].messages, max_new_tokens=4, mode=mode)
    rows = []
    for task in tqdm(tasks, file=sys.stderr, disable=not sys.stderr.isatty()):
        rows.append(compare(engine, task, args.max_new_tokens))
        if args.out:
            with args.out.open("a", encoding="utf-8") as out:
                out.write(json.dumps(rows[-1]) + "\n")
    print(report(rows, config))
    return 0


def compare(engine: Any, task: CodeTask, limit: int) -> dict[str, Any]:
    """Answer one item both ways, without temperature."""
    row: dict[str, Any] = {"item": task.name}
    for mode in ("parse", "target"):
        start = time.perf_counter()
        answer = engine.generate(task.messages, max_new_tokens=limit, temperature=0, mode=mode)
        row[mode] = {
            "seconds": time.perf_counter() - start,
            "passed": task.passed_by(answer.text),
            "tokens": answer.usage.completion_tokens,
            "finish_reason": answer.finish_reason,
            "text": answer.text,
            "stats": answer.stats.as_dict(),
        }
        if answer.verdicts is not None:
            row["verdicts"] = {
                "token_ends": answer.verdicts.token_ends,
                "verdict": answer.verdicts.verdict,
                "p_correct": answer.verdicts.p_correct,
                "min_logprob": answer.verdicts.min_logprob,
            }
            row["draft"] = {
                "text": answer.draft_text,
                "passed": task.passed_by(answer.draft_text),
            }
    return row


def report(rows: Sequence[dict[str, Any]], config: ParseConfig) -> str:
    """Return a Markdown table of the items and a line of totals."""
    lines = [
        "| item | drafted | accepted | verdict | rewritten | PARSE s | target s | ratio "
        "| PARSE | target |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    ratios = []
    for row in rows:
        stats, ours, alone = row["parse"]["stats"], row["parse"], row["target"]
        ratios.append(alone["seconds"] / ours["seconds"])
        verdict = "-" if stats["full_verdict"] is None else f"{stats['full_verdict']:.2f}"
        lines.append(
            f"| {row['item']} | {stats['drafted_tokens']} | {stats['accepted_tokens']} | {verdict} "
            f"| {stats['regenerated_tokens']} | {ours['seconds']:.1f} | {alone['seconds']:.1f} "
            f"| {ratios[-1]:.2f} | {_mark(ours)} | {_mark(alone)} |"
        )
    total = sum(r["target"]["seconds"] for r in rows) / sum(r["parse"]["seconds"] for r in rows)
    solved = [sum(row[mode]["passed"] for row in rows) for mode in ("parse", "target")]
    lines += [
        "",
        f"{len(rows)} items, threshold {config.acceptance.threshold}, {config.verify_order}: "
        f"median ratio {statistics.median(ratios):.2f}, ratio of the sums {total:.2f}; solved "
        f"by PARSE {solved[0]}, by the target alone {solved[1]}. PARSE is not lossless.",
        machine(),
    ]
    return "\n".join(lines)


def _mark(answer: dict[str, Any]) -> str:
    return "solved" if answer["passed"] else "failed"
