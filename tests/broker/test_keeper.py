"""The keeper: a process that holds descriptors for whoever is the broker."""

from __future__ import annotations

import errno
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokers import BROKER_UID, Broker, await_descriptors, await_end, descriptors
from gdrpy.broker import unix as _unix
from gdrpy.broker.server import keeper, store
from gdrpy.broker.server.store import KeeperStore
from gdrpy.errors import OutOfMemory

MANY = 1000


class KeeperProcess:
    """A keeper of the test's own."""

    def __init__(self, path: Path, linger: float, *prefix: str) -> None:
        self.path = str(path)
        with _unix.listen(self.path, 0o600, backlog=4) as listener:
            self.process = subprocess.Popen(
                [
                    *prefix,
                    sys.executable,
                    "-m",
                    keeper.__name__,
                    self.path,
                    str(linger),
                    str(listener.fileno()),
                ],
                pass_fds=[listener.fileno()],
            )
        self.before: list[str] = []

    def connect(self) -> socket.socket:
        """Be a broker."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.connect(self.path)
        _unix.set_timeout(sock, 20)
        return sock

    def wait(self) -> int:
        """Its exit status, when it has ended."""
        return self.process.wait(20)


@pytest.fixture
def kept() -> Iterator[KeeperProcess]:
    """A keeper that waits for the next broker for as long as the test takes."""
    with tempfile.TemporaryDirectory() as folder:
        made = KeeperProcess(Path(folder) / "keeper", 60)
        yield made
        made.process.kill()
        made.process.wait()


def hold(broker: socket.socket, key: str, content: bytes = b"") -> None:
    fd = os.memfd_create("kept")
    os.write(fd, content or key.encode())
    _unix.send(broker, keeper.HOLD + key.encode(), [fd])
    os.close(fd)


def given(broker: socket.socket) -> dict[str, bytes]:
    """All that a keeper gives: its keys, and what their memory has."""
    _unix.send(broker, keeper.GIVE, [])
    found: dict[str, bytes] = {}
    while True:
        packet, fds = _unix.receive(broker, keeper.PACKET_LIMIT, _unix.MAX_FDS)
        if not fds:
            assert packet
            return found
        for key, fd in zip(packet.decode().split("\0"), fds, strict=True):
            assert key not in found
            found[key] = os.pread(fd, 100, 0)
            os.close(fd)


class TestKeeper:
    def test_gives_what_it_was_told_to_hold(self, kept: KeeperProcess) -> None:
        with kept.connect() as broker:
            assert given(broker) == {}
            hold(broker, "r1")
            hold(broker, "r2")
            assert given(broker) == {"r1": b"r1", "r2": b"r2"}
            assert given(broker) == {"r1": b"r1", "r2": b"r2"}

    def test_holds_the_later_of_two_of_one_key(self, kept: KeeperProcess) -> None:
        with kept.connect() as broker:
            hold(broker, "r1", b"first")
            hold(broker, "r1", b"second")
            assert given(broker) == {"r1": b"second"}

    def test_drops_what_it_is_told_to_and_closes_it(self, kept: KeeperProcess) -> None:
        with kept.connect() as broker:
            given(broker)
            before = descriptors(kept.process.pid)
            hold(broker, "r1")
            _unix.send(broker, keeper.DROP + b"r1", [])
            _unix.send(broker, keeper.DROP + b"never held", [])
            assert given(broker) == {}
            await_descriptors(kept.process.pid, before)

    def test_holds_a_thousand_and_more(self, kept: KeeperProcess) -> None:
        keys = {f"r{number}" for number in range(MANY + 7)}
        resource.prlimit(kept.process.pid, resource.RLIMIT_NOFILE, (4096, 4096))
        with kept.connect() as broker:
            for key in keys:
                hold(broker, key)
            found = given(broker)
        assert found == {key: key.encode() for key in keys}

    def test_holds_as_many_as_its_hard_limit_allows(self, tmp_path: Path) -> None:
        """An engine may start it, in a container, with a lower limit than the broker's."""
        keys = {f"r{number}" for number in range(100)}
        kept = KeeperProcess(tmp_path / "keeper", 60, "prlimit", "--nofile=64:4096")
        try:
            with kept.connect() as broker:
                for key in keys:
                    hold(broker, key)
                assert given(broker) == {key: key.encode() for key in keys}
        finally:
            kept.process.kill()
            kept.process.wait()

    def test_keeps_everything_for_the_next_broker(self, kept: KeeperProcess) -> None:
        with kept.connect() as broker:
            hold(broker, "r1")
        with kept.connect() as broker:
            hold(broker, "r2")
            assert given(broker) == {"r1": b"r1", "r2": b"r2"}

    def test_has_a_second_broker_wait_until_the_first_is_gone(self, kept: KeeperProcess) -> None:
        with kept.connect() as first, kept.connect() as second:
            given(first)
            _unix.send(second, keeper.GIVE, [])
            hold(first, "r1")
            assert given(first) == {"r1": b"r1"}
            assert not select.select([second], [], [], 0.1)[0]
            first.close()
            packet, fds = _unix.receive(second, keeper.PACKET_LIMIT, _unix.MAX_FDS)
            assert (packet, len(fds)) == (b"r1", 1)
            _unix.close_all(fds)

    def test_ends_when_told_to(self, kept: KeeperProcess) -> None:
        with kept.connect() as broker:
            hold(broker, "r1")
            _unix.send(broker, keeper.END, [])
            assert kept.wait() == 0

    def test_ends_when_told_to_by_a_broker_that_removed_its_socket_meanwhile(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "keeper"
        listener = _unix.listen(str(path), 0o600, backlog=4)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as broker:
            broker.connect(str(path))
            _unix.send(broker, keeper.END, [])
            path.unlink()
            keeper.main(listener.detach(), 2)
            assert broker.recv(1) == b""
        assert not path.exists()

    def test_ends_when_no_broker_comes(self, tmp_path: Path) -> None:
        kept = KeeperProcess(tmp_path / "keeper", 0.05)
        with kept.connect() as broker:
            hold(broker, "r1")
            given(broker)
        assert kept.wait() == 0

    @pytest.mark.parametrize(
        "packet",
        [b"\xff", b"h", b"HOLD without", keeper.HOLD, bytes(9000), b"H" + b"x" * 9000],
    )
    def test_closes_the_connection_of_who_sends_garbage_and_keeps_all(
        self, packet: bytes, kept: KeeperProcess
    ) -> None:
        with kept.connect() as broker:
            hold(broker, "r1")
        with kept.connect() as broker:
            broker.send(packet)
            with pytest.raises((ConnectionError, AssertionError)):
                given(broker)
        with kept.connect() as broker:
            assert given(broker) == {"r1": b"r1"}

    def test_closes_descriptors_that_come_with_garbage(self, kept: KeeperProcess) -> None:
        with kept.connect() as broker:
            given(broker)
        read, write = os.pipe()
        for packet, count in ((b"?", 1), (b"H", 3), (b"H", 253), (b"H", 2), (b"D", 1), (b"G", 1)):
            with kept.connect() as broker:
                _unix.send(broker, packet, [write] * count)
        with kept.connect() as broker:
            given(broker)
        os.close(write)
        assert os.read(read, 1) == b"", "the keeper still has the pipe"
        os.close(read)

    def test_serves_nobody_else(self, kept: KeeperProcess, as_user: object) -> None:
        with kept.connect() as broker:
            hold(broker, "r1")
        Path(kept.path).chmod(0o777)
        Path(kept.path).parent.chmod(0o755)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.setgroups([])
                os.setresgid(BROKER_UID, BROKER_UID, BROKER_UID)
                os.setresuid(BROKER_UID, BROKER_UID, BROKER_UID)
                try:
                    with kept.connect() as thief:
                        given(thief)
                except (ConnectionError, AssertionError):
                    status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        with kept.connect() as broker:
            assert given(broker) == {"r1": b"r1"}


@pytest.fixture
def as_user() -> None:
    """That tests may be other users."""
    if os.geteuid() != 0:
        pytest.skip("being another user needs CAP_SETUID")


class TestBrokersKeeper:
    """What a broker does about its keeper."""

    def test_that_is_killed_before_it_answers_is_replaced(self, kept: KeeperProcess) -> None:
        with kept.connect() as broker:
            assert given(broker) == {}  # it listens
        os.kill(kept.process.pid, signal.SIGSTOP)
        store = KeeperStore(kept.path, 60)
        kept.process.kill()
        kept.wait()
        assert store.recover() == {}
        with tempfile.TemporaryFile() as file:
            store.hold("r1", file.fileno())
        again = store.recover()
        assert list(again) == ["r1"]
        os.close(again["r1"])
        store.end()

    def test_that_is_killed_is_replaced_by_one_that_holds_everything(self, broker: Broker) -> None:
        with broker.client() as client:
            client.allocate("host").write(b"host")
            client.allocate("gpu", device=0).write(b"gpu")
            for _ in range(3):
                first = broker.keeper
                os.kill(first, signal.SIGKILL)
                await_end(first)
                client.ok("status")
                broker.restart()
                client.reopen()
                assert broker.keeper != first
                assert client.get("host").bytes(4) == b"host"
                assert client.get("gpu").bytes(3) == b"gpu"

    def test_that_is_killed_between_two_requests_costs_none_of_them(self, broker: Broker) -> None:
        with broker.client() as client:
            for number in range(10):
                keeper_before = broker.keeper
                os.kill(keeper_before, signal.SIGKILL)
                await_end(keeper_before)
                client.allocate(f"region-{number}").write(str(number).encode())
            assert broker.keeper  # another one: to lose both at once is to lose all
            client.ok("status")
            broker.restart()
            client.reopen()
            for number in range(10):
                assert client.get(f"region-{number}").bytes(1) == str(number).encode()

    def test_that_is_stopped_costs_no_request_while_it_can_queue_them(self, broker: Broker) -> None:
        with broker.client() as client:
            os.kill(broker.keeper, signal.SIGSTOP)
            client.allocate("a").write(b"a")
            client.ok("delete", name="a")
            client.allocate("b").write(b"b")
            os.kill(broker.keeper, signal.SIGCONT)
            broker.restart()
            client.reopen()
            assert set(client.names()) == {"b"}

    def test_that_is_stopped_for_good_is_replaced_and_ends_when_it_goes_on(
        self, broker: Broker
    ) -> None:
        with broker.client(timeout=60) as client:
            stopped = broker.keeper
            os.kill(stopped, signal.SIGSTOP)
            number = 0
            while broker.keepers() == [stopped]:
                for _ in range(100):
                    client.allocate(f"region-{number}").write(str(number).encode())
                    number += 1
                assert number < 2000
            os.kill(stopped, signal.SIGCONT)
            await_end(stopped)
            broker.restart()
            client.reopen()
            assert len(client.names()) == number
            assert client.get("region-0").bytes(1) == b"0"

    def test_has_no_stream_of_the_brokers(self, broker: Broker) -> None:
        streams = descriptors(broker.keeper)[:3]
        assert streams == [os.devnull] * 3


class TestDescriptorForTheKeeper:
    @pytest.fixture
    def full(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        """Too many descriptors are in flight; for how long was slept."""

        def send(*_: object) -> None:
            raise OSError(errno.ETOOMANYREFS, os.strerror(errno.ETOOMANYREFS))

        slept: list[float] = []
        monkeypatch.setattr(store._packet, "send", send)
        monkeypatch.setattr(time, "sleep", slept.append)
        return slept

    def test_is_not_waited_for_while_too_many_are_in_flight(self, full: list[float]) -> None:
        kept = object.__new__(KeeperStore)
        kept._keeper = socket.socket()
        with kept._keeper, pytest.raises(OutOfMemory, match="in flight to clients that do not"):
            kept.hold("r1", 0)
        assert full == []

    def test_is_waited_for_by_who_hands_a_new_one_everything(self, full: list[float]) -> None:
        with socket.socket() as sock, pytest.raises(OutOfMemory):
            store.send_within(0.01, sock, b"", [0])
        assert len(full) > 1
