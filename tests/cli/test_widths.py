"""Every command that prints a table, at the widths of terminals: no figure is cut."""

from __future__ import annotations

import inspect
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import gdrpy
from gdrpy.cli import COMMANDS as MODULES
from gdrpy.cli import checks, command_parser, main, output
from gdrpy.cli.checks import Result, Verdict
from gdrpy.cli.measure import apiperf, crossovers
from gdrpy.cli.measure.report import Copies, show_by_size
from gdrpy.cli.measure.timing import Samples
from gdrpy.cli.output import Output
from serving import BrokerProcess

COMMANDS = [
    ["info"],
    ["copybw", "--sizes", "64K,1M", "--seconds", "0.001"],
    ["copylat", "--sizes", "4,64K", "--seconds", "0.001"],
    ["pplat", "--count", "3"],
    ["apiperf", "--count", "3"],
    ["tune", "--dry-run"],
    ["tune", "--show"],
    ["ls"],
    ["stat", "models/weights/layer"],
    ["stat", "models/tensors"],
    ["top", "--count", "1"],
    [
        "validate",
        "--seed",
        "7",
        "--check",
        "numpy-stores",
        "--check",
        "flags-32",
        "--check",
        "region-write",
    ],
    ["libgdrapi"],
    ["completion", "bash"],
    ["alloc", "models/tensors/of/the/host", "123K", "--device", "cpu"],
    ["get", "models/weights/layer", os.devnull],
]
#: Commands whose words are lines, which are never cut, and folded between words at most.
IN_LINES = (
    "producer",
    "consumer",
    "serve",
    "watch",
    "put",
    "load",
    "save",
    "restore",
    "seal",
    "rm",
    "help",
)
#: What shows more than lines.
SHOWING = re.compile(r"\btable\(|output\.(text|show|live|width)\(|listing")
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
    monkeypatch.setattr(
        checks,
        "run",
        lambda check, _: Result(check.name, check.shows, Verdict.SKIPPED, 123.456, "has 12 words"),
    )


@pytest.fixture(scope="module")
def regions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A broker with a region that has a long name, one in host memory, and a holder of either."""
    broker = BrokerProcess(tmp_path_factory.mktemp("broker"), (), {})
    broker.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GDRPY_SOCKET", broker.socket)
        patch.setenv("XDG_CACHE_HOME", str(broker.folder))
        name = "models/weights/layer"
        with (
            gdrpy.connect() as client,
            client.put(name, b"x" * 3_000_000, mode=0o640, gpu=False),
            client.put_tensors("models/tensors", TENSORS, "cpu"),
            client.put("kept/by/the/host/for/its/readers/and/writers", b"x" * 1000, "cpu"),
        ):
            yield
    broker.finish()


def figures(lines: list[str]) -> set[str]:
    """What has digits, without signs of punctuation around it."""
    return set(re.findall(r"[\w.+-]*\d[\w.+-]*", " ".join(lines)))


@pytest.mark.usefixtures("same_figures", "regions")
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_tables_fit_every_width_and_show_every_figure_whole(capsys, monkeypatch, words):
    def shown(width: int) -> tuple[list[str], list[str]]:
        monkeypatch.setattr(output, "_PLAIN_WIDTH", width)
        assert main(words) == 0
        printed = re.sub(r"(?m)^/\S+: ", "", capsys.readouterr().out)  # the path of a socket
        lines = [line for line in printed.splitlines() if line]
        table = [line for line in lines if line[0] in "┏┃┡│└"]
        assert all(len(line) <= width for line in table)
        return [one for one in table if one[0] == "│"], [one for one in lines if one not in table]

    wide, wide_lines = shown(WIDE)
    spreads = figures(re.findall(r"\(([^)]*)\)", " ".join(wide)))
    for width in (60, 80, 120):
        rows, lines = shown(width)
        found = figures(rows)
        assert bool(found) is bool(wide)
        assert found <= figures(wide)
        assert figures(wide) - spreads <= found
        if f"measure.{words[0]}" not in MODULES.values():  # whose lines tell of the clock
            assert figures(lines) == figures(wide_lines)


@pytest.mark.parametrize(
    ("width", "cells"),
    [
        (80, ["4 bytes │ 1 (1-2) │ 10.5 (9.25-12)", "64 KiB │ 1 (1-2) │ 10.5 (9.25-12)"]),
        (
            36,
            [
                "4 bytes │ 1 │ 10.5",
                "│ (1-2) │ (9.25-12)",
                "64 KiB │ 1 │ 10.5",
                "│ (1-2) │ (9.25-12)",
            ],
        ),
        (28, ["4 bytes │ 1 │ 10.5", "64 KiB │ 1 │ 10.5"]),
    ],
)
def test_spreads_are_beside_all_figures_or_below_all_or_left_out(monkeypatch, capsys, width, cells):
    monkeypatch.setattr(output, "_PLAIN_WIDTH", width)
    results = [Copies(way, size, Samples([1]), None) for size in (4, 65536) for way in "ab"]
    shown = {"a": ("1", "(1-2)"), "b": ("10.5", "(9.25-12)")}
    ways = {"a": "write", "b": "read"}
    show_by_size(Output(), "GB/s", ways, results, lambda one: shown[one.way])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert [" ".join(line.strip("│").split()) for line in lines] == cells


def test_lines_end_between_words_on_a_terminal(terminal):
    words = ["--seed", "1697809366", "--check", "second-process", "--check", "read-only"]
    said = terminal("validate", *words, columns=60).wait_for("2 passed")
    lines = [line.rstrip() for line in said.splitlines()]
    assert any(line.endswith(" 1697809366") or line == "1697809366" for line in lines)
    assert max(map(len, lines)) <= 60


@pytest.mark.parametrize("command", ["info", "libgdrapi"])
def test_sentences_end_between_words_on_a_terminal_and_paths_stay_whole(
    terminal, monkeypatch, command
):
    monkeypatch.delenv("GDRPY_SIM", raising=False)  # the simulation tells why it is used
    shown = terminal(command, columns=60)
    said = shown.wait_for("share Region.export()" if command == "info" else "pkg-config --cflags")
    long = [line for line in said.splitlines() if len(line) > 60]
    assert [line for line in long if not re.search(r"(^|=|\s)/\S+$", line)] == []
    assert "--device" in said


def test_every_command_is_rendered_or_prints_lines_alone():
    assert {words[0] for words in COMMANDS} | {*IN_LINES} == {*MODULES}
    for name in IN_LINES:
        parser = command_parser(name)
        assert "--plot" not in parser.format_help()
        source = Path(inspect.getfile(parser.get_default("run"))).read_text()
        assert not SHOWING.search(source)
