"""What gdrpy promises of its speed, and whether a run kept it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import attach
import bandwidth
import broker
import latency
from harness import Measurement, identifier

NOT_APPLICABLE = "not applicable (simulated GPU)"
NOT_APPLICABLE_HERE = "not applicable (real GPU)"
NOT_MEASURED = "not measured"
MET = "met"
MISSED = "missed"


@dataclass(frozen=True)
class Goal:
    """A bound for the median of the measurement ``source``.

    With ``relative_to``, ids of rivals, the figure is how many times it goes into the least of
    theirs.
    """

    words: str
    source: str
    bound: float
    unit: str
    at_least: bool = False
    relative_to: tuple[str, ...] = ()
    #: Whether it is of software alone: it is then for the simulated GPU, and for no real one.
    simulated: bool = False

    def check(self, medians: dict[str, float]) -> float | None:
        """The figure to hold against the bound, None where it was not measured."""
        figure = medians.get(self.source)
        if figure is None or not self.relative_to:
            return figure
        rivals = [medians[one] for one in self.relative_to if one in medians]
        return min(rivals) / figure if rivals else None

    def kept(self, figure: float) -> bool:
        """Whether a figure is good enough."""
        return figure >= self.bound if self.at_least else figure <= self.bound


def _latency(operation: str, nbytes: int, way: str) -> str:
    return identifier(latency.MODULE, operation, nbytes, way)


def _broker(operation: str, way: str) -> str:
    return identifier(broker.MODULE, operation, None, way)


def _rate(operation: str) -> str:
    return identifier(bandwidth.MODULE, operation, bandwidth.MIB, bandwidth.MAPPING)


GOALS = (
    Goal(
        "write 64 B: Python over the C routine",
        _latency("write", 64, f"{latency.WRITE} - {latency.C_ROUTINE}"),
        0.10,
        "us",
    ),
    Goal(
        "write 64 B: times faster than cuMemcpyHtoD at its best",
        _latency("write", 64, latency.WRITE),
        20,
        "x",
        at_least=True,
        relative_to=(
            _latency("write", 64, "cuMemcpyHtoD"),
            _latency("write", 64, "cuMemcpyHtoD, pinned"),
        ),
    ),
    Goal(
        "read 64 B: Python over the C routine",
        _latency("read", 64, f"{latency.READ} - {latency.C_ROUTINE}"),
        0.15,
        "us",
    ),
    Goal("to the mapping, 1 MiB, one thread", _rate("write"), 19, "GB/s", at_least=True),
    Goal("from the mapping, 1 MiB, one thread", _rate("read"), 0.95, "GB/s", at_least=True),
    Goal(attach.FRESH, identifier(attach.MODULE, attach.FRESH, None, "gdrpy"), 1, "ms"),
    Goal(attach.FURTHER, identifier(attach.MODULE, attach.FURTHER, None, "gdrpy"), 0.1, "ms"),
    Goal(
        "broker: get with its CPU view, one core",
        _broker(broker.ROUND_TRIP, broker.GET),
        25,
        "us",
        simulated=True,
    ),
    Goal(
        "broker: a bare server's round trip over get with its CPU view",
        _broker(broker.ROUND_TRIP, broker.GET),
        round(1 / 1.6, 3),
        "x",
        at_least=True,
        relative_to=(_broker(broker.ROUND_TRIP, broker.BARE),),
        simulated=True,
    ),
    Goal(
        "broker: a bare server's requests a second over its own, 16 clients",
        _broker(broker.THROUGHPUT, broker.BROKER),
        round(1 / 0.6, 3),
        "x",
        relative_to=(_broker(broker.THROUGHPUT, broker.BARE),),
        simulated=True,
    ),
    Goal(
        "broker: cold process, first get and load, over a bare Python's start",
        _broker(broker.COLD, f"{broker.CONNECT_AND_GET} - {broker.BARE_PYTHON}"),
        30,
        "ms",
        simulated=True,
    ),
    Goal(
        "broker: 1,000 regions got in one call",
        _broker(broker.MANY, "gdrpy"),
        20,
        "ms",
        simulated=True,
    ),
    Goal(
        "broker: first get of a process, with its CPU view",
        _broker(broker.FIRST, "gdrpy"),
        1,
        "ms",
    ),
    Goal(
        "broker: get with its CPU view, on a GPU", _broker(broker.ROUND_TRIP, broker.GET), 150, "us"
    ),
    Goal(
        "broker: allocate over the driver's cuMemCreate and export",
        _broker(broker.ALLOCATE, f"{broker.BROKER} - {broker.CREATE_AND_EXPORT}"),
        40,
        "us",
    ),
)


def check(measurements: Iterable[Measurement], simulated: bool) -> list[dict[str, Any]]:
    """Every goal beside what was measured; ``figure`` is None where that says nothing."""
    medians = {one.id: one.median for one in measurements if one.verified is not False}
    return [_row(goal, medians, goal.simulated == simulated) for goal in GOALS]


def _row(goal: Goal, medians: dict[str, float], applies: bool) -> dict[str, Any]:
    figure = goal.check(medians) if applies else None
    if figure is not None:
        verdict = MET if goal.kept(figure) else MISSED
    else:
        other = NOT_APPLICABLE_HERE if goal.simulated else NOT_APPLICABLE
        verdict = NOT_MEASURED if applies else other
    return {
        "goal": goal.words,
        "relation": ">=" if goal.at_least else "<=",
        "bound": goal.bound,
        "unit": goal.unit,
        "figure": None if figure is None else round(figure, 4),
        "verdict": verdict,
        "source": goal.source,
        "relative_to": goal.relative_to,
    }
