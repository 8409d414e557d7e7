"""Both clients, while the broker is restarted, stays away, or does not answer."""

from __future__ import annotations

import resource
import threading

import pytest
from msgspec.msgpack import decode

from brokers import await_end
from conformance.clients import refusal
from fake_server import grant
from gdrpy.memory.file import create_export


@pytest.fixture
def peer(start_client, broker):
    """A client of the broker."""
    return start_client(broker.path)


def give(peer, *numbers):
    """Answer gets by host memory."""
    for number in numbers:
        request = peer.take("get")
        fields = grant(number, request["name"], device=-1)
        peer.send({"id": request["id"], "fds": 1, **fields}, [create_export(4096)])


def resume(peer, wanted, lost=(), session=2, before=1, **hello):
    """Answer a client that comes again."""
    peer.hello(session=session, **hello)
    request = peer.take("resume")
    assert (request["session"], sorted(request["leases"])) == (before, wanted)
    peer.reply(request, lost=list(lost))


def new_life(broker):
    """Have the next broker know nothing of the last one."""
    keeper = broker.keeper
    broker.stop()
    await_end(keeper)
    broker.start()


class TestRestart:
    def test_leaves_leases_as_they_were(self, peer, broker):
        handle = peer.allocate("a")["handle"]
        nameless = peer.allocate(None)["handle"]
        peer.get("a", 1)
        broker.restart()
        assert peer.stat("a")["writers"] == 1
        for each in (handle, nameless):
            peer.check(each)
            peer.write(each, "goes on")
        with broker.client() as client:
            (holder,) = client.ok("stat", name="a")["holders"]
            assert (holder["pid"], holder["count"]) == (peer.pid, 2)

    def test_leaves_out_leases_that_were_given_back_meanwhile(self, peer, broker):
        handles = [peer.allocate("a")["handle"], peer.get("a", 0)["handle"]]
        broker.kill()
        peer.release(handles[0])
        broker.start()
        assert peer.stat("a")["writers"] == 1
        peer.release(handles[1])
        peer.list("")
        with broker.client() as client:
            assert client.ok("stat", name="a")["holders"] == []

    def test_lets_a_draft_be_published(self, peer, broker):
        handle = peer.create("a")["handle"]
        broker.restart()
        peer.publish(handle)
        assert peer.stat("a")["version"] == 1

    def test_is_waited_for(self, peer, broker):
        peer.allocate("a")
        broker.kill()
        peer.send("stat", "a")
        broker.start()
        assert peer.answer()["writers"] == 1

    def test_of_another_life_loses_every_lease(self, peer, broker):
        handle = peer.allocate("a")["handle"]
        peer.write(handle, "stays usable")
        new_life(broker)
        assert peer.list("")["regions"] == []
        for call in (peer.check, peer.seal):
            assert refusal(call, handle).name == "Gone"
        assert bytes.fromhex(peer.read(handle, 12)["bytes"]) == b"stays usable"
        again = peer.allocate("a")
        peer.release(handle)
        peer.check(again["handle"])
        assert peer.stat("a")["writers"] == 1

    def test_resumes_more_leases_than_one_packet_has_room_for(self, peer, broker):
        count = 4200
        resource.prlimit(peer.pid, resource.RLIMIT_NOFILE, (8192, 8192))
        peer.allocate("a")
        for _ in range(count):
            peer.get("a", 0)
        broker.restart()
        peer.stat("a")
        with broker.client() as client:
            (holder,) = client.ok("stat", name="a")["holders"]
            assert holder["count"] == count + 1

    def test_is_told_to_a_watcher_as_lost_events(self, peer, broker):
        handle = peer.watch("")["handle"]
        broker.restart()
        assert peer.next(handle, 20_000)["kind"] == "lost"
        peer.allocate("a")
        told = peer.next(handle, 20_000)
        while told["kind"] != "allocated":
            told = peer.next(handle, 20_000)
        assert told["name"] == "a"


class TestAbsence:
    def test_ends_a_call_after_the_time_for_it(self, start_client, broker):
        peer = start_client(broker.path, reconnect=0.2)
        handle = peer.allocate("a")["handle"]
        broker.kill()
        refused = refusal(peer.stat, "a")
        assert refused.name == "BrokerUnavailable"
        assert refused.text.startswith(f"stat: the broker at {broker.path} went away and did not")
        assert refused.text.endswith(": start it by `gdrpy serve`")
        broker.start()
        assert peer.stat("a")["writers"] == 1
        peer.check(handle)

    def test_from_the_beginning_names_path_reason_and_remedy(self, start_client, tmp_path):
        path = f"{tmp_path}/none.sock"
        refused = refusal(start_client().connect, path, 1000, 0)
        assert refused.name == "BrokerUnavailable"
        assert refused.text.startswith(
            f"connect: no broker answers at {path} (No such file or directory): start one by "
            f"`gdrpy serve`, or say by "
        )


