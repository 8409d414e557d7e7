"""The broker's protocol: encoding and decoding of messages, without I/O.

A message is one packet: a msgpack map with string keys, and file descriptors if it has ``fds``.
docs/broker-protocol.md is the specification.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import msgpack

from gdrpy import errors

#: The version of the protocol; a hello with another version is refused.
VERSION = 1
#: Bytes of one packet, in either direction.
PACKET_LIMIT = 64 * 1024
#: Descriptors beside one packet: the kernel's limit.
FDS_LIMIT = 253
#: Bytes of a region's name in UTF-8.
NAME_LIMIT = 255
#: Bytes of a region's metadata.
METADATA_LIMIT = 4096
#: Names in one ``get_many``, and regions in one ``release`` or ``resume``.
BATCH_LIMIT = 4096
#: Bytes of names or entries after which a list continues in another packet.
PAGE_BYTES = 32 * 1024
#: Holders in the reply to a ``stat``.
HOLDERS_LIMIT = 256
#: Bytes of one region, before rounding.
REGION_LIMIT = 1 << 61
#: CUDA ordinals are smaller.
DEVICE_LIMIT = 1 << 16
#: The device number of host memory.
CPU_DEVICE = -1

#: Errors in replies, by the name of their class in :mod:`gdrpy.errors`.
ERRORS: tuple[type[errors.Error], ...] = (
    errors.BackendUnavailable,
    errors.Gone,
    errors.InvalidRequest,
    errors.NotFound,
    errors.OutOfMemory,
    errors.PermissionDenied,
    errors.ProtocolError,
    errors.QuotaExceeded,
    errors.Sealed,
    errors.SizeMismatch,
)
_BY_NAME = {kind.__name__: kind for kind in ERRORS}


def encode(
    message: dict[str, Any], pack: Callable[[dict[str, Any]], bytes] = msgpack.packb
) -> bytes:
    """A message's packet. Raises InvalidRequest if it is longer than PACKET_LIMIT.

    ``pack`` may be a :func:`packer`.
    """
    packet = pack(message)
    if len(packet) > PACKET_LIMIT:
        raise errors.InvalidRequest(
            f"{message.get('op', 'message')}: {len(packet)} bytes are more than the "
            f"{PACKET_LIMIT} of a packet: ask for less at once"
        )
    return packet


def packer() -> Callable[[dict[str, Any]], bytes]:
    """An encoder for one thread at a time, which takes half the time."""
    pack: Callable[[dict[str, Any]], bytes] = msgpack.Packer().pack
    return pack


def decode(packet: bytes) -> dict[str, Any]:
    """The message of a packet. Raises ProtocolError."""
    try:
        message = msgpack.unpackb(packet)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise errors.ProtocolError(f"a packet of {len(packet)} bytes is not a message") from error
    if type(message) is not dict:
        raise errors.ProtocolError(f"a packet of {len(packet)} bytes is not a message")
    return message


def pack_metadata(call: str, metadata: dict[str, Any] | None) -> bytes:
    """A region's metadata, encoded. Raises TypeError, and ValueError if it is too large."""
    if not metadata:
        return b""
    if not isinstance(metadata, dict):
        raise TypeError(f"{call}: metadata must be a dict, and is {metadata!r}")
    try:
        packed: bytes = msgpack.packb(metadata)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{call}: msgpack cannot encode the metadata: {error}") from error
    if len(packed) > METADATA_LIMIT:
        raise ValueError(
            f"{call}: metadata takes {len(packed)} bytes, and a region has room for "
            f"{METADATA_LIMIT}: keep more of it in the region"
        )
    return packed


def unpack_metadata(packed: bytes) -> dict[str, Any]:
    """The reverse of :func:`pack_metadata`. Other content is returned as ``bytes``."""
    try:
        return decode(packed) if packed else {}
    except errors.ProtocolError:
        return {"bytes": packed}


def error_message(error: errors.Error) -> dict[str, Any]:
    """The fields of a reply for an error."""
    kinds = (kind for kind in type(error).__mro__ if kind in ERRORS)
    kind = next(kinds, errors.BackendUnavailable)  # with the driver's message
    message = error.strerror if isinstance(error, OSError) else str(error)
    return {"error": kind.__name__, "message": message}


def error_of(reply: dict[str, Any]) -> errors.Error:
    """The error of a reply that has one."""
    name = reply["error"]
    kind = _BY_NAME.get(str(name), errors.ProtocolError)
    message = str(reply.get("message", name))
    if kind is errors.PermissionDenied:
        return errors.PermissionDenied(errno.EACCES, message)
    return kind(message)
