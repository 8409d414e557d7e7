"""Calls that save regions into a folder, and restore them from it.

The folder has a file for each region, with its bytes, and ``snapshot.json``, which describes them.
"""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from io import BufferedWriter, FileIO
from itertools import groupby
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from gdrpy.arrays.source import BLOCK, Source, named, regular
from gdrpy.broker import copies, requests
from gdrpy.broker.checkpoint import file_of, places_of
from gdrpy.broker.client import calls, lookup, region_calls
from gdrpy.broker.client.arguments import as_device, as_name
from gdrpy.broker.client.base import BrokerBase
from gdrpy.broker.client.checkpoints import listed
from gdrpy.broker.client.connection import Lease, Parcels
from gdrpy.broker.client.region import LeasedRegion
from gdrpy.broker.protocol import (
    CPU_DEVICE,
    DEVICE_LIMIT,
    METADATA_LIMIT,
    PUBLISH_LIMIT,
    UNDECODABLE,
    Bytes,
    Number,
    pack_metadata,
    unpack_metadata,
)
from gdrpy.broker.replies import Description, Grant, Reply
from gdrpy.common import spelling
from gdrpy.common.arguments import as_path
from gdrpy.common.workers import by_threads
from gdrpy.errors import Gone, NotFound, PermissionDenied, QuotaExceeded

R = TypeVar("R", bound=LeasedRegion)

#: The file that describes the others.
_INDEX = "snapshot.json"
#: The number in the marks of saved regions, which no region has.
_NO_REGION = 0
#: Bytes that have a digest of their own.
_PIECE = 16 << 20
#: The largest description: of millions of pieces.
_INDEX_LIMIT = 256 << 20
#: Bytes of a checkpoint's list that are read: any user can publish a region that says it is one.
_LIST_LIMIT = 16 << 20
_REMEDIES = {errno.ENOSPC: ": make room, or choose a folder on another disk"}
#: Threads that copy: each hashes 1 to 2 GB/s.
_THREADS = 8
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

Progress = Callable[[int, int], object] | None


class Saved(msgspec.Struct):
    """A region of a snapshot. ``sha256`` has a digest of each piece of its bytes."""

    name: str
    file: Annotated[str, Meta(pattern=r"^[0-9]{5,9}\.(bin|safetensors)$")]
    nbytes: Bytes
    uuid: str | None
    device: Annotated[int, Meta(ge=0, lt=DEVICE_LIMIT)] | Literal["cpu"]
    mode: Annotated[int, Meta(ge=0, le=0o666)]
    uid: Number
    gid: Number
    sealed: bool
    metadata: bytes
    sha256: list[str]


class Snapshot(msgspec.Struct):
    """The regions in a snapshot's folder. ``piece`` is the number of bytes for each digest."""

    regions: list[Saved]
    piece: Annotated[int, Meta(ge=BLOCK, le=64 << 20, multiple_of=BLOCK)]
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
    copied: seal it, or have its writers wait. Regions that are replaced or deleted meanwhile are
    saved as they were. The folder appears when it is whole. A process that is killed meanwhile
    leaves a folder ``FOLDER.partial-...``.

    Raises FileExistsError, NotFound, PermissionDenied (also for a file of a checkpoint), OSError,
    ValueError for a checkpoint that lists other regions than its files.
    """
    path = as_path("save", "folder", folder)
    if not path:
        raise ValueError("save: folder must be a path, not ''")
    if os.path.lexists(path):
        raise FileExistsError(f"save: {path} exists: choose another folder")
    held: dict[str, _Held] = {}
    saved = []
    try:
        await _hold_all(client, names, held)
        done, total = 0, sum(one.told.nbytes for one in held.values())
        with _new_folder(path) as made:
            for number, (told, grant, parcels) in enumerate(held.values()):
                region = client._region_type._granted(client, grant, parcels, False, True)
                try:
                    one = _described(number, told)
                    with closing(_copied(region, path, made, one)) as pieces:
                        for nbytes in pieces:
                            done += nbytes
                            if progress:
                                progress(done, total)
                            await client._connection.transport.sleep(0)  # other tasks of a loop
                finally:
                    region.close()
                saved.append(one)
            with named("save: cannot write", path, _REMEDIES):
                _write(made, msgspec.json.encode(Snapshot(saved, _PIECE)))
    finally:
        for _, _, parcels in held.values():
            parcels.clear()
    return [one.name for one in saved]


class _Held(NamedTuple):
    """A region to save, and its lease."""

    told: Description
    grant: Grant
    parcels: Parcels

    @property
    def places(self) -> tuple[str | None, str | None]:
        """Where its files are, if it is a checkpoint; where it is, if it is a checkpoint's file."""
        return places_of(self.told.name, self.told.metadata)


