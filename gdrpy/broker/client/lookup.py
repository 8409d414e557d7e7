"""Calls that look regions up by their names, and the regions that go with a checkpoint's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from gdrpy.broker import replies, requests
from gdrpy.broker.checkpoint import is_file, place_of
from gdrpy.broker.client.arguments import as_name, as_prefix
from gdrpy.broker.client.base import BrokerBase
from gdrpy.broker.client.connection import Parcels
from gdrpy.broker.client.connection import R as M
from gdrpy.broker.client.region import LeasedRegion
from gdrpy.broker.replies import RegionInfo
from gdrpy.broker.requests import Request
from gdrpy.common import spelling
from gdrpy.errors import (
    BrokerUnavailable,
    Error,
    NotFound,
    PermissionDenied,
    ProtocolError,
    Timeout,
)

R = TypeVar("R", bound=LeasedRegion)


async def missing(client: BrokerBase[R], name: str, error: NotFound) -> NotFound:
    """The error to raise for a missing region. It suggests a similar name that this user may read.

    It looks at the first page of names only, since a program may ask often.
    """
    if not str(error).endswith(f"there is no region of the name {name!r}"):
        return error  # it sleeps, or something other than the region is missing
    remedy = ": broker.list() lists them"
    with suppress(Error):
        page, _ = await client._ask(requests.List("", "", id=0), replies.Page)
        names = [str(info.name) for info in page.regions if info.name != name]
        remedy = spelling.suggested(name.rstrip("/"), names) or remedy
    return NotFound(f"{error}{remedy}")


async def asked_by_name(
    client: BrokerBase[R], name: str, request: Request, kind: type[M]
) -> tuple[M, Parcels]:
    """The reply to a request for the region of a name."""
    try:
        return await client._ask(request, kind)
    except NotFound as error:
        raise await missing(client, name, error) from None


@contextmanager
def calling(call: str, *inner: str) -> Iterator[None]:
    """Have the errors of the calls ``inner``, which ``call`` makes, name that one."""
    try:
        yield
    except BrokerUnavailable as error:
        if (found := str(error).partition(": "))[0] in inner:
            raise BrokerUnavailable(f"{call}: {found[2]}") from None
        raise
    except (NotFound, PermissionDenied, Timeout, TypeError, ValueError) as error:
        match error.args:
            case [*number, str(words)] if (found := words.partition(": "))[0] in inner:
                raise _renamed(error, *number, f"{call}: {found[2]}") from None
        raise


def _renamed(error: Exception, *arguments: object) -> Exception:
    """The same error with other arguments.

    The caller raises it at once: a variable there would keep it, and all of its frames, in a cycle.
    """
    made = type(error)(*arguments)
    vars(made).update(vars(error))
    return made


async def list_regions(client: BrokerBase[R], prefix: str = "") -> list[RegionInfo]:
    """The regions that this user may read and whose names begin with ``prefix``, in order."""
    wanted = as_prefix("list", prefix)
    found: list[RegionInfo] = []
    after = ""
    while True:
        page, _ = await client._ask(requests.List(wanted, after, id=0), replies.Page)
        found += replies.listed(page.regions)
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
    reply, _ = await asked_by_name(client, name, request, replies.Description)
    return replies.described(reply)


async def copy_of(client: BrokerBase[R], name: str) -> RegionInfo | None:
    """This user's copy in host memory of the region of a name, or root's."""
    try:
        reply, _ = await client._ask(requests.Stat(name, copy=True, id=0), replies.Description)
    except NotFound:
        return None
    return replies.described(reply)


async def there(client: BrokerBase[R], name: str) -> bool:
    """Whether a name refers to a region that this user may read."""
    try:
        await stat(client, name)
    except NotFound:
        return False
    return True


async def named(client: BrokerBase[R], call: str, name: str) -> RegionInfo:
    """As :func:`stat`, but its errors name the call ``call``."""
    with calling(call, "stat"):
        return await stat(client, name)


async def files_of(client: BrokerBase[R], whole: RegionInfo) -> list[RegionInfo]:
    """The regions of a checkpoint's files which this user may read; none of another region."""
    name = str(whole.name)
    place = place_of(name, whole.metadata)
    found: list[RegionInfo] = []
    for info in await list_regions(client, place) if place else ():
        if info.uid == whole.uid:
            with suppress(NotFound, PermissionDenied):
                told = await stat(client, str(info.name))
                if is_file(str(info.name), told.metadata, name, str(place)):
                    found.append(told)
    return found
