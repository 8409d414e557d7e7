"""The broker's replies, and the events that it sends: the only description of their fields and
bounds, for both ends.

Decoding ignores unknown fields, which later brokers may add, and refuses values out of bounds.
"""

from __future__ import annotations

import errno
import functools
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar, final

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import asdict, force_setattr

from gdrpy import errors
from gdrpy.broker.protocol import (
    CPU_DEVICE,
    DEVICE_LIMIT,
    FDS_LIMIT,
    UNDECODABLE,
    Bytes,
    Metadata,
    Number,
    unpack_metadata,
)
from gdrpy.broker.requests import Packet, name_of

_T = TypeVar("_T")

_Size = Annotated[int, Meta(gt=0, le=(1 << 63) - 1)]
_Device = Annotated[int, Meta(ge=CPU_DEVICE, lt=DEVICE_LIMIT)]
_DeviceOrCpu = _Device | Literal["cpu"]
_NumberOrNone = Number | None
_Count = Annotated[int, Meta(ge=0, le=FDS_LIMIT)]


class Value(msgspec.Struct, frozen=True):
    """Immutable fields, shown and compared by value."""

    def as_dict(self) -> dict[str, Any]:
        """The fields by name, with nested records as dicts: ready for JSON."""
        return {name: _plain(value) for name, value in asdict(self).items()}

    def __hash__(self) -> int:
        return hash(repr(self))


def _plain(value: Any) -> Any:
    if isinstance(value, Value):
        return value.as_dict()
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


class Holder(Value, frozen=True, omit_defaults=True):
    """A process with ``count`` grants of a region, at least one ``writable``, or for ``gpu``.

    ``gpu`` says whether it asked for the GPU view of GPU memory. The broker does not learn whether
    it got one: a process that does not see the GPU has the CPU view alone.
    ``exporter`` says whether the region is bound to this lease, and ends with it.
    """

    pid: Number
    uid: Number
    writable: bool
    gpu: bool
    count: Number
    exporter: bool = False


class Sleeper(Value, frozen=True):
    """A process that has a version of a region's name asleep, which may be an ``older`` one."""

    pid: Number
    uid: Number
    version: Number
    older: bool


class RegionInfo(Value, frozen=True, omit_defaults=True):
    """A region as the broker describes it.

    ``nbytes`` is the size requested, ``size`` the bytes allocated. ``device`` is the broker's CUDA
    ordinal of a GPU, which may differ from other processes' ordinals, or "cpu"; ``uuid`` is the
    GPU's UUID, None for the host. ``version`` is 0 until the region is published. ``readers`` and
    ``writers`` count the leases. ``asleep`` counts the connections that have this version of its
    name asleep: detached, to attach it again. While the name refers to no region, its copy in host
    memory tells of them. ``metadata``, ``holders`` and ``sleepers`` are None in a list, ``sha256``
    until a digest is requested. ``linked`` says whether its name refers to it, unlike a draft's
    name, or one that was replaced or deleted. ``grace`` is the number of seconds for which other
    processes keep a bound region once its exporter's lease has ended, None for one that is not
    bound; ``ended`` says whether that lease has ended.
    """

    region: Number
    name: str | None
    nbytes: Bytes
    size: _Size
    device: _DeviceOrCpu
    mode: Number
    uid: Number
    gid: Number
    version: Number
    sealed: bool
    readers: Number
    writers: Number
    uuid: str | None
    metadata: dict[str, Any] | None = None
    holders: tuple[Holder, ...] | None = None
    sha256: str | None = None
    linked: bool = True
    asleep: Number = 0
    sleepers: tuple[Sleeper, ...] | None = None
    grace: float | None = None
    ended: bool = False


class Event(Value, frozen=True, omit_defaults=True):
    """A change of a region, or lost events.

    ``kind`` is "allocated", "published", "sealed", "deleted", "ended" (a bound region, with its
    exporter's lease), "freed" (memory is free again) or "lost": events before this one are missing,
    because the watcher read too late or the broker was restarted. ``name``, ``region`` and
    ``version`` are None for events without one.
    """

    kind: str = msgspec.field(name="event")
    name: str | None = None
    region: _NumberOrNone = None
    version: _NumberOrNone = None


#: The first event of a watch that continues with a restarted broker.
LOST = Event("lost")


class Reply(msgspec.Struct, omit_defaults=True, kw_only=True, gc=False):
    """A reply to the request with the number ``id``, with ``fds`` descriptors beside it.

    A reply without other fields says that the request was carried out. A grant in a
    :class:`Grants` has neither ``id`` nor ``fds``.
    """

    id: Number | UnsetType = UNSET
    fds: _Count = 0
    #: Keeps a :class:`Refusal` from decoding as a reply.
    error: None = None


@final
class Refusal(msgspec.Struct, omit_defaults=True, gc=False):
    """The reply to a refused request; with an ``id`` of 0 the connection is refused."""

    id: Number
    error: str
    message: str
    #: The right that is missing, and the name of the region, as PermissionDenied has them.
    missing: str = ""
    name: str | None = None


class Welcome(Reply):
    """The reply to a hello. A broker of another version may leave out all but ``version``."""

    version: Number
    life: Annotated[str, Meta(min_length=32, max_length=32)] | UnsetType = UNSET
    session: Number | UnsetType = UNSET
    server: str = ""


class Resumed(Reply):
    """The regions of a resume that could not be resumed."""

    lost: list[Number]


