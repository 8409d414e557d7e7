"""The names and the metadata of the copies of regions that sleep, which both ends use.

The copy of a region ``NAME`` is a sealed region in host memory, ``NAME.host/ID``. ID is random, so
that no other user can take the name before. A mark in the metadata tells by its stamp of which
contents it is a copy. A region that is made from a copy has a mark with the same stamp.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from gdrpy.broker.protocol import UNDECODABLE

#: The key of the mark in a region's metadata: the stamp, the number of the region that has the
#: mark, and for a copy the UUID of the GPU. The number keeps a mark from counting elsewhere.
MARK = "gdrpy.copy"
_STAMP = "[0-9a-f]{16}"
_GPU = "GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
#: Bytes of a copy's name after that of its region.
NAME_BYTES = len(".host/") + 16


class _Marked(msgspec.Struct):
    mark: Any = msgspec.field(name=MARK, default=None)


_decode = msgspec.msgpack.Decoder(_Marked).decode


class Mark(NamedTuple):
    """What a mark tells."""

    stamp: str
    #: The UUID of the GPU that a copy's contents are for; None for a region that is no copy.
    gpu: str | None


def marked(
    metadata: dict[str, Any] | None, stamp: str, region: int, gpu: str | None = None
) -> dict[str, Any]:
    """A region's metadata with a mark."""
    return {**(metadata or {}), MARK: [stamp, region, gpu]}


def mark_of(metadata: dict[str, Any] | None, region: int) -> Mark | None:
    """A region's own mark."""
    match (metadata or {}).get(MARK):
        case [str(stamp), int(number), str() | None as gpu] if (
            number == region
            and re.fullmatch(_STAMP, stamp)
            and (gpu is None or re.fullmatch(_GPU, gpu))
        ):
            return Mark(stamp, gpu)
    return None


def mark_in(packed: bytes, region: int) -> Mark | None:
    """A region's own mark in packed metadata; None for metadata that cannot be decoded."""
    try:
        return mark_of({MARK: _decode(packed).mark}, region) if packed else None
    except UNDECODABLE:
        return None


def own_stamp(region: int, life: str) -> str:
    """The stamp of a region without a mark."""
    return hashlib.sha256(f"{life}/{region}".encode()).hexdigest()[:16]


def stamp_of(metadata: dict[str, Any] | None, region: int, life: str) -> str:
    """The stamp that identifies a sealed region's contents."""
    mark = mark_of(metadata, region)
    return mark.stamp if mark else own_stamp(region, life)


def renumbered(
    metadata: dict[str, Any], before: int, after: int, gpu: Callable[[str], str] = str
) -> dict[str, Any]:
    """A region's metadata for a region of another number: its own mark counts there too.

    ``gpu`` gives the GPU of a copy for what its mark says.
    """
    mark = mark_of(metadata, before)
    if mark is None:
        return metadata
    return marked(metadata, mark.stamp, after, mark.gpu and gpu(mark.gpu))


def new_name(name: str) -> str:
    """A name for a copy of the region of a name."""
    return f"{name}.host/{os.urandom(8).hex()}"


def original_of(name: str | None) -> str | None:
    """The name of the region that a copy of this name is of; None if it is no such name."""
    found = re.fullmatch(rf"(.+)\.host/{_STAMP}", name or "")
    return found[1] if found else None
