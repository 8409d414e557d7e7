"""Calls that save regions into a folder, and restore them from it.

The folder has a file for each region, with its bytes, and ``snapshot.json``, which describes them.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from typing import Any, Literal, TypeVar

import msgspec

from gdrpy.arrays.source import BLOCK, Source
from gdrpy.broker import requests
from gdrpy.broker.checkpoint import places_of
from gdrpy.broker.client import calls, lookup, region_calls
from gdrpy.broker.client.arguments import as_device, as_name
from gdrpy.broker.client.base import BrokerBase
from gdrpy.broker.client.region import LeasedRegion
from gdrpy.broker.protocol import CPU_DEVICE, METADATA_LIMIT, PUBLISH_LIMIT, UNDECODABLE
from gdrpy.broker.replies import RegionInfo
from gdrpy.common import spelling
from gdrpy.common.arguments import as_path
from gdrpy.common.workers import by_threads
from gdrpy.errors import NotFound, PermissionDenied

R = TypeVar("R", bound=LeasedRegion)

#: The file that describes the others.
_INDEX = "snapshot.json"
#: Bytes that have a digest of their own.
_PIECE = 16 << 20
#: Threads that copy: each hashes 1 to 2 GB/s.
_THREADS = 8

Progress = Callable[[int, int], object] | None


class Saved(msgspec.Struct):
    """A region of a snapshot. ``sha256`` has a digest of each piece of its bytes."""

    name: str
    file: str
    nbytes: int
    uuid: str | None
    device: int | str
    mode: int
    uid: int
    gid: int
    sealed: bool
    metadata: bytes
    sha256: list[str]


class Snapshot(msgspec.Struct):
    """What is in a snapshot's folder. ``piece`` is the size of the pieces with digests."""

    regions: list[Saved]
    piece: int
    format: Literal["gdrpy snapshot"] = "gdrpy snapshot"
    version: Literal[1] = 1


async def save(
    client: BrokerBase[R],
    folder: str | os.PathLike[str],
    names: Iterable[str] | None = None,
    *,
    progress: Progress = None,
) -> list[str]:
    """Save regions into a new folder, for :meth:`restore`; returns their names.

    Args:
        folder: The folder to make.
        names: The regions' names; with a checkpoint its files are saved. None is all regions that
            this user may read.
        progress: Called with the bytes done and the total.

    Each region is saved with its metadata, permissions, owner and seal, as it is while it is
    copied: seal it, or have its writers wait. The folder appears when it is whole. A process that
    is killed meanwhile leaves a folder ``FOLDER.partial-...``.

    Raises FileExistsError, NotFound, PermissionDenied, OSError.
    """
    path = as_path("save", "folder", folder)
    infos = await _to_save(client, names)
    if os.path.lexists(path):
        raise FileExistsError(f"save: {path} exists: choose another folder, or delete it")
    partial = f"{path.rstrip('/')}.partial-{os.getpid()}-{time.monotonic_ns()}"
    try:
        os.mkdir(partial, 0o700)
    except OSError as error:
        raise OSError(error.errno, f"save: cannot make {path}: {error.strerror}") from None
    try:
        saved = []
        done, total = 0, sum(info.nbytes for info in infos)
        for number, info in enumerate(infos):
            region = await calls.get(client, str(info.name), gpu=False, readonly=True)
            try:
                one = _described(number, region, await region_calls.info(region))
                with (
                    open(os.path.join(partial, one.file), "wb", buffering=0) as file,
                    closing(_copied(region, file.fileno(), one)) as pieces,
                ):
                    for nbytes in pieces:
                        done += nbytes
                        if progress:
                            progress(done, total)
                    os.fsync(file.fileno())
            finally:
                region.close()
            saved.append(one)
        with open(os.path.join(partial, _INDEX), "xb") as index:
            index.write(msgspec.json.format(msgspec.json.encode(Snapshot(saved, _PIECE))))
            index.flush()
            os.fsync(index.fileno())
        os.rename(partial, path)
    except BaseException:
        for name in os.listdir(partial):
            os.unlink(os.path.join(partial, name))
        os.rmdir(partial)
        raise
    return [one.name for one in saved]


