"""How samples are distributed: logarithmic bins, drawn as a line of bars."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

from gdrpy.cli.measure.timing import Samples
from gdrpy.cli.output import CELL_EDGES, Renderable, table, table_width

_BARS = "▁▂▃▄▅▆▇█"

#: The most bins, and the fewest that a narrow terminal shows.
_BINS, _FEWEST_BINS = 48, 12
#: The narrowest bin in nanoseconds: in narrower ones the clock's grain would leave gaps.
_NARROWEST_BIN = 20


class Scale:
    """Logarithmic bins that several distributions share, so that their bars can be compared.

    They reach from the least minimum to the greatest 99th percentile; the last bin also holds
    everything beyond.
    """

    def __init__(self, shown: Collection[Samples], bins: int = _BINS) -> None:
        low = max(min(one.minimum for one in shown), 1.0)
        high = max(*(one.percentile(99) for one in shown), low + _NARROWEST_BIN)
        most = math.log(high / low) / math.log1p(_NARROWEST_BIN / low)
        bins = min(bins, int(most + 1e-9))
        self.edges = [low * (high / low) ** (step / bins) for step in range(bins + 1)]

    def counts(self, one: Samples) -> list[int]:
        """How many samples fall into each bin."""
        counts = [0] * (len(self.edges) - 1)
        for sample in one.values:
            counts[bisect_right(self.edges, sample, 1, len(counts)) - 1] += 1
        return counts

    def bars(self, one: Samples) -> str:
        """One character for each bin: a bar, or a blank if the bin is empty."""
        counts = self.counts(one)
        most = max(counts)
        return "".join(
            _BARS[(count * len(_BARS) - 1) // most] if count else " " for count in counts
        )

    def json(self, one: Samples) -> dict[str, list[float]]:
        """The edges of the bins, one more than there are bins, and the counts."""
        return {"edges": self.edges, "counts": [*self.counts(one)]}

    def __str__(self) -> str:
        return f"{format_us(self.edges[0])} to {format_us(self.edges[-1])} us"


@dataclass(frozen=True)
class Bars:
    """The bars of one distribution, in as many bins as a table has room for."""

    shown: Collection[Samples]
    one: Samples

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(Scale(self.shown, min(options.max_width, _BINS)).bars(self.one), no_wrap=True)

    def __rich_measure__(self, *_: object) -> Measurement:
        return Measurement(_FEWEST_BINS, _BINS)


def bars_table(
    title: str,
    what: str,
    shown: Mapping[str, Samples],
    scale: Scale,
    width: int,
    more: Mapping[str, Sequence[str]] | None = None,
) -> Renderable:
    """A row for each distribution, in us, by its name; ``more`` are further columns by title.

    The bars are left out where ``width`` has no room for them beside the figures.
    """
    columns = {
        what: [*shown],
        "min": [format_us(one.minimum) for one in shown.values()],
        "median": [format_us(one.median) for one in shown.values()],
        "p99": [format_us(one.percentile(99)) for one in shown.values()],
        **(more or {}),
    }
    figures = [name for name in columns if name != what]
    if width - table_width(columns) >= _FEWEST_BINS + CELL_EDGES:
        bars = {"distribution": [Bars(shown.values(), one) for one in shown.values()]}
        caption = f"distribution: {scale}, logarithmic; the last bar holds all beyond"
    else:
        bars, caption = {}, None
    rows = zip(*columns.values(), *bars.values(), strict=True)
    names = [*columns, *bars]
    return table(names, rows, title, right=figures, whole=columns, caption=caption)


def format_us(nanoseconds: float) -> str:
    """A time in us with about three digits."""
    us = nanoseconds / 1e3
    return f"{us:.{0 if us >= 99.95 else 1 if us >= 9.995 else 2}f}"