async def _hold_all(
    client: BrokerBase[R], names: Iterable[str] | None, held: dict[str, _Held]
) -> None:
    """Lease the regions to save."""
    if isinstance(names, str):
        raise TypeError(f"save: names must be several names, not {names!r}: give [{names!r}]")
    if names is not None:
        for name in names:
            await _hold(client, name, held, whole=True)
        return
    for info in await lookup.list_regions(client):
        with suppress(NotFound, PermissionDenied):  # it was deleted or replaced meanwhile
            await _hold(client, str(info.name), held, whole=False)


async def _hold(client: BrokerBase[R], name: str, held: dict[str, _Held], *, whole: bool) -> None:
    """Lease a region, and a checkpoint's files. It may lack some unless it must be ``whole``."""
    before = set(held)
    while name not in held:
        one = held[name] = await _leased(client, name)
        try:
            for file in await _listed(client, one):
                if file not in held:
                    held[file] = await _leased(client, file)
                if held[file].places[1] != one.places[0]:
                    raise ValueError(
                        f"save: checkpoint {name!r} lists {file!r}, which is not its file: load it "
                        f"again"
                    )
        except (NotFound, PermissionDenied, ValueError):
            if await _stale(client, one):
                for new in held.keys() - before:
                    del held[new]
            elif whole:
                raise


async def _leased(client: BrokerBase[R], name: str) -> _Held:
    """A region that was leased before it was described: what is told is of this very one."""
    as_name("save", name)
    request = requests.Get(name=name, readonly=True, gpu=False, id=0)
    while True:
        with lookup.calling("save", "get"):
            grant, parcels = await lookup.asked_by_name(client, name, request, Grant)
        try:
            return _Held(await _told(client, parcels[0][1]), grant, parcels)
        except Gone:  # the broker has lost its state since
            parcels.clear()


async def _told(client: BrokerBase[R], lease: Lease) -> Description:
    told, _ = await client._ask(requests.Stat(region=lease.region, id=0), Description, [lease])
    return told


async def _listed(client: BrokerBase[R], one: _Held) -> list[str]:
    """The names that a checkpoint lists; none of another region."""
    if one.places[0] is None:
        return []
    life, number = one.parcels[0][1].life, one.told.region
    with await calls.attach(client, life, number, gpu=False, cpu=True, readonly=True) as index:
        return listed("save", str(one.told.name), index.read(min(index.nbytes, _LIST_LIMIT)))


async def _stale(client: BrokerBase[R], one: _Held) -> bool:
    """Whether its name no longer refers to it."""
    try:
        return not (await _told(client, one.parcels[0][1])).linked
    except Gone:
        return True


def _described(number: int, told: Description) -> Saved:
    tensors = unpack_metadata(told.metadata).get("format") == "safetensors"
    return Saved(
        name=str(told.name),
        file=f"{number:05}.{'safetensors' if tensors else 'bin'}",
        nbytes=told.nbytes,
        uuid=told.uuid,
        device="cpu" if told.device == CPU_DEVICE else told.device,
        mode=told.mode,
        uid=told.uid,
        gid=told.gid,
        sealed=told.sealed,
        metadata=_renumbered(told.metadata, told.region, _NO_REGION),
        sha256=[""] * len(range(0, told.nbytes, _PIECE)),
    )


def _renumbered(packed: bytes, before: int, after: int, gpu: Callable[[str], str] = str) -> bytes:
    """See :func:`gdrpy.broker.copies.renumbered`."""
    if copies.MARK.encode() not in packed:
        return packed
    return pack_metadata("save", copies.renumbered(unpack_metadata(packed), before, after, gpu))


def _asleep(one: Saved) -> bool:
    """Whether it is the copy of a region that slept."""
    mark = copies.mark_of(unpack_metadata(one.metadata), _NO_REGION)
    return bool(mark and mark.gpu and copies.original_of(one.name))


def _copied(region: LeasedRegion, path: str, folder: int, one: Saved) -> Generator[int, None, None]:
    """Copy a region into a file, and its digests into ``one``; yields the bytes of each piece."""
    with named("save: cannot write", path, _REMEDIES), _new_file(one.file, folder) as file:
        yield from _pieces_of(region, file.fileno(), one)
        os.fsync(file.fileno())


def _pieces_of(region: LeasedRegion, file: int, one: Saved) -> Generator[int, None, None]:
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


