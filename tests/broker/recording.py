"""The command line of what presses a broker: how much, from which seed, and where to record it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main(
    description: str | None, what: str, default: int, run: Callable[[int, int], dict[str, Any]]
) -> None:
    """Press it, print what was done, and keep that if asked to."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(f"--{what}", dest="amount", type=int, default=default)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where to write what was done")
    options = parser.parse_args()
    report = {"command": " ".join(sys.argv[1:]), **run(options.amount, options.seed)}
    text = json.dumps(report, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
