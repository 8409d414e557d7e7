"""Packets that no client would send: each gets its typed error, and costs nobody else anything."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgpack
import pytest

from brokers import Broker, Template, await_descriptors, descriptors, running
from gdrpy.broker import protocol
from gdrpy.broker.server.connection import NONSENSE_LIMIT
from rawclient import RawClient, allocation

DEEP = b"\x91" * 60_000 + b"\xc0"
DEEP_MAP = b"\x81\xa1a" * 20_000 + b"\xc0"


def text(value: bytes) -> bytes:
    return bytes([0xA0 + len(value)]) + value


def message(*pairs: bytes) -> bytes:
    return bytes([0x80 + len(pairs)]) + b"".join(pairs)


OP_STAT = text(b"op") + text(b"stat")
ID = text(b"id") + b"\x07"
STATUS = msgpack.packb({"op": "status", "id": 7})


def get_many(names: list[str]) -> dict[str, Any]:
    return {"op": "get_many", "id": 7, "names": names, "readonly": True, "gpu": False}


#: Packets of which not even a number can be read, or no message at all.
NO_MESSAGES = {
    "nil": b"\xc0",
    "a list": msgpack.packb(["status", 7]),
    "a byte that is no msgpack": b"\xc1",
    "deep lists": DEEP,
    "deep maps": DEEP_MAP,
    "deep lists before the operation": message(text(b"z") + DEEP, OP_STAT, ID),
    "a deep operation": message(text(b"op") + DEEP, ID),
    "a list of four billion": b"\xdd\xff\xff\xff\xff",
    "a map of four billion": b"\xdf\xff\xff\xff\xff" + OP_STAT,
    "text of four billion": message(OP_STAT, ID, text(b"name") + b"\xdb\xff\xff\xff\xff"),
    "more after its end": STATUS + b"\0",
    "a number that is none": message(OP_STAT, text(b"id") + text(b"seven")),
    "no number": message(OP_STAT),
    "an infinite number": message(OP_STAT, text(b"id") + b"\xcb" + struct.pack(">d", float("inf"))),
    "zeros": bytes(1000),
    "as many bytes as a packet may have": b"\xff" * protocol.PACKET_LIMIT,
    "more bytes than a packet may have": b"\xff" * (protocol.PACKET_LIMIT + 1),
    "far more": b"\xff" * (2 * protocol.PACKET_LIMIT),
}

#: Requests that break one rule each.
INVALID: dict[str, dict[str, Any]] = {
    "unknown operation": {"op": "format_disk"},
    "no operation": {},
    "operation of another type": {"op": 5},
    "unknown field": {"op": "status", "verbose": True},
    "missing field": {"op": "list", "prefix": ""},
    "second hello": {"op": "hello", "version": 1, "client": "again"},
    "negative number": {"op": "stat", "region": -1},
    "number of a bool": {"op": "stat", "region": True},
    "both name and number": {"op": "stat", "name": "a", "region": 1},
    "neither name nor number": {"op": "stat"},
    "empty name": {"op": "get", "name": "", "readonly": True, "gpu": False},
    "name of 256 characters": {"op": "stat", "name": "x" * 256},
    "name of 256 bytes": {"op": "allocate", **allocation("\u00e4" * 128)},
    "name with a line feed": {"op": "allocate", **allocation("a\nb")},
    "name with a zero": {"op": "allocate", **allocation("a\0b")},
    "name with an escape": {"op": "create", **allocation("\x1b[31m")},
    "name that turns text around": {"op": "create", **allocation("a\u202eb")},
    "name of bytes": {"op": "allocate", **allocation("a") | {"name": b"a"}},
    "no bytes": {"op": "allocate", **allocation("a", 0)},
    "negative bytes": {"op": "allocate", **allocation("a", -1)},
    "too many bytes": {"op": "allocate", **allocation("a", protocol.REGION_LIMIT + 1)},
    "bytes by a float": {"op": "allocate", **allocation("a") | {"nbytes": 4096.0}},
    "device before the host": {"op": "allocate", **allocation("a", device=-2)},
    "device that names no GPU": {"op": "allocate", **allocation("a", device="GPU-7")},
    "device of 41 letters": {"op": "allocate", **allocation("a", device="G" * 41)},
    "device of 17 bits": {"op": "allocate", **allocation("a", device=1 << 16)},
    "mode with an x bit": {"op": "allocate", **allocation("a", mode=0o755)},
    "metadata too long": {
        "op": "allocate",
        **allocation("a", metadata=bytes(protocol.METADATA_LIMIT + 1)),
    },
    "metadata of text": {"op": "allocate", **allocation("a", metadata="text")},
    "too many names": {
        **get_many(["a"] * (protocol.BATCH_LIMIT + 1)),
    },
    "too many leases": {
        "op": "resume",
        "session": 1,
        "leases": [[1, False, False]] * (protocol.BATCH_LIMIT + 1),
    },
    "lease of two fields": {"op": "resume", "session": 1, "leases": [[1, False]]},
    "prefix too long": {"op": "watch", "prefix": "x" * 256},
    "unknown field of great length": {"op": "status", "x" * 60_000: 1},
    "operation of great length": {"op": "x" * 60_000},
}

#: Requests with text that is no UTF-8 in one place, and deep nesting beside a good number.
UNREADABLE = {
    "name that is no UTF-8": message(OP_STAT, ID, text(b"name") + text(b"\xff\xfe")),
    "half a surrogate pair": message(OP_STAT, ID, text(b"name") + text(b"\xed\xa0\x80")),
    "overlong UTF-8": message(OP_STAT, ID, text(b"name") + text(b"\xc0\xaf")),
    "field that is no UTF-8": message(OP_STAT, ID, text(b"\xff") + b"\xc0"),
    "operation that is no UTF-8": message(text(b"op") + text(b"\xff"), ID),
    "time as a name": message(OP_STAT, ID, text(b"name") + b"\xd6\xff\0\0\0\0"),
}


@pytest.fixture(scope="module")
def broker(template: Template, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One for all of these tests: none of them changes it."""
    with running(template, tmp_path_factory.mktemp("broker")) as made:
        yield made


