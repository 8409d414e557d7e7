"""The broker's messages about regions, each described once for both encoding and decoding.

A client imports this with the first such message: importing msgspec takes longer than getting a
region.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta
from msgspec.structs import asdict, force_setattr

from gdrpy.broker.protocol import CPU_DEVICE, METADATA_LIMIT, REGION_LIMIT, unpack_metadata
from gdrpy.errors import ProtocolError

_T = TypeVar("_T")

Number = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Bytes = Annotated[int, Meta(gt=0, le=REGION_LIMIT)]
Metadata = Annotated[bytes, Meta(max_length=METADATA_LIMIT)]
_Size = Annotated[int, Meta(gt=0, le=(1 << 63) - 1)]
_Device = Annotated[int, Meta(ge=CPU_DEVICE, lt=1 << 16)] | Literal["cpu"]
_NumberOrNone = Number | None

#: The errors of decoding a malformed packet; the latter two are for invalid UTF-8 and nesting.
UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


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


class Holder(Value, frozen=True):
    """A process with ``count`` grants of a region, at least one ``writable``, or for ``gpu``."""

    pid: Number
    uid: Number
    writable: bool
    gpu: bool
    count: Number


class RegionInfo(Value, frozen=True, omit_defaults=True):
    """A region as the broker describes it.

    ``nbytes`` is the size requested, ``size`` the bytes allocated. ``device`` is the broker's CUDA
    ordinal of a GPU, which may differ from other processes' ordinals, or "cpu"; ``uuid`` is the
    GPU's UUID, None for the host. ``version`` is 0 until the region is published. ``readers`` and
    ``writers`` count the leases. ``metadata`` and ``holders`` are None in a list, ``sha256`` until
    a digest is requested. ``linked`` says whether its name refers to it, unlike a draft's name, or
    one that was replaced or deleted.
    """

    region: Number
    name: str | None
    nbytes: Bytes
    size: _Size
    device: _Device
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


class Event(Value, frozen=True):
    """A change of a region, or lost events.

    ``kind`` is "allocated", "published", "sealed", "deleted", "freed" (memory is free again) or
    "lost": events before this one are missing, because the watcher read too late or the broker was
    restarted. ``name``, ``region`` and ``version`` are None for events without one.
    """

    kind: str = msgspec.field(name="event")
    name: str | None = None
    region: _NumberOrNone = None
    version: _NumberOrNone = None


#: The first event of a watch that continues with a restarted broker.
LOST = Event("lost")


class _Page(msgspec.Struct):
    """The reply to a ``list``, with every reply's fields: its number and count of descriptors."""

    regions: list[RegionInfo]
    next: str | None
    id: Any = None
    fds: Any = 0


class _Stat(RegionInfo, frozen=True):
    """The reply to a ``stat``."""

    metadata: Metadata  # type: ignore[assignment]
    holders: tuple[Holder, ...]
    sha256: str | None
    linked: bool
    id: Any = None
    fds: Any = 0


_page = msgspec.msgpack.Decoder(_Page).decode
_stat = msgspec.msgpack.Decoder(_Stat).decode
_event = msgspec.msgpack.Decoder(Event).decode


def decode_told(call: str, packet: bytes) -> dict[str, Any]:
    """The reply to a ``list``, or to a ``stat`` with a :class:`RegionInfo` as its ``info``.

    Raises ProtocolError.
    """
    if call == "list":
        page = _decoded(call, _page, packet)
        for info in page.regions:
            if info.device == CPU_DEVICE:
                force_setattr(info, "device", "cpu")
        return asdict(page)
    fields = asdict(_decoded(call, _stat, packet))
    told = {"id": fields.pop("id"), "fds": fields.pop("fds")}
    if fields["device"] == CPU_DEVICE:
        fields["device"] = "cpu"
    metadata = unpack_metadata(fields.pop("metadata"))
    return {**told, "info": RegionInfo(**fields, metadata=metadata)}


def decode_event(packet: bytes) -> Event:
    """The event of a packet to a watcher. Raises ProtocolError."""
    return _decoded("watch", _event, packet)


def _decoded(call: str, decode: Callable[[bytes], _T], packet: bytes) -> _T:
    try:
        return decode(packet)
    except UNDECODABLE as error:
        raise ProtocolError(
            f"{call}: the broker's reply has a malformed value: {error!s:.160}"
        ) from None
