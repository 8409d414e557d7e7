"""What all commands that measure have in common: plots, and what they leave behind."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import plotcheck
from gdrpy.cli import main
from gdrpy.cli.measure import apiperf, copybw, copylat, pplat, tune

#: Every such command, at its quickest, and a word of its plot.
QUICK = {
    "copybw": (["copybw", "--sizes", "4K,64K", "--seconds", "0.001"], "mapping write"),
    "copylat": (["copylat", "--sizes", "4,64", "--seconds", "0.001"], "Mapping.readinto, cold"),
    "pplat": (["pplat", "--count", "20"], "flag GPU -&gt; pinned"),
    "apiperf": (["apiperf", "--count", "3"], "import CPU"),
}


@pytest.fixture
def matplotlib() -> None:
    """matplotlib, which draws the plots (pip install matplotlib)."""
    if importlib.util.find_spec("matplotlib") is None:
        pytest.skip("matplotlib is not installed")


@pytest.fixture(params=QUICK)
def words(request) -> list[str]:
    """A command at its quickest."""
    return QUICK[request.param][0]


#: What each command calls for one figure, or a round of figures.
STEPS = {
    "copybw": (copybw.BandwidthBench, "measure"),
    "copylat": (copylat.LatencyBench, "measure"),
    "pplat": (pplat, "_play"),
    "apiperf": (apiperf.Rounds, "region_round"),
}


class TestCtrlC:
    @pytest.fixture
    def interrupt(self, monkeypatch) -> Callable[[str, int], None]:
        """Has Ctrl-C come in place of a step of a command."""

        def set_up(name: str, at: int) -> None:
            home, call = STEPS[name]
            step, steps = getattr(home, call), itertools.count(1)

            def play(*words, **options):
                if next(steps) == at:
                    raise KeyboardInterrupt
                return step(*words, **options)

            monkeypatch.setattr(home, call, play)

        return set_up

    @pytest.mark.usefixtures("matplotlib")
    @pytest.mark.parametrize(
        ("name", "rows"), [("copybw", 2), ("copylat", 2), ("pplat", 2), ("apiperf", 10)]
    )
    def test_shows_what_was_measured(self, capsys, tmp_path, interrupt, name, rows):
        interrupt(name, 3)
        words = [*QUICK[name][0], "--plot", str(tmp_path / "plot.svg"), "--json"]
        assert main(words) == 130
        told = capsys.readouterr()
        found = json.loads(told.out)
        assert (found["interrupted"], len(found["results"])) == (True, rows)
        assert told.err == ("warning: Ctrl-C came before all was measured, and no plot was made\n")
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("name", QUICK)
    def test_shows_a_table_of_it(self, capsys, interrupt, name):
        interrupt(name, 3)
        assert main(QUICK[name][0]) == 130
        told = capsys.readouterr()
        assert "└─" in told.out
        assert told.err == "warning: Ctrl-C came before all was measured\n"

    @pytest.mark.parametrize(("name", "at"), [(name, 1 + (name == "apiperf")) for name in QUICK])
    def test_before_the_first_figure_says_so(self, capsys, interrupt, name, at):
        interrupt(name, at)
        assert main(QUICK[name][0]) == 130
        told = capsys.readouterr()
        assert "└─" not in told.out
        assert told.err == "warning: Ctrl-C came before there was anything to show\n"

    @pytest.mark.parametrize(("name", "at"), [(name, 1 + (name == "apiperf")) for name in QUICK])
    def test_before_the_first_figure_is_valid_json(self, json_of, interrupt, name, at):
        interrupt(name, at)
        status, told = json_of(*QUICK[name][0])
        assert (status, told.keys()) == (130, {"header", "interrupted", "results"})
        assert (told["interrupted"], told["results"]) == (True, [])

    def test_of_pplat_shows_the_rounds_of_a_way_until_then(self, json_of, interrupt, monkeypatch):
        monkeypatch.setattr(pplat, "_ROUNDS_A_RUN", 20)
        interrupt("pplat", 3)
        status, told = json_of("pplat", "--count", "50")
        assert status == 130
        assert [one["nanoseconds"]["count"] for one in told["results"]] == [40]

    def test_of_tune_tells_the_figures_until_then(self, json_of, monkeypatch):
        measure, calls = tune.Meter.time, itertools.count(1)

        def time(*words) -> float:
            if next(calls) == 3:
                raise KeyboardInterrupt
            return measure(*words)

        monkeypatch.setattr(tune.Meter, "time", time)
        status, told = json_of("tune", "--dry-run", "--seconds", "0.001")
        assert (status, told["interrupted"], len(told["figures"])) == (130, True, 2)


@pytest.mark.usefixtures("matplotlib")
class TestPlot:
    @pytest.mark.parametrize(
        ("name", "beginning"), [("plot.png", b"\x89PNG"), ("plot.svg", b"<?xml")]
    )
    def test_is_drawn(self, capsys, tmp_path: Path, words, name, beginning):
        path = tmp_path / name
        assert main([*words, "--plot", str(path)]) == 0
        assert f"plot written to {path}" in capsys.readouterr().out
        assert path.read_bytes().startswith(beginning)

    @pytest.mark.parametrize("name", QUICK)
    def test_tells_what_was_measured_and_on_what(self, capsys, tmp_path: Path, name):
        words, shown = QUICK[name]
        path = tmp_path / "plot.svg"
        assert main([*words, "--plot", str(path), "--json"]) == 0
        drawn = path.read_text()
        header = json.loads(capsys.readouterr().out)["header"]
        assert header["gpu"] == "gdrpy simulated GPU"
        assert header["uuid"] == "GPU-67647270-7920-7369-6d75-6c6174656400"
        for text in ("simulated GPU, no NVIDIA driver, CUDA", "speeds of host memory", shown):
            assert text in drawn

    def test_cuts_off_and_covers_nothing(self, monkeypatch, tmp_path: Path, words):
        from matplotlib.figure import Figure

        figures = []
        monkeypatch.setattr(Figure, "savefig", lambda figure, path, **_: figures.append(figure))
        assert main([*words, "--plot", str(tmp_path / "plot.png")]) == 0
        (figure,) = figures
        assert plotcheck.faults(figure) == []

    def test_for_which_there_is_no_room_fails_after_the_figures(self, capsys, tmp_path, words):
        (tmp_path / "plot.svg").symlink_to("/dev/full")
        assert main([*words, "--plot", str(tmp_path / "plot.svg")]) == 1
        captured = capsys.readouterr()
        assert "│" in captured.out
        assert captured.err.endswith("plot.svg: No space left on device\n")


class TestPlotThatCannotBeWritten:
    def assert_refused(self, capsys, words, path, why):
        with pytest.raises(SystemExit) as ended:
            main([*words, "--plot", str(path)])
        assert ended.value.code == 2
        captured = capsys.readouterr()
        assert captured.err.endswith(f"argument --plot: {why}\n")
        assert captured.out == ""

    def test_for_a_folder_in_its_place_is_refused_before(self, capsys, tmp_path, words):
        path = tmp_path / "plot.png"
        path.mkdir()
        self.assert_refused(capsys, words, path, f"'{path}' is a folder")

    def test_for_lack_of_rights_is_refused_before(self, capsys, monkeypatch, tmp_path, words):
        old, new = tmp_path / "old.svg", tmp_path / "new.png"
        old.touch()
        monkeypatch.setattr(os, "access", lambda path, mode: mode == os.F_OK and path != new)
        self.assert_refused(capsys, words, old, f"'{old}' may not be written")
        self.assert_refused(capsys, words, new, f"nothing may be written into '{tmp_path}'")


class TestWithoutMatplotlib:
    def test_a_plot_is_refused_before_anything_is_measured(
        self, capsys, monkeypatch, tmp_path, words
    ):
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name: None if name == "matplotlib" else name
        )
        with pytest.raises(SystemExit) as ended:
            main([*words, "--plot", str(tmp_path / "plot.png")])
        assert ended.value.code == 2
        captured = capsys.readouterr()
        said = "error: argument --plot: it needs matplotlib: pip install matplotlib\n"
        assert captured.err.endswith(said)
        assert captured.out == ""

    def test_everything_else_runs(self, checkout, words):
        script = (
            "import sys; from gdrpy.cli import main\n"
            f"assert main([*{words!r}, '--json']) == 0\n"
            "sys.exit('matplotlib' in sys.modules)"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=checkout, capture_output=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, b"")


class TestOutcome:
    def test_leaves_nothing(self, json_of, backend, nothing_leaks, words):
        status, result = json_of(*words)
        assert status == 0
        assert result["header"]["backend"] == backend

    def test_tells_on_what_it_was_measured_first(self, capsys, words):
        assert main(words) == 0
        first, second, *_ = capsys.readouterr().out.splitlines()
        assert first.startswith("gdrpy simulated GPU, device 0, backend sim, ")
        assert second == "simulated GPU: these are speeds of host memory"

    def test_is_an_error_where_the_device_is_missing(self, capsys, words):
        assert main([*words, "--device", "7"]) == 2
        captured = capsys.readouterr()
        assert captured.err.startswith("error: --device: there is no CUDA device 7")
        assert captured.out == ""

    def test_of_a_full_disk_is_an_error_of_one_line(self, checkout, words):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "gdrpy", *words],
                cwd=checkout,
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
        said = "error: cannot write to stdout: No space left on device\n"
        assert (done.returncode, done.stderr) == (1, said)

    def test_of_a_closed_stdout_is_an_error_of_one_line(self, capsys, monkeypatch, words):
        monkeypatch.setattr(sys, "stdout", None)
        assert main(words) == 1
        assert capsys.readouterr().err == "error: cannot write to stdout: it is closed\n"