@pytest.fixture
def other(broker: Broker) -> Iterator[RawClient]:
    """Another client, whose requests are answered whatever the first one does."""
    with broker.client() as made:
        made.allocate("kept").write(b"as it was")
        made.get("kept")  # for which the broker opens it once more
        yield made
        made.reopen()
        assert made.get("kept").bytes(9) == b"as it was"
        assert set(made.names()) == {"kept"}


class TestNoMessage:
    @pytest.mark.parametrize("packet", NO_MESSAGES.values(), ids=NO_MESSAGES)
    def test_is_a_protocol_error(self, packet: bytes, client: RawClient, other: RawClient) -> None:
        client.send_bytes(packet)
        reply = client.receive()
        assert (reply["id"], reply["error"]) == (0, "ProtocolError")
        assert len(reply["message"]) < 1000
        client.ok("status")

    def test_closes_the_connection_after_some_in_a_row_and_says_so(
        self, broker: Broker, client: RawClient, other: RawClient
    ) -> None:
        for _ in range(NONSENSE_LIMIT - 1):
            client.send_bytes(b"\xc1")
            assert "in a row" not in client.receive()["message"]
        client.send_bytes(msgpack.packb({"op": "format_disk", "id": 7}))
        last = client.receive()
        assert (last["id"], last["error"]) == (7, "InvalidRequest")
        assert "format_disk" in last["message"]
        assert (
            f"after {NONSENSE_LIMIT} such packets in a row the broker closes the connection "
            "and releases its regions" in last["message"]
        )
        with pytest.raises(ConnectionError):
            client.receive()

    def test_between_good_requests_closes_nothing(
        self, client: RawClient, other: RawClient
    ) -> None:
        draft = client.create("draft")["region"]
        for _ in range(3 * NONSENSE_LIMIT):
            client.send_bytes(b"\xc1")
            assert client.receive()["error"] == "ProtocolError"
            assert client.ok("stat", region=draft)["version"] == 0

    def test_in_a_flood_that_nobody_reads_meanwhile_is_told_why_it_ended(
        self, client: RawClient, other: RawClient
    ) -> None:
        with suppress(ConnectionError):
            for _ in range(2 * NONSENSE_LIMIT):
                client.send_bytes(b"\xc1")
        told = [client.receive()["message"] for _ in range(NONSENSE_LIMIT)]
        assert f"after {NONSENSE_LIMIT} such packets in a row" in told[-1]
        with pytest.raises(ConnectionError):
            client.receive()

    def test_that_is_a_greeting_of_another_version_is_sense(
        self, broker: Broker, other: RawClient
    ) -> None:
        with broker.client(hello=False) as client:
            for _ in range(2 * NONSENSE_LIMIT):
                assert client.error("hello", version=2, newer=True) == "ProtocolError"
            client.ok("hello", version=1, client="raw")

    def test_of_no_bytes_is_the_end(self, client: RawClient, other: RawClient) -> None:
        client.send_bytes(b"")
        with pytest.raises(ConnectionError):
            client.receive()


