"""Leases of a process that has begun to exit: its GPU work may go on until it is gone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from gdrpy.broker.server import loop, orphans, peers, rights
from gdrpy.broker.server.digests import Digests
from gdrpy.broker.server.peers import is_ending
from gdrpy.broker.server.rights import Identity
from gdrpy.broker.server.table import Session
from rawclient import RawClient
from threaded import MemoryStore, in_thread

#: Holds a region by some connections, gives these up when told to, and lives until its stdin ends.
HOLDER = """
import sys
from rawclient import RawClient
clients = [RawClient(sys.argv[1]) for _ in range(int(sys.argv[2]))]
for client in clients:
    client.get("kv", readonly=False).close()
print("holds", flush=True)
sys.stdin.readline()
for client in clients:
    client.close()
print("closed", flush=True)
sys.stdin.readline()
"""

#: Has its main thread end, and connects, holds and closes in another one.
LEADERLESS = """
import ctypes, os, sys, threading
from rawclient import RawClient
def work(leader):
    while "(zombie)" not in open(f"/proc/{leader}/status").read():
        pass
    with RawClient(sys.argv[1]) as client:
        kept = client.get("kv", readonly=False)
    print("closed", flush=True)
    os.read(0, 1)
threading.Thread(target=work, args=(os.getpid(),)).start()
ctypes.CDLL(None).syscall(60, 0)
"""


#: Has a connection give back its leases, or wake its sleepers, where the broker does not read it,
#: resumes it by another one that takes nothing over, and lives until its stdin ends.
RESUMER = """
import sys
import msgpack
from rawclient import RawClient
first, second = RawClient(sys.argv[1]), RawClient(sys.argv[1])
regions = [first.allocate(f"region {number}")["region"] for number in range(150)]
if sys.argv[2] == "asleep":
    packet = {"op": "release", "regions": regions, "asleep": regions}
    first.send_bytes(msgpack.packb(packet))
