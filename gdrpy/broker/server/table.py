"""The broker's state: regions, names, sessions and leases. Its only output is records.

Every change is a record, and only :meth:`Table.apply` makes changes, so that a broker and the next
one, which reads the journal, run the same code.
"""

from __future__ import annotations

import bisect
import socket
from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeVar

from msgspec import Struct, field
from msgspec.structs import astuple

from gdrpy.broker.checkpoint import places_of
from gdrpy.broker.copies import Mark, original_of, own_stamp
from gdrpy.broker.protocol import CPU_DEVICE
from gdrpy.broker.server import records
from gdrpy.broker.server.rights import Identity, shared_groups

_K = TypeVar("_K")


class LeaseEntry(Struct):
    """A session's lease of a region: the number of grants, and whether any is writable, or for GPU.

    After a restart each lease has one grant, until its holder resumes the others.
    """

    count: int
    writable: bool
    gpu: bool


class RegionEntry(records.Made, eq=False, gc=True):
    """A region in the broker. The server sets and closes ``fd`` and ``readonly_fd``.

    ``version`` is the name's; 0 for drafts and regions without a name.
    """

    #: Whether the name refers to this region.
    linked: bool = False
    #: How the names of a checkpoint's files begin, for its index; and for one of its files.
    files: str | None = None
    home: str | None = None
    sealed: bool = False
    #: The life and the number of another broker's region that it is a copy of.
    copy_of: tuple[str, int] | None = None
    #: The mark in its metadata, once it is sealed.
    mark: Mark | None = None
    digest: str | None = None
    #: The session of its exporter, if it is bound and has not ended.
    exporter: int = 0
    leases: dict[int, LeaseEntry] = field(default_factory=dict)
    #: The number of writable leases.
    writers: int = 0
    fd: int = -1
    readonly_fd: int | None = None

    @property
    def original(self) -> str | None:
        """The name of the region that it is a copy of, for a copy of a sleeper."""
        if self.mark is None or self.mark.gpu is None or self.device != CPU_DEVICE:
            return None
        return original_of(self.name)

    def stamp(self, life: str) -> str:
        """What identifies its contents, once it is sealed; ``life`` is that of the broker."""
        return self.mark.stamp if self.mark else own_stamp(self.number, life)

    @property
    def ended(self) -> bool:
        """Whether it was bound to its exporter, whose lease has ended."""
        return self.grace is not None and self.exporter not in self.leases

    @property
    def draft(self) -> bool:
        """Whether it has a name but is not published yet."""
        return self.name is not None and self.version == 0

    def __str__(self) -> str:
        return f"region {self.number}" if self.name is None else f"region {self.name!r}"


class Session(Struct, eq=False):
    """A client's session: of a connection, or of an earlier broker's until its process ends."""

    number: int
    identity: Identity
    #: Of its connection; None for an earlier broker's.
    sock: socket.socket | None = None
    #: The regions that it has leases of.
    regions: dict[int, RegionEntry] = field(default_factory=dict)
    #: What it has asleep, by the regions' numbers.
    asleep: dict[int, records.Slept] = field(default_factory=dict)
    #: Whether its connection was closed, and its process, which cannot be seen, may live on.
    left: bool = False

    def began(self) -> records.Began:
        """The record of its beginning."""
        who = self.identity
        groups = sorted(who.groups)
        return records.Began(self.number, who.pid, who.process, who.uid, who.gid, groups)


