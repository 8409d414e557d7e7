"""Fabric handles on the GPUs that are here: bytes through them, or why there are none."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import gdrpy
from gdrpy import cuda
from gdrpy.memory import fabric

pytestmark = pytest.mark.gpu

#: What the driver answers where each thing is missing.
REFUSALS = {
    "reports none": "CUDA_ERROR_(NOT_SUPPORTED|INVALID_VALUE)",
    "this process may not open any IMEX channel": "CUDA_ERROR_NOT_PERMITTED",
}


class TestFabricHandle:
    def test_goes_round_or_is_refused_for_the_reason_that_info_gives(self) -> None:
        status = fabric.status(0)
        if status.usable:
            with gdrpy.alloc(4096, fabric=True) as region:
                region.write(b"hello")
                handle = region.export_fabric()
                with gdrpy.Region.from_fabric(handle, 4096) as other:
                    assert other.read(5) == b"hello"
                    other.write(b"world")
                with (
                    gdrpy.Region.from_fabric(handle, 4096, readonly=True) as reader,
                    cuda.context(0),
                    pytest.raises(gdrpy.CudaError, match="CUDA_ERROR_INVALID_VALUE"),
                ):
                    cuda.call("cuMemsetD8", reader.ptr, 0, 5)
                assert region.cpu.read(5) == b"world"
            return
        (code,) = (code for reason, code in REFUSALS.items() if reason in status.reason)
        said = re.escape(f"{status.reason}: {status.remedy}")
        refusal = rf"cuMemCreate: fabric handles are not available \({code}\): {said}$"
        with pytest.raises(gdrpy.BackendUnavailable, match=refusal):
            gdrpy.alloc(4096, fabric=True)

    def test_leaves_memory_without_one_as_it_is(self) -> None:
        with gdrpy.alloc(4096) as region:
            region.write(b"hello")
            assert region.read(5) == b"hello"


@pytest.fixture(scope="module")
def channel() -> Iterator[None]:
    """An IMEX channel for programs that begin with CUDA from now on: made here where it may be."""
    if not cuda.attribute(0, "HANDLE_TYPE_FABRIC_SUPPORTED"):
        pytest.skip("this GPU has no fabric handles")
    with ExitStack() as undo:
        if not fabric._has_channel():
            _make_channel(undo)
        yield


def _make_channel(undo: ExitStack) -> None:
    channels = Path(fabric._CHANNELS)
    kinds = Path("/proc/devices").read_text()
    found = re.search(rf"^ *(\d+) {channels.name}$", kinds, re.MULTILINE)
    if os.geteuid() or not found:
        pytest.skip("there is no IMEX channel, and only root makes one, of a driver that has them")
    node = channels / "channel0"
    try:
        if not channels.exists():
            channels.mkdir()
            undo.callback(channels.rmdir)
        os.mknod(node, stat.S_IFCHR | 0o600, os.makedev(int(found[1]), 0))
        undo.callback(node.unlink)
        os.close(os.open(node, os.O_RDWR))
    except OSError as error:
        pytest.skip(f"this container may not make or open an IMEX channel: {error}")


#: Opens a handle on a device: what the owner wrote at either end, then its own answer.
OPEN = """
import sys, gdrpy
handle, nbytes, device = bytes.fromhex(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
with gdrpy.Region.from_fabric(handle, nbytes, device) as region:
    print(region.device, region.read(5), region.read(3, nbytes - 3))
    region.write(b"world")
    region.fill(7, nbytes - 3, 3)
"""

#: Owns memory of GPU 0, has other processes open it on each GPU, and looks at what they left.
SHARE = f"""
import subprocess, sys, gdrpy
from gdrpy import cuda
nbytes = (64 << 20) + 5000
for device in range(cuda.device_count()):
    with gdrpy.alloc(nbytes, fabric=True) as region:
        region.write(b"hello")
        region.write(b"end", nbytes - 3)
        words = region.export_fabric().hex(), str(nbytes), str(device)
        subprocess.run([sys.executable, "-c", {OPEN!r}, *words], check=True)
        print(region.cpu.read(5), region.cpu.read(3, nbytes - 3), flush=True)
"""

#: Opens it on the last GPU beside its owner: a kernel of either GPU sees the same bytes.
TENSORS = """
import gdrpy, torch
from gdrpy import cuda
last = cuda.device_count() - 1
with gdrpy.alloc(1 << 20, fabric=True) as region:
    other = gdrpy.Region.from_fabric(region.export_fabric(), 1 << 20, last)
    home, away = torch.from_dlpack(region), torch.from_dlpack(other)
    home.fill_(3)
    torch.cuda.synchronize(0)
    print(away.device.index == last, int(away.sum()) == 3 << 20)
    away.add_(1)
    torch.cuda.synchronize(last)
    print(int(home.sum()) == 4 << 20)
    shown = torch.as_tensor(other, device=f"cuda:{last}")
    print(int(shown.sum()) == 4 << 20)
    del home, away, shown
"""


def run(code: str) -> list[str]:
    """The lines that a program prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.usefixtures("channel")
class TestChannel:
    def test_carries_bytes_to_other_processes_and_gpus_and_back(self) -> None:
        assert run(SHARE) == [
            line
            for device in range(cuda.device_count())
            for line in (f"{device} b'hello' b'end'", "b'world' b'\\x07\\x07\\x07'")
        ]

    def test_carries_what_kernels_of_either_gpu_write(self) -> None:
        pytest.importorskip("torch")
        assert run(TENSORS) == ["True True", "True", "True"]
