"""Regions by their fabric handles, on simulated GPUs that have them and that do not."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import gdrpy


def run(code: str, *arguments: str, fabric: str = "1") -> str:
    """What a program prints on simulated GPUs whose fabric handles are as the variable says."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, gdrpy\n{code}", *arguments],
        env=os.environ | {"GDRPY_SIM_FABRIC": fabric, "GDRPY_SIM_DEVICES": "2"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stderr == ""
    return done.stdout


OPEN = """
region = gdrpy.Region.from_fabric(bytes.fromhex(sys.argv[1]), 5000)
print(region.read(5), region._cpu)
region.write(b"world")
"""

SHARE = f"""
import subprocess
with gdrpy.alloc(5000, fabric=True) as region:
    region.write(b"hello")
    handle = region.export_fabric()
    subprocess.run([sys.executable, "-c", "import sys, gdrpy" + {OPEN!r}, handle.hex()])
    print(len(handle), region.cpu.read(5))
"""

DESCRIPTORS = """
import os, gc
def open_once():
    with gdrpy.alloc(5000, fabric=True) as region:
        with gdrpy.Region.from_fabric(region.export_fabric(), 5000) as other:
            return other.export_fabric() == region.export_fabric()
def failing():
    for handle in (bytes(64), b"x" * 64):
        try:
            gdrpy.Region.from_fabric(handle, 5000)
        except gdrpy.InvalidHandle:
            pass
open_once(), failing()
before = len(os.listdir("/proc/self/fd"))
print(open_once(), failing(), len(os.listdir("/proc/self/fd")) - before)
"""

READ_ONLY = """
from gdrpy import cuda
region = gdrpy.alloc(5000, fabric=True)
region.write(b"hello")
other = gdrpy.Region.from_fabric(region.export_fabric(), 5000, 1, readonly=True)
print(other)
with cuda.context(1):
    for call in (
        lambda: other.write(b"world"),
        lambda: cuda.call("cuMemcpyHtoD", other.ptr, b"world", 5),
        lambda: cuda.call("cuMemsetD8", other.ptr, 0, 5),
    ):
        try:
            call()
        except gdrpy.Error as error:
            print(type(error).__name__, str(error).partition(": invalid")[0])
print(other.read(5), other.readonly)
"""

REFUSALS = """
import pickle
from multiprocessing.reduction import ForkingPickler
region = gdrpy.alloc(5000, 1, fabric=True)
handle = region.export_fabric()
other = gdrpy.Region.from_fabric(handle, 5000, 1)
region.close()
for call in (
    lambda: other.cpu, other.export, other.map, lambda: ForkingPickler.dumps(other),
    lambda: gdrpy.Region.from_fabric(handle, 5000, 1),
):
    try:
        call()
    except Exception as error:
        print(type(error).__name__, error)
print(other.device)
"""

NO_CPU_VIEW = (
    "memory opened by a fabric handle has no file descriptor and no CPU view: pass on the "
    "handle, Region.export_fabric()"
)

REASONS = """
for call in (
    lambda: gdrpy.alloc(5000, fabric=True),
    lambda: gdrpy.Region.from_fabric(b"x" * 64, 5000),
):
    try:
        call()
    except gdrpy.BackendUnavailable as error:
        print(error)
"""


class TestFabricHandle:
    def test_opens_the_memory_in_another_process(self) -> None:
        assert run(SHARE).splitlines() == ["b'hello' None", "64 b'world'"]

    def test_leaves_no_descriptor_behind(self) -> None:
        assert run(DESCRIPTORS) == "True None 0\n"

    def test_gives_a_gpu_view_alone_and_is_good_while_its_owner_has_it(self) -> None:
        assert run(REFUSALS).splitlines() == [
            *[f"MissingView {NO_CPU_VIEW}"] * 3,
            f"TypeError multiprocessing cannot send this memory: {NO_CPU_VIEW}",
            "InvalidHandle Region.from_fabric: CUDA does not import this handle "
            "(CUDA_ERROR_INVALID_VALUE): pass one that Region.export_fabric() gave, while its "
            "owner keeps the memory",
            "1",
        ]

    def test_opens_the_memory_read_only_in_the_page_tables_of_the_gpu(self) -> None:
        assert run(READ_ONLY).splitlines() == [
            "<Region of 5000 bytes on simulated GPU 0, read-only GPU view>",
            "ReadOnly Region.write: the region is read-only; open it with readonly=False",
            "CudaError cuMemcpyHtoD: CUDA_ERROR_INVALID_VALUE",
            "CudaError cuMemsetD8: CUDA_ERROR_INVALID_VALUE",
            "b'hello' True",
        ]

    def test_of_the_wrong_size_is_told(self) -> None:
        code = """
region = gdrpy.alloc(5000, fabric=True)
try:
    gdrpy.Region.from_fabric(region.export_fabric(), 3 << 20)
except gdrpy.SizeMismatch as error:
    print(error)
"""
        assert "cannot be mapped as the 4194304 bytes that 3145728 take" in run(code)


class TestMachineWithoutFabricHandles:
    def test_says_that_the_gpu_reports_none(self) -> None:
        lines = run(REASONS, fabric="0").splitlines()
        assert [line.partition(":")[0] for line in lines] == ["cuMemCreate", "Region.from_fabric"]
        for line in lines:
            assert "(CUDA_ERROR_NOT_SUPPORTED): GPU 0 reports none (CU_DEVICE_ATTRIBUTE_HA" in line

    def test_says_that_there_is_no_channel(self) -> None:
        lines = run(REASONS, fabric="no-channel").splitlines()
        assert len(lines) == 2
        for line in lines:
            assert "(CUDA_ERROR_NOT_PERMITTED): GPU 0 reports them, but this process may" in line
            assert line.endswith(
                "have root make one that the process may open: nvidia-modprobe -i 0:1 makes "
                "/dev/nvidia-caps-imex-channels/channel0; across nodes nvidia-imex must run too"
            )


class TestInfo:
    @pytest.mark.parametrize(("fabric", "usable"), [("1", True), ("0", False)])
    def test_says_whether_there_are_any(self, fabric: str, usable: bool) -> None:
        text = "import gdrpy.cli; gdrpy.cli.main(['info'])"
        assert f"fabric handles: {'yes' if usable else 'no'}, " in run(text, fabric=fabric)
        printed = run("import gdrpy.cli; gdrpy.cli.main(['info', '--json'])", fabric=fabric)
        found = json.loads(printed)["fabric_handles"]
        assert [(one["device"], one["usable"]) for one in found] == [(0, usable), (1, usable)]


class TestArguments:
    def test_are_checked_before_anything_is_touched(self) -> None:
        with pytest.raises(ValueError, match="host memory has no fabric handle: alloc on a device"):
            gdrpy.alloc(4096, "cpu", fabric=True)
        with pytest.raises(ValueError, match="a handle has 64 bytes, and this one 3"):
            gdrpy.Region.from_fabric(b"abc", 4096)
        with pytest.raises(TypeError):
            gdrpy.Region.from_fabric("text", 4096)  # type: ignore[arg-type]

    def test_a_region_without_one_says_how_to_get_one(self) -> None:
        for device in (0, "cpu"):
            with (
                gdrpy.alloc(4096, device) as region,
                pytest.raises(gdrpy.MissingView, match=r"gdrpy.alloc\(nbytes, fabric=True\)"),
            ):
                region.export_fabric()
