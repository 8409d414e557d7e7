"""Plots of the figures. They need matplotlib, which is an extra."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from gdrpy.cli.exits import UNUSABLE, CommandError
from gdrpy.cli.header import Header, gpu_words
from gdrpy.cli.measure.distribution import Scale, format_us
from gdrpy.cli.measure.timing import Samples
from gdrpy.cli.options import CommandParser
from gdrpy.cli.output import Output
from gdrpy.cli.sizes import format_size
from gdrpy.cli.writable import why_not_writable


def add_option(parser: CommandParser, what: str) -> None:
    """``--plot``, which draws ``what``."""
    about = f"draw {what} into a .png or .svg (needs matplotlib)"
    parser.option("--plot", plot_path, "FILE", about)


def plot_path(text: str) -> Path:
    """The file of a plot, which can be written."""
    path = Path(text)
    if path.suffix.lower() not in (".png", ".svg"):
        raise argparse.ArgumentTypeError(f"{text!r} must end in .png or .svg")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {str(path.parent)!r}")
    if why := why_not_writable(path):
        raise argparse.ArgumentTypeError(why)
    return path


def require_matplotlib(path: Path | None) -> None:
    """Raise CommandError, before anything is measured, if a plot is wanted and cannot be drawn."""
    if path and importlib.util.find_spec("matplotlib") is None:
        raise CommandError("--plot needs matplotlib: pip install matplotlib", UNUSABLE)


def draw(path: Path | None, header: Header, output: Output, paint: Callable[[Any], None]) -> bool:
    """Write a plot, if one is wanted; ``paint`` fills its axes. False if it cannot be written."""
    if path is None:
        return True
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    paint(axes)
    axes.set_title(
        f"{gpu_words(header.gpu, header.simulated)}, backend {header.backend}, "
        f"driver {header.nvidia_driver or 'none'}, CUDA {header.cuda_driver}"
    )
    try:
        figure.savefig(path)
    except OSError as error:
        output.error(f"cannot write {path}: {error.strerror}")
        return False
    output.line(f"plot written to {path}")
    return True


def by_size(axes: Any, sizes: Iterable[int], ylabel: str) -> None:
    """Finish the axes of lines against the copy size: both logarithmic, with a legend."""
    ticks = sorted(set(sizes))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(ticks, [format_size(size) for size in ticks], rotation=45)
    axes.set_xlabel("copy size")
    axes.set_ylabel(ylabel)
    axes.grid(True, which="both", alpha=0.3)
    axes.legend()


def distributions(axes: Any, shown: Mapping[str, Samples], scale: Scale) -> None:
    """Fill axes with a histogram for each distribution, the first one on top."""
    edges = [edge / 1e3 for edge in scale.edges]
    rows = dict(reversed(list(shown.items())))
    for row, one in enumerate(rows.values()):
        counts = scale.counts(one)
        heights = [row + 0.8 * count / max(counts) for count in counts]
        axes.stairs(heights, edges, baseline=row, fill=True)
        axes.text(edges[-1], row + 0.1, f" {format_us(one.median)}", size="small")
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_xscale("log")
    ticks = [step * 10.0**power for power in range(-3, 7) for step in (1, 2, 5)]
    inside = [tick for tick in ticks if edges[0] <= tick <= edges[-1]]
    axes.set_xticks(inside, [f"{tick:g}" for tick in inside])
    axes.minorticks_off()
    axes.set_xlabel("us (medians at the right; the last bin also holds everything beyond)")
    axes.grid(True, axis="x", alpha=0.3)
