"""Where each way to copy becomes the faster one: the ways, what each takes, and the limits."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

import gdrpy
from gdrpy import Region, dma
from gdrpy.cli.data import Bytes, Difference, Noise, arrived, prepare
from gdrpy.cli.measure.bandwidth import time_copies
from gdrpy.cli.measure.sampling import undisturbed
from gdrpy.limits import MOST_LANES, MOST_THREADS, NEVER, Limits

KIB, MIB = 1 << 10, 1 << 20

#: Bytes of the region, and of each of the two host buffers.
ROOM = 128 * MIB
#: Where numbers of threads are compared: large copies, which they are for.
_WRITES_BY_THREADS, _READS_BY_THREADS, _WRITES_BY_LANES = 16 * MIB, 4 * MIB, 64 * MIB
#: Smaller copies are never shared among threads.
_SHARED_WRITE, _SHARED_READ = 64 * KIB, 4 * KIB
#: Another thread must be worth as much of the time, to be taken.
_WORTH_A_THREAD = 0.03
#: Limits are whole lines of so many bytes.
_LINE = 64

#: Limits that leave everything to one thread and the mapping.
_PLAIN = Limits(NEVER, NEVER, NEVER, NEVER, NEVER, 1, 1, 1)


@dataclass(frozen=True)
class Way:
    """A way to copy: by ``threads`` through the mapping, or by DMA and ``threads`` that stage."""

    writes: bool
    threads: int
    by: str = "mapping"
    pinned: bool = False

    def __str__(self) -> str:
        what = "write" if self.writes else "read"
        if self.pinned:
            return f"{what} by DMA, page-locked"
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return f"{what} by {'DMA, ' if self.by == 'dma' else ''}{threads}"

    def limits(self) -> Limits:
        """Limits by which a copy ``via`` the mapping or DMA takes this way, whatever its size."""
        threads = self.threads
        several = 0 if threads > 1 else NEVER
        return _PLAIN._replace(
            write_threads=several,
            read_threads=several,
            threads_to=threads,
            threads_from=threads,
            lanes=min(threads, MOST_LANES),
        )


@dataclass(frozen=True)
class Figure:
    """Seconds that a way takes for a copy of ``nbytes``: the median of warm samples."""

    way: Way
    nbytes: int
    seconds: float


#: What measures, or in a test tells, the seconds that a way takes for so many bytes.
Clock = Callable[[Way, int], float]


class Meter:
    """A region, and host memory of either kind to copy between."""

    def __init__(self, region: Region, seconds: float, seed: int) -> None:
        assert region.device is not None
        self._region = region
        self._device = region.device
        self._seconds = seconds
        self._noise = Noise(seed)
        pinned = gdrpy.pinned(region.nbytes, self._device)
        self._hosts: dict[bool, Bytes] = {
            True: pinned.numpy(),
            False: np.ones(region.nbytes, np.uint8),
        }
        self.figures: list[Figure] = []

    def time(self, way: Way, nbytes: int) -> float:
        """Seconds that a copy takes, kept in ``figures`` too."""
        copy = self._copy(way, nbytes)
        with undisturbed():
            _, samples = time_copies(copy, self._seconds)
        seconds = statistics.median(samples)
        self.figures.append(Figure(way, nbytes, seconds))
        return seconds

    def difference(self, way: Way, nbytes: int) -> Difference | None:
        """How what arrives by a way differs from what was sent."""
        host, sent = self._hosts[way.pinned][:nbytes], self._noise.bytes(nbytes)
        prepare(self._region, host, sent, writes=way.writes)
        self._copy(way, nbytes)()
        return arrived(self._region, host, sent, writes=way.writes)

    def _copy(self, way: Way, nbytes: int) -> Callable[[], object]:
        region, host, via = self._region, self._hosts[way.pinned][:nbytes], way.by
        engine = dma.engine(self._device)
        region._arm(region.cpu, engine, region.ptr, region.nbytes, True, way.limits())
        if way.writes:
            return lambda: region.write(host, 0, via)
        return lambda: region.readinto(host, 0, via)


def grid(smallest: int, largest: int) -> list[int]:
    """Sizes from a power of two to another, and one between each and the next."""
    powers = range(smallest.bit_length() - 1, largest.bit_length() - 1)
    return [size for power in powers for size in (1 << power, 3 << power - 1)] + [largest]


_WRITE_SIZES, _READ_SIZES = grid(4 * KIB, ROOM), grid(512, 4 * MIB)


def choose(clock: Clock, cpus: int) -> Limits:
    """The limits by which every copy takes the faster way, as far as a clock tells."""
    threads_to = _fewest(clock, _counts(True, "mapping", cpus, MOST_THREADS), _WRITES_BY_THREADS)
    threads_from = _fewest(clock, _counts(False, "mapping", cpus, MOST_THREADS), _READS_BY_THREADS)
    lanes = _fewest(clock, _counts(True, "dma", cpus, MOST_LANES), _WRITES_BY_LANES)

    write_threads, stores = _through_mapping(clock, threads_to, _WRITE_SIZES, _SHARED_WRITE)
    read_threads, loads = _through_mapping(clock, threads_from, _READ_SIZES, _SHARED_READ)
    staged, pinned = Way(True, lanes.threads, "dma"), Way(True, 1, "dma", pinned=True)
    back = Way(False, lanes.threads, "dma")
    return Limits(
        write_threads=write_threads,
        write_dma=crossover(stores, _times(clock, staged, _WRITE_SIZES)),
        write_dma_pinned=crossover(stores, _times(clock, pinned, _WRITE_SIZES)),
        read_threads=read_threads,
        read_dma=crossover(loads, _times(clock, back, _READ_SIZES)),
        threads_to=threads_to.threads,
        threads_from=threads_from.threads,
        lanes=lanes.threads,
    )


def _counts(writes: bool, by: str, cpus: int, most: int) -> list[Way]:
    powers = [1 << power for power in range(most.bit_length())]
    return [Way(writes, n, by) for n in powers if n <= max(min(cpus, most), 1)]


def _fewest(clock: Clock, ways: Sequence[Way], nbytes: int) -> Way:
    """The way with the fewest threads of those that are about as fast as the fastest."""
    times = [clock(way, nbytes) for way in ways]
    enough = min(times) * (1 + _WORTH_A_THREAD)
    return next(way for way, time in zip(ways, times, strict=True) if time <= enough)


def _times(clock: Clock, way: Way, sizes: Iterable[int]) -> dict[int, float]:
    return {nbytes: clock(way, nbytes) for nbytes in sizes}


def _through_mapping(
    clock: Clock, several: Way, sizes: Sequence[int], shared: int
) -> tuple[int, dict[int, float]]:
    """From which size on several threads are faster than one, and the times of the faster."""
    one = Way(several.writes, 1)
    times = _times(clock, one, sizes)
    large = [nbytes for nbytes in sizes if nbytes >= shared]
    if several.threads == 1:
        return NEVER, times
    by_several = _times(clock, several, large)
    limit = crossover({nbytes: times[nbytes] for nbytes in large}, by_several)
    return limit, times | {size: time for size, time in by_several.items() if size >= limit}


def crossover(usual: dict[int, float], other: dict[int, float]) -> int:
    """The size from which to take the other way, so that the least time is lost.

    NEVER if it does not pay up to the largest size; the smallest one if it always does.
    """
    sizes = sorted(usual.keys() & other.keys())
    gain = [math.log(usual[size] / other[size]) for size in sizes]
    # What is lost by the other way's being taken from each size on, or never.
    lost = [
        sum(max(one, 0) for one in gain[:first]) + sum(max(-one, 0) for one in gain[first:])
        for first in range(len(sizes) + 1)
    ]
    first = max(range(len(lost)), key=lambda first: (-lost[first], first))
    if first == len(sizes):
        return NEVER
    size = float(sizes[first])
    if first and gain[first - 1] < 0 < gain[first]:
        part = gain[first - 1] / (gain[first - 1] - gain[first])
        size = sizes[first - 1] * (sizes[first] / sizes[first - 1]) ** part
    return round(size / _LINE) * _LINE
