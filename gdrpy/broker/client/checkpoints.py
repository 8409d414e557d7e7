"""Calls that load a checkpoint's files, each into a region, and open all of its tensors."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from gdrpy import safetensors
from gdrpy.arrays.array import Array
from gdrpy.broker.checkpoint import index_metadata, is_checkpoint
from gdrpy.broker.client import arrays, calls, lookup, region_calls
from gdrpy.broker.client.arguments import as_device, as_name
from gdrpy.broker.client.arrays import of_tensors
from gdrpy.broker.client.base import BrokerBase
from gdrpy.broker.client.region import LeasedRegion
from gdrpy.broker.protocol import CPU_DEVICE, UNDECODABLE
from gdrpy.common.arguments import as_path
from gdrpy.errors import NotFound, OutOfMemory, PermissionDenied

R = TypeVar("R", bound=LeasedRegion)


async def load_checkpoint(
    client: BrokerBase[R],
    folder: str | os.PathLike[str],
    name: str,
    device: Any = 0,
    *,
    mode: int = 0o600,
    seal: bool = False,
    gpu: bool = True,
    cpu: bool = True,
    wait: float | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> dict[str, Array]:
    """Publish the tensors of a folder's safetensors files; returns them as :meth:`tensors` does.

    Args:
        folder: The checkpoint's folder.
        name: The name of the checkpoint.
        device: The device of the tensors: as for :meth:`load`, as are ``mode`` to ``wait``.
        progress: Called with the bytes read so far and the total, of the files that must be read.

    The folder holds an index (``model.safetensors.index.json``) and the files that it names, or one
    file. Each file becomes a region ``NAME/ID/FILE``. ID is a checksum of the device and of the
    names, sizes and modification times of all files. The region of the name itself lists these
    regions. It is published last, and then the regions that it listed before are deleted: other
    processes find either the old checkpoint or the whole new one.

    An interrupted load continues when it is called again: it does not read files that it has
    published. Otherwise their regions stay until ``gdrpy rm -r`` deletes them.

    Raises ValueError if the folder holds no checkpoint, or an incomplete or invalid one, before
    anything is published, or if a file changes meanwhile; OSError, and the errors of :meth:`load`.
    """
    as_name("load_checkpoint", name)
    named = as_device("load_checkpoint", device)
    device = home = "cpu" if named == CPU_DEVICE else named
    if isinstance(home, int):
        home = (await calls.status(client))["uuids"].get(str(home), str(home))
    path = as_path("load_checkpoint", "folder", folder)
    files = [_source(path, file, name) for file in safetensors.shards(path)]
    about = index_metadata(_identity(files, home))
    place = f"{name}/{about['id']}/"
    there = await _published(client, place, files, mode, seal)
    missing = [file for file in files if file.name not in there]
    done, total = 0, sum(file.nbytes for file in missing)

    def tell(part: int, _: int) -> None:
        if progress:
            progress(done + part, total)

    options: dict[str, Any] = {"mode": mode, "gpu": gpu, "cpu": cpu, "wait": wait}
    to_load: dict[str, Any] = {**options, "seal": seal, "progress": tell}
    for file in missing:
        region = place + file.name
        try:
            shard = await arrays.load(
                client, file.path, region, device, metadata=file.metadata, **to_load
            )
        except OutOfMemory as error:
            raise type(error)(
                f"load_checkpoint: no room for {file.name!r}: {error}; {len(there)} of the "
                f"{len(files)} files are in regions {place!r}*, which stay: free memory and load "
                f"again, which goes on with this file, or delete them"
            ) from error
        shard.close()
        there.add(file.name)
        done += file.nbytes
    for file in files:
        if _source(file.folder, file.name, name) != file:
            raise ValueError(
                f"load_checkpoint: {file.path} was changed while the checkpoint was loaded: load "
                f"it again"
            )
    names = [place + file.name for file in files]
    index = msgspec.json.encode(names)
    if await _listing(client, name, about, mode, seal, gpu, cpu) != names:
        draft = await calls.create(client, name, len(index), device, metadata=about, **options)
        (await arrays.published(draft, lambda: draft.write(index), seal)).close()
    return await tensors(client, name, gpu=gpu, cpu=cpu)


async def tensors(
    client: BrokerBase[R],
    name: str,
    *,
    gpu: bool = True,
    cpu: bool = True,
    readonly: bool = False,
    wait: float | None = None,
    device: int | str | None = None,
) -> dict[str, Array]:
    """The tensors that ``put_tensors``, ``load`` or ``load_checkpoint`` published, by name.

    Args:
        name: The name of the region or checkpoint.
        gpu: Whether to open the GPU view.
        cpu: Whether to open the CPU view.
        readonly: Whether to open them read-only.
        wait: How many seconds to wait for the name to appear; None does not wait.
        device: The GPU of the GPU view, as for :meth:`get`.

    Nothing is copied: ``array.numpy()`` and ``torch.from_dlpack(array)`` are views of the region,
    which the Array keeps. Raises as :meth:`get`, ValueError for a region without tensors, NotFound
    if a region of the checkpoint was deleted.
    """
    views: dict[str, Any] = {"gpu": gpu, "cpu": cpu, "readonly": readonly, "device": device}
    while True:
        with lookup.calling("tensors", "get"):
            region = await calls.get(client, name, wait=wait, **views)
        if not is_checkpoint(region.metadata):
            return region._tensors("tensors")
        names = listed("tensors", name, region.read())
        try:
            shards = await calls.get_many(client, names, **views)
        except NotFound as error:
            if await region_calls.stale(region):  # a newer checkpoint replaced it
                continue
            raise NotFound(
                f"tensors: checkpoint {name!r} is incomplete: {error}; load it again"
            ) from error
        finally:
            region.close()
        return {key: array for shard in shards for key, array in shard.tensors().items()}


class _Source(msgspec.Struct, frozen=True):
    """A file, its tensors' layout, and the metadata that identifies it in a later load."""

    folder: str
    name: str
    layout: safetensors.Layout
    metadata: dict[str, Any]

    @property
    def nbytes(self) -> int:
        return self.layout.nbytes

    @property
    def path(self) -> str:
        return os.path.join(self.folder, self.name)