class TestInvalidRequest:
    @pytest.mark.parametrize("request_fields", INVALID.values(), ids=INVALID)
    def test_is_refused_with_its_number_and_changes_nothing(
        self, request_fields: dict[str, Any], client: RawClient, other: RawClient
    ) -> None:
        client.send_bytes(msgpack.packb({"id": 7, **request_fields}))
        reply = client.receive()
        assert (reply["id"], reply["error"]) == (7, "InvalidRequest")
        assert len(reply["message"]) < 1000
        client.ok("status")

    @pytest.mark.parametrize("packet", UNREADABLE.values(), ids=UNREADABLE)
    def test_with_text_that_is_none_is_refused(
        self, packet: bytes, client: RawClient, other: RawClient
    ) -> None:
        client.send_bytes(packet)
        reply = client.receive()
        assert (reply["id"], reply["error"]) == (7, "InvalidRequest")
        client.ok("status")

    def test_of_one_byte_more_than_a_packet_may_have_is_none(
        self, client: RawClient, other: RawClient
    ) -> None:
        names = ["x" * 100] * 640
        request = get_many(names)
        for index in range(protocol.PACKET_LIMIT - len(msgpack.packb(request))):
            names[index] += "x"
        client.send_bytes(msgpack.packb(request))
        assert client.receive()["error"] == "NotFound"
        names[-1] += "x"
        client.send_bytes(msgpack.packb(request))
        assert client.receive()["error"] in ("InvalidRequest", "ProtocolError")

    def test_surrogates_in_a_name_cannot_be_said(self, client: RawClient) -> None:
        with pytest.raises(UnicodeEncodeError):
            client.send("stat", name="\ud800")


class TestHello:
    def test_of_another_version_says_both(self, broker: Broker) -> None:
        with broker.client(hello=False) as client:
            for version in (0, 2, 1 << 62):
                reply = client.call("hello", version=version, client="raw")
                assert reply["error"] == "ProtocolError"
                assert f"version {version}" in reply["message"]
                assert "version 1" in reply["message"]
            client.ok("hello", version=1, client="raw")

    def test_of_another_version_says_both_whatever_else_it_says(self, broker: Broker) -> None:
        with broker.client(hello=False) as client:
            for more in ({"compression": "zstd"}, {"client": 7}, {"client": "x" * 81}):
                reply = client.call("hello", **{"version": 2, "client": "newer", **more})
                assert reply["error"] == "ProtocolError"
                assert "version 2 of the protocol and this broker version 1" in reply["message"]
            reply = client.call("hello", version=1, client="raw", compression="zstd")
            assert reply["error"] == "InvalidRequest"
            client.ok("hello", version=1, client="raw")

    @pytest.mark.parametrize(
        ("op", "fields"),
        [
            ("status", {}),
            ("list", {"prefix": "", "after": ""}),
            ("resume", {"session": 1, "leases": []}),
            ("watch", {"prefix": ""}),
            ("digest", {"region": 1}),
            ("allocate", allocation("a")),
        ],
    )
    def test_comes_first(self, op: str, fields: dict[str, Any], broker: Broker) -> None:
        with broker.client(hello=False) as client:
            assert client.error(op, **fields) == "ProtocolError"
            client.ok("hello", version=1, client="raw")

    def test_with_a_long_name_is_refused(self, broker: Broker) -> None:
        with broker.client(hello=False) as client:
            assert client.error("hello", version=1, client="x" * 81) == "InvalidRequest"


