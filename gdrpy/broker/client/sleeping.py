"""Regions that give their GPU memory back, while one copy in host memory serves all processes."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, TypeVar

from msgspec.structs import replace

from gdrpy._core._mapping import Undo, alone
from gdrpy.broker import copies, requests
from gdrpy.broker.client import calls, lookup, region_calls
from gdrpy.broker.client.arrays import published
from gdrpy.broker.client.base import BrokerBase
from gdrpy.broker.client.connection import Parcels
from gdrpy.broker.client.region import LeasedRegion
from gdrpy.broker.protocol import NAME_LIMIT
from gdrpy.broker.replies import Description, Grant, RegionInfo, Reply, described
from gdrpy.errors import Error, Gone, InvalidRequest, NotFound, PermissionDenied
from gdrpy.region import as_regions, detach_many

R = TypeVar("R", bound=LeasedRegion)


async def sleep_many(client: BrokerBase[R], regions: Iterable[R]) -> None:
    """Detach sealed regions, and free the GPU memory of those that no process holds any more.

    Args:
        regions: The regions, of this connection, with names and GPU views.

    The first process that puts a region to sleep copies it to a sealed region
    ``NAME.host/ID`` in host memory, which all holders share and which stays: a later sleep of
    the same contents copies nothing. The last one deletes the region's name. :meth:`wake_many`
    brings the contents back to the same addresses, as :meth:`wake` does for a process that has no
    such region. A version that lost its name to a newer one is only detached.

    The processes must be the owner's. Processes that only detach the region do not count as
    holders. ``broker.delete(NAME)`` deletes the copy too; its memory is freed when those that woke
    from it have closed their regions.

    Raises InvalidRequest for a region that is not sealed, Gone for one whose name was deleted,
    PermissionDenied for another user's, ValueError for one that came from another connection,
    OutOfMemory (host memory), and as :func:`gdrpy.detach_many`. The regions are attached then.
    """
    call = "sleep_many"
    given = _of(call, client, regions)
    those = [one for one in given if not one._can_attach(call)]
    for region in those:
        alone(client._copying, region._check_detachable, call)
    try:
        for region in those:
            try:
                region._asleep = await _keep(client, call, region)  # noted before it is detached
            except Error:
                if region._asleep is None or not region.detached:
                    raise  # else another thread has put it to sleep
        alone(client._copying, detach_many, those)
    except BaseException:
        for region in those:
            if not region.detached:
                region._asleep = None
        raise
    for region in given:
        if region._asleep is not None:
            with suppress(Error):  # the next one that sleeps frees it
                await _free(client, str(region.name), region.id)


async def keep_many(client: BrokerBase[R], regions: Iterable[R]) -> None:
    """Copy sealed regions to host memory as :meth:`sleep_many` does, which then copies nothing.

    Args:
        regions: The regions, of this connection, with names, in the memory of GPUs.

    Fresh host memory takes most of the time: the kernel clears it at some GB/s. Raises as
    sleep_many(), and InvalidRequest for host memory.
    """
    call = "keep_many"
    for region in _of(call, client, regions):
        await _keep(client, call, region)


async def wake_many(
    client: BrokerBase[R], regions: Iterable[R], *, wait: float | None = None
) -> None:
    """Attach regions that :meth:`sleep_many` detached, with their contents, at their addresses.

    Args:
        regions: The regions, of this connection. Those that are attached are left as they are.
        wait: How many seconds to wait for GPU memory; None does not wait.

    The first process that wakes makes the region again from its copy, and others attach it. A
    process keeps the copy mapped that it woke from.

    Raises Gone if the name refers to other contents by now (``attach(newer=True)`` takes these),
    or if neither the region nor its copy exists; ValueError for a region that sleep_many() did not
    detach; OutOfMemory, and as ``attach()``. All of them sleep on then.
    """
    call = "wake_many"
    asleep: list[tuple[R, RegionInfo]] = []
    for region in _of(call, client, regions):
        if region._can_attach(call):
            slept = region._asleep
            if slept is not None:
                asleep.append((region, slept))
            elif region._can_attach(call):  # no other thread has woken it meanwhile
                raise ValueError(f"{call}: sleep_many() did not detach {region!r}: attach() it")
    granted: list[tuple[R, Grant, Parcels]] = []
    try:
        for region, slept in asleep:
            granted.append((region, *await _woken(client, call, region, slept, wait)))
        calls.attach_granted(call, True, granted)
    except BaseException:
        for _, grant, parcels in granted:
            parcels.clear()
            with suppress(Error):
                await _free(client, str(grant.name), grant.region)
        raise


async def wake(
    client: BrokerBase[R],
    name: str,
    *,
    gpu: bool = True,
    cpu: bool = True,
    wait: float | None = None,
) -> R:
    """The region of this name, made again from its copy if all of its holders sleep.

    Args:
        name: The region's name.
        gpu: Whether this process gets the GPU view.
        cpu: Whether this process gets the CPU view.
        wait: How many seconds to wait for GPU memory; None does not wait.

    Raises NotFound if there is neither, OutOfMemory, and as :meth:`get`.
    """
    call = "wake"
    while True:
        try:
            with lookup.calling(call, "get"):
                return await calls.get(client, name, gpu=gpu, cpu=cpu)
        except NotFound as error:
            found = await lookup.copy_of(client, name)
            mark = None if found is None else copies.mark_of(found.metadata, found.region)
            if found is None or mark is None:
                raise error from None
        copy = await _open(client, found)
        if copy is not None:
            about = replace(found, name=name, uuid=mark.gpu)
            views = gpu, cpu or not gpu  # the contents go through one
            with copy, suppress(Gone):  # it was deleted or replaced meanwhile
                made = await _made(client, call, copy, copy.id, about, mark.stamp, wait, *views)
                if gpu or cpu:
                    return made
                with made:
                    return await calls.attach(
                        client, made._life, made.id, gpu=False, cpu=False, readonly=True
                    )


def _of(call: str, client: BrokerBase[R], regions: Any) -> list[R]:
    those: list[Any] = as_regions(call, regions, LeasedRegion, "regions of a broker", "[region]")
    for region in those:
        if region._broker is not client:
            raise ValueError(f"{call}: {region!r} came from another connection: pass it there")
    return those


async def _keep(client: BrokerBase[R], call: str, region: R) -> RegionInfo:
    """Have a copy of a region's contents. Returns what the broker tells of the region."""
    region._check(call)
    if region.name is None or not region.version or not region.sealed:
        raise InvalidRequest(
            f"{call}: {region!r} must be published and sealed, so that its copy stays right: "
            f"seal() it, or detach() it: the broker then keeps its contents on the GPU"
        )
    if len(region.name.encode()) + copies.NAME_BYTES > NAME_LIMIT:
        raise ValueError(
            f"{call}: the name {region.name!r} leaves no room for that of its copy, which is "
            f"{copies.NAME_BYTES} bytes longer: names have {NAME_LIMIT} at most"
        )
    while True:
        info, copy = await region_calls.info(region), await lookup.copy_of(client, region.name)
        if not info.linked:
            if copy is None and not await lookup.there(client, region.name):
                raise Gone(
                    f"{call}: the name of {region!r} was deleted, so that it could not wake: "
                    f"detach() it, or publish it again"
                )
            return info  # a newer version has the name, or sleeps
        if info.uuid is None:
            raise InvalidRequest(f"{call}: {region!r} is host memory already: leave it out")
        if info.grace is not None:
            raise InvalidRequest(
                f"{call}: {region!r} is bound to its exporter, and ends with it: leave it out"
            )
        if copy is None or (_stamp_of(copy), copy.uid) != (_stamp_of(info, region), info.uid):
            try:
                await _copy(client, call, region, info)
            except Gone:  # it was deleted or replaced meanwhile, or the broker has lost it
                continue
        elif copy.mode != info.mode:
            await client._ask(requests.Change(copy.region, info.mode, id=0), Reply)
        return info


