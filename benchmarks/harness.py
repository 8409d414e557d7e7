"""Timing: contenders take turns, and each proves that it moves the right bytes."""

from __future__ import annotations

import math
import random
import statistics
import time
import timeit
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

MAX_SAMPLES = 100
MIN_SAMPLES = 7

#: A batch shorter than this (ns) would measure the clock.
SHORTEST_BATCH = 100_000
LONGEST_BATCH = 5_000_000

_random = random.Random(1)

#: What a time in ns is multiplied with for a unit.
TIME_UNITS = {"us": 1e-3, "ms": 1e-6}
#: Thousands of requests a second.
REQUEST_RATE_UNIT = "kHz"


class Timed(Protocol):
    """Something that can be done once, for what it does, and many times, for how long it takes."""

    def once(self) -> Any:
        """Do it, and give what it gives, if anything."""

    def batch(self, calls: int) -> int:
        """Do it so many times; the nanoseconds that took."""


class Statement:
    """A Python statement in timeit's loop, the names it uses bound beforehand.

    What it assigns to ``result`` is what :meth:`once` gives.
    """

    def __init__(self, text: str, **names: Any) -> None:
        self._code = compile(text, "<benchmark>", "exec")
        self._names = names
        self._timer = timeit.Timer(text, timer=time.perf_counter_ns, globals=names)

    def once(self) -> Any:
        names = dict(self._names)
        exec(self._code, names)
        return names.get("result")

    def batch(self, calls: int) -> int:
        return int(self._timer.timeit(calls))


#: Does a thing once and tells whether the right bytes arrived.
Verify = Callable[[Timed], bool]


@dataclass(frozen=True)
class Contender:
    """One way to do what is compared. ``verify`` is None where no data is moved."""

    way: str
    method: str
    timed: Timed
    verify: Verify | None = None


@dataclass(frozen=True)
class Topic:
    """What is measured, less the way it is done."""

    module: str
    operation: str
    nbytes: int | None = None
    unit: str = "us"

    def sample(self, nanoseconds: float) -> float:
        """A time in this topic's unit."""
        return nanoseconds * TIME_UNITS[self.unit]


@dataclass
class Measurement:
    """Samples of one way to do one thing."""

    topic: Topic
    way: str
    method: str
    samples: list[float]
    calls_per_sample: int = 1
    verified: bool | None = None
    derived: bool = False

    @property
    def id(self) -> str:
        """Its name among a run's measurements."""
        return identifier(self.topic.module, self.topic.operation, self.topic.nbytes, self.way)

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    def json(self) -> dict[str, Any]:
        """As plain values. A rate has no p99: its slow end is the minimum."""
        ordered = sorted(self.samples)
        is_rate = self.topic.unit not in TIME_UNITS
        p99 = None if is_rate else ordered[math.ceil(0.99 * len(ordered)) - 1]
        return {
            "id": self.id,
            "module": self.topic.module,
            "operation": self.topic.operation,
            "nbytes": self.topic.nbytes,
            "way": self.way,
            "unit": self.topic.unit,
            "method": self.method,
            "derived": self.derived,
            "verified": self.verified,
            "calls_per_sample": self.calls_per_sample,
            "count": len(ordered),
            "median": _round(self.median),
            "min": _round(ordered[0]),
            "p99": None if p99 is None else _round(p99),
            "max": _round(ordered[-1]),
            "samples": [_round(sample) for sample in self.samples],
        }


@dataclass(frozen=True)
class Figure:
    """One figure taken from many points, and the point that it is of, in words."""

    id: str
    value: float
    unit: str
    where: str | None = None

    def json(self) -> dict[str, Any]:
        """As plain values."""
        return {"id": self.id, "value": _round(self.value), "unit": self.unit, "where": self.where}


class Points(Protocol):
    """A comparison at many points, kept as statistics: see sweep.py."""

    def json(self) -> dict[str, Any]:
        """As plain values."""


