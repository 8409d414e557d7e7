"""Regions that sleep: their GPU memory is given back, and one copy in host memory serves them all.

The copy is the sealed region ``NAME.host``. Its metadata identifies the contents by a stamp, which
the region that is made from it has too.
"""

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
from gdrpy.broker.client.region import LeasedRegion
from gdrpy.broker.replies import RegionInfo, Reply
from gdrpy.errors import Gone, InvalidRequest, NotFound, PermissionDenied
from gdrpy.region import as_regions, detach_many

R = TypeVar("R", bound=LeasedRegion)

#: The key of the stamp in a region's metadata.
_STAMP = "stamp"
#: The key of the UUID of the GPU that a copy's contents are for.
_DEVICE = "device"


async def sleep_many(client: BrokerBase[R], regions: Iterable[R]) -> None:
    """Detach sealed regions, and free the GPU memory of those that no process holds any more.

    Args:
        regions: The regions, of this connection, with names and GPU views. Those that are detached
            are left as they are.

    The first process that puts a region to sleep copies it to the sealed region ``NAME.host`` in
    host memory, which all holders share and which stays: a later sleep of the same contents copies
    nothing. The last one deletes the region's name. :meth:`wake_many` brings the contents back to
    the same addresses, as :meth:`wake` does for a process that has no such region.

    The processes must be the owner's. ``broker.delete(NAME + ".host")`` frees the host memory.

    Raises InvalidRequest for a region that is not sealed, PermissionDenied for another user's,
    ValueError for one without a name or that came from another connection, OutOfMemory (host
    memory), and as :func:`gdrpy.detach_many`. The regions are attached then.
    """
    call = "sleep_many"
    those = [one for one in _of(call, client, regions) if not one._can_attach(call)]
    about = [await _keep(client, call, region) for region in those]
    detach_many(those)
    for region, info in zip(those, about, strict=True):
        region._asleep = info
        with suppress(NotFound, Gone, PermissionDenied):  # a newer version has the name
            request = requests.Delete(str(region.name), region.id, unheld=True, id=0)
            await client._ask(request, Reply)


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

    The first process that wakes makes the region again from ``NAME.host``, and others attach it.

    Raises Gone if the name refers to other contents by now (``attach(newer=True)`` takes these),
    or if neither the region nor its copy exists; ValueError for a region that sleep_many() did not
    detach; OutOfMemory, and as ``attach()``. All of them sleep on then.
    """
    call = "wake_many"
    those = [one for one in _of(call, client, regions) if one._can_attach(call)]
    with Undo() as undo:
        for region in those:
            if region._asleep is None:
                raise ValueError(f"{call}: sleep_many() did not detach {region!r}: attach() it")
            found = await _awake(client, call, region, wait)
            undo.callback(found.close)
        await calls.attach_many(client, those, newer=True)


async def wake(
    client: BrokerBase[R],
    name: str,
    *,
    gpu: bool = True,
    cpu: bool = True,
    wait: float | None = None,
) -> R:
    """The region of this name, made again from ``NAME.host`` if all of its holders sleep.

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
        try:
            copy = await _copy_of(client, name)
        except (NotFound, PermissionDenied):
            raise error from None
    with copy:
        about = dict(copy.metadata)
        slept = replace(await region_calls.info(copy), name=name, uuid=about.pop(_DEVICE, None))
        if not (copy.sealed and slept.uuid and _STAMP in about):
            raise InvalidRequest(f"wake: {copy.name!r} is no copy that sleep_many() made")
        return await _made(client, "wake", copy, replace(slept, metadata=about), wait, gpu, cpu)


def _of(call: str, client: BrokerBase[R], regions: Any) -> list[R]:
    those: list[Any] = as_regions(call, regions, LeasedRegion, "regions of a broker", "[region]")
    for region in those:
        if region._broker is not client:
            raise ValueError(f"{call}: {region!r} came from another connection: pass it there")
    return those


def _name_of_copy(name: str) -> str:
    return f"{name}.host"


