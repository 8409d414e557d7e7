"""Whose turn is next, and what a broker does in one, without a clock."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from brokers import BROKER_UID, Broker, StartBroker
from gdrpy.broker.server.connection import Flight, ServerConnection, User
from gdrpy.broker.server.quotas import DescriptorReserve
from gdrpy.broker.server.rights import UserMap, identity_of
from gdrpy.broker.server.turns import Turns
from rawclient import RawClient, acting_as, allocation

ANN, BOB = 40001, 40002


class TestTurns:
    def test_go_round_users_and_in_order_through_the_row_of_each(self) -> None:
        turns: Turns[str] = Turns()
        for one in ("a1", "a2", "a3", "b1", "a4", "c1", "b2"):
            turns.add(ord(one[0]), one)
        served = []
        while turns.circle:
            served.append(turns.next())
        assert served == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]

    def test_let_a_newcomer_wait_for_one_turn_of_each_other_user(self) -> None:
        turns: Turns[str] = Turns()
        for number in range(512):
            turns.add(1, f"crowd {number}")
        assert turns.next() == "crowd 0"
        turns.add(2, "newcomer")
        assert [turns.next(), turns.next()] == ["crowd 1", "newcomer"]

    def test_put_again_what_was_not_done_before_its_own_row_alone(self) -> None:
        turns: Turns[str] = Turns()
        for one in ("a1", "a2", "b1"):
            turns.add(ord(one[0]), one)
        turns.add_again(ord("a"), turns.next())
        assert [turns.next() for _ in range(3)] == ["b1", "a1", "a2"]

    def test_have_none_left_when_all_were_served(self) -> None:
        turns: Turns[str] = Turns()
        turns.add(1, "one")
        turns.next()
        with pytest.raises(IndexError):
            turns.next()


@contextmanager
def connected() -> Iterator[tuple[ServerConnection, socket.socket]]:
    """A connection as the broker has it, and its client's end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        yield (
            ServerConnection(ours, identity_of(ours, UserMap()), Flight(), User(os.getuid())),
            theirs,
        )


class TestBytesOwed:
    def test_are_those_sent_and_kept_and_none_when_all_was_read(self) -> None:
        with connected() as (connection, client):
            packets = 0
            while connection.send(bytes(16384), []):
                packets += 1
            assert packets > 5
            assert connection.sent == packets * (16384 + 1024)
            assert connection.kept == 16384 + 256
            assert connection.user.owed == connection.sent + connection.kept
            connection.settle()
            assert connection.sent == packets * (16384 + 1024)
            with suppress(BlockingIOError):
                while True:
                    client.recv(65536)
            connection.settle()
            assert connection.user.owed == connection.kept
            assert connection.flush()
            client.recv(65536)
            connection.settle()
            assert connection.user.owed == 0

    def test_are_those_of_a_request_until_it_is_done(self) -> None:
        with connected() as (connection, _):
            connection.ask(1000)
            connection.ask(3000)
            assert connection.user.owed == 3000
            connection.ask(0)
            assert connection.user.owed == 0

    def test_are_forgotten_with_the_connection(self) -> None:
        with connected() as (connection, _):
            while connection.send(bytes(16384), []):
                pass
            connection.ask(1000)
            connection.forget()
            assert connection.user.owed == 0


class TestLongRequest:
    def test_is_done_no_further_than_its_client_reads(self, broker: Broker) -> None:
        names = [f"big-{number}" for number in range(400)]
        with broker.client() as maker, broker.client() as deaf:
            for name in names:
                maker.allocate(name, metadata=bytes(4096)).close()
            for region in maker.ok("get_many", names=names[:1], readonly=True, gpu=False)["grants"]:
                maker.release(region["region"])
            before = maker.ok("status")["leases"]
            deaf.send("get_many", names=names, readonly=True, gpu=False)
            maker.ok("status")
            assert maker.ok("status")["leases"] - before < len(names) // 2
            got = 0
            while got < len(names):
                got += len(deaf.receive()["grants"])
            assert maker.ok("status")["leases"] - before == len(names)

    def test_of_many_connections_lets_each_have_a_turn(self, broker: Broker) -> None:
        """All have the first packet before any has the last."""
        names = ["kept"] * 640
        with ExitStack() as stack:
            stack.enter_context(broker.client()).allocate("kept").close()
            clients = [stack.enter_context(broker.client()) for _ in range(20)]
            for client in clients:
                client.send("get_many", names=names, readonly=True, gpu=False)
            late = stack.enter_context(broker.client())
            assert late.error("get", name="absent", readonly=True, gpu=False) == "NotFound"
            for client in clients:
                reply, got = client.receive(), 0
                assert reply["more"] is True
                while reply["more"]:
                    got += len(reply["grants"])
                    reply.close()
                    reply = client.receive()
                assert got + len(reply["grants"]) == len(names)
                reply.close()

    def test_to_release_and_to_resume_is_done_whole(self, broker: Broker) -> None:
        names = [f"name-{number}" for number in range(300)]
        with broker.client() as client:
            for name in names:
                client.allocate(name).close()
            regions = [entry["region"] for entry in client.names().values()]
            with broker.client() as second:
                leases = [[region, False, False] for region in regions]
                fields = {"session": client.session, "leases": leases[:200]}
                assert second.ok("resume", **fields, more=True)["lost"] == []
                assert second.ok("status")["leases"] == 300 + 200
                assert (
                    second.ok("resume", session=client.session, leases=leases[200:])["lost"] == []
                )
                with pytest.raises(ConnectionError):
                    client.ok("status")
                while (found := second.ok("status"))["sessions"] > 1:
                    pass
                assert found["leases"] == 300
                second.release(*regions)
                assert second.ok("status")["leases"] == 0
                assert second.ok("status")["regions"] == 300


