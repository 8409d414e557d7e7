"""Page-locked host memory, as the CPU and the GPU use it."""

from __future__ import annotations

import gc

import pytest

import gdrpy
from gdrpy import cuda
from gdrpy.memory.view import MappingType


def page_locked(address: int) -> bool:
    """Whether CUDA has page-locked the memory at an address."""
    with cuda.context(0):
        try:
            cuda.call("cuMemHostGetFlags", address)
        except gdrpy.CudaError:
            return False
    return True


@pytest.fixture
def memory(contract: None):
    with gdrpy.page_locked(5000) as memory:
        yield memory


class TestPageLockedMemory:
    def test_is_a_mapping_as_any_other(self, memory):
        memory.write(b"hello", 3)
        assert memory.read(5, 3) == b"hello"
        memory.store(4992, 1 << 40, 8)
        assert memory.numpy("uint64", offset=4992)[0] == 1 << 40

    def test_is_cached_and_says_what_it_is(self, memory):
        assert (memory.nbytes, memory.device, memory.backend) == (5000, 0, "page-locked")
        assert memory.mapping_type is MappingType.CACHED
        assert repr(memory) == "<Mapping of 5000 bytes, cached, page-locked>"

    def test_is_reached_by_the_gpu(self, memory, region):
        region.write(b"from the GPU")
        with cuda.context(0):
            cuda.call("cuMemcpyDtoD", memory.ptr + 100, region.ptr, 12)
            cuda.call("cuCtxSynchronize")
        assert memory.read(12, 100) == b"from the GPU"

    def test_holds_a_flag_that_a_stream_sets(self, memory, driver):
        answer = memory.flag(64)
        answer.set(0)
        stream = cuda.call("cuStreamCreate", driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
        answer.stream_write(stream, 7)
        assert answer.wait(7, timeout=60) == 7
        cuda.call("cuStreamSynchronize", stream)
        cuda.call("cuStreamDestroy", stream)

    def test_is_freed_when_it_is_closed(self, contract):
        memory = gdrpy.page_locked(64)
        address = memory.address
        assert page_locked(address)
        memory.close()
        assert not page_locked(address)
        with pytest.raises(gdrpy.Closed, match=r"Mapping.write: the mapping is closed"):
            memory.write(b"late")

    def test_is_freed_when_the_last_array_of_it_is_gone(self, contract):
        array = gdrpy.page_locked(4096).numpy()[100:200]
        address = array.ctypes.data
        gc.collect()
        assert page_locked(address)
        del array
        gc.collect()
        assert not page_locked(address)

    def test_is_not_closed_under_an_array(self, memory):
        array = memory.numpy()
        with pytest.raises(BufferError, match=r"still use the mapping \(1 in all\)"):
            memory.close()
        del array


class TestRefusal:
    @pytest.mark.parametrize("nbytes", [0, -1])
    def test_of_sizes_that_are_none(self, contract, nbytes):
        with pytest.raises(
            ValueError, match=f"page_locked: nbytes must be 1 or more .*, not {nbytes}"
        ):
            gdrpy.page_locked(nbytes)

    def test_of_what_is_no_size_or_device(self, contract):
        with pytest.raises(TypeError, match="page_locked: nbytes must be an int, not '64'"):
            gdrpy.page_locked("64")
        with pytest.raises(
            ValueError, match="page_locked: device must be a CUDA ordinal, .*, not 'cpu'"
        ):
            gdrpy.page_locked(64, "cpu")

    def test_of_a_device_that_is_not_there(self, contract):
        with pytest.raises(gdrpy.NotFound, match="no CUDA device 99"):
            gdrpy.page_locked(64, 99)

    def test_of_more_than_there_is(self, contract):
        with pytest.raises(gdrpy.OutOfMemory):
            gdrpy.page_locked(1 << 60)
