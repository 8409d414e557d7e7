"""Measuring copies to and from a region: the ways, the clock, and whether the bytes arrived."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import gdrpy
from gdrpy import Region
from gdrpy.cli.data import Bytes, Difference, Noise, arrived, prepare

#: The four things measured, in the order in which they are shown.
WAYS = ("mapping write", "mapping read", "DMA write", "DMA read")

#: Copies are repeated until a sample takes about this many seconds, well above the clock's grain.
_SAMPLE_SECONDS = 1e-3
_MIN_SAMPLES = 3


@dataclass(frozen=True)
class Measurement:
    """One way at one size. ``samples`` are seconds a copy, each the mean of ``copies`` copies.

    ``verified`` is None where the data was not looked at.
    """

    way: str
    nbytes: int
    copies: int
    samples: list[float]
    verified: bool | None
    difference: Difference | None

    def _gigabytes(self, seconds: float) -> float:
        return self.nbytes / seconds / 1e9

    @property
    def median(self) -> float:
        """GB/s (1e9 bytes) of the median sample."""
        return self._gigabytes(statistics.median(self.samples))

    @property
    def lowest(self) -> float:
        """GB/s of the slowest sample."""
        return self._gigabytes(max(self.samples))

    @property
    def highest(self) -> float:
        """GB/s of the fastest sample."""
        return self._gigabytes(min(self.samples))


def time_copies(copy: Callable[[], object], seconds: float) -> tuple[int, list[float]]:
    """Time a copy, warm, for about ``seconds``: copies a sample, and seconds a copy of each."""
    copy()
    copies = max(1, round(_SAMPLE_SECONDS / max(_time(copy, 1), 1e-9)))
    samples: list[float] = []
    deadline = time.perf_counter() + seconds
    while len(samples) < _MIN_SAMPLES or time.perf_counter() < deadline:
        samples.append(_time(copy, copies))
    return copies, samples


def _time(copy: Callable[[], object], copies: int) -> float:
    begun = time.perf_counter()
    for _ in range(copies):
        copy()
    return (time.perf_counter() - begun) / copies


class Bench:
    """A region and a page-locked host buffer of the same size to copy between."""

    def __init__(self, region: Region, seed: int) -> None:
        assert region.device is not None
        self._region = region
        self._data = Noise(seed).bytes(region.nbytes)
        self._host: Bytes = gdrpy.pinned(region.nbytes, region.device).numpy()

    def measure(self, way: str, nbytes: int, seconds: float, *, verify: bool) -> Measurement:
        """Measure one of WAYS for ``nbytes`` bytes."""
        host, region = self._host[:nbytes], self._region
        copy: Callable[[], object] = {
            "mapping write": lambda: region.cpu.write(host),
            "mapping read": lambda: region.cpu.readinto(host),
            "DMA write": lambda: region.write(host, 0, "dma"),
            "DMA read": lambda: region.readinto(host, 0, "dma"),
        }[way]
        writes = way.endswith("write")
        # Other bytes each time, so that what an earlier way left behind does not pass for a copy.
        data = self._data[:nbytes] ^ np.uint8(0x11 * (1 + WAYS.index(way)))
        prepare(region, host, data, writes=writes)
        copies, samples = time_copies(copy, seconds)
        found = arrived(region, host, data, writes=writes) if verify else None
        verified = None if not verify else found is None
        return Measurement(way, nbytes, copies, samples, verified, found)
