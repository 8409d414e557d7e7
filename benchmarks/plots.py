"""Draws a result of run.py as SVG files beside it: ``python benchmarks/plots.py FILE``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import engine
import pingpong
import threads
import transfers
from gdrpy.cli.measure import plotstyle
from rivals import NAMES
from sweep import SIZE
from sweep_tables import RATES_FROM, Sweep, rates
from words import PAGEABLE, PINNED, way

Result = dict[str, Any]
#: Fills the axes of its panels.
Paint = Callable[..., None]
#: Ratios that differ by more have a logarithmic axis.
_WIDE = 4


def draw_if_possible(result: Result, path: Path) -> list[Path]:
    """Draw the plots if matplotlib is installed; else print that it is missing."""
    if find_spec("matplotlib") is None:
        print("no plots: matplotlib is not installed", file=sys.stderr)
        return []
    return draw(result, path)


def draw(result: Result, path: Path) -> list[Path]:
    """Write the plots of all measured modules, named after the result. Needs matplotlib."""
    drawn = []
    for name, plot in PLOTS.items():
        data = [_find(result, *one) for one in plot.wanted]
        if None in data:
            continue
        file = plot_path(path, name)
        where = plotstyle.where_measured(result["header"])
        with plotstyle.drawing(file, plot.title, where, *plot.panels, plot.height) as axes:
            plot.paint(*axes, *data)
        drawn.append(file)
    return drawn


def plot_path(path: Path, name: str) -> Path:
    """The path of a result's plot."""
    return path.with_name(f"{path.stem}-{name}.svg")


def _find(result: Result, module: str, operation: str) -> Any:
    """A sweep, or all distributions, of a module; None if it was not run."""
    found = [
        one
        for one in (*result["sweeps"], *result["distributions"])
        if (one["module"], one["operation"]) == (module, operation)
    ]
    if not found:
        return None
    return found if module == pingpong.MODULE else found[0]


def _latency(left: Any, right: Any, writes: Sweep, reads: Sweep) -> None:
    for axes, sweep in ((left, writes), (right, reads)):
        for name in (transfers.AUTOMATIC, transfers.NUMPY, *NAMES):
            _line(axes, sweep, way(name, PAGEABLE), sweep["median"], name, range(RATES_FROM + 1))
        axes.set_title(f"region.{sweep['operation']}, pageable memory")
        plotstyle.time_axis(axes, "y", "time of a call, median")
        plotstyle.size_axis(axes, [1 << 2, RATES_FROM])


def _bandwidth(*panels_and_sweeps: Any) -> None:
    *panels, writes, reads = panels_and_sweeps
    shown = ((sweep, kind) for sweep in (writes, reads) for kind in (PAGEABLE, PINNED))
    for axes, (sweep, kind) in zip(panels, shown, strict=True):
        fast = {name: rates(sweep, name) for name in sweep["median"]}
        for name in (
            transfers.AUTOMATIC,
            transfers.MAPPING,
            transfers.DMA,
            transfers.ENGINE,
            *NAMES,
        ):
            _line(axes, sweep, way(name, kind), fast, name, range(RATES_FROM, 1 << 62))
        axes.set_title(f"region.{sweep['operation']}, {kind} memory")
        _rates_by_size(axes, [RATES_FROM, max(sweep["by"][SIZE])])


def _choice(axes: Any, writes: Sweep, reads: Sweep) -> None:
    for sweep in (writes, reads):
        for kind in transfers.KINDS[sweep["operation"]]:
            name = way(transfers.OVER_BETTER, kind)
            label = f"region.{sweep['operation']}, {kind}"
            _line(axes, sweep, name, sweep["ratios"], label, range(1 << 62))
    axes.axhline(1.05, color=plotstyle.BLACK, linewidth=1, linestyle="--", label="goal: 1.05")
    axes.set_ylabel("time over that of the best way")
    plotstyle.size_axis(axes, writes["by"][SIZE])


def _threads(left: Any, right: Any, writes: Sweep, reads: Sweep) -> None:
    for axes, sweep in ((left, writes), (right, reads)):
        fast = {name: rates(sweep, name) for name in sweep["median"]}
        for name in fast:
            _line(axes, sweep, name, fast, name, range(1 << 62))
        axes.set_title(sweep["operation"])
        _rates_by_size(axes, sweep["by"][SIZE])


def _engine(*panels_and_sweeps: Any) -> None:
    """A row of panels for each ratio, so that no point hides another one's."""
    *panels, writes, reads = panels_and_sweeps
    shown = [(sweep, name) for name in writes["ratios"] for sweep in (writes, reads)]
    for axes, (sweep, name) in zip(panels, shown, strict=True):
        sizes, ratios = sweep["by"][SIZE], sweep["ratios"][name]
        points = [(size, one) for size, one in zip(sizes, ratios, strict=True) if one]
        axes.scatter(*zip(*points, strict=True), s=6, alpha=0.5, linewidth=0, rasterized=True)
        axes.axhline(0.95, color=plotstyle.VERMILION, linewidth=1, label="5 % slower: 0.95")
        axes.set_title(f"{sweep['operation']}: {name}")
        _ratio_axis(axes)
        plotstyle.size_axis(axes, sizes)