@contextmanager
def _new_folder(path: str) -> Iterator[int]:
    """The descriptor of a folder that appears at ``path`` when it is whole.

    Its files are made and removed by the descriptor: others may be able to replace its name.
    """
    parent, name = os.path.split(path.rstrip("/"))
    process = os.getpid()
    partial = f"{name}.partial-{process}-{time.monotonic_ns()}"
    with ExitStack() as stack:
        above = {errno.ENOENT: ": make the folder above it first"}
        with named("save: cannot make", path, _REMEDIES | above):
            home = os.open(parent or ".", _FOLDER)
            stack.callback(os.close, home)
            os.mkdir(partial, 0o700, dir_fd=home)
            stack.callback(_remove_empty, partial, home)
            folder = os.open(partial, _FOLDER | os.O_NOFOLLOW, dir_fd=home)
            stack.callback(os.close, folder)
            if os.fstat(folder).st_uid != os.geteuid() or os.listdir(folder):
                why = "another user replaced it: choose one where no other user may write"
                raise OSError(errno.EPERM, why)
        try:
            yield folder
            with named("save: cannot write", path, _REMEDIES):
                os.fsync(folder)
                os.rename(partial, name, src_dir_fd=home, dst_dir_fd=home)
        except BaseException:
            if os.getpid() == process:  # not a forked child
                with suppress(OSError):
                    for file in os.listdir(folder):
                        os.unlink(file, dir_fd=folder)
            raise
        with named("save: cannot write", path, _REMEDIES):
            os.fsync(home)


def _remove_empty(name: str, home: int) -> None:
    """Remove a folder that is there and has no files."""
    with suppress(OSError):
        os.rmdir(name, dir_fd=home)


def _new_file(name: str, folder: int) -> FileIO:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    return open(os.open(name, flags, 0o600, dir_fd=folder), "wb", buffering=0)