async def _to_save(client: BrokerBase[R], names: Iterable[str] | None) -> list[RegionInfo]:
    """The regions to save, in the order of their names; a checkpoint's index after its files."""
    if names is None:
        return await lookup.list_regions(client)
    if isinstance(names, str):
        raise TypeError(f"save: names must be several names, not {names!r}: give [{names!r}]")
    found: dict[str, RegionInfo] = {}
    for name in names:
        whole = await lookup.named(client, "save", name)
        for info in (*await lookup.files_of(client, whole), whole):
            found[str(info.name)] = info
    return list(found.values())


def _described(number: int, region: LeasedRegion, info: RegionInfo) -> Saved:
    tensors = region.metadata.get("format") == "safetensors"
    return Saved(
        name=str(info.name),
        file=f"{number:05}.{'safetensors' if tensors else 'bin'}",
        nbytes=info.nbytes,
        uuid=info.uuid,
        device=info.device,
        mode=info.mode,
        uid=info.uid,
        gid=info.gid,
        sealed=info.sealed,
        metadata=region._packed,
        sha256=[""] * len(range(0, info.nbytes, _PIECE)),
    )


def _copied(region: LeasedRegion, file: int, one: Saved) -> Generator[int, None, None]:
    """Copy a region into a file, and its digests into ``one``; yields the bytes of each piece."""

    def worker() -> Callable[[int], int]:
        memory = region._host_memory(min(_PIECE, region.nbytes), len(one.sha256) > 1)

        def copy(number: int) -> int:
            start = number * _PIECE
            piece = memory[: region.nbytes - start]
            region.readinto(piece, start)
            one.sha256[number] = hashlib.sha256(piece.data).hexdigest()
            written = 0
            while written < len(piece):
                written += os.pwrite(file, piece.data[written:], start + written)
            return len(piece)

        return copy

    return by_threads(range(len(one.sha256)), _THREADS, worker)


async def restore(
    client: BrokerBase[R],
    folder: str | os.PathLike[str],
    names: Iterable[str] | None = None,
    *,
    device: Any = None,
    missing: bool = False,
    progress: Progress = None,
) -> list[str]:
    """Publish the regions that :meth:`save` saved in a folder; returns their names.

    Args:
        folder: The folder.
        names: The names to restore; with a checkpoint its files are restored. None is all of them.
        device: The device for all of them: as for :meth:`allocate`. None is each region's own: the
            same GPU if the broker has it, else the one of its number.
        missing: Whether to leave regions alone whose names exist.
        progress: Called with the bytes done and the total.

    Up to 256 regions are published in one step, further ones in further steps, after the digests of
    all were compared. They replace regions of their names. Root and the broker's user restore the
    owners; what others restore is their own.

    Raises ValueError for a folder without a snapshot, and for one whose files have changed,
    NotFound, OSError, and the errors of :meth:`create`.
    """
    path = as_path("restore", "folder", folder)
    snapshot = read_snapshot(path)
    chosen = _chosen(snapshot, names, path)
    if missing:
        there = {info.name for info in await lookup.list_regions(client)}
        chosen = [one for one in chosen if one.name not in there]
    home = None if device is None else as_device("restore", device)
    uuids = (await calls.status(client))["uuids"].values()
    done, total = 0, sum(one.nbytes for one in chosen)
    drafts: list[R] = []
    try:
        for one in chosen:
            own = CPU_DEVICE if one.device == "cpu" else one.device
            if one.uuid in uuids:
                own = str(one.uuid)
            draft = await _draft(client, one, own if home is None else home)
            drafts.append(draft)
            file = os.path.join(path, one.file)
            with closing(_filled(draft, file, one, snapshot.piece)) as pieces:
                for nbytes in pieces:
                    done += nbytes
                    if progress:
                        progress(done, total)
            if one.sealed:
                await region_calls.seal(draft)
        for start in range(0, len(drafts), PUBLISH_LIMIT):
            await calls.publish_many(client, drafts[start : start + PUBLISH_LIMIT])
    finally:
        for draft in drafts:
            draft.close()
    return [one.name for one in chosen]


