"""Checkpoints of many files as users see them: one region with the bytes of all."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from gdrpy.broker.checkpoint import file_of, is_checkpoint
from gdrpy.broker.client.broker import Broker
from gdrpy.broker.client.checkpoints import listed
from gdrpy.broker.replies import Holder, RegionInfo, Sleeper
from gdrpy.cli import broker
from gdrpy.cli.exits import CommandError
from gdrpy.errors import Error

#: Bytes that a list of files has at most: any user can publish a region that says it is one.
_LIST_MOST = 16 << 20


class Checkpoints:
    """The checkpoints among a broker's regions. What a checkpoint lists is read once."""

    def __init__(self, client: Broker) -> None:
        self._client = client
        self._files: dict[tuple[str | None, int], list[str]] = {}

    def files(self, region: RegionInfo) -> list[str]:
        """The names of the regions of a checkpoint's files; none if they cannot be read."""
        key = region.name, region.region
        if key not in self._files and region.nbytes <= _LIST_MOST:
            with contextlib.suppress(Error, ValueError):
                self._files[key] = self._read(str(region.name))
        return self._files.get(key, [])

    def _read(self, name: str) -> list[str]:
        with self._client.get(name, gpu=False, readonly=True) as region:
            if is_checkpoint(region.metadata) and region.nbytes <= _LIST_MOST:
                return listed("tensors", name, region.read())
        return []

    def whole(self, regions: Iterable[RegionInfo]) -> list[RegionInfo]:
        """Regions of a list, with what their files add up to for checkpoints."""
        found = {str(region.name): region for region in regions}
        parents = {file[0] for file in map(file_of, found) if file}
        for name in parents & found.keys():
            files = [found[file] for file in self.files(found[name]) if file in found]
            found[name] = summed(found[name], files)
        return list(found.values())


def told(region: RegionInfo, whole: RegionInfo, gpus: dict[str, str]) -> dict[str, Any]:
    """A region in a list, for JSON, with the sums of a checkpoint's files beside its own bytes."""
    sums = None
    if whole is not region:
        names = "nbytes", "size", "readers", "writers", "asleep"
        sums = {name: getattr(whole, name) for name in names}
    return broker.listed(region, gpus) | {"checkpoint": sums}


def summed(region: RegionInfo, files: list[RegionInfo]) -> RegionInfo:
    """A checkpoint with the bytes of all of its files, and the holders of the one with most."""
    if not files:
        return region
    every = [region, *files]
    return replace(
        region,
        nbytes=sum(one.nbytes for one in files),
        size=sum(one.size for one in every),
        readers=max(one.readers for one in every),
        writers=max(one.writers for one in every),
        asleep=max(one.asleep for one in every),
        holders=None if region.holders is None else _merged(every),
        sleepers=None if region.sleepers is None else _once(every),
    )


def _merged(regions: list[RegionInfo]) -> tuple[Holder, ...]:
    """The processes that hold any of the regions."""
    found: dict[tuple[int, int], Holder] = {}
    for holder in (one for region in regions for one in region.holders or ()):
        key = holder.pid, holder.uid
        before = found.get(key)
        if before is not None:
            holder = Holder(
                *key,
                holder.writable or before.writable,
                holder.gpu or before.gpu,
                holder.count + before.count,
                holder.exporter or before.exporter,
            )
        found[key] = holder
    return tuple(found.values())


def _once(regions: list[RegionInfo]) -> tuple[Sleeper, ...]:
    """The processes that have any of the regions asleep."""
    every = [sleeper for region in regions for sleeper in region.sleepers or ()]
    return tuple({(one.pid, one.uid): one for one in every}.values())


def check_alone(client: Broker, command: str, region: RegionInfo | None) -> None:
    """Raise CommandError for a file of a checkpoint, which could not be opened any more."""
    name = "" if region is None else str(region.name)
    found = file_of(name)
    whole = found and broker.readable(client, found[0])
    if whole and name in Checkpoints(client).files(whole):
        raise CommandError(
            f"{command}: {name!r} is a file of checkpoint {whole.name!r}, which cannot be opened "
            f"without it: delete all of it by `gdrpy rm {whole.name}`, or this file alone by "
            f"`gdrpy rm -r {name}`"
        )
