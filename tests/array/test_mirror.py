"""Mirrors: filled at leisure, copied to the region at the end of the block."""

from __future__ import annotations

import gc
import os

import ml_dtypes
import numpy as np
import pytest

import gdrpy
from gdrpy import cuda
from gdrpy.memory import page_locked as pinnedpool


def page_locked_at(address: int) -> bool:
    """Whether CUDA has page-locked the memory at an address."""
    with cuda.context(0):
        try:
            cuda.call("cuMemHostGetFlags", address)
        except gdrpy.CudaError:
            return False
    return True


def page_locked(array: np.ndarray) -> bool:
    """Whether CUDA has page-locked the memory of an array."""
    return page_locked_at(array.ctypes.data)


@pytest.fixture
def host_only(region):
    """The bytes of ``region`` in a process that has no GPU."""
    fd = region.export()
    with gdrpy.Region.from_fd(fd, region.nbytes, gpu=False) as other:
        os.close(fd)
        yield other


class TestMirror:
    def test_reaches_the_region_at_the_end_of_the_block(self, region, gpu_read):
        region.write(bytes(region.nbytes))
        with region.mirror() as array:
            assert (array.dtype, array.shape) == (np.uint8, (region.nbytes,))
            array[:] = 7
            assert region.read(1) == b"\0"
        assert gpu_read(region.ptr, region.nbytes) == b"\x07" * region.nbytes

    def test_begins_with_the_regions_bytes_if_asked_to(self, region):
        region.write(bytes(range(256)) * 4096)
        with region.mirror(load=True) as array:
            assert array.tobytes() == bytes(range(256)) * 4096
            array[0] = 9
        assert region.read(2) == b"\x09\x01"

    def test_may_be_of_any_element_type_and_shape(self, region):
        region.write(b"after", 24)
        with region.mirror(dtype="BF16", shape=(3, 4)) as array:
            assert (array.dtype, array.shape) == (ml_dtypes.bfloat16, (3, 4))
            array[:] = 2
        assert region.array((12,), "BF16").read().tolist() == [2] * 12
        assert region.read(5, 24) == b"after"

    def test_takes_as_many_elements_as_fit(self, backend):
        with gdrpy.alloc(11) as region, region.mirror(dtype="float32") as array:
            assert array.shape == (2,)
            array[:] = 1

    def test_of_no_bytes_changes_nothing(self, region):
        region.write(b"kept")
        with region.mirror(load=True, shape=0) as array:
            assert array.shape == (0,)
        assert region.read(4) == b"kept"

    def test_is_not_copied_back_when_the_block_raises(self, region):
        region.write(b"kept")
        mirror = region.mirror()
        mirror.__enter__()[:] = 7
        assert mirror.__exit__(RuntimeError, RuntimeError("half done"), None) is False
        assert region.read(4) == b"kept"

    @pytest.mark.parametrize(
        ("wish", "error"),
        [
            ({"dtype": "F128"}, TypeError),
            ({"shape": 1 << 21}, ValueError),
            ({"shape": -1}, ValueError),
        ],
    )
    def test_that_does_not_fit_is_refused(self, region, wish, error):
        with pytest.raises(error), region.mirror(**wish):
            pass

    def test_of_a_closed_region_raises_closed(self, region):
        region.close()
        with pytest.raises(gdrpy.Closed):
            region.mirror()

    def test_whose_region_is_closed_meanwhile_says_so_at_the_end(self, region):
        with pytest.raises(gdrpy.Closed), region.mirror():
            region.close()


class TestReadOnlyRegion:
    def test_has_a_read_only_mirror(self, region, readonly_region):
        region.write(b"read")
        with readonly_region.mirror(load=True) as array:
            assert array[:4].tobytes() == b"read"
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1

    def test_without_cpu_view_has_a_read_only_mirror(self, region):
        region.write(b"kept")
        fd = region.export()
        with gdrpy.Region.from_fd(fd, cpu=False, readonly=True) as reader:
            os.close(fd)
            with reader.mirror() as array:
                assert not array.flags.writeable
                array.base[:4] = 0
        assert region.read(4) == b"kept"


class TestMemory:
    def test_is_page_locked_beside_a_gpu_view(self, region):
        with region.mirror() as array:
            assert page_locked(array)

    def test_is_ordinary_without_one(self, region, host_only):
        with host_only.mirror() as array:
            assert not page_locked(array)
            array[:4] = 5
        assert region.read(4) == b"\x05" * 4

    def test_serves_the_next_mirror_when_the_last_array_is_gone(self, region):
        with region.mirror() as array:
            array[:] = 3
            derived = array[100:200]
        address = array.ctypes.data
        del array
        gc.collect()
        with region.mirror() as other:
            assert other.ctypes.data != address
        assert derived.tolist() == [3] * 100
        del derived, other
        gc.collect()
        pinnedpool.free_kept()
        assert not page_locked_at(address)

    def test_serves_the_next_mirror_when_the_block_raises(self, region):
        mirror = region.mirror()
        array = mirror.__enter__()
        address = array.ctypes.data
        assert mirror.__exit__(RuntimeError, RuntimeError("half done"), None) is False
        del array, mirror
        gc.collect()
        with region.mirror() as other:
            assert other.ctypes.data == address

    def test_outlives_its_region(self, backend):
        with gdrpy.alloc(4096) as region, region.mirror() as array:
            array[:] = 8
        assert array.tolist() == [8] * 4096

    def test_that_cannot_be_had_is_refused(self, region):
        with pytest.raises(gdrpy.OutOfMemory):
            region._host_memory(1 << 60, False)
