"""The look of every plot: those of the commands, of the benchmarks and of the examples.

Drawing needs matplotlib.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from gdrpy.cli.header import gpu_words
from gdrpy.cli.measure.distribution import format_us
from gdrpy.cli.sizes import short_size

#: Colours by Okabe and Ito that people with any colour vision can tell apart, without the yellow,
#: which is faint on white: https://jfly.uni-koeln.de/color/
BLUE, VERMILION, GREEN, PURPLE, SKY, ORANGE, BLACK = COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#E69F00",
    "#000000",
)
GREY = "#6B7280"
#: Shapes tell lines apart where colours do not: in print, for instance.
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

#: Text stays text in SVG, and the same data gives the same file.
_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "grid.color": "#D1D5DB",
    "grid.linewidth": 0.6,
    "lines.markersize": 5,
    "savefig.dpi": 200,  # twice the usual
    "svg.fonttype": "none",
    "svg.hashsalt": "gdrpy",
}
_WIDTH = 10.0
_MARGIN = 0.12
#: Inches of the title, and of each line below it.
_TITLE, _LINE = 0.3, 0.18
#: The most characters of a distribution's name in a line.
_NAME = 30
#: The most labelled sizes and times on an axis; the most sizes on axes that lie side by side.
_MOST_TICKS, _MOST_TICKS_BESIDE = 9, 7
#: The characters of a line of the legend, and what a label takes besides its letters.
_LEGEND, _LEGEND_KEY = 120, 8


class Distribution(NamedTuple):
    """Counts between the edges of bins that all distributions of a plot share; times in us."""

    name: str
    counts: Sequence[int]
    median: float
    p99: float


@contextmanager
def drawing(
    path: Path, title: str, where: Sequence[str], rows: int = 1, columns: int = 1, height: float = 4
) -> Iterator[list[Any]]:
    """The axes of a plot with that title, written to ``path`` at the end. Raises OSError.

    ``where`` are lines below the title. ``height`` is that of a row, in inches.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.rcsetup import cycler

    top = _MARGIN + _TITLE + len(where) * _LINE
    tall = rows * height + top
    lines = {"axes.prop_cycle": cycler(color=COLOURS, marker=MARKERS)}
    with rc_context(_STYLE | lines):
        left, below = _MARGIN / _WIDTH, _MARGIN / tall
        layout = ConstrainedLayoutEngine(rect=(left, below, 1 - 2 * left, 1 - top / tall - below))
        figure = Figure(figsize=(_WIDTH, tall), layout=layout)
        figure.text(left, 1 - below, title, va="top", size=13, weight="bold")
        for number, line in enumerate(where):
            down = _MARGIN + _TITLE + number * _LINE
            figure.text(left, 1 - down / tall, line, va="top", size=9, color=GREY)
        axes = list(figure.subplots(rows, columns, squeeze=False).flat)
        yield axes
        _add_legend(figure, axes)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def where_measured(header: Mapping[str, Any]) -> list[str]:
    """The GPU and its driver, then the host and the date, from the header of a result."""
    driver = header["nvidia_driver"]
    machine = [
        gpu_words(header["gpu"], header["simulated"]),
        f"driver {driver}" if driver else "no NVIDIA driver",
        f"CUDA {header['cuda_driver']}",
        f"backend {header['backend']}",
    ]
    if header["simulated"]:
        machine.append("speeds of host memory")
    host = [
        header["cpu"],
        f"Linux {header['kernel']}",
        f"Python {header['python']}",
        f"gdrpy {header['gdrpy']}",
        header["date"].partition("T")[0],
    ]
    return [", ".join(machine), ", ".join(host)]


def time_words(us: float) -> str:
    """A time on an axis: ``20 ns``, ``1 us``, ``5 ms``."""
    for unit, factor in (("s", 1e6), ("ms", 1e3), ("us", 1)):
        if us >= factor * (1 - 1e-9):
            return f"{us / factor:g} {unit}"
    return f"{us * 1e3:g} ns"


def size_axis(axes: Any, sizes: Iterable[int]) -> None:
    """Make the x axis one of copy sizes, which are bytes."""
    from matplotlib.ticker import NullLocator

    exponents = [math.floor(math.log2(size)) for size in sizes]
    low, high = min(exponents), max(exponents)
    most = _MOST_TICKS if axes.get_subplotspec().get_gridspec().ncols == 1 else _MOST_TICKS_BESIDE
    step = next(step for step in (1, 2, 4, 10, 20) if (high - low) // step < most)
    ticks = [1 << exponent for exponent in range(low, high + 1, step)]
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [short_size(tick) for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("size of a copy")
    axes.grid(True, which="major")


def time_axis(axes: Any, which: str, label: str) -> None:
    """Make the x or the y axis one of times, which are us: logarithmic, with their units."""
    logarithmic(axes, which)
    getattr(axes, f"{which}axis").set_major_formatter(lambda us, _: time_words(us))
    axes.set(**{f"{which}label": label})
    axes.grid(True, which="major", axis=which)


def logarithmic(axes: Any, which: str) -> None:
    """Make an axis of drawn data logarithmic, with as many ticks as there is room for."""
    from matplotlib.ticker import FixedLocator, NullLocator

    axes.set(**{f"{which}scale": "log"})
    low, high = getattr(axes, f"get_{which}lim")()
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 1.5, 2, 3, 4, 5, 7), (1, 2, 5), (1, 3), (1,)):
        ticks = [step * 10.0**decade for decade in decades for step in steps]
        inside = [tick for tick in ticks if low <= tick <= high]
        if len(inside) <= _MOST_TICKS:
            break
    axis = getattr(axes, f"{which}axis")
    axis.set_major_locator(FixedLocator(inside))
    axis.set_minor_locator(NullLocator())


def height_of(shown: Sequence[Distribution]) -> float:
    """The height in inches that axes of distributions need."""
    return 0.9 + 0.45 * len(shown)


def distributions(
    axes: Any, shown: Sequence[Distribution], edges: Sequence[float], label: str
) -> None:
    """Fill axes with a histogram for each distribution, the first one on top."""
    for row, one in enumerate(reversed(shown)):
        heights = [row + 0.8 * count / max(one.counts) for count in one.counts]
        axes.stairs(heights, edges, baseline=row, fill=True, color=BLUE)
        axes.vlines(one.median, row, row + 0.85, color=VERMILION, linewidth=1.5)
        words = f"{format_us(one.median * 1e3)} us (p99 {format_us(one.p99 * 1e3)})"
        axes.annotate(
            words,
            (1, row + 0.3),
            (6, 0),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            size=9,
        )
    names = [textwrap.fill(one.name, _NAME) for one in reversed(shown)]
    axes.set_yticks([row + 0.4 for row in range(len(names))], names)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(-0.1, len(names))
    axes.set_xlim(edges[0], edges[-1])
    time_axis(axes, "x", f"{label}\n(line: median; the last bin also holds all longer times)")


def _add_legend(figure: Any, axes: Sequence[Any]) -> None:
    """One legend for all axes, below them, where it hides nothing."""
    shown: dict[str, Any] = {}
    for one in axes:
        for handle, label in zip(*one.get_legend_handles_labels(), strict=True):
            shown.setdefault(label, handle)
    if shown:
        room = _LEGEND // (max(map(len, shown)) + _LEGEND_KEY)
        lines = math.ceil(len(shown) / room)
        columns = math.ceil(len(shown) / lines)
        figure.legend(
            list(shown.values()),
            list(shown),
            loc="outside lower center",
            ncols=columns,
            frameon=False,
        )
