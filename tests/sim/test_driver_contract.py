"""What the simulation promises of a CUDA driver, held against it and, with ``-m gpu``, a real one.

Nothing here leaves a GPU in a bad state: wrong calls are only such as the driver itself refuses.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
import threading
from collections.abc import Callable
from typing import Any

import pytest
from cuda_calls import GRANULE, READ, READ_WRITE, Cuda

pytestmark = pytest.mark.gpu

NOWHERE = 0x1234000
HOST_MEMORY, DEVICE_MEMORY = 1, 2


class TestDevices:
    def test_there_is_a_device_with_a_name_and_memory(self, cuda: Cuda) -> None:
        assert cuda("cuDeviceGetCount") >= 1
        assert cuda("cuDeviceGetName", 64, 0).rstrip(b"\0 ")
        assert cuda("cuDeviceTotalMem", 0) >= 1 << 30

    @pytest.mark.parametrize("ordinal", [99, -1])
    def test_an_ordinal_without_a_device_is_refused(self, cuda: Cuda, ordinal: int) -> None:
        assert cuda.error("cuDeviceGet", ordinal) == "INVALID_DEVICE"
        assert cuda.error("cuDeviceGetName", 64, ordinal) == "INVALID_DEVICE"
        assert cuda.error("cuDevicePrimaryCtxRetain", ordinal) == "INVALID_DEVICE"

    @pytest.mark.parametrize(
        "name",
        [
            "UNIFIED_ADDRESSING",
            "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
            "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED",
            "CAN_USE_STREAM_WAIT_VALUE_NOR",
            "HOST_REGISTER_SUPPORTED",
        ],
    )
    def test_what_gdrpy_builds_on_is_supported(self, cuda: Cuda, name: str) -> None:
        assert cuda.device_attribute(name) == 1

    def test_an_unknown_attribute_is_refused(self, cuda: Cuda) -> None:
        # The bindings know no number that no driver knows: past them.
        driver = ctypes.CDLL("libcuda.so.1")
        for unknown in (0, -1, 9999):
            value = ctypes.c_int()
            result = driver.cuDeviceGetAttribute(ctypes.byref(value), unknown, 0)
            assert result == cuda.driver.CUresult.CUDA_ERROR_INVALID_VALUE

    def test_the_pci_bus_id_finds_the_device(self, cuda: Cuda) -> None:
        bus_id = cuda("cuDeviceGetPCIBusId", 64, 0).split(b"\0")[0]
        assert int(cuda("cuDeviceGetByPCIBusId", bus_id)) == 0
        assert int(cuda("cuDeviceGetByPCIBusId", bus_id.removesuffix(b".0"))) == 0
        assert int(bus_id.split(b":")[1], 16) == cuda.device_attribute("PCI_BUS_ID")

    @pytest.mark.parametrize("text", [b"", b"zzz", b"0000:ff", b"01:00"])
    def test_a_malformed_bus_id_is_refused(self, cuda: Cuda, text: bytes) -> None:
        assert cuda.error("cuDeviceGetByPCIBusId", text) == "INVALID_VALUE"

    def test_a_bus_id_without_a_device_is_refused(self, cuda: Cuda) -> None:
        assert cuda.error("cuDeviceGetByPCIBusId", b"0000:ff:1f.0") == "INVALID_DEVICE"

    def test_a_device_is_no_peer_of_itself(self, cuda: Cuda) -> None:
        assert cuda("cuDeviceCanAccessPeer", 0, 0) == 0

    def test_errors_have_names_and_texts(self, cuda: Cuda) -> None:
        out_of_memory = cuda.driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
        assert cuda("cuGetErrorName", out_of_memory) == b"CUDA_ERROR_OUT_OF_MEMORY"
        assert cuda("cuGetErrorString", out_of_memory) == b"out of memory"


class TestWithoutAContext:
    @pytest.fixture(autouse=True)
    def no_context(self, cuda: Cuda) -> None:
        context = cuda("cuCtxPopCurrent")
        cuda.later("cuCtxPushCurrent", context)

    @pytest.mark.parametrize(
        ("function", "arguments"),
        [
            ("cuMemAlloc", (4,)),
            ("cuMemAlloc", (0,)),
            ("cuMemGetInfo", ()),
            ("cuMemHostAlloc", (4096, 0)),
            ("cuMemHostRegister", (4096, 4096, 0)),
            ("cuMemcpyHtoD", (NOWHERE, b"abcd", 4)),
            ("cuMemsetD8", (NOWHERE, 0, 4)),
            ("cuMemGetAddressRange", (NOWHERE,)),
            ("cuIpcGetMemHandle", (NOWHERE,)),
            ("cuStreamCreate", (0,)),
            ("cuStreamSynchronize", (0,)),
            ("cuStreamQuery", (0,)),
            ("cuEventCreate", (0,)),
            ("cuCtxGetDevice", ()),
            ("cuCtxSynchronize", ()),
            ("cuCtxPopCurrent", ()),
        ],
    )
    def test_a_call_that_needs_one_is_refused(
        self, cuda: Cuda, function: str, arguments: tuple[Any, ...]
    ) -> None:
        assert cuda.error(function, *arguments) == "INVALID_CONTEXT"

    def test_none_is_current(self, cuda: Cuda) -> None:
        assert int(cuda("cuCtxGetCurrent")) == 0

    def test_wrong_arguments_are_seen_first(self, cuda: Cuda) -> None:
        assert cuda.error("cuStreamCreate", 99) == "INVALID_VALUE"
        assert cuda.error("cuMemFree", NOWHERE) == "INVALID_VALUE"
        assert cuda.error("cuMemFreeHost", NOWHERE) == "INVALID_VALUE"

    def test_allocations_are_made_mapped_and_given_access(self, cuda: Cuda) -> None:
        pointer = cuda.mapped()
        assert cuda("cuMemGetAccess", cuda.location(), pointer) == READ_WRITE
        assert cuda.error("cuMemcpyHtoD", pointer, b"abcd", 4) == "INVALID_CONTEXT"


class TestContexts:
    def test_a_context_is_current_in_the_thread_that_made_it(self, cuda: Cuda) -> None:
        found: list[int] = []

        def look() -> None:
            found.append(int(cuda("cuCtxGetCurrent")))

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        assert found == [0]
        assert int(cuda("cuCtxGetCurrent")) != 0

    def test_push_and_pop_are_a_stack(self, cuda: Cuda) -> None:
        context = cuda("cuCtxGetCurrent")
        cuda("cuCtxPushCurrent", context)
        assert int(cuda("cuCtxPopCurrent")) == int(context)
        assert int(cuda("cuCtxGetCurrent")) == int(context)

    def test_there_is_one_primary_context(self, cuda: Cuda) -> None:
        first, second = cuda("cuDevicePrimaryCtxRetain", 0), cuda("cuDevicePrimaryCtxRetain", 0)
        assert int(first) == int(second)
        assert cuda("cuDevicePrimaryCtxGetState", 0)[1] == 1
        cuda("cuDevicePrimaryCtxRelease", 0)
        cuda("cuDevicePrimaryCtxRelease", 0)

    def test_the_primary_context_is_not_destroyed(self, cuda: Cuda) -> None:
        assert cuda.error("cuCtxDestroy", cuda("cuCtxGetCurrent")) == "INVALID_CONTEXT"
        assert cuda.error("cuCtxDestroy", 0) == "INVALID_VALUE"
        assert cuda.error("cuCtxPushCurrent", 0) == "INVALID_VALUE"

    def test_the_device_and_the_priorities_are_told(self, cuda: Cuda) -> None:
        assert int(cuda("cuCtxGetDevice")) == 0
        assert cuda("cuCtxGetStreamPriorityRange") == (0, -5)


class TestAllocations:
    def test_bytes_come_back(self, cuda: Cuda) -> None:
        pointer = cuda.allocate(100)
        cuda.write(pointer, bytes(range(100)))
        assert cuda.read(pointer, 100) == bytes(range(100))

    def test_the_address_range_is_the_allocation(self, cuda: Cuda) -> None:
        pointer = cuda.allocate(100_000)
        base, size = cuda("cuMemGetAddressRange", pointer + 99_999)
        assert (int(base), size) == (pointer, 100_000)
        assert cuda.error("cuMemGetAddressRange", NOWHERE) == "NOT_FOUND"

    def test_addresses_are_aligned(self, cuda: Cuda) -> None:
        assert cuda.allocate(1) % 512 == 0
        assert cuda.allocate(513) % 512 == 0

    def test_no_bytes_are_refused(self, cuda: Cuda) -> None:
        assert cuda.error("cuMemAlloc", 0) == "INVALID_VALUE"

    @pytest.mark.parametrize("size", [1 << 50, 1 << 63])
    def test_too_many_bytes_are_out_of_memory(self, cuda: Cuda, size: int) -> None:
        assert cuda.error("cuMemAlloc", size) == "OUT_OF_MEMORY"

    def test_only_the_start_of_an_allocation_is_freed_and_once(self, cuda: Cuda) -> None:
        pointer = int(cuda("cuMemAlloc", GRANULE))
        assert cuda.error("cuMemFree", pointer + 512) == "INVALID_VALUE"
        cuda("cuMemFree", pointer)
        assert cuda.error("cuMemFree", pointer) == "INVALID_VALUE"
        cuda("cuMemFree", 0)

    def test_free_memory_is_back_when_all_is_freed(self, cuda: Cuda) -> None:
        cuda("cuMemFree", cuda("cuMemAlloc", 64 << 20))
        before = cuda("cuMemGetInfo")
        pointer = cuda("cuMemAlloc", 64 << 20)
        assert cuda("cuMemGetInfo")[0] == before[0] - (64 << 20)
        cuda("cuMemFree", pointer)
        assert cuda("cuMemGetInfo") == before

    def test_pitched_rows_are_aligned(self, cuda: Cuda) -> None:
        pointer, pitch = cuda("cuMemAllocPitch", 600, 10, 16)
        assert pitch == 1024
        cuda("cuMemFree", pointer)
        assert cuda.error("cuMemAllocPitch", 600, 10, 3) == "INVALID_VALUE"
        assert cuda.error("cuMemAllocPitch", 0, 10, 4) == "INVALID_VALUE"


class TestReservations:
    @pytest.mark.parametrize(
        ("size", "alignment", "address", "flags"),
        [
            (0, 0, 0, 0),
            (4096, 0, 0, 0),
            (GRANULE + 1, 0, 0, 0),
            (GRANULE, 3, 0, 0),
            (GRANULE, 3 << 20, 0, 0),
            (GRANULE, 0, 12345, 0),
            (GRANULE, 0, 0, 1),
        ],
    )
    def test_a_wrong_argument_is_refused(
        self, cuda: Cuda, size: int, alignment: int, address: int, flags: int
    ) -> None:
        arguments = (size, alignment, address, flags)
        assert cuda.error("cuMemAddressReserve", *arguments) == "INVALID_VALUE"

    def test_more_than_there_is_is_out_of_memory(self, cuda: Cuda) -> None:
        assert cuda.error("cuMemAddressReserve", 1 << 60, 0, 0, 0) == "OUT_OF_MEMORY"

    def test_the_alignment_is_kept(self, cuda: Cuda) -> None:
        pointer = cuda("cuMemAddressReserve", GRANULE, 1 << 30, 0, 0)
        cuda.later("cuMemAddressFree", pointer, GRANULE)
        assert int(pointer) % (1 << 30) == 0

    def test_an_address_is_given_if_nobody_has_it(
        self, another_process: Callable[..., str]
    ) -> None:
        # Another process, where CUDA has not given its room for small ones back to the system.
        output = another_process(
            """
