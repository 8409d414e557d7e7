"""The sizes at which each path of copying becomes the faster one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

import gdrpy
from gdrpy import Region
from gdrpy.cli.data import Bytes, Difference, Noise, arrived, prepare
from gdrpy.cli.measure.timing import Calls, sample
from gdrpy.copies import dma
from gdrpy.copies.tuning import MOST_LANES, MOST_THREADS, NEVER, Limits
from gdrpy.memory import engine

KIB, MIB = 1 << 10, 1 << 20

#: Bytes of the region, and of each of the host buffers.
ROOM = 128 * MIB
#: Sizes at which numbers of threads are compared: threads are for large copies.
_WRITES_BY_THREADS, _READS_BY_THREADS, _WRITES_BY_LANES = 16 * MIB, 4 * MIB, 64 * MIB
#: Smaller copies are never shared among threads.
_SHARED_WRITE, _SHARED_READ = 64 * KIB, 4 * KIB
#: The part of the time that another thread must save.
_WORTH_A_THREAD = 0.03
#: Limits are multiples of this many bytes.
_LINE = 64

#: Limits by which one thread and the mapping copy everything.
_PLAIN = Limits(*[NEVER] * 10, *[1] * 3)

#: Kinds of host memory; registered memory is so for the copy engine.
ORDINARY, PAGE_LOCKED, REGISTERED = "ordinary", "page-locked", "registered"
BY = {"mapping": "", "dma": "DMA, ", "engine": "the engine, "}


@dataclass(frozen=True)
class Way:
    """A path: ``threads`` copy through the mapping, or stage copies by DMA. The copy engine
    chooses its threads itself. ``host`` is the kind of the host memory.
    """

    writes: bool
    threads: int
    by: str = "mapping"
    host: str = ORDINARY

    def __str__(self) -> str:
        what = f"{'write' if self.writes else 'read'} by {BY[self.by]}"
        if self.host != ORDINARY:
            return f"{what}{self.host}"
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return f"{what}{'ordinary memory' if self.by == 'engine' else threads}"

    def limits(self) -> Limits:
        """Limits by which a copy ``via`` the mapping or DMA takes this way at every size."""
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
class CopyTime:
    """Seconds that a way takes for a copy of ``nbytes``: the median of warm samples."""

    way: Way
    nbytes: int
    seconds: float


#: Measures, or in a test invents, the seconds that a way takes for a number of bytes.
Clock = Callable[[Way, int], float]


class Meter:
    """A region, and pageable and page-locked host memory to copy between."""

    def __init__(self, region: Region, seconds: float, seed: int) -> None:
        assert region.device is not None
        self._region = region
        self._device = region.device
        self._seconds = seconds
        self._noise = Noise(seed)
        self._hosts: dict[str, Bytes] = {
            PAGE_LOCKED: gdrpy.page_locked(region.nbytes, self._device).numpy(),
            ORDINARY: np.ones(region.nbytes, np.uint8),
        }
        #: Whether the copy engine can be used.
        self.engine = engine.status(self._device).usable
        if self.engine:
            self._hosts[REGISTERED] = np.ones(region.nbytes, np.uint8)
            self._registration = gdrpy.register(self._hosts[REGISTERED])
        self.figures: list[CopyTime] = []

    def time(self, way: Way, nbytes: int) -> float:
        """Seconds of one copy, also kept in ``figures``."""
        copy = self._copy(way, nbytes)
        seconds = sample(copy, self._seconds).median / 1e9
        self.figures.append(CopyTime(way, nbytes, seconds))
        return seconds

    def difference(self, way: Way, nbytes: int) -> Difference | None:
        """How the bytes that arrive by a way differ from those that were sent."""
        host, sent = self._hosts[way.host][:nbytes], self._noise.bytes(nbytes)
        prepare(self._region, host, sent, writes=way.writes)
        self._copy(way, nbytes).batch(1)
        return arrived(self._region, host, sent, writes=way.writes)

    def _copy(self, way: Way, nbytes: int) -> Calls:
        region, host = self._region, self._hosts[way.host][:nbytes]
        by_cuda = dma.engine(self._device)
        region._arm(region.cpu, by_cuda, region.ptr, region.nbytes, True, tuple(way.limits()))
        return Calls(region.write if way.writes else region.readinto, [host], [0], [way.by])


def grid(smallest: int, largest: int) -> list[int]:
    """The powers of two between two of them, and a size between each and the next."""
    powers = range(smallest.bit_length() - 1, largest.bit_length() - 1)
    return [size for power in powers for size in (1 << power, 3 << power - 1)] + [largest]


_WRITE_SIZES, _READ_SIZES = grid(4 * KIB, ROOM), grid(512, 4 * MIB)


def choose(clock: Clock, cpus: int, engine: bool) -> Limits:
    """The limits by which every copy takes the fastest way, by the times of a clock.

    Without a usable copy ``engine`` its ways are not timed.
    """
    threads_to = _fewest(clock, _counts(True, "mapping", cpus, MOST_THREADS), _WRITES_BY_THREADS)
    threads_from = _fewest(clock, _counts(False, "mapping", cpus, MOST_THREADS), _READS_BY_THREADS)
    lanes = _fewest(clock, _counts(True, "dma", cpus, MOST_LANES), _WRITES_BY_LANES)

    write_threads, stores = _through_mapping(clock, threads_to, _WRITE_SIZES, _SHARED_WRITE)
    read_threads, loads = _through_mapping(clock, threads_from, _READ_SIZES, _SHARED_READ)

    def others(writes: bool, usual: dict[int, float]) -> list[int]:
        """The limits of DMA and the engine, in the order of the fields."""
        sizes = _WRITE_SIZES if writes else _READ_SIZES
        staged, locked = Way(writes, lanes.threads, "dma"), Way(writes, 1, "dma", PAGE_LOCKED)
        found = [crossover(usual, _times(clock, staged, sizes)), NEVER, NEVER]
        if engine:
            by_engine = _times(clock, Way(writes, 1, "engine"), sizes)
            registered = _times(clock, Way(writes, 1, "engine", REGISTERED), sizes)
            found[1:] = crossover(usual, by_engine), crossover(usual, registered)
            usual = {size: min(time, by_engine[size]) for size, time in usual.items()}
        found.insert(1, crossover(usual, _times(clock, locked, sizes)))
        return found

    threads = threads_to.threads, threads_from.threads, lanes.threads
    writes, reads = others(True, stores), others(False, loads)
    return Limits(*(write_threads, *writes, read_threads, *reads, *threads))


def _counts(writes: bool, by: str, cpus: int, most: int) -> list[Way]:
    powers = [1 << power for power in range(most.bit_length())]
    return [Way(writes, n, by) for n in powers if n <= max(min(cpus, most), 1)]


def _fewest(clock: Clock, ways: Sequence[Way], nbytes: int) -> Way:
    """Of the ways that are about as fast as the fastest, the one with the fewest threads."""
    times = [clock(way, nbytes) for way in ways]
    enough = min(times) * (1 + _WORTH_A_THREAD)
    return next(way for way, time in zip(ways, times, strict=True) if time <= enough)


def _times(clock: Clock, way: Way, sizes: Iterable[int]) -> dict[int, float]:
    return {nbytes: clock(way, nbytes) for nbytes in sizes}


def _through_mapping(
    clock: Clock, several: Way, sizes: Sequence[int], shared: int
) -> tuple[int, dict[int, float]]:
    """The size from which several threads beat one, and the times of the faster way."""
    one = Way(several.writes, 1)
    times = _times(clock, one, sizes)
    large = [nbytes for nbytes in sizes if nbytes >= shared]
    if several.threads == 1:
        return NEVER, times
    by_several = _times(clock, several, large)
    limit = crossover({nbytes: times[nbytes] for nbytes in large}, by_several)
    return limit, times | {size: time for size, time in by_several.items() if size >= limit}


def crossover(usual: dict[int, float], other: dict[int, float]) -> int:
    """The size from which the other way loses the least time.

    NEVER if it does not pay at any size; the smallest size if it always does.
    """
    sizes = sorted(usual.keys() & other.keys())
    gain = [math.log(usual[size] / other[size]) for size in sizes]
    # The time lost if the other way is taken from each size on, or never.
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
