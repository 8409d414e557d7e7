"""Turns a result of run.py into Markdown tables, so that no figure is typed by hand."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import plots
from page import page
from publishing import NoSuchTable, NotPublishable, markdown
from summary import summary

#: Fields that every result has.
NEEDED = ("header", "modules", "quick", "measurements", "absent", "goals")


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0, or 2 for a file that is not a result, or not publishable."""
    parser = argparse.ArgumentParser(prog="benchmarks/report.py", description=__doc__)
    parser.add_argument("result", type=Path)
    parser.add_argument(
        "--only",
        metavar="TITLE",
        action="append",
        default=[],
        help="only tables whose titles begin with TITLE",
    )
    parser.add_argument(
        "--page", metavar="FILE", type=Path, help="write docs/performance.md there, and the plots"
    )
    parser.add_argument(
        "--summary",
        metavar="FILE",
        type=Path,
        help="print a few figures beside the best other way, for the page FILE",
    )
    options = parser.parse_args(arguments)
    try:
        result = read(options.result)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else f"no result of run.py ({error})"
        print(f"{options.result}: {why}", file=sys.stderr)
        return 2
    try:
        if options.page:
            options.page.write_text(page(result, options.result, options.page))
            plots.draw_if_possible(result, options.result)
        elif options.summary:
            print(summary(result, options.result, options.summary))
        else:
            print(markdown(result, options.only), end="")
    except NoSuchTable as error:
        print(f"{options.result.name}: {error}", file=sys.stderr)
        return 2
    except NotPublishable as reason:
        print(f"{options.result.name} is not to be published: {reason}", file=sys.stderr)
        return 2
    return 0


def read(path: Path) -> dict[str, Any]:
    """The result in a file. Raises OSError, and ValueError if the file is not a result."""
    result = json.loads(path.read_text())
    if not isinstance(result, dict):
        raise ValueError("it holds no fields")
    missing = [name for name in NEEDED if name not in result]
    if missing:
        raise ValueError(f"it has no {', '.join(missing)}")
    return result


if __name__ == "__main__":
    sys.exit(main())
