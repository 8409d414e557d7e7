"""GPU views at chosen addresses, and regions that give their memory back and keep the addresses."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import pickle
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import gdrpy
from gdrpy import cuda
from gdrpy._core._mapping import take_dlpack
from gdrpy.arrays.asynchronous import _pool
from gdrpy.memory import reclaim
from gdrpy.memory.vmm import granularity
from support import free_address, free_nbytes

MIB = 1 << 20
DETACHED = "the region is detached, and only its GPU addresses are kept: attach() it first"

CALLS = {
    "Region.write": lambda region: region.write(b"x"),
    "Region.read": lambda region: region.read(1),
    "Region.readinto": lambda region: region.readinto(bytearray(1)),
    "Region.fill": lambda region: region.fill(1),
    "Region.write_many": lambda region: region.write_many([(0, b"x")]),
    "Region.readinto_many": lambda region: region.readinto_many([(0, bytearray(1))]),
    "Region.ptr": lambda region: region.ptr,
    "Region.cpu": lambda region: region.cpu,
    "Region.map": lambda region: region.map(),
    "Region.array": lambda region: region.__dlpack__(),
    "Region.export": lambda region: region.export(),
    "Region.mirror": lambda region: region.mirror(),
    "Region.queue": lambda region: region.queue(),
    "Region.revoked": lambda region: region.revoked,
    "sending a Region": pickle.dumps,
    "with Region": lambda region: region.__enter__(),
}


def address_of(capsule: object) -> int:
    return take_dlpack(capsule)[0]


def in_child(use) -> str:
    """The name of what a call raises in a forked child."""
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        try:
            use()
            os.write(tell, b"nothing")
        except BaseException as error:
            os.write(tell, type(error).__name__.encode())
        finally:
            os._exit(0)
    os.close(tell)
    os.waitpid(child, 0)
    with os.fdopen(told) as pipe:
        return pipe.read()


@pytest.fixture
def room(region) -> int:
    """A GPU address where 8 MiB are free."""
    return free_address(8 * MIB)


@pytest.fixture
def fd(region) -> Iterator[int]:
    """A descriptor of the region."""
    fd = region.export()
    yield fd
    os.close(fd)


class TestAddress:
    def test_is_where_the_region_is_allocated(self, room, gpu_read):
        with gdrpy.alloc(4096, address=room + 4 * MIB) as region:
            assert region.ptr == room + 4 * MIB
            region.write(b"here")
            assert gpu_read(region.ptr, 4) == b"here"

    def test_is_where_an_export_is_opened(self, room, region, fd):
        region.write(b"shared")
        with gdrpy.Region.from_fd(fd, address=np.int64(room)) as other:
            assert (other.ptr, other.read(6)) == (room, b"shared")

    def test_of_a_large_region_may_be_any_free_multiple_of_32_mib(self, contract, gpu_read):
        with gdrpy.alloc(32 * MIB, address=1 << 45) as region:
            assert region.ptr == 1 << 45
            region.write(b"there")
            assert gpu_read(region.ptr, 5) == b"there"

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
        words = (
            f"memory or a reservation outside of gdrpy has {pointer:#x} to {pointer + 8 * MIB:#x}"
        )
        assert words in str(caught.value)
        cuda.call("cuMemFree", pointer)

    def test_that_is_only_reserved_raises(self, room, driver):
        reserved = cuda.call("cuMemAddressReserve", 4 * MIB, 0, room, 0)
        assert int(reserved) == room
        with pytest.raises(gdrpy.AddressInUse, match=f"at GPU address {room:#x} are not free"):
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


class TestDetachedRegion:
    def test_comes_back_at_the_same_address_with_its_bytes(self, region, fd, gpu_read):
        address = region.ptr
        region.write(b"kept")
        region.detach()
        region.attach(fd)
        assert (region.ptr, region.read(4), region.cpu.read(4)) == (address, b"kept", b"kept")
        region.cpu.write(b"anew")
        region.cpu.flush()
        assert gpu_read(address, 4) == b"anew"

    def test_goes_and_comes_often(self, region, fd):
        address = region.ptr
        for number in range(20):
            region.write(bytes([number]), number)
            region.detach()
            region.attach(fd)
            assert region.ptr == address
        assert region.read(20) == bytes(range(20))

    def test_holds_no_memory(self, contract):
        region = gdrpy.alloc(64 * MIB)
        before = free_nbytes()
        region.detach()
        assert free_nbytes() == before + 64 * MIB
        region.close()

    @pytest.mark.parametrize("call", CALLS)
    def test_raises_detached_whatever_it_is_used_for(self, region, call):
        region.write(b"armed")
        region.detach()
        with pytest.raises(gdrpy.Detached) as caught:
            CALLS[call](region)
        assert str(caught.value) == f"{call}: {DETACHED}"
        assert isinstance(caught.value, ValueError)

    @pytest.mark.parametrize("via", [None, "mapping", "dma", "engine"])
    def test_raises_detached_whatever_way_is_forced(self, region, via):
        region.detach()
        with pytest.raises(gdrpy.Detached):
            region.write(b"x", via=via)
        with pytest.raises(gdrpy.Detached):
            region.read(1, via=via)

    def test_raises_detached_as_the_other_side_of_a_copy(self, region):
        with gdrpy.alloc(MIB) as other:
            array = region.array(64)
            region.detach()
            for one in (region, array):
                with pytest.raises(gdrpy.Detached):
                    other.write(one)
                with pytest.raises(gdrpy.Detached):
                    other.readinto(one)

    def test_says_so(self, region, fd):
        assert not region.detached
        where = region.location
        region.detach()
        assert region.detached
        assert repr(region) == f"<Region of {MIB} bytes for {where}, DETACHED>"
        region.attach(fd)
        assert not region.detached
        region.detach()
        region.close()
        assert not region.detached

    def test_keeps_its_addresses_from_others(self, region, fd):
        address = region.ptr
        region.detach()
        with pytest.raises(gdrpy.AddressInUse, match=r", DETACHED> has 0x"):
            gdrpy.Region.from_fd(fd, address=address)

    def test_takes_what_is_made_of_its_gpu_view_along(self, region, fd, gpu_read):
        capsule, array = region.__dlpack__(dl_device=region.__dlpack_device__()), region.array(4)
        arena = gdrpy.Arena(region, 4096)
        block = arena.allocate(512)
        region.detach()
        with pytest.raises(gdrpy.Detached):
            _ = array.ptr
        region.attach(fd)
        region.write(b"seen")
        assert gpu_read(address_of(capsule), 4) == gpu_read(array.ptr, 4) == b"seen"
        assert bytes(array.read()) == b"seen"
        arena.free(block)
        arena.close()
        del capsule

    def test_is_not_closed_under_a_consumer(self, region):
        capsule = region.__dlpack__()
        region.detach()
        with pytest.raises(BufferError, match=r"Region\.close: views .* \(1 of the GPU view"):
            region.close()
        assert region.detached
        del capsule
        region.close()

    def test_without_a_cpu_view_gets_none(self, contract):
        with gdrpy.alloc(4096, cpu=False) as region:
            fd = region.export()
            region.detach()
            region.attach(fd)
            os.close(fd)
            with pytest.raises(gdrpy.MissingView):
                _ = region.cpu

    def test_for_reading_stays_so(self, region, fd):
        with gdrpy.Region.from_fd(fd, readonly=True) as reader:
            reader.detach()
            reader.attach(fd)
            assert reader.cpu.readonly
            with cuda.context(0), pytest.raises(gdrpy.CudaError, match="INVALID_VALUE"):
                cuda.call("cuMemcpyHtoD", reader.ptr, b"x", 1)

    def test_takes_other_memory_of_its_size(self, region):
        address = region.ptr
        region.detach()
        with gdrpy.alloc(MIB) as newer:
            newer.write(b"newer")
            fd = newer.export()
        region.attach(fd)
        os.close(fd)
        assert (region.ptr, region.read(5)) == (address, b"newer")

    def test_refuses_memory_of_another_size(self, region, fd):
        region.write(b"kept")
        region.detach()
        with gdrpy.alloc(4 * MIB) as larger:
            other = larger.export()
        with pytest.raises(gdrpy.SizeMismatch) as caught:
            region.attach(other)
        os.close(other)
        assert str(caught.value) == (
            "Region.attach: the memory has 4194304 bytes, and the addresses are for 2097152: "
            "attach memory of the same size"
        )
        assert region.detached
        region.attach(fd)
        assert region.read(4) == b"kept"

    def test_refuses_what_is_no_gpu_memory(self, region):
        region.detach()
        with gdrpy.alloc(2 * MIB, "cpu") as host:
            fd = host.export()
        with pytest.raises(gdrpy.InvalidHandle, match=r"Region\.attach: .* is host memory"):
            region.attach(fd)
        os.close(fd)
        with pytest.raises(gdrpy.InvalidHandle, match=r"Region\.attach: .* is not open"):
            region.attach(fd)
        with pytest.raises(TypeError, match=r"Region\.attach: fd must be an int"):
            region.attach("3")
        assert region.detached

    def test_stays_detached_if_the_cpu_view_cannot_be_made(self, region, fd, monkeypatch):
        region.detach()
        held = free_nbytes()

        def fail(*_):
            raise gdrpy.OutOfMemory("the BAR is full")

        monkeypatch.setattr(region, "_map", fail)
        with pytest.raises(gdrpy.OutOfMemory, match="the BAR is full"):
            region.attach(fd)
        monkeypatch.undo()
        assert (region.detached, free_nbytes()) == (True, held)
        region.attach(fd)
        region.write(b"all well")

    def test_may_be_detached_again_but_is_attached_once(self, region, fd):
        region.detach()
        region.detach()
        region.attach(fd)
        with pytest.raises(ValueError, match=r"Region\.attach: the region is attached: detach"):
            region.attach(fd)

    def test_frees_its_addresses_when_it_is_closed(self, region):
        address = region.ptr
        region.detach()
        region.close()
        with gdrpy.alloc(MIB, address=address) as other:
            assert other.ptr == address
        with pytest.raises(gdrpy.Closed, match=r"Region\.detach"):
            region.detach()
        with pytest.raises(gdrpy.Closed, match=r"Region\.attach"):
            region.attach(0)

    def test_frees_its_addresses_when_it_is_dropped(self, contract):
        region = gdrpy.alloc(MIB)
        address = region.ptr
        region.detach()
        del region
        gc.collect()
        gdrpy.alloc(MIB, address=address).close()

    def test_frees_its_addresses_at_the_end_of_a_block(self, contract):
        with gdrpy.alloc(MIB) as region:
            address, capsule = region.ptr, region.__dlpack__()
            region.detach()
            with pytest.warns(gdrpy.StillInUse, match="DETACHED"):
                region.__exit__(None, None, None)
        assert region.closed
        with pytest.raises(gdrpy.AddressInUse):
            gdrpy.alloc(MIB, address=address)
        del capsule
        gc.collect()
        gdrpy.alloc(MIB, address=address).close()

    def test_belongs_to_the_parent_of_a_forked_child(self, region, fd):
        region.detach()
        assert in_child(region.detach) == in_child(lambda: region.attach(fd)) == "Forked"
        assert in_child(region.close) == "nothing"
        region.attach(fd)
        assert in_child(region.detach) == "Forked"
        region.write(b"the parent's")


class TestDetaching:
    def test_is_refused_while_arrays_of_the_cpu_view_are_alive(self, region):
        array = region.numpy()
        with pytest.raises(BufferError) as caught:
            region.detach()
        assert str(caught.value) == (
            "Region.detach: views or running copies still use the memory (1 of the CPU view, such "
            "as numpy arrays and memoryviews); delete the arrays made from it first"
        )
        array[0] = 7
        region.write(b"x", 1)
        assert region.read(2) == b"\x07x"
        del array
        region.detach()

    def test_closes_the_mappings(self, region, fd):
        mapping, cpu = region.map(), region.cpu
        region.detach()
        assert mapping.closed
        assert cpu.closed
        region.attach(fd)
        assert region.cpu.nbytes == MIB

    def test_restores_the_cpu_view_if_a_view_was_made_meanwhile(self, region):
        mapping = region.map()
        settled = region._idle_mappings("detach", lasting=True)
        view = memoryview(mapping)
        region._detachable = lambda call: settled
        with pytest.raises(BufferError):
            region.detach()
        assert not region.detached
        region.write(b"still here", via="mapping")
        assert region.cpu.read(10) == b"still here"
        del view, region._detachable

    def test_is_refused_while_a_copy_is_under_way(self, region):
        async def main() -> None:
            going = threading.Event()
            held = [_pool().submit(going.wait) for _ in range(8)]
            copy = asyncio.ensure_future(region.write_async(bytes(MIB)))
            while not region._memory.busy:
                await asyncio.sleep(0)
            with pytest.raises(BufferError, match=r"Region\.detach: .* \(1 asynchronous or on"):
                region.detach()
            going.set()
            await copy
            assert all(one.result() for one in held)

        asyncio.run(main())
        region.detach()

    def test_waits_for_the_work_that_the_gpu_was_given(self, region, fd, driver):
        stream = cuda.call("cuStreamCreate", driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
        with gdrpy.page_locked(4096) as word:
            go = word.flag()
            go.set(0)
            go.stream_wait(stream, 1)
            cuda.call("cuMemsetD8Async", region.ptr, 7, MIB, stream)
            timer = threading.Timer(0.1, go.set, (1,))
            timer.start()
            region.detach()
            assert go.get() == 1
            timer.join()
        cuda.call("cuStreamDestroy", stream)
        region.attach(fd)
        assert region.read() == b"\x07" * MIB

    def test_is_refused_if_cuda_cannot_tell_what_it_does(self, region, monkeypatch):
        monkeypatch.setattr(reclaim, "wait", lambda devices: False)
        with pytest.raises(BufferError, match="as while a graph is captured: detach after that"):
            region.detach()
        region.write(b"still here")

    def test_needs_a_gpu_view(self, contract):
        for arguments in ({"gpu": False, "cpu": False}, {"device": "cpu"}):
            with (
                gdrpy.alloc(4096, **arguments) as region,
                pytest.raises(gdrpy.MissingView, match=r"Region\.detach: only memory with a GPU"),
            ):
                region.detach()

    def test_by_threads_at_once_is_done_once(self, region, fd):
        for _ in range(20):
            threads = [threading.Thread(target=region.detach) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert region.detached
            region.attach(fd)

    def test_beside_a_thread_that_copies_raises_in_one_of_them(self, region, fd):
        raised: set[type[BaseException]] = set()
        over = threading.Event()

        def copy() -> None:
            while not over.wait(0.001):
                for size in (16, MIB):
                    try:
                        region.write(bytes(size))
                    except Exception as error:
                        raised.add(type(error))

        copying = threading.Thread(target=copy)
        copying.start()
        for _ in range(20):
            while not region.detached:
                try:
                    region.detach()
                except BufferError:
                    continue
            region.attach(fd)
        over.set()
        copying.join()
        assert raised <= {gdrpy.Detached}
        region.write(b"still here")


class TestDetachMany:
    @pytest.fixture
    def regions(self, contract) -> Iterator[list[gdrpy.Region]]:
        made = [gdrpy.alloc(4096) for _ in range(3)]
        for number, region in enumerate(made):
            region.write(bytes([number]))
        yield made
        for region in made:
            region.close()

    def test_detaches_all(self, regions):
        before = free_nbytes()
        gdrpy.detach_many(region for region in regions)
        assert [region.detached for region in regions] == [True] * 3
        assert free_nbytes() == before + 6 * MIB
        gdrpy.detach_many(regions + regions)
        gdrpy.detach_many([])

    def test_detaches_none_if_one_is_in_use(self, regions):
        mappings, array = [region.cpu for region in regions], regions[2].numpy()
        with pytest.raises(BufferError, match="1 of the CPU view"):
            gdrpy.detach_many(regions)
        assert not any(mapping.closed for mapping in mappings)
        del array

    def test_attaches_those_done_again_if_one_fails_late(self, regions, monkeypatch):
        addresses = [region.ptr for region in regions]

        def fail(*_):
            raise BufferError("a view was made meanwhile")

        monkeypatch.setattr(regions[2], "_detach", fail)
        with pytest.raises(BufferError, match="made meanwhile"):
            gdrpy.detach_many(regions)
        assert [region.ptr for region in regions] == addresses
        assert [region.read(1)[0] for region in regions] == [0, 1, 2]
        assert [region.cpu.read(1)[0] for region in regions] == [0, 1, 2]

    def test_takes_several_regions(self, region):
        with pytest.raises(TypeError, match="detach_many: regions must be several regions, not"):
            gdrpy.detach_many(region)
        with pytest.raises(TypeError, match="detach_many: regions must be regions, not 3"):
            gdrpy.detach_many([region, 3])
        assert not region.detached
