"""The progress, the arguments and the errors of the commands that save and restore regions."""

from __future__ import annotations

import argparse
import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gdrpy.broker.client.arguments import as_name
from gdrpy.cli import options
from gdrpy.cli.exits import FAILED, CommandError
from gdrpy.cli.options import CommandParser
from gdrpy.cli.output import Output
from gdrpy.cli.sizes import approximate_size, counted
from gdrpy.errors import Error


class Copied:
    """The regions that were copied, their bytes, and the seconds that it took."""

    def __init__(self, show: Any) -> None:
        self.names: list[str] = []
        self._show = show
        self._begun = time.monotonic()
        self._nbytes, self._seconds = 0, 0.0

    def tell(self, done: int, total: int) -> None:
        """Show and note the progress."""
        self._nbytes, self._seconds = done, time.monotonic() - self._begun
        self._show(done, total)

    def words(self) -> str:
        """The result in words."""
        regions = counted(len(self.names), "region")
        if not self._nbytes:
            return regions
        speed = approximate_size(int(self._nbytes / max(self._seconds, 1e-9)))
        size = approximate_size(self._nbytes)
        return f"{regions} of {size} in {self._seconds:.1f} s ({speed}/s)"

    def told(self) -> dict[str, Any]:
        """The result for JSON."""
        return {"regions": self.names, "nbytes": self._nbytes, "seconds": self._seconds}


def add_names(parser: CommandParser, about: str) -> None:
    """The names of regions."""
    parser.add_argument(
        "names", nargs="*", type=options.checked(as_name), metavar="NAME", help=about
    )


@contextmanager
def copying(command: str, args: argparse.Namespace, output: Output) -> Iterator[Copied]:
    """The progress of a copy, which may open a file for each region. Raises CommandError for what
    the files refuse.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with output.copying(os.path.basename(os.path.abspath(args.folder))) as show:  # noqa: PTH100, PTH119
        try:
            yield Copied(show)
        except Error:
            raise
        except OSError as error:
            why = error.strerror or str(error)
            if not why.startswith(f"{command}: "):
                why = f"{command}: {error.filename or args.folder}: {why}"
            raise CommandError(why, FAILED) from error
        except ValueError as error:
            raise CommandError(str(error), FAILED) from error
