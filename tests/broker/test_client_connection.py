"""The client's connection: what it makes of a broker that fails, lies, or goes and comes back."""

import asyncio
import errno
import gc
import os
import resource
import select
import signal
import subprocess
import sys
import threading

import pytest
from msgspec.msgpack import decode, encode

import gdrpy
from fake_server import LIFE, described, grant, memory
from gdrpy import aio
from gdrpy.broker import unix as _unix
from gdrpy.broker.client.broker import connect
from golden import REPLIES
from support import open_descriptors

OTHER_LIFE = "f" * 32
#: Of which some came while a packet was received, as seen where a child kept what it brought.
FORKS = 400
#: Forks a process that has little memory: that of all tests takes ten times as long.
FORKING = """
import contextlib, os, sys, threading
import gdrpy

def keeps_memory():
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # of the listing itself
            if "memfd:gdrpy" in os.readlink(f"/proc/self/fd/{fd}"):
                return True
    return False

def get_again_and_again():
    while not enough.is_set():
        client.get("a").close()

with gdrpy.connect(sys.argv[1]) as client:
    client.allocate("a", 4096, device="cpu").close()
    enough = threading.Event()
    thread = threading.Thread(target=get_again_and_again)
    thread.start()
    kept = 0
    for _ in range(int(sys.argv[2])):
        child = os.fork()
        if not child:
            os._exit(keeps_memory())
        kept += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    enough.set()
    thread.join()
print(kept)
"""


def answer_get(peer, **others):
    peer.give(peer.take("get"), grant(**others))


class TestConnect:
    def test_to_no_socket_names_it_the_reason_and_the_remedy(self, tmp_path):
        path = str(tmp_path / "none.sock")
        with pytest.raises(gdrpy.BrokerUnavailable) as caught:
            connect(path)
        assert str(caught.value) == (
            f"connect: no broker answers at {path} (No such file or directory): start one by "
            f"`gdrpy serve`, or say by socket= or GDRPY_SOCKET where it is"
        )
        assert caught.value.errno == errno.ECONNREFUSED

    def test_to_a_socket_that_nobody_serves_is_refused(self, tmp_path):
        path = str(tmp_path / "stale.sock")
        _unix.listen(path, 0o600, 1).close()
        with pytest.raises(gdrpy.BrokerUnavailable, match=r"stale.sock \(Connection refused\)"):
            connect(path)

    def test_takes_the_path_from_the_environment(self, fake, monkeypatch):
        path = fake(lambda peer: (peer.hello(), peer.until_closed()))
        monkeypatch.setenv("GDRPY_SOCKET", path)
        with connect() as broker:
            assert broker.socket == path
            assert broker.life == LIFE
            assert repr(broker) == f"<Broker at {path}>"
        assert repr(broker) == "<Broker CLOSED>"

    def test_to_another_version_raises_protocol_error(self, fake):
        path = fake(lambda peer: peer.hello(version=2))
        with pytest.raises(gdrpy.ProtocolError, match="speaks version 2 .* this client version 1"):
            connect(path)

    def test_to_a_broker_that_refuses_the_version_raises_what_it_says(self, fake):
        def refuse(peer):
            peer.reply(peer.take("hello"), error="ProtocolError", message="hello: too old")

        with pytest.raises(gdrpy.ProtocolError, match="hello: too old"):
            connect(fake(refuse))

    def test_that_is_refused_as_such_raises_what_the_broker_says(self, fake):
        def refuse(peer):
            peer.take("hello")
            peer.send({"id": 0, "error": "QuotaExceeded", "message": "hello: 256 connections"})

        with pytest.raises(gdrpy.QuotaExceeded, match="256 connections"):
            connect(fake(refuse))

    def test_to_half_a_hello_raises_protocol_error(self, fake):
        def half(peer):
            peer.reply(peer.take("hello"), version=1)

        with pytest.raises(gdrpy.ProtocolError, match="hello: the broker's reply has no life"):
            connect(fake(half))

    def test_to_silence_raises_timeout(self, fake):
        def silent(peer):
            peer.take("hello")
            peer.until_closed()

        with pytest.raises(gdrpy.Timeout, match=r"did not answer within 0.05 s: .* by timeout="):
            connect(fake(silent), timeout=0.05)

    @pytest.mark.parametrize(
        ("kwargs", "message"),
        [
            ({"timeout": 0}, "timeout must be a number of seconds, not 0"),
            ({"timeout": float("inf")}, "timeout must be a number of seconds, not inf"),
            ({"reconnect": -1}, "reconnect must be a number of seconds, not -1"),
            ({"socket": "/" + 107 * "x"}, "a socket's path has at most 107 bytes"),
        ],
    )
    def test_with_impossible_arguments_raises_value_error(self, kwargs, message):
        with pytest.raises(ValueError, match=message):
            connect(**kwargs)

    def test_with_a_timeout_of_another_type_raises_type_error(self):
        with pytest.raises(TypeError, match="connect: timeout must be a number .*, not 'x'"):
            connect(timeout="x")


