"""Both clients, against a broker that refuses, lies, or sends nonsense."""

from __future__ import annotations

import contextlib
import random

import pytest
from msgspec.msgpack import encode

from conformance.clients import Refused, refusal
from fake_server import LIFE, described, grant
from gdrpy.broker import unix
from gdrpy.broker.replies import ERRORS
from gdrpy.memory.file import create_export
from golden import REPLIES

#: Packets with bytes changed, of each kind of reply.
NONSENSE = 100
#: What the C library has no use for in the reply to a stat.
OPTIONAL = {"metadata", "holders", "sha256", "linked"}
GRANT = {"fds": 1, **grant(device=-1)}


def once(op, came=0, /, **fields):
    """Answer one request by these fields, and descriptors of host memory beside them."""

    def play(peer):
        peer.hello()
        request = peer.take(op)
        peer.send({"id": request["id"], **fields}, [create_export(4096) for _ in range(came)])
        peer.until_closed()

    return play


class TestRefusal:
    @pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
    def test_is_told_by_its_class_and_its_text(self, start_client, fake, kind):
        path = fake(once("list", error=kind.__name__, message="list: what the broker says"))
        refused = refusal(start_client(path).list, "")
        assert (refused.name, "what the broker says" in refused.text) == (kind.__name__, True)

    def test_of_a_newer_class_is_a_protocol_error(self, start_client, fake):
        path = fake(once("delete", error="Newer", message="so"))
        refused = refusal(start_client(path).delete, "a")
        assert (refused.name, refused.text) == ("ProtocolError", "so")

    def test_that_names_the_right_that_is_missing_is_told(self, start_client, fake):
        told = {"missing": "write", "name": "a"}
        path = fake(once("delete", error="PermissionDenied", message="delete: no", **told))
        refused = refusal(start_client(path).delete, "a")
        assert (refused.name, "delete: no" in refused.text) == ("PermissionDenied", True)

    def test_of_the_connection_is_told(self, start_client, fake):
        def refuse(peer):
            peer.take("hello")
            peer.send({"id": 0, "error": "QuotaExceeded", "message": "256 connections"})

        refused = refusal(start_client().connect, fake(refuse), 5000, 0)
        assert (refused.name, refused.text) == ("QuotaExceeded", "256 connections")

    def test_of_a_greeting_without_a_session_names_it(self, start_client, fake):
        def greet(peer):
            peer.reply(peer.take("hello"), version=1, life=LIFE)

        refused = refusal(start_client().connect, fake(greet), 5000, 0)
        assert (refused.name, "session" in refused.text) == ("ProtocolError", True)

    def test_of_another_version_names_both(self, start_client, fake):
        refused = refusal(start_client().connect, fake(lambda peer: peer.hello(version=2)), 5000, 0)
        assert refused.name == "ProtocolError"
        assert "speaks version 2 of the protocol" in refused.text
        assert "version 1: install the same gdrpy on both sides" in refused.text


WRONG = {
    "region": [None, -1, 1 << 63, "7", 7.0],
    "name": [7, b"a"],
    "nbytes": [None, 0, -1, "4096", [4096]],
    "size": [0, 1 << 63, True],
    "device": [-2, 65536, "gpu", None],
    "version": [-1, None],
    "sealed": [None, 1, "no"],
    "readonly": [0],
    "enforced": [{}],
    "metadata": [None, "text", 7],
    "id": [77, None, "1"],
}
CASES = [(name, value) for name, values in WRONG.items() for value in values]


