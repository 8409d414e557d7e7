"""Draws a result of run.py as SVG files beside it: ``python benchmarks/plots.py FILE``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import engine
import pingpong
import threads
import transfers
from rivals import NAMES
from sweep import SIZE
from sweep_tables import RATES_FROM, Sweep, rates
from words import PAGEABLE, PINNED, size_words, way

#: Text stays text, and the same data gives the same file.
_STYLE = {"svg.fonttype": "none", "svg.hashsalt": "gdrpy", "font.size": 9}
_PANEL = (6.0, 4.2)

Result = dict[str, Any]
#: Fills the axes of its panels.
Paint = Callable[..., None]


def draw_if_possible(result: Result, path: Path) -> list[Path]:
    """Draw the plots if matplotlib is installed; else print that it is missing."""
    if find_spec("matplotlib") is None:
        print("no plots: matplotlib is not installed", file=sys.stderr)
        return []
    return draw(result, path)


def draw(result: Result, path: Path) -> list[Path]:
    """Write the plots of all measured modules, named after the result. Needs matplotlib."""
    import matplotlib
    from matplotlib.figure import Figure

    drawn = []
    for name, (rows, columns, wanted, paint) in _PLOTS.items():
        data = [_find(result, *one) for one in wanted]
        if None in data:
            continue
        with matplotlib.rc_context(_STYLE):
            size = (_PANEL[0] * columns, _PANEL[1] * rows)
            figure = Figure(figsize=size, layout="constrained")
            axes = figure.subplots(rows, columns, squeeze=False).ravel()
            paint(*axes, *data)
            file = plot_path(path, name)
            figure.savefig(file, metadata={"Date": None})
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
        _by_size(axes, f"region.{sweep['operation']}, pageable memory", "us (median)")
        _logarithmic(axes, "y")


def _bandwidth(*panels_and_sweeps: Any) -> None:
    *panels, writes, reads = panels_and_sweeps
    shown = ((sweep, kind) for sweep in (writes, reads) for kind in (PAGEABLE, PINNED))
    for axes, (sweep, kind) in zip(panels, shown, strict=True):
        fast = {name: rates(sweep, name) for name in sweep["median"]}
        for name in (transfers.AUTOMATIC, transfers.MAPPING, transfers.DMA, *NAMES):
            _line(axes, sweep, way(name, kind), fast, name, range(RATES_FROM, 1 << 62))
        _by_size(axes, f"region.{sweep['operation']}, {kind} memory", "GB/s (median)")
        axes.set_ylim(bottom=0)


def _choice(axes: Any, writes: Sweep, reads: Sweep) -> None:
    for sweep in (writes, reads):
        for kind in transfers.KINDS[sweep["operation"]]:
            name = way(transfers.OVER_BETTER, kind)
            label = f"{sweep['operation']}, {kind}"
            _line(axes, sweep, name, sweep["ratios"], label, range(1 << 62))
    axes.axhline(1.05, color="black", linewidth=0.8, linestyle="--", label="goal: 1.05")
    _by_size(axes, "the automatic choice over the better way", "times as long")


def _threads(left: Any, right: Any, writes: Sweep, reads: Sweep) -> None:
    for axes, sweep in ((left, writes), (right, reads)):
        fast = {name: rates(sweep, name) for name in sweep["median"]}
        for name in fast:
            _line(axes, sweep, name, fast, name, range(1 << 62))
        _by_size(axes, f"copy engine, {sweep['operation']}", "GB/s (median)")
        axes.set_ylim(bottom=0)


def _engine(left: Any, right: Any, writes: Sweep, reads: Sweep) -> None:
    for axes, sweep in ((left, writes), (right, reads)):
        sizes = sweep["by"][SIZE]
        for name, ratio in sweep["ratios"].items():
            points = [(size, one) for size, one in zip(sizes, ratio, strict=True) if one]
            axes.scatter(*zip(*points, strict=True), s=4, label=name, rasterized=True)
        axes.axhline(0.95, color="black", linewidth=0.8, linestyle="--", label="0.95")
        _by_size(axes, f"copy engine {sweep['operation']}, all alignments", "times faster")
    _logarithmic(right, "y")


def _pingpong(axes: Any, distributions: Iterable[dict[str, Any]]) -> None:
    for one in distributions:
        label = f"{one['way']}: {one['median']:.2f} us"
        axes.stairs(one["counts"], one["edges"], label=label)
    _logarithmic(axes, "x")
    axes.set_xlabel("us for one exchange; the last bin holds what took longer")
    axes.set_ylabel("exchanges")
    axes.set_title(pingpong.OPERATION)
    axes.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.15))


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
        width = 3 if label == transfers.AUTOMATIC else 1.5
        axes.plot(*zip(*points, strict=True), marker=".", linewidth=width, label=label)


def _logarithmic(axes: Any, which: str) -> None:
    """Make the x or y axis logarithmic, with plain numbers."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axes.set(**{f"{which}scale": "log"})
    axis = getattr(axes, f"{which}axis")
    axis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def _by_size(axes: Any, title: str, ylabel: str) -> None:
    axes.set_title(title)
    axes.set_ylabel(ylabel)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda size, _: size_words(round(size)))
    axes.tick_params(axis="x", rotation=45)
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(fontsize="small")


_TRANSFERS = ((transfers.MODULE, transfers.WRITE), (transfers.MODULE, transfers.READ))

#: By the plot's name: rows and columns of panels, their data, and the painter.
_PLOTS: dict[str, tuple[int, int, tuple[tuple[str, str], ...], Paint]] = {
    "latency": (1, 2, _TRANSFERS, _latency),
    "bandwidth": (2, 2, _TRANSFERS, _bandwidth),
    "choice": (1, 1, _TRANSFERS, _choice),
    "threads": (1, 2, ((threads.MODULE, threads.TO), (threads.MODULE, threads.FROM)), _threads),
    "engine": (1, 2, ((engine.MODULE, engine.TO), (engine.MODULE, engine.FROM)), _engine),
    "pingpong": (1, 1, ((pingpong.MODULE, pingpong.OPERATION),), _pingpong),
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
