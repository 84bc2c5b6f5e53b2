"""Measurements: how much faster, and at what price."""

from __future__ import annotations

import sys
from collections.abc import Sequence

USAGE = """usage: python -m parse_engine bench MEASUREMENT [options]

measurements:
  run      speed, accuracy and acceptance of PARSE and other methods on your models and tasks
  report   draw the report of a run again
  verify   what judging costs, beside plain passes of the same size

Each takes --help."""


def main(argv: Sequence[str]) -> int:
    """Run one measurement; returns the exit code of the process."""
    name, rest = (argv[0], argv[1:]) if argv else ("--help", [])
    if name == "run":
        from parse_engine.bench import run

        return run.main(rest)
    if name == "report":
        from parse_engine.bench import report

        return report.main(rest)
    if name == "verify":
        from parse_engine.bench import verify

        return verify.main(rest)
    asked = name in ("-h", "--help")
    print(USAGE, file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2
