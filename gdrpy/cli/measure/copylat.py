"""``gdrpy copylat``: how long small copies to the GPU and back take, by the mapping and by CUDA."""

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
from gdrpy.cli.measure.distribution import format_us
from gdrpy.cli.measure.latency import COLD, WARM, WAYS, Bench, Latency, evictor_bytes, host_bytes
from gdrpy.cli.output import Output
from gdrpy.cli.sizes import approximate_size, format_size, parse_sizes

if TYPE_CHECKING:
    from gdrpy.cli.options import Commands

#: 4 bytes to 64 KiB, by powers of 2.
DEFAULT_SIZES = [4 << step for step in range(15)]

METHOD = (
    "us a call, made from Python by one thread: the median of the samples, and (their minimum). "
    "The host side is page-locked memory."
)


def add_parser(commands: Commands) -> None:
    """Add ``copylat`` to the command line."""
    parser = options.add_command(
        commands,
        "copylat",
        run,
        summary="latency of small copies, by the mapping and by cuMemcpy",
        description=(
            "Measures how long one call takes that copies a few bytes between page-locked host\n"
            "memory and a region: Mapping.write and Mapping.readinto, which are CPU stores and\n"
            "loads through the mapping, beside cuMemcpyHtoD and cuMemcpyDtoH of cuda.bindings.\n"
            "\n"
            "warm  the same host buffer again and again: it is in the CPU's caches\n"
            "cold  pieces of host memory, in random order, that are not: before every lap over\n"
            "      them a buffer is read and written that has four times the largest cache, and\n"
            "      256M at least. Their page table entries may have to be fetched, too.\n"
            "\n"
            "A warm sample is the mean of a batch of calls, as many as last 50 times as long as\n"
            "an empty sample (up to 64). A cold one is a single call, since the CPU overlaps\n"
            "calls, which would hide the misses. What an empty sample takes, which is the clock\n"
            "and the loop's beginning, is told, and taken off. Calls that warm up do not count.\n"
            "What arrived is compared with what was sent after every lap: the last write, by\n"
            "the driver's own copy, and every read."
        ),
        examples=(
            "gdrpy copylat                         4 bytes to 64 KiB\n"
            "gdrpy copylat --sizes 4,64,4K --plot latency.png\n"
            "gdrpy copylat --backend nvrm --json > copylat.json"
        ),
        exit_status=(
            "0  measured, and the data arrived\n"
            "1  the data that arrived is wrong, or the plot could not be written\n"
            "2  wrong usage, or no backend can be used here"
        ),
    )
    options.add_backend(parser)
    options.add_device(parser)
    parser.add_argument(
        "--sizes",
        type=parse_sizes,
        metavar="SIZE,...",
        default=DEFAULT_SIZES,
        help="sizes to measure (default: 4 bytes to 64K by powers of 2)",
    )
    parser.add_argument(
        "--seconds",
        type=options.seconds,
        default=0.05,
        metavar="S",
        help="time to spend on each figure, at least 20 samples (default: 0.05)",
    )
    plot.add_option(parser, "latency against size")


def run(args: argparse.Namespace, output: Output) -> int:
    """Measure, print, draw; FAILED if the data was wrong."""
    plot.require_matplotlib(args.plot)
    nbytes = max(args.sizes)
    with gdrpy.alloc(nbytes, args.device, backend=args.backend) as region:
        header = gpu_header(args.command_line, args.device, region.cpu.backend)
        header.announce(output)
        hostmemory.require(host_bytes(nbytes), simulated=header.simulated)
        bench = Bench(region, secrets.randbits(32))
        output.line(
            f"an empty sample takes {bench.empty_sample:.0f} ns, which are taken off; cold means "
            f"after a walk over {approximate_size(evictor_bytes())} of memory"
        )
        results = _measure(bench, args, output)

    for cache in (WARM, COLD):
        output.show(_table(cache, [one for one in results if one.cache == cache]))
    output.line(METHOD)
    wrong = [one for one in results if one.difference]
    for one in wrong:
        size = format_size(one.nbytes)
        output.error(f"{one.way} of {size}, {one.cache}: {one.difference}")
    drawn = plot.draw(args.plot, header, output, lambda axes: _paint(axes, results))
    output.finish(
        {
            "header": header.json(),
            "method": METHOD,
            "seconds_a_figure": args.seconds,
            "empty_sample_nanoseconds": bench.empty_sample,
            "evictor_bytes": evictor_bytes(),
            "results": [_json(one) for one in results],
        }
    )
    return OK if drawn and not wrong else FAILED


def _measure(bench: Bench, args: argparse.Namespace, output: Output) -> list[Latency]:
    wanted = [(way, cache, size) for cache in (WARM, COLD) for size in args.sizes for way in WAYS]
    results = []
    with output.progress("copylat", len(wanted)) as begin:
        for way, cache, size in wanted:
            begin(f"{way}, {format_size(size)}, {cache}")
            results.append(bench.measure(way, cache, size, args.seconds))
    return results


def _table(cache: str, results: Sequence[Latency]) -> Table:
    table = Table(title=f"us a call, host memory {cache}", title_justify="left")
    table.add_column("size", justify="right", no_wrap=True)
    for way in WAYS:
        table.add_column(way, justify="right")
    for nbytes, row in groupby(results, lambda one: one.nbytes):
        table.add_row(format_size(nbytes), *map(_cell, row))
    return table


def _cell(one: Latency) -> str:
    if one.difference:
        return "[bold red]WRONG DATA[/]"
    return f"{format_us(one.samples.median)} [dim]({format_us(one.samples.minimum)})[/]"


def _json(one: Latency) -> dict[str, Any]:
    return {
        "way": one.way,
        "cache": one.cache,
        "size": one.nbytes,
        "calls_a_sample": one.calls,
        "nanoseconds": one.samples.json(),
        "verified": one.difference is None,
        "difference": asdict(one.difference) if one.difference else None,
    }


def _paint(axes: Any, results: Sequence[Latency]) -> None:
    for color, way in enumerate(WAYS):
        for cache, style in ((WARM, "o-"), (COLD, "s--")):
            line = [one for one in results if (one.way, one.cache) == (way, cache)]
            sizes = [one.nbytes for one in line]
            medians = [one.samples.median / 1e3 for one in line]
            axes.plot(sizes, medians, style, color=f"C{color}", label=f"{way}, {cache}")
    plot.by_size(axes, (one.nbytes for one in results), "us a call, median")