def identifier(module: str, operation: str, nbytes: int | None, way: str) -> str:
    """The id of a measurement."""
    return "/".join(str(part) for part in (module, operation, nbytes, way) if part is not None)


def _round(value: float) -> float:
    return round(value, 4)


@dataclass
class Session:
    """One run: how long to measure, and what was found so far.

    ``seconds`` is the time for each comparison; ``step`` is told what comes next.
    """

    seconds: float
    quick: bool
    step: Callable[[str], None]
    measurements: list[Measurement] = field(default_factory=list)
    sweeps: list[Points] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    distributions: list[dict[str, Any]] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)

    def add(self, measurement: Measurement) -> Measurement:
        """Keep a measurement."""
        self.measurements.append(measurement)
        return measurement

    def compare(self, topic: Topic, contenders: Sequence[Contender]) -> dict[str, Measurement]:
        """Measure contenders in turns, so that drift hits all of them.

        Each is verified before and after. The measurements, by way.
        """
        size = "" if topic.nbytes is None else f" {topic.nbytes} B"
        self.step(f"{topic.module}: {topic.operation}{size}")
        verified = {one.way: verify(one) for one in contenders}
        batch = min(
            max(self.seconds * 1e9 / MAX_SAMPLES / len(contenders), SHORTEST_BATCH), LONGEST_BATCH
        )
        turns = take_turns(contenders, self.seconds, batch, MIN_SAMPLES, MAX_SAMPLES)

        found = {}
        for contender, turn in zip(contenders, turns, strict=True):
            right = verified[contender.way]
            if right is not None:
                right = right and verify(contender) is True
            samples = [topic.sample(taken) for taken in turn.samples]
            found[contender.way] = self.add(
                Measurement(topic, contender.way, contender.method, samples, turn.calls, right)
            )
        return found

    def derive_figure(self, figure: Figure) -> None:
        """Add a figure taken from many points."""
        self.figures.append(figure)

    def derive_difference(self, one: Measurement, other: Measurement) -> None:
        """Add what ``one`` takes more than ``other``, round by round."""
        self.add(
            Measurement(
                one.topic,
                f"{one.way} - {other.way}",
                f"per round, {one.way} less {other.way}",
                [a - b for a, b in zip(one.samples, other.samples, strict=True)],
                verified=one.verified and other.verified is not False,
                derived=True,
            )
        )


def verify(contender: Contender) -> bool | None:
    """Whether a contender moves the right bytes, None where it moves none."""
    return None if contender.verify is None else contender.verify(contender.timed)


@dataclass(frozen=True)
class Turns:
    """What one contender took in its turns: ns a call, each the mean of ``calls`` calls."""

    calls: int
    samples: list[float]


def take_turns(
    contenders: Sequence[Contender], seconds: float, batch: float, least: int, most: int
) -> list[Turns]:
    """Time contenders in turns, with batches of about so many ns.

    The order of each round is drawn by lot, so that nobody always follows the same one, and what
    that leaves in the CPU's caches; and nobody follows itself. There are ``least`` to ``most``
    rounds, within ``seconds`` where ``least`` allows it.
    """
    turns = [Turns(calls_for(one.timed, batch), []) for one in contenders]
    order = list(zip(contenders, turns, strict=True))
    deadline = time.monotonic() + seconds
    rounds = 0
    while rounds < least or (rounds < most and time.monotonic() < deadline):
        last = order[-1]
        _random.shuffle(order)
        if order[0] is last:
            order.reverse()
        for contender, turn in order:
            turn.samples.append(contender.timed.batch(turn.calls) / turn.calls)
        rounds += 1
    return turns


def calls_for(timed: Timed, nanoseconds: float) -> int:
    """How many calls take about so long."""
    calls = 1
    while True:
        taken = max(timed.batch(calls), 1)
        if taken >= nanoseconds / 2:
            return max(1, round(calls * nanoseconds / taken))
        calls *= max(2, min(10, int(nanoseconds / taken)))
