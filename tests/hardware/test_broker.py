"""The broker on real GPUs: memory that comes back, and a broker killed under its clients."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

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
    """A broker that is not ended with the block; it appends its log to a file beside its socket."""
    with Path(f"{path}.log").open("a") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "gdrpy", "serve", "--json", "--socket", path],
            stdout=subprocess.PIPE,
            stderr=log,
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

    def test_of_a_deleted_region_shows_nothing_of_it_in_a_new_one(self, device):
        with temporary() as path, gdrpy.connect(path) as broker:
            before, _ = memory(device)
            with broker.allocate("old", 8 * GIB, device=device, gpu=False) as region:
                region.fill(0xA5, via="engine")
            broker.delete("old")
            await_free(device, before - GIB)  # the engine takes some
            piece = np.empty(GIB // 4, np.uint8)
            with broker.allocate("new", 8 * GIB, device=device, gpu=False) as region:
                for offset in range(0, region.nbytes, piece.nbytes):
                    region.readinto(piece, offset, via="engine")
                    assert not piece.any()


#: Exports a GiB by the name "bound", filled with 7, to importers that have no time after its end.
EXPORTER = """
import sys
import gdrpy
broker = gdrpy.connect(sys.argv[1])
region = broker.allocate("bound", 1 << 30, int(sys.argv[2]), grace=0)
region.fill(7)
print(flush=True)
sys.stdin.readline()
"""


class TestKilledExporter:
    def test_has_its_memory_taken_from_an_importer_once_queued_work_is_done(self, torch, device):
        with temporary() as path, gdrpy.connect(path) as broker:
            out = torch.zeros(GIB, dtype=torch.uint8, device=f"cuda:{device}")
            broker.allocate("first", 100, device=device).close()
            before, _ = memory(device)
            command = [sys.executable, "-c", EXPORTER, path, str(device)]
            pipe = subprocess.PIPE
            with subprocess.Popen(command, stdin=pipe, stdout=pipe) as exporter:
                assert exporter.stdout is not None
                assert exporter.stdout.readline() == b"\n"
                region = broker.get("bound")
                told = threading.Event()
                region.when_ended(lambda _: told.set())
                tensor = torch.from_dlpack(region)
                with torch.cuda.device(device):
                    torch.cuda._sleep(1_000_000_000)
                    out.copy_(tensor)
                exporter.kill()
            assert told.wait(60)
            assert await_free(device, before) >= before
            assert (int(out.min()), int(out.max())) == (7, 7)
            with pytest.raises(gdrpy.Gone, match="'bound' ended with its exporter"):
                _ = region.ptr
            del tensor
            region.close()


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


class TestClientWithoutCuda:
    def test_loads_a_large_file_exactly(self, device, tmp_path):
        content = np.random.default_rng(1).integers(0, 256, GIB + 7, np.uint8)
        path = tmp_path / "model.safetensors"
        save_file({"a": content[: GIB // 3], "b": content[GIB // 3 :]}, path)
        with temporary() as socket, gdrpy.connect(socket) as broker:
            words = ("load", "--socket", socket, "--device", str(device), "--seal", "--digest")
            command = [sys.executable, "-m", "gdrpy", *words, str(path), "model"]
            subprocess.run(command, check=True)
            found = broker.tensors("model", device=device)
            assert np.array_equal(found["b"].read(), content[GIB // 3 :])

    def test_publishes_tensors_again_on_the_gpu(self, device):
        code = (
            "import sys, gdrpy; broker = gdrpy.connect(sys.argv[1]); device = int(sys.argv[2]);"
            "tensors = broker.tensors('one', gpu=False, cpu=True); gdrpy.Region.readinto = None;"
            "broker.put_tensors('other', tensors, device, gpu=False);"
            "print('cuda.bindings' in sys.modules)"
        )
        content = np.random.default_rng(2).integers(0, 256, 100_000_001, np.uint8)
        tensors = {"a": content[:1_234_567], "b": content[1_234_567:]}
        with temporary() as socket, gdrpy.connect(socket) as broker:
            broker.put_tensors("one", tensors, device).close()
            command = [sys.executable, "-c", code, socket, str(device)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            assert done.stdout == "False\n"
            found = broker.tensors("other", device=device)
            for name, one in tensors.items():
                assert np.array_equal(found[name].read(), one)


def nodes(pid: int) -> int:
    """How many descriptors of the driver's nodes a process has."""
    folder = Path(f"/proc/{pid}/fd")
    return sum(str(one.readlink()).startswith("/dev/nvidia") for one in folder.iterdir())


class TestDigest:
    NBYTES = GIB + 12_345

    @contextmanager
    def sealed(self, broker: gdrpy.Broker, device: int) -> Iterator[gdrpy.BrokerRegion]:
        """A region, open with its GPU view."""
        content = np.random.default_rng(device).integers(0, 256, self.NBYTES, np.uint8)
        with broker.put("digested", content, device, seal=True) as region:
            yield region

    def test_is_of_the_bytes_that_cuda_reads_and_takes_little_gpu_memory(self, device, tmp_path):
        path = str(tmp_path / "broker.sock")
        with serving(path) as server, gdrpy.connect(path) as broker:
            with self.sealed(broker, device) as region:
                expected = hashlib.sha256(region.read(via="dma")).hexdigest()
                before, _ = memory(device)
                assert region.digest() == expected
                assert before - memory(device)[0] <= 4 << 20
            server.terminate()
            assert server.wait() == 0
        assert "through a mapping" not in Path(f"{path}.log").read_text()

    def test_is_exact_if_the_broker_is_killed_amid_it(self, device, tmp_path):
        path = str(tmp_path / "broker.sock")
        found: list[str] = []
        with serving(path) as server, gdrpy.connect(path, reconnect=60) as broker:
            with self.sealed(broker, device) as region:
                expected = hashlib.sha256(region.read(via="dma")).hexdigest()
                before = nodes(server.pid)
                asking = threading.Thread(target=lambda: found.append(region.digest()))
                asking.start()
                while nodes(server.pid) == before:
                    time.sleep(0.001)
                os.kill(server.pid, signal.SIGKILL)
                server.wait()
                with serving(path) as server:
                    asking.join()
                    assert found == [expected]
            broker.delete("digested")
            server.terminate()
            assert server.wait() == 0