class TestForeignDescriptors:
    def test_beside_requests_are_closed(
        self, broker: Broker, client: RawClient, other: RawClient
    ) -> None:
        before = descriptors(broker.pid)
        read, write = os.pipe()
        for packet in (STATUS, b"\xc1", msgpack.packb({"op": "no", "id": 1})):
            for count in (1, 253):
                client.send_bytes(packet, [write] * count)
                client.receive()
        os.close(write)
        assert os.read(read, 1) == b"", "somebody still has the pipe open"
        os.close(read)
        await_descriptors(broker.pid, before)

    def test_of_the_broker_s_own_socket_close_it_all(
        self, broker: Broker, other: RawClient
    ) -> None:
        before = descriptors(broker.pid)
        with broker.client() as client, broker.client() as again:
            client.send_bytes(STATUS, [client.sock.fileno(), again.sock.fileno()])
            client.receive()
        other.ok("status")
        await_descriptors(broker.pid, before)


class TestOtherPeoplesThings:
    def test_release_of_regions_that_one_does_not_hold_is_nothing(
        self, client: RawClient, other: RawClient
    ) -> None:
        kept = other.ok("stat", name="kept", region=None)
        client.release(kept["region"], kept["region"], 0, 1 << 62)
        client.ok("status")
        assert other.ok("stat", name="kept")["holders"] == kept["holders"]

    def test_release_of_more_than_one_holds_gives_back_one_s_own_alone(
        self, client: RawClient, other: RawClient
    ) -> None:
        number = client.get("kept")["region"]
        client.release(*[number] * 100)
        client.ok("status")
        assert len(other.ok("stat", name="kept")["holders"]) == 1

    def test_resume_of_one_s_own_session_is_refused(
        self, client: RawClient, other: RawClient
    ) -> None:
        assert client.error("resume", session=client.session, leases=[]) == "InvalidRequest"

    def test_resume_of_another_process_s_session_is_refused(
        self, broker: Broker, client: RawClient, other: RawClient
    ) -> None:
        number = client.allocate(None)["region"]
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with broker.client() as thief:
                    leases = [[number, True, False]]
                    found = thief.error("resume", session=client.session, leases=leases)
                    status = 0 if found == "InvalidRequest" else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert client.ok("stat", region=number)["holders"][0]["count"] == 1

    def test_resume_of_a_session_that_never_was_gives_what_rights_allow(
        self, client: RawClient, other: RawClient
    ) -> None:
        kept = other.ok("stat", name="kept")["region"]
        leases = [[kept, False, False], [1 << 40, True, True]]
        assert client.ok("resume", session=1 << 50, leases=leases)["lost"] == [1 << 40]

    def test_resume_of_a_live_session_of_one_s_own_process_ends_its_connection(
        self, broker: Broker, client: RawClient, other: RawClient
    ) -> None:
        number = client.allocate(None)["region"]
        with broker.client() as again:
            leases = [[number, True, False]]
            assert again.ok("resume", session=client.session, leases=leases)["lost"] == []
            with pytest.raises(ConnectionError):
                client.receive()
            assert again.ok("stat", region=number)["holders"][0]["count"] == 1
            broker.restart()  # which reads what was written of all this

    def test_publish_and_seal_of_what_one_does_not_hold_is_gone(
        self, client: RawClient, other: RawClient
    ) -> None:
        draft = other.create("draft")["region"]
        assert client.error("publish", region=draft) == "Gone"
        assert client.error("seal", region=draft) == "Gone"
        assert client.error("stat", region=draft) == "Gone"
        assert client.error("digest", region=draft) == "Gone"
        assert client.error("change", region=draft, mode=0o666) == "Gone"
        assert client.error("get", region=draft, readonly=True, gpu=False) == "Gone"


class TestNameThatNobodySees:
    @pytest.mark.parametrize(
        "name", ["\u3164", "a\u115f", "weights\ufe0f", "a\u2800b", " ", " a", "a ", "a\u200bb"]
    )
    def test_is_refused_and_told_in_ascii(self, name: str, client: RawClient) -> None:
        for op in ("allocate", "create"):
            reply = client.call(op, **allocation(name))
            assert reply["error"] == "InvalidRequest"
            assert ascii(name) in reply["message"]
        for op, fields in (("get", {"readonly": True, "gpu": False}), ("stat", {}), ("delete", {})):
            reply = client.call(op, name=name, **fields)
            assert (reply["error"], ascii(name) in reply["message"]) == ("InvalidRequest", True)

    @pytest.mark.parametrize("name", ["a b", "gewichte/\u00e4", "\u91cd\u307f", "\U0001f600"])
    def test_is_not_one_of_letters_with_spaces_between(self, name: str, client: RawClient) -> None:
        client.allocate(name)
        assert set(client.names()) >= {name}
