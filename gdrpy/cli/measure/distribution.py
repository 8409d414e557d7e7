"""How the times of one thing are distributed: in figures, and in a line of bars."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table

_BARS = "▁▂▃▄▅▆▇█"

#: No bin is narrower in nanoseconds: the clock's grain would leave every other one empty.
_NARROWEST_BIN = 20


@dataclass(frozen=True)
class Distribution:
    """Times of one thing in nanoseconds, at least one."""

    label: str
    samples: Sequence[float]

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def minimum(self) -> float:
        return min(self.samples)

    @property
    def maximum(self) -> float:
        return max(self.samples)

    def percentile(self, percent: float) -> float:
        """The sample that so many percent of them do not exceed."""
        ordered = sorted(self.samples)
        rank = math.ceil(round(percent * len(ordered) / 100, 6))
        return ordered[max(rank, 1) - 1]

    def json(self) -> dict[str, float]:
        """As plain values."""
        return {
            "count": len(self.samples),
            "minimum": self.minimum,
            "median": self.median,
            "p90": self.percentile(90),
            "p99": self.percentile(99),
            "p99.9": self.percentile(99.9),
            "maximum": self.maximum,
        }


class Scale:
    """Logarithmic bins that several distributions share, so that their bars can be compared.

    They reach from the least minimum to the greatest 99th percentile; the last bin holds what lies
    beyond it too.
    """

    def __init__(self, shown: Sequence[Distribution], bins: int = 48) -> None:
        low = max(min(one.minimum for one in shown), 1.0)
        high = max(*(one.percentile(99) for one in shown), low + _NARROWEST_BIN)
        most = math.log(high / low) / math.log1p(_NARROWEST_BIN / low)
        bins = min(bins, int(most + 1e-9))
        self.edges = [low * (high / low) ** (step / bins) for step in range(bins + 1)]

    def counts(self, one: Distribution) -> list[int]:
        """How many samples fall into each bin."""
        counts = [0] * (len(self.edges) - 1)
        for sample in one.samples:
            counts[bisect_right(self.edges, sample, 1, len(counts)) - 1] += 1
        return counts

    def bars(self, one: Distribution) -> str:
        """A bar of one character for each bin, blank where it is empty."""
        counts = self.counts(one)
        most = max(counts)
        return "".join(
            _BARS[(count * len(_BARS) - 1) // most] if count else " " for count in counts
        )

    def json(self, one: Distribution) -> dict[str, list[float]]:
        """The edges of the bins, one more than there are bins, and the counts."""
        return {"edges": self.edges, "counts": [*self.counts(one)]}

    def __str__(self) -> str:
        return f"{format_us(self.edges[0])} to {format_us(self.edges[-1])} us"


def table(
    title: str,
    what: str,
    shown: Sequence[Distribution],
    scale: Scale,
    more: Mapping[str, Sequence[str]] | None = None,
) -> Table:
    """A row for each distribution of ``what``, in us; ``more`` are columns by their title."""
    made = Table(title=title, title_justify="left")
    made.add_column(what, no_wrap=True)
    columns = {
        "min": [format_us(one.minimum) for one in shown],
        "median": [format_us(one.median) for one in shown],
        "p99": [format_us(one.percentile(99)) for one in shown],
        **(more or {}),
    }
    for name in columns:
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column(f"{scale}, logarithmic", no_wrap=True)
    for one, *figures in zip(shown, *columns.values(), strict=True):
        made.add_row(one.label, *figures, scale.bars(one))
    return made


def format_us(nanoseconds: float) -> str:
    """A time in us, in about three digits."""
    us = nanoseconds / 1e3
    return f"{us:.{0 if us >= 99.95 else 1 if us >= 9.995 else 2}f}"
