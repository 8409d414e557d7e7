"""The copy engine against memcpy and against each of its routines alone, by size and alignment."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

import gdrpy
from harness import Contender, Session, Timed, Verify
from native import MEMCPY, Loop, Native, built
from payload import STALE, Bytes, GpuBytes, payload, same
from sweep import AGAIN, SIZE, Point, Sweep

#: Bytes, offset mod 64 of the mapping's side, and of the host's.
Offsets = tuple[int, int, int]

MODULE = "engine"
TO = "to the mapping"
FROM = "from the mapping"

ENGINE = "engine"

KIB = 1 << 10
MIB = 1 << 20
_LINE = 64

_POWERS = tuple(1 << power for power in range(27))
_ODD = (3, 5, 7, 13, 24, 31, 33, 48, 63, 65, 96, 100, 127, 129, 200, 255, 257, 384, 500, 511, 513)
_ODD_LARGE = (1000, 1023, 1025, 1500, 3000, 4095, 4097, 6000, 8191, 8193, 10000, 12289, 20000)
_ODD_LARGEST = (50000, 65537, 100000, 300001, 1000003, 5000011)
#: Sizes at which every alignment is measured.
_DENSE = (8, 64, 200, 1024, 4096)
_QUICK_SIZES = (1, 8, 200, 4097, 64 * KIB)

#: Offsets mod 64 of the mapping's side and of the host's.
_ALIGNMENTS = ((0, 0), (0, 1), (1, 0), (8, 8), (16, 0), (32, 48), (33, 7), (60, 4), (63, 63))
_FEW_ALIGNMENTS = ((0, 0), (33, 7))
#: From this size on few alignments are measured, because they stop mattering.
_LARGE = 256 * KIB

#: A routine is left out of larger sizes if a call takes longer than this (ns) and longer than this
#: many calls of the engine.
_TOO_LONG, _HOPELESS = 30_000_000, 3
#: A point is measured for longer if the engine's time differs by more than this part from its best
#: routine's, or from its own second time.
_LEVEL = 0.03
#: The part of a comparison's time for a point, and the factor for a longer measurement.
_SHARE, _LONGER = 1 / 150, 5

KEYS = (SIZE, "mapping offset", "host offset")


# Figures: the worst point of a way against the best routine and memcpy; 1 means equal.


def worst(way: str = ENGINE) -> str:
    return f"{way} over best routine, at worst"


def worst_itself(way: str = ENGINE) -> str:
    return f"{way} over itself, at worst"


def worst_memcpy(way: str = ENGINE) -> str:
    return f"{way} over memcpy, at worst"


def worst_memcpy_large(way: str = ENGINE) -> str:
    return f"{way} over memcpy, at worst from 1 KiB on"


def run(session: Session) -> None:
    """Measure the engine into the session."""
    native = built()
    sizes = _QUICK_SIZES if session.quick else (*_POWERS, *_ODD, *_ODD_LARGE, *_ODD_LARGEST)
    with gdrpy.alloc(max(sizes) + 4 * _LINE) as region:
        for operation, bench in ((TO, Writes), (FROM, Reads)):
            sweep = Sweep(MODULE, operation, KEYS, spread=False)
            points = [
                (nbytes, *offsets)
                for nbytes in sorted(sizes)
                for offsets in _alignments(session.quick, nbytes)
            ]
            measure(session, sweep, bench(native, region), points)


def measure(session: Session, sweep: Sweep, bench: Sides, points: Sequence[Offsets]) -> None:
    """Measure a side's way to copy at points of growing size; its figures."""
    session.sweeps.append(sweep)
    too_slow: set[str] = set()
    for key in points:
        session.step(f"{sweep.module}: {sweep.operation} {key[0]} B")
        left_out = too_slow if key[1:] == (0, 0) else too_slow | bench.only_aligned(key[0])
        point = _point(sweep, bench, key, left_out, session.seconds * _SHARE)
        limit = max(_TOO_LONG, _HOPELESS * point.median(bench.way))
        too_slow |= {way for way in point.times if point.median(way) > limit} - {MEMCPY}
    _figures(session, sweep, bench)


def _alignments(quick: bool, nbytes: int) -> Iterator[tuple[int, int]]:
    if quick or nbytes >= _LARGE:
        yield from _FEW_ALIGNMENTS
        return
    yield from _ALIGNMENTS
    if nbytes in _DENSE:
        yield from ((offset, 0) for offset in range(2, 64) if offset != 16)
        yield from ((0, offset) for offset in range(2, 64))


def _point(sweep: Sweep, bench: Sides, key: Offsets, left_out: set[str], time: float) -> Point:
    contenders = [one for one in bench.contenders(*key) if one.way not in left_out]
    point = sweep.measure(key, contenders, time, verify_before=key[0] < _LARGE)
    ratios = bench.ratios(point)
    seen = (ratios[bench.over_best], ratios[bench.over_itself])
    if any(abs(ratio - 1) > _LEVEL for ratio in seen if ratio):
        point = point.joined(sweep.measure(key, contenders, _LONGER * time, verify_before=False))
        ratios = bench.ratios(point)
    sweep.keep(point, ratios)
    return point


