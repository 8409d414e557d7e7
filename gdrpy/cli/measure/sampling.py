"""The clock that times single calls, and what it costs."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

clock = time.perf_counter_ns


def clock_cost() -> float:
    """Nanoseconds between two readings of the clock, one right after the other."""
    readings = []
    for _ in range(1000):
        begun = clock()
        readings.append(clock() - begun)
    return statistics.median(readings)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Collect no garbage meanwhile, which would be timed too."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
