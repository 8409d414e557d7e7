"""Regions between processes that have CUDA and processes that have none, on any GPU.

The same tests run on a real GPU: ``pytest -m gpu``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

import gdrpy
from gdrpy import cuda
from gdrpy.broker import temporary

pytestmark = pytest.mark.gpu

NBYTES = 3 << 20

MAKE = """
with broker.allocate("region", {nbytes}, device={device}, gpu=False) as region:
    region.cpu.write(b"from the maker", {nbytes} - 14)
"""

FILL = """
from gdrpy import cuda
with broker.get("region", cpu=False) as region:
    assert region.device == {device}
    with cuda.context(region.device):
        cuda.call("cuMemsetD8", region.ptr, 0x5A, {nbytes} - 14)
        cuda.call("cuCtxSynchronize")
"""

READ = """
import sys
with broker.get("region", gpu=False, readonly=True) as region:
    right = region.read() == b"Z" * ({nbytes} - 14) + b"from the maker"
    print(right, any(name.startswith("cuda.bindings") for name in sys.modules), region.device)
"""


@pytest.fixture(scope="module")
def two_simulated_devices() -> Iterator[None]:
    """Two devices in the processes that a test starts, where the GPU is a simulated one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GDRPY_SIM_DEVICES", "2")
        yield


@pytest.fixture(scope="module")
def socket(two_simulated_devices: None) -> Iterator[str]:
    """A broker's."""
    with temporary() as path:
        yield path


def devices() -> list[int]:
    """All that a broker here has: of a simulated GPU two."""
    return list(range(cuda.device_count())) if os.environ.get("GDRPY_SIM") == "0" else [0, 1]


def run(socket: str, program: str, **values: object) -> str:
    """What a program with a ``broker`` prints, as a process of its own."""
    head = f"import gdrpy\nwith gdrpy.connect({socket!r}) as broker:\n"
    body = "".join(f"    {line}\n" for line in program.format(**values).splitlines())
    done = subprocess.run(
        [sys.executable, "-c", head + body], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


class TestRegionOfThreeProcesses:
    def test_is_the_same_bytes_to_maker_gpu_and_reader_without_cuda(self, socket):
        for device in devices():
            values = {"device": device, "nbytes": NBYTES}
            run(socket, MAKE, **values)
            run(socket, FILL, **values)
            assert run(socket, READ, **values) == "True False None\n"
            run(socket, 'broker.delete("region")')


class TestBytes:
    def test_written_here_are_read_by_the_gpu_there(self, socket):
        with gdrpy.connect(socket) as broker, broker.allocate("written", 4096) as region:
            region.write(b"by CPU stores", offset=100)
            found = run(
                socket,
                """
from gdrpy import cuda
with broker.get("written", cpu=False) as region, cuda.context(0):
    buffer = bytearray(13)
    cuda.call("cuMemcpyDtoH", buffer, region.ptr + 100, 13)
    print(bytes(buffer))
""",
            )
            broker.delete("written")
        assert found == "b'by CPU stores'\n"

    def test_of_a_dead_writer_stay(self, socket):
        dead = subprocess.run(
            [
                sys.executable,
                "-c",
                f"import gdrpy, os\n"
                f"region = gdrpy.connect({socket!r}).allocate('left', 100, gpu=False)\n"
                f"region.write(b'last words')\n"
                f"os.kill(os.getpid(), {int(signal.SIGKILL)})",
            ],
            check=False,
        )
        assert dead.returncode == -signal.SIGKILL
        with gdrpy.connect(socket) as broker:
            with broker.get("left") as region:
                assert region.read(10) == b"last words"
            deadline = time.monotonic() + 20
            while left := broker.stat("left").holders:  # until the broker has heard of the death
                assert time.monotonic() < deadline, left
            broker.delete("left")


class TestMirror:
    def test_goes_to_the_region_and_comes_back_from_another_process(self, socket):
        with gdrpy.connect(socket) as broker:
            with broker.create("mirrored", 1000) as draft:
                with draft.mirror() as host:
                    host[:] = 7
                draft.publish()
            run(
                socket,
                """
with broker.get("mirrored") as region, region.mirror(load=True) as host:
    assert (host == 7).all()
    host[500:] = 9
""",
            )
            with broker.get("mirrored") as region, region.mirror(load=True) as host:
                assert bytes(host) == b"\7" * 500 + b"\t" * 500
            broker.delete("mirrored")
            with pytest.raises(gdrpy.NotFound):
                broker.get("mirrored")
