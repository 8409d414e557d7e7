"""Clients that hurt: whatever one does, another one's requests are answered meanwhile."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest

from brokers import BROKER_UID, Broker, StartBroker, await_descriptors, await_end, descriptors
from gdrpy.broker.server.connection import EVENTS_LIMIT
from gdrpy.broker.server.quotas import PROCESS_CONNECTIONS
from rawclient import RawClient, acting_as, allocation


@pytest.fixture
def other(broker: Broker) -> Iterator[RawClient]:
    """Another client, which nobody may disturb."""
    with broker.client() as made:
        made.allocate("kept").write(b"as it was")
        made.get("kept")  # for which the broker opens it once more
        yield made
        check(made)


def check(other: RawClient) -> None:
    """Another client's requests are answered."""
    assert other.get("kept").bytes(9) == b"as it was"
    anonymous = other.allocate(None)["region"]
    other.release(anonymous)
    assert other.error("stat", region=anonymous) == "Gone"


def await_status(client: RawClient, **wanted: int) -> None:
    """Wait until the broker has heard of all ends."""
    deadline = time.monotonic() + 20
    while (found := {key: client.ok("status")[key] for key in wanted}) != wanted:
        assert time.monotonic() < deadline, found


def fill(client: RawClient, packet: bytes) -> int:
    """Send a packet until the broker takes no more; how many it took."""
    client.sock.setblocking(False)
    poll = select.poll()
    poll.register(client.sock, select.POLLOUT)
    sent = 0
    try:
        while poll.poll(300):
            client.sock.send(packet)
            sent += 1
    finally:
        client.sock.setblocking(True)
    return sent


class TestClientThatNeverReads:
    @pytest.mark.parametrize("op", ["get", "list", "status", "get_many"])
    def test_has_no_more_of_its_requests_taken(
        self, op: str, broker: Broker, client: RawClient, other: RawClient
    ) -> None:
        before = descriptors(broker.pid)
        fields = {
            "get": {"name": "kept", "readonly": True, "gpu": False},
            "get_many": {"names": ["kept"] * 500, "readonly": True, "gpu": False},
            "list": {"prefix": "", "after": ""},
            "status": {},
        }[op]
        assert fill(client, msgpack.packb({"op": op, "id": 1, **fields})) > 0
        check(other)
        await_descriptors(broker.pid, before)
        client.close()
        check(other)

    def test_gets_all_replies_in_order_when_it_reads_at_last(
        self, broker: Broker, other: RawClient
    ) -> None:
        with broker.client() as client:
            for number in range(300):
                packet = {"op": "get", "id": number, "name": "kept", "readonly": True, "gpu": False}
                client.send_bytes(msgpack.packb(packet))
                if number % 100 == 0:
                    check(other)
            for number in range(300):
                reply = client.receive()
                assert (reply["id"], len(reply.fds)) == (number, 1)

    def test_watcher_is_told_that_events_were_lost(
        self, broker: Broker, client: RawClient, other: RawClient
    ) -> None:
        client.ok("watch", prefix="busy/")
        rounds = EVENTS_LIMIT + 600
        for _ in range(rounds):
            other.release(other.allocate("busy/name")["region"])
            other.ok("delete", name="busy/name")
        events = []
        while not events or events[-1] != "lost":
            events.append(client.receive()["event"])
        assert len(events) < 3 * rounds
        assert {"allocated", "deleted"} <= set(events)
        other.allocate("busy/again")
        assert client.receive()["event"] == "allocated"
        other.ok("delete", name="busy/again")

    def test_watchers_that_die_at_once_end_the_sessions_of_all(
        self, broker: Broker, other: RawClient
    ) -> None:
        """Each one's end frees a region, which every other one is to be told of."""
        child = os.fork()
        if child == 0:
            try:
                clients = [broker.client() for _ in range(PROCESS_CONNECTIONS - 6)]
                for client in clients:
                    client.allocate(None)
                    client.ok("watch", prefix="")
                os.kill(os.getpid(), signal.SIGSTOP)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert other.ok("status")["regions"] == PROCESS_CONNECTIONS - 5
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        await_status(other, regions=1, sessions=1)

    def test_watcher_that_dies_while_it_allocates_leaves_a_journal_that_can_be_read(
        self, broker: Broker, other: RawClient
    ) -> None:
        for number in range(20):
            with broker.client() as client:
                client.ok("watch", prefix="")
                client.send("allocate", **allocation(f"by-the-dead-{number}"))
        check(other)
        names = set(other.names())
        broker.restart()
        other.reopen()
        assert set(other.names()) == names


