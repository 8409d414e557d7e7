"""The benchmark of the GPU's copy engine, on the simulated resource manager."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

# Preloaded tests run in processes of their own, without conftest.py.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "benchmarks"))

import copyengine
import copyengine_kills
import gdrpy
from copyengine_child import noise
from gdrpy import cuda
from gdrpy.memory import engine
from harness import Session

ON_NVRM = {"GDRPY_SIM": "1", "GDRPY_BACKEND": "nvrm"}
MIB = 1 << 20

preloaded = pytest.mark.preloaded(**ON_NVRM)


def session(kills: int | None = None) -> Session:
    return Session(0.01, True, lambda what: None, kills)


def figures(of: Session) -> dict[str, float]:
    return {one.id: one.value for one in of.figures}


def other_noise(seed: int, nbytes: int) -> np.ndarray:
    return noise(seed + 2, nbytes)


class TestMachineWithoutTheEngine:
    def test_is_told_with_the_reason(self):
        found = session()
        copyengine.run(found)
        assert found.absent == {"copyengine: engine": engine.status(0).reason}
        assert (found.measurements, found.sweeps, found.figures) == ([], [], [])


@preloaded
class TestKills:
    def run(self, kills: int) -> Session:
        found = session(kills)
        with cuda.context(0):
            copyengine_kills.run(found)
        return found

    def test_are_as_many_as_wanted_and_find_no_wrong_byte(self):
        found = self.run(5)
        values = figures(found)
        assert values[copyengine_kills.KILLS] == 5
        assert [len(one.samples) for one in found.measurements] == [3, 2]
        assert [one.verified for one in found.measurements] == [True, True]
        assert values[copyengine_kills.WRONG] == 0
        assert values[copyengine_kills.LEFT] == 0
        assert values[copyengine_kills.DESCRIPTORS] == 0

    def test_find_wrong_bytes(self):
        copyengine_kills.noise = other_noise
        found = self.run(2)
        assert [one.verified for one in found.measurements] == [False, False]
        assert figures(found)[copyengine_kills.WRONG] == 2

    def test_find_memory_that_is_not_given_back(self):
        amounts = iter([9 * MIB, 7 * MIB, 4 * MIB])
        copyengine_kills.free_nbytes = amounts.__next__
        copyengine_kills.memory_back = lambda free, seconds: free != 7 * MIB
        assert figures(self.run(1))[copyengine_kills.LEFT] == 3 * MIB


@preloaded
class TestCopies:
    def test_that_move_wrong_bytes_are_found_and_their_figures_not_given(self):
        write = gdrpy.Region.write
        gdrpy.Region.write = lambda self, data, offset, via: write(
            self, bytes(data.nbytes), offset, via
        )
        found = session()
        with cuda.context(0):
            copyengine._copies(found)
        written, read = found.sweeps
        assert {one.partition(",")[0] for one in written.wrong} == {"engine", "engine again"}
        assert read.wrong == []
        assert {one.split("/")[1] for one in figures(found)} == {"read"}


@preloaded
class TestWaiting:
    def test_takes_the_cpu_time_of_reads(self):
        found = session()
        with cuda.context(0):
            copyengine._waiting(found)
        (one,) = found.figures
        assert (one.id, one.unit) == (copyengine.CPU_TIME, "%")
        assert one.value > 0
        assert one.where is not None
        assert one.where.endswith(" reads of 1 MiB take")

    def test_with_wrong_bytes_is_an_error(self):
        gdrpy.Region.readinto = lambda *_: None
        with cuda.context(0), pytest.raises(ValueError, match="1 GiB .*: wrong bytes after"):
            copyengine._waiting(session())


@preloaded
class TestNeighbours:
    def test_reads_of_wrong_bytes_are_an_error(self):
        gdrpy.Region.readinto = lambda *_: None
        with (
            cuda.context(0),
            pytest.raises(ValueError, match="another process: wrong bytes after 1 reads"),
        ):
            copyengine._neighbours(session())


@preloaded
class TestManyProcesses:
    def test_find_wrong_bytes(self):
        copyengine.noise = other_noise
        found = session()
        with cuda.context(0):
            copyengine._many(found)
        assert figures(found)[copyengine.WRONG] >= 2


@preloaded
class TestFreshProcess:
    def test_gpu_memory_is_the_most_that_any_took(self):
        amounts = iter([90 * MIB, 88 * MIB, 87 * MIB, 89 * MIB, 90 * MIB])
        copyengine.free_nbytes = amounts.__next__
        copyengine.memory_back = lambda free, seconds: True
        found = session()
        with cuda.context(0):
            copyengine._fresh(found)
        assert figures(found) == {copyengine.MEMORY: 3.0}
        assert [one.verified for one in found.measurements] == [True] * 5

    def test_that_reads_wrong_bytes_is_found(self):
        put = copyengine.GpuBytes.put
        copyengine.GpuBytes.put = lambda self, data: put(self, ~data)
        found = session()
        with cuda.context(0):
            copyengine._fresh(found)
        assert [one.verified for one in found.measurements] == [False] * 5
