"""The simulated driver's own header against the declarations that cuda.bindings was built with."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cuda.bindings import driver

#: Constants of the header that CUDA's headers do not have under that name.
OURS = {
    "CU_DEVICE_ATTRIBUTE_LAST_OF_13_0",
    "CU_GET_PROC_ADDRESS_FLAGS_MASK",
    "CU_IPC_HANDLE_SIZE",
}

#: Newer than the oldest cuda.bindings that gdrpy takes.
NEW = {"CU_DEVICE_ATTRIBUTE_DMA_BUF_MMAP_SUPPORTED"}


@pytest.fixture
def source(checkout: Path) -> Path:
    return checkout / "gdrpy" / "sim" / "src"


@pytest.fixture
def header(source: Path) -> str:
    return (source / "cuda_abi.h").read_text()


def bindings_constants() -> dict[str, int]:
    constants = {}
    for name, value in vars(driver).items():
        if isinstance(value, type) and hasattr(value, "__members__"):
            constants.update({key: int(member) for key, member in value.__members__.items()})
        elif name.startswith("CU_") and isinstance(value, int):
            constants[name] = value
    return constants


class TestConstants:
    def test_each_has_the_number_that_the_bindings_know(self, header: str) -> None:
        known = bindings_constants()
        ours = re.findall(r"\b(CU(?:DA)?_[A-Z0-9_]+) = (-?\w+(?: << \w+)?)", header)
        assert len(ours) > 100
        for name, text in ours:
            if name in OURS or (name in NEW and name not in known):
                continue
            assert known[name] == eval(text), name

    def test_each_error_has_a_text(self, source: Path) -> None:
        table = (source / "errors.c").read_text()
        codes = re.findall(r"\b(CUDA_[A-Z_]+) = \d+", (source / "cuda_abi.h").read_text())
        assert codes
        for name in codes:
            assert f"ERROR({name}," in table


def as_the_header_lays_it_out(source: Path, tmp_path: Path, type_: str, fields: str) -> bytes:
    """The bytes of a struct whose fields are set as an initializer says."""
    program = tmp_path / "layout.c"
    program.write_text(
        f'#include <stdio.h>\n#include "cuda_abi.h"\nstatic {type_} it = {fields};'
        "int main(void) {"
        "for (unsigned i = 0; i < sizeof(it); i++)"
        '    printf("%02x", ((unsigned char *)&it)[i]); }'
    )
    subprocess.run(["cc", f"-I{source}", program, "-o", tmp_path / "layout"], check=True)
    return bytes.fromhex(subprocess.check_output([tmp_path / "layout"], text=True))


def as_the_bindings_lay_it_out(struct: Any, size: int) -> bytes:
    return ctypes.string_at(struct.getPtr(), size)


class TestStructs:
    def test_allocation_properties(self, source: Path, tmp_path: Path) -> None:
        ours = as_the_header_lays_it_out(
            source,
            tmp_path,
            "CUmemAllocationProp",
            "{1, 1, {1, 0x1234}, (void *)0x55, {1, 1, 0x0203, {0}}}",
        )
        struct = driver.CUmemAllocationProp()
        struct.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        handle_types = driver.CUmemAllocationHandleType
        struct.requestedHandleTypes = handle_types.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        struct.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        struct.location.id = 0x1234
        struct.win32HandleMetaData = 0x55
        struct.allocFlags.compressionType = 1
        struct.allocFlags.gpuDirectRDMACapable = 1
        struct.allocFlags.usage = 0x0203
        assert ours == as_the_bindings_lay_it_out(struct, len(ours))

    def test_access_description(self, source: Path, tmp_path: Path) -> None:
        ours = as_the_header_lays_it_out(source, tmp_path, "CUmemAccessDesc", "{{1, 7}, 3}")
        struct = driver.CUmemAccessDesc()
        struct.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        struct.location.id = 7
        struct.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        assert ours == as_the_bindings_lay_it_out(struct, len(ours))

    def test_rows_of_a_copy(self, source: Path, tmp_path: Path) -> None:
        ours = as_the_header_lays_it_out(
            source,
            tmp_path,
            "CUDA_MEMCPY2D",
            "{1, 2, 1, (void *)3, 4, 0, 5, 6, 7, 2, (void *)8, 9, 0, 10, 11, 12}",
        )
        struct = driver.CUDA_MEMCPY2D()
        struct.srcXInBytes, struct.srcY, struct.srcHost, struct.srcDevice = 1, 2, 3, 4
        struct.srcPitch, struct.dstXInBytes, struct.dstY = 5, 6, 7
        struct.dstHost, struct.dstDevice, struct.dstPitch = 8, 9, 10
        struct.WidthInBytes, struct.Height = 11, 12
        struct.srcMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_HOST
        struct.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
        assert ours == as_the_bindings_lay_it_out(struct, len(ours))

    def test_operation_of_a_batch(self, source: Path, tmp_path: Path) -> None:
        ours = as_the_header_lays_it_out(
            source, tmp_path, "CUstreamBatchMemOpParams", "{.value = {4, 0x1122, 0x3344, 5, 6}}"
        )
        struct = driver.CUstreamBatchMemOpParams()
        wait = driver.CUstreamBatchMemOpType.CU_STREAM_MEM_OP_WAIT_VALUE_64
        struct.waitValue.operation = wait
        struct.waitValue.address, struct.waitValue.value64 = 0x1122, 0x3344
        struct.waitValue.flags, struct.waitValue.alias = 5, 6
        assert ours == as_the_bindings_lay_it_out(struct, len(ours))
