"""The names and the metadata of a checkpoint's regions, which both ends use.

A region of the checkpoint's name lists the regions of its files, named ``NAME/ID/FILE``. ID is in
its metadata.
"""

from __future__ import annotations

import re
from typing import Any

from gdrpy.broker.protocol import NAME_LIMIT

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
    place = f"{name}/{identity}/"
    known = is_checkpoint(metadata) and re.fullmatch(_ID, str(identity))
    return place if known and len(place.encode()) < NAME_LIMIT else None


def file_of(name: str) -> tuple[str, str] | None:
    """The checkpoint, and how the names of all of its files begin, for the name of one."""
    found = re.fullmatch(rf"((.+)/{_ID}/)[^/]+", name)
    return (found[2], found[1]) if found else None


def is_file(name: str, metadata: dict[str, Any] | None, index: str, place: str) -> bool:
    """Whether a region of this name and metadata is a file of the checkpoint ``index``."""
    return file_of(name) == (index, place) and (metadata or {}).get("checkpoint") == index
