"""The calls about a region that one holds: as :mod:`gdrpy.broker.client.calls` for a broker's."""

from __future__ import annotations

from typing import Any

from gdrpy._core._mapping import Undo
from gdrpy.broker import requests
from gdrpy.broker.client.connection import R
from gdrpy.broker.client.region import LeasedRegion
from gdrpy.broker.protocol import pack_metadata
from gdrpy.broker.replies import Description, Published, RegionInfo, Reply, Sha256, described
from gdrpy.broker.requests import Request, call_of


async def _ask(region: LeasedRegion, request: Request, kind: type[R]) -> R:
    region._check(f"BrokerRegion.{call_of(request)}")
    reply, _ = await region._broker._ask(request, kind, region._lease)
    return reply


async def publish(region: LeasedRegion) -> int:
    """Put a draft under its name, in one step; returns its version, from 1 on.

    The region that had the name stays with those who hold it. Of a region that its name means
    already it gives the version. Raises InvalidRequest for one without a name, or whose name means
    it no longer, PermissionDenied where the name is another user's.
    """
    published = await _ask(region, requests.Publish(region.id, id=0), Published)
    region.version = published.version
    return region.version


async def seal(region: LeasedRegion) -> None:
    """Make it immutable: nobody is given a writable view of it any more.

    This object refuses writes from now on, and its CPU view is a read-only one. Arrays and mappings
    made before stay writable, here and in other processes: seal when the writers are done.

    Raises PermissionDenied, Gone.
    """
    await _seal(region)


async def seal_copy(region: LeasedRegion, life: str, number: int) -> None:
    """As :func:`seal`, and have this user find it by the identity of what it is a copy of."""
    await _seal(region, (life, number))


async def _seal(region: LeasedRegion, copy_of: tuple[str, int] | None = None) -> None:
    region._check("BrokerRegion.seal")
    with Undo() as undo:
        view = None
        if region._cpu is not None and not region._cpu.readonly:
            view = undo.keep(region.map(readonly=True))
        await _ask(region, requests.Seal(region.id, copy_of, id=0), Reply)
        undo.forget()
    region._seal_here(view)


async def set_metadata(region: LeasedRegion, metadata: dict[str, Any] | None) -> None:
    """Store other metadata beside it, up to 4096 bytes as msgpack; who gets it from now on sees it.

    Raises TypeError, ValueError, Sealed, PermissionDenied, Gone.
    """
    packed = pack_metadata("set_metadata", metadata)
    await _ask(region, requests.Change(region.id, metadata=packed, id=0), Reply)
    region._packed, region._metadata = packed, None


async def digest(region: LeasedRegion) -> str:
    """The SHA-256 of a sealed region's bytes, in hexadecimal digits; takes time by its size.

    Raises InvalidRequest for one that is not sealed, Gone.
    """
    region._check("BrokerRegion.digest")
    connection = region._broker._separate(endless=True)
    try:
        request = requests.Digest(region.id, id=0)
        reply, _ = await connection.ask(request, Sha256, region._lease)
    finally:
        connection.close()
    return reply.sha256


async def delete(region: LeasedRegion) -> None:
    """Take its name away if that still means this region; the memory stays while it is held.

    Raises NotFound, PermissionDenied, ValueError for an anonymous region.
    """
    if region.name is None:
        raise ValueError("BrokerRegion.delete: an anonymous region has no name: close it")
    await _ask(region, requests.Delete(region.name, region.id, id=0), Reply)


async def info(region: LeasedRegion) -> RegionInfo:
    """All that the broker tells of it, with metadata and holders. Raises Gone."""
    return described(await _ask(region, requests.Stat(region=region.id, id=0), Description))


async def stale(region: LeasedRegion) -> bool:
    """Whether its name means another region by now, or none. Asks the broker."""
    if region.name is None or region.version == 0:
        return False
    return not (await info(region)).linked