with _cuda.context(0):
    pointer = int(cuda("cuMemAddressReserve", 4 * GRANULE, 0, 0, 0))
    cuda("cuMemAddressFree", pointer, 4 * GRANULE)
    wish = pointer + GRANULE
    print(int(cuda("cuMemAddressReserve", GRANULE, 0, wish, 0)) == wish)
    for start, size in ((wish, GRANULE), (pointer, 2 * GRANULE), (pointer, 4 * GRANULE)):
        other = int(cuda("cuMemAddressReserve", size, 0, start, 0))
        print(other + size <= wish or wish + GRANULE <= other)
"""
        )
        assert output.splitlines() == ["True"] * 4

    def test_large_ones_may_be_at_any_multiple_of_32_mib_and_small_ones_may_not(
        self, another_process: Callable[..., str]
    ) -> None:
        # Another process has chosen no addresses for small ones there. Its context has room for
        # them elsewhere; without one CUDA puts them at multiples of 32 MiB, too.
        output = another_process(
            """
with _cuda.context(0):
    for size in (24 << 20, 26 << 20):
        for wish in (1 << 45, (1 << 45) + (2 << 20)):
            pointer = int(cuda("cuMemAddressReserve", size, 0, wish, 0))
            cuda("cuMemAddressFree", pointer, size)
            print(pointer == wish)
