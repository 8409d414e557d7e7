"""What is copied into a region: arrays in host memory and in GPU memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import gdrpy
from gdrpy import safetensors
from gdrpy.arrays import copied

VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)


class OnGpu:
    """A CUDA array, by its interface alone."""

    def __init__(self, array: gdrpy.Array, strides: tuple[int, ...] | None = None) -> None:
        self.owner = array
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "typestr": "<f4",
            "data": (array.ptr, False),
            "strides": strides,
            "version": 3,
        }


class OnHost:
    """An array that speaks nothing but DLPack."""

    def __init__(self, array: np.ndarray) -> None:
        self.__dlpack__ = array.__dlpack__
        self.__dlpack_device__ = array.__dlpack_device__


@pytest.fixture
def source(backend) -> Iterator[gdrpy.Array]:
    with gdrpy.alloc(1 << 20) as other:
        array = other.array((3, 4), "F32", 256)
        array.write(VALUES)
        yield array


class TestArrayInGpuMemory:
    @pytest.mark.parametrize("cpu", [True, False])
    def test_is_written_by_the_gpu(self, source, cpu):
        with gdrpy.alloc(1 << 20, cpu=cpu) as region:
            target = region.array((3, 4), "F32", 4)
            target.write(source)
            assert np.array_equal(target.read(), VALUES)

    def test_is_written_by_its_interface(self, region, source):
        target = region.array((3, 4), "F32")
        target.write(OnGpu(source))
        assert np.array_equal(target.read(), VALUES)

    def test_goes_through_the_host_in_pieces_to_other_memory(self, source, monkeypatch):
        monkeypatch.setattr(copied, "_COPY_CHUNK", 20)
        with gdrpy.alloc(4096, device="cpu") as region:
            target = region.array((3, 4), "F32", 8)
            target.write(source)
            assert np.array_equal(target.read(), VALUES)

    def test_arrives_after_stores_that_were_made_before(self, region, source):
        target = region.array((3, 4), "F32")
        with region.cpu.batch():
            region.cpu.write(bytes(48))
            target.write(source)
        assert np.array_equal(target.read(), VALUES)

    def test_of_nothing_is_written(self, region, source):
        region.array((0, 3), "F32").write(source.region.array((0, 3), "F32"))

    def test_that_is_not_packed_is_refused(self, region, source):
        with pytest.raises(ValueError, match="make a contiguous copy first"):
            region.array((3, 4), "F32").write(OnGpu(source, (4, 12)))

    def test_of_another_type_or_shape_is_refused(self, region, source):
        with pytest.raises(TypeError, match="dtype is F32, and this Array's U32"):
            region.array((3, 4), "U32").write(source)
        with pytest.raises(ValueError, match=r"\(3, 4\), and this Array's \(4, 3\)"):
            region.array((4, 3), "F32").write(source)

    def test_is_refused_by_a_read_only_region(self, readonly_region, source):
        with pytest.raises(gdrpy.ReadOnly, match="read-only"):
            readonly_region.array((3, 4), "F32").write(source)

    def test_is_stored_by_name(self, region, source):
        safetensors.store(region, {"gpu": source, "host": VALUES[0]})
        found = safetensors.tensors(region)
        assert np.array_equal(found["gpu"].read(), VALUES)
        assert np.array_equal(found["host"].read(), VALUES[0])

    def test_is_free_afterwards(self, region, source):
        region.array((3, 4), "F32").write(source)
        source.region.close()


class TestArrayInHostMemory:
    @pytest.mark.parametrize("values", [VALUES, VALUES.T, VALUES[::2, ::-1], VALUES[:0]])
    def test_is_written_by_dlpack_whatever_its_strides(self, region, values):
        target = region.array(values.shape, "F32")
        target.write(OnHost(values))
        assert np.array_equal(target.read(), values)

    def test_of_complex_numbers_is_refused(self, region):
        with pytest.raises(TypeError, match="dtype must be one of .*, not 'complex64'"):
            region.array((1,), "F32").write(OnHost(np.zeros(1, np.complex64)))
        with pytest.raises(TypeError, match="tensor 'x': dtype .*, not 'complex64'"):
            safetensors.plan({"x": OnHost(np.zeros(1, np.complex64))})


def test_of_a_masked_array_are_refused(region):
    masked = np.ma.masked_array([1.0, 2.0], mask=[False, True])
    why = r"a masked array has elements without a value: give array\.filled\(\)"
    with pytest.raises(TypeError, match=rf"^Array\.write: {why}"):
        region.array((2,), "F64").write(masked)
    with pytest.raises(TypeError, match=why):
        safetensors.plan({"x": masked})
    region.array((2,), "F64").write(masked.filled(0))
