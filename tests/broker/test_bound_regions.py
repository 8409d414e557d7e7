"""Regions that are bound to their exporters: what others see and lose when these end."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import gdrpy
from brokers import BROKER_UID, Broker
from gdrpy import aio, cuda
from gdrpy.broker.client import bound, transport
from gdrpy.broker.client.broker import attach
from gdrpy.broker.server.telling import _holders
from gdrpy.common.resource import Hold
from gdrpy.memory import memory
from rawclient import allocation

#: Exports a region by the name "kv", and lives until its stdin ends.
EXPORTER = """
import sys
import gdrpy
broker = gdrpy.connect(sys.argv[1])
region = broker.allocate("kv", 4096, mode=0o666, grace=float(sys.argv[2]))
region.write(b"exported")
print("exports", flush=True)
sys.stdin.readline()
"""
#: Longer than any test waits.
LONG = 600.0


class Exporter:
    """A process that exports the region "kv", made anew by :meth:`start`."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, grace: float) -> Exporter:
        """Have it export the region."""
        command = [sys.executable, "-c", EXPORTER, self._path, str(grace)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"exports\n"
        return self

    def kill(self) -> None:
        """End it by SIGKILL, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


@pytest.fixture
def exporter(broker: Broker) -> Iterator[Exporter]:
    """What exports "kv" in another process."""
    made = Exporter(broker.path)
    yield made
    made.kill()


@pytest.fixture
def connected(broker: Broker) -> Iterator[gdrpy.Broker]:
    """A client of the test's broker."""
    with gdrpy.connect(broker.path) as made:
        yield made


def until(condition: Callable[[], Any]) -> None:
    """Wait for what another thread, or the broker, does."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.005)


def hold(broker: Broker, number: int, parent: socket.socket) -> None:
    """Hold a region by one connection; watch by another, and ask by a third; tell the parent."""
    with broker.client() as holder, broker.client() as watcher, broker.client() as other:
        holder.get("kv", readonly=True).close()
        watcher.ok("watch", prefix="", ends=True)
        parent.send(b"holds")
        parent.recv(100)
        parent.send(str(other.ok("stat", region=number).get("ended", False)).encode())
        parent.send(watcher.receive()["event"].encode())


def is_taken(region: gdrpy.Region) -> bool:
    """Whether a use of the region raises Gone."""
    try:
        region.read(1)
    except gdrpy.Gone:
        return True
    return False


def used(broker: gdrpy.Broker) -> int:
    return sum(broker.status()["used"].values())


class TestBroker:
    def test_deletes_the_name_and_tells_watchers_when_the_exporter_ends(self, client, broker):
        with broker.client() as exporter:
            number = exporter.allocate("kv", grace=1.5)["region"]
            client.ok("watch", prefix="k")
        assert client.receive() == {"event": "ended", "name": "kv", "region": number, "version": 1}
        with broker.client() as other:
            assert other.call("stat", name="kv")["error"] == "NotFound"
            other.ok("allocate", **allocation("kv"))

    def test_ends_it_when_the_exporter_releases_its_lease(self, broker, client):
        with broker.client() as exporter:
            number = exporter.allocate("kv", grace=0)["region"]
            client.get("kv", readonly=True).close()
            exporter.release(number)
            assert exporter.error("get", name="kv", readonly=True, gpu=False) == "NotFound"
            told = client.ok("stat", region=number)
        assert (told["grace"], told["ended"], told["linked"], told["readers"]) == (
            0,
            True,
            False,
            1,
        )

    def test_tells_of_its_exporter_first(self):
        one = SimpleNamespace(writable=True, gpu=True, count=1)
        who = {number: SimpleNamespace(pid=number, uid=0) for number in (1, 2, 3)}
        table = SimpleNamespace(sessions={n: SimpleNamespace(identity=who[n]) for n in who})
        region = SimpleNamespace(leases=dict.fromkeys(who, one), exporter=3)
        told = _holders(table, region, 2)
        assert [(holder.pid, holder.exporter) for holder in told] == [(3, True), (1, False)]

    def test_grants_no_more_leases_of_what_has_ended(self, broker, client):
        with broker.client() as exporter:
            number = exporter.allocate("kv", grace=1)["region"]
            client.get("kv", readonly=True).close()
        until(lambda: client.ok("stat", region=number).get("ended"))
        refusal = client.call("get", region=number, readonly=True, gpu=False)
        assert refusal == {
            "error": "Gone",
            "message": "get: region 'kv' ended with its exporter",
            "id": refusal["id"],
        }

    def test_frees_the_memory_with_the_last_lease(self, broker, client):
        with broker.client() as exporter:
            number = exporter.allocate("kv", grace=1)["region"]
            client.get("kv", readonly=True).close()
        until(lambda: client.ok("stat", region=number).get("ended"))
        assert client.ok("status")["regions"] == 1
        client.release(number)
        assert client.ok("status")["regions"] == 0

    def test_tells_who_holds_what_has_ended_or_lost_its_name(self, broker, client):
        with broker.client() as exporter:
            ended = exporter.allocate("kv", grace=1)["region"]
            client.get("kv", readonly=True).close()
            assert "nameless" not in client.ok("status")
        until(lambda: client.ok("stat", region=ended).get("ended"))
        deleted = client.allocate("table", 8192)["region"]
        client.ok("delete", name="table")
        draft = client.create("weights", 1)["region"]
        told = client.ok("status")["nameless"]
        holder = {"pid": os.getpid(), "uid": os.geteuid(), "gpu": False, "count": 1}
        assert [(one["region"], one["name"], one["linked"], one["holders"]) for one in told] == [
            (deleted, "table", False, [holder | {"writable": True}]),
            (ended, "kv", False, [holder | {"writable": False}]),
            (draft, "weights", False, [holder | {"writable": True}]),
        ]
        assert [one.get("ended", False) for one in told] == [False, True, False]
        client.release(ended, deleted, draft)
        assert "nameless" not in client.ok("status")

    def test_tells_of_the_largest_regions_without_a_name_as_far_as_a_packet_has_room(self, client):
        name = "n" * 251
        for number in range(150):
            client.create(f"{name}{number:04}", 4096 * (number + 1)).close()
        client.release()  # the next request is answered in several turns
        told = client.ok("status")["nameless"]
        assert [one["nbytes"] // 4096 for one in told] == [*range(150, 150 - len(told), -1)]
        assert 16 < len(told) <= 64

    def test_tells_others_of_the_grace_and_not_the_exporter(self, broker, client):
        with broker.client() as exporter:
            assert "grace" not in exporter.allocate("kv", grace=2)
            granted = client.get("kv", readonly=True)
            assert granted["grace"] == 2
            granted.close()

    def test_sends_ends_alone_to_those_who_ask_for_them_also_without_a_name(self, broker, client):
        client.ok("watch", prefix="", ends=True)
        with broker.client() as exporter:
            exporter.allocate("kv").close()
            number = exporter.allocate(None, grace=1)["region"]
            exporter.ok("delete", name="kv")
        assert client.receive() == {"event": "ended", "region": number, "version": 0}

    def test_tells_holders_of_the_end_who_may_not_read_it_any_more(self, start_broker):
        if os.geteuid() != 0:
            pytest.skip("being other users needs CAP_SETUID")
        broker = start_broker(uid=BROKER_UID, options={"mode": 0o666})
        with broker.client() as exporter:
            number = exporter.allocate("kv", mode=0o644, grace=1)["region"]
            ours, theirs = socket.socketpair()
            child = os.fork()
            if not child:
                try:
                    ours.close()
                    exporter.sock.close()
                    os.setresuid(40004, 40004, 40004)
                    hold(broker, number, theirs)
                finally:
                    os._exit(0)
            theirs.close()
            with ours:
                ours.settimeout(60)
                assert ours.recv(100) == b"holds"
                exporter.ok("change", region=number, mode=0o600)
                ours.send(b"go on")
                assert ours.recv(100) == b"False"
                exporter.sock.close()
                assert ours.recv(100) == b"ended"
            os.waitpid(child, 0)

    def test_does_not_bind_a_region_that_is_there(self, broker, client):
        client.allocate("kv").close()
        refusal = client.call("allocate", **allocation("kv", grace=1))
        assert (refusal["error"], refusal["message"]) == (
            "InvalidRequest",
            "allocate: region 'kv' exists and is not bound to an exporter, and a grace of 1 s was "
            "asked for: leave grace out to get it as it is, delete it first, or take another name",
        )

    def test_gives_its_exporter_a_bound_region_again_with_the_same_grace_alone(self, client):
        number = client.allocate("kv", grace=0.5)["region"]
        again = client.allocate("kv", grace=0.5)
        assert (again["region"], again["created"], "grace" in again) == (number, False, False)
        refusal = client.call("allocate", **allocation("kv", grace=5))
        assert (refusal["error"], refusal["message"]) == (
            "InvalidRequest",
            "allocate: region 'kv' exists and is bound to this connection with a grace of 0.5 s, "
            "and a grace of 5 s was asked for: leave grace out to get it as it is, delete it "
            "first, or take another name",
        )
        assert client.ok("stat", name="kv")["grace"] == 0.5

    def test_gives_others_a_bound_region_without_a_grace_alone(self, broker, client):
        number = client.allocate("kv", grace=0.5)["region"]
        with broker.client() as other:
            refusal = other.call("allocate", **allocation("kv", grace=0.5))
            assert (refusal["error"], refusal["message"]) == (
                "InvalidRequest",
                "allocate: region 'kv' exists and is bound to another connection, its exporter, "
                "with a grace of 0.5 s, and a grace of 0.5 s was asked for: leave grace out to get "
                "it as it is, delete it first, or take another name",
            )
            assert other.ok("status")["leases"] == 1
            found = other.allocate("kv")
            assert (found["region"], found["grace"]) == (number, 0.5)

    @pytest.mark.parametrize("grace", [-0.5, 3600.5, float("nan"), "1"])
    def test_refuses_a_grace_out_of_bounds(self, client, grace):
        refusal = client.call("allocate", **allocation("kv", grace=grace))
        assert refusal["error"] == "InvalidRequest"


class TestExporter:
    def test_may_restart_its_connection_and_the_broker(self, broker, connected):
        with connected.allocate("kv", 4096, grace=0) as region:
            broker.restart()
            assert connected.stat("kv").grace == 0
            with gdrpy.connect(broker.path) as other, other.get("kv") as found:
                connected._connection._break_off()
                assert connected.stat("kv").ended is False
                region.write(b"again")
                assert found.read(5) == b"again"
                assert found.ended is False

    def test_that_dies_while_there_is_no_broker_ends_the_region(self, broker, exporter, connected):
        with exporter.start(0) and connected.get("kv") as region:
            broker.kill()
            exporter.kill()
            broker.start()
            until(lambda: is_taken(region))
        until(lambda: connected.status()["regions"] == 0)

    def test_of_a_draft_ends_it_too(self, broker, connected):
        draft = connected.create("kv", 4096, grace=0)
        number = draft.id
        draft.publish()
        with gdrpy.connect(broker.path) as other, other.get("kv") as found:
            draft.close()
            until(lambda: is_taken(found))
            assert found.id == number

    @pytest.mark.parametrize(
        ("grace", "error", "words"),
        [
            (-1, ValueError, r"allocate: grace must be 0 to 3600 seconds, not -1"),
            ("1", TypeError, r"allocate: grace must be a number of seconds, not '1'"),
            (3601, ValueError, r"allocate: grace must be 0 to 3600 seconds, not 3601"),
        ],
    )
    def test_must_give_a_number_of_seconds(self, connected, grace, error, words):
        with pytest.raises(error, match=words):
            connected.allocate("kv", 4096, grace=grace)


class TestImporter:
    def test_is_told_and_loses_the_memory_after_the_grace(self, exporter, connected):
        with exporter.start(0.05) and connected.get("kv") as region:
            told: list[tuple[bytes, bool]] = []
            heard = threading.Event()
            region.when_ended(lambda one: told.append((one.read(8), one.ended)))
            region.when_ended(lambda _: heard.set())
            exporter.kill()
            assert heard.wait(60)
            assert told == [(b"exported", True)]
            until(lambda: used(connected) == 0)
            assert connected.status()["leases"] == 0
            with pytest.raises(gdrpy.Gone) as raised:
                region.read(1)
            assert str(raised.value) == (
                "Region.read: region 'kv' ended with its exporter: close it, and get the next one"
            )
            assert repr(region).startswith("<BrokerRegion 'kv', ended: Region of 4096 bytes for ")

    def test_has_the_memory_until_the_grace_is_over(self, exporter, connected):
        with exporter.start(LONG) and connected.get("kv") as region:
            exporter.kill()
            until(lambda: region.ended)
            assert region.read(8) == b"exported"
            assert region.info().ended is True

    def test_without_a_gpu_view_loses_the_memory_too(self, exporter, connected):
        with exporter.start(0) and connected.get("kv", gpu=False) as region:
            exporter.kill()
            until(lambda: used(connected) == 0)
            with pytest.raises(gdrpy.Gone, match="ended with its exporter"):
                region.numpy()
            assert repr(region) == "<BrokerRegion 'kv', ended: CLOSED>"

    def test_keeps_what_a_numpy_array_shows_until_that_is_gone(self, exporter, connected):
        with exporter.start(0) and connected.get("kv") as region:
            array = region.numpy()
            exporter.kill()
            until(lambda: is_taken(region))
            assert bytes(array[:8]) == b"exported"
            assert used(connected) > 0
            del array
            until(lambda: used(connected) == 0)

    def test_keeps_what_a_numpy_array_of_a_dropped_region_shows(self, exporter, connected):
        region = exporter.start(0) and connected.get("kv")
        array, held = region.numpy(), region._memory
        del region
        other = connected.get("kv")
        gc.collect()
        exporter.kill()
        until(lambda: is_taken(other))  # after it was tried with the array's
        assert not held.detached
        assert bytes(array[:8]) == b"exported"
        del array, held
        until(lambda: used(connected) == 0)

    def test_loses_what_only_holds_that_have_ended_keep(self, exporter, connected, monkeypatch):
        with exporter.start(0) and connected.get("kv") as region:
            monkeypatch.setattr(memory, "settle", [Hold(region._memory).end])
            exporter.kill()
            until(lambda: used(connected) == 0)

    def test_hears_of_ends_and_loses_others_while_a_kernel_occupies_the_gpu(
        self, broker, exporter, connected
    ):
        flags = cuda.driver().CUstream_flags.CU_STREAM_NON_BLOCKING
        with (
            cuda.context(0),
            gdrpy.page_locked(4096) as word,
            gdrpy.connect(broker.path) as other,
            other.allocate("host", 4096, "cpu", grace=0) as made,
            connected.get("host") as host,
            exporter.start(0) and connected.get("kv") as region,
        ):
            stream = cuda.call("cuStreamCreate", flags)
            go = word.flag()
            go.set(0)
            go.stream_wait(stream, 1)
            cuda.call("cuMemsetD8Async", region.ptr, 7, 8, stream)
            exporter.kill()
            until(lambda: is_taken(region))
            made.close()
            until(lambda: is_taken(host))
            assert used(connected) > 0
            go.set(1)
            until(lambda: used(connected) == 0)
            cuda.call("cuStreamDestroy", stream)

    def test_attaches_the_next_version_if_it_was_detached_at_the_end(self, exporter, connected):
        with exporter.start(0) and connected.get("kv") as region:
            region.detach()
            exporter.kill()
            until(lambda: region.ended)
            with pytest.raises(gdrpy.Gone) as gone:
                region.attach()
            assert str(gone.value) == (
                f"BrokerRegion.attach: region {region.id} ended with its exporter: close it, or "
                f"take the next 'kv', once there is one, by attach(newer=True)"
            )
            exporter.start(0)
            region.attach(newer=True)
            assert (region.ended, region.read(8)) == (False, b"exported")
            told: list[bool] = []
            region.when_ended(lambda one: told.append(one.ended))
            exporter.kill()
            until(lambda: is_taken(region))
            assert told == [True]

    def test_attaches_no_next_version_to_what_was_taken(self, exporter, connected):
        with exporter.start(0) and connected.get("kv") as region:
            exporter.kill()
            until(lambda: is_taken(region))
            exporter.start(LONG)
            with pytest.raises(gdrpy.Gone, match=r"BrokerRegion\.attach: region 'kv' ended with"):
                region.attach(newer=True)
            assert connected.status()["leases"] == 1

    def test_does_not_lose_a_next_version_that_is_attached_as_it_is_taken(
        self, exporter, connected, monkeypatch
    ):
        """Its number is known only after its memory."""
        with exporter.start(0) and connected.get("kv") as region:
            region.detach()
            exporter.kill()
            until(lambda: region.ended)
            exporter.start(LONG)
            describe, takes = type(region)._describe, threading.Semaphore(0)
            take = bound._Bound.take

            def counted(one: Any) -> bool:
                taken = take(one)
                takes.release()
                return taken

            def late(*args: Any) -> None:
                while takes.acquire(blocking=False):
                    pass
                assert takes.acquire(timeout=60)
                describe(*args)

            monkeypatch.setattr(bound._Bound, "take", counted)
            monkeypatch.setattr(type(region), "_describe", late)
            region.attach(newer=True)
            assert region.read(8) == b"exported"

    def test_loses_what_only_its_tensors_hold(self, exporter, connected):
        region = exporter.start(0) and connected.get("kv")
        array = region.array()
        hold = array.__dlpack__()
        del region, array
        assert used(connected) > 0
        exporter.kill()
        until(lambda: used(connected) == 0)
        del hold

    def test_has_each_of_its_regions_taken(self, exporter, connected):
        exporter.start(0)
        regions = [connected.get("kv", readonly=number % 2 == 0) for number in range(5)]
        exporter.kill()
        until(lambda: used(connected) == 0)
        assert all(map(is_taken, regions))
        assert connected.status()["leases"] == 0
        for region in regions:
            region.close()

    def test_is_told_at_once_of_an_end_before_its_call(self, exporter, connected):
        with exporter.start(LONG) and connected.get("kv") as region:
            exporter.kill()
            until(lambda: region.ended)
            told: list[gdrpy.Region] = []
            region.when_ended(told.append)
            assert told == [region]

    def test_has_errors_of_callbacks_shown_and_the_others_called(
        self, exporter, connected, monkeypatch
    ):
        shown: list[BaseException] = []
        monkeypatch.setattr("sys.excepthook", lambda *about: shown.append(about[1]))
        with exporter.start(LONG) and connected.get("kv") as region:
            heard = threading.Event()
            region.when_ended(lambda _: 1 / 0)
            region.when_ended(lambda _: heard.set())
            exporter.kill()
            assert heard.wait(60)
        (error,) = shown
        assert isinstance(error, ZeroDivisionError)
        (note,) = error.__notes__
        assert note.startswith("This was a callback for the end of <BrokerRegion 'kv', ended: ")

    @pytest.mark.parametrize("exports", [False, True], ids=["unbound", "of the exporter"])
    def test_is_refused_a_callback_for_a_region_that_cannot_end(self, connected, exports):
        region = connected.allocate("kv", 4096, grace=LONG if exports else None)
        with region, pytest.raises(gdrpy.InvalidRequest) as refused:
            region.when_ended(lambda _: None)
        assert str(refused.value).startswith("BrokerRegion.when_ended: <BrokerRegion 'kv': ")
        assert "> is not bound to an exporter other than this connection" in str(refused.value)

    def test_is_refused_what_cannot_be_called(self, exporter, connected):
        with exporter.start(LONG) and connected.get("kv") as region:
            words = "BrokerRegion.when_ended: callback must be callable, not 5"
            with pytest.raises(TypeError, match=f"^{words}$"):
                region.when_ended(5)

    def test_may_close_a_region_before_and_after_its_end(self, exporter, connected):
        exporter.start(0)
        before, after = connected.get("kv"), connected.get("kv")
        before.close()
        exporter.kill()
        until(lambda: is_taken(after))
        after.close()
        assert after.closed

    def test_has_the_next_region_of_the_name_while_it_holds_the_ended_one(
        self, exporter, connected
    ):
        with exporter.start(0) and connected.get("kv") as region:
            exporter.kill()
            until(lambda: is_taken(region))
            with exporter.start(LONG) and connected.get("kv") as following:
                assert following.read(8) == b"exported"
                assert following.id != region.id
                assert is_taken(region)

    def test_cannot_attach_it_again_nor_open_its_pickle(self, exporter, connected):
        with exporter.start(0) and connected.get("kv") as region:
            identity = connected.socket, connected.life, region.id
            packed = pickle.dumps(region)
            exporter.kill()
            until(lambda: is_taken(region))
            with pytest.raises(gdrpy.Gone):
                region.attach()
            with pytest.raises(gdrpy.Gone):
                pickle.loads(packed)
            with pytest.raises(gdrpy.Gone):
                attach(*identity, True, True, False)

    def test_that_gets_it_as_it_ends_is_told(self, exporter, connected, monkeypatch):
        with exporter.start(0) and connected.get("kv") as first:
            held = threading.Event()
            late: list[Any] = []
            guard = bound.guard
            monkeypatch.setattr("gdrpy.broker.client.region.guard", lambda *args: late.append(args))
            with connected.get("kv") as second:
                exporter.kill()
                until(lambda: is_taken(first))
                assert not second.ended
                second.when_ended(lambda _: held.set())
                guard(*late[0])
                assert held.wait(60)
                until(lambda: is_taken(second))

    def test_puts_no_bound_region_to_sleep(self, broker, connected):
        with gdrpy.connect(broker.path) as other, connected.allocate("kv", 4096, grace=1) as made:
            made.seal()
            with (
                other.get("kv") as found,
                pytest.raises(
                    gdrpy.InvalidRequest,
                    match=r"sleep_many: <.*> is bound to its exporter, and ends",
                ),
            ):
                other.sleep_many([found])

    def test_of_asyncio_is_told_too(self, broker, exporter):
        async def told() -> bytes:
            async with await aio.connect(broker.path) as connected:
                region = await connected.get("kv")
                heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
                call = asyncio.get_running_loop().call_soon_threadsafe
                region.when_ended(lambda one: call(heard.set_result, one.read(8)))
                exporter.kill()
                found = await asyncio.wait_for(heard, 60)
                while not is_taken(region):
                    await asyncio.sleep(0.005)
                return found

        exporter.start(0)
        assert asyncio.run(told()) == b"exported"


class TestThread:
    def test_outlives_a_lack_of_descriptors(self, broker, exporter, connected, monkeypatch):
        failed = threading.Event()

        def full() -> Any:
            failed.set()
            raise OSError(errno.EMFILE, "Too many open files")

        with exporter.start(0) and connected.get("kv") as region:
            with monkeypatch.context() as patch:
                patch.setattr(transport, "packet_socket", full)
                broker.restart()
                assert failed.wait(60)
            exporter.kill()
            until(lambda: is_taken(region))

    def test_outlives_a_callback_that_exits(self, exporter, connected):
        with exporter.start(0) and connected.get("kv") as region:
            region.when_ended(lambda _: sys.exit(1))
            exporter.kill()
            until(lambda: is_taken(region))

    def test_that_cannot_start_refuses_the_region(self, exporter, connected, monkeypatch):
        def refuse(_: Any) -> None:
            raise RuntimeError("can't start new thread")

        exporter.start(0)
        monkeypatch.setattr(bound, "_guards", {})
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(gdrpy.OutOfMemory) as raised:
                connected.get("kv")
        assert str(raised.value) == (
            "opening a region that is bound to its exporter: can't start new thread, and one must "
            "hear of its end: raise the limit (ulimit -u), or end other threads"
        )
        assert connected.stat("kv").readers + connected.stat("kv").writers == 1

    def test_keeps_one_entry_of_a_region_that_is_attached_again(self, exporter, connected):
        with exporter.start(LONG) and connected.get("kv") as region:
            for _ in range(3):
                region.detach()
                region.attach()
            ((entries),) = bound._guards[connected.socket]._bound.values()
            assert len(entries) == 1

    def test_ends_with_the_last_bound_region(self, exporter, connected, monkeypatch):
        monkeypatch.setattr(bound, "_LOOK", 0.01)
        connected.allocate("other", 4096).close()
        before = threading.enumerate()
        region = exporter.start(LONG) and connected.get("kv")
        (thread,) = (one for one in threading.enumerate() if one not in before)
        region.close()
        thread.join(60)
        assert not thread.is_alive()
        with connected.get("kv") as again:
            exporter.kill()
            until(lambda: again.ended)

    def test_is_made_again_in_a_forked_child(self, exporter, connected, broker):
        exporter.start(0)
        ready, tell = os.pipe()
        with connected.get("kv"), os.fdopen(ready, "rb") as reader:
            child = os.fork()
            if not child:
                try:
                    with gdrpy.connect(broker.path) as mine, mine.get("kv", gpu=False) as region:
                        os.write(tell, b"!")
                        until(lambda: is_taken(region))
                    os._exit(0)
                finally:
                    os._exit(1)
            os.close(tell)
            assert reader.read(1) == b"!"
            exporter.kill()
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