class TestUserWhoReadsNothing:
    def test_has_those_closed_that_leave_most_unread(self, broker: Broker) -> None:
        with broker.client() as other, ExitStack() as stack:
            other.allocate("big", metadata=bytes(4096)).close()
            deaf = [stack.enter_context(broker.client()) for _ in range(200)]
            for client in deaf:
                client.send("get_many", names=["big"] * 4000, readonly=True, gpu=False)
            while (left := other.ok("status")["sessions"]) == 201:
                pass
            assert 50 < left < 201
            assert other.ok("stat", name="big")["readers"] < 201
            assert "leaves too much unread" in broker.log.read_text()


@pytest.fixture
def small(start_broker: StartBroker) -> Broker:
    """A broker with few descriptors, to which everybody may connect."""
    if os.geteuid() != 0:
        pytest.skip("being other users needs CAP_SETUID")
    return start_broker(uid=BROKER_UID, descriptors=256, options={"mode": 0o666})


class TestDescriptors:
    def test_leave_room_for_root_and_for_each_user_beside_one_who_takes_all(
        self, small: Broker
    ) -> None:
        with ExitStack() as stack:
            with acting_as(ANN):
                greedy = stack.enter_context(small.client())
                while "error" not in (reply := greedy.call("allocate", **allocation(None))):
                    reply.close()
                assert reply["error"] == "OutOfMemory"
                for _ in range(7):
                    stack.enter_context(small.client()).ok("status")
                assert refusal(small) == (0, "QuotaExceeded", "the broker's descriptors are use")
            with acting_as(BOB):
                mine = stack.enter_context(small.client())
                mine.allocate("bob's").write(b"here")
                assert mine.get("bob's").bytes(4) == b"here"
            root = stack.enter_context(small.client())
            root.allocate("root's").write(b"too")
            assert root.get("root's").bytes(3) == b"too"

    def test_are_a_quarter_of_all_for_the_connections_of_one_user(self, small: Broker) -> None:
        with ExitStack() as stack:
            with acting_as(ANN):
                for _ in range(256 // 4):
                    stack.enter_context(small.client())
                assert refusal(small) == (0, "QuotaExceeded", f"user {ANN} has 64 connections to")
            with acting_as(BOB):
                stack.enter_context(small.client()).ok("status")
            stack.enter_context(small.client()).ok("status")

    def test_are_kept_by_their_numbers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("resource.getrlimit", lambda _: (4096, 4096))
        descriptors = DescriptorReserve()
        last = {
            (uid, has): max(fd for fd in range(4096) if descriptors.admits(fd, uid, has))
            for uid in (0, ANN)
            for has in (7, 8)
        }
        assert last == {(0, 7): 4079, (0, 8): 4079, (ANN, 7): 4015, (ANN, 8): 2991}
        assert descriptors.of_user == 1024


def refusal(broker: Broker) -> tuple[int, str, str]:
    """How the next connection is refused: request, error, and how the reason begins."""
    with broker.client(hello=False) as client:
        client.send("hello", version=1, client="raw")
        reply = client.receive()
        with pytest.raises(ConnectionError):
            client.receive()
        return reply["id"], reply["error"], reply["message"].removeprefix("hello: ")[:32]


class TestRefusedConnection:
    def test_is_told_why_also_if_it_says_hello_late(self, small: Broker) -> None:
        with acting_as(ANN), ExitStack() as stack:
            for _ in range(64):
                stack.enter_context(small.client())
            late = stack.enter_context(small.client(hello=False))
            assert late.receive()["error"] == "QuotaExceeded"
            late.send("hello", version=1, client="raw")
            with pytest.raises(ConnectionError):
                late.receive()


class TestConnectionsBeyondTheLimit:
    def test_are_refused_for_their_user_however_many_wait_at_once(self, small: Broker) -> None:
        """They take no more descriptors than their user may have, and nobody else's connection."""
        with ExitStack() as stack:
            with acting_as(ANN):
                for _ in range(64):
                    stack.enter_context(small.client())
            os.kill(small.pid, signal.SIGSTOP)
            with acting_as(ANN):
                crowd = [stack.enter_context(small.client(hello=False)) for _ in range(600)]
            with acting_as(BOB):
                late = stack.enter_context(small.client(hello=False))
            os.kill(small.pid, signal.SIGCONT)
            late.ok("hello", version=1, client="raw")
            reason = f"user {ANN} has 64 connections to the broker, which is the limit: close some"
            assert {client.receive()["message"] for client in crowd} == {f"hello: {reason}"}


class TestWatchersOfOneUser:
    def test_hear_events_in_order_from_when_they_watch(self, broker: Broker) -> None:
        with ExitStack() as stack:
            maker = stack.enter_context(broker.client())
            watchers: list[RawClient] = []
            for number in range(150):
                watcher = stack.enter_context(broker.client())
                watcher.ok("watch", prefix="")
                watchers.append(watcher)
                if number % 50 == 49:
                    maker.allocate(f"name-{number}").close()
            for number, watcher in enumerate(watchers):
                expected = [f"name-{last}" for last in (49, 99, 149) if last >= number]
                assert [watcher.receive()["name"] for _ in expected] == expected
