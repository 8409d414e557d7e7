"""``gdrpy copybw``: how fast bytes get to the GPU and back, by the mapping and by DMA."""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich.table import Table

import gdrpy
from gdrpy.cli import hostmemory, options
from gdrpy.cli.exits import FAILED, OK
from gdrpy.cli.header import gpu_header
from gdrpy.cli.measure import plot
from gdrpy.cli.measure.bandwidth import WAYS, Bench, Measurement
from gdrpy.cli.output import Output
from gdrpy.cli.sizes import format_size, parse_size, parse_sizes

if TYPE_CHECKING:
    from gdrpy.cli.options import Commands

#: 4 KiB to 64 MiB, by powers of 4.
DEFAULT_SWEEP = [4096 << 2 * step for step in range(8)]

#: Host memory that the buffers and what they are compared with take, in times the size.
_HOST_COPIES = 6

METHOD = (
    "GB/s are 1e9 bytes a second: the median of warm samples, and (lowest-highest). Calls are made "
    "from Python by one thread; the host side is page-locked memory."
)


def add_parser(commands: Commands) -> None:
    """Add ``copybw`` to the command line."""
    parser = options.add_command(
        commands,
        "copybw",
        run,
        summary="copy bandwidth through the mapping and by DMA",
        description=(
            "Measures copies between page-locked host memory and a region, each way, through the\n"
            "CPU mapping (Mapping.write, Mapping.readinto) and by the GPU's DMA engine\n"
            "(cuMemcpyAsync and a wait). Samples are warm; the table shows the median and the\n"
            "spread, and the data is compared after each measurement. GB/s are 1e9 bytes/s.\n"
            "Reads through the mapping of a real GPU are slow (about 1 GB/s): that is the bus."
        ),
        examples=(
            "gdrpy copybw                          sweep 4K to 64M\n"
            "gdrpy copybw --size 1M\n"
            "gdrpy copybw --sweep 64,4K,1M --plot bandwidth.png\n"
            "gdrpy copybw --size 16M --json > copybw.json"
        ),
        exit_status=(
            "0  measured, and the data arrived\n"
            "1  the data that arrived is wrong, or the plot could not be written\n"
            "2  wrong usage, or no backend can be used here"
        ),
    )
    options.add_backend(parser)
    options.add_device(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--size", type=parse_size, help="measure this size only")
    which.add_argument(
        "--sweep",
        type=parse_sizes,
        metavar="SIZE,...",
        default=DEFAULT_SWEEP,
        nargs="?",
        const=DEFAULT_SWEEP,
        help="sizes to measure (default: 4K to 64M by powers of 4)",
    )
    parser.add_argument(
        "--seconds",
        type=options.seconds,
        default=0.2,
        metavar="S",
        help="time to spend on each figure, at least three samples (default: 0.2)",
    )
    parser.add_argument("--no-verify", action="store_true", help="do not compare the data")
    plot.add_option(parser, "bandwidth against size")


def run(args: argparse.Namespace, output: Output) -> int:
    """Measure, print, draw; FAILED if the data was wrong."""
    plot.require_matplotlib(args.plot)
    sizes = [args.size] if args.size else args.sweep
    with gdrpy.alloc(max(sizes), args.device, backend=args.backend) as region:
        header = gpu_header(args.command_line, args.device, region.cpu.backend)
        header.announce(output)
        copies = _HOST_COPIES + bool(header.simulated)
        hostmemory.require(region.nbytes * copies, simulated=header.simulated)
        bench = Bench(region, secrets.randbits(32))
        results = _measure(bench, sizes, args, output)

    output.show(_table(results))
    output.line(METHOD)
    wrong = [result for result in results if result.difference]
    for result in wrong:
        output.error(f"{result.way} of {format_size(result.nbytes)}: {result.difference}")
    drawn = plot.draw(args.plot, header, output, lambda axes: _paint(axes, results))
    output.finish(
        {
            "header": header.json(),
            "method": METHOD,
            "seconds_a_figure": args.seconds,
            "results": [_json(result) for result in results],
        }
    )
    return OK if drawn and not wrong else FAILED


def _measure(
    bench: Bench, sizes: Sequence[int], args: argparse.Namespace, output: Output
) -> list[Measurement]:
    results = []
    with output.progress("copybw", len(sizes) * len(WAYS)) as begin:
        for size in sizes:
            for way in WAYS:
                begin(f"{way}, {format_size(size)}")
                results.append(bench.measure(way, size, args.seconds, verify=not args.no_verify))
    return results


def _table(results: Sequence[Measurement]) -> Table:
    table = Table(title="Bandwidth in GB/s", title_justify="left")
    table.add_column("size", justify="right", no_wrap=True)
    for way in WAYS:
        table.add_column(way, justify="right")
    for nbytes, row in groupby(results, lambda result: result.nbytes):
        table.add_row(format_size(nbytes), *map(_cell, row))
    return table


def _cell(result: Measurement) -> str:
    if result.verified is False:
        return "[bold red]WRONG DATA[/]"
    return f"{result.median:.3g} [dim]({result.lowest:.3g}-{result.highest:.3g})[/]"


def _json(result: Measurement) -> dict[str, Any]:
    return {
        "way": result.way,
        "size": result.nbytes,
        "gigabytes_per_second": {
            "median": result.median,
            "lowest": result.lowest,
            "highest": result.highest,
        },
        "copies_a_sample": result.copies,
        "seconds_a_copy": result.samples,
        "verified": result.verified,
        "difference": asdict(result.difference) if result.difference else None,
    }


def _paint(axes: Any, results: Sequence[Measurement]) -> None:
    for way in WAYS:
        line = [result for result in results if result.way == way]
        sizes, medians = [one.nbytes for one in line], [one.median for one in line]
        axes.plot(sizes, medians, marker="o", label=way)
    plot.by_size(axes, (result.nbytes for result in results), "GB/s, median")
