"""The simulated driver's fabric handles: the real rules, on one machine."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]

#: Begins each program: memory with any handle types, and handles as bytes and back.
PREAMBLE = """
import os
driver.cuInit(0)
types = driver.CUmemAllocationHandleType
FD, FABRIC = types.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, types.CU_MEM_HANDLE_TYPE_FABRIC
def create(kinds):
    properties = driver.CUmemAllocationProp()
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.requestedHandleTypes = kinds
    return driver.cuMemCreate(2 << 20, properties, 0)
def export(handle, kind=FABRIC, flags=0):
    return driver.cuMemExportToShareableHandle(handle, kind, flags)
def take(data):
    words = driver.CUmemFabricHandle()
    words.data = data
    return driver.cuMemImportFromShareableHandle(int(words.getPtr()), FABRIC)
def say(*results):
    print(*(result[0].name.removeprefix("CUDA_") for result in results))
attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED
print(driver.cuDeviceGetAttribute(attribute, 0)[1])
"""


@pytest.fixture
def on_fabric(fresh_process: Run) -> Callable[..., list[str]]:
    """The lines that a program prints after what the device's attribute says."""

    def run(code: str, **environment: str) -> list[str]:
        done = fresh_process(PREAMBLE + code, **environment)
        assert done.stderr == ""
        return done.stdout.splitlines()

    return run


class TestDeviceWithoutFabricHandles:
    @pytest.mark.parametrize("environment", [{}, {"GDRPY_SIM_FABRIC": "0"}])
    def test_supports_neither_way(self, on_fabric: Callable[..., list[str]], environment) -> None:
        code = "say(create(FABRIC), create(FD | FABRIC), take(bytes(64)), create(FD))"
        assert on_fabric(code, **environment) == [
            "0",
            "ERROR_NOT_SUPPORTED ERROR_NOT_SUPPORTED ERROR_NOT_SUPPORTED SUCCESS",
        ]


class TestMachineWithoutAChannel:
    def test_permits_neither_way(self, on_fabric: Callable[..., list[str]]) -> None:
        code = "say(create(FABRIC), create(FD | FABRIC), take(bytes(64)), create(FD))"
        assert on_fabric(code, GDRPY_SIM_FABRIC="no-channel") == [
            "1",
            "ERROR_NOT_PERMITTED ERROR_NOT_PERMITTED ERROR_NOT_PERMITTED SUCCESS",
        ]


class TestFabricHandle:
    def test_is_given_by_memory_made_to_have_one(self, on_fabric: Callable[..., list[str]]) -> None:
        code = """
for kinds in (FD, FABRIC, FD | FABRIC):
    handle = create(kinds)[1]
    say(export(handle, FD), export(handle))
say(export(handle, FABRIC, 1), export(12345))
"""
        assert on_fabric(code, GDRPY_SIM_FABRIC="1") == [
            "1",
            "SUCCESS ERROR_INVALID_VALUE",
            "ERROR_INVALID_VALUE SUCCESS",
            "SUCCESS SUCCESS",
            "ERROR_INVALID_VALUE ERROR_INVALID_VALUE",
        ]

    def test_an_import_is_the_same_memory_and_cannot_be_exported(
        self, on_fabric: Callable[..., list[str]]
    ) -> None:
        code = """
handle = create(FABRIC)[1]
data = export(handle)[1].data
before = len(os.listdir("/proc/self/fd"))
imported = take(data)
say(imported, export(imported[1]), driver.cuMemRelease(imported[1]))
print(len(os.listdir("/proc/self/fd")) - before)
driver.cuMemRelease(handle)
say(take(data))
"""
        assert on_fabric(code, GDRPY_SIM_FABRIC="1") == [
            "1",
            "SUCCESS ERROR_INVALID_VALUE SUCCESS",
            "0",
            "ERROR_INVALID_VALUE",
        ]

    def test_with_one_word_changed_is_refused(self, on_fabric: Callable[..., list[str]]) -> None:
        code = """
handle, other = create(FABRIC)[1], create(FABRIC)[1]
data = bytes(export(handle)[1].data)
before = len(os.listdir("/proc/self/fd"))
found = set()
for word in range(16):
    changed = bytearray(data)
    changed[4 * word] ^= 1
    found.add(take(bytes(changed))[0].name)
print(found, len(os.listdir("/proc/self/fd")) - before)
say(driver.cuMemImportFromShareableHandle(0, FABRIC), take(data))
"""
        assert on_fabric(code, GDRPY_SIM_FABRIC="1") == [
            "1",
            "{'CUDA_ERROR_INVALID_VALUE'} 0",
            "ERROR_INVALID_VALUE SUCCESS",
        ]
