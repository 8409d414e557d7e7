"""How a process comes to the simulated driver, and what it is told when it cannot."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cuda_calls import Cuda

import gdrpy.cuda
from gdrpy import sim

PLAIN_PROGRAM = """
from cuda.bindings import driver
print(driver.cuInit(0)[0].name)
print(driver.cuDeviceGetName(64, 0)[1].split(b"\\0")[0].decode())
"""


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **environment},
        text=True,
        capture_output=True,
        timeout=60,
    )


class TestPreload:
    def test_the_module_prints_the_path(self) -> None:
        assert python("-m", "gdrpy.sim").stdout == f"{sim.driver_path()}\n"

    def test_a_program_that_knows_nothing_of_gdrpy_runs(self) -> None:
        done = python("-c", PLAIN_PROGRAM, LD_PRELOAD=sim.driver_path())
        assert done.stdout.splitlines() == ["CUDA_SUCCESS", "gdrpy simulated GPU"]

    def test_load_finds_it_there(self) -> None:
        code = "from gdrpy import sim; print(sim.loaded()); sim.load(); print(sim.loaded())"
        done = python("-c", code, LD_PRELOAD=sim.driver_path())
        assert done.stdout.split() == ["True", "True"]


class TestLoad:
    def test_it_can_be_done_again(self) -> None:
        code = """
from gdrpy import sim
print(sim.loaded())
sim.load()
sim.load()
print(sim.loaded())
"""
        assert python("-c", code + PLAIN_PROGRAM).stdout.splitlines() == [
            "False",
            "True",
            "CUDA_SUCCESS",
            "gdrpy simulated GPU",
        ]

    def test_another_driver_in_the_process_is_an_error(self, tmp_path: Path) -> None:
        other = tmp_path / "libcuda.so.1"
        subprocess.run(
            ["cc", "-shared", "-Wl,-soname,libcuda.so.1", "-o", other, "-x", "c", os.devnull],
            check=True,
        )
        code = """
import ctypes, sys
other = ctypes.CDLL(sys.argv[1])
from gdrpy import sim
print(sim.loaded())
try:
    sim.load()
except RuntimeError as error:
    print(error)
"""
        assert python("-c", code, str(other)).stdout.splitlines() == [
            "False",
            "another libcuda.so.1 is loaded in this process already; load the simulated GPU "
            "(GDRPY_SIM=1) before anything uses CUDA",
        ]

    def test_a_library_that_was_not_built_is_an_error(self, tmp_path: Path) -> None:
        code = f"""
from gdrpy import sim
sim.driver_path = lambda: {str(tmp_path / "libcuda.so.1")!r}
try:
    sim.load()
except RuntimeError as error:
    print(error)
"""
        assert python("-c", code).stdout.startswith("the simulated GPU was not built: there is no")

    def test_faults_need_the_simulated_driver(self) -> None:
        code = """
from gdrpy import sim
try:
    sim.call_count("cuInit")
except RuntimeError as error:
    print(error)
"""
        said = "the simulated GPU is not in use in this process\n"
        assert python("-c", code).stdout == said


class TestChoice:
    @pytest.fixture
    def node(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """Where a process that chooses looks for a driver's node; libcuda.so.1 always loads."""
        monkeypatch.delenv("GDRPY_SIM")
        monkeypatch.setattr(sim, "loaded", lambda: False)
        monkeypatch.setattr(ctypes, "CDLL", lambda _: None)
        monkeypatch.setattr(gdrpy.cuda, "_KERNEL_NODES", (tmp_path / "node",))
        return tmp_path / "node"

    def test_is_simulated_without_a_node(self, node: Path) -> None:
        assert gdrpy.cuda._want_simulated() is True

    def test_is_simulated_where_the_node_outlived_the_driver(self, node: Path) -> None:
        socket.socket(socket.AF_UNIX).bind(str(node))
        with pytest.raises(OSError, match="No such device or address"):  # as by such a node
            node.open()
        assert gdrpy.cuda._want_simulated() is True

    def test_is_the_real_gpu_where_a_driver_serves_the_node(self, node: Path) -> None:
        node.touch()
        assert gdrpy.cuda._want_simulated() is False


class TestFaults:
    def test_the_call_that_is_named_fails(self, cuda: Cuda) -> None:
        with sim.fault("cuMemAlloc:2,cuMemGetInfo:1:999"):
            cuda.allocate(4)
            assert cuda.error("cuMemAlloc", 4) == "OUT_OF_MEMORY"
            assert cuda.error("cuMemGetInfo") == "UNKNOWN"
            cuda.allocate(4)

    def test_what_has_not_happened_is_forgotten(self, cuda: Cuda) -> None:
        with pytest.raises(ZeroDivisionError), sim.fault("cuMemAlloc:1"):
            raise ZeroDivisionError
        cuda.allocate(4)

    @pytest.mark.parametrize("spec", ["cuMemAlloc", "cuMemAlloc:0", "cuNothing:1", "cuMemAlloc:1,"])
    def test_a_spec_that_makes_no_sense_is_refused(self, cuda: Cuda, spec: str) -> None:
        with pytest.raises(ValueError, match="is not a list of FUNCTION:CALL"), sim.fault(spec):
            pass
        cuda.allocate(4)

    def test_calls_are_counted(self, cuda: Cuda) -> None:
        before = sim.call_count("cuMemAlloc")
        cuda.allocate(4)
        assert cuda.error("cuMemAlloc", 0) == "INVALID_VALUE"
        assert sim.call_count("cuMemAlloc") == before + 2

    def test_a_function_that_is_not_there_has_no_count(self, cuda: Cuda) -> None:
        with pytest.raises(ValueError, match="has no function 'cuMemAlloc_v2'"):
            sim.call_count("cuMemAlloc_v2")


class TestFunctionsThatAreNotThere:
    def test_the_bindings_say_so(self, cuda: Cuda) -> None:
        with pytest.raises(RuntimeError, match="cuModuleLoad"):
            cuda("cuModuleLoad", b"kernel.cubin")


class TestEnd:
    @pytest.mark.parametrize("flags", [0, 1])
    def test_a_process_ends_with_waits_that_never_will(
        self, another_process: Callable[..., str], flags: int
    ) -> None:
        output = another_process(
            """
cuda("cuCtxSetCurrent", cuda("cuDevicePrimaryCtxRetain", 0))
word = cuda.allocate(4)
stream = cuda("cuStreamCreate", int(sys.argv[1]))
cuda("cuStreamWaitValue32", stream, word, 1, 0)
cuda("cuLaunchHostFunc", stream, 1, 0)
print(cuda.error("cuStreamQuery", stream))
""",
            flags,
        )
        assert output == "NOT_READY\n"
