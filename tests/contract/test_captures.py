"""GPU memory that is dropped while a stream is captured into a CUDA graph."""

from __future__ import annotations

import functools
import gc
import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

import gdrpy
from gdrpy import cuda
from gdrpy.memory import memory, reclaim
from support import free_nbytes

SIZE = 32 << 20

#: Begins a capture of a new current stream, by its flags and mode; its end must succeed.
Capture = Callable[..., AbstractContextManager[Any]]


class TorchStream:
    """As torch.cuda.Stream: its own number, and the handle."""

    def __init__(self, handle: int, number: int | None = None) -> None:
        self.stream_id = (handle << 1 | 1) if number is None else number
        self.cuda_stream = handle


class TorchCuda(SimpleNamespace):
    """As far as it goes, the module torch.cuda with a current stream for each thread."""

    def __init__(self) -> None:
        self._current = threading.local()

    def is_initialized(self) -> bool:
        return True

    def current_stream(self, device: int | None = None) -> TorchStream:
        assert device == 0
        return TorchStream(getattr(self._current, "handle", 0))

    def set_stream(self, handle: int) -> None:
        self._current.handle = handle


class CupyStream:
    """As cupy.cuda.Stream: its handle, destroyed with it if it has made the stream."""

    def __init__(self, handle: int | None = None) -> None:
        self._made = handle is None
        self.ptr = int(cuda.call("cuStreamCreate", 1)) if handle is None else handle

    def __del__(self) -> None:
        if self._made:
            cuda.call("cuStreamDestroy", self.ptr)


class CupyCuda(SimpleNamespace):
    """As far as it goes, the module cupy.cuda with a current stream for each thread."""

    Stream = CupyStream

    def __init__(self) -> None:
        self._current = threading.local()

    def get_current_stream(self, device_id: int = -1) -> CupyStream:
        assert device_id == -1
        return getattr(self._current, "stream", None) or CupyStream(0)

    def set_stream(self, handle: int) -> None:
        self._current.stream = CupyStream(handle)


@pytest.fixture(params=["torch", "cupy"])
def library(request, monkeypatch: pytest.MonkeyPatch) -> TorchCuda | CupyCuda:
    library = TorchCuda() if request.param == "torch" else CupyCuda()
    monkeypatch.setitem(sys.modules, f"{request.param}.cuda", library)
    return library


@pytest.fixture
def capture(contract: None, driver, library) -> Capture:
    flags, modes = driver.CUstream_flags, driver.CUstreamCaptureMode

    @contextmanager
    def capture(
        flag: Any = flags.CU_STREAM_NON_BLOCKING,
        mode: Any = modes.CU_STREAM_CAPTURE_MODE_GLOBAL,
        current: bool = True,
    ) -> Iterator[None]:
        with cuda.context(0):
            lasting = isinstance(library, TorchCuda)
            stream = lasting_stream(flag) if lasting else cuda.call("cuStreamCreate", flag)
            cuda.call("cuStreamBeginCapture", stream, mode)
            try:
                if current:
                    library.set_stream(int(stream))
                yield
            finally:
                library.set_stream(0)
                result, graph = driver.cuStreamEndCapture(stream)
                gdrpy.alloc(4).close()  # frees what was kept
                if not lasting:
                    cuda.call("cuStreamDestroy", stream)
            assert result.name == "CUDA_SUCCESS"
            cuda.call("cuGraphDestroy", graph)

    return capture


@functools.cache
def lasting_stream(flag: Any) -> Any:
    """A stream of torch, which takes them out of a pool and destroys none."""
    return cuda.call("cuStreamCreate", flag)


def in_another_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