class TestDescriptorsInFlight:
    """The kernel bounds how many descriptors of a user are on their way: unread ones count."""

    def test_of_a_client_that_never_reads_leave_room_for_others(
        self, start_broker: StartBroker
    ) -> None:
        broker = start_broker(uid=BROKER_UID, descriptors=256, options={"mode": 0o666})
        with broker.client() as other, broker.client() as client, broker.client() as second:
            other.allocate("kept").write(b"as it was")
            get = {"op": "get", "id": 1, "name": "kept", "readonly": True, "gpu": False}
            many = {"op": "get_many", "id": 1, "names": ["kept"] * 253, "readonly": True}
            for hostile, request in ((client, get), (second, many | {"gpu": False})):
                with contextlib.suppress(ConnectionError):  # it may be closed for that
                    fill(hostile, msgpack.packb(request))
                check(other)
            client.close()
            second.close()
            check(other)

    def test_of_many_connections_that_never_read_leave_room_for_others(
        self, start_broker: StartBroker
    ) -> None:
        broker = start_broker(uid=BROKER_UID, descriptors=512, options={"mode": 0o666})
        with broker.client() as other, contextlib.ExitStack() as stack:
            other.allocate("kept").write(b"as it was")
            many = {"op": "get_many", "id": 1, "names": ["kept"] * 40, "readonly": True}
            for _ in range(60):
                hostile = stack.enter_context(broker.client())
                for _ in range(10):
                    hostile.send_bytes(msgpack.packb(many | {"gpu": False}))
            for _ in range(20):
                check(other)

    @pytest.mark.parametrize("ends", [False, True], ids=["which stays", "which sends no more"])
    def test_of_two_users_that_never_read_leave_room_for_another(
        self, ends: bool, start_broker: StartBroker
    ) -> None:
        if os.geteuid() != 0:
            pytest.skip("being other users needs CAP_SETUID")
        broker = start_broker(uid=BROKER_UID, descriptors=512, options={"mode": 0o666})
        with broker.client() as other, contextlib.ExitStack() as stack:
            other.allocate("kept", mode=0o666).write(b"as it was")
            many = {"op": "get_many", "id": 1, "names": ["kept"] * 64, "readonly": True}
            for uid in (40001, 40002):
                with acting_as(uid):
                    deaf = [stack.enter_context(broker.client()) for _ in range(60)]
                for client in deaf:
                    client.send_bytes(msgpack.packb(many | {"gpu": False}))
                    other.ok("status")
                    if ends:
                        client.sock.shutdown(socket.SHUT_WR)
            for _ in range(20):
                check(other)

    def test_of_a_client_that_sends_no_more_are_all_there_when_it_reads(
        self, broker: Broker, other: RawClient
    ) -> None:
        before = descriptors(broker.pid)
        with broker.client() as late:
            late.send("get_many", names=["kept"] * 64, readonly=True, gpu=False)
            other.ok("status")
            late.sock.shutdown(socket.SHUT_WR)
            await_status(other, sessions=1, leases=1)
            assert len(late.receive().fds) == 64
            with pytest.raises(ConnectionError):
                late.receive()
            await_descriptors(broker.pid, before)

    def test_are_all_there_when_the_client_reads_at_last(self, start_broker: StartBroker) -> None:
        broker = start_broker(uid=BROKER_UID, descriptors=512, options={"mode": 0o666})
        with broker.client() as other, broker.client() as late:
            other.allocate("kept").write(b"as it was")
            names = ["kept"] * 1000
            late.send("get_many", names=names, readonly=True, gpu=False)
            check(other)
            found = 0
            while found < len(names):
                reply = late.receive()
                assert len(reply.fds) == len(reply["grants"])
                found += len(reply["grants"])
                reply.close()
            check(late)


