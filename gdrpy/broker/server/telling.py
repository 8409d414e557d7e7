"""The broker's descriptions of regions: entries, pages of a list, and the reply to a stat."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable

from msgspec.structs import asdict, replace

from gdrpy.broker import protocol, requests
from gdrpy.broker.replies import Description, Holder, Page, RegionInfo, Sleeper
from gdrpy.broker.server.rights import READ, Identity, allowed
from gdrpy.broker.server.table import LeaseEntry, RegionEntry, Table

#: Bytes that an entry takes besides its name, at most.
_ENTRY_BYTES = 270
#: Bytes counted for an entry that the client may not see, since a page must fit one turn.
_HIDDEN_BYTES = 16
#: Bytes that a holder takes, at most.
_HOLDER_BYTES = 64
#: Bytes of a status for regions without a name, and holders of one that it tells of.
_NAMELESS_BYTES, _NAMELESS_HOLDERS = 16 * 1024, 64


def entry(table: Table, region: RegionEntry) -> RegionInfo:
    """A region in a list."""
    newest = table.version_of(region)
    return RegionInfo(
        region=region.number,
        name=region.name,
        nbytes=region.nbytes,
        size=region.size,
        device=region.device,
        mode=region.mode,
        uid=region.uid,
        gid=region.gid,
        version=region.version,
        sealed=region.sealed,
        readers=len(region.leases) - region.writers,
        writers=region.writers,
        uuid=region.uuid or None,
        grace=region.grace,
        ended=region.ended,
        asleep=sum(version >= newest for version in table.sleepers(region).values()),
    )


def page(table: Table, who: Identity, request: requests.List) -> Page:
    """The next regions that ``who`` may read, in order of names, and where to continue."""
    names, prefix, after = table.sorted_names, request.prefix, request.after
    start = bisect.bisect_left(names, prefix)
    if after:
        start = max(start, bisect.bisect_right(names, after))
    found: list[RegionInfo] = []
    room = protocol.PAGE_BYTES
    for index in range(start, len(names)):
        if not names[index].startswith(prefix):
            break
        if room < 0:
            return Page(id=request.id, regions=found, next=names[index - 1])
        region = table.names[names[index]]
        if allowed(who, region, READ):
            found.append(entry(table, region))
            room -= _ENTRY_BYTES + len(names[index])
        else:
            room -= _HIDDEN_BYTES
    return Page(id=request.id, regions=found, next=None)


def all_about(table: Table, region: RegionEntry, number: int) -> Description:
    """A region's entry, metadata, digest, holders and sleepers, as the reply to a request."""
    newest = table.version_of(region)
    slept = itertools.islice(table.sleepers(region).items(), protocol.HOLDERS_LIMIT)
    sleepers = tuple(
        _sleeper(table.sessions[number].identity, version, newest) for (number, _), version in slept
    )
    fields = {
        **asdict(entry(table, region)),
        "linked": region.linked,
        "metadata": region.metadata,
        "sha256": region.digest,
        "holders": _holders(table, region, protocol.HOLDERS_LIMIT),
        "sleepers": sleepers,
    }
    return Description(**fields, id=number)


def nameless(table: Table, regions: Iterable[RegionEntry]) -> list[RegionInfo]:
    """Regions without a name, with their first holders, as many as fit a status."""
    found: list[RegionInfo] = []
    room = _NAMELESS_BYTES
    for region in regions:
        holders = _holders(table, region, _NAMELESS_HOLDERS)
        if not holders:
            continue  # it was freed meanwhile
        room -= _ENTRY_BYTES + len((region.name or "").encode()) + _HOLDER_BYTES * len(holders)
        if room < 0:
            break
        found.append(replace(entry(table, region), holders=holders, linked=False))
    return found


def _holders(table: Table, region: RegionEntry, most: int) -> tuple[Holder, ...]:
    """The exporter first, if there is one."""
    numbers = sorted(region.leases, key=lambda number: number != region.exporter)[:most]
    return tuple(
        _holder(table.sessions[number].identity, region.leases[number], number == region.exporter)
        for number in numbers
    )


def _sleeper(who: Identity, version: int, newest: int) -> Sleeper:
    return Sleeper(who.pid, who.uid, version, version < newest)


def _holder(who: Identity, lease: LeaseEntry, exporter: bool) -> Holder:
    return Holder(who.pid, who.uid, lease.writable, lease.gpu, lease.count, exporter)
