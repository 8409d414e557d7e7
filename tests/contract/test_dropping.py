"""GPU memory that is dropped while work that uses it is queued on the GPU."""

from __future__ import annotations

import gc
import os
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

import gdrpy
from gdrpy import cuda
from gdrpy.memory import reclaim
from support import Watched, free_nbytes

SIZE = 32 << 20


@pytest.fixture
def stream(contract: None, driver):
    stream = cuda.call("cuStreamCreate", driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
    yield stream
    cuda.call("cuStreamDestroy", stream)


@pytest.fixture
def target(contract: None):
    """Where queued copies go to."""
    with gdrpy.alloc(SIZE) as target:
        yield target


@pytest.fixture
def end(stream):
    """Let the stream's work go on, and wait for the GPU; at the latest when the test ends."""
    with gdrpy.page_locked(4096) as word:
        go = word.flag()
        go.set(0)
        go.stream_wait(stream, 1)

        def end() -> None:
            go.set(1)
            cuda.call("cuCtxSynchronize")

        yield end
        end()
        gdrpy.alloc(4).close()


@pytest.fixture
def in_use(stream, target, end) -> Callable[..., gdrpy.Region]:
    """Makes a region full of sevens that queued work copies to ``target``, but not yet."""

    def make(nbytes: int = SIZE) -> gdrpy.Region:
        region = gdrpy.alloc(nbytes, cpu=False)
        region.fill(7, nbytes=SIZE)
        cuda.call("cuMemcpyAsync", target.ptr, region.ptr, SIZE, stream)
        return region

    return make


@pytest.fixture
def calls(monkeypatch) -> SimpleNamespace:
    """The names of the driver calls from here on; ``allocating`` is set by each cuMemCreate.

    ``version`` is what the driver answers as its own, if it is set.
    """
    seen = SimpleNamespace(names=[], allocating=threading.Event(), version=None)
    driver = cuda.driver

    def record(name: str, function: Callable[..., object], *args: object) -> object:
        seen.names.append(name)
        if name == "cuMemCreate":  # where memory is short a real GPU's driver waits in it itself
            seen.allocating.set()
        if name == "cuDriverGetVersion" and seen.version:
            return 0, seen.version
        return function(*args)

    monkeypatch.setattr(cuda, "driver", lambda: Watched(driver(), "cu[A-Z].*", record))
    return seen


class TestMemoryInUse:
    def test_stays_until_the_work_is_done(self, in_use, target, end):
        region = in_use()
        before = free_nbytes()
        del region
        assert free_nbytes() == before
        end()
        assert target.read() == bytes([7]) * SIZE

    def test_is_given_back_by_the_next_allocation(self, in_use, end):
        region = in_use()
        before = free_nbytes()
        del region
        end()
        assert free_nbytes() == before
        gdrpy.alloc(4).close()
        assert free_nbytes() == before + SIZE

    def test_is_given_back_when_a_region_is_opened(self, in_use, target, end):
        region, fd = in_use(), target.export()
        before = free_nbytes()
        del region
        end()
        gdrpy.Region.from_fd(fd).close()
        os.close(fd)
        assert free_nbytes() == before + SIZE

    def test_is_given_back_when_more_is_dropped(self, in_use, end):
        first, second, third = in_use(), in_use(), in_use()
        before = free_nbytes()
        del first, second
        assert free_nbytes() == before
        end()
        del third
        assert free_nbytes() == before + 3 * SIZE

    def test_stays_when_the_last_array_of_it_is_dropped(self, in_use, end):
        region = in_use()
        capsule, gone = region.__dlpack__(), weakref.ref(region)
        before = free_nbytes()
        del region
        assert gone() is None
        del capsule
        assert free_nbytes() == before
        end()
        gdrpy.alloc(4).close()
        assert free_nbytes() == before + SIZE

    def test_stays_when_the_garbage_collector_drops_it(self, in_use, end):
        garbage = [in_use()]
        garbage.append((garbage, garbage[0].__dlpack__()))
        before = free_nbytes()
        del garbage
        gc.collect()
        assert free_nbytes() == before
        end()
        gdrpy.alloc(4).close()
        assert free_nbytes() == before + SIZE

    def test_keeps_what_it_is_made_of(self, in_use, end):
        class Lease:
            pass

        region, lease = in_use(), Lease()
        region._memory.source, gone = lease, weakref.ref(lease)
        del region, lease
        assert gone() is not None
        end()
        gdrpy.alloc(4).close()
        assert gone() is None

    def test_is_closed_at_once(self, stream, end):
        region = gdrpy.alloc(SIZE)
        before = free_nbytes()
        region.close()
        assert free_nbytes() == before + SIZE

    def test_is_waited_for_where_the_gpu_has_no_other(self, in_use, target, end, calls):
        # More than half of all, and not of what is free: other processes may give memory back.
        size = cuda.call("cuDeviceTotalMem", cuda.device(0)) // 2 + (16 << 20)
        region = in_use(size)
        del region
        assert free_nbytes() < size
        calls.allocating.clear()
        with ThreadPoolExecutor(1) as pool:
            allocated = pool.submit(gdrpy.alloc, size, cpu=False)
            try:
                assert calls.allocating.wait(60)
                assert not allocated.done()
            finally:
                end()
            allocated.result(60).close()
        assert calls.names.count("cuEventSynchronize") == 1
        assert target.read() == bytes([7]) * SIZE


class TestIdleMemory:
    def test_is_given_back_at_once(self, contract):
        region = gdrpy.alloc(SIZE)
        before = free_nbytes()
        del region
        assert free_nbytes() == before + SIZE

    def test_waits_for_the_context_where_that_has_no_events(self, contract, calls):
        calls.version = 12040
        region = gdrpy.alloc(SIZE)
        before = free_nbytes()
        del region
        assert free_nbytes() == before + SIZE
        assert calls.names.count("cuCtxSynchronize") == 1
        assert "cuCtxRecordEvent" not in calls.names

    def test_is_given_back_in_silence_where_the_context_has_failed(self, contract, monkeypatch):
        driver, told = cuda.driver, []

        def failing(name: str, function: Callable[..., object], *args: object) -> object:
            function(*args)
            return (driver().CUresult.CUDA_ERROR_ILLEGAL_ADDRESS,)

        def watched() -> Watched:
            return Watched(driver(), "cuCtxRecordEvent|cuMemUnmap", failing)

        before = free_nbytes()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "unraisablehook", told.append)
            patch.setattr(cuda, "driver", watched)
            region = gdrpy.alloc(SIZE)
            del region
        assert free_nbytes() == before
        assert told == []

    def test_takes_one_event_however_often_cuda_may_not_be_asked(self, contract, monkeypatch):
        driver, made = cuda.driver, []

        def refusing(name: str, function: Callable[..., object], *args: object) -> object:
            if name == "cuCtxRecordEvent":
                return (driver().CUresult.CUDA_ERROR_NOT_PERMITTED,)
            made.append(name)
            return function(*args)

        def watched() -> Watched:
            return Watched(driver(), "cuCtxRecordEvent|cuEventCreate", refusing)

        region = gdrpy.alloc(SIZE)
        with monkeypatch.context() as patch:
            patch.setattr(cuda, "driver", watched)
            del region
            for _ in range(3):
                reclaim.reclaim(0)
        assert made == ["cuEventCreate"]
        assert reclaim.reclaim(0)

    @pytest.mark.parametrize(
        "reason",
        [
            "STREAM_CAPTURE_UNSUPPORTED",
            "STREAM_CAPTURE_INVALIDATED",
            "STREAM_CAPTURE_IMPLICIT",
            "NOT_PERMITTED",
        ],
    )
    def test_is_given_back_later_where_cuda_may_not_be_asked(self, contract, monkeypatch, reason):
        driver = cuda.driver

        def refusing(name: str, function: Callable[..., object], *args: object) -> object:
            return (getattr(driver().CUresult, f"CUDA_ERROR_{reason}"),)

        def watched() -> Watched:
            return Watched(driver(), "cuCtxRecordEvent", refusing)

        region = gdrpy.alloc(SIZE)
        before = free_nbytes()
        with monkeypatch.context() as patch:
            patch.setattr(cuda, "driver", watched)
            del region
            assert free_nbytes() == before
        gdrpy.alloc(4).close()
        assert free_nbytes() == before + SIZE
