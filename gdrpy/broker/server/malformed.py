"""Refusals of packets that are not requests."""

from __future__ import annotations

import msgspec

from gdrpy import errors
from gdrpy.broker import protocol, replies
from gdrpy.broker.protocol import UNDECODABLE
from gdrpy.broker.server.connection import NONSENSE_LIMIT

#: Characters of the reason that a packet was refused.
_REASON_LIMIT = 300


class _Number(msgspec.Struct):
    """The number of a malformed request."""

    id: int


class _Hello(msgspec.Struct, tag_field="op", tag="hello"):
    """The fields that a hello of every version has."""

    id: int
    version: int


_decode_number = msgspec.msgpack.Decoder(_Number).decode
_decode_hello = msgspec.msgpack.Decoder(_Hello).decode


def refusal(packet: memoryview, error: Exception, nonsense: int) -> replies.Refusal:
    """The reply to the client's ``nonsense``-th malformed packet in a row."""
    reason = str(error)[:_REASON_LIMIT]  # it may quote the packet
    kind: type[errors.Error] = errors.InvalidRequest
    try:
        number = _decode_number(packet).id
    except UNDECODABLE:
        number, kind = 0, errors.ProtocolError
        reason = f"a packet of {len(packet)} bytes is not a request: {reason}"
    if nonsense >= NONSENSE_LIMIT:
        reason += (
            f"; after {NONSENSE_LIMIT} such packets in a row the broker closes the "
            f"connection and releases its regions"
        )
    return replies.refusal(kind(f"request: {reason}"), number)


def hello_of_another_version(packet: memoryview) -> replies.Refusal | None:
    """The refusal of a packet that is a hello of another version; None for any other packet."""
    try:
        hello = _decode_hello(packet)
    except UNDECODABLE:
        return None
    if hello.version == protocol.VERSION:
        return None
    return replies.refusal(other_version(hello.version), hello.id)


def other_version(version: int) -> errors.ProtocolError:
    """The error for a client of another version."""
    return errors.ProtocolError(
        f"hello: the client speaks version {version} of the protocol and this broker version "
        f"{protocol.VERSION}: install the same gdrpy on both sides"
    )
