"""The broker's protocol: its limits, and what requests and replies have in common.

A message is one packet: a msgpack map with string keys, and file descriptors if it has ``fds``.
docs/broker-protocol.md is the specification.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gdrpy.broker.unix import MAX_FDS

#: The version of the protocol; a hello with another version is refused.
VERSION = 1
#: Bytes of one packet, in either direction.
PACKET_LIMIT = 64 * 1024
#: Descriptors beside one packet: the kernel's limit.
FDS_LIMIT = MAX_FDS
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
#: Drafts that are published in one step.
PUBLISH_LIMIT = 256
#: Bytes of one region, before rounding.
REGION_LIMIT = 1 << 61
#: Seconds of grace after the end of a bound region.
GRACE_LIMIT = 3600
#: CUDA ordinals are smaller.
DEVICE_LIMIT = 1 << 16
#: The device number of host memory.
CPU_DEVICE = -1

#: A number of a region, a session or a request, or a count.
Number = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
#: The bytes of a region that a client asks for.
Bytes = Annotated[int, Meta(gt=0, le=REGION_LIMIT)]
#: The result of :func:`pack_metadata`.
Metadata = Annotated[bytes, Meta(max_length=METADATA_LIMIT)]

#: The errors of decoding a malformed packet; the latter two are for invalid UTF-8 and nesting.
UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def pack_metadata(call: str, metadata: dict[str, Any] | None) -> bytes:
    """A region's metadata, encoded. Raises TypeError, and ValueError if it is too large."""
    if not metadata:
        return b""
    if not isinstance(metadata, dict):
        raise TypeError(f"{call}: metadata must be a dict, not {metadata!r}")
    try:
        packed = _pack(metadata)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise TypeError(f"{call}: msgpack cannot encode the metadata: {error}") from error
    if len(packed) > METADATA_LIMIT:
        raise ValueError(
            f"{call}: metadata takes {len(packed)} bytes, and a region has room for "
            f"{METADATA_LIMIT}: keep more of it in the region"
        )
    return packed


def unpack_metadata(packed: bytes) -> dict[str, Any]:
    """The reverse of :func:`pack_metadata`. Other content is the value of a key "bytes"."""
    try:
        return _unpack(packed) if packed else {}
    except UNDECODABLE:
        return {"bytes": packed}


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(dict[str, Any]).decode
