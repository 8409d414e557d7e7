"""GPU views at chosen addresses."""

from __future__ import annotations

import errno
import gc
import os
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import gdrpy
from gdrpy import cuda
from gdrpy.memory.vmm import granularity

MIB = 1 << 20


@pytest.fixture
def room(contract: None) -> int:
    """A GPU address with 64 MiB that nobody has."""
    region = gdrpy.alloc(64 * MIB, cpu=False)
    address = region.ptr
    region.close()
    return address


@pytest.fixture
def fd(region) -> Iterator[int]:
    """A descriptor of the region."""
    fd = region.export()
    yield fd
    os.close(fd)


class TestAddress:
    def test_is_where_the_region_is_allocated(self, room, gpu_read):
        with gdrpy.alloc(4096, address=room + 8 * MIB) as region:
            assert region.ptr == room + 8 * MIB
            region.write(b"here")
            assert gpu_read(region.ptr, 4) == b"here"

    def test_is_where_an_export_is_opened(self, room, region, fd):
        region.write(b"shared")
        with gdrpy.Region.from_fd(fd, address=np.int64(room)) as other:
            assert (other.ptr, other.read(6)) == (room, b"shared")

    def test_of_another_region_raises_what_names_it(self, region, fd):
        size = region.allocation_size
        for wrong in (
            lambda: gdrpy.alloc(4096, address=region.ptr),
            lambda: gdrpy.Region.from_fd(fd, address=region.ptr),
            lambda: gdrpy.alloc(2 * size, address=region.ptr - size),
        ):
            with pytest.raises(gdrpy.AddressInUse) as caught:
                wrong()
            assert caught.value.errno == errno.EADDRINUSE
            assert isinstance(caught.value, OSError)
            assert f"{region!r} has {region.ptr:#x} to {region.ptr + size:#x}" in str(caught.value)
        region.write(b"still here")

    def test_error_names_the_call_the_address_and_the_size(self, region, fd):
        with pytest.raises(gdrpy.AddressInUse) as caught:
            gdrpy.alloc(3 * MIB, address=region.ptr)
        words = f"alloc: the 4 MiB at GPU address {region.ptr:#x} are not free: "
        assert str(caught.value).startswith(words)
        assert str(caught.value).endswith(": choose another address, or free this one first")
        with pytest.raises(gdrpy.AddressInUse, match=r"^Region\.from_fd: the 2 MiB at GPU address"):
            gdrpy.Region.from_fd(fd, address=region.ptr)

    def test_of_other_memory_raises_what_cuda_says_of_it(self, region, driver):
        pointer = int(cuda.call("cuMemAlloc", 8 * MIB))
        unit = granularity(0)
        with pytest.raises(gdrpy.AddressInUse) as caught:
            gdrpy.alloc(4096, address=-(-pointer // unit) * unit)
        words = f"memory of no open region has {pointer:#x} to {pointer + 8 * MIB:#x}"
        assert words in str(caught.value)
        cuda.call("cuMemFree", pointer)

    def test_that_is_only_reserved_raises(self, room, driver):
        reserved = cuda.call("cuMemAddressReserve", 4 * MIB, 0, room, 0)
        assert int(reserved) == room
        with pytest.raises(gdrpy.AddressInUse, match="CUDA knows no memory there"):
            gdrpy.alloc(4096, address=room)
        cuda.call("cuMemAddressFree", reserved, 4 * MIB)

    @pytest.mark.parametrize("address", [0, 1, 4096, -2 * MIB, 1 << 64])
    def test_that_is_none_raises_before_anything_is_made(self, contract, address):
        why = f"alloc: address {address:#x} is not a GPU address that memory can be mapped at"
        with pytest.raises(ValueError, match=why):
            gdrpy.alloc(4096, address=address)

    @pytest.mark.parametrize("address", ["0x200000", 2.0, True])
    def test_must_be_an_int(self, contract, address):
        with pytest.raises(TypeError, match="alloc: address must be an int"):
            gdrpy.alloc(4096, address=address)

    def test_outside_what_cuda_reserves_raises(self, contract):
        with pytest.raises(gdrpy.AddressInUse, match="lie outside of what CUDA gives out"):
            gdrpy.alloc(4096, address=1 << 63)

    def test_needs_the_gpu_view(self, room, fd):
        with pytest.raises(ValueError, match="places the GPU view, which gpu=False leaves out"):
            gdrpy.alloc(4096, gpu=False, address=room)
        with pytest.raises(ValueError, match="places the GPU view, which gpu=False leaves out"):
            gdrpy.Region.from_fd(fd, gpu=False, address=room)

    def test_needs_memory_that_a_gpu_sees(self, room):
        with pytest.raises(ValueError, match="alloc: host memory has no GPU view to place"):
            gdrpy.alloc(4096, "cpu", address=room)
        with gdrpy.alloc(4096, "cpu") as host:
            fd = host.export()
        with pytest.raises(gdrpy.MissingView, match=r"Region\.from_fd: host memory has no GPU"):
            gdrpy.Region.from_fd(fd, address=room)
        os.close(fd)

    def test_of_a_dropped_region_is_taken_when_the_gpu_is_done_with_it(self, contract, driver):
        stream = cuda.call("cuStreamCreate", driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
        with gdrpy.page_locked(4096) as word:
            go = word.flag()
            go.set(0)
            go.stream_wait(stream, 1)
            dropped = gdrpy.alloc(4096, cpu=False)
            address = dropped.ptr
            cuda.call("cuMemsetD8Async", address, 1, 64, stream)
            del dropped
            gc.collect()
            timer = threading.Timer(0.1, go.set, (1,))
            timer.start()
            with gdrpy.alloc(4096, address=address) as region:
                assert (region.ptr, go.get()) == (address, 1)
            timer.join()
        cuda.call("cuStreamDestroy", stream)
