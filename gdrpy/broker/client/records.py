"""What the broker tells of regions, their holders and what happens to them."""

from __future__ import annotations

from gdrpy.broker.client.replies import ENTRY, EVENT, HOLDER, STAT, check
from gdrpy.broker.protocol import CPU_DEVICE, unpack_metadata

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, ClassVar, NoReturn, Self


class Record:
    """Fields that do not change, shown and compared by value. Its annotations name them."""

    _fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        cls._fields = tuple(cls.__annotations__)

    def __init__(self, *values: Any) -> None:
        self.__dict__.update(zip(self._fields, values, strict=True))

    def as_dict(self) -> dict[str, Any]:
        """The fields by name, those of records in them too: ready for JSON."""
        return {name: _plain(value) for name, value in self.__dict__.items()}

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"the fields of a {type(self).__name__} do not change")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash(repr(self))

    def __reduce__(self) -> tuple[type[Self], tuple[Any, ...]]:
        return type(self), tuple(self.__dict__.values())

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())
        return f"{type(self).__name__}({fields})"


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.as_dict()
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


class Holder(Record):
    """A process that holds a region ``count`` times, at least once so if ``writable``, ``gpu``."""

    pid: int
    uid: int
    writable: bool
    gpu: bool
    count: int


class RegionInfo(Record):
    """A region as the broker tells of it.

    ``nbytes`` is what was asked for and ``size`` the bytes that it takes. ``device`` is the
    broker's CUDA ordinal of a GPU, which other processes may number otherwise, or "cpu"; ``uuid``
    is the GPU's everywhere, None for the host. ``version`` is 0 until it is published. ``readers``
    and ``writers`` count the leases. ``metadata`` and ``holders`` are None in a list, ``sha256``
    until it was asked for.
    ``linked`` says whether its name means it: not that of a draft, nor one replaced or deleted.
    """

    region: int
    name: str | None
    nbytes: int
    size: int
    device: int | str
    mode: int
    uid: int
    gid: int
    version: int
    sealed: bool
    readers: int
    writers: int
    metadata: dict[str, Any] | None
    holders: tuple[Holder, ...] | None
    sha256: str | None
    linked: bool
    uuid: str | None

    @classmethod
    def listed(cls, entry: Any) -> RegionInfo:
        """From an entry of a ``list``. Raises ProtocolError."""
        check("list", entry, ENTRY)
        return cls(*_always(entry), None, None, None, True, entry["uuid"])

    @classmethod
    def of(cls, reply: dict[str, Any]) -> RegionInfo:
        """From the reply to a ``stat``. Raises ProtocolError."""
        check("stat", reply, STAT)
        for one in reply["holders"]:
            check("stat", one, HOLDER)
        holders = tuple(Holder(*map(one.__getitem__, Holder._fields)) for one in reply["holders"])
        metadata = unpack_metadata(reply["metadata"])
        return cls(
            *_always(reply), metadata, holders, reply["sha256"], reply["linked"], reply["uuid"]
        )


def _always(entry: dict[str, Any]) -> list[Any]:
    """The fields that every entry has, in the order of a RegionInfo's."""
    found = [entry[name] for name in RegionInfo._fields[:12]]
    if entry["device"] == CPU_DEVICE:
        found[RegionInfo._fields.index("device")] = "cpu"
    return found


class Event(Record):
    """Something that happened to a region, or to the watching of them.

    ``kind`` is "allocated", "published", "sealed", "deleted", "freed" (its memory came back) or
    "lost": events are missing before this one, because nobody read them or the broker was
    restarted. ``name``, ``region`` and ``version`` are None where there is none.
    """

    kind: str
    name: str | None
    region: int | None
    version: int | None

    @classmethod
    def of(cls, message: dict[str, Any]) -> Event:
        """From the packet that told of it. Raises ProtocolError."""
        fields = {"name": None, "region": None, "version": None, **message}
        check("watch", fields, EVENT)
        return cls(*map(fields.get, EVENT))


#: What a watch that went on with a restarted broker tells first.
LOST = Event("lost", None, None, None)