def _figures(session: Session, sweep: Sweep, bench: Sides) -> None:
    sweep.figure(session, worst(bench.way), [bench.over_best], min)
    sweep.figure(session, worst_itself(bench.way), [bench.over_itself], min)
    sweep.figure(session, worst_memcpy(bench.way), [bench.over_memcpy], min)
    large = worst_memcpy_large(bench.way)
    sweep.figure(session, large, [bench.over_memcpy], min, lambda key: key[0] >= KIB)


class Memory(Protocol):
    """GPU memory and its CPU mapping: a region, or an object with the same attributes."""

    @property
    def ptr(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def cpu(self) -> Any: ...


@dataclass
class Sides(ABC):
    """Where copies of up to a size begin: a line into the region, and into host memory.

    ``way`` is compared with the routines; ``method`` describes it.
    """

    native: Native
    region: Memory

    way: ClassVar[str] = ENGINE
    method: ClassVar[str]

    def __post_init__(self) -> None:
        self.gpu = GpuBytes(self.region.ptr)
        memory = np.empty(self.region.nbytes + _LINE, np.uint8)
        self.host: Bytes = memory[-memory.ctypes.data % _LINE :]
        self.again = f"{self.way} {AGAIN}"
        self.over_best = f"best routine over {self.way}"
        self.over_memcpy = f"memcpy over {self.way}"
        self.over_itself = f"{self.way} over itself"

    @abstractmethod
    def copy(self, host: Bytes, start: int) -> Timed:
        """The way's copy between host memory and the mapping, from ``start`` on."""

    @abstractmethod
    def contenders(self, nbytes: int, mapping_offset: int, host_offset: int) -> list[Contender]:
        """The way, the engine's routines and memcpy, each with its proof."""

    def only_aligned(self, _nbytes: int) -> set[str]:
        """Slow ways, which are measured only aligned."""
        return set()

    def ratios(self, point: Point) -> dict[str, float | None]:
        """The time of the best other way over the time of this way; memcpy may be missing."""
        routines = sorted(point.times.keys() - {self.way, self.again, MEMCPY})
        others = {
            self.over_best: routines,
            self.over_memcpy: [MEMCPY],
            self.over_itself: [self.again],
        }
        found = {name: point.ratio(self.way, of) for name, of in others.items()}
        return {name: None if ratio is None else 1 / ratio for name, ratio in found.items()}

    def _contenders(
        self, copy: Timed, routines: dict[str, Loop], method: str, verify: Verify
    ) -> list[Contender]:
        """The way's copy twice, and the routines."""
        return [
            *(Contender(way, self.method, copy, verify) for way in (self.way, self.again)),
            *(Contender(name, method, loop, verify) for name, loop in routines.items()),
        ]


class Writes(Sides):
    """Ways to the mapping."""

    method = "core_copy_to, and a store fence"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.host[:] = payload(self.host.nbytes)
        self._routines = self.native.routines(to_mapping=True)

    def copy(self, host: Bytes, start: int) -> Timed:
        return self.native.write(self.region.cpu, host, start)

    def contenders(self, nbytes: int, mapping_offset: int, host_offset: int) -> list[Contender]:
        """The ways to write; each must write these bytes and no others."""
        start = _LINE + mapping_offset
        data = self.host[host_offset : host_offset + nbytes]
        routines = {
            name: self.native.routine_write(routine, self.region.cpu, data, start)
            for name, routine in self._routines.items()
        }
        method = "the routine alone, and a store fence"
        verify = self._verify(start, data)
        return self._contenders(self.copy(data, start), routines, method, verify)

    def _verify(self, start: int, data: Bytes) -> Verify:
        end = start + data.nbytes

        def verify(timed: Timed) -> bool:
            self.gpu.fill(end + _LINE)
            timed.once()
            seen = self.gpu.get(end + _LINE)
            return (
                same(seen[start:end], data)
                and bool((seen[:start] == STALE).all())
                and bool((seen[end:] == STALE).all())
            )

        return verify


class Reads(Sides):
    """Ways from the mapping."""

    method = "core_copy_from"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._data = payload(self.region.nbytes)
        self.gpu.put(self._data)
        self._routines = self.native.routines(to_mapping=False)

    def copy(self, host: Bytes, start: int) -> Timed:
        return self.native.read(self.region.cpu, host, start)

    def only_aligned(self, nbytes: int) -> set[str]:
        return {MEMCPY} if nbytes >= _LARGE else set()

    def contenders(self, nbytes: int, mapping_offset: int, host_offset: int) -> list[Contender]:
        """The ways to read; each must read these bytes."""
        start = _LINE + mapping_offset
        host = self.host[_LINE + host_offset : _LINE + host_offset + nbytes]
        routines = {
            name: self.native.routine_read(routine, self.region.cpu, host, start)
            for name, routine in self._routines.items()
        }
        verify = self._verify(start, host)
        return self._contenders(self.copy(host, start), routines, "the routine alone", verify)

    def _verify(self, start: int, host: Bytes) -> Verify:
        end = start + host.nbytes

        def verify(timed: Timed) -> bool:
            host.fill(STALE)
            timed.once()
            return same(host, self._data[start:end])

        return verify