def read_snapshot(folder: str) -> Snapshot:
    """The description of a snapshot's folder, which is untrusted. Raises ValueError, OSError."""
    path = os.path.join(folder, _INDEX)
    try:
        with open(path, "rb") as file:
            found = msgspec.json.decode(file.read(), type=Snapshot)
    except FileNotFoundError:
        raise ValueError(
            f"restore: {folder} holds no snapshot: it has no {_INDEX}: give a folder that save() "
            f"or `gdrpy save` made"
        ) from None
    except UNDECODABLE as error:
        raise ValueError(f"restore: {path} does not describe a snapshot: {error}") from None
    for one in found.regions:
        as_name("restore", one.name)
        pieces = range(0, one.nbytes, found.piece) if found.piece > 0 else ()
        if (
            os.path.basename(one.file) != one.file
            or one.file in ("", ".", "..")
            or len(one.metadata) > METADATA_LIMIT
            or not one.nbytes > 0
            or len(pieces) != len(one.sha256)
        ):
            raise ValueError(f"restore: {path} does not describe region {one.name!r}: save it anew")
    return found


def _chosen(snapshot: Snapshot, names: Iterable[str] | None, path: str) -> list[Saved]:
    """The regions to restore; the indices of checkpoints last."""
    if isinstance(names, str):
        raise TypeError(f"restore: names must be several names, not {names!r}: give [{names!r}]")
    there = {one.name: one for one in snapshot.regions}
    places = {one.name: places_of(one.name, one.metadata) for one in snapshot.regions}
    found: dict[str, Saved] = {}
    for name in there if names is None else names:
        if name not in there:
            why = f"restore: there is no region {name!r} in {path}"
            raise NotFound(f"{why}{spelling.suggested(str(name), there)}")
        found[name] = there[name]
        files = places[name][0]
        if files:
            found |= {file: there[file] for file, (_, home) in places.items() if home == files}
    return sorted(found.values(), key=lambda one: places[one.name][0] is not None)


async def _draft(client: BrokerBase[R], one: Saved, device: int | str) -> R:
    """A draft that belongs to the saved region's owner, if this client may make such ones."""
    owner = one.uid, one.gid
    fields = one.name, one.nbytes, device, one.mode, one.metadata, False
    try:
        return await calls._granted(client, requests.Create(*fields, owner=owner, id=0), True)
    except PermissionDenied:
        return await calls._granted(client, requests.Create(*fields, id=0), True)


def _filled(draft: LeasedRegion, path: str, one: Saved, piece: int) -> Generator[int, None, None]:
    """Copy a file into a draft; yields the bytes of each piece. Raises ValueError, OSError."""
    with Source("restore", path) as file:
        if file.nbytes != one.nbytes:
            raise ValueError(
                f"restore: {path} has {file.nbytes} bytes, and {one.name!r} had {one.nbytes} when "
                f"it was saved: copy the snapshot again"
            )
        file.pass_cache()

        def worker() -> Callable[[int], int]:
            room = min(piece, one.nbytes) + 2 * BLOCK
            memory = draft._host_memory(room, len(one.sha256) > 1)
            memory = memory[-memory.ctypes.data % BLOCK :]

            def copy(number: int) -> int:
                start = number * piece
                nbytes = min(piece, one.nbytes - start)
                file.fill(memory, start, nbytes)
                if hashlib.sha256(memory[:nbytes].data).hexdigest() != one.sha256[number]:
                    raise ValueError(
                        f"restore: {path} has changed since {one.name!r} was saved: copy the "
                        f"snapshot again"
                    )
                draft.write(memory[:nbytes], start)
                return nbytes

            return copy

        yield from by_threads(range(len(one.sha256)), _THREADS, worker)
