"""The plot of a bandwidth sweep, by matplotlib, which is an extra: nothing else needs it."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence
from pathlib import Path

from gdrpy.cli.bandwidth import WAYS, Measurement
from gdrpy.cli.exits import UNUSABLE, CommandError
from gdrpy.cli.header import Header, gpu_words
from gdrpy.cli.sizes import format_size


def plot_path(text: str) -> Path:
    """Where to write a plot. For ``type=`` of argparse."""
    path = Path(text)
    if path.suffix.lower() not in (".png", ".svg"):
        raise argparse.ArgumentTypeError(f"{text!r} must end in .png or .svg")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {str(path.parent)!r}")
    return path


def require_matplotlib() -> None:
    """Raise CommandError, before anything is measured, where plots cannot be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        raise CommandError("--plot needs matplotlib: pip install matplotlib", UNUSABLE)


def draw(path: Path, header: Header, points: Sequence[Measurement]) -> None:
    """Draw bandwidth against size, a line for each way, and write it. Raises OSError."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for way in WAYS:
        line = [point for point in points if point.way == way]
        axes.plot(
            [point.nbytes for point in line],
            [point.median for point in line],
            marker="o",
            label=way,
        )
    sizes = sorted({point.nbytes for point in points})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sizes, [format_size(size) for size in sizes], rotation=45)
    axes.set_xlabel("copy size")
    axes.set_ylabel("GB/s, median")
    axes.set_title(
        f"{gpu_words(header.gpu, header.simulated)}, backend {header.backend}, "
        f"driver {header.nvidia_driver or 'none'}, CUDA {header.cuda_driver}"
    )
    axes.grid(True, which="both", alpha=0.3)
    axes.legend()
    figure.savefig(path)