class TestResume:
    def test_marks_the_leases_that_are_lost(self, start_client, fake):
        def first(peer):
            peer.hello()
            give(peer, 7, 8)

        def second(peer):
            resume(peer, [[7, True, False], [8, True, False]], lost=[7])
            request = peer.take("seal")
            assert request["region"] == 8
            peer.reply(request)
            peer.until_closed()

        client = start_client(fake(first, second))
        lost, kept = (client.get(name, 0)["handle"] for name in "ab")
        client.seal(kept)
        client.check(kept)
        assert refusal(client.check, lost).name == "Gone"
        refused = refusal(client.seal, lost)
        assert refused.name == "Gone"
        assert refused.text.startswith("seal: region 7 was lost when the broker at ")

    def test_whose_reply_is_lost_is_made_from_both_sessions(self, start_client, fake):
        def first(peer):
            peer.hello()
            give(peer, 7)

        def second(peer):
            peer.hello(session=2)
            peer.take("resume")

        def third(peer):
            resume(peer, [[7, True, False]], lost=[7], session=3, before=1)
            request = peer.take("resume")
            assert (request["session"], request["leases"]) == (2, [[7, True, False]])
            peer.reply(request, lost=[])
            peer.reply(peer.take("delete"))
            peer.until_closed()

        client = start_client(fake(first, second, third))
        handle = client.get("a", 0)["handle"]
        client.delete("b")
        client.check(handle)

    def test_is_repeated_without_a_lease_to_end_what_a_lost_reply_granted(self, start_client, fake):
        def first(peer):
            peer.hello()
            peer.take("get")

        def second(peer):
            resume(peer, [])
            give(peer, 7)
            peer.until_closed()

        client = start_client(fake(first, second))
        assert client.get("a", 0)["number"] == 7

    def test_that_is_refused_is_made_again_from_the_same_session(self, start_client, fake):
        def first(peer):
            peer.hello()
            give(peer, 7)
            peer.take("delete")

        def refuse(peer):
            peer.hello(session=2)
            request = peer.take("resume")
            assert request["session"] == 1
            peer.reply(request, error="QuotaExceeded", message="resume: too many leases")
            peer.until_closed()

        def last(peer):
            resume(peer, [[7, True, False]], session=3)
            peer.reply(peer.take("delete"))
            peer.until_closed()

        client = start_client(fake(first, *[refuse] * 5, last))
        handle = client.get("a", 0)["handle"]
        before = len(client.descriptors())
        for _ in range(5):
            assert refusal(client.delete, "b").name == "QuotaExceeded"
            assert len(client.descriptors()) == before - 1
        client.delete("b")
        client.check(handle)

    def test_without_a_reply_keeps_the_latest_sessions(self, start_client, fake):
        def first(peer):
            peer.hello()
            give(peer, 7)
            peer.take("delete")

        def silent(session):
            def play(peer):
                peer.hello(session=session)
                peer.take("resume")
                peer.until_closed()

            return play

        def last(peer):
            peer.hello(session=20)
            for session in range(5, 20):
                request = peer.take("resume")
                assert request["session"] == session
                peer.reply(request, lost=[7] if session < 19 else [])
            peer.reply(peer.take("delete"))
            peer.until_closed()

        client = start_client(fake(first, *map(silent, range(2, 20)), last), timeout=0.25)
        handle = client.get("a", 0)["handle"]
        before = len(client.descriptors())
        for _ in range(2, 20):
            assert refusal(client.delete, "b").name == "Timeout"
        assert len(client.descriptors()) == before - 1 + 16
        client.delete("b")
        client.check(handle)
        assert len(client.descriptors()) == before


class TestClose:
    def test_gives_leases_back_before_the_connection_ends(self, start_client, fake):
        def play(peer):
            peer.hello()
            give(peer, 7, 8)
            released.extend(peer.take("release")["regions"])
            peer.until_closed()

        released: list[int] = []
        client = start_client(fake(play))
        for name in "ab":
            client.get(name, 0)
        client.close()
        client.finish()
        assert sorted(released) == [7, 8]


class TestRepetition:
    @pytest.mark.parametrize("answers", ["done", "NotFound"])
    def test_of_a_delete_succeeds_though_the_first_was_carried_out(
        self, start_client, fake, answers
    ):
        def first(peer):
            peer.hello()
            peer.take("delete")

        def second(peer):
            peer.hello(session=2)
            request = peer.take("delete")
            refused = {"error": answers, "message": "delete: no 'a'"}
            peer.reply(request, **(refused if answers != "done" else {}))
            peer.until_closed()

        start_client(fake(first, second)).delete("a")

    def test_of_a_delete_that_was_not_read_may_find_no_name(self, start_client, fake):
        def first(peer):
            peer.hello()
            peer.sock.recv(1, 2)  # leaves the request unread: the client gets ECONNRESET

        def second(peer):
            peer.hello(session=2)
            peer.reply(peer.take("delete"), error="NotFound", message="delete: no 'a'")
            packet = peer.sock.recv(65536)
            if packet:  # the Python client looks for names that are alike
                peer.reply(decode(packet), regions=[], next=None)

        assert refusal(start_client(fake(first, second)).delete, "a").name == "NotFound"


class TestSilence:
    def test_times_out_and_the_next_call_resumes_before_the_old_connection_ends(
        self, start_client, fake
    ):
        def first(peer):
            peer.hello()
            give(peer, 7)
            peer.take("delete")
            order.append("first ends" if not peer.sock.recv(1) else "more")
            ended.set()

        def second(peer):
            peer.hello(session=2)
            request = peer.take("resume")
            order.append("second resumes")
            peer.reply(request, lost=[])
            peer.reply(peer.take("delete"))
            peer.until_closed()

        order: list[str] = []
        ended = threading.Event()
        client = start_client(fake(first, second), timeout=0.5)
        handle = client.get("a", 0)["handle"]
        refused = refusal(client.delete, "b")
        assert refused.name == "Timeout"
        assert refused.text.startswith("delete: the broker at ")
        client.delete("b")
        client.check(handle)
        client.finish()
        assert ended.wait(20)
        assert order == ["second resumes", "first ends"]

    def test_to_a_hello_times_out(self, start_client, fake):
        path = fake(lambda peer: peer.take("hello") and peer.sock.recv(1))
        refused = refusal(start_client().connect, path, 300, 0)
        assert refused.name == "Timeout"
        assert refused.text.startswith(f"connect: the broker at {path} did not answer within ")
