"""CPU views of the arrays of real libraries, which lie in the simulated GPU's memory."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch

import gdrpy
from gdrpy import cuda

#: What is pinned here does not begin where its block does.
pytestmark = pytest.mark.any_pointer

MIB = 1 << 20


class Interface:
    """An array of a library that knows the CUDA array interface alone."""

    def __init__(self, address, nbytes, readonly=False):
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, readonly),
            "version": 3,
        }


@pytest.fixture
def region(nothing_leaks):
    with gdrpy.alloc(2 * MIB) as region:
        yield region


@pytest.fixture
def block(nothing_leaks):
    """Memory that gdrpy has not allocated: its address."""
    with cuda.context(0):
        block = int(cuda.call("cuMemAlloc", MIB))
        yield block
        cuda.call("cuMemFree", block)


@pytest.fixture
def jax():
    """Imported when its tests run: once it is, it warns of every fork."""
    return pytest.importorskip("jax")


class TestTorchTensorInARegion:
    def test_is_seen_through_the_regions_mapping(self, region):
        tensor = torch.from_dlpack(region.array((2, 3), "F32", 256))
        with gdrpy.from_tensor(tensor) as mapped:
            assert (mapped.region, mapped.offset) == (region, 256)
            assert (mapped.shape, mapped.dtype, mapped.nbytes) == ((2, 3), "F32", 24)
            assert (mapped.ptr, mapped.readonly) == (region.ptr + 256, False)
            mapped.numpy()[1] = [1, 2, 3]
            assert tensor[1].tolist() == [1, 2, 3]
            tensor[0] = torch.tensor([4, 5, 6])
            assert mapped.read().tolist() == [[4, 5, 6], [1, 2, 3]]
            mapped.write(np.arange(6, dtype=np.float32).reshape(2, 3))
            assert tensor.tolist() == [[0, 1, 2], [3, 4, 5]]

    def test_may_be_of_a_type_that_numpy_lacks(self, region):
        tensor = torch.from_dlpack(region.array((8,), "BF16"))
        tensor[:] = torch.arange(8)
        with gdrpy.from_tensor(tensor) as mapped:
            assert mapped.dtype == "BF16"
            assert mapped.numpy().astype(np.float32).tolist() == list(range(8))

    def test_is_kept_until_the_view_is_closed(self, region):
        tensor = torch.from_dlpack(region.array((4,), "F32"))
        address = tensor.data_ptr()
        mapped = gdrpy.from_tensor(tensor[1:3])
        del tensor
        gc.collect()
        assert (mapped.ptr, mapped.offset) == (address + 4, 4)
        mapped.close()
        with pytest.raises(gdrpy.Closed, match=r"Array\.numpy: the Array is closed"):
            mapped.numpy()

    def test_has_flags(self, region):
        tensor = torch.from_dlpack(region.array((4,), "F32", 512))
        with gdrpy.from_tensor(tensor.view(torch.int32)) as mapped:
            mapped.flag(8).set(77)
            assert tensor.view(torch.int32).tolist()[2] == 77
            assert mapped.flag(8).ptr == tensor.data_ptr() + 8
            with pytest.raises(ValueError, match=r"Array\.flag: offset 16"):
                mapped.flag(16)

    def test_of_a_block_of_an_arena_is_found_too(self, region):
        with gdrpy.Arena(region, MIB) as arena:
            block = arena.allocate(64)
            tensor = torch.from_dlpack(region.array((16,), "F32", block - region.ptr))
            with gdrpy.from_tensor(tensor) as mapped:
                assert (mapped.region, mapped.offset) == (region, MIB)
            arena.free(block)

    def test_that_wants_its_gradient_is_refused_by_torch(self, region):
        tensor = torch.from_dlpack(region.array((4,), "F32")).requires_grad_()
        with pytest.raises(BufferError, match="detach"):
            gdrpy.from_tensor(tensor)

    def test_with_gaps_is_refused(self, region):
        tensor = torch.from_dlpack(region.array((4, 4), "F32"))
        with pytest.raises(ValueError, match="from_tensor: the CUDA array is not contiguous"):
            gdrpy.from_tensor(tensor.t())


class TestJaxArrayInARegion:
    def test_is_read_only(self, region, jax):
        region.array((16,), "F32").write(np.arange(16, dtype=np.float32))
        array = jax.dlpack.from_dlpack(region.array((16,), "F32"), copy=False)
        assert array.unsafe_buffer_pointer() == region.ptr
        with gdrpy.from_tensor(array) as mapped:
            assert mapped.readonly
            view = mapped.numpy()
            assert view.tolist() == list(range(16))
            with pytest.raises(ValueError, match="read-only"):
                view[0] = 1
            with pytest.raises(gdrpy.ReadOnly, match="the library that made the array"):
                mapped.write(np.zeros(16, np.float32))
            flag = mapped.flag(4)
            region.flag(4).set(7)
            assert flag.get() == 7
            with pytest.raises(gdrpy.ReadOnly):
                flag.set(8)
        # jax lets go of memory when the collector asks it to.
        del array, mapped, view
        gc.collect()


class TestArrayElsewhere:
    def test_is_pinned(self, block, gpu_read):
        with gdrpy.from_tensor(Interface(block + 100, 5000)) as mapped:
            assert (type(mapped.region), mapped.offset, mapped.nbytes) == (gdrpy.Pin, 0, 5000)
            view = mapped.region.cpu
            assert (mapped.ptr, view.ptr, view.backend) == (block + 100, block + 100, "sim")
            mapped.write(np.arange(5000, dtype=np.uint8))
            mapped.numpy()[:3] = [9, 8, 7]
            mapped.flag(4).set(1)
            assert gpu_read(block + 100, 9) == bytes([9, 8, 7, 3, 1, 0, 0, 0, 8])
            assert repr(mapped) == (
                f"<Array U8 (5000,) at offset 0 of <Pin of 5000 bytes at {block + 100:#x} on "
                "simulated GPU 0, sim>>"
            )

    def test_is_copied_whole_where_it_is_large(self, block, gpu_read):
        with gdrpy.from_tensor(Interface(block, MIB)) as mapped:
            data = np.random.default_rng(1).integers(0, 256, MIB, np.uint8)
            mapped.write(data)
            assert gpu_read(block, MIB) == data.tobytes()
            assert (mapped.read() == data).all()

    def test_takes_elements_of_any_library_from_host_and_gpu(self, block, region, gpu_read):
        on_gpu = torch.from_dlpack(region.array((16,), "U8", 64))
        on_gpu[:] = torch.arange(16)
        with gdrpy.from_tensor(Interface(block, 16)) as mapped:
            mapped.write(on_gpu)
            assert gpu_read(block, 16) == bytes(range(16))
            mapped.write(torch.full((16,), 7, dtype=torch.uint8))
            assert gpu_read(block, 16) == b"\x07" * 16
            with pytest.raises(ValueError, match=r"Array\.write: the array's shape is \(3,\)"):
                mapped.write(np.zeros(3, np.uint8))
        del on_gpu

    def test_of_a_region_that_is_gone_is_pinned_by_its_allocation(self, nothing_leaks):
        region = gdrpy.alloc(2 * MIB)
        with gdrpy.open() as gdr, gdr.pin(region) as pin:
            tensor = torch.from_dlpack(region.array((4,), "F32"))
            del region
            with gdrpy.from_tensor(tensor, backend="sim") as mapped:
                mapped.numpy()[:] = 1.5
                assert tensor.tolist() == [1.5] * 4
            with pin.map(readonly=True) as mapping:
                assert mapping.numpy(np.float32, 4).tolist() == [1.5] * 4
        del tensor, mapped

    def test_that_is_read_only_is_mapped_so(self, block):
        with gdrpy.from_tensor(Interface(block, 16, readonly=True)) as mapped:
            assert mapped.region.cpu.readonly
            with pytest.raises(gdrpy.ReadOnly):
                mapped.write(np.zeros(16, np.uint8))

    def test_with_numpy_views_stays_open(self, block):
        mapped = gdrpy.from_tensor(Interface(block, 16))
        view = mapped.numpy()
        with pytest.raises(BufferError, match=r"still use the memory \(1 of "):
            mapped.close()
        view[0] = 3
        assert mapped.read()[0] == 3
        del view
        mapped.close()
        assert repr(mapped) == "<Array CLOSED>"

    def test_is_kept_until_the_view_is_closed(self, block):
        array = Interface(block, 16)
        kept = weakref.ref(array)
        mapped = gdrpy.from_tensor(array)
        del array
        gc.collect()
        assert kept() is not None
        mapped.close()
        assert kept() is None


def refuses_as_host_memory(array):
    name = type(array).__name__
    with pytest.raises(TypeError, match=f"from_tensor: this {name} is not an array in GPU memory"):
        gdrpy.from_tensor(array)


class TestRefusals:
    @pytest.mark.parametrize("array", [np.zeros(4), torch.zeros(4), [1, 2]], ids=type)
    def test_of_what_lies_on_the_host(self, nothing_leaks, array):
        refuses_as_host_memory(array)

    def test_of_what_jax_has_on_the_host(self, nothing_leaks, jax):
        refuses_as_host_memory(jax.numpy.zeros(4))

    def test_of_no_elements(self, region):
        with pytest.raises(ValueError, match=r"from_tensor: an array of shape \(0,\) has no"):
            gdrpy.from_tensor(Interface(region.ptr, 0))

    def test_of_an_unknown_backend(self, block):
        with pytest.raises(ValueError, match="there is no backend 'fast'"):
            gdrpy.from_tensor(Interface(block, 4), backend="fast")

    def test_of_a_backend_that_cannot(self, block):
        with pytest.raises(gdrpy.BackendUnavailable, match="no NVIDIA kernel driver|gdrdrv"):
            gdrpy.from_tensor(Interface(block, 4), backend="gdrdrv")
