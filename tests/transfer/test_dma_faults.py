"""DMA whose driver calls fail, on the simulated GPU: the call raises, and the next one works."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

import gdrpy
from gdrpy import sim

MIB = 1 << 20
#: Large enough for every lane.
NBYTES = 20 * MIB
CUDA_ERROR_ILLEGAL_STATE = 401


@pytest.fixture
def fail(nothing_leaks: None) -> Callable[[str], None]:
    """Have calls of the simulated driver fail, as GDRPY_SIM_FAULT does: FUNCTION:CALL:CURESULT."""
    library = ctypes.CDLL(sim.driver_path())

    def set_fault(spec: str) -> None:
        assert library.gdrsim_set_fault(spec.encode()) == 0

    return set_fault


PAGEABLE_WRITE = ("cuMemcpyHtoDAsync", "cuEventRecord", "cuEventSynchronize")
PAGEABLE_READ = ("cuMemcpyDtoHAsync", "cuEventRecord", "cuEventSynchronize")


class TestFailingCall:
    @pytest.mark.parametrize(
        ("copy", "function", "call"),
        [
            ("write", "cuStreamSynchronize", 1),
            *(("write", function, call) for function in PAGEABLE_WRITE for call in (1, 2, 5)),
            *(("readinto", function, call) for function in PAGEABLE_READ for call in (1, 2, 5)),
        ],
    )
    def test_of_a_lane_raises_and_leaves_the_next_copy_whole(self, fail, copy, function, call):
        data = bytearray(os.urandom(MIB) * (NBYTES // MIB))
        with gdrpy.alloc(NBYTES) as region:
            fail(f"{function}:{call}:{CUDA_ERROR_ILLEGAL_STATE}")
            with pytest.raises(gdrpy.CudaError, match=f"{function}.*CUDA_ERROR_ILLEGAL_STATE"):
                getattr(region, copy)(bytearray(NBYTES), via="dma")
            fail("")
            region.write(data, via="dma")
            assert region.read(via="dma") == data
            assert region._running == 0

    @pytest.mark.parametrize(
        ("copy", "function"),
        [("write", "cuMemcpyHtoDAsync"), ("readinto", "cuMemcpyDtoHAsync")],
    )
    def test_of_a_page_locked_copy_raises(self, fail, copy, function):
        with gdrpy.alloc(MIB) as region, region.mirror() as array:
            fail(f"{function}:1:{CUDA_ERROR_ILLEGAL_STATE}")
            with pytest.raises(gdrpy.CudaError, match=function):
                getattr(region, copy)(array)
            fail("")

    @pytest.mark.parametrize("copy", ["write", "readinto"])
    def test_to_make_the_context_current_raises(self, fail, copy):
        with gdrpy.alloc(MIB) as region:
            region.write(b"x", via="dma")
            fail(f"cuCtxPushCurrent:1:{CUDA_ERROR_ILLEGAL_STATE}")
            with pytest.raises(gdrpy.CudaError, match="cuCtxPushCurrent"):
                getattr(region, copy)(bytearray(MIB), via="dma")
            fail("")

    def test_to_page_lock_memory_says_whose_there_is_none_of(self, fail):
        with gdrpy.alloc(MIB):
            fail("cuMemHostAlloc:1")
            with pytest.raises(gdrpy.OutOfMemory, match="the host has no more memory to page-lock"):
                gdrpy.page_locked(64)
            fail("")


STAGING = """
import ctypes, gdrpy
from gdrpy import sim
nbytes = 20 << 20
with gdrpy.alloc(nbytes, cpu=False) as region:
    library = ctypes.CDLL(sim.driver_path())
    assert library.gdrsim_set_fault(b"{function}:{call}:{code}") == 0
    try:
        region.write(bytes(nbytes))
    except gdrpy.Error as error:
        print(type(error).__name__, "{function}" in str(error))
    region.write(b"again" * 4)
    print(region.read(5))
"""


class TestStagingThatCannotBeMade:
    @pytest.mark.parametrize(
        ("function", "call", "code", "error"),
        [
            ("cuMemHostAlloc", 1, 2, "OutOfMemory"),
            ("cuMemHostAlloc", 4, 2, "OutOfMemory"),
            ("cuStreamCreate", 1, 401, "CudaError"),
            ("cuEventCreate", 3, 401, "CudaError"),
        ],
    )
    def test_raises_and_is_made_by_the_next_copy(self, function, call, code, error):
        program = STAGING.format(function=function, call=call, code=code)
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.stdout, done.stderr) == (f"{error} True\nb'again'\n", "")


WITHOUT_STAGING = """
import ctypes, gdrpy
from gdrpy import sim
nbytes = 20 << 20
data = bytes(range(256)) * (nbytes // 256)
with gdrpy.alloc(nbytes) as region:
    region.cpu.write(data)
    library = ctypes.CDLL(sim.driver_path())
    def run_short():
        assert library.gdrsim_set_fault(b"cuMemHostAlloc:1:2") == 0
    run_short()
    try:
        region.write(data, via="dma")
    except gdrpy.OutOfMemory as error:
        print(error)
    run_short()
    print(region.read() == data)
"""


class TestWithoutMemoryForStaging:
    def test_copies_take_the_mapping_unless_dma_is_forced(self):
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT_STAGING],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        expected = "cuMemHostAlloc: the host has no more memory to page-lock: free some of it"
        assert (done.stdout, done.stderr) == (f"{expected}\nTrue\n", "")


class TestThreads:
    def test_that_copy_at_once_get_their_own_bytes(self, nothing_leaks):
        def work(number: int) -> None:
            data = bytes([number]) * (3 * MIB)
            start = number * len(data)
            for via in ("dma", "mapping", None):
                region.write(data, start, via)
                if region.read(len(data), start, via) != data:
                    wrong.append((number, via))

        wrong: list[tuple[int, str | None]] = []
        with gdrpy.alloc(4 * 3 * MIB) as region:
            threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert wrong == []


FORKED = """
import os, gdrpy
region = gdrpy.alloc(32 << 20, "cpu")
data = os.urandom(32 << 20)
region.write(data, via="mapping")
child = os.fork()
if not child:
    other = gdrpy.alloc(32 << 20, "cpu")
    other.write(data, via="mapping")
    os._exit(0 if other.read() == data else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), region.read() == data)
"""


class TestForkedChild:
    def test_starts_threads_of_its_own(self):
        # From Python 3.12 on it warns of a fork beside threads.
        quiet = "ignore:This process:DeprecationWarning"
        command = (sys.executable, "-W", quiet, "-c", FORKED)
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (done.stdout, done.stderr) == ("0 True\n", "")