first.ok("seal", region=first.allocate("sealed")["region"])
first.send("digest", region=first.get("sealed")["region"])
awake = {"regions": [], "awake": regions}
given = awake if sys.argv[2] == "asleep" else {"regions": regions[:65]}
first.send_bytes(msgpack.packb({"op": "release", **given}))
second.ok("resume", session=first.session, leases=[])
print("resumed", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    """What the next broker finds."""
    store = MemoryStore()
    yield store
    store.close()


@pytest.fixture
def path(tmp_path: Path, store: MemoryStore) -> Iterator[str]:
    """A broker in a thread of this process."""
    with in_thread(str(tmp_path / "s"), 0.0, store) as path:
        yield path


@pytest.fixture
def unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the broker see no process, and keep the leases of closed connections for a moment."""
    monkeypatch.setattr(loop, "is_ending", lambda process: None)
    monkeypatch.setattr(loop, "_UNSEEN", 0.2)


@pytest.fixture
def holder(path: str, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the region "kv"."""
    with (
        RawClient(path) as maker,
        subprocess.Popen(
            [sys.executable, "-c", HOLDER, path, str(getattr(request, "param", 1))],
            cwd=Path(__file__).parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        made = maker.allocate("kv")
        maker.release(made["region"])
        made.close()
        assert process.stdout is not None
        try:
            yield process
        finally:
            process.kill()
            maker.ok("delete", name="kv")  # its memory would stay in this process


def step(process: subprocess.Popen[str], expected: str) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == f"{expected}\n"


def writers(client: RawClient) -> int:
    found: int = client.ok("stat", name="kv")["writers"]
    return found


def until_without(client: RawClient) -> int:
    """How many writers are left once there are none, or in the end."""
    deadline = time.monotonic() + 20
    while writers(client) and time.monotonic() < deadline:
        time.sleep(0.001)
    return writers(client)


def descriptors() -> int:
    """The number of descriptors of this process, in which the broker runs."""
    return len(list(Path("/proc/self/fd").iterdir()))


class TestLease:
    def test_of_a_dying_process_ends_when_it_is_gone(self, path, holder, monkeypatch):
        monkeypatch.setattr(loop, "is_ending", lambda who: True)
        with RawClient(path) as other:
            assert holder.stdout.readline() == "holds\n"
            step(holder, "closed")
            assert [writers(other) for _ in range(20)] == [1] * 20
            holder.kill()
            assert until_without(other) == 0

    def test_of_a_process_that_lives_on_ends_with_its_connection(self, path, holder):
        with RawClient(path) as other:
            assert holder.stdout.readline() == "holds\n"
            step(holder, "closed")
            assert until_without(other) == 0
            assert holder.poll() is None

    def test_of_a_process_whose_main_thread_has_ended_ends_with_its_connection(self, path):
        with RawClient(path) as other:
            made = other.allocate("kv")
            other.release(made["region"])
            made.close()
            with subprocess.Popen(
                [sys.executable, "-c", LEADERLESS, path],
                cwd=Path(__file__).parent,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            ) as process:
                assert process.stdout is not None
                assert process.stdout.readline() == "closed\n"
                assert until_without(other) == 0
                assert process.poll() is None
                process.kill()
            other.ok("delete", name="kv")

    @pytest.mark.parametrize("holder", [50], indirect=True)
    def test_of_many_connections_of_a_dying_process_costs_one_descriptor(
        self, path, holder, monkeypatch
    ):
        monkeypatch.setattr(loop, "is_ending", lambda who: True)
        with RawClient(path) as other:
            assert holder.stdout.readline() == "holds\n"
            assert writers(other) == 50
            before = descriptors()
            step(holder, "closed")
            deadline = time.monotonic() + 20
            while descriptors() > before - 50 and time.monotonic() < deadline:
                time.sleep(0.001)
            assert (descriptors(), other.ok("status")["leases"]) == (before - 50, 50)
            holder.kill()
            assert until_without(other) == 0

    @pytest.mark.parametrize("holder", [5], indirect=True)
    def test_of_a_dying_process_is_kept_for_so_many_connections(self, path, holder, monkeypatch):
        monkeypatch.setattr(loop, "is_ending", lambda who: True)
        monkeypatch.setattr(orphans, "PROCESS_CONNECTIONS", 3)
        with RawClient(path) as other:
            assert holder.stdout.readline() == "holds\n"
            step(holder, "closed")
            deadline = time.monotonic() + 20
            while writers(other) != 3 and time.monotonic() < deadline:
                time.sleep(0.001)
            assert [writers(other) for _ in range(20)] == [3] * 20
            holder.kill()
            assert until_without(other) == 0

    def test_of_a_killed_process_ends(self, path, holder):
        with RawClient(path) as other:
            assert holder.stdout.readline() == "holds\n"
            assert writers(other) == 1
            holder.kill()
            assert until_without(other) == 0


@contextmanager
def running(program: str, path: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A client's program, which is killed at the end."""
    with subprocess.Popen(
        [sys.executable, "-c", program, path, *words],
        cwd=Path(__file__).parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.usefixtures("unseen")
class TestProcessUnseen:
    """As one of another PID namespace."""

    def test_keeps_the_lease_of_a_closed_connection_until_it_ends(self, path, holder, monkeypatch):
        monkeypatch.setattr(loop, "_UNSEEN", 60.0)
        with RawClient(path) as other:
            assert holder.stdout.readline() == "holds\n"
            step(holder, "closed")
            assert [writers(other) for _ in range(20)] == [1] * 20
            holder.kill()
            assert until_without(other) == 0

    def test_keeps_it_no_longer_than_for_a_while(self, path, holder):
        with RawClient(path) as other:
            assert holder.stdout.readline() == "holds\n"
            step(holder, "closed")
            assert until_without(other) == 0
            assert holder.poll() is None

    def test_keeps_it_no_longer_if_the_broker_restarts(self, tmp_path, store, monkeypatch):
        monkeypatch.setattr(loop, "_UNSEEN", 60.0)
        first, second = str(tmp_path / "first"), str(tmp_path / "second")
        with ExitStack() as processes:
            with in_thread(first, 60.0, store), RawClient(first) as maker:
                maker.release(maker.allocate("kv")["region"])
                holder = processes.enter_context(running(HOLDER, first, "1"))
                assert holder.stdout.readline() == "holds\n"
                step(holder, "closed")
                assert [writers(maker) for _ in range(20)] == [1] * 20
            monkeypatch.setattr(loop, "_UNSEEN", 0.2)
            with in_thread(second, 60.0, store), RawClient(second) as other:
                assert until_without(other) == 0
                other.ok("delete", name="kv")

    @pytest.mark.parametrize("given", ["leases", "asleep"])
    def test_may_resume_a_session_amid_what_it_gave_back(
        self, tmp_path, path, store, holder, given, monkeypatch
    ):
        monkeypatch.setattr(Digests, "submit", lambda self, job: None)  # it never ends
        with RawClient(path) as other, running(RESUMER, path, given) as resumer:
            assert holder.stdout.readline() == "holds\n"
            assert resumer.stdout.readline() == "resumed\n"
            step(holder, "closed")
            assert until_without(other) == 0  # later than what was kept of the other process
            assert other.ok("status").get("leases", 0) == 0
            names = set(other.names())
        with in_thread(str(tmp_path / "next"), 0.0, store) as path, RawClient(path) as again:
            assert set(again.names()) == names

    @pytest.mark.parametrize(("times", "left"), [(2, 1), (3, 0)])
    def test_gives_back_as_many_grants_as_it_said_before_it_closed(
        self, path, times, left, monkeypatch
    ):
        monkeypatch.setattr(loop, "_UNSEEN", 60.0)
        monkeypatch.setattr(Digests, "submit", lambda self, job: None)
        with RawClient(path) as other, RawClient(path) as client:
            sealed = other.allocate("sealed")["region"]
            other.ok("seal", region=sealed)
            for _ in range(3):
                held = client.allocate("kv")["region"]
            client.send("digest", region=sealed)  # which it does not wait for
            client.release(*[held] * times, sealed, 1 << 40)
            client.close()
            deadline = time.monotonic() + 20
            while (found := holders(other)) != [1] * left and time.monotonic() < deadline:
                time.sleep(0.001)
            assert found == [1] * left


def holders(client: RawClient) -> list[int]:
    """The number of grants of each holder."""
    return [holder["count"] for holder in client.ok("stat", name="kv")["holders"]]


class TestNumber:
    def test_is_made_of_pid_and_start_where_the_kernel_has_no_other(self, monkeypatch):
        own = os.pidfd_open(os.getpid())
        monkeypatch.setattr(peers, "_anonymous", lambda: os.fstat(own).st_dev)
        number = peers.process_number(own, os.getpid())
        assert number == peers.start_time(os.getpid()) << 22 | os.getpid()
        assert peers.process_number(own, 0) == 0  # in another namespace
        os.close(own)

    @pytest.mark.parametrize(("later", "known"), [(0, True), (1, False)])
    def test_takes_the_place_of_the_start_that_earlier_brokers_noted(self, later, known):
        started = peers.start_time(os.getpid()) + later
        two = [
            Session(number, Identity(os.getpid(), started, 0, 0, frozenset())) for number in (1, 2)
        ]
        stored: dict[str, int] = {}
        before = descriptors()
        processes = orphans.Processes(stored.__setitem__, stored.__delitem__)
        processes.recover(two, {})
        assert descriptors() == before + known
        assert len({processes.descriptor(session) for session in two}) == 1
        if known:
            (number,) = {session.identity.process for session in two}
            assert stored == {f"p{number:x}": processes.descriptor(two[0])}
            assert number == peers.process_number(processes.descriptor(two[0]), os.getpid())
            for session in two:
                processes.drop(session.number)
        assert (stored, descriptors()) == ({}, before)

    def test_finds_a_process_whose_descriptor_was_not_stored(self):
        own = os.pidfd_open(os.getpid())
        number = peers.process_number(own, os.getpid())
        os.close(own)
        session = Session(1, Identity(os.getpid(), number, 0, 0, frozenset()))
        processes = orphans.Processes(lambda key, fd: None, lambda key: None)
        processes.recover([session], {})
        assert processes.descriptor(session) is not None
        processes.close()

    def test_that_is_unknown_finds_none(self, monkeypatch):
        monkeypatch.setattr(orphans, "start_time", lambda pid: 0)
        session = Session(1, Identity(os.getpid(), 0, 0, 0, frozenset()))
        processes = orphans.Processes(lambda key, fd: None, lambda key: None)
        processes.recover([session], {})
        assert processes.descriptor(session) is None

    def test_that_is_unknown_resumes_what_the_process_may_have_and_no_session(
        self, path, monkeypatch
    ):
        """As in other containers before Linux 6.9: a client that timed out keeps its regions."""
        monkeypatch.setattr(rights, "process_number", lambda process, pid: 0)
        with RawClient(path) as first, RawClient(path) as second:
            named, nameless, draft = (
                made["region"]
                for made in (first.allocate("kv"), first.allocate(None), first.create("draft"))
            )
            leases = [(number, True, False) for number in (named, nameless, draft)]
            reply = second.ok("resume", session=first.session, leases=leases)
            assert reply["lost"] == [draft]
            assert holders(first) == [1, 1]  # the first one is left alone
            first.close()
            assert second.ok("stat", region=nameless)["writers"] == 1
            second.ok("delete", name="kv")


class TestEnding:
    def test_is_told_of_a_process_that_was_killed_and_not_of_one_that_runs(self):
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
            descriptor = os.pidfd_open(process.pid)
            assert is_ending(descriptor) is False
            process.kill()
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            assert is_ending(descriptor) is True
        assert is_ending(descriptor) is True
        os.close(descriptor)

    def test_is_unknown_of_a_process_of_another_namespace(self, monkeypatch):
        monkeypatch.setattr(peers, "_pid_here", lambda process: 0)
        assert is_ending(0) is None

    def test_is_not_told_without_descriptors(self, monkeypatch):
        def refuse(*_: object, **__: object) -> None:
            raise OSError(24, "no descriptors")

        descriptor = os.pidfd_open(os.getpid())
        monkeypatch.setattr("builtins.open", refuse)
        assert is_ending(descriptor) is False
        os.close(descriptor)