def _stamp_of(info: RegionInfo, region: LeasedRegion | None = None) -> str:
    """The stamp of a copy's contents, or those of a region."""
    life = "" if region is None else region._life
    return copies.stamp_of(info.metadata, info.region, life)


async def _copy(client: BrokerBase[R], call: str, region: R, info: RegionInfo) -> None:
    """Publish a copy of a region, in place of older ones. Raises Gone if it lost its name."""
    name = copies.new_name(str(region.name))
    with await calls.create(client, name, info.nbytes, "cpu", mode=info.mode) as draft:
        about = copies.marked(info.metadata, _stamp_of(info, region), draft.id, info.uuid)
        await region_calls.set_metadata(draft, about)
        if (await region_calls.info(draft)).uid != info.uid:
            raise PermissionDenied(
                f"{call}: region {region.name!r} is another user's: detach() it instead"
            )
        with memoryview(draft.cpu) as target:
            alone(client._copying, region.readinto, target)
        await region_calls.seal(draft)
        await calls.publish_beside(client, [draft], info.region, missing=False)


async def _woken(
    client: BrokerBase[R], call: str, region: R, slept: RegionInfo, wait: float | None
) -> tuple[Grant, Parcels]:
    """A grant of the region that has the contents which a region had when it was put to sleep."""
    name, stamp = str(slept.name), _stamp_of(slept, region)
    request = requests.Get(name=name, readonly=True, gpu=True, id=0)
    made: R | None = None
    try:
        while True:
            with suppress(NotFound):
                grant, parcels = await client._ask(request, Grant)
                break
            copy, found = await _opened(client, call, region, stamp, slept.uid)
            about = replace(slept, mode=found.mode)  # it may have changed since
            with suppress(Gone):  # the copy was deleted or replaced meanwhile
                made = await _made(
                    client, call, copy, found.region, about, stamp, wait, True, False
                )
        with Undo() as undo:
            undo.callback(parcels.clear)
            stat = requests.Stat(region=grant.region, id=0)
            info = described((await client._ask(stat, Description, [parcels[0][1]]))[0])
            its = copies.stamp_of(info.metadata, info.region, parcels[0][1].life)
            if (its, info.uid) != (stamp, slept.uid):
                raise Gone(
                    f"{call}: region {name!r} has other contents now, of version {info.version}: "
                    f"take them by attach(newer=True), or close this one"
                )
            undo.forget()
        return grant, parcels
    finally:
        if made is not None:
            made.close()