class TestSlowClient:
    def test_that_sends_nothing_costs_nothing(self, broker: Broker, other: RawClient) -> None:
        silent = [broker.client(hello=False) for _ in range(50)]
        check(other)
        for client in silent:
            client.close()
        check(other)

    def test_that_sends_byte_by_byte_sends_packets_of_one_byte(
        self, broker: Broker, client: RawClient, other: RawClient
    ) -> None:
        request = msgpack.packb({"op": "status", "id": 1})
        for byte in request[:10]:
            client.send_bytes(bytes([byte]))
            assert client.receive()["error"] == "ProtocolError"
            check(other)

    def test_that_sends_half_a_request_is_told(
        self, broker: Broker, client: RawClient, other: RawClient
    ) -> None:
        whole = msgpack.packb({"op": "allocate", "id": 1, **allocation("half")})
        for size in range(1, len(whole)):
            with broker.client() as half:
                half.send_bytes(whole[:size])
                assert half.receive()["error"] == "ProtocolError"
        check(other)
        assert "half" not in other.names()


class TestClientWithAStrangeName:
    @pytest.mark.parametrize("name", [b"\xff\xfe", b") R 1 (", b"\n\n\n"])
    def test_is_served_as_any(self, name: bytes, broker: Broker, other: RawClient) -> None:
        comm = Path("/proc/self/comm")
        before = comm.read_bytes()
        try:
            comm.write_bytes(name)
            with broker.client() as client:
                client.allocate("strange")
            broker.restart()
            other.reopen()
            assert "strange" in other.names()
        finally:
            comm.write_bytes(before.rstrip(b"\n"))


class TestManyConnections:
    def test_of_one_process_are_bounded_and_the_rest_told(
        self, broker: Broker, other: RawClient
    ) -> None:
        clients = [broker.client() for _ in range(PROCESS_CONNECTIONS - 1)]
        for _ in range(50):
            with broker.client(hello=False) as refused:
                refused.send("hello", version=1, client="raw")
                reply = refused.receive()
                assert (reply["id"], reply["error"]) == (0, "QuotaExceeded")
                assert f"process {os.getpid()} has {PROCESS_CONNECTIONS}" in reply["message"]
                with pytest.raises(ConnectionError):
                    refused.receive()
        check(other)
        for client in clients:
            client.close()
        check(other)
        with broker.client():
            pass

    def test_ten_thousand_that_come_and_go_leave_nothing(
        self, broker: Broker, other: RawClient
    ) -> None:
        before = descriptors(broker.pid)
        sockets: list[socket.socket] = []
        for _ in range(10_000):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            sock.connect(broker.path)
            sockets.append(sock)
            if len(sockets) == 1000:
                check(other)
                for sock in sockets:
                    sock.close()
                sockets.clear()
        check(other)
        await_descriptors(broker.pid, before)

    def test_that_die_in_the_middle_of_anything_leave_nothing(
        self, broker: Broker, other: RawClient
    ) -> None:
        before = descriptors(broker.pid)
        requests = [
            ("allocate", allocation(None)),
            ("create", allocation("draft")),
            ("get", {"name": "kept", "readonly": False, "gpu": False}),
            ("get_many", {"names": ["kept"] * 600, "readonly": True, "gpu": False}),
            ("watch", {"prefix": ""}),
            ("list", {"prefix": "", "after": ""}),
        ]
        for op, fields in requests * 10:
            with broker.client() as client:
                client.send(op, **fields)
        with broker.client():
            check(other)
        await_status(other, regions=1, sessions=1, leases=1)
        await_descriptors(broker.pid, before)