@pytest.mark.usefixtures("no_descriptors_leak")
class TestReplyThatCannotBe:
    """Raises ProtocolError, closes the descriptors that came, and the next call connects again."""

    def check(self, fake, send, message):
        def first(peer):
            peer.hello()
            send(peer, peer.take("get"))
            peer.until_closed()

        def second(peer):
            peer.greet_again()
            peer.reply(peer.take("delete"))
            peer.until_closed()

        with connect(fake(first, second)) as broker:
            with pytest.raises(gdrpy.ProtocolError, match=message):
                broker.get("a", gpu=False)
            broker.delete("a")

    def test_with_another_number(self, fake):
        def send(peer, request):
            peer.give({"id": request["id"] + 1}, grant())

        self.check(fake, send, "get: a reply to request 3 came to request 2")

    def test_without_its_descriptor(self, fake):
        def send(peer, request):
            peer.reply(request, fds=1, **grant())

        self.check(fake, send, "get: the reply tells of 1 descriptors, and 0 came")

    def test_with_one_too_many(self, fake):
        def send(peer, request):
            peer.send({"id": request["id"], "fds": 1, **grant()}, [memory(), memory()])

        self.check(fake, send, "get: the reply tells of 1 descriptors, and 2 came")

    def test_that_grants_without_memory(self, fake):
        def send(peer, request):
            peer.reply(request, **grant())

        self.check(fake, send, "get: 1 grants came with 0 descriptors")

    def test_that_grants_half(self, fake):
        def send(peer, request):
            peer.send({"id": request["id"], "fds": 1, "region": 7}, [memory()])

        self.check(fake, send, "get: the broker's reply .* missing required field `name`")

    def test_that_is_no_message(self, fake):
        def send(peer, request):
            peer.send_bytes(b"\x93\x01")

        self.check(fake, send, "get: the broker's reply has a malformed value: Expected `object`")

    def test_that_is_longer_than_a_packet_may_be(self, fake):
        def send(peer, request):
            peer.send_bytes(b"0" * (64 * 1024 + 1))

        self.check(fake, send, "a packet has more than 65536 bytes")


#: Values of every type that a packet knows, and out of every bound; ABSENT leaves the field out.
ABSENT = "<absent>"
ODD = [ABSENT, None, True, -2, 0, 1 << 63, 1.5, "x", "", b"x", b"x" * 4097, [], [7], {}, {"a": 7}]


def fits(value, field):
    """Whether a grant may have that value."""
    number = type(value) is int and 0 <= value < 1 << 63
    return {
        "region": number,
        "name": value is None or (type(value) is str and value != ABSENT),
        "nbytes": number and value > 0,
        "size": number and value > 0,
        "device": number,
        "version": number,
        "sealed": type(value) is bool,
        "readonly": type(value) is bool,
        "enforced": type(value) is bool,
        "metadata": type(value) is bytes and len(value) < 4097,
    }[field]


MALFORMED = [
    pytest.param(field, value, id=f"{field}-{value!r:.20}")
    for field in grant()
    for value in ODD
    if not fits(value, field)
]


def changed(message, field, value):
    made = {**message, field: value}
    if value == ABSENT:
        del made[field]
    return made


def malformed(field, value):
    return changed(grant(), field, value)


#: Replies that are as they must be.
GOOD = {
    "rounded_size": {"size": 1},
    "get_many": {"grants": [], "more": False},
    "list": {"regions": [], "next": None},
    "stat": described(),
    "status": {name: value for name, value in REPLIES["status"][0].items() if name != "id"},
}
ENTRY = REPLIES["list"][0]["regions"][0]


