"""Measures how long one call takes that copies a few bytes between page-locked host memory
and a region: Mapping.write and Mapping.readinto, which are CPU stores and loads
through the mapping, beside cuMemcpyHtoD and cuMemcpyDtoH of cuda.bindings and, where it can
be used, the GPU's copy engine without CUDA (Region.write and Region.readinto with
via="engine"), for which the host memory is registered instead.

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
  gdrpy copylat                         # 4 bytes to 64 KiB
  gdrpy copylat --sizes 4,64,4K --plot latency.png
  gdrpy copylat --backend nvrm --json > copylat.json

exit status:
  0    measured, and the data arrived
  1    wrong data arrived, or the plot could not be written
  2    wrong usage, or no backend can be used here
  130  ended by Ctrl-C; what was measured until then is shown
"""

from __future__ import annotations

import argparse
import re
import secrets
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gdrpy
from gdrpy import Region, cuda
from gdrpy.cli.data import Bytes, Difference, Noise, difference, gpu_get, gpu_put
from gdrpy.cli.measure import plot, plotstyle
from gdrpy.cli.measure.distribution import format_us
from gdrpy.cli.measure.plot import Plot
from gdrpy.cli.measure.report import (
    COLD,
    ENGINE,
    WARM,
    Cell,
    Copies,
    CopyTable,
    add_options,
    measured_region,
    ways_here,
)
from gdrpy.cli.measure.timing import Calls, Samples, calls_for, clock, undisturbed
from gdrpy.cli.options import CommandParser
from gdrpy.cli.output import Output
from gdrpy.cli.sizes import approximate_size, format_size

#: The calls, in the order in which they are measured, and whether they write to the GPU; the last
#: two where the device has them.
WAYS = {
    "Mapping.write": True,
    "Mapping.readinto": False,
    "cuMemcpyHtoD": True,
    "cuMemcpyDtoH": False,
    f"{ENGINE} write": True,
    f"{ENGINE} read": False,
}

#: A warm sample lasts this many times as long as an empty one, or has the most calls.
_EMPTY_SAMPLES = 50
_MOST_CALLS = 64
_MIN_SAMPLES = 20
_EMPTY_BATCHES = 1000

_PAGE = 4096
#: Pieces of host memory that the calls go through, each in separate pages: number, bytes in all.
_MOST_PIECES = 512
_PIECES_TOTAL = 16 << 20
_MIN_PIECES = 4

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
#: A walk over twice a cache leaves much of it, and guests do not see all caches of the host.
_EVICTOR_CACHES = 4
_EVICTOR_LEAST = 256 << 20

#: 4 bytes to 64 KiB, by powers of 2.
DEFAULT_SIZES = [4 << step for step in range(15)]

#: The ways as titles of narrow columns.
TITLES = {
    way: way.replace(".", "\n.").replace("cuMemcpy", "cuMemcpy\n").replace(" ", "\n")
    for way in WAYS
}

TITLE = "Time of a small copy between page-locked host memory and GPU memory"

METHOD = (
    "us a call, made from Python by one thread: the median of the samples, and (their minimum). "
    "The host side is page-locked memory, or registered memory for the engine."
)


def add_arguments(parser: CommandParser) -> None:
    add_options(parser, DEFAULT_SIZES, "4 bytes to 64K by powers of 2", "0.05")
    plot.add_option(parser, "latency against size")


def run(args: argparse.Namespace, output: Output) -> int:
    most = max(args.sizes)
    ways, absent = ways_here(WAYS, args.device)
    with measured_region(args, output, most, host_bytes(most)) as (region, report):
        bench = LatencyBench(region, secrets.randbits(32))
        output.prose(
            f"an empty sample takes {bench.empty_sample:.0f} ns, which are subtracted; cold means "
            f"after a walk over {approximate_size(evictor_bytes())} of memory"
        )
        results: list[Copies] = []
        with report.measuring():
            results.extend(_measure(bench, ways, args, output))

    return report.finish_copies(
        METHOD,
        Plot(TITLE, lambda axes: _paint(axes, results)),
        results,
        [
            CopyTable(
                f"us a {name}, host memory {cache}",
                {way: TITLES[way] for way in ways if WAYS[way] == writes},
                cache,
            )
            for cache in (WARM, COLD)
            for writes, name in ((True, "write"), (False, "read"))
        ],
        _cell,
        absent,
        seconds_a_figure=args.seconds,
        empty_sample_nanoseconds=bench.empty_sample,
        evictor_bytes=evictor_bytes(),
        results=[_json(one) for one in results],
    )