def _write(folder: int, index: bytes) -> None:
    with _new_file(_INDEX, folder) as file, BufferedWriter(file) as whole:
        whole.write(index)
        whole.flush()
        os.fsync(file.fileno())


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
        missing: Whether to leave names alone that refer to a region, or to a checkpoint all of its
            files.
        progress: Called with the bytes done and the total.

    Up to 256 regions are published in one step, further ones in further steps, after the digests of
    all were compared; a checkpoint of up to 255 files always in one. They replace regions of their
    names. Root and the broker's user restore the owners, and the regions count toward their owners'
    limits. Other users own what they restore.

    Raises ValueError for a folder without a snapshot, and for one whose files have changed,
    NotFound, OSError, and the errors of :meth:`create`.
    """
    path = as_path("restore", "folder", folder)
    snapshot = read_snapshot(path)
    chosen = _chosen(snapshot, names, path)
    there = {one.name for one in chosen if missing and await _taken(client, one)}
    chosen = [one for one in chosen if not {one.name, _index_of(one)} & there]
    home = None if device is None else as_device("restore", device)
    uuids = (await calls.status(client))["uuids"]
    done, total = 0, sum(one.nbytes for one in chosen)
    drafts: list[tuple[Saved, R]] = []
    try:
        for one in chosen:
            own: int | str = CPU_DEVICE if one.device == "cpu" else one.device
            if one.uuid in uuids.values():
                own = str(one.uuid)
            try:
                place = own if home is None or _asleep(one) else home
                draft = await _draft(client, one, place)
            except QuotaExceeded as error:
                why = str(error).removeprefix("create: ").rpartition(": ")[0]
                raise type(error)(
                    f"restore: region {one.name!r}: {why}: restore fewer regions, or start the "
                    f"broker with larger limits, as of --max-bytes"
                ) from error
            except PermissionDenied:
                if not (missing and await _exists(client, one.name)):
                    raise
                there.add(one.name)  # another user has published it meanwhile
                total -= one.nbytes
                continue
            drafts.append((one, draft))
            woken_on = partial(_gpu_of, home, uuids)
            about = _renumbered(one.metadata, _NO_REGION, draft.id, woken_on)
            if about != one.metadata:
                change = requests.Change(draft.id, metadata=about, id=0)
                await region_calls._ask(draft, change, Reply)
            file = os.path.join(path, one.file)
            with closing(_filled(draft, file, one, snapshot.piece)) as pieces:
                for nbytes in pieces:
                    done += nbytes
                    if progress:
                        progress(done, total)
                    await client._connection.transport.sleep(0)  # other tasks of a loop
            if one.sealed:
                await region_calls.seal(draft)
        wanted = [(one, draft) for one, draft in drafts if _index_of(one) not in there]
        for some in _steps(wanted):
            await calls.publish_many(client, some, missing=missing)
        await _without_orphans(client, wanted)
        return [one.name for one, draft in wanted if draft.version]
    finally:
        for _, draft in drafts:
            draft.close()


def _gpu_of(home: int | str | None, uuids: dict[str, str], before: str) -> str:
    """The UUID of the GPU on which what slept wakes: that of :func:`restore`, or as before."""
    if isinstance(home, str) and home in uuids.values():
        return home
    own = before if before in uuids.values() else uuids.get("0", before)
    return uuids.get(str(home), own)


async def _taken(client: BrokerBase[R], one: Saved) -> bool:
    """Whether its name refers to a region; for a copy, whether its region is there or sleeps."""
    name = copies.original_of(one.name) if _asleep(one) else None
    if name is None:
        return await _exists(client, one.name)
    return await _exists(client, name) or await lookup.copy_of(client, name) is not None


async def _exists(client: BrokerBase[R], name: str) -> bool:
    """Whether a name refers to a region, which this user may not be allowed to read."""
    try:
        await client._ask(requests.Stat(name, id=0), Description)
    except NotFound:
        return False
    except PermissionDenied:
        pass
    return True


def _index_of(one: Saved) -> str | None:
    """The name of the checkpoint that a region is a file of."""
    found = file_of(one.name)
    return found[0] if found and places_of(one.name, one.metadata)[1] else None


def _place(one: Saved) -> str:
    """The place of the checkpoint that a region belongs to, empty if it belongs to none."""
    own, home = places_of(one.name, one.metadata)
    return own or home or ""


def _steps(drafts: Iterable[tuple[Saved, R]]) -> Iterator[list[R]]:
    """The regions of each step; a checkpoint of up to 255 files is published in one."""
    step: list[R] = []
    for _, group in groupby(drafts, key=lambda pair: _place(pair[0])):
        some = [draft for _, draft in group]
        if step and len(step) + len(some) > PUBLISH_LIMIT:
            yield step
            step = []
        step += some
        while len(step) > PUBLISH_LIMIT:
            yield step[:PUBLISH_LIMIT]
            step = step[PUBLISH_LIMIT:]
    yield step


async def _without_orphans(client: BrokerBase[R], drafts: list[tuple[Saved, R]]) -> None:
    """Delete the files of checkpoints whose names were taken before these were published."""
    lost = {
        one.name
        for one, draft in drafts
        if not draft.version and not await _lists_the_same(client, one)
    }
    for one, draft in drafts:
        if draft.version and _index_of(one) in lost:
            with suppress(NotFound):
                await region_calls._ask(draft, requests.Change(draft.id, 0o600, id=0), Reply)
                await region_calls.delete(draft)
            draft.version = 0


async def _lists_the_same(client: BrokerBase[R], one: Saved) -> bool:
    """Whether the name of an index refers to one of the same files, or of unknown ones."""
    try:
        told, _ = await client._ask(requests.Stat(one.name, id=0), Description)
    except NotFound:
        return False
    except PermissionDenied:
        return True
    return places_of(one.name, told.metadata)[0] == _place(one)


def read_snapshot(folder: str) -> Snapshot:
    """The description of a snapshot's folder, which is untrusted. Raises ValueError, OSError."""
    path = os.path.join(folder, _INDEX)
    try:
        with named("restore: cannot read", path, {}), regular(path) as file:
            if os.fstat(file.fileno()).st_size > _INDEX_LIMIT:
                raise ValueError(f"restore: {path} is too large to describe a snapshot")
            found = msgspec.json.decode(file.read(_INDEX_LIMIT), type=Snapshot)
    except FileNotFoundError:
        raise ValueError(
            f"restore: {folder} holds no snapshot: it has no {_INDEX}: give a folder that save() "
            f"or `gdrpy save` made"
        ) from None
    except UNDECODABLE as error:
        raise ValueError(f"restore: {path} does not describe a snapshot: {error}") from None
    if len({one.name for one in found.regions}) < len(found.regions):
        raise ValueError(f"restore: {path} describes two regions of one name: save it anew")
    for one in found.regions:
        as_name("restore", one.name)
        whole = len(one.sha256) == -(-one.nbytes // found.piece)
        if not whole or len(one.metadata) > METADATA_LIMIT:
            raise ValueError(f"restore: {path} does not describe region {one.name!r}: save it anew")
    return found


def _chosen(snapshot: Snapshot, names: Iterable[str] | None, path: str) -> list[Saved]:
    """The regions to restore, by checkpoints, of which each index follows its files."""
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
    return sorted(found.values(), key=lambda one: (_place(one), places[one.name][0] is not None))


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
                with named("restore: cannot read", path, {}):
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