"""
        )
        assert output.splitlines() == ["False", "False", "True", "False"]

    def test_it_is_freed_whole_and_once(self, cuda: Cuda) -> None:
        size = 4 * GRANULE
        pointer = int(cuda("cuMemAddressReserve", size, 0, 0, 0))
        assert cuda.error("cuMemAddressFree", pointer, GRANULE) == "INVALID_VALUE"
        assert cuda.error("cuMemAddressFree", pointer + GRANULE, size) == "INVALID_VALUE"
        cuda("cuMemAddressFree", pointer, size)
        assert cuda.error("cuMemAddressFree", pointer, size) == "INVALID_VALUE"

    def test_it_is_not_freed_with_something_mapped_in_it(self, cuda: Cuda) -> None:
        pointer = cuda.mapped()
        assert cuda.error("cuMemAddressFree", pointer, GRANULE) == "INVALID_VALUE"
        cuda.write(pointer, b"still here")


class TestCreation:
    def test_the_granularity_is_2_mib(self, cuda: Cuda) -> None:
        flags = cuda.driver.CUmemAllocationGranularity_flags
        for flag in (
            flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM,
            flags.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED,
        ):
            assert cuda("cuMemGetAllocationGranularity", cuda.properties(), flag) == GRANULE

    @pytest.mark.parametrize("size", [0, 4096, GRANULE + 4096, (1 << 50) + 1])
    def test_a_size_that_is_not_whole_is_refused(self, cuda: Cuda, size: int) -> None:
        assert cuda.error("cuMemCreate", size, cuda.properties(), 0) == "INVALID_VALUE"

    def test_more_than_there_is_is_out_of_memory(self, cuda: Cuda) -> None:
        assert cuda.error("cuMemCreate", 1 << 50, cuda.properties(), 0) == "OUT_OF_MEMORY"

    @pytest.mark.parametrize("device", [99, -1])
    def test_a_device_that_is_not_there_is_refused(self, cuda: Cuda, device: int) -> None:
        properties = cuda.properties(device=device)
        assert cuda.error("cuMemCreate", GRANULE, properties, 0) == "INVALID_DEVICE"

    def test_flags_are_refused(self, cuda: Cuda) -> None:
        assert cuda.error("cuMemCreate", GRANULE, cuda.properties(), 1) == "INVALID_VALUE"

    def test_other_kinds_of_memory_are_refused(self, cuda: Cuda) -> None:
        invalid_type = cuda.properties()
        invalid_type.type = cuda.driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_INVALID
        invalid_location = cuda.properties()
        location = cuda.location()
        location.type = cuda.driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_INVALID
        invalid_location.location = location
        win32 = cuda.properties()
        handle_types = cuda.driver.CUmemAllocationHandleType
        win32.requestedHandleTypes = handle_types.CU_MEM_HANDLE_TYPE_WIN32
        for properties in (invalid_type, invalid_location, win32):
            assert cuda.error("cuMemCreate", GRANULE, properties, 0) == "INVALID_VALUE"

    def test_the_properties_are_told(self, cuda: Cuda) -> None:
        handle = cuda.create(rdma=True)
        properties = cuda("cuMemGetAllocationPropertiesFromHandle", handle)
        assert properties.requestedHandleTypes == cuda.fd_type
        assert properties.location.id == 0
        assert properties.allocFlags.gpuDirectRDMACapable == 1

    def test_a_handle_is_released_once(self, cuda: Cuda) -> None:
        handle = cuda("cuMemCreate", GRANULE, cuda.properties(), 0)
        cuda("cuMemRelease", handle)
        assert cuda.error("cuMemRelease", handle) == "INVALID_VALUE"
        assert cuda.error("cuMemRelease", 0) == "INVALID_VALUE"

    def test_fresh_memory_is_zero(self, cuda: Cuda) -> None:
        assert cuda.read(cuda.mapped(), 4096) == bytes(4096)


class TestMapping:
    def test_a_mapping_outside_any_reservation_is_refused(self, cuda: Cuda) -> None:
        handle = cuda.create()
        for pointer in (0x7F0000000000, 0):
            assert cuda.error("cuMemMap", pointer, GRANULE, 0, handle, 0) == "INVALID_VALUE"

    @pytest.mark.parametrize(
        ("size", "offset", "flags", "error"),
        [
            (GRANULE, 0, 0, "NOT_SUPPORTED"),  # less than the allocation
            (3 * GRANULE, 0, 0, "NOT_SUPPORTED"),
            (4096, 0, 0, "NOT_SUPPORTED"),
            (GRANULE, GRANULE, 0, "NOT_SUPPORTED"),
            (2 * GRANULE, 4096, 0, "NOT_SUPPORTED"),
            (0, 0, 0, "INVALID_VALUE"),
            (2 * GRANULE, 0, 1, "INVALID_VALUE"),
        ],
    )
    def test_an_allocation_is_mapped_whole(
        self, cuda: Cuda, size: int, offset: int, flags: int, error: str
    ) -> None:
        pointer, handle = cuda.reserve(4 * GRANULE), cuda.create(2 * GRANULE)
        assert cuda.error("cuMemMap", pointer, size, offset, handle, flags) == error

    def test_an_address_off_the_granularity_is_refused(self, cuda: Cuda) -> None:
        pointer, handle = cuda.reserve(2 * GRANULE), cuda.create()
        assert cuda.error("cuMemMap", pointer + 4096, GRANULE, 0, handle, 0) == "INVALID_VALUE"

    def test_no_handle_is_refused(self, cuda: Cuda) -> None:
        assert cuda.error("cuMemMap", cuda.reserve(), GRANULE, 0, 0, 0) == "INVALID_VALUE"

    def test_a_mapping_over_a_mapping_is_refused(self, cuda: Cuda) -> None:
        pointer, large, small = cuda.reserve(4 * GRANULE), cuda.create(2 * GRANULE), cuda.create()
        cuda.map(pointer, large, 2 * GRANULE)
        for handle, at, size in ((large, 0, 2), (small, 1, 1)):
            arguments = (pointer + at * GRANULE, size * GRANULE, 0, handle, 0)
            assert cuda.error("cuMemMap", *arguments) == "INVALID_VALUE"

    def test_one_allocation_can_be_mapped_twice(self, cuda: Cuda) -> None:
        pointer, handle = cuda.reserve(2 * GRANULE), cuda.create()
        cuda.map(pointer, handle)
        cuda.map(pointer + GRANULE, handle)
        cuda.write(pointer, b"the same bytes")
        assert cuda.read(pointer + GRANULE, 14) == b"the same bytes"

    def test_an_unmap_that_splits_a_mapping_is_refused(self, cuda: Cuda) -> None:
        pointer = cuda.mapped(2 * GRANULE)
        assert cuda.error("cuMemUnmap", pointer, GRANULE) == "INVALID_VALUE"
        assert cuda.error("cuMemUnmap", pointer + GRANULE, GRANULE) == "INVALID_VALUE"
        assert cuda.error("cuMemUnmap", pointer, 0) == "INVALID_VALUE"
        cuda.write(pointer, b"still here")

    def test_an_unmap_takes_mappings_and_holes(self, cuda: Cuda) -> None:
        pointer = cuda.reserve(4 * GRANULE)
        for index in (0, 2):
            handle = cuda.create()
            cuda("cuMemMap", pointer + index * GRANULE, GRANULE, 0, handle, 0)
        cuda("cuMemUnmap", pointer, 4 * GRANULE)
        cuda("cuMemUnmap", pointer, 4 * GRANULE)

    def test_the_mapping_keeps_the_memory_and_can_bring_the_handle_back(self, cuda: Cuda) -> None:
        pointer = cuda.reserve()
        handle = cuda("cuMemCreate", GRANULE, cuda.properties(), 0)
        cuda.map(pointer, handle)
        cuda.write(pointer, b"kept")
        cuda("cuMemRelease", handle)
        assert cuda.read(pointer, 4) == b"kept"
        retained = cuda("cuMemRetainAllocationHandle", pointer + 100)
        assert int(retained) == int(handle)
        cuda("cuMemRelease", retained)

    def test_other_memory_is_mapped_where_some_was(self, cuda: Cuda) -> None:
        pointer, first, second = cuda.reserve(), cuda.create(), cuda.create()
        for handle, data in ((first, b"first"), (second, b"other"), (first, b"again")):
            cuda("cuMemMap", pointer, GRANULE, 0, handle, 0)
            assert cuda.error("cuMemcpyHtoD", pointer, data, 5) == "INVALID_VALUE"
            cuda("cuMemSetAccess", pointer, GRANULE, [cuda.access()], 1)
            if data == b"again":
                assert cuda.read(pointer, 5) == b"first"
            cuda.write(pointer, data)
            cuda("cuMemUnmap", pointer, GRANULE)
            assert cuda.error("cuMemcpyHtoD", pointer, data, 5) == "INVALID_VALUE"

    def test_no_handle_is_behind_other_memory(self, cuda: Cuda) -> None:
        pointer = cuda.allocate(4096)
        assert cuda.error("cuMemRetainAllocationHandle", pointer) == "INVALID_VALUE"
        assert cuda.error("cuMemRetainAllocationHandle", cuda.reserve()) == "INVALID_VALUE"


class TestAccess:
    def test_there_is_none_until_it_is_set(self, cuda: Cuda) -> None:
        pointer, handle = cuda.reserve(), cuda.create()
        cuda("cuMemMap", pointer, GRANULE, 0, handle, 0)
        cuda.later("cuMemUnmap", pointer, GRANULE)
        assert cuda("cuMemGetAccess", cuda.location(), pointer) == 0
        assert cuda.error("cuMemcpyHtoD", pointer, b"abcd", 4) == "INVALID_VALUE"
        assert cuda.error("cuMemcpyDtoH", bytearray(4), pointer, 4) == "INVALID_VALUE"
        assert cuda.error("cuMemsetD8", pointer, 1, 4) == "INVALID_VALUE"
        cuda("cuMemSetAccess", pointer, GRANULE, [cuda.access()], 1)
        assert cuda("cuMemGetAccess", cuda.location(), pointer) == READ_WRITE

    def test_memory_to_read_cannot_be_written(self, cuda: Cuda) -> None:
        pointer = cuda.reserve()
        cuda.map(pointer, cuda.create(), flags=READ)
        assert cuda("cuMemGetAccess", cuda.location(), pointer) == READ
        assert cuda.read(pointer, 4) == bytes(4)
        assert cuda.error("cuMemcpyHtoD", pointer, b"abcd", 4) == "INVALID_VALUE"
        assert cuda.error("cuMemsetD8", pointer, 1, 4) == "INVALID_VALUE"
        other = cuda.mapped()
        cuda("cuMemcpyDtoD", other, pointer, 4)
        for function in ("cuMemcpyDtoD", "cuMemcpy"):
            assert cuda.error(function, pointer, other, 4) == "INVALID_VALUE"
        for function in ("cuMemcpyDtoDAsync", "cuMemcpyAsync"):
            assert cuda.error(function, pointer, other, 4, 0) == "INVALID_VALUE"
        assert cuda.error("cuMemsetD32Async", pointer, 1, 1, 0) == "INVALID_VALUE"
        cuda("cuCtxSynchronize")
        assert cuda.read(pointer, 4) == bytes(4)

    def test_it_is_set_for_whole_mappings(self, cuda: Cuda) -> None:
        pointer = cuda.reserve(4 * GRANULE)
        cuda.map(pointer, cuda.create(2 * GRANULE), 2 * GRANULE)
        access = [cuda.access(READ)]
        for start, size in (
            (pointer, GRANULE),
            (pointer, 3 * GRANULE),
            (pointer, 0),
            (pointer + 4096, GRANULE),
            (pointer, GRANULE + 4096),
            (0x7F0000000000, GRANULE),
            (0, GRANULE),
        ):
            assert cuda.error("cuMemSetAccess", start, size, access, 1) == "INVALID_VALUE"
        assert cuda("cuMemGetAccess", cuda.location(), pointer) == READ_WRITE

    def test_one_call_sets_it_for_neighbours(self, cuda: Cuda) -> None:
        pointer = cuda.reserve(2 * GRANULE)
        for index in (0, 1):
            cuda.map(pointer + index * GRANULE, cuda.create(), flags=0)
        cuda("cuMemSetAccess", pointer, 2 * GRANULE, [cuda.access()], 1)
        cuda.write(pointer + GRANULE - 2, b"abcd")
        assert cuda.read(pointer + GRANULE - 2, 4) == b"abcd"

    def test_a_device_that_is_not_there_is_refused(self, cuda: Cuda) -> None:
        pointer = cuda.mapped()
        access = [cuda.access(device=99)]
        assert cuda.error("cuMemSetAccess", pointer, GRANULE, access, 1) == "INVALID_VALUE"
        assert cuda.error("cuMemGetAccess", cuda.location(99), pointer) == "INVALID_DEVICE"

    def test_unmapped_addresses_have_none(self, cuda: Cuda) -> None:
        for pointer in (cuda.reserve(), NOWHERE):
            assert cuda.error("cuMemGetAccess", cuda.location(), pointer) == "INVALID_VALUE"


class TestSharing:
    def test_the_descriptor_is_closed_on_exec(self, cuda: Cuda) -> None:
        fd = cuda("cuMemExportToShareableHandle", cuda.create(), cuda.fd_type, 0)
        assert not os.get_inheritable(fd)
        os.close(fd)

    def test_wrong_exports_are_refused(self, cuda: Cuda) -> None:
        handle = cuda.create()
        types = cuda.driver.CUmemAllocationHandleType
        for type_, flags in (
            (cuda.fd_type, 1),
            (types.CU_MEM_HANDLE_TYPE_NONE, 0),
            (types.CU_MEM_HANDLE_TYPE_WIN32, 0),
        ):
            arguments = (handle, type_, flags)
            assert cuda.error("cuMemExportToShareableHandle", *arguments) == "INVALID_VALUE"

    def test_what_was_not_made_to_be_exported_is_not(self, cuda: Cuda) -> None:
        arguments = (cuda.create(exportable=False), cuda.fd_type, 0)
        assert cuda.error("cuMemExportToShareableHandle", *arguments) == "INVALID_VALUE"

    def test_an_import_is_the_same_memory_and_cannot_be_exported(self, cuda: Cuda) -> None:
        pointer = cuda.mapped()
        cuda.write(pointer, b"shared")
        handle = cuda("cuMemRetainAllocationHandle", pointer)
        fd = cuda("cuMemExportToShareableHandle", handle, cuda.fd_type, 0)
        cuda("cuMemRelease", handle)
        imported = cuda("cuMemImportFromShareableHandle", fd, cuda.fd_type)
        cuda.later("cuMemRelease", imported)
        os.close(fd)
        assert int(imported) != int(handle)
        other = cuda.reserve()
        cuda.map(other, imported)
        assert cuda.read(other, 6) == b"shared"
        arguments = (imported, cuda.fd_type, 0)
        assert cuda.error("cuMemExportToShareableHandle", *arguments) == "INVALID_VALUE"
        properties = cuda("cuMemGetAllocationPropertiesFromHandle", imported)
        assert int(properties.requestedHandleTypes) == 0

    def test_what_is_no_such_descriptor_is_refused(self, cuda: Cuda) -> None:
        read_end, write_end = os.pipe()
        memory = os.memfd_create("other", os.MFD_CLOEXEC)
        os.truncate(memory, GRANULE)
        with tempfile.TemporaryFile() as file:
            file.truncate(GRANULE)
            for fd in (read_end, file.fileno(), memory, 999_999):
                arguments = (fd, cuda.fd_type)
                assert cuda.error("cuMemImportFromShareableHandle", *arguments) == "UNKNOWN"
        for fd in (read_end, write_end, memory):
            os.close(fd)

    def test_another_process_imports_it(
        self, cuda: Cuda, another_process: Callable[..., str]
    ) -> None:
        pointer = cuda.mapped()
        cuda.write(pointer, b"from here")
        handle = cuda("cuMemRetainAllocationHandle", pointer)
        fd = cuda("cuMemExportToShareableHandle", handle, cuda.fd_type, 0)
        cuda("cuMemRelease", handle)
        output = another_process(
            """
