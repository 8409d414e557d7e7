from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import gdrpy
from gdrpy import cuda

KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture
def gdr(contract: None) -> Iterator[gdrpy.Gdr]:
    with gdrpy.open() as gdr:
        yield gdr


@pytest.fixture
def allocate(contract: None, driver) -> Iterator[Callable[[int], int]]:
    """cuMemAlloc, freed at the end."""
    pointers = []

    def allocate(nbytes: int) -> int:
        pointers.append(cuda.call("cuMemAlloc", nbytes))
        return int(pointers[-1])

    yield allocate
    for pointer in pointers:
        cuda.call("cuMemFree", pointer)


def fill(pointer: int, byte: int, nbytes: int) -> None:
    cuda.call("cuMemsetD8", pointer, byte, nbytes)
    cuda.call("cuCtxSynchronize")


class TestPinOfAllocatedMemory:
    @pytest.mark.parametrize("nbytes", [2 * MIB, 5 * MIB, 64 * MIB])
    def test_large_is_read_and_written(self, gdr, allocate, gpu_read, nbytes, asking):
        pointer = allocate(nbytes)
        fill(pointer, 0x5A, nbytes)
        with gdr.pin(pointer, nbytes, **asking) as pin, pin.map() as mapping:
            assert mapping.read(1000, nbytes - 1000) == b"\x5a" * 1000
            mapping.write(b"the end", nbytes - 7)
        assert gpu_read(pointer + nbytes - 8, 8) == b"\x5athe end"

    @pytest.mark.any_pointer
    def test_small_ones_sharing_a_block_are_told_apart(self, gdr, allocate, gpu_read, asking):
        sizes = (4, 100, 4096, 8192, 70000)
        pointers = [allocate(size) for size in sizes]
        for number, (pointer, size) in enumerate(zip(pointers, sizes, strict=True), 1):
            fill(pointer, number, size)
        for number, (pointer, size) in enumerate(zip(pointers, sizes, strict=True), 1):
            with gdr.pin(pointer, size, **asking) as pin, pin.map() as mapping:
                assert mapping.read() == bytes([number]) * size
                mapping.write(b"\xff", size - 1)
            assert gpu_read(pointer, size) == bytes([number]) * (size - 1) + b"\xff"

    @pytest.mark.any_pointer
    def test_interior_pointer_begins_there(self, gdr, allocate, gpu_read, asking):
        pointer = allocate(8 * MIB)
        fill(pointer, 7, 8 * MIB)
        inside = pointer + 3 * MIB + 12345
        with gdr.pin(inside, 1000, **asking) as pin, pin.map(10, 20) as mapping:
            assert pin.ptr == inside
            assert mapping.ptr == inside + 10
            mapping.write(b"inside")
        assert gpu_read(inside + 9, 8) == b"\x07inside\x07"

    @pytest.mark.any_pointer
    def test_of_a_region_shows_its_bytes(self, gdr, asking):
        with gdrpy.alloc(MIB) as region, gdr.pin(region.ptr + 4096, 100, **asking) as pin:
            region.write(b"vmm memory", 4096)
            with pin.map() as mapping:
                assert mapping.read(10) == b"vmm memory"

    def test_of_a_cuda_array_needs_no_size(self, gdr, asking):
        with gdrpy.alloc(MIB) as region, gdr.pin(region, **asking) as pin:
            assert (pin.ptr, pin.nbytes) == (region.ptr, MIB)
            with pytest.raises(gdrpy.SizeMismatch, match="the array has 1048576"):
                gdr.pin(region, MIB + 1)

    def test_info_is_rounded_out_to_pages(self, gdr, allocate, backend, asking):
        page = 65536 if backend == "gdrdrv" else 4096
        pointer = allocate(2 * MIB)
        with gdr.pin(pointer, page + 1, **asking) as pin:
            assert pin.info == gdrpy.pins.PinInfo(pointer, 2 * page, page, False, None)
            with pin.map() as mapping:
                assert pin.info == gdrpy.pins.PinInfo(
                    pointer, 2 * page, page, True, mapping.mapping_type
                )
            assert not pin.info.mapped
            assert pin.attributes == gdrpy.pins.Attributes(backend, not asking, page)

    def test_two_pins_of_one_allocation_agree(self, gdr, allocate, asking):
        pointer = allocate(2 * MIB)
        one, other = gdr.pin(pointer, MIB, **asking), gdr.pin(pointer, 2 * MIB, **asking)
        with one.map() as first, other.map() as second:
            first.write(b"twice pinned", 1000)
            assert second.read(12, 1000) == b"twice pinned"

    def test_outlives_the_allocation_or_is_revoked_as_it_asked(self, gdr, driver, contract, asking):
        pointer = cuda.call("cuMemAlloc", 32 * MIB)
        fill(pointer, 9, 32 * MIB)
        with gdr.pin(int(pointer), 32 * MIB, **asking) as pin:
            mapping = None if asking else pin.map()
            cuda.call("cuMemFree", pointer)
            assert pin.revoked is bool(asking)
            if mapping:
                assert mapping.read(100, 16 * MIB) == b"\x09" * 100

    def test_closing_the_gdr_closes_pins_and_mappings(self, gdr, allocate, asking):
        pin = gdr.pin(allocate(2 * MIB), MIB, **asking)
        mapping = pin.map()
        gdr.close()
        assert (pin.closed, mapping.closed) == (True, True)
        assert (repr(gdr), repr(pin), repr(mapping)) == (
            "<Gdr CLOSED>",
            "<Pin CLOSED>",
            "<Mapping CLOSED>",
        )
        for use in (lambda: pin.map(), lambda: pin.info, lambda: gdr.pin(1, 1)):
            with pytest.raises(gdrpy.Closed):
                use()