async def _copy_of(client: BrokerBase[R], name: str) -> R:
    """The host copy of the region of a name."""
    return await calls.get(client, _name_of_copy(name), gpu=False, readonly=True)


def _stamp(info: RegionInfo, life: str) -> str:
    return str((info.metadata or {}).get(_STAMP) or f"{life}/{info.region}")


async def _keep(client: BrokerBase[R], call: str, region: R) -> RegionInfo:
    """Have a host copy of a region's contents. Returns what the broker tells of the region."""
    region._check(call)
    if region.name is None or not region.sealed:
        raise InvalidRequest(
            f"{call}: {region!r} must be published and sealed, so that its copy stays right: "
            f"seal() it, or detach() it, which keeps its GPU memory"
        )
    info = await region_calls.info(region)
    name, stamp = _name_of_copy(region.name), _stamp(info, region._life)
    with suppress(NotFound):
        copy = await lookup.stat(client, name)
        if copy.uid == info.uid and copy.sealed and _stamp(copy, "") == stamp:
            return info
    about = {**(info.metadata or {}), _STAMP: stamp, _DEVICE: info.uuid}
    draft = await calls.create(client, name, info.nbytes, "cpu", mode=info.mode, metadata=about)
    with draft:
        if (await region_calls.info(draft)).uid != info.uid:
            raise PermissionDenied(
                f"{call}: region {region.name!r} is another user's: detach() it instead"
            )
        with memoryview(draft.cpu) as target:
            region.readinto(target)
        await region_calls.seal(draft)
        await region_calls.publish(draft)
    return info


async def _awake(client: BrokerBase[R], call: str, region: R, wait: float | None) -> R:
    """The region of the contents that a region had when it was put to sleep."""
    slept = region._asleep
    assert slept is not None
    name, stamp = str(slept.name), _stamp(slept, region._life)
    try:
        found = await calls.get(client, name, cpu=False)
    except NotFound:
        copy = await _kept_copy(client, call, region, stamp, slept.uid)
        about = replace(slept, metadata={**(slept.metadata or {}), _STAMP: stamp})
        found = await _made(client, call, copy, about, wait, True, False)
    with Undo() as undo:
        undo.keep(found)
        info = await region_calls.info(found)
        if (_stamp(info, found._life), info.uid) != (stamp, slept.uid):
            raise Gone(
                f"{call}: region {name!r} has other contents now, of version {info.version}: take "
                f"them by attach(newer=True), or close this one"
            )
        undo.forget()
    return found


async def _kept_copy(
    client: BrokerBase[R], call: str, region: R, stamp: str, owner: int
) -> LeasedRegion:
    """The host copy of these contents, which stays open: unmapping it takes longer than a copy."""
    copy = region._copy
    if copy is not None and copy.metadata[_STAMP] == stamp:
        return copy
    try:
        copy = await _copy_of(client, str(region.name))
    except NotFound as error:
        raise Gone(f"{call}: neither {region.name!r} nor its copy exists: {error}") from error
    with Undo() as undo:
        undo.keep(copy)
        uid = (await region_calls.info(copy)).uid
        if not copy.sealed or copy.metadata.get(_STAMP) != stamp or uid != owner:
            raise Gone(f"{call}: {copy.name!r} has other contents than {region!r} had: close it")
        undo.forget()
    if region._copy is not None:
        region._copy.close()
    region._copy = copy
    return copy


async def _made(
    client: BrokerBase[R],
    call: str,
    copy: LeasedRegion,
    about: RegionInfo,
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
        metadata=about.metadata,
        gpu=gpu,
        cpu=cpu,
        wait=wait,
    )
    with Undo() as undo:
        undo.keep(draft)
        if (await region_calls.info(draft)).uid != about.uid:
            raise PermissionDenied(f"{call}: {copy.name!r} is another user's, who can wake it")
        undo.forget()
    with memoryview(copy.cpu) as source:
        return await published(draft, lambda: draft.write(source), True, missing=True)
