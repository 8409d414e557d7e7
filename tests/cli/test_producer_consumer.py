"""Two processes and one region: ``gdrpy producer`` and ``gdrpy consumer``."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

import gdrpy
from gdrpy.cli import handover, main
from gdrpy.cli.handover import rendezvous
from gdrpy.cli.handover.steps import pattern

TIMEOUT = 20.0
COUNT = 1000

StartProducer = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "meet.sock"


@pytest.fixture
def start_producer(checkout: Path, path: Path) -> Iterator[StartProducer]:
    """Starts a producer as a program of its own; it listens when this returns."""
    with ExitStack() as undo:

        def start(*words: str) -> subprocess.Popen[str]:
            command = [sys.executable, "-m", "gdrpy", "producer", "--socket", str(path), *words]
            producer = undo.enter_context(
                subprocess.Popen(
                    command,
                    cwd=checkout,
                    env=os.environ | {"GDRPY_SIM": "1"},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            undo.callback(producer.kill)
            assert producer.stdout is not None
            while "Listening at" not in producer.stdout.readline():
                assert producer.poll() is None
            return producer

        yield start


@pytest.fixture
def listening(path: Path) -> Iterator[socket.socket]:
    """A producer of the test's own, to misbehave with."""
    with ExitStack() as undo:
        listener, _ = rendezvous.listen(path, undo)
        yield listener


@pytest.fixture
def region() -> Iterator[gdrpy.Region]:
    with gdrpy.alloc(4 * COUNT) as region:
        region.write(pattern(COUNT))
        yield region