def fits_entry(value, field):
    """Whether what is told of a region may have that value."""
    if field in ("mode", "uid", "gid", "readers", "writers"):
        return fits(value, "version")
    return fits(value, "name" if field == "uuid" else field)


MALFORMED_ENTRY = [
    pytest.param(field, value, id=f"{field}-{value!r:.20}")
    for field in ENTRY
    for value in ODD
    if not fits_entry(value, field)
]


async def get_by_asyncio(path):
    async with await aio.connect(path) as broker:
        await broker.get("a", gpu=False)


def get(path):
    with connect(path) as broker:
        broker.get("a", gpu=False)


def allocate(path):
    with connect(path) as broker:
        broker.allocate("a", 4096, gpu=False, wait=1)


def get_many(path):
    with connect(path) as broker:
        broker.get_many(["b", "a"], gpu=False)


@pytest.mark.usefixtures("no_descriptors_leak")
class TestMalformedGrant:
    """Raises ProtocolError that names the field, and leaves neither descriptor nor lease."""

    @pytest.mark.parametrize(("field", "value"), MALFORMED)
    @pytest.mark.parametrize(
        "call", [get, allocate, lambda path: asyncio.run(get_by_asyncio(path))]
    )
    def test_of_one_region_is_refused(self, fake, call, field, value):
        def serve(peer):
            peer.hello()
            packet, _ = _unix.receive(peer.sock, 1 << 16, 0)
            peer.give(decode(packet), malformed(field, value))
            assert peer.sock.recv(1) == b""  # no release of a lease that was never there

        with pytest.raises(gdrpy.ProtocolError, match=rf"(get|allocate): .*[.`]{field}`"):
            call(fake(serve))

    @pytest.mark.parametrize(("field", "value"), MALFORMED)
    def test_among_several_is_refused(self, fake, field, value):
        def serve(peer):
            peer.hello()
            peer.give(peer.take("get_many"), grant(8), malformed(field, value))
            assert peer.sock.recv(1) == b""

        with pytest.raises(gdrpy.ProtocolError, match=f"get_many: .*[.`]{field}`"):
            get_many(fake(serve))

    @pytest.mark.parametrize("value", ODD)
    def test_that_is_none_is_refused(self, fake, value):
        def serve(peer):
            peer.hello()
            request = peer.take("get_many")
            fields = {"id": request["id"], "fds": 2, "more": False}
            peer.send({**fields, "grants": [grant(), value]}, [memory(), memory()])
            assert peer.sock.recv(1) == b""

        with pytest.raises(gdrpy.ProtocolError, match=r"get_many: the broker's reply has "):
            get_many(fake(serve))


def call_twice(path, call):
    """The error of a call, after which the connection serves the next one."""
    with connect(path) as broker:
        with pytest.raises(gdrpy.ProtocolError) as caught:
            call(broker)
        broker.delete("a")
    return str(caught.value)


CALLS = {
    "get": lambda broker: broker.get("a", gpu=False),
    "get_many": lambda broker: broker.get_many(["a"], gpu=False),
    "stat": lambda broker: broker.stat("a"),
    "list": lambda broker: broker.list(),
    "rounded_size": lambda broker: broker.rounded_size(1),
    "status": lambda broker: broker.status(),
    "delete": lambda broker: broker.delete("a"),
}


