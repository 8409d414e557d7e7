"""What only the simulation promises of shared memory: its descriptors and handles up close."""

from __future__ import annotations

import fcntl
import mmap
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cuda_calls import GRANULE, Cuda

from support import open_descriptors

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def memory_file(name: str = "gdrpy-sim-dev0", size: int = GRANULE, seals: int = SEALS) -> int:
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.truncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def export(cuda: Cuda, pointer: int) -> int:
    handle = cuda("cuMemRetainAllocationHandle", pointer)
    fd: int = cuda("cuMemExportToShareableHandle", handle, cuda.fd_type, 0)
    cuda("cuMemRelease", handle)
    return fd


class TestExportedDescriptor:
    def test_it_is_the_memory(self, cuda: Cuda) -> None:
        pointer = cuda.mapped()
        cuda.write(pointer, b"the GPU's")
        fd = export(cuda, pointer)
        with mmap.mmap(fd, GRANULE) as cpu:
            assert cpu[:9] == b"the GPU's"
            cpu[:9] = b"the CPU's"
        os.close(fd)
        assert cuda.read(pointer, 9) == b"the CPU's"

    def test_nobody_can_change_its_size(self, cuda: Cuda) -> None:
        fd = export(cuda, cuda.mapped())
        for size in (0, 2 * GRANULE):
            with pytest.raises(PermissionError):
                os.truncate(fd, size)
        assert os.fstat(fd).st_size == GRANULE
        os.close(fd)

    def test_it_can_be_imported_and_costs_the_importer_nothing(self, cuda: Cuda) -> None:
        fd = memory_file()
        before = cuda("cuMemGetInfo")
        handle = cuda("cuMemImportFromShareableHandle", fd, cuda.fd_type)
        assert cuda("cuMemGetInfo") == before
        cuda("cuMemRelease", handle)
        assert cuda("cuMemGetInfo") == before
        os.close(fd)

    def test_it_outlives_its_owner(self, cuda: Cuda) -> None:
        code = f"""
import os, sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
from contextlib import ExitStack
from gdrpy import cuda as _cuda
from cuda_calls import GRANULE, Cuda
cuda = Cuda(_cuda.driver(), ExitStack())
cuda("cuCtxSetCurrent", cuda("cuDevicePrimaryCtxRetain", 0))
pointer = cuda.mapped()
cuda.write(pointer, b"last words")
handle = cuda("cuMemRetainAllocationHandle", pointer)
print(cuda("cuMemExportToShareableHandle", handle, cuda.fd_type, 0), flush=True)
time.sleep(60)
"""
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as owner:
            assert owner.stdout
            number = int(owner.stdout.readline())
            fd = os.open(f"/proc/{owner.pid}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
            owner.send_signal(signal.SIGKILL)
        handle = cuda("cuMemImportFromShareableHandle", fd, cuda.fd_type)
        cuda.later("cuMemRelease", handle)
        os.close(fd)
        pointer = cuda.reserve()
        cuda.map(pointer, handle)
        assert cuda.read(pointer, 10) == b"last words"


class TestForgedDescriptor:
    @pytest.mark.parametrize(
        ("name", "size", "seals"),
        [
            ("gdrpy-sim-dev0", GRANULE, 0),
            ("gdrpy-sim-dev0", GRANULE, fcntl.F_SEAL_SHRINK),
            ("gdrpy-sim-dev0", GRANULE, SEALS & ~fcntl.F_SEAL_SHRINK),
            ("gdrpy-sim-dev0", GRANULE, SEALS & ~fcntl.F_SEAL_SEAL),
            ("gdrpy-sim-dev0", GRANULE, SEALS | fcntl.F_SEAL_WRITE),
            ("gdrpy-sim-dev0", GRANULE + 4096, SEALS),
            ("gdrpy-sim-dev0", 4096, SEALS),
            ("gdrpy-sim-dev0", 0, SEALS),
            ("gdrpy-sim-dev", GRANULE, SEALS),
            ("gdrpy-sim-dev0x", GRANULE, SEALS),
            ("gdrpy-sim-dev00", GRANULE, SEALS),
            ("gdrpy-sim-dev-1", GRANULE, SEALS),
            ("other", GRANULE, SEALS),
        ],
    )
    def test_what_only_looks_like_a_block_is_refused(
        self, cuda: Cuda, name: str, size: int, seals: int
    ) -> None:
        fd = memory_file(name, size, seals)
        assert cuda.error("cuMemImportFromShareableHandle", fd, cuda.fd_type) == "UNKNOWN"
        os.close(fd)

    def test_a_block_of_a_device_that_is_not_seen_is_imported_but_not_mapped(
        self, cuda: Cuda
    ) -> None:
        fd = memory_file("gdrpy-sim-dev1")
        handle = cuda("cuMemImportFromShareableHandle", fd, cuda.fd_type)
        os.close(fd)
        assert cuda("cuMemGetAllocationPropertiesFromHandle", handle).location.id == -2
        assert cuda.error("cuMemMap", cuda.reserve(), GRANULE, 0, handle, 0) == "INVALID_DEVICE"
        cuda("cuMemRelease", handle)

    def test_a_descriptor_to_read_is_refused(self, cuda: Cuda) -> None:
        block = memory_file()
        fd = os.open(f"/proc/self/fd/{block}", os.O_RDONLY | os.O_CLOEXEC)
        assert cuda.error("cuMemImportFromShareableHandle", fd, cuda.fd_type) == "UNKNOWN"
        os.close(fd)
        os.close(block)

    def test_a_refusal_leaves_no_descriptor_behind(self, cuda: Cuda) -> None:
        fd = memory_file(seals=0)
        before = open_descriptors()
        cuda.error("cuMemImportFromShareableHandle", fd, cuda.fd_type)
        assert open_descriptors() == before
        os.close(fd)


class TestDmaBuf:
    def test_its_start_is_the_start_of_the_range(self, cuda: Cuda) -> None:
        for pointer in (cuda.mapped(), cuda.allocate(3 << 20)):
            cuda.write(pointer, b"first bytes")
            fd = cuda("cuMemGetHandleForAddressRange", pointer, GRANULE, cuda.dma_buf, 0)
            with mmap.mmap(fd, GRANULE) as cpu:
                assert cpu[:11] == b"first bytes"
            os.close(fd)

    def test_a_range_inside_a_block_is_not_supported(self, cuda: Cuda) -> None:
        pointer = cuda.mapped(2 * GRANULE)
        arguments = (pointer + 4096, 4096, cuda.dma_buf, 0)
        assert cuda.error("cuMemGetHandleForAddressRange", *arguments) == "NOT_SUPPORTED"

    def test_a_range_across_blocks_is_not_supported(self, cuda: Cuda) -> None:
        pointer = cuda.reserve(2 * GRANULE)
        for index in (0, 1):
            cuda.map(pointer + index * GRANULE, cuda.create())
        arguments = (pointer, 2 * GRANULE, cuda.dma_buf, 0)
        assert cuda.error("cuMemGetHandleForAddressRange", *arguments) == "NOT_SUPPORTED"

    def test_a_pcie_mapping_is_not_supported(self, cuda: Cuda) -> None:
        arguments = (cuda.mapped(), GRANULE, cuda.dma_buf, 1)
        assert cuda.error("cuMemGetHandleForAddressRange", *arguments) == "NOT_SUPPORTED"


class TestIpcHandle:
    OPEN = """
cuda("cuCtxSetCurrent", cuda("cuDevicePrimaryCtxRetain", 0))
for text in sys.argv[1:]:
    print(cuda.error("cuIpcOpenMemHandle", cuda.ipc_handle_of(bytes.fromhex(text)), 1))
"""

    def test_its_words_are_where_a_real_driver_has_them(self, cuda: Cuda) -> None:
        first, second = cuda.allocate(300), cuda.allocate(5000)
        if second // GRANULE != first // GRANULE:
            first, second = second, cuda.allocate(300)
        words = struct.unpack("<16I", cuda.ipc_handle(second + 7))
        size = cuda("cuMemGetAddressRange", second)[1]
        assert words[2] == os.getpid()
        assert struct.unpack_from("<Q", cuda.ipc_handle(second), 16) == (size,)
        assert words[6] == GRANULE // 4096
        assert words[7] == second % GRANULE
        assert words[12] == 0xC1000000 | os.getpid()
        assert open_descriptors()[str(words[13])] == "/memfd:gdrpy-sim-dev0 (deleted)"

    def test_a_handle_with_one_word_changed_is_refused(
        self, cuda: Cuda, another_process: Callable[..., str]
    ) -> None:
        handle = cuda.ipc_handle(cuda.allocate(3 << 20))
        forged = [handle]
        for word in (0, 2, 4, 5, 6, 7, 12, 13, 14):
            changed = bytearray(handle)
            changed[4 * word + 3] ^= 0x40
            forged.append(bytes(changed))
        output = another_process(self.OPEN, *(data.hex() for data in forged))
        assert output.split() == ["CUDA_SUCCESS"] + ["INVALID_VALUE"] * 9

    def test_a_block_that_was_freed_is_not_opened_even_if_another_took_its_number(
        self, cuda: Cuda, another_process: Callable[..., str]
    ) -> None:
        pointer = cuda("cuMemAlloc", 3 << 20)
        handle = cuda.ipc_handle(pointer)
        cuda("cuMemFree", pointer)
        assert another_process(self.OPEN, handle.hex()) == "INVALID_VALUE\n"
        other = cuda.ipc_handle(cuda.allocate(3 << 20))
        assert other[52:56] == handle[52:56]
        assert another_process(self.OPEN, handle.hex()) == "INVALID_VALUE\n"

    def test_opened_memory_costs_the_opener_nothing(
        self, cuda: Cuda, another_process: Callable[..., str]
    ) -> None:
        handle = cuda.ipc_handle(cuda.allocate(3 << 20))
        output = another_process(
            """
cuda("cuCtxSetCurrent", cuda("cuDevicePrimaryCtxRetain", 0))
before = cuda("cuMemGetInfo"), os.listdir("/proc/self/fd")
pointer = cuda("cuIpcOpenMemHandle", cuda.ipc_handle_of(bytes.fromhex(sys.argv[1])), 1)
print(cuda("cuMemGetInfo") == before[0])
cuda("cuIpcCloseMemHandle", pointer)
print((cuda("cuMemGetInfo"), os.listdir("/proc/self/fd")) == before)
""",
            handle.hex(),
        )
        assert output.split() == ["True", "True"]

    def test_events_have_none(self, cuda: Cuda) -> None:
        assert cuda.device_attribute("IPC_EVENT_SUPPORTED") == 0
        assert cuda.error("cuIpcGetEventHandle", cuda.event()) == "NOT_SUPPORTED"
