"""``gdrpy tune``: the limits that it finds, and what becomes of them."""

from __future__ import annotations

import errno
import json
import math
import os
import re
from pathlib import Path

import pytest

import gdrpy
from gdrpy.cli import main
from gdrpy.cli.measure import crossovers, tune
from gdrpy.cli.measure.crossovers import (
    KIB,
    MIB,
    ORDINARY,
    PAGE_LOCKED,
    REGISTERED,
    Meter,
    Way,
    choose,
    crossover,
    grid,
)
from gdrpy.copies import tuning
from gdrpy.copies.tuning import BUILT_IN, NEVER, Limits

QUICK = ["--seconds", "0.0001"]
SIMULATED_FILE = "gdrpy/limits-gdrpy-simulated-gpu.json"


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where limits are kept during a test, none at first."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("GDRPY_TUNING", raising=False)
    tuning.forget()
    yield tmp_path
    tuning.forget()


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, measurements count as undisturbed; few sizes are measured."""
    monkeypatch.setattr(tune, "_STEADY", math.inf)
    monkeypatch.setattr(tune, "ROOM", 32 * MIB)
    monkeypatch.setattr(crossovers, "_WRITES_BY_LANES", 32 * MIB)
    monkeypatch.setattr(crossovers, "_WRITE_SIZES", grid(64 * KIB, 256 * KIB))
    monkeypatch.setattr(crossovers, "_READ_SIZES", grid(4 * KIB, 16 * KIB))


def line(start: float, rate: float, smallest: int = KIB) -> dict[int, float]:
    """Seconds of a way that takes some to begin, and moves so many bytes a second."""
    return {size: start + size / rate for size in grid(smallest, 16 * MIB)}


class TestCrossover:
    def test_is_where_two_lines_meet(self):
        found = crossover(line(0.1e-6, 1e9), line(7e-6, 40e9))
        assert found == pytest.approx(6.9e-6 / (1 / 1e9 - 1 / 40e9), rel=0.02)
        assert found % 64 == 0

    def test_is_never_for_a_way_that_is_always_slower(self):
        assert crossover(line(1e-7, 2e9), line(1e-6, 1e9)) == NEVER

    def test_is_never_for_a_way_that_is_always_just_as_fast(self):
        assert crossover(line(1e-7, 2e9), line(1e-7, 2e9)) == NEVER

    def test_is_the_smallest_size_for_a_way_that_is_always_faster(self):
        assert crossover(line(1e-6, 1e9), line(1e-7, 2e9)) == KIB

    def test_is_not_moved_by_a_disturbed_figure(self):
        usual, other = line(0.1e-6, 1e9), line(7e-6, 40e9)
        expected = crossover(usual, other)
        usual[2 * KIB] *= 3
        other[256 * KIB] *= 8
        assert crossover(usual, other) == expected

    def test_is_of_the_sizes_that_both_were_measured_at(self):
        assert crossover(line(1e-6, 1e9), line(1e-7, 2e9, 64 * KIB)) == 64 * KIB


def test_a_grid_has_two_sizes_for_each_power_of_two():
    assert grid(512, 4096) == [512, 768, 1024, 1536, 2048, 3072, 4096]


def a_gpu(way: Way, nbytes: int) -> float:
    """Seconds by a GPU on a fast bus, about: stores up to 32 GB/s, loads from 1 to 6, DMA 50.

    The copy engine stages at 48 GB/s.
    """
    wakeup = 10e-6 if way.threads > 1 else 0.1e-6
    if way.by == "mapping" and way.writes:
        return wakeup + nbytes / min(16e9 * way.threads, 32e9)
    if way.by == "mapping":
        return 1e-6 + wakeup + nbytes / min(1e9 * way.threads, 6e9)
    if way.host == PAGE_LOCKED:
        return 7e-6 + nbytes / 50e9
    if way.by == "engine":
        return 4e-6 + nbytes / (54e9 if way.host == REGISTERED else 28e9)
    return 9e-6 + nbytes / min(8e9 * way.threads, 24e9)


class TestChoose:
    def test_finds_each_limit_of_a_gpu(self):
        found = choose(a_gpu, 16, engine=False)
        assert (found.threads_to, found.threads_from, found.lanes) == (2, 8, 4)
        assert found.write_threads == pytest.approx(9.9e-6 / (1 / 16e9 - 1 / 32e9), rel=0.05)
        assert found.write_dma == NEVER
        assert found.write_dma_pinned == pytest.approx(6.9e-6 / (1 / 16e9 - 1 / 50e9), rel=0.05)
        assert found.read_threads == pytest.approx(9.9e-6 / (1 / 1e9 - 1 / 6e9), rel=0.05)
        assert found.read_dma == pytest.approx(7.9e-6 / (1 / 1e9 - 1 / 24e9), rel=0.05)
        assert found.read_dma_pinned == pytest.approx(5.9e-6 / (1 / 1e9 - 1 / 50e9), rel=0.05)
        assert found.write_engine == found.write_registered == NEVER
        assert found.read_engine == found.read_registered == NEVER
        found.check()

    def test_finds_the_limits_of_the_copy_engine(self):
        found = choose(a_gpu, 16, engine=True)
        assert found.write_engine == NEVER
        assert found.write_registered == pytest.approx(3.9e-6 / (1 / 16e9 - 1 / 54e9), rel=0.05)
        assert found.read_engine == pytest.approx(2.9e-6 / (1 / 1e9 - 1 / 28e9), rel=0.05)
        assert found.read_registered == pytest.approx(2.9e-6 / (1 / 1e9 - 1 / 54e9), rel=0.05)
        # Against the engine, from smaller sizes on.
        assert found.read_dma_pinned == pytest.approx(3e-6 / (1 / 28e9 - 1 / 50e9), rel=0.05)
        found.check()

    @pytest.mark.parametrize("cpus", [1, 2, 3, 64])
    def test_takes_no_more_threads_than_there_are_cpus(self, cpus):
        used = set()

        def clock(way: Way, nbytes: int) -> float:
            used.add(way.threads)
            return nbytes / way.threads

        found = choose(clock, cpus, engine=True)
        most = {1: 1, 2: 2, 3: 2, 64: 16}[cpus]
        assert max(used) == found.threads_to == found.threads_from == most
        assert found.lanes == min(most, 8)
        found.check()

    def test_leaves_everything_to_one_thread_of_one_cpu(self):
        found = choose(a_gpu, 1, engine=False)
        assert (found.write_threads, found.read_threads, found.threads_to) == (NEVER, NEVER, 1)


class TestMeter:
    @pytest.fixture
    def meter(self):
        with gdrpy.alloc(4 * MIB) as region:
            yield Meter(region, 1e-4, 7)

    @pytest.mark.parametrize("writes", [True, False])
    @pytest.mark.parametrize(
        ("by", "threads", "host"),
        [
            ("mapping", 1, ORDINARY),
            ("mapping", 3, ORDINARY),
            ("dma", 1, ORDINARY),
            ("dma", 5, ORDINARY),
            ("dma", 1, PAGE_LOCKED),
        ],
    )
    def test_times_a_way_and_finds_its_data_right(self, meter, writes, by, threads, host):
        way = Way(writes, threads, by, host)
        seconds = meter.time(way, MIB)
        assert seconds > 0
        assert meter.figures == [crossovers.CopyTime(way, MIB, seconds)]
        assert meter.difference(way, MIB) is None

    @pytest.mark.parametrize(("name", "writes"), [("write", True), ("readinto", False)])
    def test_sees_data_that_does_not_arrive(self, meter, monkeypatch, name, writes):
        monkeypatch.setattr(gdrpy.Region, name, lambda *_: None)
        found = meter.difference(Way(writes, 1), 100)
        assert found is not None
        assert found.differing == 100


@pytest.mark.usefixtures("steady")
class TestTune:
    def test_keeps_what_it_measured_for_regions_made_from_then_on(self, json_of, cache):
        status, result = json_of("tune", *QUICK)
        assert status == 0
        assert result["file"] == str(cache / SIMULATED_FILE)
        limits = {
            name: NEVER if value is None else value for name, value in result["limits"].items()
        }
        tuning.forget()
        assert tuning.limits(0) == Limits(**limits)
        kept = json.loads((cache / SIMULATED_FILE).read_text())
        assert kept["header"]["command"] == "gdrpy tune --seconds 0.0001 --json"

    def test_tells_every_figure_and_what_it_ran_on(self, json_of):
        status, result = json_of("tune", "--dry-run", *QUICK)
        assert status == 0
        assert result["header"]["simulated"] is True
        assert result["built_in"]["write_dma"] is None
        assert result["built_in"]["read_dma"] == BUILT_IN.read_dma
        assert result["wrong"] == []
        assert {one["by"] for one in result["figures"]} == {"mapping", "dma"}
        assert all(one["seconds"] > 0 for one in result["figures"])
        first = result["figures"][0]
        assert first["way"] == "write by 1 thread"
        assert (first["direction"], first["threads"], first["size"]) == ("write", 1, 64 * KIB)

    def test_prints_tables_and_says_that_the_gpu_is_simulated(self, capsys, cache):
        assert main(["tune", *QUICK]) == 0
        captured = capsys.readouterr()
        assert "\nsimulated GPU: these are speeds of host memory\n" in captured.out
        for words in (
            "Microseconds a write",
            "Microseconds a read",
            "DMA, page-locked memory",
            "built in",
        ):
            assert words in captured.out
        assert f"kept in {cache / SIMULATED_FILE}" in captured.out
        assert captured.err == ""

    def test_keeps_nothing_when_dry(self, capsys, cache):
        assert main(["tune", "--dry-run", *QUICK]) == 0
        assert "kept in" not in capsys.readouterr().out
        assert list(cache.iterdir()) == []

    def test_keeps_nothing_when_data_did_not_arrive(self, monkeypatch, capsys, cache):
        monkeypatch.setattr(gdrpy.Region, "readinto", lambda *_: None)
        assert main(["tune", *QUICK]) == 1
        assert "error: read by 1 thread of 4 MiB: first differing byte" in capsys.readouterr().err
        assert list(cache.iterdir()) == []

    def test_keeps_nothing_when_disturbed(self, monkeypatch, capsys, cache):
        monkeypatch.setattr(tune, "_STEADY", 0)
        assert main(["tune", *QUICK]) == 1
        assert "run it again while nothing else runs" in capsys.readouterr().err
        assert list(cache.iterdir()) == []

    def test_says_where_it_could_not_keep_it(self, monkeypatch, capsys, cache):
        file = cache / SIMULATED_FILE

        def fail(*_, **details):
            raise OSError(errno.ENOSPC, "No space left on device", str(file))

        monkeypatch.setattr(tuning, "save", fail)
        assert main(["tune", *QUICK]) == 1
        captured = capsys.readouterr()
        assert captured.err == f"error: cannot keep the limits: {file}: No space left on device\n"
        assert "from this size on" in captured.out


class TestPlaceThatCannotBeWritten:
    @pytest.fixture(autouse=True)
    def _nothing_is_measured(self, monkeypatch):
        monkeypatch.setattr(tune, "_measure", None)

    def assert_refused(self, capsys, why):
        assert main(["tune", *QUICK]) == 2
        captured = capsys.readouterr()
        assert captured.err == f"error: cannot keep the limits: {why}; see --dry-run\n"
        assert captured.out == ""

    def test_for_a_file_in_its_folders_place(self, capsys, cache):
        (cache / "gdrpy").write_text("a file")
        self.assert_refused(capsys, f"'{cache / 'gdrpy'}' is not a folder")

    def test_for_a_folder_in_its_place(self, capsys, cache):
        (cache / SIMULATED_FILE).mkdir(parents=True)
        self.assert_refused(capsys, f"'{cache / SIMULATED_FILE}' is a folder")

    def test_for_lack_of_rights(self, monkeypatch, capsys, cache):
        monkeypatch.setattr(os, "access", lambda path, mode: path == cache and mode == os.F_OK)
        self.assert_refused(capsys, f"nothing may be written into '{cache}'")


class TestShow:
    def test_tells_what_is_built_in_while_nothing_is_kept(self, json_of):
        status, result = json_of("tune", "--show")
        assert status == 0
        assert result["measured"] is False
        assert result["why"] == "built in: nothing was measured for this GPU"
        assert result["limits"] == tune._limits_json(BUILT_IN)

    def test_tells_what_is_kept(self, json_of, cache, capsys):
        kept = BUILT_IN._replace(read_dma=12345, threads_to=3)
        file = Path(tuning.save(0, kept))
        status, result = json_of("tune", "--show")
        assert (status, result["measured"]) == (0, True)
        assert result["limits"] == tune._limits_json(kept)
        assert main(["tune", "--show"]) == 0
        captured = capsys.readouterr().out
        assert re.search(r"│ read_dma +│ DMA, no engine +│ +12.1 KiB │", captured)
        assert f"measured here, kept in {file}" in captured

    def test_tells_no_number_of_threads_for_what_is_never_done(self, capsys):
        tuning.save(0, BUILT_IN._replace(write_threads=NEVER, threads_to=2))
        assert main(["tune", "--show"]) == 0
        rows = [line.split("│")[1:-1] for line in capsys.readouterr().out.splitlines()]
        holds = {row[0].strip(): row[-1].strip() for row in rows if row}
        assert (holds["write_threads"], holds["threads_to"]) == ("never", "-")

    def test_tells_that_what_is_kept_belongs_to_another_machine(self, json_of):
        file = Path(tuning.save(0, BUILT_IN._replace(read_dma=12345)))
        kept = json.loads(file.read_text())
        kept["origin"]["cpu"] = "another"
        file.write_text(json.dumps(kept))
        _, result = json_of("tune", "--show")
        assert result["why"] == (
            f"built in: {file} is not of this GPU, driver and CPU, or cannot be read"
        )
        assert result["limits"] == tune._limits_json(BUILT_IN)

    def test_tells_that_the_environment_says_so(self, json_of, monkeypatch):
        tuning.save(0, BUILT_IN._replace(read_dma=12345))
        monkeypatch.setenv("GDRPY_TUNING", "0")
        _, result = json_of("tune", "--show")
        assert result["why"] == "built in: GDRPY_TUNING is 0"
        assert result["limits"] == tune._limits_json(BUILT_IN)


class TestReset:
    def test_deletes_what_is_kept(self, json_of, capsys):
        file = Path(tuning.save(0, BUILT_IN))
        status, result = json_of("tune", "--reset")
        assert (status, result) == (0, {"deleted": str(file)})
        assert not file.exists()
        assert main(["tune", "--reset"]) == 0
        assert capsys.readouterr().out == "nothing is kept for this GPU\n"

    def test_says_why_it_cannot(self, capsys, cache):
        (cache / SIMULATED_FILE).mkdir(parents=True)
        assert main(["tune", "--reset"]) == 1
        assert f"error: cannot delete {cache / SIMULATED_FILE}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--show", "--reset"], "not allowed with argument"),
        (["--show", "--dry-run"], "not allowed with argument"),
        (["--seconds", "0"], "'0' is not a number of seconds above 0"),
        (["--device", "-1"], "torch's name ('cuda:0'), not '-1'"),
    ],
)
def test_wrong_usage_is_refused(capsys, words, message):
    with pytest.raises(SystemExit) as ended:
        main(["tune", *words])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["--show"], ["--reset"]])
def test_a_device_that_is_not_there_is_refused(capsys, words):
    assert main(["tune", "--device", "7", *words]) == 2
    assert "--device: there is no CUDA device 7" in capsys.readouterr().err