@pytest.mark.usefixtures("no_descriptors_leak")
class TestMalformedReply:
    def check(self, fake, op, sent=(), **fields):
        def first(peer):
            peer.hello()
            peer.send({"id": peer.take(op)["id"], **fields}, list(sent))
            peer.until_closed()

        def second(peer):
            if op in ("get", "get_many", "allocate", "create"):
                peer.greet_again()
            else:
                peer.hello(session=2)
            peer.reply(peer.take("delete"))
            peer.until_closed()

        return call_twice(fake(first, second), CALLS[op])

    @pytest.mark.parametrize("value", [value for value in ODD if value not in (ABSENT, 0)])
    @pytest.mark.parametrize("op", CALLS)
    def test_with_an_odd_number_of_descriptors_is_refused(self, fake, op, value):
        message = self.check(fake, op, **{**GOOD.get(op, {}), "fds": value})
        assert message.startswith(f"{op}: the ")
        assert "tells of" in message or "`$.fds`" in message

    @pytest.mark.parametrize("op", ["stat", "list", "rounded_size", "status", "delete"])
    def test_with_a_descriptor_that_nothing_grants_is_refused(self, fake, op):
        fields = {**GOOD.get(op, {}), "fds": 1}
        message = self.check(fake, op, [memory()], **fields)
        assert message == f"{op}: 0 grants came with 1 descriptors"

    @pytest.mark.parametrize(
        ("op", "field"),
        [
            ("rounded_size", "size"),
            ("get_many", "grants"),
            ("get_many", "more"),
            ("list", "regions"),
            ("list", "next"),
            ("stat", "holders"),
            ("stat", "linked"),
            ("stat", "metadata"),
            ("stat", "sha256"),
        ],
    )
    @pytest.mark.parametrize("value", [ABSENT, 1.5, {}])
    def test_is_refused_by_its_field(self, fake, op, field, value):
        message = self.check(fake, op, **changed(GOOD[op], field, value))
        assert message.startswith(f"{op}: the broker's reply has ")
        assert field in message

    @pytest.mark.parametrize("granted", [0, 1])
    def test_with_packets_without_end_is_refused(self, fake, granted):
        """Empty ones, and more grants than names were asked for."""

        def endless(peer):
            peer.hello()
            reply = {"id": peer.take("get_many")["id"], "fds": granted, "more": True}
            for _ in range(2):
                grants = [grant(1)] * granted
                peer.send({**reply, "grants": grants}, [memory() for _ in grants])
            peer.until_closed()

        def second(peer):
            peer.greet_again()
            peer.reply(peer.take("delete"))
            peer.until_closed()

        message = call_twice(fake(endless, second), CALLS["get_many"])
        assert message == "get_many: the broker's replies do not end"

    def test_with_pages_that_do_not_advance_is_refused(self, fake):
        def serve(peer):
            peer.hello()
            for _ in range(2):
                peer.reply(peer.take("list"), regions=[], next="a")
            peer.reply(peer.take("delete"))
            peer.until_closed()

        message = call_twice(fake(serve), CALLS["list"])
        assert message == "list: the page after 'a' ends with 'a'"

    @pytest.mark.parametrize(("field", "value"), MALFORMED_ENTRY)
    @pytest.mark.parametrize("op", ["list", "stat"])
    def test_about_a_region_is_refused_by_its_field(self, fake, op, field, value):
        fields = changed(GOOD["stat"], field, value)
        if op == "list":
            fields = {"regions": [ENTRY, changed(ENTRY, field, value)], "next": None}
        message = self.check(fake, op, **fields)
        assert message.startswith(f"{op}: the broker's reply has a malformed value: ")
        assert f"{field}`" in message

    @pytest.mark.parametrize("field", ["pid", "uid", "writable", "gpu", "count"])
    @pytest.mark.parametrize("value", [ABSENT, None, -1, "x"])
    def test_about_a_holder_is_refused_by_its_field(self, fake, field, value):
        holder = {"pid": 1, "uid": 0, "writable": True, "gpu": True, "count": 1}
        holders = [holder, changed(holder, field, value)]
        message = self.check(fake, "stat", **{**GOOD["stat"], "holders": holders})
        assert message.startswith("stat: the broker's reply has a malformed value: ")
        assert f"{field}`" in message

    @pytest.mark.parametrize("value", [value for value in ODD if not isinstance(value, str | None)])
    def test_with_an_error_of_no_name_is_a_protocol_error(self, fake, value):
        message = self.check(fake, "delete", error=value, message="delete: why")
        assert message.startswith("delete: the broker's reply has a malformed value")
        assert "`$.error`" in message

    def test_with_an_unknown_error_is_a_protocol_error_and_leaves_the_connection_as_it_is(
        self, fake
    ):
        def serve(peer):
            peer.hello()
            peer.reply(peer.take("delete"), error="x", message="delete: why")
            peer.reply(peer.take("delete"))
            peer.until_closed()

        assert call_twice(fake(serve), CALLS["delete"]) == "delete: why"

    @pytest.mark.parametrize("fields", [{"life": 7, "session": 1}, {"life": LIFE, "session": "x"}])
    def test_to_a_hello_ends_the_connection(self, fake, fields):
        def serve(peer):
            peer.reply(peer.take("hello"), version=1, **fields)
            assert peer.sock.recv(1) == b""

        with pytest.raises(gdrpy.ProtocolError, match=r"hello: .* at `\$\.(life|session)`"):
            connect(fake(serve))


