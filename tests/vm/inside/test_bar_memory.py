"""The simulated driver's memory is the PCI device's, and the stand-in knows where it is."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import standin
from standin import PAGE, PERSISTENT, Probe

from gdrpy import cuda
from gdrpy.errors import OutOfMemory

MIB = 1 << 20
BLOCK = 2 * MIB
PATTERN = bytes(range(256)) * 16


@pytest.fixture(autouse=True)
def context(nothing_left: None) -> Iterator[None]:
    with cuda.context(0):
        yield


class Allocator:
    """``cuMemAlloc`` and ``cuMemFree``."""

    def __init__(self) -> None:
        self.live: list[int] = []

    def allocate(self, size: int) -> int:
        self.live.append(int(cuda.call("cuMemAlloc", size)))
        return self.live[-1]

    def free(self, pointer: int) -> None:
        self.live.remove(pointer)
        cuda.call("cuMemFree", pointer)


@pytest.fixture
def memory(context: None) -> Iterator[Allocator]:
    """Frees in the end what the test has not freed itself."""
    memory = Allocator()
    yield memory
    for pointer in list(memory.live):
        memory.free(pointer)


def read(pointer: int, size: int) -> bytes:
    buffer = bytearray(size)
    cuda.call("cuMemcpyDtoH", buffer, pointer, size)
    return bytes(buffer)


def write(pointer: int, data: bytes) -> None:
    cuda.call("cuMemcpyHtoD", pointer, data, len(data))


def run_child(script: str, *arguments: object, pass_fds: tuple[int, ...] = ()) -> None:
    child = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        pass_fds=pass_fds,
        capture_output=True,
        text=True,
    )
    assert child.returncode == 0, child.stderr


class TestAllocation:
    def test_bytes_written_by_the_driver_are_on_the_bar(
        self, memory: Allocator, bar_folder: Path, bar_start: int
    ) -> None:
        pointer = memory.allocate(BLOCK)
        write(pointer + PAGE, PATTERN)
        with Probe() as probe:
            offset = probe.get(pointer + PAGE, PAGE).first - bar_start
        with (bar_folder / "resource2").open("r+b") as file:
            bar = mmap.mmap(file.fileno(), PAGE, offset=offset)
        assert bar[: len(PATTERN)] == PATTERN
        bar.close()

    def test_fresh_memory_is_zero(self, memory: Allocator) -> None:
        pointer = memory.allocate(BLOCK)
        write(pointer, PATTERN)
        memory.free(pointer)
        pointer = memory.allocate(BLOCK)
        assert read(pointer, len(PATTERN)) == bytes(len(PATTERN))

    def test_free_takes_pinned_memory_away(self, memory: Allocator) -> None:
        pointer = memory.allocate(BLOCK)
        with Probe() as probe:
            probe.get(pointer, BLOCK)
            memory.free(pointer)
            assert probe.callbacks == 1

    def test_small_allocations_share_a_block_that_the_last_one_frees(
        self, memory: Allocator
    ) -> None:
        first, second = memory.allocate(1000), memory.allocate(1000)
        with Probe() as probe:
            probe.get(first, PAGE)
            memory.free(first)
            assert probe.callbacks == 0
            memory.free(second)
            assert probe.callbacks == 1

    def test_persistent_pin_outlives_it(self, memory: Allocator) -> None:
        pointer = memory.allocate(BLOCK)
        with Probe() as probe:
            probe.get(pointer, BLOCK, PERSISTENT)
            memory.free(pointer)
            assert standin.live() == (1, 0, 0, 1)

    def test_more_than_the_bar_is_out_of_memory(self, memory: Allocator) -> None:
        _, total = cuda.call("cuMemGetInfo")
        memory.allocate(total - BLOCK)
        with pytest.raises(OutOfMemory):
            memory.allocate(2 * BLOCK)


class TestMappedAllocation:
    @pytest.fixture
    def handle(self) -> Iterator[Any]:
        driver = cuda.driver()
        properties = driver.CUmemAllocationProp()
        properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.requestedHandleTypes = self.posix()
        handle = cuda.call("cuMemCreate", BLOCK, properties, 0)
        yield handle
        cuda.call("cuMemRelease", handle)

    @pytest.fixture
    def pointer(self, handle: Any) -> Iterator[int]:
        driver = cuda.driver()
        pointer = int(cuda.call("cuMemAddressReserve", BLOCK, 0, 0, 0))
        cuda.call("cuMemMap", pointer, BLOCK, 0, handle, 0)
        access = driver.CUmemAccessDesc()
        access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        cuda.call("cuMemSetAccess", pointer, BLOCK, [access], 1)
        yield pointer
        cuda.call("cuMemUnmap", pointer, BLOCK)
        cuda.call("cuMemAddressFree", pointer, BLOCK)

    @staticmethod
    def posix() -> Any:
        kinds = cuda.driver().CUmemAllocationHandleType
        return kinds.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

    def test_unmap_takes_pinned_memory_away(self, pointer: int) -> None:
        with Probe() as probe:
            probe.get(pointer, BLOCK)
            cuda.call("cuMemUnmap", pointer, BLOCK)
            assert probe.callbacks == 1

    def test_another_process_imports_it_and_leaves_nothing_behind(
        self, handle: Any, pointer: int
    ) -> None:
        script = """
import sys
from gdrpy import cuda
driver = cuda.driver()
kind = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
with cuda.context(0):
    handle = cuda.call("cuMemImportFromShareableHandle", int(sys.argv[1]), kind)
    pointer = int(cuda.call("cuMemAddressReserve", 2 << 20, 0, 0, 0))
    cuda.call("cuMemMap", pointer, 2 << 20, 0, handle, 0)
    access = driver.CUmemAccessDesc()
    access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    cuda.call("cuMemSetAccess", pointer, 2 << 20, [access], 1)
    cuda.call("cuMemcpyHtoD", pointer, b"from the child", 14)
"""
        fd = int(cuda.call("cuMemExportToShareableHandle", handle, self.posix(), 0))
        run_child(script, fd, pass_fds=(fd,))
        os.close(fd)
        assert read(pointer, 14) == b"from the child"
        assert standin.live() == (1, 1, 0, 0)


class TestIpcHandle:
    def test_another_process_opens_it(self, memory: Allocator) -> None:
        script = """
import ctypes, sys
from gdrpy import cuda
driver = cuda.driver()
with cuda.context(0):
    handle = driver.CUipcMemHandle()
    ctypes.memmove(handle.getPtr(), bytes.fromhex(sys.argv[1]), 64)
    pointer = int(cuda.call("cuIpcOpenMemHandle", handle, 1))
    cuda.call("cuMemcpyHtoD", pointer, b"from the child", 14)
    cuda.call("cuIpcCloseMemHandle", pointer)
"""
        pointer = memory.allocate(BLOCK)
        handle = cuda.call("cuIpcGetMemHandle", pointer)
        run_child(script, ctypes.string_at(int(handle.getPtr()), 64).hex())
        assert read(pointer, 14) == b"from the child"
