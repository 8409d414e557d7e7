"""Calls that look regions up by their names, and the regions that go with a checkpoint's."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any, TypeVar

from gdrpy.broker import replies, requests
from gdrpy.broker.client.arguments import as_name, as_prefix
from gdrpy.broker.client.base import BrokerBase
from gdrpy.broker.client.connection import R as M
from gdrpy.broker.client.region import LeasedRegion
from gdrpy.broker.protocol import unpack_metadata
from gdrpy.broker.replies import Deleted, RegionInfo
from gdrpy.broker.requests import Request
from gdrpy.common import spelling
from gdrpy.errors import Error, NotFound, PermissionDenied, ProtocolError

R = TypeVar("R", bound=LeasedRegion)

#: The format, in its metadata, of a region whose bytes list the regions of files, as JSON.
CHECKPOINT = "checkpoint"


async def missing(client: BrokerBase[R], name: str, error: NotFound) -> NotFound:
    """The error to raise for a missing region. It suggests a similar name that this user may read.

    It looks at the first page of names only, since a program may ask often.
    """
    with suppress(Error):
        page, _ = await client._ask(requests.List("", "", id=0), replies.Page)
        names = [str(info.name) for info in page.regions]
        if name not in names:  # else something other than the region is missing
            return NotFound(f"{error}{spelling.suggested(name, names)}")
    return error


async def asked_by_name(client: BrokerBase[R], name: str, request: Request, kind: type[M]) -> M:
    """The reply to a request for the region of a name."""
    try:
        reply, _ = await client._ask(request, kind)
    except NotFound as error:
        raise await missing(client, name, error) from None
    return reply


async def list_regions(client: BrokerBase[R], prefix: str = "") -> list[RegionInfo]:
    """The regions that this user may read and whose names begin with ``prefix``, in order."""
    wanted = as_prefix("list", prefix)
    found: list[RegionInfo] = []
    after = ""
    while True:
        page, _ = await client._ask(requests.List(wanted, after, id=0), replies.Page)
        found += replies.listed(page)
        if page.next is None:
            return found
        if page.next <= after:
            raise ProtocolError(f"list: the page after {after!r} ends with {page.next!r}")
        after = page.next


async def stat(client: BrokerBase[R], name: str) -> RegionInfo:
    """The description of the region of this name, with its metadata and holders.

    The name of a checkpoint is that of its index, which has neither the bytes nor the holders of
    its files: they are the regions ``list(name + "/")``.

    Raises NotFound, PermissionDenied, BrokerUnavailable.
    """
    request = requests.Stat(as_name("stat", name), id=0)
    return replies.described(await asked_by_name(client, name, request, replies.Description))


async def named(client: BrokerBase[R], call: str, name: str) -> RegionInfo:
    """As :func:`stat`, but its errors name the call ``call``."""
    as_name(call, name)
    try:
        return await stat(client, name)
    except (NotFound, PermissionDenied) as error:
        *number, words = error.args
        raise type(error)(*number, words.replace("stat: ", f"{call}: ", 1)) from None


def is_checkpoint(metadata: dict[str, Any] | None) -> bool:
    """Whether it is the metadata of a region that lists a checkpoint's files."""
    return (metadata or {}).get("format") == CHECKPOINT


def file_of(name: str) -> tuple[str, str] | None:
    """The checkpoint, and how the names of all of its files begin, for the name of one."""
    found = re.fullmatch(r"((.+)/[0-9a-f]{8}/)[^/]+", name)
    return (found[2], found[1]) if found else None


async def files_of(client: BrokerBase[R], name: str, metadata: dict[str, Any]) -> list[str]:
    """The regions of a checkpoint's files, which this user may read; none for other metadata."""
    if not is_checkpoint(metadata):
        return []
    place = f"{name}/{metadata.get('id')}/"
    found: list[str] = []
    for info in await list_regions(client, place):
        if file_of(str(info.name)) == (name, place):
            with suppress(NotFound, PermissionDenied):
                told = await stat(client, str(info.name))
                if (told.metadata or {}).get("checkpoint") == name:
                    found.append(str(info.name))
    return found


async def delete_files(
    client: BrokerBase[R], name: str, packed: bytes, kept: dict[str, Any] | None = None
) -> None:
    """Delete the files of the region that had a name, but those of a checkpoint that has it now.

    Args:
        name: The name.
        packed: The metadata of the region that had it.
        kept: That of the region that has it.
    """
    metadata = unpack_metadata(packed)
    if metadata.get("id") == (kept or {}).get("id"):
        return
    for file in await files_of(client, name, metadata):
        with suppress(NotFound, PermissionDenied):
            await client._ask(requests.Delete(file, id=0), Deleted)