class TestTimeout:
    def test_names_the_call_and_drops_the_connection(self, fake):
        def silent(peer):
            peer.hello()
            peer.take("delete")
            peer.until_closed()

        def prompt(peer):
            peer.hello(session=2)
            peer.reply(peer.take("delete"))
            peer.until_closed()

        with connect(path := fake(silent, prompt), timeout=1) as broker:
            with pytest.raises(gdrpy.Timeout) as caught:
                broker.delete("a")
            assert str(caught.value) == (f"delete: the broker at {path} did not answer within 1 s")
            broker.delete("a")


class TestRefusal:
    def test_leaves_the_connection_as_it_is(self, fake):
        def refuse(peer):
            peer.hello()
            peer.reply(peer.take("delete"), error="NotFound", message="delete: none")
            peer.reply(peer.take("delete"))
            peer.until_closed()

        with connect(fake(refuse)) as broker:
            with pytest.raises(gdrpy.NotFound, match="delete: none"):
                broker.delete("a")
            broker.delete("b")

    def test_of_one_name_of_many_raises_and_gives_the_others_back(self, fake):
        def refuse(peer):
            peer.hello()
            request = peer.take("get_many")
            granted = {"id": request["id"], "fds": 2, "grants": [grant(1), grant(2)], "more": True}
            peer.send(granted, [memory(), memory()])
            peer.reply(request, error="PermissionDenied", message="get_many: not c")
            assert sorted(given_back(peer, 2)) == [1, 2]
            peer.until_closed()

        with (
            connect(fake(refuse)) as broker,
            pytest.raises(gdrpy.PermissionDenied, match="not c"),
        ):
            broker.get_many(["a", "b", "c"], gpu=False)


def given_back(peer, count):
    regions = []
    while len(regions) < count:
        regions += peer.take("release")["regions"]
    return regions


class TestManyRegions:
    def test_come_in_several_packets_in_their_order(self, fake):
        def answer(peer):
            peer.hello()
            request = peer.take("get_many")
            more = {"id": request["id"], "fds": 2, "more": True}
            peer.send({**more, "grants": [grant(1), grant(2)]}, [memory(4096), memory(8192)])
            last = grant(3, nbytes=12288)
            peer.send(
                {"id": request["id"], "fds": 1, "more": False, "grants": [last]}, [memory(12288)]
            )
            peer.until_closed()

        with connect(fake(answer)) as broker:
            regions = broker.get_many(["a", "b", "c"], gpu=False)
            assert [region.id for region in regions] == [1, 2, 3]
            assert [region.allocation_size for region in regions] == [4096, 8192, 12288]

    def test_of_which_too_few_come_are_an_error(self, fake):
        def answer(peer):
            peer.hello()
            peer.give(peer.take("get_many"), grant(1), grant(2))
            assert sorted(given_back(peer, 2)) == [1, 2]
            peer.until_closed()

        with (
            connect(fake(answer)) as broker,
            pytest.raises(gdrpy.ProtocolError, match="2 grants came for 3 regions"),
        ):
            broker.get_many(["a", "b", "c"], gpu=False)

    @pytest.mark.usefixtures("no_descriptors_leak")
    def test_that_end_in_an_error_are_closed_and_the_error_is_raised(self, fake):
        def answer(peer):
            peer.hello()
            request = peer.take("get_many")
            part = {"id": request["id"], "fds": 1, "more": True, "grants": [grant()]}
            peer.send(part, [memory()])
            peer.send({"id": request["id"], "error": "OutOfMemory", "message": "no more files"})
            peer.until_closed()

        with (
            connect(fake(answer)) as broker,
            pytest.raises(gdrpy.OutOfMemory, match="no more files"),
        ):
            broker.get_many(["a", "b"], gpu=False)

    @pytest.mark.usefixtures("no_descriptors_leak")
    def test_that_stop_coming_are_closed(self, fake):
        def answer(peer):
            peer.hello()
            request = peer.take("get_many")
            part = {"id": request["id"], "fds": 1, "more": True, "grants": [grant()]}
            peer.send(part, [memory()])
            peer.until_closed()

        with (
            connect(fake(answer), timeout=1) as broker,
            pytest.raises(gdrpy.Timeout, match="get_many: .* did not answer"),
        ):
            broker.get_many(["a", "b"], gpu=False)


