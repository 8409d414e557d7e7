"""Turns a result of run.py into Markdown tables, so that no figure is typed by hand."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import plots
from page import page
from publishing import NotPublishable, markdown


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0, or 2 for a result that is not to be published."""
    parser = argparse.ArgumentParser(prog="benchmarks/report.py", description=__doc__)
    parser.add_argument("result", type=Path)
    parser.add_argument(
        "--only", metavar="TITLE", action="append", default=[], help="tables that begin so"
    )
    parser.add_argument(
        "--page", metavar="FILE", type=Path, help="write docs/performance.md there, and the plots"
    )
    options = parser.parse_args(arguments)
    result = json.loads(options.result.read_text())
    try:
        if options.page:
            options.page.write_text(page(result, options.result, options.page))
            plots.draw_if_possible(result, options.result)
        else:
            print(markdown(result, options.only), end="")
    except NotPublishable as reason:
        print(f"{options.result.name} is not to be published: {reason}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
