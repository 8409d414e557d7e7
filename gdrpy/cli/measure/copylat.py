"""Measures how long one call takes that copies a few bytes between page-locked host memory
and a region: Mapping.write and Mapping.readinto, which are CPU stores and loads
through the mapping, beside cuMemcpyHtoD and cuMemcpyDtoH of cuda.bindings.

warm  the same host buffer in every call: it is in the CPU's caches
cold  pieces of host memory in random order that are in no cache: before every lap over
      them a buffer is read and written that has four times the size of the largest
      cache, at least 256M. Their page table entries may be out of the caches, too.

A warm sample is the mean of a batch of calls that lasts 50 times as long as an empty
sample (up to 64 calls). A cold sample is a single call: the CPU overlaps calls, which
would hide the misses. The time of an empty sample (the clock and the loop's beginning)
is printed, and subtracted. Calls that warm up do not count. After every lap the data
is compared: the last write, by the driver's own copy, and every read.

examples:
  gdrpy copylat                         4 bytes to 64 KiB
  gdrpy copylat --sizes 4,64,4K --plot latency.png
  gdrpy copylat --backend nvrm --json > copylat.json

exit status:
  0  measured, and the data arrived
  1  wrong data arrived, or the plot could not be written
  2  wrong usage, or no backend can be used here
"""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Sequence
from typing import Any

from gdrpy.cli import options
from gdrpy.cli.measure import plot, plotstyle
from gdrpy.cli.measure.distribution import format_us
from gdrpy.cli.measure.latency import WAYS, LatencyBench, evictor_bytes, host_bytes
from gdrpy.cli.measure.plot import Plot
from gdrpy.cli.measure.report import COLD, WARM, Cell, Copies, measured_region, show_by_size
from gdrpy.cli.options import CommandParser
from gdrpy.cli.output import Output
from gdrpy.cli.sizes import approximate_size, format_size, parse_sizes

#: 4 bytes to 64 KiB, by powers of 2.
DEFAULT_SIZES = [4 << step for step in range(15)]

#: The ways as titles of narrow columns.
TITLES = {way: way.replace(".", "\n.").replace("cuMemcpy", "cuMemcpy\n") for way in WAYS}

TITLE = "Time of a small copy between page-locked host memory and GPU memory"

METHOD = (
    "us a call, made from Python by one thread: the median of the samples, and (their minimum). "
    "The host side is page-locked memory."
)


def add_arguments(parser: CommandParser) -> None:
    options.add_gpu(parser)
    parser.add_argument(
        "--sizes",
        type=parse_sizes,
        metavar="SIZE,...",
        default=DEFAULT_SIZES,
        help="sizes to measure (default: 4 bytes to 64K by powers of 2)",
    )
    about = "seconds for each figure, at least 20 samples"
    parser.option("--seconds", options.seconds, "S", about, "0.05")
    plot.add_option(parser, "latency against size")


def run(args: argparse.Namespace, output: Output) -> int:
    plot.require_matplotlib(args.plot)
    most = max(args.sizes)
    with measured_region(args, output, most, host_bytes(most)) as (region, report):
        bench = LatencyBench(region, secrets.randbits(32))
        output.prose(
            f"an empty sample takes {bench.empty_sample:.0f} ns, which are subtracted; cold means "
            f"after a walk over {approximate_size(evictor_bytes())} of memory"
        )
        results = _measure(bench, args, output)

    for cache in (WARM, COLD):
        shown = [one for one in results if one.cache == cache]
        title = f"us a call, host memory {cache}"
        show_by_size(output, title, TITLES, shown, _cell)
    return report.finish(
        METHOD,
        Plot(TITLE, lambda axes: _paint(axes, results)),
        results,
        seconds_a_figure=args.seconds,
        empty_sample_nanoseconds=bench.empty_sample,
        evictor_bytes=evictor_bytes(),
        results=[_json(one) for one in results],
    )


def _measure(bench: LatencyBench, args: argparse.Namespace, output: Output) -> list[Copies]:
    wanted = [(way, cache, size) for cache in (WARM, COLD) for size in args.sizes for way in WAYS]
    results = []
    with output.progress("copylat", len(wanted)) as begin:
        for way, cache, size in wanted:
            begin(f"{way}, {format_size(size)}, {cache}")
            results.append(bench.measure(way, cache, size, args.seconds))
    return results


def _cell(one: Copies) -> Cell:
    return format_us(one.samples.median), f"({format_us(one.samples.minimum)})"


def _json(one: Copies) -> dict[str, Any]:
    return {
        "way": one.way,
        "cache": one.cache,
        "size": one.nbytes,
        "calls_a_sample": one.samples.calls,
        "nanoseconds": one.samples.json(),
        **one.json(),
    }


def _paint(axes: Any, results: Sequence[Copies]) -> None:
    for way, colour, marker in zip(WAYS, plotstyle.COLOURS, plotstyle.MARKERS, strict=False):
        for cache, style in ((WARM, "-"), (COLD, "--")):
            line = [one for one in results if (one.way, one.cache) == (way, cache)]
            sizes = [one.nbytes for one in line]
            medians = [one.samples.median / 1e3 for one in line]
            label = f"{way}, {cache}"
            axes.plot(sizes, medians, linestyle=style, marker=marker, color=colour, label=label)
    plotstyle.size_axis(axes, sizes)
    plotstyle.time_axis(axes, "y", "time of a call, median")
