"""Run the command line: ``python -m parse_engine``."""

from __future__ import annotations

import sys

from parse_engine.cli import main

if __name__ == "__main__":
    sys.exit(main())
