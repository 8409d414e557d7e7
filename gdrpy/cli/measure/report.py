"""The region, the results and the report of the commands that measure."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, NamedTuple

from rich.text import Text

import gdrpy
from gdrpy import Region
from gdrpy.cli import hostmemory, options
from gdrpy.cli.data import Difference
from gdrpy.cli.exits import FAILED, INTERRUPTED, OK
from gdrpy.cli.header import gpu_header
from gdrpy.cli.measure.plot import Plot, draw
from gdrpy.cli.measure.timing import Samples
from gdrpy.cli.options import CommandParser
from gdrpy.cli.output import CELL_EDGES, Output, table, table_width
from gdrpy.cli.sizes import format_size, parse_sizes
from gdrpy.memory import engine

WARM, COLD = "warm", "cold"
#: What the names of the ways by the copy engine begin with.
ENGINE = "engine"

#: What a table shows of copies: the figure, and its spread.
Cell = tuple[str, str]


@dataclass(frozen=True)
class Copies:
    """Copies of one size on one path, in nanoseconds a copy.

    ``difference`` describes wrong bytes that arrived. ``cache`` says whether the host memory was in
    the CPU's caches, if that matters.
    """

    way: str
    nbytes: int
    samples: Samples
    difference: Difference | None
    cache: str = ""

    def json(self) -> dict[str, Any]:
        """The copies and the outcome of the comparison as plain values."""
        found = self.difference
        checked = {"verified": not found, "difference": asdict(found) if found else None}
        return {"way": self.way, "size": self.nbytes, **checked}

    def __str__(self) -> str:
        return f"{self.way} of {format_size(self.nbytes)}, {self.cache}".removesuffix(", ")


def add_options(parser: CommandParser, sizes: list[int], about: str, seconds: str) -> None:
    """The options of a command that measures copies of several sizes, but ``--plot``."""
    options.add_gpu(parser)
    about = f"sizes to measure (default: {about})"
    parser.add_argument("--sizes", type=parse_sizes, metavar="SIZE,...", default=sizes, help=about)
    parser.option("--seconds", options.seconds, "S", "seconds for each figure", seconds)


class CopyTable(NamedTuple):
    """A table of copies: its title, the titles of its ways, and the state of the caches."""

    title: str
    ways: Mapping[str, str]
    cache: str = ""


class Report:
    """The report of a run on a GPU, whose header is printed first."""

    def __init__(self, args: argparse.Namespace, output: Output, backend: str) -> None:
        self.header = gpu_header(args.command_line, args.device, backend)
        self.header.announce(output)
        self._plot = args.plot if "plot" in args else None
        self._output = output
        #: Whether Ctrl-C ended the measurement early.
        self.interrupted = False

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Have Ctrl-C end the measurement, and not the report on what was measured before."""
        try:
            yield
        except KeyboardInterrupt:
            self.interrupted = True

    def broken_off(self, **fields: Any) -> int:
        """Say that Ctrl-C ended the measurement too early, also as JSON; the exit status."""
        self._output.warn("Ctrl-C came before there was anything to show")
        self._output.finish({"header": self.header.json(), "interrupted": True, **fields})
        return INTERRUPTED

    def finish_copies(
        self,
        method: str,
        shown: Plot,
        copies: Sequence[Copies],
        tables: Iterable[CopyTable],
        cell: Callable[[Copies], Cell],
        absent: str | None,
        **fields: Any,
    ) -> int:
        """Show copies in tables, and why the copy engine is absent; then as :meth:`finish`."""
        if not copies:
            return self.broken_off(results=[])
        for title, ways, cache in tables:
            found = [one for one in copies if one.way in ways and one.cache == cache]
            if found:
                show_by_size(self._output, title, ways, found, cell)
        show_absent(self._output, absent)
        return self.finish(method, shown, copies, engine_not_measured=absent, **fields)

    def finish(self, method: str, shown: Plot, copies: Sequence[Copies] = (), **fields: Any) -> int:
        """Print the method and wrong copies, draw the plot, print the JSON; the exit status.

        An interrupted measurement is not plotted.
        """
        self._output.prose(method)
        wrong = [f"{one}: {one.difference}" for one in copies if one.difference]
        for problem in wrong:
            self._output.error(problem)
        drawn = self.interrupted or draw(self._plot, shown, self.header, self._output)
        about = {"header": self.header.json(), "interrupted": self.interrupted, "method": method}
        self._output.finish({**about, **fields})
        if wrong or not drawn:
            return FAILED
        if self.interrupted:
            unmade = ", and no plot was made" if self._plot else ""
            self._output.warn(f"Ctrl-C came before all was measured{unmade}")
            return INTERRUPTED
        return OK


@contextmanager
def measured_region(
    args: argparse.Namespace, output: Output, nbytes: int, host_bytes: int = 0
) -> Iterator[tuple[Region, Report]]:
    """A region to measure, and the report on it.

    Raises CommandError if the host lacks ``host_bytes`` of memory.
    """
    with gdrpy.alloc(nbytes, args.device, backend=args.backend) as region:
        report = Report(args, output, region.cpu.backend)
        simulated = report.header.simulated
        hostmemory.require(host_bytes + nbytes * bool(simulated), simulated=simulated)
        yield region, report


def ways_here(ways: Iterable[str], device: int) -> tuple[list[str], str | None]:
    """The ways that a device has, and the reason if it has none by the copy engine."""
    status = engine.status(device)
    here = [way for way in ways if status.usable or not way.startswith(ENGINE)]
    return here, None if status.usable else status.reason


def show_absent(output: Output, reason: str | None) -> None:
    """Print why the copy engine was not measured, if it was not."""
    if reason:
        output.prose(f"engine: not measured: {reason}")


def show_by_size(
    output: Output,
    title: str,
    ways: Mapping[str, str],
    results: Sequence[Copies],
    cell: Callable[[Copies], Cell],
) -> None:
    """Show a row for each size, and a column for each of the ways, which have titles.

    All spreads are beside their figures; or, where that is too wide, below them; or left out.
    """
    cells = {id(one): cell(one) for one in results}
    sizes = table_width({"size": [format_size(one.nbytes) for one in results]})
    room = (output.width() - sizes) // len(ways) - CELL_EDGES
    spreads = all(len(spread) <= room for _, spread in cells.values())
    beside = all(len(f"{figure} {spread}") <= room for figure, spread in cells.values())

    def shown(one: Copies) -> Text:
        if one.difference:
            return Text("WRONG DATA", "bold red")
        figure, spread = cells[id(one)]
        between = " " if beside else "\n"
        return Text.assemble(figure, between, (spread, "dim")) if spreads else Text(figure)

    rows = [
        [format_size(nbytes), *map(shown, row)]
        for nbytes, row in groupby(results, lambda one: one.nbytes)
    ]
    columns = ["size", *ways.values()]
    output.show(table(columns, rows, title, right=columns, whole=["size"]))
    if not spreads:
        output.line("a wider terminal, or --json, shows the spread as well")
