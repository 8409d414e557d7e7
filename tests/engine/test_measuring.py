"""The copy engine in the commands that measure, on the simulated resource manager."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

import gdrpy
from gdrpy.cli import main, output
from gdrpy.cli.measure import apiperf, copybw, copylat

pytestmark = pytest.mark.preloaded(GDRPY_SIM="1", GDRPY_BACKEND="nvrm")

COPYBW = ["copybw", "--sizes", "4K,1M", "--seconds", "0.001"]
COPYLAT = ["copylat", "--sizes", "4,64K", "--seconds", "0.001"]
APIPERF = ["apiperf", "--size", "100K", "--count", "3"]
COMMANDS = {"copybw": COPYBW, "copylat": COPYLAT, "apiperf": APIPERF}


def said_by(words: list[str]) -> tuple[int, str]:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        status = main(words)
    return status, out.getvalue()


def json_of(words: list[str]) -> tuple[int, dict[str, Any]]:
    status, said = said_by([*words, "--json"])
    return status, json.loads(said)


class TestEngine:
    def test_is_among_the_bandwidths(self) -> None:
        status, result = json_of(COPYBW)
        assert (status, result["engine_not_measured"]) == (0, None)
        found = [(one["size"], one["way"], one["verified"]) for one in result["results"]]
        assert found == list(itertools.product((4096, 1 << 20), copybw.WAYS, (True,)))

    def test_is_among_the_latencies(self) -> None:
        status, result = json_of(COPYLAT)
        assert (status, result["engine_not_measured"]) == (0, None)
        found = [(one["cache"], one["size"], one["way"]) for one in result["results"]]
        assert found == list(itertools.product(("warm", "cold"), (4, 65536), copylat.WAYS))
        assert {one["verified"] for one in result["results"]} == {True}

    def test_is_among_the_calls(self) -> None:
        status, result = json_of(APIPERF)
        assert (status, result["engine_not_measured"]) == (0, None)
        assert [one["call"] for one in result["results"]] == [*apiperf.CALLS]
        assert {one["nanoseconds"]["count"] for one in result["results"]} == {3}

    @pytest.mark.parametrize("name", COMMANDS)
    def test_is_in_tables_that_fit_60_columns(self, name: str) -> None:
        output._PLAIN_WIDTH = 60
        status, said = said_by(COMMANDS[name])
        assert status == 0
        tables = [line for line in said.splitlines() if line[:1] and line[0] in "┏┃┡│└"]
        assert max(map(len, tables)) <= 60
        assert any("engine" in line for line in tables)

    @pytest.mark.parametrize("name", COMMANDS)
    def test_is_in_the_plot(self, name: str) -> None:
        pytest.importorskip("matplotlib")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "plot.svg"
            assert said_by([*COMMANDS[name], "--plot", str(path)])[0] == 0
            assert "engine read" in path.read_text()

    @pytest.mark.parametrize("name", ["copybw", "copylat"])
    def test_that_copies_nothing_fails(self, name: str) -> None:
        gdrpy.Region.readinto = lambda self, *_: None  # type: ignore[method-assign]
        status, result = json_of(COMMANDS[name])
        assert status == 1
        wrong = {one["way"] for one in result["results"] if not one["verified"]}
        assert wrong == {"copybw": {"DMA read", "engine read"}, "copylat": {"engine read"}}[name]

    def test_that_copies_nothing_is_an_error_of_the_calls(self) -> None:
        write = gdrpy.Region.write
        gdrpy.Region.write = lambda self, data, offset=0, via=None: (  # type: ignore[method-assign]
            None if via == "engine" else write(self, data, offset, via)
        )
        with contextlib.redirect_stderr(io.StringIO()) as errors:
            assert main(APIPERF) == 1
        assert errors.getvalue().startswith("error: after engine first: first differing byte")
