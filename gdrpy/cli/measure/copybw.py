"""Measures copies between page-locked host memory and a region, in both directions, through
the CPU mapping (Mapping.write, Mapping.readinto), by CUDA's DMA (cuMemcpyAsync and a wait)
and, where it can be used, by the GPU's copy engine without CUDA (via="engine"), for which
the host memory is registered instead. Samples are warm; the tables show the median and the
spread, and the data is compared after each measurement. GB/s are 1e9 bytes/s.
Reads through the mapping of a real GPU are slow (about 1 GB/s): the bus limits them.

examples:
  gdrpy copybw                          # 4 KiB to 64 MiB
  gdrpy copybw --sizes 1M
  gdrpy copybw --sizes 64,4K,1M --plot bandwidth.png
  gdrpy copybw --sizes 16M --json > copybw.json

exit status:
  0    measured, and the data arrived
  1    wrong data arrived, or the plot could not be written
  2    wrong usage, or no backend can be used here
  130  ended by Ctrl-C; what was measured until then is shown
"""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np

import gdrpy
from gdrpy import Region
from gdrpy.cli.data import Bytes, Noise, arrived, prepare
from gdrpy.cli.measure import plot, plotstyle
from gdrpy.cli.measure.plot import Plot
from gdrpy.cli.measure.report import (
    ENGINE,
    Cell,
    Copies,
    CopyTable,
    add_options,
    measured_region,
    ways_here,
)
from gdrpy.cli.measure.timing import Calls, sample
from gdrpy.cli.options import CommandParser
from gdrpy.cli.output import Output
from gdrpy.cli.sizes import format_size

#: The paths, in the order in which they are measured; the last two where the device has them.
WAYS = (
    "mapping write",
    "mapping read",
    "DMA write",
    "DMA read",
    f"{ENGINE} write",
    f"{ENGINE} read",
)
#: 4 KiB to 64 MiB, by powers of 4.
DEFAULT_SIZES = [4096 << 2 * step for step in range(8)]

#: Host memory for the buffers and their comparison, in multiples of the size.
_HOST_COPIES = 7

TITLE = "Bandwidth of copies between page-locked host memory and GPU memory"

METHOD = (
    "GB/s are 1e9 bytes a second: the median of warm samples, and (lowest-highest). Calls are made "
    "from Python by one thread; the host side is page-locked memory, or registered memory for the "
    "engine."
)


def add_arguments(parser: CommandParser) -> None:
    add_options(parser, DEFAULT_SIZES, "4K to 64M by powers of 4", "0.2")
    plot.add_option(parser, "bandwidth against size")


def run(args: argparse.Namespace, output: Output) -> int:
    most = max(args.sizes)
    ways, absent = ways_here(WAYS, args.device)
    with measured_region(args, output, most, most * _HOST_COPIES) as (region, report):
        bench = BandwidthBench(region, secrets.randbits(32))
        results: list[Copies] = []
        steps = len(args.sizes) * len(ways)
        with report.measuring(), output.progress("copybw", steps) as begin:
            for nbytes in args.sizes:
                for way in ways:
                    begin(f"{way}, {format_size(nbytes)}")
                    results.append(bench.measure(way, nbytes, args.seconds))

    return report.finish_copies(
        METHOD,
        Plot(TITLE, lambda axes: _paint(axes, results)),
        results,
        [
            CopyTable(
                f"GB/s, {direction}s",
                {way: way.partition(" ")[0] for way in ways if way.endswith(direction)},
            )
            for direction in ("write", "read")
        ],
        _cell,
        absent,
        seconds_a_figure=args.seconds,
        results=[_json(result) for result in results],
    )


class BandwidthBench:
    """A region, and host buffers of the same size to copy between: page-locked, and registered."""

    def __init__(self, region: Region, seed: int) -> None:
        assert region.device is not None
        self._region = region
        self._data = Noise(seed).bytes(region.nbytes)
        self._page_locked: Bytes = gdrpy.page_locked(region.nbytes, region.device).numpy()
        self._registered: Bytes = np.zeros(region.nbytes, np.uint8)
        self._registration = gdrpy.register(self._registered)

    def measure(self, way: str, nbytes: int, seconds: float) -> Copies:
        """Measure one of WAYS for ``nbytes`` bytes."""
        path, _, direction = way.partition(" ")
        region = self._region
        host = (self._registered if path == ENGINE else self._page_locked)[:nbytes]
        copy = {
            "mapping write": Calls(region.cpu.write, [host]),
            "mapping read": Calls(region.cpu.readinto, [host]),
            "DMA write": Calls(region.write, [host], [0], ["dma"]),
            "DMA read": Calls(region.readinto, [host], [0], ["dma"]),
            f"{ENGINE} write": Calls(region.write, [host], [0], ["engine"]),
            f"{ENGINE} read": Calls(region.readinto, [host], [0], ["engine"]),
        }[way]
        writes = direction == "write"
        # Each way has its own bytes: those of an earlier way do not pass for a copy.
        data = self._data[:nbytes] ^ np.uint8(0x11 * (1 + WAYS.index(way)))
        prepare(region, host, data, writes=writes)
        samples = sample(copy, seconds)
        return Copies(way, nbytes, samples, arrived(region, host, data, writes=writes))


def rates(result: Copies) -> dict[str, float]:
    """GB/s (1e9 bytes) of the median sample, the slowest and the fastest."""
    samples = result.samples
    times = {"median": samples.median, "lowest": samples.maximum, "highest": samples.minimum}
    return {name: result.nbytes / (time / 1e9) / 1e9 for name, time in times.items()}


def _cell(result: Copies) -> Cell:
    rate = rates(result)
    return f"{rate['median']:.3g}", f"({rate['lowest']:.3g}-{rate['highest']:.3g})"


def _json(result: Copies) -> dict[str, Any]:
    return {
        **result.json(),
        "gigabytes_per_second": rates(result),
        "copies_a_sample": result.samples.calls,
        "seconds_a_copy": [time / 1e9 for time in result.samples.values],
    }


def _paint(axes: Any, results: Sequence[Copies]) -> None:
    for way in dict.fromkeys(result.way for result in results):
        line = [result for result in results if result.way == way]
        sizes, medians = [one.nbytes for one in line], [rates(one)["median"] for one in line]
        axes.plot(sizes, medians, label=way, clip_on=False)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("GB/s, median")
    plotstyle.size_axis(axes, sizes)