def _measure(
    bench: LatencyBench, ways: Sequence[str], args: argparse.Namespace, output: Output
) -> Iterator[Copies]:
    wanted = [(way, cache, size) for cache in (WARM, COLD) for size in args.sizes for way in ways]
    with output.progress("copylat", len(wanted)) as begin:
        for way, cache, size in wanted:
            begin(f"{way}, {format_size(size)}, {cache}")
            yield bench.measure(way, cache, size, args.seconds)


def _cell(one: Copies) -> Cell:
    return format_us(one.samples.median), f"({format_us(one.samples.minimum)})"


def _json(one: Copies) -> dict[str, Any]:
    return {
        **one.json(),
        "cache": one.cache,
        "calls_a_sample": one.samples.calls,
        "nanoseconds": one.samples.json(),
    }


def _paint(axes: Any, results: Sequence[Copies]) -> None:
    ways = dict.fromkeys(one.way for one in results)
    for way, colour, marker in zip(ways, plotstyle.COLOURS, plotstyle.MARKERS, strict=False):
        for cache, style in ((WARM, "-"), (COLD, "--")):
            line = [one for one in results if (one.way, one.cache) == (way, cache)]
            sizes = [one.nbytes for one in line]
            medians = [one.samples.median / 1e3 for one in line]
            label = f"{way}, {cache}"
            axes.plot(sizes, medians, linestyle=style, marker=marker, color=colour, label=label)
    plotstyle.size_axis(axes, sizes)
    plotstyle.time_axis(axes, "y", "time of a call, median")


def evictor_bytes() -> int:
    """The size of a buffer that drives everything else out of the CPU's caches."""
    sizes = []
    for file in _CACHES.glob("index*/size"):
        found = re.fullmatch(r"(\d+)([KM])\s*", file.read_text())
        if found:
            sizes.append(int(found[1]) << {"K": 10, "M": 20}[found[2]])
    return max(_EVICTOR_CACHES * max(sizes, default=0), _EVICTOR_LEAST)


def host_bytes(nbytes: int) -> int:
    """Host memory that measuring sizes up to ``nbytes`` takes."""
    return 3 * _arena_size(nbytes) + evictor_bytes()


