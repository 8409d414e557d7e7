"""The copy engine against memcpy and against each of its routines alone, by size and alignment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

import gdrpy
from gdrpy import Region
from harness import Contender, Session, Timed, Verify
from native import MEMCPY, Native, built
from payload import STALE, Bytes, GpuBytes, payload, same
from sweep import AGAIN, SIZE, Point, Sweep

MODULE = "engine"
TO = "to the mapping"
FROM = "from the mapping"

ENGINE = "engine"
ENGINE_AGAIN = f"{ENGINE} {AGAIN}"
OVER_BEST = "best routine over engine"
OVER_MEMCPY = "memcpy over engine"
OVER_ITSELF = "engine over itself"

#: Figures: the engine's worst point against the best routine and memcpy, 1 where they are level.
WORST = "engine over best routine, at worst"
WORST_MEMCPY = "engine over memcpy, at worst"
WORST_MEMCPY_LARGE = "engine over memcpy, at worst from 1 KiB on"
WORST_ITSELF = "engine over itself, at worst"

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
#: From this size on few alignments are measured, because they stop to matter.
_LARGE = 256 * KIB

#: A routine one call of which takes longer (ns), and so many times as long as the engine's, is left
#: out of larger sizes.
_TOO_LONG, _HOPELESS = 30_000_000, 3
#: A point where the engine seems slower or faster than its best routine, or than itself, by more
#: than this is measured for longer.
_LEVEL = 0.03
#: What a point gets of the time of a comparison, and how many times as much then.
_SHARE, _LONGER = 1 / 150, 5

_KEYS = (SIZE, "mapping offset", "host offset")


def run(session: Session) -> None:
    """Measure the engine into the session."""
    native = built()
    sizes = _QUICK_SIZES if session.quick else (*_POWERS, *_ODD, *_ODD_LARGE, *_ODD_LARGEST)
    with gdrpy.alloc(max(sizes) + 4 * _LINE) as region:
        for operation, bench in ((TO, Writes), (FROM, Reads)):
            sweep = Sweep(MODULE, operation, _KEYS, spread=False)
            session.sweeps.append(sweep)
            _measure(session, sweep, bench(native, region), sorted(sizes))
            _figures(session, sweep)


def _measure(session: Session, sweep: Sweep, bench: Writes | Reads, sizes: list[int]) -> None:
    too_slow: set[str] = set()
    for nbytes in sizes:
        session.step(f"{MODULE}: {sweep.operation} {nbytes} B")
        for mapping_offset, host_offset in _alignments(session.quick, nbytes):
            key = nbytes, mapping_offset, host_offset
            aligned = not mapping_offset and not host_offset
            left_out = too_slow if aligned else too_slow | bench.only_aligned(nbytes)
            point = _point(sweep, bench, key, left_out, session.seconds * _SHARE)
            limit = max(_TOO_LONG, _HOPELESS * point.median(ENGINE))
            too_slow |= {way for way in point.times if point.median(way) > limit} - {MEMCPY}


def _alignments(quick: bool, nbytes: int) -> Iterator[tuple[int, int]]:
    if quick or nbytes >= _LARGE:
        yield from _FEW_ALIGNMENTS
        return
    yield from _ALIGNMENTS
    if nbytes in _DENSE:
        yield from ((offset, 0) for offset in range(2, 64) if offset != 16)
        yield from ((0, offset) for offset in range(2, 64))


def _point(
    sweep: Sweep, bench: Writes | Reads, key: tuple[int, int, int], left_out: set[str], time: float
) -> Point:
    contenders = [one for one in bench.contenders(*key) if one.way not in left_out]
    point = sweep.measure(key, contenders, time, verify_before=key[0] < _LARGE)
    ratios = _ratios(point)
    if any(abs(ratio - 1) > _LEVEL for ratio in (ratios[OVER_BEST], ratios[OVER_ITSELF]) if ratio):
        point = point.joined(sweep.measure(key, contenders, _LONGER * time, verify_before=False))
        ratios = _ratios(point)
    sweep.keep(point, ratios)
    return point


def _ratios(point: Point) -> dict[str, float | None]:
    routines = point.times.keys() - {ENGINE, ENGINE_AGAIN, MEMCPY}
    return {
        OVER_BEST: _times_faster(point, sorted(routines)),
        OVER_MEMCPY: _times_faster(point, [MEMCPY]),
        OVER_ITSELF: _times_faster(point, [ENGINE_AGAIN]),
    }


def _times_faster(point: Point, others: list[str]) -> float | None:
    """How many times the engine goes into the best of the others."""
    ratio = point.ratio(ENGINE, others)
    return None if ratio is None else 1 / ratio


def _figures(session: Session, sweep: Sweep) -> None:
    sweep.figure(session, WORST, [OVER_BEST], min)
    sweep.figure(session, WORST_ITSELF, [OVER_ITSELF], min)
    sweep.figure(session, WORST_MEMCPY, [OVER_MEMCPY], min)
    sweep.figure(session, WORST_MEMCPY_LARGE, [OVER_MEMCPY], min, lambda key: key[0] >= KIB)


@dataclass
class _Sides:
    """Where copies of up to a size begin: a line into the region, and into host memory."""

    native: Native
    region: Region

    def __post_init__(self) -> None:
        self.gpu = GpuBytes(self.region.ptr)
        memory = np.empty(self.region.nbytes + _LINE, np.uint8)
        self.host: Bytes = memory[-memory.ctypes.data % _LINE :]


class Writes(_Sides):
    """Ways to the mapping."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.host[:] = payload(self.host.nbytes)
        self._routines = self.native.routines(to_mapping=True)

    def only_aligned(self, _nbytes: int) -> set[str]:
        """The ways that are measured aligned alone, for the time they take."""
        return set()

    def contenders(self, nbytes: int, mapping_offset: int, host_offset: int) -> list[Contender]:
        """The engine, its routines and memcpy, each proved to write these bytes and no others."""
        start = _LINE + mapping_offset
        data = self.host[host_offset : host_offset + nbytes]
        mapping, verify = self.region.cpu, self._verify(start, data)
        return [
            *(
                Contender(
                    name,
                    "gdr_copy_to, and a store fence",
                    self.native.write(mapping, data, start),
                    verify,
                )
                for name in (ENGINE, ENGINE_AGAIN)
            ),
            *(
                Contender(
                    name,
                    "the routine alone, and a store fence",
                    self.native.routine_write(routine, mapping, data, start),
                    verify,
                )
                for name, routine in self._routines.items()
            ),
        ]

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


