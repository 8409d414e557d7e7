"""Measuring small copies from and to host memory: in the CPU's caches, and out of them."""

from __future__ import annotations

import re
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gdrpy
from gdrpy import Region, cuda
from gdrpy.cli.data import Bytes, Difference, Noise, difference, gpu_get, gpu_put
from gdrpy.cli.measure.distribution import Distribution
from gdrpy.cli.measure.sampling import clock, undisturbed

#: The four ways measured, in the order in which they are shown, and whether they write to the GPU.
WAYS = {
    "Mapping.write": True,
    "Mapping.readinto": False,
    "cuMemcpyHtoD": True,
    "cuMemcpyDtoH": False,
}
WARM, COLD = "warm", "cold"

#: A warm sample lasts at least so many times what an empty one does, or has the most calls.
_EMPTY_SAMPLES = 50
_MOST_CALLS = 64
_MIN_SAMPLES = 20

_PAGE = 4096
#: Pieces of host memory that the calls go through, each in pages of its own: number, bytes in all.
_MOST_PIECES = 512
_PIECES_TOTAL = 16 << 20
_MIN_PIECES = 4

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
#: Walking over twice a cache leaves much of it, and guests are not told of all that the host has.
_EVICTOR_CACHES = 4
_EVICTOR_LEAST = 256 << 20


@dataclass(frozen=True)
class Latency:
    """One way at one size, with the host memory in the caches or not: nanoseconds a call.

    Each sample is the mean of ``calls`` calls, less what an empty sample takes. ``difference`` is
    None if the right bytes arrived.
    """

    way: str
    cache: str
    nbytes: int
    calls: int
    samples: Distribution
    difference: Difference | None


def evictor_bytes() -> int:
    """How large a buffer must be to drive everything else out of the CPU's caches."""
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
    """Host memory in pieces of a size, each the first bytes of pages of its own."""

    def __init__(self, arena: Bytes, nbytes: int) -> None:
        pitch = _pitch(nbytes)
        self.count = min(arena.size // pitch, _MOST_PIECES)
        self.rows = arena[: self.count * pitch].reshape(self.count, pitch)[:, :nbytes]
        whole = arena.data
        self.views = [whole[i * pitch : i * pitch + nbytes] for i in range(self.count)]
        self.addresses = [arena.ctypes.data + i * pitch for i in range(self.count)]


class Bench:
    """A region, and page-locked host memory to copy between."""

    def __init__(self, region: Region, seed: int) -> None:
        assert region.device is not None
        self._region = region
        self._device = region.device
        self._random = np.random.default_rng(seed)
        self._noise = Noise(seed)
        self._arena: Bytes = gdrpy.pinned(_arena_size(region.nbytes), region.device).numpy()
        self._arena[:] = self._noise.bytes(self._arena.size)
        self._evictor = np.ones(evictor_bytes(), np.uint8)
        #: Nanoseconds that a sample of no calls takes, for the clock and the loop's beginning.
        self.empty_sample = statistics.median(_time(bool, [[]], 0, _EMPTY_SAMPLES * _MIN_SAMPLES))

    def measure(self, way: str, cache: str, nbytes: int, seconds: float) -> Latency:
        """Measure one of WAYS for about ``seconds``."""
        pieces = Pieces(self._arena, nbytes)
        samples: list[float] = []
        found: Difference | None = None
        with cuda.context(self._device):
            # The CPU overlaps independent calls, so that the next ones would hide a miss.
            calls = 1 if cache == COLD else self._calls_a_sample(way, pieces)
            deadline = clock() + round(seconds * 1e9)
            while not found and (len(samples) < _MIN_SAMPLES or clock() < deadline):
                order = self._random.permutation(pieces.count)[: pieces.count // calls * calls]
                lap = order if cache == COLD else np.zeros_like(order)
                expected = self._prepare(way, pieces, lap)
                call, columns = self._calls(way, pieces, lap)
                if cache == COLD:
                    self._evict(columns)
                else:
                    _time(call, columns, calls, 1)
                taken = _time(call, columns, calls, len(lap) // calls)
                samples += [(one - self.empty_sample) / calls for one in taken]
                found = self._difference(way, pieces, lap, expected)
        return Latency(way, cache, nbytes, calls, Distribution(way, samples), found)

    def _calls(
        self, way: str, pieces: Pieces, lap: NDArray[Any]
    ) -> tuple[Callable[..., object], list[list[Any]]]:
        """What to call, and the arguments of a lap's calls: a list of each."""
        _, _, method = way.partition(".")
        if method:
            return getattr(self._region.cpu, method), [[pieces.views[i] for i in lap]]
        driver = cuda.driver()
        ends = [[driver.CUdeviceptr(self._region.ptr)] * len(lap)]
        ends.insert(WAYS[way], [pieces.addresses[i] for i in lap])
        return getattr(driver, way), [*ends, [pieces.rows.shape[1]] * len(lap)]

    def _calls_a_sample(self, way: str, pieces: Pieces) -> int:
        call, columns = self._calls(way, pieces, np.zeros(10 * _MIN_SAMPLES, int))
        ten_calls = min(_time(call, columns, 10, _MIN_SAMPLES))
        wanted = round(_EMPTY_SAMPLES * self.empty_sample / (ten_calls / 10))
        return max(1, min(wanted, _MOST_CALLS, pieces.count))

    def _prepare(self, way: str, pieces: Pieces, lap: NDArray[Any]) -> Bytes:
        """Put bytes where a lap's copies begin, and wrong ones where they end.

        Gives those that the last of them is to leave on the GPU, or each of them on the host.
        """
        if WAYS[way]:
            pieces.rows += np.uint8(self._random.integers(1, 256))
            right: Bytes = pieces.rows[lap[-1]].copy()
        else:
            right = self._noise.bytes(pieces.rows.shape[1])
            pieces.rows[:] = ~right
        gpu_put(self._device, self._region.ptr, ~right if WAYS[way] else right)
        return right

    def _evict(self, columns: Sequence[Sequence[Any]]) -> None:
        """Fill the caches with something else, and then with Python's objects for the arguments.

        Of a memory view that is its own record, and not the memory.
        """
        self._evictor += 1
        for column in columns:
            all(map(bool, column))

    def _difference(
        self, way: str, pieces: Pieces, lap: NDArray[Any], right: Bytes
    ) -> Difference | None:
        """How what a lap's copies left differs from what is right."""
        if WAYS[way]:
            return difference(right, gpu_get(self._device, self._region.ptr, right.size))
        wrong = [i for i in np.unique(lap) if not np.array_equal(pieces.rows[i], right)]
        return difference(right, pieces.rows[wrong[0]].copy()) if wrong else None


def _time(
    call: Callable[..., object], columns: Sequence[Sequence[Any]], calls: int, samples: int
) -> list[int]:
    """Nanoseconds of each sample, which has so many calls; the arguments are in columns."""
    times = []
    run = deque[object](maxlen=0).extend  # the quickest loop that Python has
    with undisturbed():
        for sample in range(samples):
            parts = [column[sample * calls : (sample + 1) * calls] for column in columns]
            batch = map(call, *parts)
            begun = clock()
            run(batch)
            times.append(clock() - begun)
    return times
