"""A broker that copies by the engine, on the simulated resource manager."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import gdrpy
from serving import BrokerProcess, StartServing, broker_process, start_serving

__all__ = ["broker_process", "start_serving"]

ON_NVRM = {"GDRPY_SIM": "1", "GDRPY_BACKEND": "nvrm"}
MIB = 1 << 20

#: Runs a command, and prints its status and whether the process has CUDA. Its grants are writable,
#: since the engine takes in no memory by a read-only descriptor, which a real GPU's does not have.
COMMAND = """
import os, sys, gdrpy
from gdrpy.cli import main
get = gdrpy.Broker.get
gdrpy.Broker.get = lambda *args, **options: get(*args, **(options | {"readonly": False}))
out = os.dup(1)
os.dup2(2, 1)
status = main(sys.argv[1:])
sys.stdout.flush()
os.dup2(out, 1)
print(status, "cuda.bindings" in sys.modules)
"""


class TestBroker:
    #: What a broker logs of a digest that the engine does not make.
    FALLBACK = "a digest reads GPU memory through a mapping"

    @contextmanager
    def serving(
        self, start: StartServing, library: Path, **environment: str
    ) -> Iterator[tuple[BrokerProcess, gdrpy.Broker]]:
        """A broker behind the simulated resource manager; its client is not."""
        process = start(LD_PRELOAD=str(library), **ON_NVRM, **environment)
        with gdrpy.connect(process.socket) as client:
            yield process, client
        assert "fakerm: violation" not in process.log

    def put(self, client: gdrpy.Broker, name: str, nbytes: int, device: int | str = 0) -> str:
        """The digest of random bytes that are now in a sealed region."""
        content = random.Random(name).randbytes(nbytes)
        client.put(name, content, device, seal=True, gpu=False).close()
        return hashlib.sha256(content).hexdigest()

    def test_makes_digests_by_the_engine(
        self, start_serving: StartServing, resource_manager_library: Path
    ) -> None:
        with self.serving(start_serving, resource_manager_library) as (process, client):
            for name, nbytes in (("one", 20 * MIB + 7), ("other", 5)):
                expected = self.put(client, name, nbytes)
                assert client.get(name, gpu=False).digest() == expected
            assert self.FALLBACK not in process.log

    def test_serves_on_when_the_engine_is_lost_amid_a_digest(
        self, start_serving: StartServing, resource_manager_library: Path
    ) -> None:
        faults = "ENGINE:6:31,ENGINE:7:79"
        serving = self.serving(start_serving, resource_manager_library, FAKE_RM_FAULT=faults)
        with serving as (process, client):
            for name in ("one", "other"):
                expected = self.put(client, name, 40 * MIB + 1)
                assert client.get(name, gpu=False).digest() == expected
            assert process.log.count("as ordered") == 2
            assert self.FALLBACK in process.log

    def test_makes_digests_of_host_memory_and_without_an_engine(
        self, start_serving: StartServing, resource_manager_library: Path
    ) -> None:
        serving = self.serving(start_serving, resource_manager_library, FAKE_RM_NO_COPY="1")
        with serving as (process, client):
            expected = self.put(client, "host", 9 * MIB, "cpu")
            assert client.get("host").digest() == expected
            assert self.FALLBACK not in process.log
            expected = self.put(client, "gpu", 9 * MIB)
            assert client.get("gpu", gpu=False).digest() == expected
            assert process.log.count(self.FALLBACK) == 1

    def test_that_is_killed_leaves_the_next_one_an_engine(
        self, start_serving: StartServing, resource_manager_library: Path
    ) -> None:
        with self.serving(start_serving, resource_manager_library) as (process, client):
            first = self.put(client, "one", 20 * MIB)
            second = self.put(client, "other", 20 * MIB)
            assert client.get("one", gpu=False).digest() == first
            process.restart()
            assert client.get("other", gpu=False).digest() == second
            assert client.get("one", gpu=False).digest() == first
            assert self.FALLBACK not in process.log

    def test_whose_keeper_is_replaced_keeps_its_engine(
        self, start_serving: StartServing, resource_manager_library: Path
    ) -> None:
        with self.serving(start_serving, resource_manager_library) as (process, client):
            first = self.put(client, "one", 20 * MIB)
            second = self.put(client, "other", 20 * MIB)
            assert client.get("one", gpu=False).digest() == first
            process.errors_expected = True
            [keeper] = set(process.family()) - {process.pid}
            os.kill(keeper, signal.SIGKILL)
            assert client.get("other", gpu=False).digest() == second
            while not set(process.family()) - {process.pid, keeper}:
                time.sleep(0.01)
            assert self.FALLBACK not in process.log


class TestClientWithoutCuda:
    """A client behind the simulated resource manager, and the broker without it."""

    def run(self, library: Path, *command: str) -> str:
        """What it prints; it must use the engine, which is lost once after its self-check."""
        about = {"LD_PRELOAD": str(library), "FAKE_RM_FAULT": "ENGINE:4:31", **ON_NVRM}
        done = subprocess.run(
            [sys.executable, *command],
            env={**os.environ, **about},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("as ordered") == 1, done.stderr
        return done.stdout

    def test_reads_a_region_and_makes_no_cuda(
        self, broker_process: BrokerProcess, resource_manager_library: Path
    ) -> None:
        code = (
            "import hashlib, sys, gdrpy; broker = gdrpy.connect(sys.argv[1]);"
            "data = broker.get('one', gpu=False).read();"
            "print(hashlib.sha256(data).hexdigest(), 'cuda.bindings' in sys.modules)"
        )
        content = random.Random(1).randbytes(20 * MIB + 5)
        with gdrpy.connect(broker_process.socket) as client:
            client.put("one", content).close()
            told = self.run(resource_manager_library, "-c", code, broker_process.socket)
        assert told == f"{hashlib.sha256(content).hexdigest()} False\n"

    @pytest.mark.parametrize("nbytes", [20 * MIB + 5, 256 * MIB + 7])
    def test_saves_a_region_to_a_file_and_makes_no_cuda(
        self,
        nbytes: int,
        broker_process: BrokerProcess,
        resource_manager_library: Path,
        tmp_path: Path,
    ) -> None:
        content = np.random.default_rng(4).bytes(nbytes)
        path = tmp_path / "saved"
        with gdrpy.connect(broker_process.socket) as client:
            client.put("one", content).close()
            words = ("get", "one", str(path), "--socket", broker_process.socket)
            assert self.run(resource_manager_library, "-c", COMMAND, *words) == "0 False\n"
        assert path.read_bytes() == content

    def test_restores_a_large_region_from_a_file_and_makes_no_cuda(
        self, broker_process: BrokerProcess, resource_manager_library: Path, tmp_path: Path
    ) -> None:
        content = np.random.default_rng(5).bytes(256 * MIB + 7)
        path = tmp_path / "saved"
        path.write_bytes(content)
        words = ("put", "one", "--socket", broker_process.socket, "--seal", str(path))
        assert self.run(resource_manager_library, "-c", COMMAND, *words) == "0 False\n"
        with gdrpy.connect(broker_process.socket) as client:
            assert client.get("one", gpu=False).read() == content

    def test_copies_a_region_to_a_new_one_and_makes_no_cuda(
        self, broker_process: BrokerProcess, resource_manager_library: Path
    ) -> None:
        code = (
            "import sys, gdrpy; broker = gdrpy.connect(sys.argv[1]);"
            "region = broker.get('one', gpu=False); gdrpy.Region.readinto = None;"
            "broker.put('other', region, gpu=False).close(); "
            "broker.put('other', region, gpu=False); print('cuda.bindings' in sys.modules)"
        )
        content = random.Random(6).randbytes(3 * MIB + 5)
        with gdrpy.connect(broker_process.socket) as client:
            client.put("one", content).close()
            told = self.run(resource_manager_library, "-c", code, broker_process.socket)
            assert told == "False\n"
            assert client.get("other", gpu=False).read() == content

    def test_loads_a_file_of_tensors(
        self,
        broker_process: BrokerProcess,
        resource_manager_library: Path,
        tmp_path: Path,
    ) -> None:
        content = np.random.default_rng(2).integers(0, 256, 270 * MIB + 7, np.uint8)
        path = tmp_path / "model.safetensors"
        save_file({"a": content[: 100 * MIB], "b": content[100 * MIB :]}, path)
        words = ("-m", "gdrpy", "load", "--socket", broker_process.socket)
        self.run(resource_manager_library, *words, "--seal", "--digest", str(path), "one")
        with gdrpy.connect(broker_process.socket) as client:
            found = client.tensors("one", gpu=False)
            assert np.array_equal(found["a"].numpy(), content[: 100 * MIB])
            assert np.array_equal(found["b"].numpy(), content[100 * MIB :])

    def test_publishes_tensors_again_and_makes_no_cuda(
        self, broker_process: BrokerProcess, resource_manager_library: Path
    ) -> None:
        code = (
            "import sys, gdrpy; broker = gdrpy.connect(sys.argv[1]);"
            "tensors = broker.tensors('one', gpu=False); gdrpy.Region.readinto = None;"
            "broker.put_tensors('other', tensors, gpu=False);"
            "print('cuda.bindings' in sys.modules)"
        )
        content = np.random.default_rng(3).integers(0, 256, 3 * MIB, np.uint8)
        halves = {"a": content[: MIB + 3], "b": content[MIB + 3 :]}
        with gdrpy.connect(broker_process.socket) as client:
            client.put_tensors("one", halves).close()
            told = self.run(resource_manager_library, "-c", code, broker_process.socket)
            assert told == "False\n"
            found = client.tensors("other", gpu=False)
            for name, half in halves.items():
                assert np.array_equal(found[name].numpy(), half)