def _pitch(nbytes: int) -> int:
    return -(-nbytes // _PAGE) * _PAGE


def _arena_size(nbytes: int) -> int:
    return max(_PIECES_TOTAL, _MIN_PIECES * _pitch(nbytes))


class Pieces:
    """Host memory in pieces of one size, each at the start of separate pages."""

    def __init__(self, arena: Bytes, nbytes: int) -> None:
        pitch = _pitch(nbytes)
        self.count = min(arena.size // pitch, _MOST_PIECES)
        self.rows = arena[: self.count * pitch].reshape(self.count, pitch)[:, :nbytes]
        whole = arena.data
        self.views = [whole[i * pitch : i * pitch + nbytes] for i in range(self.count)]
        self.addresses = [arena.ctypes.data + i * pitch for i in range(self.count)]


class LatencyBench:
    """A region, and host memory to copy between: page-locked, and registered."""

    def __init__(self, region: Region, seed: int) -> None:
        assert region.device is not None
        self._region = region
        self._device = region.device
        self._random = np.random.default_rng(seed)
        self._noise = Noise(seed)
        size = _arena_size(region.nbytes)
        self._page_locked: Bytes = gdrpy.page_locked(size, region.device).numpy()
        self._page_locked[:] = self._noise.bytes(size)
        self._registered = self._page_locked.copy()
        self._registration = gdrpy.register(self._registered)
        self._evictor = np.ones(evictor_bytes(), np.uint8)
        #: Nanoseconds that a sample without calls takes: the clock, and the loop's beginning.
        empty = Calls(bool, [])
        with undisturbed():
            self.empty_sample = statistics.median(empty.batch(0) for _ in range(_EMPTY_BATCHES))

    def measure(self, way: str, cache: str, nbytes: int, seconds: float) -> Copies:
        """Measure one of WAYS for about ``seconds``."""
        by_engine = way.startswith(ENGINE)
        pieces = Pieces(self._registered if by_engine else self._page_locked, nbytes)
        times: list[float] = []
        found: Difference | None = None
        with cuda.context(self._device), undisturbed():
            # The CPU overlaps independent calls, so the next calls would hide a miss.
            calls = 1 if cache == COLD else self._calls_a_sample(way, pieces)
            deadline = clock() + round(seconds * 1e9)
            while not found and (len(times) < _MIN_SAMPLES or clock() < deadline):
                order = self._random.permutation(pieces.count)[: pieces.count // calls * calls]
                lap = order if cache == COLD else np.zeros_like(order)
                expected = self._prepare(way, pieces, lap)
                copies = self._calls(way, pieces, lap)
                if cache == COLD:
                    self._evict(copies)
                else:
                    copies.batch(calls)
                taken = [copies.batch(calls) for _ in range(len(lap) // calls)]
                times += [(one - self.empty_sample) / calls for one in taken]
                found = self._difference(way, pieces, lap, expected)
        return Copies(way, nbytes, Samples(times, calls), found, cache)

    def _calls(self, way: str, pieces: Pieces, lap: NDArray[Any]) -> Calls:
        """The calls of a lap."""
        if way.startswith(ENGINE):
            call = self._region.write if WAYS[way] else self._region.readinto
            return Calls(call, [pieces.views[i] for i in lap], [0], ["engine"])
        _, _, method = way.partition(".")
        if method:
            return Calls(getattr(self._region.cpu, method), [pieces.views[i] for i in lap])
        driver = cuda.driver()
        ends = [[driver.CUdeviceptr(self._region.ptr)] * len(lap)]
        ends.insert(WAYS[way], [pieces.addresses[i] for i in lap])
        return Calls(getattr(driver, way), *ends, [pieces.rows.shape[1]] * len(lap))

    def _calls_a_sample(self, way: str, pieces: Pieces) -> int:
        copies = self._calls(way, pieces, np.zeros(_MOST_CALLS, int))
        copies.batch(_MOST_CALLS)
        wanted = calls_for(copies, _EMPTY_SAMPLES * self.empty_sample)
        return min(wanted, _MOST_CALLS, pieces.count)

    def _prepare(self, way: str, pieces: Pieces, lap: NDArray[Any]) -> Bytes:
        """Put bytes at the source of a lap's copies, and wrong ones at their destination.

        Returns the bytes that the last copy must leave on the GPU, or each copy on the host.
        """
        if WAYS[way]:
            pieces.rows += np.uint8(self._random.integers(1, 256))
            right: Bytes = pieces.rows[lap[-1]].copy()
        else:
            right = self._noise.bytes(pieces.rows.shape[1])
            pieces.rows[:] = ~right
        gpu_put(self._device, self._region.ptr, ~right if WAYS[way] else right)
        return right

    def _evict(self, copies: Calls) -> None:
        """Fill the caches with other bytes, then with the Python objects of the arguments.

        A memory view's object is its record, not the memory.
        """
        self._evictor += 1
        for column in copies.columns:
            all(map(bool, column))

    def _difference(
        self, way: str, pieces: Pieces, lap: NDArray[Any], right: Bytes
    ) -> Difference | None:
        """How the bytes that a lap's copies left differ from the right ones."""
        if WAYS[way]:
            return difference(right, gpu_get(self._device, self._region.ptr, right.size))
        wrong = [i for i in np.unique(lap) if not np.array_equal(pieces.rows[i], right)]
        return difference(right, pieces.rows[wrong[0]].copy()) if wrong else None
