"""The names and the metadata of a checkpoint's regions, which both ends use.

A region of the checkpoint's name lists the regions of its files, named ``NAME/ID/FILE``. ID is in
its metadata.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from gdrpy.broker.copies import original_of
from gdrpy.broker.protocol import NAME_LIMIT, UNDECODABLE

_ID = r"[0-9a-f]{8}"


def index_metadata(identity: str) -> dict[str, Any]:
    """The metadata of the region that lists a checkpoint's files."""
    return {"format": "checkpoint", "id": identity}


def is_checkpoint(metadata: dict[str, Any] | None) -> bool:
    """Whether it is the metadata of a region that lists a checkpoint's files."""
    return (metadata or {}).get("format") == "checkpoint"


def place_of(name: str, metadata: dict[str, Any] | None) -> str | None:
    """How the names of a checkpoint's files begin; None if the metadata is not a checkpoint's."""
    identity = (metadata or {}).get("id")
    if not (is_checkpoint(metadata) and isinstance(identity, str) and re.fullmatch(_ID, identity)):
        return None
    place = f"{name}/{identity}/"
    return place if len(place.encode()) < NAME_LIMIT else None


def file_of(name: str) -> tuple[str, str] | None:
    """The checkpoint, and how the names of all of its files begin, for the name of one."""
    found = re.fullmatch(rf"((.+)/{_ID}/)[^/]+", name)
    return (found[2], found[1]) if found else None


def is_file(name: str, metadata: dict[str, Any] | None, index: str, place: str) -> bool:
    """Whether a region of this name and metadata is a file of the checkpoint ``index``."""
    return file_of(name) == (index, place) and (metadata or {}).get("checkpoint") == index


class _Told(msgspec.Struct):
    """The metadata of a checkpoint's regions; the decoder skips all other keys."""

    format: str = ""
    id: str = ""
    checkpoint: str = ""


_decode = msgspec.msgpack.Decoder(_Told).decode


def places_of(name: str | None, packed: bytes) -> tuple[str | None, str | None]:
    """How the names of a checkpoint's files begin, from a region's packed metadata: for its index,
    and for one of its files, or a copy of one.
    """
    if name is None or b"checkpoint" not in packed:
        return None, None
    try:
        told = _decode(packed)
    except UNDECODABLE:
        return None, None
    found = file_of(original_of(name) or name)
    index = place_of(name, {"format": told.format, "id": told.id})
    return index, found[1] if found and found[0] == told.checkpoint else None
