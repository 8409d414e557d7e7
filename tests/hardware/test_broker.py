"""The broker on real GPUs: memory that comes back, and a broker killed under its clients."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import gdrpy
from gdrpy import cuda
from gdrpy.broker import temporary

pytestmark = pytest.mark.gpu

GIB = 1 << 30


def memory(device: int) -> tuple[int, int]:
    """Bytes of a GPU that nobody has, and all."""
    with cuda.context(device):
        free, total = cuda.call("cuMemGetInfo")
    return int(free), int(total)


def await_free(device: int, nbytes: int) -> int:
    """Bytes that nobody has, once they are as many or 10 s are over: nothing tells of that."""
    deadline = time.monotonic() + 10
    while memory(device)[0] < nbytes and time.monotonic() < deadline:
        time.sleep(0.01)
    return memory(device)[0]


@pytest.fixture(params=range(4))
def device(request) -> int:
    """Each GPU that there is."""
    if request.param >= cuda.device_count():
        pytest.skip(f"this machine has no GPU {request.param}")
    return request.param


@contextmanager
def serving(path: str) -> Iterator[subprocess.Popen[str]]:
    """A broker that is not ended with the block."""
    server = subprocess.Popen(
        [sys.executable, "-m", "gdrpy", "serve", "--json", "--socket", path],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    json.loads(server.stdout.readline())
    with server.stdout:
        yield server


class TestMemory:
    def test_goes_back_to_the_gpu_with_the_last_holder(self, device):
        with temporary() as path, gdrpy.connect(path) as broker:
            broker.allocate("first", 100, device=device).close()  # what a driver makes once
            before, _ = memory(device)
            region = broker.allocate("large", 8 * GIB, device=device)
            assert before - memory(device)[0] >= 8 * GIB
            broker.delete("large")
            assert before - memory(device)[0] >= 8 * GIB
            region.close()
            assert await_free(device, before) >= before

    def test_that_is_not_there_is_refused_and_leaves_the_broker_alive(self, device):
        with temporary() as path, gdrpy.connect(path) as broker:
            _, total = memory(device)
            with pytest.raises(gdrpy.OutOfMemory):
                broker.allocate("too large", 2 * total, device=device)
            with broker.allocate("small", 100, device=device) as region:
                region.write(b"fine")


class TestKilledBroker:
    def test_gives_all_back_to_the_next_one_while_clients_go_on(self, device, tmp_path):
        path = str(tmp_path / "broker.sock")
        with serving(path) as server, gdrpy.connect(path) as broker:
            region = broker.allocate("kept", GIB, device=device)
            region.write(b"before", offset=GIB - 100)
            os.kill(server.pid, signal.SIGKILL)
            server.wait()
            region.write(b"while it is dead", offset=0)
            with serving(path) as server:
                assert broker.stat("kept").writers == 1
                with broker.get("kept", gpu=False) as again:
                    assert again.read(16) == b"while it is dead"
                    assert again.read(6, offset=GIB - 100) == b"before"
                region.close()
                broker.delete("kept")
                server.terminate()
                assert server.wait() == 0
