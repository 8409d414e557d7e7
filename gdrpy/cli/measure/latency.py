"""Small copies, with the host memory in the CPU's caches or out of them."""

from __future__ import annotations

import re
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gdrpy
from gdrpy import Region, cuda
from gdrpy.cli.data import Bytes, Difference, Noise, difference, gpu_get, gpu_put
from gdrpy.cli.measure.report import COLD, Copies
from gdrpy.cli.measure.timing import Calls, Samples, calls_for, clock, undisturbed

#: The four calls, in the order in which they are shown, and whether they write to the GPU.
WAYS = {
    "Mapping.write": True,
    "Mapping.readinto": False,
    "cuMemcpyHtoD": True,
    "cuMemcpyDtoH": False,
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
    return 2 * _arena_size(nbytes) + evictor_bytes()


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
    """A region, and page-locked host memory to copy between."""

    def __init__(self, region: Region, seed: int) -> None:
        assert region.device is not None
        self._region = region
        self._device = region.device
        self._random = np.random.default_rng(seed)
        self._noise = Noise(seed)
        self._arena: Bytes = gdrpy.page_locked(_arena_size(region.nbytes), region.device).numpy()
        self._arena[:] = self._noise.bytes(self._arena.size)
        self._evictor = np.ones(evictor_bytes(), np.uint8)
        #: Nanoseconds that a sample without calls takes: the clock, and the loop's beginning.
        empty = Calls(bool, [])
        with undisturbed():
            self.empty_sample = statistics.median(empty.batch(0) for _ in range(_EMPTY_BATCHES))

    def measure(self, way: str, cache: str, nbytes: int, seconds: float) -> Copies:
        """Measure one of WAYS for about ``seconds``."""
        pieces = Pieces(self._arena, nbytes)
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
        return Copies(way, nbytes, Samples(times, calls), found is None, found, cache)

    def _calls(self, way: str, pieces: Pieces, lap: NDArray[Any]) -> Calls:
        """The calls of a lap."""
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