async def _opened(
    client: BrokerBase[R], call: str, region: R, stamp: str, owner: int
) -> tuple[LeasedRegion, RegionInfo]:
    """The copy of these contents, which stays open: unmapping it takes longer than a copy.

    Returns what the broker tells of it, too.
    """
    name = str(region.name)
    while True:
        about = await lookup.copy_of(client, name)
        if about is None or (_stamp_of(about), about.uid) != (stamp, owner):
            raise Gone(f"{call}: neither {name!r} nor its copy exists: close this one")
        copy = region._copy
        if copy is None or copy.id != about.region or copy._lease.lost:
            copy = await _open(client, about)
            if copy is None:
                continue
            region._copy = copy  # the one before goes when no thread reads it any more
        return copy, about


async def _open(client: BrokerBase[R], about: RegionInfo) -> R | None:
    """The copy that the broker told of, if it is there yet."""
    with suppress(NotFound):
        copy = await calls.get(client, str(about.name), gpu=False, readonly=True)
        if copy.id == about.region:
            return copy
        copy.close()
    return None


async def _made(
    client: BrokerBase[R],
    call: str,
    copy: LeasedRegion,
    number: int,
    about: RegionInfo,
    stamp: str,
    wait: float | None,
    gpu: bool,
    cpu: bool,
) -> R:
    """The region that ``about`` describes, made from a copy unless another process was faster.

    Raises Gone if the copy, of this number, loses its name meanwhile, or if a region that this
    user may not write has the region's.
    """
    name, mode = str(about.name), about.mode
    try:
        draft = await calls.create(
            client, name, about.nbytes, about.uuid, mode=mode, gpu=gpu, cpu=cpu, wait=wait
        )
    except PermissionDenied as error:
        raise Gone(f"{call}: another process made {name!r}, which is read-only") from error
    with Undo() as undo:
        undo.keep(draft)
        await region_calls.set_metadata(draft, copies.marked(about.metadata, stamp, draft.id))
        if (await region_calls.info(draft)).uid != about.uid:
            raise PermissionDenied(f"{call}: {copy.name!r} is another user's, who can wake it")
        undo.forget()
    with memoryview(copy.cpu) as source:
        return await published(
            draft, lambda: draft.write(source), True, missing=True, beside=number
        )


async def _free(client: BrokerBase[R], name: str, region: int) -> None:
    """Delete the name of this region if no process holds the region and a copy exists."""
    with suppress(NotFound, Gone, PermissionDenied):
        request = requests.Delete(name, region, unheld=True, copied=True, id=0)
        await client._ask(request, Reply)
