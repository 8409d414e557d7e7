"""The regions of this process that have a GPU view, by their addresses."""

from __future__ import annotations

import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gdrpy.region import Region

#: By number, so that each can be taken out when it is gone. Dicts need no lock for that.
_known: dict[int, weakref.ref[Region]] = {}


def remember(region: Region) -> None:
    """Have a region found by the addresses of its GPU view, as long as it is there."""
    number = id(region)
    _known[number] = weakref.ref(region, lambda _: _known.pop(number, None))


def region_of(address: int, nbytes: int) -> tuple[Region, int] | None:
    """The open region whose GPU view holds all of a range, and the range's offset in it."""
    for one in list(_known.values()):
        region = one()
        if region is None or region.closed or region._forked() or region._ptr is None:
            continue
        offset = address - region._ptr
        if 0 <= offset <= region.nbytes - nbytes:
            return region, offset
    return None