class TestBrokerThatWentAway:
    def test_is_found_again_and_asked_again(self, fake):
        def die(peer):
            peer.hello()
            peer.take("delete")

        def live(peer):
            peer.hello(session=2)
            peer.reply(peer.take("delete"))
            peer.until_closed()

        with connect(fake(die, live)) as broker:
            broker.delete("a")

    def test_is_told_of_the_leases_that_live(self, fake):
        def die(peer):
            peer.hello(session=41)
            answer_get(peer, region=1)
            answer_get(peer, region=2, readonly=True)
            answer_get(peer, region=3)
            assert given_back(peer, 1) == [3]

        def live(peer):
            peer.hello(session=42)
            request = peer.take("resume")
            assert (request["session"], request["leases"]) == (
                41,
                [[1, True, False], [2, False, False]],
            )
            peer.reply(request, lost=[])
            peer.reply(peer.take("delete"))
            peer.until_closed()

        with connect(fake(die, live)) as broker:
            kept = [broker.get("a", gpu=False), broker.get("b", gpu=False, readonly=True)]
            broker.get("c", gpu=False).close()
            broker.delete("x")
            assert len(kept) == 2

    def test_loses_regions_of_which_only_the_memory_stays(self, fake):
        def die(peer):
            peer.hello()
            answer_get(peer, region=1)
            answer_get(peer, region=2)

        def live(peer):
            peer.hello(session=2)
            peer.reply(peer.take("resume"), lost=[1])
            request = peer.take("seal")
            assert request["region"] == 2
            peer.reply(request)
            assert given_back(peer, 1) == [2]
            peer.until_closed()

        with connect(fake(die, live)) as broker:
            lost, kept = broker.get("a", gpu=False), broker.get("b", gpu=False)
            kept.seal()
            with pytest.raises(gdrpy.Gone, match="seal: region 1 was lost when the broker"):
                lost.seal()
            lost.write(b"still here")
            assert lost.read(10) == b"still here"
            lost.close()
            kept.close()

    def test_of_another_life_has_lost_all(self, fake):
        def die(peer):
            peer.hello()
            answer_get(peer)
            peer.take("seal")

        def live(peer):
            peer.hello(session=2, life=OTHER_LIFE)
            peer.reply(peer.take("delete"))
            peer.until_closed()

        with connect(fake(die, live)) as broker:
            region = broker.get("a", gpu=False)
            with pytest.raises(gdrpy.Gone, match="seal: region 7 was lost"):
                region.seal()
            broker.delete("a")
            assert broker.life == OTHER_LIFE

    def test_twice_is_asked_for_the_leases_of_both_sessions(self, fake):
        def die(peer):
            peer.hello(session=1)
            answer_get(peer, region=5)

        def die_while_resumed(peer):
            peer.hello(session=2)
            peer.take("resume")

        def live(peer):
            peer.hello(session=3)
            request = peer.take("resume")
            assert request["session"] == 1
            peer.reply(request, lost=[5])
            request = peer.take("resume")
            assert (request["session"], request["leases"]) == (2, [[5, True, False]])
            peer.reply(request, lost=[])
            peer.reply(peer.take("seal"))
            peer.until_closed()

        with connect(fake(die, die_while_resumed, live)) as broker:
            broker.get("a", gpu=False).seal()

    def test_after_a_delete_was_carried_out_says_so(self, fake):
        def die(peer):
            peer.hello()
            peer.take("delete")

        def live(peer):
            peer.hello(session=2)
            peer.reply(peer.take("delete"), error="NotFound", message="delete: none")
            peer.reply(peer.take("delete"), error="NotFound", message="delete: none")
            peer.until_closed()

        with connect(fake(die, live)) as broker:
            broker.delete("a")
            with pytest.raises(gdrpy.NotFound):
                broker.delete("a")

    @pytest.mark.parametrize("when", ["before it is sent", "before it is read"])
    def test_before_a_delete_was_read_has_not_carried_it_out(self, fake, when):
        connected, gone = threading.Event(), threading.Event()

        def die(peer):
            peer.hello()
            if when == "before it is sent":
                peer.sock.close()
            else:
                connected.wait(10)
                poll = select.poll()
                poll.register(peer.sock, select.POLLIN)
                assert poll.poll(10000)
                peer.sock.close()
            gone.set()

        def live(peer):
            peer.hello(session=2)
            peer.reply(peer.take("delete"), error="NotFound", message="delete: none")
            peer.until_closed()

        with connect(fake(die, live)) as broker:
            connected.set()
            assert when == "before it is read" or gone.wait(10)
            with pytest.raises(gdrpy.NotFound):
                broker.delete("a")

    @pytest.mark.parametrize("way", ["closed", "dropped", "answered too late"])
    def test_is_told_that_nothing_is_held_any_more(self, fake, way):
        gone = threading.Event()

        def die(peer):
            peer.hello()
            if way == "answered too late":
                peer.take("get")
            else:
                answer_get(peer)
            peer.sock.close()
            gone.set()

        def live(peer):
            peer.greet_again()
            if way == "answered too late":
                answer_get(peer)
            peer.reply(peer.take("delete"))
            peer.until_closed()

        with connect(fake(die, live)) as broker:
            region = broker.get("a", gpu=False)
            assert gone.wait(10)
            if way == "closed":
                region.close()
            if way == "dropped":
                del region
            broker.delete("a")

    def test_is_told_what_sleeps(self, fake):
        gone = threading.Event()

        def die(peer):
            peer.hello()
            answer_get(peer)
            told = [peer.take("release") for _ in range(2)]
            assert told == [
                {"op": "release", "regions": [], "asleep": [7]},
                {"op": "release", "regions": [7]},
            ]
            peer.sock.close()
            gone.set()

        def live(peer):
            peer.hello(session=2)
            request = peer.take("resume")
            assert (request["leases"], request["asleep"]) == ([], [7])
            peer.reply(request, lost=[])
            peer.reply(peer.take("delete"))
            assert peer.take("release") == {"op": "release", "regions": [], "awake": [7]}
            peer.until_closed()

        with connect(fake(die, live)) as broker:
            region = broker.get("a", gpu=False)
            sleeper = region._lease.sleeper()
            region.close()
            assert gone.wait(10)
            broker.delete("a")
            sleeper.close()

    def test_for_good_is_unavailable(self, fake):
        path = fake(lambda peer: (peer.hello(), peer.take("delete")))
        with (
            connect(path, reconnect=0.02) as broker,
            pytest.raises(gdrpy.BrokerUnavailable) as caught,
        ):
            broker.delete("a")
        assert str(caught.value) == (
            f"delete: the broker at {path} went away and did not come back within 0.02 s "
            f"(Connection refused): start it by `gdrpy serve`"
        )

    def test_and_is_not_sought_at_once_unavailable(self, fake):
        path = fake(lambda peer: (peer.hello(), peer.take("delete")))
        with connect(path, reconnect=0) as broker, pytest.raises(gdrpy.BrokerUnavailable):
            broker.delete("a")