class TestMemoryDroppedInACapture:
    @pytest.mark.parametrize("mode", [0, 1, 2])
    def test_leaves_it_valid_and_comes_back_later(self, capture, driver, mode):
        region = gdrpy.alloc(SIZE)
        before = free_nbytes()
        with capture(mode=driver.CUstreamCaptureMode(mode)):
            del region
            gdrpy.alloc(4).close()
            assert free_nbytes() == before
        assert free_nbytes() == before + SIZE

    def test_of_a_mapping_does_so(self, capture):
        mapping = gdrpy.alloc(SIZE).map()
        before = free_nbytes()
        with capture():
            del mapping
            assert free_nbytes() == before
        assert free_nbytes() == before + SIZE

    def test_of_a_detached_region_does_so(self, capture):
        region = gdrpy.alloc(SIZE, cpu=False)
        fd, address = region.export(), region.ptr
        region.detach()
        with capture():
            del region
        with gdrpy.Region.from_fd(fd, address=address):
            os.close(fd)

    def test_of_an_array_does_so(self, capture):
        array = gdrpy.alloc(SIZE).array((4, 4), "float32")
        before = free_nbytes()
        with capture():
            del array
            assert free_nbytes() == before
        assert free_nbytes() == before + SIZE

    def test_of_an_arena_does_so(self, capture):
        arena = gdrpy.Arena(gdrpy.alloc(SIZE))
        block = arena.allocate(4096)
        before = free_nbytes()
        with capture():
            arena.free(block)
            del arena
            assert free_nbytes() == before
        assert free_nbytes() == before + SIZE

    def test_by_the_garbage_collector_does_so(self, capture):
        garbage = [gdrpy.alloc(SIZE)]
        garbage.append((garbage, garbage[0].__dlpack__()))
        before = free_nbytes()
        with capture():
            del garbage
            gc.collect()
            assert free_nbytes() == before
        assert free_nbytes() == before + SIZE

    def test_stays_when_another_thread_allocates(self, capture):
        region = gdrpy.alloc(SIZE)
        before = free_nbytes()
        with capture():
            del region
            in_another_thread(lambda: gdrpy.alloc(4).close())
            assert free_nbytes() == before
        assert free_nbytes() == before + SIZE

    def test_of_another_thread_leaves_one_of_a_blocking_stream_valid(self, capture, driver):
        region = [gdrpy.alloc(SIZE)]
        before = free_nbytes()
        with capture(driver.CUstream_flags.CU_STREAM_DEFAULT, current=False):
            in_another_thread(region.clear)
            assert free_nbytes() == before
        assert free_nbytes() == before + SIZE


class TestACaptureThatIsGivenUp:
    def test_ends_with_its_stream_of_cupy_and_the_memory_comes_back(self, contract, monkeypatch):
        library = CupyCuda()
        monkeypatch.setitem(sys.modules, "cupy.cuda", library)
        region = gdrpy.alloc(SIZE)
        before = free_nbytes()
        with cuda.context(0):
            library._current.stream = CupyStream()
            handle = library.get_current_stream().ptr
            cuda.call("cuStreamBeginCapture", handle, cuda.driver().CUstreamCaptureMode(2))
            del region
            assert free_nbytes() == before
            library.set_stream(0)  # and the stream is gone
            gdrpy.alloc(4).close()
        assert free_nbytes() == before + SIZE


class TestMemoryDroppedBeforeACapture:
    @pytest.mark.parametrize("elsewhere", [False, True])
    def test_comes_back_in_it_when_its_work_is_done(self, capture, driver, elsewhere):
        stream = cuda.call("cuStreamCreate", driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
        with gdrpy.page_locked(4096) as word, gdrpy.alloc(SIZE) as target:
            go = word.flag()
            go.set(0)
            go.stream_wait(stream, 1)
            region = gdrpy.alloc(SIZE)
            cuda.call("cuMemcpyAsync", target.ptr, region.ptr, SIZE, stream)
            before = free_nbytes()
            del region
            go.set(1)
            cuda.call("cuCtxSynchronize")
            with capture():
                if elsewhere:
                    in_another_thread(lambda: gdrpy.alloc(4).close())
                else:
                    gdrpy.alloc(4).close()
                assert free_nbytes() == before + SIZE
        cuda.call("cuStreamDestroy", stream)


class TestWaitingInACapture:
    def test_raises_and_leaves_it_valid(self, capture):
        with gdrpy.alloc(SIZE, cpu=False) as region, gdrpy.Heap() as heap, capture():
            with pytest.raises(BufferError, match="CUDA cannot tell now"):
                region.detach()
            with pytest.raises(BufferError, match="CUDA cannot tell now"):
                heap.sleep()
            assert not region.detached


class TestModulesThatCannotBeAsked:
    @pytest.mark.parametrize("name", ["torch.cuda", "cupy.cuda"])
    def test_that_are_half_imported_do_not_matter(self, contract, monkeypatch, name):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())
        region = gdrpy.alloc(SIZE)
        before = free_nbytes()
        del region
        assert free_nbytes() == before + SIZE

    def test_that_have_no_driver_do_not_matter(self, contract, monkeypatch):
        def fail() -> None:
            raise RuntimeError("cudaErrorInsufficientDriver")

        monkeypatch.setitem(sys.modules, "cupy.cuda", SimpleNamespace(get_current_stream=fail))
        monkeypatch.setitem(
            sys.modules, "torch.cuda", SimpleNamespace(is_initialized=lambda: False)
        )
        region = gdrpy.alloc(SIZE)
        before = free_nbytes()
        del region
        assert free_nbytes() == before + SIZE


