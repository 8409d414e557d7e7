"""Regions that give their GPU memory back, while one copy in host memory serves all processes."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, TypeVar

from msgspec.structs import replace

from gdrpy._core._mapping import Undo
from gdrpy.broker import requests
from gdrpy.broker.client import calls, lookup, region_calls
from gdrpy.broker.client.arrays import published
from gdrpy.broker.client.base import BrokerBase
from gdrpy.broker.client.copies import copies_of, free, gpu_of, marked, name_of, stamp_of, unmarked
from gdrpy.broker.client.region import LeasedRegion
from gdrpy.broker.protocol import NAME_LIMIT
from gdrpy.broker.replies import RegionInfo, Reply
from gdrpy.errors import Error, Gone, InvalidRequest, NotFound, PermissionDenied
from gdrpy.region import as_regions, detach_many

R = TypeVar("R", bound=LeasedRegion)


async def sleep_many(client: BrokerBase[R], regions: Iterable[R]) -> None:
    """Detach sealed regions, and free the GPU memory of those that no process holds any more.

    Args:
        regions: The regions, of this connection, with names and GPU views.

    The first process that puts a region to sleep copies it to a sealed region
    ``NAME.host/STAMP`` in host memory, which all holders share and which stays: a later sleep of
    the same contents copies nothing. The last one deletes the region's name. :meth:`wake_many`
    brings the contents back to the same addresses, as :meth:`wake` does for a process that has no
    such region. A version that lost its name to a newer one is only detached.

    The processes must be the owner's. Processes that only detach the region do not count as
    holders. ``broker.delete(NAME)`` deletes the copy too; its memory is freed when those that woke
    from it have closed their regions.

    Raises InvalidRequest for a region that is not sealed, Gone for one whose name was deleted,
    PermissionDenied for another user's, ValueError for one without a name or that came from
    another connection, OutOfMemory (host memory), and as :func:`gdrpy.detach_many`. The regions
    are attached then.
    """
    call = "sleep_many"
    given = _of(call, client, regions)
    those = [one for one in given if not one._can_attach(call)]
    about = [await _keep(client, call, region) for region in those]
    detach_many(those)
    for region, info in zip(those, about, strict=True):
        region._asleep = info
    for region in given:
        if region._asleep is not None:
            await free(client, str(region.name), region.id, unheld=True)


async def keep_many(client: BrokerBase[R], regions: Iterable[R]) -> None:
    """Copy sealed regions to host memory as :meth:`sleep_many` does, which then copies nothing.

    Args:
        regions: The regions, of this connection, with names and GPU views.

    Fresh host memory takes most of the time: the kernel clears it at some GB/s. Raises as
    sleep_many().
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
    those = [one for one in _of(call, client, regions) if one._can_attach(call)]
    for region in those:
        if region._asleep is None:
            raise ValueError(f"{call}: sleep_many() did not detach {region!r}: attach() it")
    awake: list[R] = []
    try:
        for region in those:
            awake.append(await _awake(client, call, region, wait))
        await calls.attach_many(client, those, newer=True)
    except BaseException:
        for found in awake:
            found.close()
            with suppress(Error):
                await free(client, str(found.name), found.id, unheld=True)
        raise
    for found in awake:
        found.close()


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
    try:
        return await calls.get(client, name, gpu=gpu, cpu=cpu)
    except NotFound as error:
        found = await copies_of(client, name)
        if not found:
            raise error from None
    newest = max(found.values(), key=lambda copy: copy.region)
    with await calls.get(client, str(newest.name), gpu=False, readonly=True) as copy:
        about = replace(newest, name=name, uuid=gpu_of(newest))
        return await _made(client, "wake", copy, about, stamp_of(newest, ""), wait, gpu, cpu)


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
            f"seal() it, or detach() it, which keeps its GPU memory"
        )
    if len(name_of(region.name, "0" * 16).encode()) > NAME_LIMIT:
        raise ValueError(
            f"{call}: the name {region.name!r} leaves no room for that of its copy, which is 22 "
            f"bytes longer: names have {NAME_LIMIT} at most"
        )
    info, found = await region_calls.info(region), await copies_of(client, region.name)
    if not info.linked:
        if not found and not await lookup.there(client, region.name):
            raise Gone(
                f"{call}: the name of {region!r} was deleted, so that it could not wake: detach() "
                f"it, or publish it again"
            )
        return info  # a newer version has the name, or sleeps
    stamp = stamp_of(info, region._life)
    copy = found.pop(stamp, None)
    if copy is None or copy.uid != info.uid:
        await _copy(client, call, region, info, stamp)
    elif copy.mode != info.mode:
        await client._ask(requests.Change(copy.region, info.mode, id=0), Reply)
    for older in found.values():
        await free(client, str(older.name), older.region)
    return info