def start_consumer(checkout: Path, path: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "gdrpy", "consumer", "--socket", str(path), *words],
        cwd=checkout,
        env=os.environ | {"GDRPY_SIM": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


class TestPattern:
    def test_is_the_agreed_one_and_wraps(self):
        assert pattern(3).tolist() == [(i * 2 + 1337) ^ 0xDEADBEEF for i in range(3)]
        assert pattern(262_144)[-1] == (262_143 * 2 + 1337) ^ 0xDEADBEEF
        assert pattern(3).dtype == np.dtype("<u4")


class TestHandover:
    @pytest.mark.parametrize("views", [[], ["--cpu"]])
    def test_gives_the_consumer_the_same_bytes(self, start_producer, checkout, path, views):
        producer = start_producer()
        consumer = start_consumer(checkout, path, *views)
        told, complaints = consumer.communicate(timeout=TIMEOUT)
        assert (consumer.returncode, complaints) == (0, "")
        assert "simulated GPU" in told
        assert "Compared 262144 integers: all right" in told
        assert [line.split(".")[0] for line in told.splitlines() if line[0] != " "] == list(
            "1234567"
        )
        rest, complaints = producer.communicate(timeout=TIMEOUT)
        assert (producer.returncode, complaints) == (0, "")
        assert f"Process {consumer.pid} connected" in rest
        assert "It answered: the data is right" in rest
        assert not path.exists()

    def test_tells_it_all_as_json(self, start_producer, capsys, path):
        producer = start_producer("--count", str(COUNT))
        assert main(["consumer", "--json", "--socket", str(path)]) == 0
        result = json.loads(capsys.readouterr().out)
        assert result["verified"] is True
        assert result["size"] == 4 * COUNT
        assert result["header"]["simulated"] is True
        assert len(result["steps"]) == 7
        producer.communicate(timeout=TIMEOUT)
        assert producer.returncode == 0

    def test_replaces_the_socket_of_a_killed_producer(self, start_producer, path):
        first = start_producer()
        first.kill()
        first.communicate(timeout=TIMEOUT)
        assert path.is_socket()
        second = start_producer()
        assert main(["consumer", "--cpu", "--socket", str(path)]) == 0
        second.communicate(timeout=TIMEOUT)
        assert second.returncode == 0

    def test_leaves_a_second_producer_no_socket(self, start_producer, capsys, path):
        first = start_producer()
        assert main(["producer", "--socket", str(path)]) == 2
        assert "another program listens" in capsys.readouterr().err
        assert main(["consumer", "--cpu", "--socket", str(path)]) == 0
        first.communicate(timeout=TIMEOUT)
        assert first.returncode == 0


class TestConsumer:
    @pytest.fixture(autouse=True)
    def nothing_leaks(self, listening, no_descriptors_leak):
        """No refusal may leave a descriptor open."""

    @pytest.fixture
    def consumer(self, checkout, path) -> Iterator[subprocess.Popen[str]]:
        with start_consumer(checkout, path, "--cpu") as consumer:
            yield consumer
            consumer.kill()

    def outcome(self, consumer: subprocess.Popen[str]) -> tuple[int, str]:
        _, complaints = consumer.communicate(timeout=TIMEOUT)
        return consumer.returncode, complaints

    def test_without_gpu_view_never_loads_cuda(self, listening, region, path, checkout):
        script = (
            "import sys; from pathlib import Path; from gdrpy.cli import main\n"
            "status = main(sys.argv[1:])\n"
            "assert 'libcuda' not in Path('/proc/self/maps').read_text()\n"
            "sys.exit(status)"
        )
        command = [sys.executable, "-c", script, "consumer", "--cpu", "--socket", str(path)]
        with (
            subprocess.Popen(command, cwd=checkout, stdout=subprocess.DEVNULL) as consumer,
            rendezvous.accept(listening, TIMEOUT) as peer,
        ):
            self.offer(peer, region, region.nbytes)
            assert handover.receive_answer(peer)
        assert consumer.returncode == 0

    def test_finds_the_first_wrong_byte_and_says_no(self, listening, region, consumer):
        wrong = 4 * 777 + 2
        region.write(bytes([region.read(1, wrong)[0] ^ 0x80]), wrong)
        with rendezvous.accept(listening, TIMEOUT) as peer:
            self.offer(peer, region, region.nbytes)
            assert not handover.receive_answer(peer)
        status, complaints = self.outcome(consumer)
        assert status == 1
        assert f"first differing byte at offset {wrong}: expected" in complaints
        assert "1 of 4000 bytes differ" in complaints

    def test_refuses_a_size_larger_than_the_allocation(self, listening, region, consumer):
        with rendezvous.accept(listening, TIMEOUT) as peer:
            self.offer(peer, region, region.allocation_size + 4)
            assert not handover.receive_answer(peer)
        status, complaints = self.outcome(consumer)
        assert status == 1
        assert "2097156 bytes were asked for, and the allocation has 2097152" in complaints

    def test_refuses_half_an_integer(self, listening, region, consumer):
        with rendezvous.accept(listening, TIMEOUT) as peer:
            self.offer(peer, region, 6)
            assert not handover.receive_answer(peer)
        status, complaints = self.outcome(consumer)
        assert status == 1
        assert "6 bytes are not a whole number of 32-bit integers" in complaints

    def test_refuses_a_descriptor_of_something_else(self, listening, checkout, path):
        with start_consumer(checkout, path, "--cpu", "--backend", "sim") as consumer:
            with rendezvous.accept(listening, TIMEOUT) as peer, Path("/dev/null").open() as file:
                handover.send_offer(peer, 4, file.fileno())
                assert not handover.receive_answer(peer)
            status, complaints = self.outcome(consumer)
        assert status == 1
        assert "is /dev/null, not an allocation of the simulated GPU" in complaints

    def test_says_that_the_producer_died(self, listening, consumer):
        rendezvous.accept(listening, TIMEOUT).close()
        assert self.outcome(consumer) == (
            1,
            "error: the peer closed the connection instead of sending OFFER\n",
        )

    def test_says_that_there_is_none(self, capsys, tmp_path):
        assert main(["consumer", "--socket", str(tmp_path / "nobody.sock")]) == 2
        assert "start 'gdrpy producer' first" in capsys.readouterr().err

    def offer(self, peer: socket.socket, region: gdrpy.Region, nbytes: int) -> None:
        fd = region.export()
        try:
            handover.send_offer(peer, nbytes, fd)
        finally:
            os.close(fd)


class TestProducer:
    def test_says_that_the_consumer_died(self, start_producer, path):
        producer = start_producer("--count", "1")
        rendezvous.connect(path, TIMEOUT).close()
        _, complaints = producer.communicate(timeout=TIMEOUT)
        assert producer.returncode == 1
        assert complaints in (
            "error: the peer closed the connection instead of sending ANSWER\n",
            "error: the peer is gone (Broken pipe)\n",
            "error: the peer is gone (Connection reset by peer)\n",
        )
        assert not path.exists()

    def test_fails_when_the_consumer_says_that_the_data_is_wrong(self, start_producer, path):
        producer = start_producer("--count", "1")
        with rendezvous.connect(path, TIMEOUT) as peer:
            _, fd = handover.receive_offer(peer)
            os.close(fd)
            handover.send_answer(peer, False)
        told, _ = producer.communicate(timeout=TIMEOUT)
        assert producer.returncode == 1
        assert "It answered: the data is WRONG" in told

    def test_says_that_nobody_came(self, capsys, path):
        words = ["producer", "--count", "1", "--socket", str(path), "--timeout", "0.01"]
        assert main(words) == 1
        assert "no consumer came within 0.01 s" in capsys.readouterr().err
        assert not path.exists()