def _source(folder: str, name: str, checkpoint: str) -> _Source:
    path = os.path.join(folder, name)
    found = os.stat(path)
    state = {
        "checkpoint": checkpoint,
        "file_bytes": found.st_size,
        "file_modified_ns": found.st_mtime_ns,
    }
    return _Source(folder, name, safetensors.plan_file(path), state)


def _identity(files: list[_Source], device: str) -> str:
    """The checksum of a device and files in regions' names; the metadata is compared too."""
    import json

    states = [device, *((file.name, file.metadata) for file in files)]
    return f"{zlib.crc32(json.dumps(states).encode()):08x}"


async def _published(
    client: BrokerBase[R], place: str, files: list[_Source], mode: int, seal: bool
) -> set[str]:
    """The files that an earlier load published at a place, given this load's permissions."""
    names = {str(info.name) for info in await lookup.list_regions(client, place)}
    if not names:
        return set()
    own = await calls.allocate(client, None, 1, "cpu")
    uid = (
        await region_calls.info(own)
    ).uid  # the broker's view of this user, also from a container
    own.close()
    there = set()
    for file in files:
        name = place + file.name
        if name not in names:
            continue
        try:
            info = await lookup.stat(client, name)
        except (NotFound, PermissionDenied):  # deleted meanwhile
            continue
        about = {**file.metadata, **of_tensors(file.layout)}
        same = info.nbytes == file.nbytes and info.metadata == about
        if not same or info.uid != uid or info.sealed > seal:
            continue
        if info.mode != mode:
            await calls.chmod(client, name, mode)
        if info.sealed < seal:
            await calls.seal(client, name)
        there.add(file.name)
    return there


async def _listing(
    client: BrokerBase[R],
    name: str,
    about: dict[str, Any],
    mode: int,
    seal: bool,
    gpu: bool,
    cpu: bool,
) -> list[str]:
    """The regions that a checkpoint lists; none if it is not the one of this load."""
    try:
        info = await lookup.stat(client, name)
        if (info.metadata, info.mode, info.sealed) == (about, mode, seal):
            with await calls.get(client, name, gpu=gpu, cpu=cpu, readonly=True) as region:
                return listed("load_checkpoint", name, region.read())
    except (NotFound, PermissionDenied, ValueError):
        pass
    return []


def listed(call: str, name: str, data: bytes) -> list[str]:
    """The names that a checkpoint's region lists. Raises ValueError for other bytes."""
    try:
        return msgspec.json.decode(data, type=list[str])
    except UNDECODABLE:
        raise ValueError(
            f"{call}: region {name!r} says that it is a checkpoint and lists no regions: load it "
            f"again"
        ) from None
