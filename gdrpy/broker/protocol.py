"""The broker's protocol: messages to bytes and back. Never sees a socket.

A message is one packet: a msgpack map with string keys, with file descriptors beside it where its
``fds`` says so. docs/broker-protocol.md is the specification.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import msgpack

from gdrpy import errors

#: The version of the protocol; a hello of another one is refused.
VERSION = 1
#: Bytes of one packet, in either direction.
PACKET_LIMIT = 64 * 1024
#: Descriptors beside one packet: what the kernel takes.
FDS_LIMIT = 253
#: Bytes of a region's name in UTF-8.
NAME_LIMIT = 255
#: Bytes of a region's metadata.
METADATA_LIMIT = 4096
#: Names in one ``get_many``, and regions in one ``release`` or ``resume``.
BATCH_LIMIT = 4096
#: Bytes of names or entries after which a list goes on in another packet.
PAGE_BYTES = 32 * 1024
#: Holders that a ``stat`` tells of.
HOLDERS_LIMIT = 256
#: Bytes of one region, before rounding.
REGION_LIMIT = 1 << 61
#: No CUDA ordinal is as large.
DEVICE_LIMIT = 1 << 16
#: The number that stands for host memory where a device is told.
CPU_DEVICE = -1

#: Errors that travel: by the name of their class in :mod:`gdrpy.errors`.
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
    """A message's packet. Raises InvalidRequest for one that is longer than a packet may be.

    ``pack`` may be what :func:`packer` gives.
    """
    packet = pack(message)
    if len(packet) > PACKET_LIMIT:
        raise errors.InvalidRequest(
            f"{message.get('op', 'message')}: {len(packet)} bytes are more than the "
            f"{PACKET_LIMIT} of a packet: ask for less at once"
        )
    return packet


def packer() -> Callable[[dict[str, Any]], bytes]:
    """What encodes for one user at a time, in half the time."""
    pack: Callable[[dict[str, Any]], bytes] = msgpack.Packer().pack
    return pack


def decode(packet: bytes) -> dict[str, Any]:
    """The message of a packet. Raises ProtocolError."""
    try:
        message = msgpack.unpackb(packet)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise errors.ProtocolError(f"a packet of {len(packet)} bytes is no message") from error
    if type(message) is not dict:
        raise errors.ProtocolError(f"a packet of {len(packet)} bytes is no message")
    return message


def pack_metadata(call: str, metadata: dict[str, Any] | None) -> bytes:
    """A region's metadata as it travels. Raises TypeError, and ValueError for too much of it."""
    if not metadata:
        return b""
    if not isinstance(metadata, dict):
        raise TypeError(f"{call}: metadata must be a dict, and is {metadata!r}")
    try:
        packed: bytes = msgpack.packb(metadata)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{call}: metadata holds what msgpack does not pack: {error}") from error
    if len(packed) > METADATA_LIMIT:
        raise ValueError(
            f"{call}: metadata takes {len(packed)} bytes, and a region has room for "
            f"{METADATA_LIMIT}: keep more of it in the region"
        )
    return packed


def unpack_metadata(packed: bytes) -> dict[str, Any]:
    """What :func:`pack_metadata` packed; what another client put there is told as ``bytes``."""
    try:
        return decode(packed) if packed else {}
    except errors.ProtocolError:
        return {"bytes": packed}


def error_message(error: errors.Error) -> dict[str, Any]:
    """The fields of a reply that stand for an error."""
    kinds = (kind for kind in type(error).__mro__ if kind in ERRORS)
    kind = next(kinds, errors.BackendUnavailable)  # what the driver said, in its own words
    message = error.strerror if isinstance(error, OSError) else str(error)
    return {"error": kind.__name__, "message": message}


def error_of(reply: dict[str, Any]) -> errors.Error:
    """The error that a reply stands for that has one."""
    name = reply["error"]
    kind = _BY_NAME.get(str(name), errors.ProtocolError)
    message = str(reply.get("message", name))
    if kind is errors.PermissionDenied:
        return errors.PermissionDenied(errno.EACCES, message)
    return kind(message)
