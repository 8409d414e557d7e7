"""Plots of what the commands measured. They need matplotlib, which is an extra."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gdrpy.cli.header import Header
from gdrpy.cli.measure import plotstyle
from gdrpy.cli.measure.distribution import Scale
from gdrpy.cli.measure.timing import Samples
from gdrpy.cli.options import CommandParser
from gdrpy.cli.output import Output
from gdrpy.cli.writable import why_not_writable


class Plot(NamedTuple):
    """A title that says what is shown, and what fills the axes, which are so many inches high."""

    title: str
    paint: Callable[[Any], None]
    height: float = 4.5


def add_option(parser: CommandParser, what: str) -> None:
    """``--plot``, which draws ``what``."""
    about = f"draw {what} into a .png or .svg (needs matplotlib)"
    parser.option("--plot", plot_path, "FILE", about)


def plot_path(text: str) -> Path:
    """The file of a plot, which can be drawn and written."""
    path = Path(text)
    if path.suffix.lower() not in (".png", ".svg"):
        raise argparse.ArgumentTypeError(f"{text!r} must end in .png or .svg")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {str(path.parent)!r}")
    if why := why_not_writable(path):
        raise argparse.ArgumentTypeError(why)
    if importlib.util.find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError("it needs matplotlib: pip install matplotlib")
    return path


def draw(path: Path | None, plot: Plot, header: Header, output: Output) -> bool:
    """Write a plot, if one is wanted. False if it cannot be written."""
    if path is None:
        return True
    where = plotstyle.where_measured(header.json())
    try:
        with plotstyle.drawing(path, plot.title, where, height=plot.height) as (axes,):
            plot.paint(axes)
    except OSError as error:
        output.error(f"cannot write {path}: {error.strerror}")
        return False
    output.line(f"plot written to {path}")
    return True


def of_distributions(title: str, what: str, shown: Mapping[str, Samples], scale: Scale) -> Plot:
    """A histogram of each distribution, one below the other; ``what`` is what took the times."""
    edges = [edge / 1e3 for edge in scale.edges]
    rows = [
        plotstyle.Distribution(name, scale.counts(one), one.median / 1e3, one.percentile(99) / 1e3)
        for name, one in shown.items()
    ]
    return Plot(
        title,
        lambda axes: plotstyle.distributions(axes, rows, edges, what),
        plotstyle.height_of(rows),
    )
