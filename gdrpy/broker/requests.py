"""Clients' requests: the only description of their fields and bounds, for both ends.

The broker's decoding refuses unknown requests, unknown fields and values out of bounds.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gdrpy.broker.protocol import (
    BATCH_LIMIT,
    CPU_DEVICE,
    DEVICE_LIMIT,
    GRACE_LIMIT,
    NAME_LIMIT,
    PACKET_LIMIT,
    PUBLISH_LIMIT,
    Bytes,
    Metadata,
    Number,
)
from gdrpy.errors import InvalidRequest

Name = Annotated[str, Meta(min_length=1, max_length=NAME_LIMIT)]
Prefix = Annotated[str, Meta(max_length=NAME_LIMIT)]
#: The broker's ordinal of a GPU, the host's number, or a GPU's UUID or PCI address.
Device = Annotated[int, Meta(ge=CPU_DEVICE, lt=DEVICE_LIMIT)] | Annotated[str, Meta(max_length=40)]
Mode = Annotated[int, Meta(ge=0, le=0o666)]
Names = Annotated[list[Name], Meta(max_length=BATCH_LIMIT)]
Regions = Annotated[list[Number], Meta(max_length=BATCH_LIMIT)]
#: Drafts that are published with another one. The broker publishes all of them in one turn.
Others = Annotated[list[Number], Meta(max_length=PUBLISH_LIMIT - 1)]
#: Seconds.
Grace = Annotated[float, Meta(ge=0, le=GRACE_LIMIT)]
#: A uid and a gid; the highest number stands for none.
_Id = Annotated[int, Meta(ge=0, lt=(1 << 32) - 1)]
Owner = tuple[_Id, _Id]
#: A region of any broker: its life, and the region's number.
Original = tuple[Annotated[str, Meta(max_length=32)], Number]
#: A region, whether the lease is writable, and whether it is for a GPU view.
Leases = Annotated[list[tuple[Number, bool, bool]], Meta(max_length=BATCH_LIMIT)]


class Packet(
    msgspec.Struct, tag_field="op", forbid_unknown_fields=True, omit_defaults=True, gc=False
):
    """A packet of a client."""


class Request(Packet, kw_only=True):
    """A packet with a number, which the reply repeats. Sending sets the connection's next one."""

    id: Number


class Hello(Request, tag="hello"):
    version: Number
    client: Annotated[str, Meta(max_length=80)]


class Resume(Request, tag="resume"):
    session: Number
    leases: Leases
    #: Regions that sleep: see :class:`Release`.
    asleep: Regions = []
    #: Whether another resume of the same session follows; the last one ends that session.
    more: bool = False


class Allocate(Request, tag="allocate"):
    name: Name | None
    nbytes: Bytes
    device: Device
    mode: Mode
    metadata: Metadata
    gpu: bool
    #: Binds the region to this connection's lease: the seconds that other holders have then.
    grace: Grace | None = None


class Create(Allocate, tag="create"):
    name: Name
    #: The uid and the gid that it belongs to, if not the client's: only for privileged ones.
    owner: Owner | None = None


class RoundedSize(Request, tag="rounded_size"):
    nbytes: Bytes
    device: Device


class Publish(Request, tag="publish"):
    """A draft, and others in the same step.

    With ``missing`` those stay drafts whose names refer to a region. Nothing is published unless
    the name of the region ``beside`` refers to it.
    """

    region: Number
    others: Others = []
    missing: bool = False
    beside: Number | None = None


class Get(Request, tag="get", kw_only=True):
    """A region by its name, or by its number and the life of the broker that gave the number."""

    name: Name | None = None
    region: Number | None = None
    life: str | None = None
    readonly: bool
    gpu: bool


class GetMany(Request, tag="get_many", kw_only=True):
    """Regions by their names, or by their numbers and the life of the broker that gave those."""

    names: Names = []
    regions: Regions = []
    life: str | None = None
    readonly: bool
    gpu: bool


class Release(Packet, tag="release"):
    """The only packet without a number and a reply.

    ``asleep`` are regions that the client will attach again at the addresses that it keeps;
    ``awake`` are those of them that it attached again or closed.
    """

    regions: Regions
    asleep: Regions = []
    awake: Regions = []


class Seal(Request, tag="seal"):
    region: Number
    copy_of: Original | None = None


class Digest(Request, tag="digest"):
    region: Number


class Delete(Request, tag="delete"):
    """A name, and the copies of sleepers.

    With ``unheld`` the name stays while somebody holds the region, with ``copied`` unless a copy
    has its contents. The copies stay with either.
    """

    name: Name
    region: Number | None = None
    unheld: bool = False
    copied: bool = False


class List(Request, tag="list"):
    prefix: Prefix
    after: Prefix


class Stat(Request, tag="stat"):
    """A region by its name or number, or the copy of the region of this name."""

    name: Name | None = None
    region: Number | None = None
    copy: bool = False


class Change(Request, tag="change"):
    region: Number
    mode: Mode | UnsetType = UNSET
    metadata: Metadata | UnsetType = UNSET


class Watch(Request, tag="watch"):
    """With ``ends``, the events "ended" alone, also of regions without a name."""

    prefix: Prefix
    ends: bool = False


class Status(Request, tag="status"):
    pass


_OfRegions = Allocate | Create | Publish | Get | GetMany | Release | Seal | Digest | Delete | Change
_Others = Hello | Resume | RoundedSize | List | Stat | Watch | Status
AnyRequest = _OfRegions | _Others


#: Requests whose replies grant regions.
GRANTS = frozenset((Allocate, Create, Get, GetMany))


def count_of(request: AnyRequest) -> int:
    """The number of names, leases or regions that a request lists."""
    match request:
        case GetMany():
            return len(request.names) + len(request.regions)
        case Resume():
            return len(request.leases) + len(request.asleep)
        case Release():
            return len(request.regions) + len(request.asleep) + len(request.awake)
        case Publish():
            return len(request.others)
    return 0


def name_of(kind: type[Packet]) -> str:
    """A request's name in its packet."""
    return str(kind.__struct_config__.tag)


def call_of(request: Packet) -> str:
    """The name of the call that makes a request."""
    match request:
        case Change():
            return "chmod" if request.metadata is UNSET else "set_metadata"
        case Stat(name=None):
            return "info"
    return name_of(type(request))


def encode(request: Packet) -> bytes:
    """A request's packet. Raises InvalidRequest if it is longer than PACKET_LIMIT."""
    packet = _encode(request)
    if len(packet) > PACKET_LIMIT:
        raise InvalidRequest(
            f"{name_of(type(request))}: {len(packet)} bytes are more than the {PACKET_LIMIT} of a "
            f"packet: ask for less at once"
        )
    return packet


_encode = msgspec.msgpack.Encoder().encode
