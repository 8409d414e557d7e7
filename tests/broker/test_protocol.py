"""Messages to bytes and back, and what the wire refuses."""

import errno
import gc

import msgpack
import msgspec
import pytest

import gdrpy
from gdrpy.broker import replies, requests
from gdrpy.broker.protocol import METADATA_LIMIT, PACKET_LIMIT, pack_metadata, unpack_metadata
from gdrpy.broker.replies import error_of, refusal
from golden import REPLIES, REQUESTS

#: The kind of each golden reply.
KINDS = {
    "hello": replies.Welcome,
    "grant": replies.Grant,
    "grant of allocate": replies.Grant,
    "grant of a bound region": replies.Grant,
    "grants": replies.Grants,
    "resume": replies.Resumed,
    "rounded_size": replies.Size,
    "publish of several": replies.Published,
    "publish": replies.Published,
    "done": replies.Reply,
    "digest": replies.Sha256,
    "list": replies.Page,
    "stat": replies.Description,
    "stat of what sleeps": replies.Description,
    "stat of an ended region": replies.Description,
    "status": replies.Counters,
    "status with regions without a name": replies.Counters,
    "event": replies.Event,
    "event without a region": replies.Event,
    "refusal": replies.Refusal,
    "refusal for want of a right": replies.Refusal,
}

decode_request = msgspec.msgpack.Decoder(requests.AnyRequest).decode


@pytest.mark.parametrize("name", REQUESTS)
class TestRequest:
    def test_is_encoded_as_its_golden_frame(self, name):
        _, frame = REQUESTS[name]
        assert requests.encode(decode_request(bytes.fromhex(frame))).hex() == frame

    def test_golden_frame_is_its_message(self, name):
        message, frame = REQUESTS[name]
        assert msgpack.unpackb(bytes.fromhex(frame)) == message

    def test_golden_frame_is_what_the_broker_understands(self, name):
        message, frame = REQUESTS[name]
        request = decode_request(bytes.fromhex(frame))
        assert requests.name_of(type(request)) == message["op"]
        for field in message.keys() - {"op", "leases", "owner"}:
            assert getattr(request, field) == message[field]

    def test_with_an_unknown_field_is_refused_by_the_broker(self, name):
        message, _ = REQUESTS[name]
        with pytest.raises(Exception, match="unknown field `colour`"):
            decode_request(msgpack.packb({**message, "colour": "red"}))


@pytest.mark.parametrize("name", REPLIES)
class TestReply:
    def test_golden_frame_is_its_message(self, name):
        message, frame = REPLIES[name]
        assert msgpack.unpackb(bytes.fromhex(frame)) == message

    def test_is_encoded_as_its_golden_frame(self, name):
        _, frame = REPLIES[name]
        reply = msgspec.msgpack.decode(bytes.fromhex(frame), type=KINDS[name])
        assert replies.encode(reply).hex() == frame

    def test_with_an_unknown_field_is_understood(self, name):
        message, frame = REPLIES[name]
        later = msgpack.packb({**message, "colour": "red"})
        assert replies.encode(msgspec.msgpack.decode(later, type=KINDS[name])).hex() == frame


class TestRefusal:
    @pytest.mark.parametrize("kind", replies.ERRORS)
    def test_carries_an_error_as_its_class_and_message(self, kind):
        sent = kind(errno.EACCES, "get: no") if kind is gdrpy.PermissionDenied else kind("get: no")
        packet = replies.encode(refusal(sent, 7))
        received = replies.decode(requests.Get, replies.Grant, packet)
        assert received.id == 7
        assert type(error_of(received)) is kind
        assert "get: no" in str(error_of(received))

    def test_carries_the_right_that_is_missing(self):
        sent = gdrpy.PermissionDenied(errno.EACCES, "get: no", missing="write", region="a")
        packet = replies.encode(refusal(sent, 7))
        received = error_of(replies.decode(requests.Get, replies.Grant, packet))
        assert (str(received), received.missing, received.region) == (str(sent), "write", "a")

    def test_keeps_no_frame_of_those_who_asked(self):
        packet = replies.encode(refusal(gdrpy.NotFound("get: no"), 7))
        replies.decode(requests.Get, replies.Grant, packet)
        gc.collect()
        gc.disable()
        try:
            replies.decode(requests.Get, replies.Grant, packet)
            assert gc.collect() == 0
        finally:
            gc.enable()

    def test_carries_a_subclass_as_what_the_client_knows(self):
        class Special(gdrpy.NotFound):
            pass

        assert refusal(Special("x")) == replies.Refusal(0, "NotFound", "x")

    def test_with_an_unknown_error_raises_protocol_error_with_its_message(self):
        error = error_of(replies.Refusal(1, "Surprise", "get: something new"))
        assert type(error) is gdrpy.ProtocolError
        assert str(error) == "get: something new"

    @pytest.mark.parametrize("kind", [replies.Reply, replies.Published, replies.Grants])
    def test_is_never_taken_for_another_reply(self, kind):
        """Not even if it has all fields of that one."""
        fields = {"version": 1, "grants": [], "more": False}
        packet = msgpack.packb({"id": 1, "error": "NotFound", "message": "no", **fields})
        assert type(replies.decode(requests.Get, kind, packet)) is replies.Refusal


class TestPacket:
    @pytest.mark.parametrize(
        "packet", [b"", b"\xc1", b"\x93\x01\x02", b"\x81\xa1a", b"\x01", b"\x90", b"\x80\x80"]
    )
    def test_that_is_no_map_raises_protocol_error(self, packet):
        with pytest.raises(gdrpy.ProtocolError, match="get: the broker's reply has a malformed"):
            replies.decode(requests.Get, replies.Grant, packet)

    def test_has_at_most_64_kib(self):
        fits = requests.Hello(1, "0" * (PACKET_LIMIT - 33), id=1)
        assert len(requests.encode(fits)) == PACKET_LIMIT
        fits.client += "0"
        with pytest.raises(gdrpy.InvalidRequest, match="hello: 65537 bytes are more than"):
            requests.encode(fits)


class TestMetadata:
    def test_comes_back_as_it_was(self):
        stored = {"array": ["<f4", [2, 3]], "text": "ü", "none": None, "raw": b"\x00"}
        assert unpack_metadata(pack_metadata("put", stored)) == stored

    def test_is_nothing_if_there_is_none(self):
        assert pack_metadata("put", None) == pack_metadata("put", {}) == b""
        assert unpack_metadata(b"") == {}

    def test_too_much_raises_value_error_with_both_sizes(self):
        assert len(pack_metadata("put", {"k": b"0" * (METADATA_LIMIT - 6)})) == METADATA_LIMIT
        with pytest.raises(ValueError, match="put: metadata takes 4097 bytes.* room for 4096"):
            pack_metadata("put", {"k": b"0" * (METADATA_LIMIT - 5)})

    @pytest.mark.parametrize("value", [[], "text", 5])
    def test_that_is_no_dict_raises_type_error(self, value):
        with pytest.raises(TypeError, match="put: metadata must be a dict"):
            pack_metadata("put", value or [1])

    def test_of_what_msgpack_lacks_raises_type_error(self):
        with pytest.raises(TypeError, match="put: msgpack cannot encode the metadata"):
            pack_metadata("put", {"k": object()})