class Grant(Reply):
    """A lease on a region, with its memory's descriptor."""

    region: Number
    name: str | None
    nbytes: Bytes
    size: _Size
    device: _Device
    version: Number
    sealed: bool
    readonly: bool
    enforced: bool
    metadata: Metadata
    #: Whether an allocate made the region.
    created: bool | UnsetType = UNSET
    #: Seconds in which to give it back once its exporter's lease ends; None if it is unbound, or
    #: for the exporter.
    grace: float | None = None
    #: The GPU's; None for the host.
    uuid: str | None = None


class Grants(Reply):
    """A packet of the reply to a get_many; ``more`` follow, or a refusal."""

    grants: list[Grant]
    more: bool


class Size(Reply):
    size: _Size


class Published(Reply):
    """The region's version, the number of the region that had its name, the others' versions."""

    version: Number
    replaced: Number | None
    others: list[Number] = []


class Sha256(Reply):
    sha256: str


class Page(Reply):
    """Regions of a list, and the name after which the next page begins, if there is one."""

    regions: list[RegionInfo]
    next: str | None


class Description(RegionInfo, frozen=True):
    """The reply to a stat: a region with its metadata as it is stored."""

    metadata: Metadata  # type: ignore[assignment]
    holders: tuple[Holder, ...]
    sha256: str | None
    linked: bool
    sleepers: tuple[Sleeper, ...] = ()
    id: Number | UnsetType = UNSET
    fds: _Count = 0


class Counters(Reply):
    """The broker's counters. ``used`` and ``limits`` are bytes by device, ``uuids`` and ``gpus``,
    their product names, by GPU, ``users`` bytes by device and user, ``requests`` counts by name.
    ``asleep`` counts the regions that sessions have asleep. ``uid`` is the user who asks, as the
    broker sees it. ``nameless`` are the largest regions without a name that the user may see, with
    their holders. Older brokers send no ``gpus``, ``uid`` or ``nameless``.
    """

    regions: Number
    names: Number
    sessions: Number
    leases: Number
    used: dict[str, Number]
    limits: dict[str, Number | None]
    uuids: dict[str, str]
    users: dict[str, Number]
    requests: dict[str, Number]
    gpus: dict[str, str] = {}
    asleep: Number = 0
    uid: _NumberOrNone = None
    nameless: list[RegionInfo] = []

    def as_dict(self) -> dict[str, Any]:
        """The counters by name, as plain values."""
        told = {
            name: value
            for name, value in asdict(self).items()
            if name not in Reply.__struct_fields__
        }
        return {**told, "nameless": [info.as_dict() for info in listed(self.nameless)]}


#: Errors in replies, by the name of their class in :mod:`gdrpy.errors`.
ERRORS: tuple[type[errors.Error], ...] = (
    errors.BackendUnavailable,
    errors.Gone,
    errors.InvalidRequest,
    errors.NotFound,
    errors.OutOfMemory,
    errors.PermissionDenied,
    errors.ProtocolError,
    errors.QuotaExceeded,
    errors.Sealed,
    errors.SizeMismatch,
    errors.TooLarge,
)
_BY_NAME = {kind.__name__: kind for kind in ERRORS}


def refusal(error: errors.Error, number: int = 0) -> Refusal:
    """The reply for an error of request ``number``."""
    kinds = (kind for kind in type(error).__mro__ if kind in ERRORS)
    kind = next(kinds, errors.BackendUnavailable)  # an error of the driver
    message = error.strerror if isinstance(error, OSError) else str(error)
    told = Refusal(number, kind.__name__, message or "")
    if isinstance(error, errors.PermissionDenied):
        told.missing, told.name = error.missing, error.region
    return told


def error_of(refusal: Refusal) -> errors.Error:
    """The error of a refusal."""
    kind = _BY_NAME.get(refusal.error, errors.ProtocolError)
    if kind is errors.PermissionDenied:
        return errors.PermissionDenied(
            errno.EACCES, refusal.message, missing=refusal.missing, region=refusal.name
        )
    return kind(refusal.message)


encode = msgspec.msgpack.Encoder().encode


#: The function that decodes a kind of reply, made on first use.
_decoder: Callable[[Any], Callable[[bytes], Any]] = functools.cache(
    lambda kind: msgspec.msgpack.Decoder(kind).decode
)


def decode(request: type[Packet], kind: type[_T], packet: bytes) -> _T | Refusal:
    """The reply to a request, of this kind or a refusal. Raises ProtocolError."""
    try:
        reply: _T = _decoder(kind)(packet)
    except UNDECODABLE as error:
        malformed = f"{error!s:.160}"  # the error would keep this frame, and those of the callers
    else:
        return reply
    try:
        refusal: Refusal = _decoder(Refusal)(packet)
    except UNDECODABLE:
        raise errors.ProtocolError(
            f"{name_of(request)}: the broker's reply has a malformed value: {malformed}"
        ) from None
    return refusal


def decode_event(packet: bytes) -> Event:
    """The event of a packet to a watcher. Raises ProtocolError."""
    try:
        event: Event = _decoder(Event)(packet)
    except UNDECODABLE as error:
        raise errors.ProtocolError(
            f"watch: the broker's event has a malformed value: {error!s:.160}"
        ) from None
    return event


def described(reply: Description) -> RegionInfo:
    """The region of a reply to a stat."""
    fields = asdict(reply)
    del fields["id"], fields["fds"]
    if reply.device == CPU_DEVICE:
        fields["device"] = "cpu"
    metadata = unpack_metadata(fields.pop("metadata"))
    return RegionInfo(**fields, metadata=metadata)


def listed(regions: list[RegionInfo]) -> list[RegionInfo]:
    """The regions of a reply."""
    for info in regions:
        if info.device == CPU_DEVICE:
            force_setattr(info, "device", "cpu")
    return regions