async def _copy(client: BrokerBase[R], call: str, region: R, info: RegionInfo, stamp: str) -> None:
    """Publish a copy of a region, unless another process was faster."""
    name = name_of(str(region.name), stamp)
    draft = await calls.create(client, name, info.nbytes, "cpu", mode=info.mode)
    with draft:
        about = marked(unmarked(info.metadata), stamp, draft.id, info.uuid)
        await region_calls.set_metadata(draft, about)
        if (await region_calls.info(draft)).uid != info.uid:
            raise PermissionDenied(
                f"{call}: region {region.name!r} is another user's: detach() it instead"
            )
        with memoryview(draft.cpu) as target:
            region.readinto(target)
        await region_calls.seal(draft)
        await calls.publish_many(client, [draft], missing=True)
        if not draft.version:
            await _whole(client, call, name, stamp, info.uid)


async def _whole(client: BrokerBase[R], call: str, name: str, stamp: str, owner: int) -> RegionInfo:
    """A copy of these contents and this owner. Raises NotFound, Gone."""
    copy = await lookup.stat(client, name)
    if not gpu_of(copy) or stamp_of(copy, "") != stamp or copy.uid != owner:
        raise Gone(f"{call}: region {name!r} is not what sleep_many() made: delete it")
    return copy


async def _awake(client: BrokerBase[R], call: str, region: R, wait: float | None) -> R:
    """The region of the contents that a region had when it was put to sleep."""
    slept = region._asleep
    assert slept is not None
    name, stamp = str(slept.name), stamp_of(slept, region._life)
    try:
        found = await calls.get(client, name, cpu=False)
    except NotFound:
        copy = await _opened(client, call, region, stamp, slept.uid)
        found = await _made(client, call, copy, slept, stamp, wait, True, False)
    with Undo() as undo:
        undo.keep(found)
        info = await region_calls.info(found)
        if (stamp_of(info, found._life), info.uid) != (stamp, slept.uid):
            raise Gone(
                f"{call}: region {name!r} has other contents now, of version {info.version}: take "
                f"them by attach(newer=True), or close this one"
            )
        undo.forget()
    return found


async def _opened(
    client: BrokerBase[R], call: str, region: R, stamp: str, owner: int
) -> LeasedRegion:
    """The copy of these contents, which stays open: unmapping it takes longer than a copy."""
    copy, region._copy = region._copy, None
    if copy is not None:
        with suppress(Gone):
            about = await region_calls.info(copy)
            if about.linked and stamp_of(about, "") == stamp:
                region._copy = copy
                return copy
        copy.close()
    name = name_of(str(region.name), stamp)
    try:
        await _whole(client, call, name, stamp, owner)
        region._copy = await calls.get(client, name, gpu=False, readonly=True)
    except NotFound as error:
        raise Gone(f"{call}: neither {region.name!r} nor its copy exists: {error}") from error
    return region._copy


async def _made(
    client: BrokerBase[R],
    call: str,
    copy: LeasedRegion,
    about: RegionInfo,
    stamp: str,
    wait: float | None,
    gpu: bool,
    cpu: bool,
) -> R:
    """The region that ``about`` describes, made from a copy unless another process was faster."""
    draft = await calls.create(
        client,
        str(about.name),
        about.nbytes,
        about.uuid,
        mode=about.mode,
        gpu=gpu,
        cpu=cpu,
        wait=wait,
    )
    with Undo() as undo:
        undo.keep(draft)
        known = marked(unmarked(about.metadata), stamp, draft.id)
        await region_calls.set_metadata(draft, known)
        if (await region_calls.info(draft)).uid != about.uid:
            raise PermissionDenied(f"{call}: {copy.name!r} is another user's, who can wake it")
        undo.forget()
    with memoryview(copy.cpu) as source:
        return await published(draft, lambda: draft.write(source), True, missing=True)
