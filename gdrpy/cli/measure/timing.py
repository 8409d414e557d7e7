"""How time is measured: calls make samples, and samples make statistics.

The commands of this folder and the benchmarks share it. Times are in nanoseconds.
"""

from __future__ import annotations

import gc
import math
import os
import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, Protocol

clock = time.perf_counter_ns
_exhaust = deque[object](maxlen=0).extend

#: The length of a batch, well above the clock's grain, and the fewest batches.
_SAMPLE_NS, _MIN_SAMPLES = 1e6, 3
#: In calls this long, what another contender left in the caches hardly counts.
_LONG_NS = 2e6

_random = random.Random(1)


def clock_cost() -> float:
    """Nanoseconds between two readings of the clock, one right after the other."""
    readings = []
    for _ in range(1000):
        begun = clock()
        readings.append(clock() - begun)
    return statistics.median(readings)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Keep the garbage collector from running, which would be timed too."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@contextmanager
def pinned_to(cpu: int | None) -> Iterator[None]:
    """Keep this thread on one CPU; None leaves it alone.

    Raises OSError or OverflowError for a CPU on which it may not run.
    """
    if cpu is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass(frozen=True)
class Samples:
    """Samples of one thing, at least one; each is the mean of ``calls`` calls."""

    values: Sequence[float]
    calls: int = 1

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def minimum(self) -> float:
        return min(self.values)

    @property
    def maximum(self) -> float:
        return max(self.values)

    def percentile(self, percent: float) -> float:
        """The least sample that is not exceeded by this many percent of the samples."""
        ordered = sorted(self.values)
        rank = math.ceil(round(percent * len(ordered) / 100, 6))
        return ordered[max(rank, 1) - 1]

    def json(self) -> dict[str, float]:
        """The statistics as plain values."""
        return {
            "count": len(self.values),
            "minimum": self.minimum,
            "median": self.median,
            "p90": self.percentile(90),
            "p99": self.percentile(99),
            "p99.9": self.percentile(99.9),
            "p99.99": self.percentile(99.99),
            "maximum": self.maximum,
        }


class Timed(Protocol):
    """Something that can be done many times in a row, and timed."""

    def batch(self, calls: int) -> int:
        """Do it ``calls`` times; returns the nanoseconds."""


class Calls:
    """Calls of one function in the quickest loop that Python has.

    Each column holds one argument of all calls; it begins again after its end.
    """

    def __init__(self, function: Callable[..., object], *columns: Sequence[Any]) -> None:
        self.columns = columns
        self._function = function
        self._arguments = [cycle(column) for column in columns]

    def batch(self, calls: int) -> int:
        batch = map(self._function, *[list(islice(one, calls)) for one in self._arguments])
        begun = clock()
        _exhaust(batch)
        return clock() - begun


def calls_for(timed: Timed, nanoseconds: float) -> int:
    """How many calls take about this long."""
    calls = 1
    while True:
        taken = max(timed.batch(calls), 1)
        if taken >= nanoseconds / 2:
            return max(1, round(calls * nanoseconds / taken))
        calls *= max(2, min(10, int(nanoseconds / taken)))


def sample(timed: Timed, seconds: float) -> Samples:
    """Time one thing, warm, for about ``seconds``."""
    timed.batch(1)
    with undisturbed():
        return take_turns([timed], seconds, _SAMPLE_NS, _MIN_SAMPLES)[0]


def take_turns(
    contenders: Sequence[Timed], seconds: float, batch: float, least: int, most: int | None = None
) -> list[Samples]:
    """Time contenders in turns, in batches of about ``batch`` ns each.

    Each round draws its order by lot, so that no contender always follows the same one and finds
    the CPU's caches as that left them; none follows itself. There are ``least`` to ``most`` rounds,
    within ``seconds`` if ``least`` allows it.

    A call that does not count comes before each batch, unless it takes long: so no contender pays
    for cold caches and sleeping threads in a larger part of its calls than another.
    """
    turns = [(one, calls_for(one, batch), list[float]()) for one in contenders]
    order = list(turns)
    deadline = time.monotonic() + seconds
    rounds = 0
    while rounds < least or ((most is None or rounds < most) and time.monotonic() < deadline):
        last = order[-1]
        _random.shuffle(order)
        if order[0] is last:
            order.reverse()
        for timed, calls, taken in order:
            if not taken or taken[-1] < _LONG_NS:
                timed.batch(1)
            taken.append(timed.batch(calls) / calls)
        rounds += 1
    return [Samples(taken, calls) for _, calls, taken in turns]
