"""The copies in host memory of regions that sleep.

The copy of a region ``NAME`` is the sealed region ``NAME.host/STAMP``. The stamp identifies the
contents. A mark in the metadata gives it to the copy, and to a region that is made from it.
"""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from typing import Any

from gdrpy.broker import requests
from gdrpy.broker.client import lookup
from gdrpy.broker.client.base import BrokerBase
from gdrpy.broker.protocol import COPIES
from gdrpy.broker.replies import RegionInfo, Reply
from gdrpy.errors import Gone, NotFound, PermissionDenied

#: The key of the mark in a region's metadata: the stamp, the number of the region that has the
#: mark, and for a copy the UUID of the GPU. The number keeps a mark from counting elsewhere.
MARK = "gdrpy.copy"


def marked(
    metadata: dict[str, Any] | None, stamp: str, region: int, device: str | None = None
) -> dict[str, Any]:
    """A region's metadata with a mark."""
    return {**(metadata or {}), MARK: [stamp, region, device]}


def unmarked(metadata: dict[str, Any] | None) -> dict[str, Any]:
    """A region's metadata without its mark."""
    return {key: value for key, value in (metadata or {}).items() if key != MARK}


def _mark(info: RegionInfo) -> tuple[str, str | None] | None:
    """The stamp and the GPU of a region's own mark."""
    match (info.metadata or {}).get(MARK):
        case [str(stamp), int(region), str() | None as device] if region == info.region:
            return stamp, device
    return None


def stamp_of(info: RegionInfo, life: str) -> str:
    """The stamp that identifies a sealed region's contents."""
    found = _mark(info)
    return found[0] if found else hashlib.sha256(f"{life}/{info.region}".encode()).hexdigest()[:16]


def gpu_of(copy: RegionInfo) -> str | None:
    """The GPU that a copy's contents are for; None if it is not a whole copy."""
    found = _mark(copy) if copy.sealed else None
    return found[1] if found else None


def name_of(name: str, stamp: str) -> str:
    """The name of a copy."""
    return f"{name}{COPIES}{stamp}"


async def copies_of(client: BrokerBase[Any], name: str) -> dict[str, RegionInfo]:
    """The copies of the regions that have or had a name, by their stamps."""
    found = {}
    for info in await lookup.list_regions(client, f"{name}{COPIES}"):
        stamp = str(info.name).removeprefix(f"{name}{COPIES}")
        if re.fullmatch("[0-9a-f]{16}", stamp):
            with suppress(NotFound, PermissionDenied):
                copy = await lookup.stat(client, str(info.name))
                if gpu_of(copy) and stamp_of(copy, "") == stamp:
                    found[stamp] = copy
    return found


async def free(client: BrokerBase[Any], name: str, region: int, unheld: bool = False) -> None:
    """Delete a name, if it refers to this region and this user may."""
    with suppress(NotFound, Gone, PermissionDenied):
        request = requests.Delete(name, region, unheld=unheld, id=0)
        await client._ask(request, Reply)


async def free_copies(client: BrokerBase[Any], name: str) -> bool:
    """Delete the copies of a name; whether there were any."""
    found = await copies_of(client, name)
    for copy in found.values():
        await free(client, str(copy.name), copy.region)
    return bool(found)