class TestPointerThatCannotBePinned:
    def test_past_the_end_of_the_allocation_is_refused(self, gdr, allocate):
        pointer = allocate(2 * MIB)
        with pytest.raises(gdrpy.SizeMismatch, match="run past the end .* has 2097152 bytes"):
            gdr.pin(pointer, 2 * MIB + 1)

    def test_host_memory_is_refused(self, gdr):
        host = np.zeros(100, np.uint8)
        with pytest.raises(gdrpy.InvalidHandle, match="not memory that CUDA knows"):
            gdr.pin(host.ctypes.data, 100)

    def test_pinned_host_memory_is_refused(self, gdr, driver, asking):
        host = cuda.call("cuMemAllocHost", 4096)
        with pytest.raises(gdrpy.InvalidHandle):
            gdr.pin(int(host), 4096, **asking)
        cuda.call("cuMemFreeHost", host)

    @pytest.mark.parametrize(
        ("pointer", "nbytes"), [(0, 1), (-1, 1), (1 << 40, 0), (1 << 40, -1), ((1 << 64) - 1, 2)]
    )
    def test_wrong_range_is_refused(self, gdr, pointer, nbytes):
        with pytest.raises(ValueError, match=r"Gdr\.pin: "):
            gdr.pin(pointer, nbytes)

    def test_object_that_is_no_array_is_refused(self, gdr):
        expected = r"Gdr\.pin: str is neither a device pointer nor a GPU array"
        with pytest.raises(TypeError, match=expected):
            gdr.pin("0x1000", 1)
        with pytest.raises(TypeError, match=r"needs a size: Gdr\.pin\(address, nbytes\)"):
            gdr.pin(4096)


class TestPinAsMemory:
    """It is written and read as a region is."""

    @pytest.fixture
    def pin(self, gdr, allocate, asking) -> Iterator[gdrpy.Pin]:
        with gdr.pin(allocate(1 << 20), 100_000, **asking) as pin:
            yield pin

    def test_is_mapped_when_it_is_first_used(self, pin, gpu_read):
        assert not pin.info.mapped
        pin.write(b"hello", 7)
        assert pin.info.mapped
        assert (pin.read(5, 7), gpu_read(pin.ptr + 7, 5)) == (b"hello", b"hello")

    def test_is_filled_and_read_whole(self, pin, gpu_read):
        pin.fill(7)
        found = bytearray(pin.nbytes)
        assert pin.readinto(found) == pin.nbytes
        assert bytes(found) == gpu_read(pin.ptr, pin.nbytes) == b"\7" * pin.nbytes

    def test_has_arrays_and_flags(self, pin, gpu_read):
        array = pin.array((2, 3), "F32", 256)
        array.write(np.arange(6, dtype=np.float32).reshape(2, 3))
        pin.flag(8).set(77)
        pin.cpu.flush()
        assert array.region is pin
        assert gpu_read(pin.ptr + 256, 24) == np.arange(6, dtype=np.float32).tobytes()
        assert gpu_read(pin.ptr + 8, 4) == (77).to_bytes(4, "little")
        assert np.asarray(pin)[256:260].tobytes() == bytes(4)

    def test_copies_by_its_mapping_since_its_address_may_become_anothers(self, pin):
        for copy in (lambda: pin.write(b"x", via="dma"), lambda: pin.read(1, via="dma")):
            with pytest.raises(gdrpy.MissingView, match=r"Pin\.\w+: via='dma' needs a GPU view"):
                copy()

    def test_names_its_own_calls_in_errors(self, pin):
        with pytest.raises(ValueError, match=r"Pin\.write: offset 99999 \+ 2 bytes lies outside"):
            pin.write(b"xy", 99_999)
        with pytest.raises(ValueError, match=r"Pin\.fill: value must be a byte"):
            pin.fill(256)

    def test_with_a_view_stays_open(self, pin):
        view = pin.numpy()
        with pytest.raises(BufferError, match=r"Pin\.close: .* \(1 of "):
            pin.close()
        view[0] = 1
        del view

    def test_array_in_it_is_not_pickled(self, pin):
        with pytest.raises(TypeError, match="an Array in a Pin cannot be copied or pickled"):
            pickle.dumps(pin.array(3, "U8"))


class TestPinInOneCall:
    def test_takes_an_address_with_its_size(self, allocate, gpu_read, asking):
        pointer = allocate(4096)
        with gdrpy.pin(pointer, 4096, **asking) as pin:
            pin.write(b"hello")
            assert gpu_read(pointer, 5) == b"hello"
        assert repr(pin) == "<Pin CLOSED>"

    def test_takes_an_array(self, contract, asking):
        with gdrpy.alloc(5000) as region, gdrpy.pin(region, **asking) as pin:
            assert (pin.ptr, pin.nbytes) == (region.ptr, 5000)

    def test_forces_a_backend(self, allocate, backend, asking):
        pointer = allocate(4096)
        with gdrpy.pin(pointer, 4096, backend=backend, **asking) as pin:
            assert pin.backend == backend
        with pytest.raises(ValueError, match="there is no backend 'best'"):
            gdrpy.pin(pointer, 4096, backend="best")

    def test_of_an_address_without_a_size_is_refused(self, allocate):
        with pytest.raises(TypeError, match=r"^pin: an address needs a size: pin\("):
            gdrpy.pin(allocate(4096))
