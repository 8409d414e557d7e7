"""Every command that prints a table, at the widths of terminals: no figure is cut."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import gdrpy
from gdrpy.cli import main, output
from gdrpy.cli.measure import apiperf, crossovers
from gdrpy.cli.measure.timing import Samples
from serving import BrokerProcess

COMMANDS = [
    ["info"],
    ["copybw", "--sweep", "64K,1M", "--seconds", "0.001"],
    ["copylat", "--sizes", "4,64K", "--seconds", "0.001"],
    ["pplat", "--count", "20"],
    ["apiperf", "--count", "3"],
    ["tune", "--dry-run"],
    ["tune", "--show"],
    ["ls"],
    ["stat", "models/weights/layer"],
    ["stat", "models/tensors"],
    ["top", "--count", "1"],
]
#: What every measurement yields, in nanoseconds: as many digits as there are on slow machines.
TIMES = [12_345_678.0, 23_456_789.0, 98_765_432.0]
#: What is in one of the regions.
TENSORS = {
    "model.layers.self_attn.query_projection.weight": np.zeros((1024, 333), np.float16),
    "model.norm.weight": np.zeros(12345, np.float32),
    "step": np.zeros((), np.int64),
}
#: Wider than any table.
WIDE = 1000


@pytest.fixture
def same_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is measured takes the same times."""

    def init(self: Samples, values: object, calls: int = 1) -> None:
        del values
        self.__dict__.update(values=TIMES, calls=calls)

    monkeypatch.setattr(Samples, "__init__", init)
    monkeypatch.setattr(crossovers, "sample", lambda *_: Samples([]))
    monkeypatch.setattr(apiperf, "clock", itertools.count(0, 12_345_678).__next__)


@pytest.fixture
def regions(
    broker_process: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """A broker with a region that has a long name, one in host memory, and a holder of either."""
    monkeypatch.setenv("GDRPY_SOCKET", broker_process.socket)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with gdrpy.connect() as client:
        name = "models/weights/layer"
        with (
            client.put(name, b"x" * 3_000_000, mode=0o640, gpu=False),
            client.put_tensors("models/tensors", TENSORS, "cpu"),
            client.put("kept/by/the/host/for/its/readers/and/writers", b"x" * 1000, "cpu"),
        ):
            yield


def figures(lines: list[str]) -> set[str]:
    """What has digits, without signs of punctuation around it."""
    return set(re.findall(r"[\w.+-]*\d[\w.+-]*", " ".join(lines)))


@pytest.mark.usefixtures("same_figures", "regions")
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_tables_fit_every_width_and_show_every_figure_whole(capsys, monkeypatch, words):
    def rows(width: int) -> list[str]:
        monkeypatch.setattr(output, "_PLAIN_WIDTH", width)
        assert main(words) == 0
        lines = [line for line in capsys.readouterr().out.splitlines() if line[:1] in "┏┃┡│└"]
        assert max(map(len, lines)) <= width
        return [line for line in lines if line.startswith("│")]

    wide = rows(WIDE)
    spreads = figures(re.findall(r"\(([^)]*)\)", " ".join(wide)))
    for width in (60, 80, 120):
        found = figures(rows(width))
        assert found
        assert found <= figures(wide)
        assert figures(wide) - spreads <= found