class TestDescriptorsUsedUp:
    def test_allocations_are_out_of_memory_and_connections_refused_until_some_are_free(
        self, start_broker: StartBroker
    ) -> None:
        broker = start_broker(descriptors=64)
        with broker.client() as other, broker.client() as greedy:
            other.allocate("kept").write(b"as it was")
            other.get("kept")  # for which the broker opens it once more
            before = descriptors(broker.pid)
            regions = []
            while "error" not in (reply := greedy.call("allocate", **allocation(None))):
                regions.append(reply["region"])
                reply.close()
            assert reply["error"] == "OutOfMemory"
            assert len(regions) > 30
            assert greedy.error("allocate", **allocation("named")) == "OutOfMemory"
            assert greedy.error("create", **allocation("named")) == "OutOfMemory"
            assert other.get("kept", readonly=False).bytes(9) == b"as it was"
            for _ in range(50):
                with broker.client(hello=False) as refused:
                    refused.send("hello", version=1, client="raw")
                    reply = refused.receive()
                    assert (reply["id"], reply["error"]) == (0, "QuotaExceeded")
                    assert "descriptors are used up" in reply["message"]
                    with pytest.raises(ConnectionError):
                        refused.receive()
            assert "named" not in other.names()
            greedy.release(*regions)
            await_descriptors(broker.pid, before)
            check(other)
            with broker.client() as late:
                check(late)

    def test_keeper_that_dies_then_is_replaced_when_some_are_free(
        self, start_broker: StartBroker
    ) -> None:
        broker = start_broker(descriptors=64)
        with broker.client() as other, broker.client() as greedy:
            other.allocate("kept").write(b"as it was")
            keeper = broker.keeper
            regions = []
            while "error" not in (reply := greedy.call("allocate", **allocation(None))):
                regions.append(reply["region"])
                reply.close()
            os.kill(keeper, signal.SIGKILL)
            await_end(keeper)
            assert other.get("kept", readonly=False).bytes(9) == b"as it was"
            greedy.release(*regions)
            deadline = time.monotonic() + 20
            while "/memfd:gdrpy-host (deleted)" not in descriptors(broker.keeper):
                assert time.monotonic() < deadline
            assert broker.keeper != keeper
            broker.restart()
            other.reopen()
            assert other.get("kept").bytes(9) == b"as it was"
        broker.log.write_text("")  # that no keeper could be had then is an error in it

    def test_many_got_at_once_are_those_that_there_was_room_for(
        self, start_broker: StartBroker
    ) -> None:
        broker = start_broker(descriptors=64)
        with broker.client() as other, broker.client() as greedy:
            names = [f"kept-{number}" for number in range(8)]
            other.release(*[other.allocate(name)["region"] for name in names])
            regions = []
            while "error" not in (reply := greedy.call("allocate", **allocation(None))):
                regions.append(reply["region"])
                reply.close()
            left = descriptors(broker.pid)
            for _ in range(3):
                left.remove("/memfd:gdrpy-host (deleted)")
            greedy.release(*regions[:3])
            await_descriptors(broker.pid, left)
            grants, error = other.get_many(names)
            assert error == "OutOfMemory"
            assert 0 < len(grants) < len(names)
            assert other.ok("status")["leases"] == len(regions[3:]) + len(grants)


class TestMemoryUsedUp:
    def test_of_the_gpu_is_out_of_memory(self, start_broker: StartBroker) -> None:
        broker = start_broker(environment={"GDRPY_SIM_MEMORY": str(16 << 20)})
        with broker.client() as client:
            kept = [client.allocate(f"gpu-{index}", 4 << 20, device=0) for index in range(4)]
            fields = allocation("one more", 2 << 20, device=0)
            assert client.error("allocate", **fields) == "QuotaExceeded"
            client.ok("delete", name="gpu-0")
            client.release(kept[0]["region"])
            client.ok("allocate", **fields)

    def test_by_the_limit_of_a_device_or_of_a_user_is_the_quota(
        self, start_broker: StartBroker
    ) -> None:
        broker = start_broker(
            uid=BROKER_UID, quotas={"device": 1 << 20, "user": 8192, "regions": 3}
        )
        with broker.client() as client:
            client.allocate("big", (1 << 20) - 4096)
            client.allocate("small", 4096)
            assert client.error("allocate", **allocation("tiny", 1)) == "QuotaExceeded"

    def test_by_a_failing_driver_is_out_of_memory_and_passes(
        self, start_broker: StartBroker
    ) -> None:
        broker = start_broker(environment={"GDRPY_SIM_FAULT": "cuMemCreate:2"})
        with broker.client() as client:
            client.allocate("first", device=0)
            assert client.error("allocate", **allocation("second", device=0)) == "OutOfMemory"
            assert client.error("stat", name="second") == "NotFound"
            client.allocate("second", device=0)
            found = client.ok("status")
            assert found["used"]["0"] == 2 * (2 << 20)

    @pytest.mark.parametrize("call", ["cuMemCreate:1:999", "cuMemExportToShareableHandle:1:999"])
    def test_other_failures_of_the_driver_are_no_fault_of_the_protocol(
        self, call: str, start_broker: StartBroker
    ) -> None:
        broker = start_broker(environment={"GDRPY_SIM_FAULT": call})
        with broker.client() as client:
            reply = client.call("allocate", **allocation("first", device=0))
            assert reply["error"] == "BackendUnavailable"
            assert "CUDA_ERROR_UNKNOWN" in reply["message"]
            client.allocate("first", device=0)
