"""Comparisons: contenders take turns, and each proves that it moves the right bytes.

Samples are taken by the same code as those of ``gdrpy copybw`` and the other commands.
"""

from __future__ import annotations

import statistics
import time
import timeit
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from gdrpy.cli.measure import timing
from gdrpy.cli.measure.distribution import Scale
from gdrpy.cli.measure.timing import Samples, take_turns

MAX_SAMPLES = 100
MIN_SAMPLES = 7

#: A batch shorter than this (ns) would measure the clock.
SHORTEST_BATCH = 100_000
LONGEST_BATCH = 5_000_000

#: The bins of a distribution.
_BINS = 60

#: The factor from ns to each unit.
TIME_UNITS = {"us": 1e-3, "ms": 1e-6}
#: Thousands of requests a second.
REQUEST_RATE_UNIT = "kHz"


class Timed(timing.Timed, Protocol):
    """Something that can be done once, for its effect, and many times in a row, for its time."""

    def once(self) -> Any:
        """Do it once; returns its result, if any."""


class Statement:
    """A Python statement in timeit's loop, the names it uses bound beforehand.

    :meth:`once` returns the value that it assigns to ``result``.
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


@dataclass(frozen=True)
class Check:
    """A condition that must hold beside what is measured, and what was found."""

    what: str
    passed: bool
    found: str


#: Does a thing once, and returns whether the right bytes arrived.
Verify = Callable[[Timed], bool]


@dataclass(frozen=True)
class Contender:
    """One of the ways that are compared. ``verify`` is None if it moves no data."""

    way: str
    method: str
    timed: Timed
    verify: Verify | None = None


@dataclass(frozen=True)
class Topic:
    """The subject of a measurement, without the way."""

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
        """Its name among the measurements of a run."""
        return identifier(self.topic.module, self.topic.operation, self.topic.nbytes, self.way)

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    def json(self) -> dict[str, Any]:
        """As plain values. A rate has no p99: its slow end is the minimum."""
        samples = Samples(self.samples)
        is_rate = self.topic.unit not in TIME_UNITS
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
            "count": len(self.samples),
            "median": _round(samples.median),
            "min": _round(samples.minimum),
            "p99": None if is_rate else _round(samples.percentile(99)),
            "max": _round(samples.maximum),
            "samples": [_round(sample) for sample in self.samples],
        }


@dataclass(frozen=True)
class Figure:
    """One figure taken from many points, and its point in words."""

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
    """One run: the time for measuring, and the findings so far.

    ``seconds`` is the time for each comparison; ``step`` receives the name of the next one.
    ``kills`` is how many processes to kill; None leaves it to the time that it takes. ``mscclpp``
    is a folder with the sources of MSCCL++.
    """

    seconds: float
    quick: bool
    step: Callable[[str], None]
    kills: int | None = None
    mscclpp: Path | None = None
    measurements: list[Measurement] = field(default_factory=list)
    sweeps: list[Points] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    distributions: list[dict[str, Any]] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    begun: float = field(default_factory=time.monotonic)

    def seconds_since_begun(self) -> float:
        return round(time.monotonic() - self.begun, 1)

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
        timed = [one.timed for one in contenders]
        turns = take_turns(timed, self.seconds, batch, MIN_SAMPLES, MAX_SAMPLES)

        found = {}
        for contender, turn in zip(contenders, turns, strict=True):
            right = verified[contender.way]
            if right is not None:
                right = right and verify(contender) is True
            samples = [topic.sample(taken) for taken in turn.values]
            found[contender.way] = self.add(
                Measurement(topic, contender.way, contender.method, samples, turn.calls, right)
            )
        return found

    def keep_single_times(
        self,
        module: str,
        operation: str,
        methods: Mapping[str, str],
        times: Mapping[str, Sequence[int]],
    ) -> None:
        """Keep the distributions of single times (ns) by way, and their medians as figures.

        What was timed was verified.
        """
        shown = {way: Samples(one) for way, one in times.items()}
        scale = Scale(shown.values(), _BINS)
        for way, one in shown.items():
            name = identifier(module, operation, None, way)
            self.distributions.append(
                {
                    "id": name,
                    "module": module,
                    "operation": operation,
                    "way": way,
                    "unit": "us",
                    "method": methods[way],
                    "verified": True,
                    **_us(one.json()),
                    "edges": [round(edge / 1e3, 4) for edge in scale.edges],
                    "counts": scale.counts(one),
                }
            )
            self.derive_figure(Figure(name, one.median / 1e3, "us"))

    def derive_figure(self, figure: Figure) -> None:
        """Add a figure taken from many points."""
        self.figures.append(figure)

    def derive_difference(self, one: Measurement, other: Measurement) -> None:
        """Add the time of ``one`` less the time of ``other``, round by round."""
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


def _us(found: dict[str, float]) -> dict[str, float]:
    return {name: one if name == "count" else round(one / 1e3, 4) for name, one in found.items()}


def verify(contender: Contender) -> bool | None:
    """Whether a contender moves the right bytes; None if it moves none."""
    return None if contender.verify is None else contender.verify(contender.timed)