class Reads(_Sides):
    """Ways from the mapping."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._data = payload(self.region.nbytes)
        self.gpu.put(self._data)
        self._routines = self.native.routines(to_mapping=False)

    def only_aligned(self, nbytes: int) -> set[str]:
        """The ways that are measured aligned alone, for the time they take."""
        return {MEMCPY} if nbytes >= _LARGE else set()

    def contenders(self, nbytes: int, mapping_offset: int, host_offset: int) -> list[Contender]:
        """The engine, its routines and memcpy, each proved to read these bytes."""
        start = _LINE + mapping_offset
        host = self.host[_LINE + host_offset : _LINE + host_offset + nbytes]
        mapping, verify = self.region.cpu, self._verify(start, host)
        return [
            *(
                Contender(name, "gdr_copy_from", self.native.read(mapping, host, start), verify)
                for name in (ENGINE, ENGINE_AGAIN)
            ),
            *(
                Contender(
                    name,
                    "the routine alone",
                    self.native.routine_read(routine, mapping, host, start),
                    verify,
                )
                for name, routine in self._routines.items()
            ),
        ]

    def _verify(self, start: int, host: Bytes) -> Verify:
        end = start + host.nbytes

        def verify(timed: Timed) -> bool:
            host.fill(STALE)
            timed.once()
            return same(host, self._data[start:end])

        return verify