class TestGivingBack:
    def test_a_closed_region_is_told_at_once(self, fake):
        told = threading.Event()

        def serve(peer):
            peer.hello()
            answer_get(peer)
            assert given_back(peer, 1) == [7]
            told.set()
            peer.until_closed()

        with connect(fake(serve)) as broker:
            broker.get("a", gpu=False).close()
            assert told.wait(10)

    def test_a_forgotten_region_is_told_at_once(self, fake):
        told = threading.Event()

        def serve(peer):
            peer.hello()
            answer_get(peer)
            assert given_back(peer, 1) == [7]
            told.set()
            peer.until_closed()

        with connect(fake(serve)) as broker:
            broker.get("a", gpu=False)
            gc.collect()
            assert told.wait(10)

    def test_while_another_thread_asks_waits_for_neither(self, fake):
        asked, closed = threading.Event(), threading.Event()

        def serve(peer):
            peer.hello()
            answer_get(peer)
            request = peer.take("status")
            asked.set()
            assert closed.wait(10)
            peer.reply(request, **GOOD["status"])
            assert given_back(peer, 1) == [7]
            peer.until_closed()

        with connect(fake(serve)) as broker:
            region = broker.get("a", gpu=False)
            thread = threading.Thread(target=broker.status)
            thread.start()
            assert asked.wait(10)
            region.close()
            closed.set()
            thread.join()

    def test_after_the_broker_was_closed_is_nothing(self, fake):
        with connect(fake(lambda peer: (peer.hello(), answer_get(peer)))) as broker:
            region = broker.get("a", gpu=False)
        region.write(b"usable")
        with pytest.raises(gdrpy.Closed, match=r"seal: the Broker is closed: connect\(\) again"):
            region.seal()
        region.close()


