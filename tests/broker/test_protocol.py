"""Messages to bytes and back, and what the wire refuses."""

import errno

import pytest

import gdrpy
from gdrpy.broker import protocol
from gdrpy.broker.protocol import (
    METADATA_LIMIT,
    PACKET_LIMIT,
    decode,
    encode,
    error_message,
    error_of,
    pack_metadata,
    unpack_metadata,
)
from gdrpy.broker.server import requests
from golden import REPLIES, REQUESTS


@pytest.mark.parametrize("name", REQUESTS)
class TestRequest:
    def test_is_encoded_as_its_golden_frame(self, name):
        message, frame = REQUESTS[name]
        assert encode(message).hex() == frame

    def test_golden_frame_is_what_the_broker_understands(self, name):
        message, frame = REQUESTS[name]
        request = requests.decoder.decode(bytes.fromhex(frame))
        assert requests.name_of(type(request)) == message["op"]
        for field in message.keys() - {"op", "leases"}:
            assert getattr(request, field) == message[field]

    def test_with_an_unknown_field_is_refused_by_the_broker(self, name):
        message, _ = REQUESTS[name]
        with pytest.raises(Exception, match="unknown field `colour`"):
            requests.decoder.decode(encode({**message, "colour": "red"}))


class TestReply:
    @pytest.mark.parametrize("name", REPLIES)
    def test_golden_frame_is_its_message(self, name):
        message, frame = REPLIES[name]
        assert decode(bytes.fromhex(frame)) == message

    @pytest.mark.parametrize("kind", protocol.ERRORS)
    def test_carries_an_error_as_its_class_and_message(self, kind):
        sent = kind(errno.EACCES, "get: no") if kind is gdrpy.PermissionDenied else kind("get: no")
        received = error_of(decode(encode(error_message(sent))))
        assert type(received) is kind
        assert "get: no" in str(received)

    def test_carries_a_subclass_as_what_the_client_knows(self):
        class Special(gdrpy.NotFound):
            pass

        assert error_message(Special("x")) == {"error": "NotFound", "message": "x"}

    def test_with_an_unknown_error_raises_protocol_error_with_its_message(self):
        error = error_of({"error": "Surprise", "message": "get: something new"})
        assert type(error) is gdrpy.ProtocolError
        assert str(error) == "get: something new"


class TestPacket:
    @pytest.mark.parametrize(
        "packet", [b"", b"\xc1", b"\x93\x01\x02", b"\x81\xa1a", b"\x01", b"\x90", b"\x80\x80"]
    )
    def test_that_is_no_map_raises_protocol_error(self, packet):
        with pytest.raises(gdrpy.ProtocolError, match=f"a packet of {len(packet)} bytes"):
            decode(packet)

    def test_has_at_most_64_kib(self):
        fits = {"op": "x", "rest": b"0" * (PACKET_LIMIT - 14)}
        assert len(encode(fits)) == PACKET_LIMIT
        with pytest.raises(gdrpy.InvalidRequest, match="x: 65537 bytes are more than the 65536"):
            encode({**fits, "rest": fits["rest"] + b"0"})


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
