"""The calls of both clients, as coroutine functions: the request, and the use of its reply.

They are methods of the asyncio client. The blocking client runs them to their end
(:func:`~gdrpy.broker.client.transport.blocking`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from gdrpy import cuda
from gdrpy._core._mapping import Undo
from gdrpy.broker import replies, requests
from gdrpy.broker.client import lookup, region_calls
from gdrpy.broker.client.arguments import (
    as_device,
    as_grace,
    as_mode,
    as_name,
    as_nbytes,
    as_seconds,
)
from gdrpy.broker.client.base import BrokerBase
from gdrpy.broker.client.connection import Lease, Parcels
from gdrpy.broker.client.region import LeasedRegion
from gdrpy.broker.client.watch import Watching
from gdrpy.broker.protocol import (
    BATCH_LIMIT,
    CPU_DEVICE,
    PAGE_BYTES,
    PUBLISH_LIMIT,
    pack_metadata,
)
from gdrpy.broker.replies import Grant, RegionInfo, Reply
from gdrpy.broker.requests import Request, call_of
from gdrpy.errors import (
    Error,
    Gone,
    NotFound,
    OutOfMemory,
    PermissionDenied,
    ProtocolError,
    Timeout,
    TooLarge,
)
from gdrpy.memory import vmm
from gdrpy.region import as_regions

R = TypeVar("R", bound=LeasedRegion)


#: Seconds after which a waiting call asks again without an event: other programs free memory too.
_ASK_AGAIN = 1.0
#: Bytes that a number takes in msgpack at most, and more than what precedes a name.
_KEY_BYTES = 9


async def _patiently(
    client: BrokerBase[R], request: Request, wait: float, refusal: type[Error], prefix: str
) -> tuple[Grant, Parcels]:
    """Ask after every event about this prefix, until the reply is not this refusal.

    TooLarge is raised at once: waiting does not change the broker's limits.
    """
    call = call_of(request)
    deadline = time.monotonic() + as_seconds(call, "wait", wait)
    try:
        return await client._ask(request, Grant)
    except TooLarge:
        raise
    except refusal:
        pass
    with Watching(client._separate(), prefix) as watching:
        await watching.begin()
        while True:
            try:
                return await client._ask(request, Grant)
            except TooLarge:  # a restarted broker may have other limits
                raise
            except refusal as error:
                now = time.monotonic()
                if now >= deadline:
                    reason = str(error).removeprefix(f"{call}: ")
                    if reason.endswith(f"of the name {prefix!r}"):
                        reason += ": publish it, or wait longer"
                    raise Timeout(f"{call}: waited {wait:g} s: {reason}") from error
            await watching.next(min(deadline, now + _ASK_AGAIN))


async def allocate(
    client: BrokerBase[R],
    name: str | None,
    nbytes: int,
    device: Any = 0,
    *,
    mode: int = 0o600,
    metadata: dict[str, Any] | None = None,
    gpu: bool = True,
    cpu: bool = True,
    grace: float | None = None,
    wait: float | None = None,
) -> R:
    """The region of this name, made if it does not exist; a name of None makes an anonymous one.

    Args:
        name: The name, or None.
        nbytes: The size in bytes, which the allocation rounds up.
        device: A GPU's UUID ("GPU-..."), its PCI address ("0000:3b:00.0") or its CUDA ordinal in
            the broker, which may differ from this process's; a torch.device or torch's name
            ("cuda:1"), which are of this process; or "cpu" for host memory.
        mode: Permission bits, like a file's.
        metadata: A dict of msgpack's types, of up to 4096 bytes.
        gpu: Whether this process gets the GPU view. Without it the process needs no CUDA. Host
            memory has no GPU view.
        cpu: Whether this process gets the CPU view.
        grace: Binds a new region to this connection, its exporter: when the exporter's lease ends,
            as by the death of its process or by close() of the region or the connection, the name
            is deleted, and other processes lose the memory after so many seconds, up to 3600. None
            keeps a region while it has a name or a holder.
        wait: How many seconds to wait for memory. None does not wait. A region that is larger than
            the broker's limits is refused at once.

    An existing region keeps its mode and metadata.

    Raises SizeMismatch if the region exists with another size or on another device, InvalidRequest
    if ``grace`` is given and it exists otherwise than bound to this connection with the same grace,
    or for a name of invisible characters, TypeError, ValueError, OutOfMemory, QuotaExceeded,
    TooLarge (larger than a limit), PermissionDenied, NotFound (no such device), Timeout,
    BrokerUnavailable.
    """
    if name is not None:
        as_name("allocate", name)
    fields = _of_new_region("allocate", nbytes, device, mode, metadata, gpu, grace)
    return await _granted(client, requests.Allocate(name, *fields, id=0), cpu, wait)


async def create(
    client: BrokerBase[R],
    name: str,
    nbytes: int,
    device: Any = 0,
    *,
    mode: int = 0o600,
    metadata: dict[str, Any] | None = None,
    gpu: bool = True,
    cpu: bool = True,
    grace: float | None = None,
    wait: float | None = None,
) -> R:
    """A draft: a new region that other processes cannot find until its ``publish()``.

    Args:
        name: The name that ``publish()`` gives it.
        nbytes: The size in bytes, which the allocation rounds up.
        device: The region's device: as for :meth:`allocate`, as are the parameters that follow.

    ``publish()`` replaces the region that has the name, which lives on until its last holder closes
    it. Closing an unpublished draft frees it. Raises as :meth:`allocate`.
    """
    as_name("create", name)
    fields = _of_new_region("create", nbytes, device, mode, metadata, gpu, grace)
    return await _granted(client, requests.Create(name, *fields, id=0), cpu, wait)


def _of_new_region(
    call: str,
    nbytes: int,
    device: Any,
    mode: int,
    metadata: Any,
    gpu: bool,
    grace: float | None = None,
) -> tuple[Any, ...]:
    """The fields after the name in a request for a new region."""
    ordinal = as_device(call, device)
    gpu = bool(gpu) and ordinal != CPU_DEVICE
    bits, packed = as_mode(call, mode), pack_metadata(call, metadata)
    return as_nbytes(call, nbytes), ordinal, bits, packed, gpu, as_grace(call, grace)


async def _granted(
    client: BrokerBase[R],
    request: requests.Allocate | requests.Get,
    cpu: bool,
    wait: float | None = None,
    refusal: type[Error] = OutOfMemory,
    prefix: str = "",
    viewer: int | None = None,
    address: int | None = None,
) -> R:
    """The region that a request asks for. With ``wait``, see :func:`_patiently`."""
    if wait is None:
        grant, parcels = await client._ask(request, Grant)
    else:
        grant, parcels = await _patiently(client, request, wait, refusal, prefix)
    return client._region_type._granted(client, grant, parcels, request.gpu, cpu, viewer, address)


async def get(
    client: BrokerBase[R],
    name: str,
    *,
    gpu: bool = True,
    cpu: bool = True,
    readonly: bool = False,
    wait: float | None = None,
    device: Any = None,
    address: int | None = None,
) -> R:
    """The region of this name, with the requested views.

    Args:
        name: The region's name.
        gpu: Whether this process gets the GPU view. Without it the process needs no CUDA. If the
            process does not see the memory's GPU, it gets the CPU view alone, with a warning.
        cpu: Whether this process gets the CPU view.
        readonly: Whether to get read-only views.
        wait: How many seconds to wait for the name to appear; None does not wait.
        device: The GPU of the GPU view, if it is not the memory's own GPU: as for
            :meth:`gdrpy.Region.from_fd`.
        address: The GPU address of the first byte, as for :func:`gdrpy.alloc`.

    The region is read-only (``region.readonly``) if ``readonly`` is true, if it is sealed, or if
    this user may only read it. Neither of its views can be written then. ``region.enforced`` says
    whether the kernel also keeps the process from mapping the memory again for writing.

    Raises NotFound, PermissionDenied, Timeout, BrokerUnavailable, BackendUnavailable (``device``
    cannot reach the memory), AddressInUse, MissingView (host memory has no GPU view for
    ``address``).
    """
    request = request_to_get(name, gpu, readonly)
    viewer, place = cuda.viewer("get", device, gpu), vmm.as_address("get", address, gpu)
    try:
        return await _granted(client, request, cpu, wait, NotFound, name, viewer, place)
    except NotFound as error:
        raise await lookup.missing(client, name, error) from None


def request_to_get(name: Any, gpu: Any, readonly: Any) -> requests.Get:
    """The request of :func:`get`. Raises TypeError, ValueError."""
    return requests.Get(name=as_name("get", name), readonly=bool(readonly), gpu=bool(gpu), id=0)


async def attach(
    client: BrokerBase[R], life: str, region: int, *, gpu: bool, cpu: bool, readonly: bool
) -> R:
    """The region of this identity. Raises Gone if it no longer exists, and as :meth:`get`."""
    request = requests.Get(region=region, life=life, readonly=readonly, gpu=gpu, id=0)
    return await _granted(client, request, cpu)


async def publish_many(
    client: BrokerBase[R], drafts: Iterable[R], *, missing: bool = False
) -> list[int]:
    """Publish drafts under their names in one step; returns their versions, from 1 on.

    Args:
        drafts: The drafts.
        missing: Whether those stay drafts, of version 0, whose names refer to a region.

    Other processes find all of them or none, also if the broker is killed meanwhile. Up to 256
    drafts of this connection, each of another name. Raises as the drafts' ``publish()``.
    """
    return await publish_beside(client, drafts, None, missing=missing)


async def publish_beside(
    client: BrokerBase[R], drafts: Iterable[R], beside: int | None, *, missing: bool
) -> list[int]:
    """As :func:`publish_many`, while the name of the region ``beside`` refers to it; else Gone."""
    call = "publish_many"
    regions: list[Any] = as_regions(call, drafts, LeasedRegion, "drafts of a broker", "publish()")
    for region in regions:
        region._check(call)
        if region._broker is not client:
            raise ValueError(f"{call}: {region!r} came from another connection: publish() it")
    if len(regions) > PUBLISH_LIMIT:
        raise ValueError(f"{call}: {len(regions)} drafts are more than {PUBLISH_LIMIT}, the limit")
    if not regions:
        return []
    first, *others = [region.id for region in regions]
    request = requests.Publish(first, others, bool(missing), beside, id=0)
    leases = [region._lease for region in regions]
    reply, _ = await client._ask(request, replies.Published, leases)
    versions = [reply.version, *reply.others]
    if len(versions) != len(regions):
        raise ProtocolError(f"publish: {len(versions)} versions came for {len(regions)} drafts")
    for region, version in zip(regions, versions, strict=True):
        region.version = version
    return versions


async def get_many(
    client: BrokerBase[R],
    names: Iterable[str],
    *,
    gpu: bool = True,
    cpu: bool = True,
    readonly: bool = False,
    device: Any = None,
) -> list[R]:
    """The regions of these names, in their order, by one request.

    Args:
        names: The regions' names.
        gpu: Whether this process gets GPU views: as for :meth:`get`, as are the parameters that
            follow.

    A refusal of one region closes the others and raises its error. Raises as :meth:`get`.
    """
    if isinstance(names, str):
        raise TypeError(f"get_many: names must be several names, not {names!r}: use get")
    wanted = [as_name("get_many", name) for name in names]
    viewer = cuda.viewer("get_many", device, gpu)
    regions: list[R] = []
    with Undo() as undo:
        grants, parcels = await _granted_many(client, wanted, None, bool(readonly), bool(gpu))
        undo.callback(parcels.clear)
        for grant in grants:
            region = client._region_type._granted(client, grant, parcels, gpu, cpu, viewer)
            regions.append(undo.keep(region))
        undo.forget()
    return regions


async def _granted_many(
    client: BrokerBase[R],
    wanted: list[str] | list[int],
    life: str | None,
    readonly: bool,
    gpu: bool,
) -> tuple[list[Grant], Parcels]:
    """Grants of all regions, by names, or by numbers and life; each takes the last parcel."""
    grants: list[Grant] = []
    parcels: Parcels = []
    try:
        for batch in _batches(wanted):
            keys: dict[str, Any] = {"names": batch}
            if isinstance(batch[0], int):
                keys = {"regions": batch, "life": life}
            request = requests.GetMany(**keys, readonly=readonly, gpu=gpu, id=0)
            reply, more = await client._ask(request, replies.Grants)
            grants += reply.grants
            parcels += more
            more.clear()
        if len(grants) != len(wanted):
            raise ProtocolError(f"get_many: {len(grants)} grants came for {len(wanted)} regions")
    except BaseException:
        parcels.clear()
        raise
    parcels.reverse()
    return grants, parcels


async def attach_many(client: BrokerBase[R], regions: Iterable[R], *, newer: bool = False) -> None:
    """Attach detached regions of this broker, all or none.

    Args:
        regions: The regions, of this connection. Those that are attached are left as they are.
        newer: As for the regions' ``attach()``.

    The broker grants all of them before the first is mapped, by one request for those to write and
    one for those to read. If one cannot be attached, the others are detached again, and its error
    is raised. Raises as ``attach()``.
    """
    call = "attach_many"
    given: list[Any] = as_regions(call, regions, LeasedRegion, "regions of a broker", "attach()")
    those = [one for one in given if region_calls.must_attach(call, one, newer)]
    for region in those:
        if region._broker is not client:
            raise ValueError(f"{call}: {region!r} came from another connection: attach() it")
    alike: dict[tuple[bool, str | None], list[Any]] = {}
    for region in those:
        alike.setdefault((region.readonly, None if newer else region._life), []).append(region)
    with Undo() as undo:
        granted: list[tuple[list[Any], list[Grant], Parcels]] = []
        for (readonly, life), group in alike.items():
            wanted: list[Any] = [region.name if newer else region.id for region in group]
            try:
                grants, parcels = await _granted_many(client, wanted, life, readonly, True)
            except (Gone, NotFound, PermissionDenied):
                for region in group:  # raises the error of the one that was refused
                    (await region_calls.ask_to_attach(call, region, newer))[1].clear()
                raise
            undo.callback(parcels.clear)
            granted.append((group, grants, parcels))
        attach_granted(
            call,
            newer,
            (
                (region, grant, parcels)
                for group, grants, parcels in granted
                for region, grant in zip(group, grants, strict=True)
            ),
        )
        undo.forget()


def attach_granted(
    call: str, newer: bool, granted: Iterable[tuple[LeasedRegion, Grant, Parcels]]
) -> None:
    """Attach regions of one connection to the memory that was granted for each, all or none."""
    asleep: list[Lease] = []
    with Undo() as undo:
        for region, grant, parcels in granted:
            undo.callback(vars(region).update, region._described())
            asleep += filter(None, [region._sleeper])
            if region._attach_granted(call, newer, grant, parcels):
                undo.callback(region.detach)
        undo.forget()
    if asleep:
        connection = region._broker._connection
        with Undo() as told:
            told.callback(connection.flush_patiently)
            connection.close_leases(asleep)


def _batches(wanted: list[Any]) -> Iterator[list[Any]]:
    """Names or numbers in batches that fit a packet."""
    batch: list[Any] = []
    room = PAGE_BYTES
    for one in wanted:
        if room < 0 or len(batch) == BATCH_LIMIT:
            yield batch
            batch, room = [], PAGE_BYTES
        batch.append(one)
        room -= _KEY_BYTES + (len(one.encode()) if isinstance(one, str) else 0)
    if batch:
        yield batch


async def delete(client: BrokerBase[R], name: str) -> None:
    """Delete a region's name, and those of a checkpoint's files that its owner has made.

    The copies of ``sleep_many()`` are deleted too, also where all holders sleep. The memory is
    freed when the last holder closes the region. Raises NotFound, PermissionDenied,
    BrokerUnavailable.
    """
    request = requests.Delete(as_name("delete", name), id=0)
    await lookup.asked_by_name(client, name, request, Reply)


async def seal(client: BrokerBase[R], name: str) -> None:
    """Make the region of this name immutable: the broker grants no writable view of it any more.

    Existing views stay writable. A checkpoint's files are sealed too. Raises NotFound,
    PermissionDenied.
    """
    for info in await _whole(client, "seal", name):
        await client._ask(requests.Seal(info.region, id=0), Reply)


async def chmod(client: BrokerBase[R], name: str, mode: int) -> None:
    """Change the permission bits of the region of this name, and of a checkpoint's files.

    Raises NotFound, PermissionDenied.
    """
    bits = as_mode("chmod", mode)
    for info in await _whole(client, "chmod", name):
        await client._ask(requests.Change(info.region, bits, id=0), Reply)


async def _whole(client: BrokerBase[R], call: str, name: str) -> list[RegionInfo]:
    """The region of a name, after a checkpoint's files."""
    whole = await lookup.named(client, call, name)
    return [*await lookup.files_of(client, whole), whole]


async def rounded_size(client: BrokerBase[R], nbytes: int, device: Any = 0) -> int:
    """The bytes that a region of ``nbytes`` takes on a device. Raises NotFound (no such device)."""
    bytes_, ordinal = as_nbytes("rounded_size", nbytes), as_device("rounded_size", device)
    reply, _ = await client._ask(requests.RoundedSize(bytes_, ordinal, id=0), replies.Size)
    return reply.size


async def status(client: BrokerBase[R]) -> dict[str, Any]:
    """The broker's counters: bytes by device and user, connections, requests.

    "uid" is this user, as the broker sees it. "nameless" are regions without a name, as dicts of
    the fields of a RegionInfo, with their holders: drafts, anonymous regions, and those that ended,
    were replaced or lost their name. It has the largest that this user owns or may read, at most
    64, each with at most 64 holders.
    """
    counters, _ = await client._ask(requests.Status(id=0), replies.Counters)
    return counters.as_dict()