@pytest.fixture
def cupy(contract: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """As far as gdrpy.cupy goes, the module cupy, whose allocations are their owners."""
    library = CupyCuda()
    library.runtime = SimpleNamespace(CUDARuntimeError=CupyError)
    library.UnownedMemory = lambda ptr, size, owner, device: owner
    library.MemoryPointer = lambda memory, offset: memory
    module = SimpleNamespace(cuda=library)
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setitem(sys.modules, "cupy.cuda", library)
    monkeypatch.setattr(memory, "settle", [*memory.settle])
    monkeypatch.delitem(sys.modules, "gdrpy.cupy", raising=False)
    monkeypatch.setattr(gdrpy, "cupy", importlib.import_module("gdrpy.cupy"), raising=False)
    yield module
    del sys.modules["gdrpy.cupy"]


class CupyError(RuntimeError):
    """As cupy.cuda.runtime.CUDARuntimeError."""


class TestAnArrayOfCupyDroppedInACapture:
    """Work that waits for the CPU is queued in its stream after the capture."""

    @pytest.fixture
    def arena(self, contract: None) -> Iterator[gdrpy.Arena]:
        with gdrpy.alloc(SIZE) as region, gdrpy.Arena(region) as arena:
            yield arena

    @pytest.fixture
    def go(self, cupy, arena: gdrpy.Arena, driver) -> Iterator[Callable[[], None]]:
        with cuda.context(0), gdrpy.page_locked(4096) as word:
            stream = cuda.call("cuStreamCreate", 1)
            cupy.cuda.set_stream(int(stream))
            array = gdrpy.cupy.allocator(arena)(SIZE // 2)
            cuda.call("cuStreamBeginCapture", stream, driver.CUstreamCaptureMode(0))
            del array
            cuda.call("cuGraphDestroy", cuda.call("cuStreamEndCapture", stream))
            flag = word.flag()
            flag.set(0)
            flag.stream_wait(stream, 1)
            yield lambda: flag.set(1)
            flag.set(1)
            cuda.call("cuStreamSynchronize", stream)
            gdrpy.alloc(4).close()  # asks for the last time about the stream
            cupy.cuda.set_stream(0)
            cuda.call("cuStreamDestroy", stream)

    def test_is_not_waited_for_when_a_region_closes(self, go, arena):
        gdrpy.alloc(4).close()
        assert arena.blocks == 1

    def test_is_freed_by_the_next_close_once_its_stream_is_idle(self, go, arena):
        go()
        cuda.call("cuCtxSynchronize")
        arena.close()

    def test_is_waited_for_if_there_is_no_room(self, go, arena):
        timer = threading.Timer(0.1, go)
        timer.start()
        array = gdrpy.cupy.allocator(arena)(SIZE)
        timer.join()
        assert arena.blocks == 1
        del array
        assert arena.blocks == 0


class TestABufferOfRmmFreedInACapture:
    """rmm calls back with the stream, and ignores errors of the callback that frees."""

    @pytest.fixture
    def resource(self, contract: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
        """As rmm.mr.CallbackMemoryResource, whose callbacks are called by hand."""

        def made(allocate: Any, free: Any) -> SimpleNamespace:
            return SimpleNamespace(allocate=allocate, free=free)

        mr = SimpleNamespace(CallbackMemoryResource=made)
        monkeypatch.setitem(sys.modules, "rmm", SimpleNamespace(mr=mr))
        monkeypatch.delitem(sys.modules, "gdrpy.rmm", raising=False)
        module = importlib.import_module("gdrpy.rmm")
        with cuda.context(0), gdrpy.alloc(SIZE) as region, gdrpy.Arena(region) as arena:
            resource = module.resource(arena)
            resource.arena = arena
            yield resource
        del sys.modules["gdrpy.rmm"]

    @pytest.fixture
    def stream(self, contract: None) -> Iterator[Any]:
        with cuda.context(0):
            stream = cuda.call("cuStreamCreate", 1)
            yield stream
            cuda.call("cuStreamDestroy", stream)

    @pytest.fixture
    def captured(self, resource, stream, driver) -> Iterator[None]:
        """A block of half the arena was freed in a capture, which has ended well."""
        block = resource.allocate(SIZE // 2, stream)
        cuda.call("cuStreamBeginCapture", stream, driver.CUstreamCaptureMode(0))
        resource.free(block, SIZE // 2, stream)
        other = resource.allocate(4096, stream)
        assert resource.arena.blocks == 2
        cuda.call("cuGraphDestroy", cuda.call("cuStreamEndCapture", stream))
        resource.free(other, 4096, stream)

    def test_is_freed_by_a_later_allocation(self, captured, resource, stream):
        block = resource.allocate(4096, stream)
        assert resource.arena.blocks == 1
        resource.free(block, 4096, stream)

    def test_stays_while_the_gpu_works(self, captured, resource, stream):
        with gdrpy.page_locked(4096) as word:
            word.flag().set(0)
            word.flag().stream_wait(stream, 1)
            block = resource.allocate(4096, None)
            assert resource.arena.blocks == 2
            word.flag().set(1)
            cuda.call("cuStreamSynchronize", stream)
        resource.free(block, 4096, stream)
        resource.free(resource.allocate(SIZE, stream), SIZE, stream)
        assert resource.arena.blocks == 0

    def test_is_waited_for_if_there_is_no_room(self, captured, resource, stream):
        with gdrpy.page_locked(4096) as word:
            word.flag().set(0)
            word.flag().stream_wait(stream, 1)
            timer = threading.Timer(0.1, word.flag().set, [1])
            timer.start()
            block = resource.allocate(SIZE, None)
            timer.join()
        assert resource.arena.blocks == 1
        resource.free(block, SIZE, stream)

    def test_is_freed_in_time_although_the_gpu_always_works(self, captured, resource, stream):
        with gdrpy.page_locked(4096) as word:
            flag = word.flag()
            flag.set(0)
            flag.stream_wait(stream, 1)
            kept = resource.allocate(4096, None)
            flag.stream_wait(stream, 2)
            flag.set(1)
            reclaim.reclaim(0, wait=True)
            block = resource.allocate(4096, None)
            blocks = resource.arena.blocks
            flag.set(2)
            cuda.call("cuStreamSynchronize", stream)
        for one in (kept, block):
            resource.free(one, 4096, stream)
        assert blocks == 2

    def test_does_not_keep_the_region_of_a_dropped_resource(self, resource, stream, driver):
        make = sys.modules["gdrpy.rmm"].resource
        gdrpy.alloc(SIZE).close()
        before = free_nbytes()
        region = gdrpy.alloc(SIZE)
        other = make(region)
        block = other.allocate(4096, stream)
        cuda.call("cuStreamBeginCapture", stream, driver.CUstreamCaptureMode(0))
        other.free(block, 4096, stream)
        cuda.call("cuGraphDestroy", cuda.call("cuStreamEndCapture", stream))
        del other, region
        gdrpy.alloc(4).close()
        assert free_nbytes() == before

    def test_without_room_raises_out_of_memory_in_the_capture(self, resource, stream, driver):
        block = resource.allocate(SIZE, stream)
        cuda.call("cuStreamBeginCapture", stream, driver.CUstreamCaptureMode(0))
        resource.free(block, SIZE, stream)
        with pytest.raises(gdrpy.OutOfMemory):
            resource.allocate(4096, stream)
        cuda.call("cuGraphDestroy", cuda.call("cuStreamEndCapture", stream))
        resource.free(resource.allocate(SIZE, stream), SIZE, stream)
        assert resource.arena.blocks == 0


class TestPageLockedMemory:
    def test_is_made_and_dropped_in_a_capture(self, capture):
        with capture():
            gdrpy.page_locked(4096).close()
            memory = gdrpy.page_locked(4096)
            del memory
