"""The names and the metadata of a ring's regions, for both ends: see docs/channel-protocol.md."""

from __future__ import annotations

import re

import msgspec

from gdrpy.broker.protocol import UNDECODABLE

#: What the metadata of a ring's memory has as "format".
FORMAT = "ring"
_PART = re.compile(r"(.+)/(?:host|kernel|cpu(?:\.[^/]+)?)")


class _Told(msgspec.Struct):
    format: str = ""


_decode = msgspec.msgpack.Decoder(_Told).decode


def ring_of(name: str) -> str | None:
    """The ring that a region of this name is a part of, if it is one: host memory, or an end."""
    found = _PART.fullmatch(name)
    return found and found[1]


def is_ring(packed: bytes) -> bool:
    """Whether it is the packed metadata of a ring's memory."""
    try:
        return bool(packed) and _decode(packed).format == FORMAT
    except UNDECODABLE:
        return False