class TestGrant:
    @pytest.mark.parametrize(("name", "value"), CASES, ids=repr)
    def test_with_a_wrong_value_is_refused(self, start_client, fake, name, value):
        client = start_client(fake(once("get", 1, **{**GRANT, name: value})))
        before = len(client.descriptors())
        assert refusal(client.get, "a", 0).name == "ProtocolError"
        assert len(client.descriptors()) <= before

    @pytest.mark.parametrize("name", [name for name in WRONG if name != "id"])
    def test_without_a_field_is_refused(self, start_client, fake, name):
        fields = {key: value for key, value in GRANT.items() if key != name}
        assert refusal(start_client(fake(once("get", 1, **fields))).get, "a", 0).name == (
            "ProtocolError"
        )

    @pytest.mark.parametrize(("told", "came"), [(1, 0), (0, 1), (0, 0), (2, 2), (1, 3)])
    def test_with_another_number_of_descriptors_is_refused(self, start_client, fake, told, came):
        client = start_client(fake(once("get", came, **{**GRANT, "fds": told})))
        before = len(client.descriptors())
        assert refusal(client.get, "a", 0).name in ("ProtocolError", "OutOfMemory")
        assert len(client.descriptors()) <= before

    def test_with_fields_of_a_later_broker_is_taken(self, start_client, fake):
        later = {"later": {"deep": [[{"er": None}], 1.5, b"bytes"], "n": -1}, "x": [1 << 63]}
        region = start_client(fake(once("get", 1, **GRANT, **later))).get("a", 0)
        assert (region["number"], region["name"]) == (7, "a")

    def test_of_more_bytes_than_its_memory_has_cannot_be_read_beyond_it(self, start_client, fake):
        client = start_client(fake(once("get", 1, **{**GRANT, "nbytes": 8192, "size": 8192})))
        with pytest.raises(Refused):
            client.read(client.get("a", 0)["handle"], 8192)


#: Calls and golden replies to them, of which bytes are changed.
CALLS = {
    "grant": ("get", "a", 0),
    "list": ("list", ""),
    "stat": ("stat", "a"),
    "done": ("delete", "a"),
    "refusal": ("list", ""),
    "refusal for want of a right": ("delete", "a"),
}
#: What begins a value that a message has no room for, or no value at all.
HEADS = (0xC1, 0xC6, 0xC9, 0xDB, 0xDD, 0xDF, 0x80, 0xFF)


class TestNonsense:
    @pytest.mark.parametrize("reply", CALLS)
    def test_leaves_the_client_alive(self, start_client, fake, reply):
        dice = random.Random(reply)
        message = GRANT if reply == "grant" else REPLIES[reply][0]

        def play(peer):
            peer.hello()
            request = peer.take(CALLS[reply][0])
            packet = bytearray(encode({**message, "id": request["id"]}))
            for _ in range(dice.randint(1, 4)):
                packet[dice.randrange(len(packet))] = dice.choice((*HEADS, dice.randrange(256)))
            del packet[dice.choice((len(packet), dice.randrange(1, len(packet)))) :]
            fds = [create_export(4096)] if reply == "grant" else []
            unix.send(peer.sock, packet, fds)
            unix.close_all(fds)

        path = fake(*[play] * NONSENSE)
        client = start_client()
        for _ in range(NONSENSE):
            client.connect(path, 5000, 0)
            with contextlib.suppress(Refused):
                client.send(*CALLS[reply])
                client.answer()
            client.close()

    def test_among_events_is_refused_and_the_watch_goes_on(self, start_client, fake):
        def first(peer):
            peer.hello()
            peer.until_closed()

        def second(peer):
            peer.hello()
            peer.reply(peer.take("watch"))
            peer.send({"event": 7})
            peer.until_closed()

        def third(peer):
            peer.hello(session=2)
            peer.reply(peer.take("watch"))
            peer.send({"event": "newer", "later": [1]})
            peer.until_closed()

        client = start_client(fake(first, second, third))
        handle = client.watch("")["handle"]
        assert refusal(client.next, handle, 5000).name == "ProtocolError"
        assert client.next(handle, 5000)["kind"] == "lost"
        assert client.next(handle, 5000)["kind"] in ("newer", "other")
        client.unwatch(handle)


class TestPacket:
    def test_that_is_too_long_is_refused(self, start_client, fake):
        client = start_client(fake(once("list", regions=[], next=None, later=b"x" * 65536)))
        refused = refusal(client.list, "")
        assert refused.name == "ProtocolError"
        assert "has more than 65536 bytes" in refused.text


class TestDescription:
    @pytest.mark.parametrize("name", [name for name in described() if name not in OPTIONAL])
    def test_without_a_field_is_refused(self, start_client, fake, name):
        fields = {key: value for key, value in described().items() if key != name}
        refused = refusal(start_client(fake(once("stat", **fields))).stat, "a")
        assert refused.name == "ProtocolError"

    def test_in_a_list_with_a_wrong_value_is_refused(self, start_client, fake):
        entry = {**REPLIES["list"][0]["regions"][0], "size": -1}
        path = fake(once("list", regions=[entry], next=None))
        assert refusal(start_client(path).list, "").name == "ProtocolError"