handle = cuda("cuMemImportFromShareableHandle", int(sys.argv[1]), cuda.fd_type)
pointer = cuda.reserve()
cuda.map(pointer, handle)
cuda("cuCtxSetCurrent", cuda("cuDevicePrimaryCtxRetain", 0))
print(cuda.read(pointer, 9))
cuda.write(pointer, b"and there")
print(cuda.error("cuMemExportToShareableHandle", handle, cuda.fd_type, 0))
""",
            fd,
            fds=[fd],
        )
        os.close(fd)
        assert output.splitlines() == ["b'from here'", "INVALID_VALUE"]
        assert cuda.read(pointer, 9) == b"and there"

    def test_another_process_opens_an_allocation_by_its_ipc_handle(
        self, cuda: Cuda, another_process: Callable[..., str]
    ) -> None:
        pointer = cuda.allocate(5000)
        cuda.write(pointer, b"from here")
        handle = cuda.ipc_handle(pointer + 100)
        output = another_process(
            """
cuda("cuCtxSetCurrent", cuda("cuDevicePrimaryCtxRetain", 0))
handle = cuda.ipc_handle_of(bytes.fromhex(sys.argv[1]))
print(cuda.error("cuIpcOpenMemHandle", handle, 0))
pointer = int(cuda("cuIpcOpenMemHandle", handle, 1))
print(int(cuda("cuIpcOpenMemHandle", handle, 1)) == pointer)
base, size = cuda("cuMemGetAddressRange", pointer)
print(int(base) == pointer, size, cuda.read(pointer, 9))
cuda.write(pointer, b"and there")
print(cuda.error("cuIpcGetMemHandle", pointer))
print(cuda.error("cuMemFree", pointer))
print([cuda.error("cuIpcCloseMemHandle", pointer) for _ in range(3)])
""",
            handle.hex(),
        )
        assert output.splitlines() == [
            "INVALID_VALUE",
            "True",
            "True 5000 b'from here'",
            "INVALID_VALUE",
            "INVALID_VALUE",
            "['CUDA_SUCCESS', 'CUDA_SUCCESS', 'INVALID_VALUE']",
        ]
        assert cuda.read(pointer, 9) == b"and there"

    def test_only_plain_allocations_have_ipc_handles(self, cuda: Cuda) -> None:
        for pointer in (cuda.mapped(), NOWHERE):
            assert cuda.error("cuIpcGetMemHandle", pointer) == "INVALID_VALUE"

    def test_an_ipc_handle_is_not_opened_by_its_own_process(self, cuda: Cuda) -> None:
        handle = cuda("cuIpcGetMemHandle", cuda.allocate(4096))
        assert cuda.error("cuIpcOpenMemHandle", handle, 1) == "INVALID_CONTEXT"

    def test_a_handle_of_zeros_is_refused(self, cuda: Cuda) -> None:
        handle = cuda.driver.CUipcMemHandle()
        assert cuda.error("cuIpcOpenMemHandle", handle, 1) == "INVALID_VALUE"

    def test_what_was_not_opened_is_not_closed(self, cuda: Cuda) -> None:
        pointer = cuda.allocate(4096)
        assert cuda.error("cuIpcCloseMemHandle", pointer) == "INVALID_VALUE"

    def test_the_start_of_an_allocation_is_exported_as_a_dma_buf(self, cuda: Cuda) -> None:
        for pointer, size in (
            (cuda.mapped(rdma=True), GRANULE),
            (cuda.allocate(GRANULE), GRANULE),
            (cuda.mapped(2 * GRANULE), GRANULE),
        ):
            os.close(cuda("cuMemGetHandleForAddressRange", pointer, size, cuda.dma_buf, 0))

    def test_a_dma_buf_of_anything_else_is_refused(self, cuda: Cuda) -> None:
        pointer = cuda.mapped()
        for start, size in (
            (pointer, 100),
            (pointer, 0),
            (pointer + 100, 4096),
            (1 << 20, 4096),
        ):
            arguments = (start, size, cuda.dma_buf, 0)
            assert cuda.error("cuMemGetHandleForAddressRange", *arguments) == "INVALID_VALUE"


class TestPointerAttributes:
    def test_of_an_allocation(self, cuda: Cuda) -> None:
        pointer = cuda.allocate(5000)
        context = cuda("cuCtxGetCurrent")
        assert int(cuda.pointer_attribute("MEMORY_TYPE", pointer + 5)) == DEVICE_MEMORY
        assert int(cuda.pointer_attribute("CONTEXT", pointer)) == int(context)
        assert int(cuda.pointer_attribute("DEVICE_POINTER", pointer + 5)) == pointer + 5
        assert cuda.pointer_attribute("DEVICE_ORDINAL", pointer) == 0
        assert int(cuda.pointer_attribute("RANGE_START_ADDR", pointer + 5)) == pointer
        assert cuda.pointer_attribute("RANGE_SIZE", pointer) == 5000
        assert cuda.pointer_attribute("MAPPED", pointer)
        assert cuda.pointer_attribute("IS_LEGACY_CUDA_IPC_CAPABLE", pointer)
        assert not cuda.pointer_attribute("IS_MANAGED", pointer)

    def test_of_mapped_memory(self, cuda: Cuda) -> None:
        pointer = cuda.reserve(4 * GRANULE)
        cuda.map(pointer + GRANULE, cuda.create(2 * GRANULE, rdma=True), 2 * GRANULE)
        inside = pointer + GRANULE + 5
        assert int(cuda.pointer_attribute("MEMORY_TYPE", inside)) == DEVICE_MEMORY
        assert int(cuda.pointer_attribute("CONTEXT", inside)) == 0
        assert int(cuda.pointer_attribute("RANGE_START_ADDR", inside)) == pointer
        assert cuda.pointer_attribute("RANGE_SIZE", inside) == 4 * GRANULE
        assert not cuda.pointer_attribute("IS_LEGACY_CUDA_IPC_CAPABLE", inside)
        assert cuda.pointer_attribute("IS_GPU_DIRECT_RDMA_CAPABLE", inside)
        base, size = cuda("cuMemGetAddressRange", inside)
        assert (int(base), size) == (pointer + GRANULE, 2 * GRANULE)

    def test_of_pinned_memory(self, cuda: Cuda) -> None:
        pointer = cuda("cuMemHostAlloc", 5000, 0)
        cuda.later("cuMemFreeHost", pointer)
        assert int(cuda.pointer_attribute("MEMORY_TYPE", pointer + 5)) == HOST_MEMORY
        assert int(cuda.pointer_attribute("HOST_POINTER", pointer + 5)) == pointer + 5
        assert cuda.pointer_attribute("RANGE_SIZE", pointer) == 5000

    def test_tokens_are_those_of_all_device_memory_and_ask_for_synchronous_copies(
        self, cuda: Cuda
    ) -> None:
        for pointer in (cuda.allocate(5000), cuda.mapped()):
            assert not cuda.pointer_attribute("SYNC_MEMOPS", pointer)
            tokens = cuda.pointer_attribute("P2P_TOKENS", pointer + 5)
            assert (tokens.p2pToken, tokens.vaSpaceToken) == (0, 65024)
            assert cuda.pointer_attribute("SYNC_MEMOPS", pointer)

    def test_host_memory_has_no_tokens(self, cuda: Cuda) -> None:
        pointer = cuda("cuMemHostAlloc", 5000, 0)
        cuda.later("cuMemFreeHost", pointer)
        attribute = cuda.driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_P2P_TOKENS
        assert cuda.error("cuPointerGetAttribute", attribute, pointer) == "INVALID_VALUE"

    def test_memory_that_the_driver_does_not_know_has_none(self, cuda: Cuda) -> None:
        attribute = cuda.driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        for pointer in (NOWHERE, 0, cuda.reserve()):
            assert cuda.error("cuPointerGetAttribute", attribute, pointer) == "INVALID_VALUE"

    def test_several_at_once_are_empty_where_there_are_none(self, cuda: Cuda) -> None:
        attributes = cuda.driver.CUpointer_attribute
        wanted = [
            attributes.CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            attributes.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        ]
        ordinary = ctypes.create_string_buffer(16)
        kind, _ = cuda("cuPointerGetAttributes", 2, wanted, ctypes.addressof(ordinary))
        assert int(kind) == 0
        kind, ordinal = cuda("cuPointerGetAttributes", 2, wanted, cuda.allocate(4))
        assert (int(kind), ordinal) == (2, 0)


class TestPinnedMemory:
    @pytest.fixture
    def page(self) -> int:
        """The address of two pages of ordinary memory."""
        self.memory = mmap.mmap(-1, 8192)
        return ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def test_flags_that_do_not_exist_are_refused(self, cuda: Cuda, page: int) -> None:
        assert cuda.error("cuMemHostAlloc", 64, 0x10) == "INVALID_VALUE"
        assert cuda.error("cuMemHostRegister", page, 4096, 0x10) == "INVALID_VALUE"

    def test_it_is_freed_by_its_start_and_once(self, cuda: Cuda) -> None:
        pointer = cuda("cuMemHostAlloc", 8192, 0)
        assert cuda.error("cuMemFreeHost", pointer + 4096) == "INVALID_VALUE"
        assert cuda.error("cuMemHostUnregister", pointer) == "INVALID_VALUE"
        assert cuda.error("cuMemHostRegister", pointer, 4096, 0) == "INVALID_VALUE"
        assert cuda.error("cuMemFree", pointer) == "INVALID_VALUE"
        cuda("cuMemFreeHost", pointer)
        assert cuda.error("cuMemFreeHost", pointer) == "INVALID_VALUE"
        cuda("cuMemFreeHost", 0)

    def test_the_device_has_it_at_the_same_address(self, cuda: Cuda) -> None:
        pointer = cuda("cuMemHostAlloc", 4096, 2)
        cuda.later("cuMemFreeHost", pointer)
        assert int(cuda("cuMemHostGetDevicePointer", pointer + 5, 0)) == pointer + 5
        # Driver 580 has been seen to make it portable besides, which is flag 1.
        assert cuda("cuMemHostGetFlags", pointer) & ~1 == 2
        assert cuda.error("cuMemHostGetDevicePointer", pointer, 1) == "INVALID_VALUE"
        assert cuda.error("cuMemHostGetDevicePointer", NOWHERE, 0) == "INVALID_VALUE"

    def test_a_copy_beyond_its_end_is_refused(self, cuda: Cuda) -> None:
        pinned, pointer = cuda("cuMemHostAlloc", 4096, 0), cuda.allocate(65536)
        cuda.later("cuMemFreeHost", pinned)
        assert cuda.error("cuMemcpyHtoD", pointer, pinned, 65536) == "INVALID_VALUE"
        assert cuda.error("cuMemsetD8", pinned, 1, 65536) == "INVALID_VALUE"

    def test_memory_is_registered_once(self, cuda: Cuda, page: int) -> None:
        cuda("cuMemHostRegister", page, 8192, 0)
        again = cuda.error("cuMemHostRegister", page + 4096, 4096, 0)
        assert again == "HOST_MEMORY_ALREADY_REGISTERED"
        assert int(cuda("cuMemHostGetDevicePointer", page, 0)) == page
        assert cuda.error("cuMemHostUnregister", page + 4096) == "INVALID_VALUE"
        assert cuda.error("cuMemFreeHost", page) == "INVALID_VALUE"
        cuda("cuMemHostUnregister", page)
        assert cuda.error("cuMemHostUnregister", page) == "HOST_MEMORY_NOT_REGISTERED"

    def test_nothing_and_nowhere_cannot_be_registered(self, cuda: Cuda, page: int) -> None:
        assert cuda.error("cuMemHostRegister", page, 0, 0) == "INVALID_VALUE"
        assert cuda.error("cuMemHostRegister", 0, 4096, 0) == "INVALID_VALUE"
        assert cuda.error("cuMemHostRegister", 0x10000, 4096, 0) == "INVALID_VALUE"

    def test_ordinary_memory_is_no_io_memory(self, cuda: Cuda, page: int) -> None:
        assert cuda.error("cuMemHostRegister", page, 4096, 4) == "INVALID_VALUE"


class TestCopies:
    def test_no_bytes_are_copied_from_anywhere(self, cuda: Cuda) -> None:
        cuda("cuMemcpyHtoD", NOWHERE, b"", 0)

    def test_a_copy_beyond_the_end_is_refused(self, cuda: Cuda) -> None:
        small, neighbour, large = cuda.allocate(512), cuda.allocate(512), cuda.allocate(GRANULE)
        assert cuda.error("cuMemcpyHtoD", small + 510, b"abcdef", 6) == "INVALID_VALUE"
        assert cuda.error("cuMemcpyHtoD", large + GRANULE - 2, b"abcdef", 6) == "INVALID_VALUE"
        assert cuda.error("cuMemcpyDtoD", large, neighbour + 510, 6) == "INVALID_VALUE"

    def test_a_device_pointer_that_is_none_is_refused(self, cuda: Cuda) -> None:
        pointer = cuda.allocate(16)
        assert cuda.error("cuMemcpyHtoD", NOWHERE, b"ab", 2) == "INVALID_VALUE"
        assert cuda.error("cuMemcpyDtoH", bytearray(2), NOWHERE, 2) == "INVALID_VALUE"
        assert cuda.error("cuMemcpyDtoD", pointer, NOWHERE, 2) == "INVALID_VALUE"
        assert cuda.error("cuMemcpyHtoD", pointer, 0, 2) == "INVALID_VALUE"
        stream = cuda.stream()
        assert cuda.error("cuMemcpyHtoDAsync", NOWHERE, b"ab", 2, stream) == "INVALID_VALUE"

    def test_between_devices_host_and_whatever_unified_addressing_finds(self, cuda: Cuda) -> None:
        first, second = cuda.allocate(16), cuda.allocate(16)
        pinned = cuda("cuMemHostAlloc", 16, 0)
        cuda.later("cuMemFreeHost", pinned)
        cuda.write(first, b"sixteen bytes...")
        cuda("cuMemcpyDtoD", second, first, 16)
        cuda("cuMemcpy", pinned, second, 16)
        cuda("cuMemsetD8", first, 0, 16)
        cuda("cuMemcpy", first, pinned, 16)
        assert cuda.read(first, 16) == b"sixteen bytes..."

    def test_rows_with_pitches(self, cuda: Cuda) -> None:
        pointer = cuda.allocate(2048)
        cuda("cuMemsetD8", pointer, 0, 2048)
        cuda("cuMemcpy2D", self.rows(cuda, pointer))
        read = cuda.read(pointer, 2048)
        assert [read[i * 512 : i * 512 + 6] for i in range(4)] == [
            b"abcd\0\0",
            b"efgh\0\0",
            b"ijkl\0\0",
            bytes(6),
        ]

    def test_rows_go_through_a_stream_and_come_back(self, cuda: Cuda) -> None:
        pointer, stream = cuda.allocate(2048), cuda.stream()
        there = self.rows(cuda, pointer)
        cuda("cuMemcpy2DAsync", there, stream)
        back = cuda.driver.CUDA_MEMCPY2D()
        back.srcMemoryType, back.dstMemoryType = there.dstMemoryType, there.srcMemoryType
        back.srcDevice, back.srcPitch = pointer, 512
        target = ctypes.create_string_buffer(15)
        back.dstHost, back.dstPitch = ctypes.addressof(target), 5
        back.WidthInBytes, back.Height = 4, 3
        cuda("cuMemcpy2DAsync", back, stream)
        cuda("cuStreamSynchronize", stream)
        assert target.raw == b"abcd\0efgh\0ijkl\0"

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("srcPitch", 2),
            ("dstPitch", 2),
            ("dstPitch", 1 << 31),
            ("dstXInBytes", 510),
            ("dstY", 10),
            ("dstDevice", NOWHERE),
        ],
    )
    def test_rows_that_do_not_fit_are_refused(self, cuda: Cuda, field: str, value: int) -> None:
        rows = self.rows(cuda, cuda.allocate(2048))
        setattr(rows, field, value)
        assert cuda.error("cuMemcpy2D", rows) == "INVALID_VALUE"

    def rows(self, cuda: Cuda, pointer: int) -> Any:
        """Three rows of four bytes, packed, to rows 512 bytes apart."""
        self.source = ctypes.create_string_buffer(b"abcdefghijkl")
        rows = cuda.driver.CUDA_MEMCPY2D()
        rows.srcMemoryType = cuda.driver.CUmemorytype.CU_MEMORYTYPE_HOST
        rows.srcHost = ctypes.addressof(self.source)
        rows.srcPitch = 4
        rows.dstMemoryType = cuda.driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
        rows.dstDevice = pointer
        rows.dstPitch = 512
        rows.WidthInBytes, rows.Height = 4, 3
        return rows


class TestFills:
    def test_with_each_width(self, cuda: Cuda) -> None:
        pointer = cuda.allocate(64)
        cuda("cuMemsetD8", pointer, 0x11, 64)
        cuda("cuMemsetD16", pointer + 16, 0x2233, 2)
        cuda("cuMemsetD32", pointer + 32, 0x44556677, 2)
        expected = bytearray(b"\x11" * 64)
        expected[16:20] = b"\x33\x22" * 2
        expected[32:40] = b"\x77\x66\x55\x44" * 2
        assert cuda.read(pointer, 64) == expected

    def test_of_rows(self, cuda: Cuda) -> None:
        pointer = cuda.allocate(1024)
        cuda("cuMemsetD8", pointer, 0, 1024)
        cuda("cuMemsetD2D32", pointer, 512, 0x01020304, 1, 2)
        assert cuda.read(pointer + 510, 8) == b"\0\0\x04\x03\x02\x01\0\0"

    def test_off_the_alignment_or_the_end_are_refused(self, cuda: Cuda) -> None:
        pointer = cuda.allocate(GRANULE)
        for function, arguments in (
            ("cuMemsetD32", (pointer + 2, 1, 4)),
            ("cuMemsetD16", (pointer + 1, 1, 4)),
            ("cuMemsetD32", (pointer + GRANULE - 4, 1, 2)),
            ("cuMemsetD8", (NOWHERE, 1, 4)),
            ("cuMemsetD2D8", (pointer, 50, 3, 100, 4)),
            ("cuMemsetD2D32", (pointer, 513, 3, 4, 2)),
            ("cuMemsetD2D8", (pointer, GRANULE, 3, 100, 2)),
        ):
            assert cuda.error(function, *arguments) == "INVALID_VALUE", (function, arguments)


class TestStreams:
    def test_flags_that_do_not_exist_are_refused(self, cuda: Cuda) -> None:
        assert cuda.error("cuStreamCreate", 2) == "INVALID_VALUE"

    def test_priorities_are_clamped(self, cuda: Cuda) -> None:
        stream = cuda("cuStreamCreateWithPriority", 1, -99)
        assert cuda("cuStreamGetPriority", stream) == -5
        assert cuda("cuStreamGetFlags", stream) == 1
        cuda("cuStreamDestroy", stream)

    @pytest.mark.parametrize("handle", [0, 1, 2])
    def test_the_default_streams_are_there_and_stay(self, cuda: Cuda, handle: int) -> None:
        stream = cuda.driver.CUstream(handle)
        cuda("cuStreamSynchronize", stream)
        cuda("cuStreamQuery", stream)
        assert cuda("cuStreamGetFlags", stream) == 0
        assert cuda.error("cuStreamDestroy", stream) == "INVALID_HANDLE"

    def test_its_context_is_told(self, cuda: Cuda) -> None:
        context = cuda("cuStreamGetCtx", cuda.stream())
        context = context[0] if isinstance(context, tuple) else context
        assert int(context) == int(cuda("cuCtxGetCurrent"))


class TestEvents:
    def test_one_that_was_never_recorded_is_done(self, cuda: Cuda) -> None:
        event = cuda.event()
        cuda("cuEventQuery", event)
        cuda("cuEventSynchronize", event)

    def test_the_time_between_two_is_not_negative(self, cuda: Cuda) -> None:
        stream, start, end = cuda.stream(), cuda.event(), cuda.event()
        assert cuda.error("cuEventElapsedTime", start, end) == "INVALID_HANDLE"
        cuda("cuEventRecord", start, stream)
        cuda("cuEventRecord", end, stream)
        cuda("cuEventSynchronize", end)
        assert cuda("cuEventElapsedTime", start, end) >= 0

    def test_one_without_timing_has_no_time(self, cuda: Cuda) -> None:
        stream, start, end = cuda.stream(), cuda.event(), cuda.event(2)
        cuda("cuEventRecord", start, stream)
        cuda("cuEventRecord", end, stream)
        cuda("cuStreamSynchronize", stream)
        assert cuda.error("cuEventElapsedTime", start, end) == "INVALID_HANDLE"

    def test_one_of_a_context_is_refused_in_another(self, cuda: Cuda) -> None:
        here, event = cuda("cuCtxGetCurrent"), cuda.event()
        cuda("cuCtxRecordEvent", here, event)
        cuda("cuEventSynchronize", event)
        other = cuda("cuCtxCreate", None, 0, cuda("cuCtxGetDevice"))
        try:
            assert cuda.error("cuCtxRecordEvent", other, event) == "INVALID_HANDLE"
            assert cuda.error("cuCtxRecordEvent", here, 0) == "INVALID_HANDLE"
        finally:
            cuda("cuCtxDestroy", other)

    def test_wrong_flags_are_refused(self, cuda: Cuda) -> None:
        assert cuda.error("cuEventCreate", 8) == "INVALID_VALUE"
        assert cuda.error("cuEventCreate", 4) == "INVALID_VALUE"
        stream, event = cuda.stream(), cuda.event()
        assert cuda.error("cuStreamWaitEvent", stream, event, 2) == "INVALID_VALUE"
        cuda("cuEventRecord", event, stream)
        assert cuda.error("cuStreamWaitEvent", stream, event, 1) == "ILLEGAL_STATE"

    def test_no_event_is_refused(self, cuda: Cuda) -> None:
        assert cuda.error("cuEventDestroy", 0) == "INVALID_HANDLE"
        assert cuda.error("cuEventQuery", 0) == "INVALID_HANDLE"
        assert cuda.error("cuEventRecord", 0, cuda.stream()) == "INVALID_HANDLE"


class TestWordsInStreams:
    @pytest.fixture
    def word(self, cuda: Cuda) -> int:
        """Sixteen zero bytes of device memory."""
        pointer = cuda.allocate(16)
        cuda("cuMemsetD8", pointer, 0, 16)
        cuda("cuCtxSynchronize")
        return pointer

    def test_a_wait_holds_the_stream_and_what_waits_for_it(self, cuda: Cuda, word: int) -> None:
        first, second, third = cuda.stream(), cuda.stream(), cuda.stream()
        event = cuda.event()
        cuda("cuStreamWaitValue32", first, word, 1, 0)
        cuda("cuEventRecord", event, first)
        cuda("cuStreamWaitEvent", second, event, 0)
        cuda("cuStreamWriteValue32", second, word + 8, 5, 0)
        states = [cuda.error("cuStreamQuery", stream) for stream in (first, second, third)]
        pending = cuda.error("cuEventQuery", event)
        cuda("cuStreamWriteValue32", third, word, 1, 0)
        cuda("cuStreamSynchronize", second)
        assert states == ["NOT_READY", "NOT_READY", "CUDA_SUCCESS"]
        assert pending == "NOT_READY"
        assert cuda.read(word + 8, 4) == b"\5\0\0\0"
        cuda("cuEventQuery", event)

    def test_an_event_of_the_context_waits_for_every_stream(self, cuda: Cuda, word: int) -> None:
        first, second, third, event = cuda.stream(), cuda.stream(0), cuda.stream(), cuda.event(2)
        context = cuda("cuCtxGetCurrent")
        cuda("cuStreamWaitValue32", first, word, 1, 0)
        cuda("cuStreamWaitValue32", second, word, 1, 0)
        cuda("cuCtxRecordEvent", context, event)
        cuda("cuStreamWaitEvent", second, event, 0)
        cuda("cuStreamWriteValue32", second, word + 8, 5, 0)
        pending = cuda.error("cuEventQuery", event)
        cuda("cuStreamWriteValue32", third, word, 1, 0)
        cuda("cuEventSynchronize", event)
        cuda("cuEventQuery", event)
        cuda("cuStreamSynchronize", second)
        assert pending == "NOT_READY"
        assert cuda.read(word + 8, 4) == b"\5\0\0\0"

    def test_the_null_stream_waits_for_blocking_streams(self, cuda: Cuda, word: int) -> None:
        blocking, other, event = cuda.stream(0), cuda.stream(), cuda.event()
        cuda("cuStreamWaitValue32", blocking, word, 1, 0)
        cuda("cuEventRecord", event, 0)
        pending = [cuda.error("cuEventQuery", event), cuda.error("cuStreamQuery", 0)]
        cuda("cuStreamWriteValue32", other, word, 1, 0)
        cuda("cuCtxSynchronize")
        assert pending == ["NOT_READY", "NOT_READY"]
        cuda("cuEventQuery", event)

    def test_a_batch_is_done_in_order(self, cuda: Cuda, word: int) -> None:
        operations = cuda.driver.CUstreamBatchMemOpType
        batch = [cuda.driver.CUstreamBatchMemOpParams() for _ in range(2)]
        batch[0].operation = operations.CU_STREAM_MEM_OP_WRITE_VALUE_64
        batch[0].writeValue.operation = operations.CU_STREAM_MEM_OP_WRITE_VALUE_64
        batch[0].writeValue.address, batch[0].writeValue.value64 = word, 1 << 40
        batch[1].operation = operations.CU_STREAM_MEM_OP_WAIT_VALUE_64
        batch[1].waitValue.operation = operations.CU_STREAM_MEM_OP_WAIT_VALUE_64
        batch[1].waitValue.address, batch[1].waitValue.value64 = word, 1 << 40
        batch[1].waitValue.flags = 1
        stream = cuda.stream()
        cuda("cuStreamBatchMemOp", stream, 2, batch, 0)
        cuda("cuStreamSynchronize", stream)
        assert cuda.read(word, 8) == (1 << 40).to_bytes(8, "little")
        assert cuda.error("cuStreamBatchMemOp", stream, 2, batch, 1) == "INVALID_VALUE"

    def test_wrong_words_are_refused(self, cuda: Cuda, word: int) -> None:
        stream = cuda.stream()
        for function, address, flags, error in (
            ("cuStreamWaitValue32", NOWHERE, 0, "INVALID_VALUE"),
            ("cuStreamWaitValue32", 0, 0, "INVALID_VALUE"),
            ("cuStreamWaitValue32", word + 2, 0, "INVALID_VALUE"),
            ("cuStreamWaitValue64", word + 4, 0, "INVALID_VALUE"),
            ("cuStreamWaitValue32", word, 4, "INVALID_VALUE"),
            ("cuStreamWriteValue32", NOWHERE, 0, "INVALID_VALUE"),
            ("cuStreamWriteValue32", word + 2, 0, "INVALID_VALUE"),
            ("cuStreamWriteValue64", word + 4, 0, "INVALID_VALUE"),
            ("cuStreamWriteValue32", word, 1, "INVALID_VALUE"),
        ):
            found = cuda.error(function, stream, address, 1, flags)
            assert found == error, (function, address - word, flags)
        cuda("cuStreamSynchronize", stream)
        assert cuda.read(word, 16) == bytes(16)


class TestForkedChild:
    def test_it_is_refused_whatever_it_calls(self, another_process: Callable[..., str]) -> None:
        output = another_process(
            """
cuda("cuCtxSetCurrent", cuda("cuDevicePrimaryCtxRetain", 0))
if os.fork() == 0:
    print(cuda.error("cuInit", 0), cuda.error("cuDeviceGetCount"), cuda.error("cuMemAlloc", 4),
          cuda.error("cuMemFree", 0), cuda.error("cuCtxGetCurrent"), cuda.error("cuMemRelease", 0))
    sys.stdout.flush()
    os._exit(0)
os.wait()
"""
        )
        assert output.split() == ["NOT_INITIALIZED"] * 6