class Table:
    """All state. ``journal`` gets every record before it is applied; ``freed`` gets every region
    that no name and no lease keeps any longer.
    """

    def __init__(
        self, journal: Callable[[records.Record], object], freed: Callable[[RegionEntry], object]
    ) -> None:
        self.life = ""
        self.regions: dict[int, RegionEntry] = {}
        self.names: dict[str, RegionEntry] = {}
        #: The regions to which no name refers.
        self.nameless: dict[int, RegionEntry] = {}
        self.sessions: dict[int, Session] = {}
        #: Bytes of each device that regions use, and each user's part of them.
        self.used: dict[int, int] = defaultdict(int)
        self.used_by: dict[tuple[int, int], int] = {}
        #: The number of each user's regions, and of each user's leases.
        self.counted: dict[int, int] = {}
        self.leased: dict[int, int] = {}
        #: The number of regions that each user has asleep; and what sleeps, by name and owner,
        #: then by session and region.
        self.slept: dict[int, int] = {}
        self._sleepers: dict[tuple[str, int], dict[tuple[int, int], int]] = {}
        #: All names, in order.
        self.sorted_names: list[str] = []
        #: Copies of other brokers' regions, by the original's life and number, and the owner.
        self._copies: dict[tuple[str, int, int], dict[int, RegionEntry]] = defaultdict(dict)
        #: The copies of sleepers, by the name of the region and by their owner.
        self.copies: dict[str, dict[int, RegionEntry]] = {}
        #: The owners of the copies that keep the names of regions while these sleep, and the
        #: regions' versions.
        self.kept: dict[str, tuple[int, int]] = {}
        #: Bound regions that have ended, until the service has told of them.
        self.ended: list[RegionEntry] = []
        self._next = 1
        self._journal = journal
        self._freed = freed

    def number(self) -> int:
        """A number that no region or session of this life has had."""
        found = self._next
        self._next += 1
        return found

    def names_after(self, name: str, prefix: str, most: int) -> list[str]:
        """At most so many of the names that begin with a prefix and follow ``name``, in order."""
        start = bisect.bisect_right(self.sorted_names, name)
        names = self.sorted_names[start : start + most]
        return [one for one in names if one.startswith(prefix)]

    def commit(self, record: records.Record) -> None:
        """Record a change in the journal, and apply it."""
        self._journal(record)
        _APPLY[type(record)](self, record)

    def apply(self, record: Any) -> None:
        """Make the change of a record."""
        _APPLY[type(record)](self, record)

    def renumber(self, uuids: dict[int, str]) -> None:
        """Give the GPUs of an earlier broker's regions this broker's numbers.

        A GPU that this broker does not see gets an unused number.
        """
        numbers = {uuid: number for number, uuid in uuids.items()}
        for region in self.regions.values():
            if region.uuid:
                self._use(region, -region.size)
                region.device = numbers.setdefault(region.uuid, len(numbers))
                self._use(region, region.size)

    def _use(self, region: RegionEntry, nbytes: int) -> None:
        """Add to the bytes used on a region's device; negative ``nbytes`` subtract."""
        self.used[region.device] += nbytes
        count(self.used_by, (region.device, region.uid), nbytes)

    def _live(self, record: records.Life) -> None:
        self.life = record.life
        self._next = max(self._next, record.next_number)

    def _make(self, record: records.Made) -> None:
        region = RegionEntry(*astuple(record))
        region.files, region.home = places_of(region.name, region.metadata)
        self.regions[region.number] = self.nameless[region.number] = region
        if region.number >= self._next:
            self._next = region.number + 1
        self._use(region, region.size)
        count(self.counted, region.uid, 1)

    def _publish(self, record: records.Published) -> None:
        for number, version in record.regions:
            self._link(self.regions[number], version)
        self._unlink_all(record.unlinked)

    def _link(self, region: RegionEntry, version: int) -> None:
        assert region.name is not None
        replaced = self.names.get(region.name)
        self.names[region.name] = region
        region.version = version
        region.linked = True
        self.nameless.pop(region.number, None)
        if replaced is None:
            bisect.insort(self.sorted_names, region.name)
        else:
            self._lose_name(replaced)
        if self._kept_by(region.name) != region.uid:
            self.kept.pop(region.name, None)
        self._find_copy(region)

    def _unlink(self, record: records.Unlinked) -> None:
        self._unlink_all(record.regions)

    def _unlink_all(self, numbers: list[int]) -> None:
        for region in map(self.regions.__getitem__, numbers):
            assert region.name is not None
            del self.names[region.name]
            del self.sorted_names[bisect.bisect_left(self.sorted_names, region.name)]
            self._lose_name(region)

    def _lose_name(self, region: RegionEntry) -> None:
        region.linked = False
        self.nameless[region.number] = region
        name = region.original or ""
        copies = self.copies.get(name, {})
        if copies.get(region.uid) is region:
            del copies[region.uid]
            if not copies:
                del self.copies[name]
            if self._kept_by(name) == region.uid:
                del self.kept[name]
        self._forget_unheld(region)

    def _find_copy(self, region: RegionEntry) -> None:
        """Note a published region if it is a copy; the latest one counts."""
        if region.linked and region.original is not None:
            self.copies.setdefault(region.original, {})[region.uid] = region

    def keeper(self, name: str) -> RegionEntry | None:
        """The copy that keeps a name for its owner, if the name refers to no region."""
        owner = self._kept_by(name)
        if name in self.names or owner is None:
            return None
        return self.copies.get(name, {}).get(owner)

    def keeps(self, region: RegionEntry) -> int | None:
        """The version of the name that a copy keeps, or will once the name is deleted, if any."""
        owner, version = self.kept.get(region.original or "", (None, 0))
        return version if region.linked and owner == region.uid else None

    def _kept_by(self, name: str) -> int | None:
        """The owner of the copy that keeps a name."""
        return self.kept.get(name, (None, 0))[0]

    def _keep(self, record: records.Kept) -> None:
        region = self.regions[record.region]
        if region.original is not None:
            self.kept[region.original] = region.uid, record.version

    def next_version(self, draft: RegionEntry, woken: bool = False) -> int:
        """The version of a draft, or of a new region, that is to get its name.

        A name goes on from its region, else from what sleeps. A region that is ``woken`` from the
        copy that keeps its name has the version that it had.
        """
        name = draft.name or ""
        if name in self.names:
            return self.names[name].version + 1
        owner, kept = self.kept.get(name, (None, 0))
        if woken and kept and owner == draft.uid:
            return kept
        return 1 + max(kept, *self._sleepers.get((name, draft.uid), {}).values(), 0)

    def _seal(self, record: records.SealedNow) -> None:
        region = self.regions[record.region]
        region.sealed = True
        region.mark = record.mark
        region.copy_of = record.copy_of
        self._find_copy(region)
        if region.copy_of is not None:
            self._copies[*region.copy_of, region.uid][region.number] = region

    def _digest(self, record: records.Digested) -> None:
        self.regions[record.region].digest = record.sha256

    def _change(self, record: records.Changed) -> None:
        region = self.regions[record.region]
        region.mode = record.mode
        region.metadata = record.metadata
        region.files, region.home = places_of(region.name, region.metadata)

    def _begin(self, record: records.Began) -> None:
        identity = Identity(
            record.pid, record.process, record.uid, record.gid, shared_groups(record.groups)
        )
        self.sessions[record.session] = Session(record.session, identity)
        self._next = max(self._next, record.session + 1)

    def _leave(self, record: records.Left) -> None:
        self.sessions[record.session].left = True

    def _end(self, record: records.Ended) -> None:
        session = self.sessions.pop(record.session)
        for region in session.regions.values():
            self._drop(session, region)
        for slept in session.asleep.values():
            self._stir(session, slept)

    def grant(self, session: Session, region: RegionEntry, writable: bool, gpu: bool) -> None:
        """Add a grant. The journal records only the first grant of each kind."""
        lease = region.leases.get(session.number)
        if lease is None or lease.writable < writable or lease.gpu < gpu:
            self.commit(records.Granted(session.number, region.number, writable, gpu))
        else:
            lease.count += 1

    def _grant(self, record: records.Granted) -> None:
        region = self.regions[record.region]
        lease = region.leases.get(record.session)
        if lease is None:
            region.leases[record.session] = LeaseEntry(1, record.writable, record.gpu)
            region.writers += record.writable
            session = self.sessions[record.session]
            session.regions[record.region] = region
            uid = session.identity.uid
            self.leased[uid] = self.leased.get(uid, 0) + 1
            return
        lease.count += 1
        region.writers += lease.writable < record.writable
        lease.writable |= record.writable
        lease.gpu |= record.gpu

    def release(self, session: Session, region: RegionEntry) -> None:
        """Remove a grant; the last one ends the lease."""
        lease = region.leases[session.number]
        if lease.count > 1:
            lease.count -= 1
        else:
            self.commit(records.Released(session.number, region.number))

    def _release(self, record: records.Released) -> None:
        session = self.sessions[record.session]
        self._drop(session, session.regions.pop(record.region))

    def _drop(self, session: Session, region: RegionEntry) -> None:
        """End a session's lease."""
        region.writers -= region.leases.pop(session.number).writable
        count(self.leased, session.identity.uid, -1)
        if region.exporter == session.number:
            region.exporter = 0
            self.ended.append(region)
            if region.linked:
                self._unlink_all([region.number])
                return
        self._forget_unheld(region)

    def is_held(self, region: RegionEntry, who: Identity) -> bool:
        """Whether any session of a process has a lease."""
        return any(self.sessions[one].identity.is_same(who) for one in region.leases)

    def _bind(self, record: records.Bound) -> None:
        self.regions[record.region].exporter = record.session

    def _sleep(self, record: records.Slept) -> None:
        session = self.sessions[record.session]
        session.asleep[record.region] = record
        sleepers = self._sleepers.setdefault((record.name, record.uid), {})
        sleepers[record.session, record.region] = record.version
        count(self.slept, session.identity.uid, 1)

    def _wake(self, record: records.Woke) -> None:
        session = self.sessions[record.session]
        self._stir(session, session.asleep.pop(record.region))

    def _stir(self, session: Session, slept: records.Slept) -> None:
        """Stop counting a region that a session has asleep."""
        sleepers = self._sleepers[slept.name, slept.uid]
        del sleepers[slept.session, slept.region]
        if not sleepers:
            del self._sleepers[slept.name, slept.uid]
        count(self.slept, session.identity.uid, -1)

    def sleepers(self, region: RegionEntry) -> dict[tuple[int, int], int]:
        """The versions of a region's name that sleep, by session and region.

        A copy in host memory has those of its region's name while that refers to no region.
        """
        name = region.name or ""
        if self._stands_in(region):
            name = region.original or ""
        return self._sleepers.get((name, region.uid), {})

    def version_of(self, region: RegionEntry) -> int:
        """The version of a region's sleepers that are not older ones."""
        return (self.keeps(region) or 0) if self._stands_in(region) else region.version

    def _stands_in(self, region: RegionEntry) -> bool:
        """Whether a region is a copy of one whose name refers to no region."""
        return region.original is not None and region.original not in self.names

    def _forget_unheld(self, region: RegionEntry) -> None:
        if region.linked or region.leases:
            return
        del self.regions[region.number], self.nameless[region.number]
        self._use(region, -region.size)
        count(self.counted, region.uid, -1)
        if region.copy_of is not None:
            origin = (*region.copy_of, region.uid)
            del self._copies[origin][region.number]
            if not self._copies[origin]:
                del self._copies[origin]
        self._freed(region)

    def copy_of(self, life: str, number: int, uid: int) -> RegionEntry | None:
        """A user's first copy of another broker's region."""
        return next(iter(self._copies.get((life, number, uid), {}).values()), None)

    def discard_unheld(self) -> None:
        """Forget regions whose broker died before a client got them, or had them bound to it."""
        for region in list(self.regions.values()):
            if region.ended and region.linked:
                self._unlink_all([region.number])
            else:
                self._forget_unheld(region)
        self.ended.clear()

    def beginning(self) -> records.Life:
        """The first of the records that make this state."""
        return records.Life(self.life, self._next)


def count(counts: dict[_K, int], key: _K, more: int) -> None:
    """Add ``more``, which may be negative, to a key's count; remove the key at 0."""
    found = counts.get(key, 0) + more
    if found:
        counts[key] = found
    else:
        del counts[key]


_APPLY: dict[type, Callable[[Table, Any], None]] = {
    records.Life: Table._live,
    records.Made: Table._make,
    records.Published: Table._publish,
    records.Unlinked: Table._unlink,
    records.SealedNow: Table._seal,
    records.Digested: Table._digest,
    records.Changed: Table._change,
    records.Began: Table._begin,
    records.Ended: Table._end,
    records.Granted: Table._grant,
    records.Released: Table._release,
    records.Slept: Table._sleep,
    records.Woke: Table._wake,
    records.Kept: Table._keep,
    records.Bound: Table._bind,
    records.Left: Table._leave,
}