class TestDescriptorLimit:
    def test_gives_the_grant_back_and_keeps_the_connection(self, fake):
        def serve(peer):
            peer.hello()
            request = peer.take("get")
            fds = [memory()]
            reached.set()
            assert limited.wait(10)
            _unix.send(peer.sock, encode({"id": request["id"], "fds": 1, **grant()}), fds)
            assert given_back(peer, 1) == [7]
            _unix.close_all(fds)
            peer.reply(peer.take("delete"))
            peer.until_closed()

        reached, limited = threading.Event(), threading.Event()
        with connect(fake(serve)) as broker:

            def limit():
                assert reached.wait(10)
                # The lowest number that is free, and all above it, can be had no more.
                free = os.dup(0)
                os.close(free)
                resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))
                limited.set()

            before = resource.getrlimit(resource.RLIMIT_NOFILE)
            thread = threading.Thread(target=limit)
            thread.start()
            try:
                with pytest.raises(OSError, match="may open no more files") as caught:
                    broker.get("a", gpu=False)
            finally:
                thread.join()
                resource.setrlimit(resource.RLIMIT_NOFILE, before)
            assert caught.value.errno == errno.EMFILE
            broker.delete("a")


class TestFork:
    def test_child_cannot_use_it_and_does_not_keep_the_connection(self, fake):
        def serve(peer):
            peer.hello()
            answer_get(peer)
            peer.until_closed()
            gone.set()

        gone = threading.Event()
        broker = connect(fake(serve))
        region = broker.get("a", gpu=False)
        told, tell = os.pipe()
        finish, done = os.pipe()
        child = os.fork()
        if not child:
            try:
                broker.status()
            except gdrpy.Forked as error:
                os.write(tell, str(error).encode())
            del region
            os.read(finish, 1)
            os._exit(0)
        said = os.read(told, 4096).decode()
        broker.close()
        alone = gone.wait(10)
        os.write(done, b"x")
        os.waitpid(child, 0)
        for fd in (told, tell, finish, done):
            os.close(fd)
        assert (
            "belongs to the parent process; in a forked child connect to the broker again" in said
        )
        assert alone

    def test_child_of_a_process_that_connects_does_not_keep_the_socket(self, fake, monkeypatch):
        def fork_and_set_timeout(sock, seconds):
            mine = f"socket:[{os.fstat(sock.fileno()).st_ino}]"
            child = os.fork()
            if not child:
                os._exit(mine in open_descriptors().values())
            kept.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            _unix.set_timeout(sock, seconds)

        kept = []
        monkeypatch.setattr("gdrpy.broker.client.transport.set_timeout", fork_and_set_timeout)
        connect(fake(lambda peer: (peer.hello(), peer.until_closed()))).close()
        assert kept == [0]

    def test_child_forked_while_a_descriptor_comes_does_not_keep_it(self, broker):
        command = [sys.executable, "-c", FORKING, broker.path, str(FORKS)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")

    def test_child_of_a_process_that_was_asking_is_told_so_too(self, fake):
        def serve(peer):
            peer.hello()
            peer.until_closed()

        broker = connect(fake(serve))
        lock = broker._connection.transport.lock
        lock.acquire()  # as by another thread
        child = os.fork()
        if not child:
            signal.alarm(10)
            try:
                broker.get("a")
            except gdrpy.Forked:
                os._exit(0)
            os._exit(1)
        lock.release()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        broker.close()
