"""Thresholds for choosing a copy path, and their defaults."""

from __future__ import annotations

import os
import sys

import msgspec
from msgspec.structs import asdict

#: The threshold of a path that is never the fastest.
NEVER = sys.maxsize

#: The sizes of the C core's thread pools.
MOST_THREADS = 16
MOST_LANES = 8


class Limits(msgspec.Struct, frozen=True):
    """Sizes in bytes from which a copy path is the fastest, and how many threads it uses.

    ``write_threads``: stores by ``threads_to`` threads instead of one. ``write_dma``: DMA from
    ordinary memory through staging, by up to ``lanes`` threads. ``write_dma_pinned``: DMA from
    page-locked memory. ``read_threads``: loads by ``threads_from`` threads, where there is no GPU
    view. ``read_dma``: DMA instead of loads.
    """

    write_threads: int
    write_dma: int
    write_dma_pinned: int
    read_threads: int
    read_dma: int
    threads_to: int
    threads_from: int
    lanes: int

    def check(self) -> None:
        """Raise ValueError for values out of range."""
        counts = {"threads_to": MOST_THREADS, "threads_from": MOST_THREADS, "lanes": MOST_LANES}
        for name, value in asdict(self).items():
            least, most = (1, counts[name]) if name in counts else (0, NEVER)
            if type(value) is not int or not least <= value <= most:
                raise ValueError(f"{name} must be a number from {least} to {most}, not {value!r}")


_CPUS = len(os.sched_getaffinity(0))

#: As measured on an H200 behind PCIe Gen5 x16, on 16 CPUs: see docs/transfers.md.
BUILT_IN = Limits(
    write_threads=1 << 20,
    write_dma=64 << 20 if _CPUS >= MOST_LANES else NEVER,
    write_dma_pinned=256 << 10,
    read_threads=128 << 10,
    read_dma=7 << 10,
    threads_to=min(4, _CPUS),
    threads_from=min(MOST_THREADS, _CPUS),
    lanes=min(MOST_LANES, _CPUS),
)
