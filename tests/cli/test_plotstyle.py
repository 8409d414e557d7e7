"""The look of all plots."""

from __future__ import annotations

import struct
from itertools import combinations
from math import dist
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import plotcheck
from gdrpy.cli.measure import plotstyle

#: What becomes of linear RGB without one kind of cone, by Machado, Oliveira and Fernandes (2009).
COLOUR_BLINDNESS = {
    "none": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
#: A difference in CIELAB that nobody overlooks; just noticeable is 2.3.
CLEAR = 12


def seen(colour: str, blindness: str) -> tuple[float, ...]:
    """A colour in CIELAB as it is seen."""
    values = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    linear = np.clip(np.array(COLOUR_BLINDNESS[blindness]) @ linear, 0, 1)
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    xyz = np.cbrt(to_xyz @ linear / [0.9505, 1, 1.089])
    return (116 * xyz[1] - 16, 500 * (xyz[0] - xyz[1]), 200 * (xyz[1] - xyz[2]))


class TestColours:
    @pytest.mark.parametrize("blindness", COLOUR_BLINDNESS)
    def test_can_be_told_apart(self, blindness):
        shown = {colour: seen(colour, blindness) for colour in plotstyle.COLOURS}
        close = [
            (one, other)
            for one, other in combinations(shown, 2)
            if dist(shown[one], shown[other]) < CLEAR
        ]
        assert close == []

    def test_red_and_green_would_not_be(self):
        assert dist(seen("#8E7A00", "deuteranopia"), seen("#B26E00", "deuteranopia")) < CLEAR

    def test_have_a_marker_each(self):
        assert len(set(plotstyle.MARKERS)) == len(set(plotstyle.COLOURS)) == 7


class TestUnits:
    @pytest.mark.parametrize(
        ("us", "words"),
        [(0.05, "50 ns"), (1, "1 us"), (1.5, "1.5 us"), (2000, "2 ms"), (3e6, "3 s")],
    )
    def test_of_times_are_the_largest_that_fit(self, us, words):
        assert plotstyle.time_words(us) == words


class TestHeader:
    KNOWN: ClassVar = {
        "gpu": "NVIDIA H200",
        "simulated": False,
        "nvidia_driver": "580.159.04",
        "cuda_driver": "13.0",
        "backend": "nvrm",
        "cpu": "a CPU",
        "kernel": "6.18",
        "python": "3.12.3",
        "gdrpy": "0.1.0",
        "date": "2026-11-21T18:51:00+00:00",
    }

    def test_names_gpu_driver_and_host(self):
        assert plotstyle.where_measured(self.KNOWN) == [
            "NVIDIA H200, driver 580.159.04, CUDA 13.0, backend nvrm",
            "a CPU, Linux 6.18, Python 3.12.3, gdrpy 0.1.0, 2026-11-21",
        ]

    def test_says_that_a_gpu_is_simulated(self):
        simulated = self.KNOWN | {"simulated": True, "gpu": None, "nvidia_driver": None}
        first, _ = plotstyle.where_measured(simulated)
        assert first == (
            "simulated GPU, no NVIDIA driver, CUDA 13.0, backend nvrm, speeds of host memory"
        )


class TestDrawing:
    @pytest.fixture(autouse=True)
    def matplotlib(self) -> None:
        """matplotlib, which draws the plots (pip install matplotlib)."""
        pytest.importorskip("matplotlib")

    def test_has_twice_the_usual_resolution(self, tmp_path: Path):
        path = tmp_path / "plot.png"
        with plotstyle.drawing(path, "Title", []):
            pass
        assert struct.unpack(">I", path.read_bytes()[16:20]) == (2000,)

    @pytest.mark.parametrize("columns", [1, 2])
    def test_cuts_off_and_covers_nothing(self, tmp_path: Path, columns):
        sizes = [4 << step for step in range(29)]
        with plotstyle.drawing(
            tmp_path / "plot.svg", "Title", ["where", "and when"], 1, columns
        ) as panels:
            for axes in panels:
                for way in range(7):
                    times = [0.01 * (way + 1) * size for size in sizes]
                    axes.plot(sizes, times, label=f"way number {way}, page-locked")
                plotstyle.time_axis(axes, "y", "time")
                plotstyle.size_axis(axes, sizes)
        assert plotcheck.faults(panels[0].figure) == []

    def test_of_distributions_cuts_off_and_covers_nothing(self, tmp_path: Path):
        shown = [
            plotstyle.Distribution("a name that takes more than one line of letters", [1, 2], 3, 5),
            plotstyle.Distribution("short", [0, 7], 4000, 123456),
        ]
        height = plotstyle.height_of(shown)
        with plotstyle.drawing(tmp_path / "plot.svg", "Title", [], height=height) as (axes,):
            plotstyle.distributions(axes, shown, [1, 10, 100000], "one call")
        assert plotcheck.faults(axes.figure) == []

    def test_with_a_word_outside_has_a_fault(self, tmp_path: Path):
        with plotstyle.drawing(tmp_path / "plot.svg", "Title", []) as (axes,):
            axes.figure.text(0.99, 0.5, "too far right")
            axes.figure.text(0.5, 0.5, "one")
            axes.figure.text(0.51, 0.5, "other")
        assert plotcheck.faults(axes.figure) == [
            "'too far right' is cut off",
            "'one' and 'other' overlap",
        ]