def _ratio_axis(axes: Any) -> None:
    """Make the y axis one of ratios, logarithmic where they differ widely."""
    low, high = axes.get_ylim()
    if low <= 0 or high / low > _WIDE:
        plotstyle.logarithmic(axes, "y")
        axes.yaxis.set_major_formatter(lambda ratio, _: f"{ratio:g}")
    axes.set_ylabel("times faster")
    axes.grid(True, which="major")


def _pingpong(axes: Any, found: Sequence[dict[str, Any]]) -> None:
    rows = [
        plotstyle.Distribution(one["way"], one["counts"], one["median"], one["p99"])
        for one in found
    ]
    plotstyle.distributions(axes, rows, found[0]["edges"], "one exchange")


def _line(
    axes: Any,
    sweep: Sweep,
    name: str,
    columns: dict[str, list[float | None]],
    label: str,
    shown: range,
) -> None:
    """Draw one way against the size, if it took part."""
    points = [
        (size, value)
        for size, value in zip(sweep["by"][SIZE], columns.get(name, ()), strict=False)
        if value is not None and size in shown
    ]
    if points:
        shown_as = f"gdrpy: {label}" if label in _OURS else label
        axes.plot(*zip(*points, strict=True), label=shown_as, **_LOOKS.get(label, {}))


def _rates_by_size(axes: Any, sizes: Iterable[int]) -> None:
    axes.set_ylim(bottom=0)
    axes.set_ylabel("GB/s, median")
    plotstyle.size_axis(axes, sizes)


#: The ways of gdrpy.
_OURS = (
    transfers.AUTOMATIC,
    transfers.MAPPING,
    transfers.DMA,
    transfers.ENGINE,
    transfers.NUMPY,
)
#: A way looks the same in all plots; gdrpy's own choice stands out.
_LOOKS = {
    name: {"color": colour, "marker": marker}
    for name, colour, marker in zip(
        (transfers.AUTOMATIC, *NAMES, transfers.MAPPING, transfers.DMA),
        plotstyle.COLOURS,
        plotstyle.MARKERS,
        strict=True,
    )
}
_LOOKS[transfers.AUTOMATIC] |= {"linewidth": 3, "zorder": 3}
_LOOKS[transfers.ENGINE] = {"color": plotstyle.GREY, "marker": "*"}
_LOOKS[transfers.NUMPY] = _LOOKS[transfers.MAPPING]  # which are never in one plot


class Plot(NamedTuple):
    """A plot: rows and columns of panels, which ``paint`` fills from the data of ``wanted``."""

    title: str
    panels: tuple[int, int]
    height: float
    wanted: Sequence[tuple[str, str]]
    paint: Paint


_TRANSFERS = ((transfers.MODULE, transfers.WRITE), (transfers.MODULE, transfers.READ))
_THREADS = ((threads.MODULE, threads.TO), (threads.MODULE, threads.FROM))
_ENGINE = ((engine.MODULE, engine.TO), (engine.MODULE, engine.FROM))

#: By their names in files.
PLOTS = {
    "latency": Plot(
        "Time of a small copy between host memory and GPU memory, from Python",
        (1, 2),
        4,
        _TRANSFERS,
        _latency,
    ),
    "bandwidth": Plot(
        "Bandwidth of copies between host memory and GPU memory, from Python",
        (2, 2),
        3.4,
        _TRANSFERS,
        _bandwidth,
    ),
    "choice": Plot(
        "Time of the automatically chosen way, relative to the best way",
        (1, 1),
        4.5,
        _TRANSFERS,
        _choice,
    ),
    "threads": Plot(
        "Bandwidth of one copy in C, divided among threads", (1, 2), 4, _THREADS, _threads
    ),
    "engine": Plot(
        "How many times faster the chosen copy routine is, at all sizes and alignments",
        (3, 2),
        2.6,
        _ENGINE,
        _engine,
    ),
    "pingpong": Plot(
        "Time of a signal from the CPU to a running kernel and back",
        (1, 1),
        4,
        ((pingpong.MODULE, pingpong.OPERATION),),
        _pingpong,
    ),
}


def main() -> None:
    """Draw the plots of a result."""
    parser = argparse.ArgumentParser(prog="benchmarks/plots.py", description=__doc__)
    parser.add_argument("result", type=Path)
    path = parser.parse_args().result
    for file in draw(json.loads(path.read_text()), path):
        print(file)


if __name__ == "__main__":
    main()
