"""The methods of a region that call its broker: like :mod:`gdrpy.broker.client.calls`."""

from __future__ import annotations

from typing import Any

from gdrpy._core._mapping import Undo
from gdrpy.broker import requests
from gdrpy.broker.client.connection import Parcels, R
from gdrpy.broker.client.lookup import calling
from gdrpy.broker.client.region import LeasedRegion
from gdrpy.broker.protocol import pack_metadata
from gdrpy.broker.replies import (
    Description,
    Grant,
    Published,
    RegionInfo,
    Reply,
    Sha256,
    described,
)
from gdrpy.broker.requests import Get, Request, call_of
from gdrpy.errors import Gone, InvalidRequest


async def _ask(region: LeasedRegion, request: Request, kind: type[R]) -> R:
    region._check(f"BrokerRegion.{call_of(request)}")
    reply, _ = await region._broker._ask(request, kind, [region._lease])
    return reply


async def publish(region: LeasedRegion) -> int:
    """Publish a draft under its name, in one step; returns its version, from 1 on.

    The region that had the name lives on until its last holder closes it. If it was a checkpoint,
    the names of its files are deleted. For a region that has its name already, this only returns
    the version. Raises InvalidRequest for an anonymous region and for one that has lost its name,
    PermissionDenied if the name is another user's.
    """
    published = await _ask(region, requests.Publish(region.id, id=0), Published)
    region.version = published.version
    return region.version


async def seal(region: LeasedRegion) -> None:
    """Make the region immutable: the broker grants no writable view of it any more.

    A checkpoint's files stay as they are: see :meth:`Broker.seal`. This object refuses writes from
    now on, and its CPU view becomes read-only. Existing arrays and mappings stay writable, here and
    in other processes: seal when the writers are done.

    Raises PermissionDenied, Gone.
    """
    await _seal(region)


async def seal_copy(region: LeasedRegion, life: str, number: int) -> None:
    """As :func:`seal`. This user then finds the region by the identity of its original."""
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
    """Replace the metadata, of up to 4096 bytes as msgpack; later ``get`` calls return the new one.

    Raises TypeError, ValueError, Sealed, PermissionDenied, Gone.
    """
    packed = pack_metadata("set_metadata", metadata)
    await _ask(region, requests.Change(region.id, metadata=packed, id=0), Reply)
    region._packed, region._metadata = packed, None


async def digest(region: LeasedRegion) -> str:
    """The SHA-256 of a sealed region's bytes, in hexadecimal digits.

    It reads the whole region.

    Raises InvalidRequest for a draft and for a region that is not sealed, Gone.
    """
    region._check("BrokerRegion.digest")
    if region.name is not None and not region.version:
        raise InvalidRequest(
            f"BrokerRegion.digest: {region!r} is a draft, whose contents may change: publish() and "
            f"seal() it first"
        )
    connection = region._broker._separate(endless=True)
    try:
        request = requests.Digest(region.id, id=0)
        reply, _ = await connection.ask(request, Sha256, [region._lease])
    finally:
        connection.close()
    return reply.sha256


async def attach(region: LeasedRegion, *, newer: bool = False) -> None:
    """Bring the memory back to the GPU addresses of a detached region.

    Args:
        newer: Whether to take the newest version that was published under the region's name. False
            brings back the same region.

    The newer version must have the same size, on the same GPU, and its contents must lie alike: an
    array of the same type and shape, or tensors of the same layout. A read-only region stays
    read-only, and any becomes so if its version was sealed. The CPU view is made again if there was
    one. It does nothing for a region that is attached, unless ``newer`` is true.

    Raises Gone (the region no longer exists), NotFound, SizeMismatch, PermissionDenied,
    OutOfMemory, Closed, and for ``newer`` ValueError if the region has no name, or is attached. The
    region stays detached then.
    """
    call = "BrokerRegion.attach"
    if must_attach(call, region, newer):
        region._attach_granted(call, newer, *await ask_to_attach(call, region, newer))


def must_attach(call: str, region: LeasedRegion, newer: bool) -> bool:
    """Whether it is detached. Raises ValueError, Closed, Gone."""
    region._check_taken(call)
    detached = region._can_attach(call)
    if newer and not detached:
        raise ValueError(f"{call}: region {region.name!r} is attached: detach() it first")
    if newer and region.name is None:
        raise ValueError(f"{call}: an anonymous region has no newer version: leave newer out")
    return detached


async def ask_to_attach(call: str, region: LeasedRegion, newer: bool) -> tuple[Grant, Parcels]:
    """A grant of a detached region, or of the newest version of its name."""
    wanted: dict[str, Any] = {"region": region.id, "life": region._life}
    if newer:
        wanted = {"name": region.name}
    request = Get(**wanted, readonly=region.readonly, gpu=True, id=0)
    try:
        return await region._broker._ask(request, Grant)
    except Gone as error:
        ended = region.ended or str(error).endswith("ended with its exporter")
        why = "ended with its exporter" if ended else "no longer exists"
        remedy = "close it"
        if region.name is not None:
            other = f"a newer version of {region.name!r}"
            if ended:
                other = f"the next {region.name!r}, once there is one,"
            remedy += f", or take {other} by attach(newer=True)"
        raise Gone(f"{call}: region {region.id} {why}: {remedy}") from error


async def delete(region: LeasedRegion) -> None:
    """Delete its name, if that still refers to this region, and those of a checkpoint's files.

    The memory stays while it is held. Raises NotFound, PermissionDenied, ValueError for an
    anonymous region.
    """
    if region.name is None:
        raise ValueError("BrokerRegion.delete: an anonymous region has no name: close it")
    await _ask(region, requests.Delete(region.name, region.id, id=0), Reply)


async def info(region: LeasedRegion) -> RegionInfo:
    """The broker's description of it, with metadata and holders. Raises Gone."""
    return described(await _ask(region, requests.Stat(region=region.id, id=0), Description))


async def stale(region: LeasedRegion) -> bool:
    """Whether its name no longer refers to it. Asks the broker.

    It is true, too, if the broker lost the region with its state.
    """
    if region.name is None or region.version == 0:
        return False
    call = "BrokerRegion.stale"
    region._check(call)
    try:
        with calling(call, "info"):
            return not (await info(region)).linked
    except Gone:
        return True
