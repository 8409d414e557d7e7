"""The broker's requests, and their replies, with descriptors beside them."""

from __future__ import annotations

import errno
import heapq
import itertools
import os
import re
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from msgspec import UNSET, UnsetType
from msgspec.structs import astuple, replace

from gdrpy import errors
from gdrpy.broker import protocol, replies, requests
from gdrpy.broker.copies import mark_in
from gdrpy.broker.protocol import PUBLISH_LIMIT
from gdrpy.broker.replies import Grant, Grants
from gdrpy.broker.rings import is_ring, ring_of
from gdrpy.broker.server import memory, records, telling
from gdrpy.broker.server.malformed import other_version
from gdrpy.broker.server.quotas import DescriptorReserve, Quotas, device_words
from gdrpy.broker.server.rights import (
    READ,
    WRITE,
    Identity,
    UserMap,
    allowed,
    owns,
    require,
    require_owner,
    require_somebody,
)
from gdrpy.broker.server.state import State
from gdrpy.broker.server.table import RegionEntry, Session

#: A reply, and the descriptors beside it.
Answer = tuple[replies.Reply | replies.Description | replies.Refusal, list[int]]
#: The turns of a long request: each gives None, or a reply to send.
Work = Iterator[Answer | None]

#: Names, leases and regions that one turn handles.
SLICE = 64


@dataclass
class Service:
    """The requests, on one state."""

    state: State
    quotas: Quotas
    server: str
    #: Whether to refuse readers memory that the kernel would let them write.
    strict: bool
    #: How users of other user namespaces count.
    users: UserMap = field(default_factory=UserMap)
    #: Called for every change that watchers see.
    announce: Callable[[str, RegionEntry | None], object] = lambda *_: None
    counts: dict[type, int] = field(default_factory=lambda: defaultdict(int))
    #: Grants in the next packet of a get_many, by the descriptors that can be sent.
    at_once: int = SLICE
    #: Whether an earlier broker's regions have this broker's GPU numbers.
    recognized: bool = False

    def __post_init__(self) -> None:
        self.table = self.state.table
        self.descriptors = DescriptorReserve()

    def recognize(self) -> None:
        """Give an earlier broker's regions this broker's GPU numbers. Raises Error."""
        if not self.recognized:
            self.table.renumber(self.quotas.uuids)
            self.recognized = True

    def _number(self, call: str, device: int | str) -> int:
        """The number of a device that a client names. Raises InvalidRequest, NotFound."""
        if isinstance(device, int):
            return device
        self.recognize()
        return self.quotas.number(call, device)

    def begin(self, who: Identity, request: requests.Hello) -> tuple[Session, replies.Welcome]:
        """A session for a connection that says hello. Raises ProtocolError."""
        if request.version != protocol.VERSION:
            raise other_version(request.version)
        number = self.table.number()
        self.table.commit(Session(number, who).began())
        welcome = replies.Welcome(
            id=request.id,
            version=protocol.VERSION,
            life=self.table.life,
            session=number,
            server=self.server,
        )
        return self.table.sessions[number], welcome

    def end(self, session: Session) -> Work:
        """End a session whose connection or process is gone, unless it was resumed."""
        table = self.table
        while len(session.regions) > SLICE and session.number in table.sessions:
            for region in list(itertools.islice(session.regions, SLICE)):
                table.commit(records.Released(session.number, region))
            self._tell_of_ends()
            yield None
        while len(session.asleep) > SLICE and session.number in table.sessions:
            for region in list(itertools.islice(session.asleep, SLICE)):
                table.commit(records.Woke(session.number, region))
            yield None
        if session.number in table.sessions:
            table.commit(records.Ended(session.number))
            self.state.processes.drop(session.number)
            self._tell_of_ends()

    def calls(self) -> dict[type, Callable[[Session, Any], Answer | Work | None]]:
        """The function for each type of request: it gives a reply, or None without one, or raises
        Error.
        """
        return {
            requests.Allocate: self._allocate,
            requests.Change: self._change,
            requests.Create: self._create,
            requests.Delete: self._delete,
            requests.Get: self._get,
            requests.GetMany: self._get_many,
            requests.List: self._list,
            requests.Publish: self._publish,
            requests.Release: self._release,
            requests.RoundedSize: self._rounded_size,
            requests.Seal: self._seal,
            requests.Stat: self._stat,
            requests.Status: self._status,
        }

    def _tell_of_ends(self) -> None:
        """Tell of bound regions that have ended, and of memory that is freed."""
        for region in self.table.ended:
            self.announce("ended", region)
        self.table.ended.clear()
        if self.state.freed:
            self.state.freed = False
            self.announce("freed", None)

    def _release(self, session: Session, request: requests.Release) -> Work | None:
        """Release leases, and ignore regions without one; tell who sleeps."""
        if max(map(len, astuple(request))) > SLICE:
            return self._release_in_turns(session, request)
        self._release_some(session, *astuple(request))
        return None

    def _release_in_turns(self, session: Session, request: requests.Release) -> Work:
        for start in range(0, max(map(len, astuple(request))), SLICE):
            if start:
                yield None
            some = [numbers[start : start + SLICE] for numbers in astuple(request)]
            self._release_some(session, *some)

    def _release_some(
        self, session: Session, regions: list[int], asleep: list[int], awake: list[int]
    ) -> None:
        for number in asleep:
            self._sleep(session, number)
        for number in awake:
            if number in session.asleep:
                self.table.commit(records.Woke(session.number, number))
        for number in regions:
            if number in session.regions:
                self.table.release(session, session.regions[number])
        self._tell_of_ends()

    def _sleep(self, session: Session, number: int, before: Session | None = None) -> None:
        """Count a region as asleep, if an earlier session had it so, or the process may have it."""
        if number in session.asleep:
            return
        region = self.table.regions.get(number)
        if before is not None and number in before.asleep:
            slept = replace(before.asleep[number], session=session.number)
            self.table.commit(records.Woke(before.number, number))
        elif region is None or region.name is None or not region.version:
            return
        elif number in session.regions or allowed(session.identity, region, READ):
            slept = records.Slept(session.number, number, region.name, region.version, region.uid)
        else:
            return
        if self.quotas.lets_sleep(self.table, session.identity):
            self.state.processes.hold(session)
            self.table.commit(slept)

    def resume(self, session: Session, request: requests.Resume) -> Work:
        """Take leases over from a session of the same process whose connection is gone."""
        lost: list[int] = []
        for start in range(0, len(request.leases), SLICE):
            if start:
                yield None
            before = self.before(session, request.session)
            for lease in request.leases[start : start + SLICE]:
                if not self._resume_lease(session, before, *lease):
                    lost.append(lease[0])
        for start in range(0, len(request.asleep), SLICE):
            yield None
            before = self.before(session, request.session)
            for number in request.asleep[start : start + SLICE]:
                self._sleep(session, number, before)
        self.before(session, request.session)
        yield replies.Resumed(id=request.id, lost=lost), []

    def before(self, session: Session, number: int) -> Session | None:
        """The session to resume, if it still exists and the kernel tells whose it was.

        Raises InvalidRequest.
        """
        before = self.table.sessions.get(number) if session.identity.process else None
        if before is not None and (
            before is session or not before.identity.is_same(session.identity)
        ):
            raise errors.InvalidRequest(
                f"resume: session {number} is not an ended one of this process"
            )
        return before

    def _resume_lease(
        self, session: Session, before: Session | None, number: int, writable: bool, gpu: bool
    ) -> bool:
        """Grant a lease that the earlier session had or the process may have; returns whether."""
        if before is not None and number in before.regions:
            region = before.regions[number]
            lease = region.leases[before.number]
            self._lease(session, region, lease.writable, lease.gpu)
            if region.exporter == before.number:
                self.table.commit(records.Bound(number, session.number))
            return True
        found = self.table.regions.get(number)
        if found is None or found.ended:
            return False
        wanted = READ | WRITE if writable else READ
        if number not in session.regions:
            if found.draft or not allowed(session.identity, found, wanted):
                return False
            self.quotas.require_lease("resume", self.table, session.identity)
        self._lease(session, found, writable, gpu)
        return True

    def _lease(self, session: Session, region: RegionEntry, writable: bool, gpu: bool) -> None:
        """Add a grant to a session, for the CPU alone if it is host memory."""
        if not session.regions:
            self.state.processes.hold(session)
        self.table.grant(session, region, writable, gpu and region.device != protocol.CPU_DEVICE)

    def _allocate(self, session: Session, request: requests.Allocate) -> Answer:
        name = request.name
        found = None if name is None else self.table.names.get(name)
        created = found is None
        if found is None:
            if name is not None:
                _check_name("allocate", name)
                self._require_free("allocate", session, name)
            region = self._make("allocate", session, request, None)
            if name is not None:
                version = self.table.next_version(region)
                self.table.commit(records.Published(region.number, version))
                self.announce("allocated", region)
            grant, fd = self._grant_made(session, region, request)
        else:
            region = found
            require(session.identity, region, READ | WRITE, "allocate")
            device = self._number("allocate", request.device)
            if (region.nbytes, region.device) != (request.nbytes, device):
                raise errors.SizeMismatch(
                    f"allocate: {region} exists with {region.nbytes} bytes on "
                    f"{device_words(region.device)}, and {request.nbytes} bytes on "
                    f"{device_words(device)} were asked for: ask for what exists, delete it "
                    f"first, or take another name"
                )
            if request.grace is not None:
                _require_bound(session, region, request.grace)
            if region.number not in session.regions:
                self.quotas.require_lease("allocate", self.table, session.identity)
            grant, fd = self._grant(session, region, not region.sealed, request.gpu, request.id)
        grant.created = created
        return grant, [fd]

    def _rounded_size(self, session: Session, request: requests.RoundedSize) -> Answer:
        del session
        device = self._number("rounded_size", request.device)
        self.quotas.require_device("rounded_size", device)
        return replies.Size(id=request.id, size=memory.rounded(request.nbytes, device)), []

    def _create(self, session: Session, request: requests.Create) -> Answer:
        if self._replaceable("create", session, request.name) is None:
            _check_name("create", request.name)
        who = session.identity
        if request.owner not in (None, (who.uid, who.gid)) and not who.privileged:
            raise errors.PermissionDenied(
                errno.EPERM,
                f"create: user {who.uid} may not make a region of another user or group: leave "
                f"owner out; only root and the broker's user may",
            )
        region = self._make("create", session, request, request.owner)
        grant, fd = self._grant_made(session, region, request)
        return grant, [fd]

    def _make(
        self,
        call: str,
        session: Session,
        request: requests.Allocate,
        owner: tuple[int, int] | None,
    ) -> RegionEntry:
        """A new region, for which the caller must commit a lease or a name at once."""
        who, device = session.identity, self._number(call, request.device)
        require_somebody(who, call)
        self.quotas.require_device(call, device)
        if not self.recognized:
            self.recognize()
        size = memory.rounded(request.nbytes, device)
        self.quotas.require_room(call, self.table, who, size, device)
        self.quotas.require_lease(call, self.table, who)
        number = self.table.number()
        try:
            fd = memory.make(size, device)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC):
                raise errors.OutOfMemory(
                    f"{call}: the broker cannot hold another region ({error.strerror})"
                ) from error
            raise
        self.descriptors.require(call, fd, who.uid, self.table.counted.get(who.uid, 0))
        made = records.Made(
            number,
            request.name,
            request.nbytes,
            size,
            device,
            *(owner or (who.uid, who.gid)),
            request.mode,
            request.metadata,
            uuid=self.quotas.uuids.get(device, ""),
            grace=request.grace,
        )
        try:
            return self.state.add(made, fd)
        except BaseException:
            os.close(fd)
            raise

    def _publish(self, session: Session, request: requests.Publish) -> Answer | Work:
        named: dict[str, RegionEntry] = {}
        regions = [
            self._publishable(session, number, named, request.missing)
            for number in (request.region, *request.others)
        ]
        replaced = {name: self.table.names.get(name) for name in named}
        drafts = [region for region in named.values() if region.draft]
        if request.missing:
            drafts = [draft for draft in drafts if replaced[str(draft.name)] is None]
        lost = []
        if drafts:
            if request.beside is not None:
                self._require_name(session, request.beside)
            made = []
            for draft in drafts:
                old = replaced[str(draft.name)]
                woken = self._copy_with_contents_of(draft) is not None
                made.append((draft.number, self.table.next_version(draft, woken)))
                if old is not None and old.files and old.files != draft.files:
                    lost.append(old)
            files = self._files(session, lost, named)
            some = {one.number: one for one in (*self._older_copies(drafts), *next(files, []))}
            self.table.commit(records.Published(*made[0], made[1:], list(some)))
            for draft in drafts:
                self._keep_if_free(draft)
                self._take_mode(draft)
                self.announce("published", draft)
            self._deleted(some.values())
        first, *others = regions
        old = replaced[str(first.name)]
        reply = replies.Published(
            id=request.id,
            version=first.version,
            replaced=None if old is None or old is first or first.draft else old.number,
            others=[region.version for region in others],
        )
        return self._delete_on(files, (reply, [])) if lost else (reply, [])

    def _require_name(self, session: Session, number: int) -> None:
        """Raise Gone unless the name of a region refers to it."""
        region = self._find("publish", session, None, number)
        if not region.linked:
            raise errors.Gone(f"publish: {region} was deleted or replaced meanwhile")

    def _older_copies(self, drafts: list[RegionEntry]) -> Iterator[RegionEntry]:
        """The copies of sleepers that these drafts take the place of, under other names."""
        names = {one.name for one in drafts}
        for draft in drafts:
            older = self.table.copies.get(draft.original or "", {}).get(draft.uid)
            if older is not None and older.name not in names:
                yield older

    def _publishable(
        self, session: Session, number: int, named: dict[str, RegionEntry], missing: bool
    ) -> RegionEntry:
        """A region to publish, or that was published before; it is added to ``named``."""
        region = session.regions.get(number)
        if region is None:
            raise errors.Gone(f"publish: this connection does not hold region {number}")
        if region.name is None:
            raise errors.InvalidRequest(f"publish: {region} has no name: make a draft by create()")
        if region.draft:
            if not missing:
                self._replaceable("publish", session, region.name)
            self._require_free("publish", session, region.name)
        elif not region.linked:
            raise errors.InvalidRequest(
                f"publish: {region} was published before, as version {region.version}, and its "
                f"name was deleted or refers to another region: make a new draft by create()"
            )
        if named.setdefault(region.name, region) is not region:
            raise errors.InvalidRequest(
                f"publish: two of the regions have the name {region.name!r}: publish one"
            )
        return region

    def _require_free(self, call: str, session: Session, name: str) -> None:
        """Raise PermissionDenied if another user's region of the name sleeps, or the name is that
        of a part of a ring that this user may not write.
        """
        who, copy = session.identity, self.table.keeper(name)
        if copy is not None and not owns(who, copy) and not allowed(who, copy, WRITE):
            raise errors.PermissionDenied(
                errno.EACCES,
                f"{call}: the name {name!r} is that of another user's region, which sleeps: take "
                f"another name",
            )
        ring = self.table.names.get(ring_of(name) or "")
        if ring is not None and is_ring(ring.metadata):
            require(who, ring, WRITE, call)

    def _keep_if_free(self, copy: RegionEntry) -> None:
        """Have a copy of a sleeper keep the region's name, unless a region or a copy has it."""
        name = copy.original
        if name is not None and name not in self.table.names and name not in self.table.kept:
            self.table.commit(records.Kept(copy.number))

    def _take_mode(self, copy: RegionEntry) -> None:
        """Give a copy of a sleeper the mode of its region, which may have changed meanwhile."""
        region = self.table.names.get(copy.original or "")
        if region is not None and self._copy_with_contents_of(region) is copy:
            self._change_mode(copy, region.mode)

    def _change_mode(self, copy: RegionEntry, mode: int) -> None:
        if copy.mode != mode:
            self.table.commit(records.Changed(copy.number, mode, copy.metadata))

    def _replaceable(self, call: str, session: Session, name: str) -> RegionEntry | None:
        """The region that the name refers to, if any, which requires write permission."""
        current = self.table.names.get(name)
        if current is not None:
            require(session.identity, current, WRITE, call)
        return current

    def _get(self, session: Session, request: requests.Get) -> Answer:
        region = self._wanted("get", session, request.name, request.region, request.life)
        grant, fd = self._get_region(session, region, request.readonly, request.gpu, request.id)
        return grant, [fd]

    def _wanted(
        self, call: str, session: Session, name: str | None, number: int | None, life: str | None
    ) -> RegionEntry:
        """The region to get: see :class:`requests.Get`."""
        if life is None or life == self.table.life:
            region = self._find(call, session, name, number)
            if region.ended:
                raise errors.Gone(f"{call}: {region} ended with its exporter")
            return region
        return self._find_copy(session, life, number)

    def _find_copy(self, session: Session, life: str, number: int | None) -> RegionEntry:
        """This user's copy of another broker's region. Other users' copies are not trusted."""
        uid = session.identity.uid
        region = None if number is None else self.table.copy_of(life, number, uid)
        if region is not None:
            return region
        raise errors.Gone(
            f"get: region {number} belongs to another broker, or to one that lost its state: get "
            f"it by name"
        )

    def _get_region(
        self,
        session: Session,
        region: RegionEntry,
        readonly: bool,
        gpu: bool,
        number: int | UnsetType,
    ) -> tuple[Grant, int]:
        who = session.identity
        writable = not (readonly or region.sealed) and allowed(who, region, READ | WRITE)
        if not writable:
            require(who, region, READ, "get")
        if region.number not in session.regions:
            self.quotas.require_lease("get", self.table, who)
        return self._grant(session, region, writable, gpu, number)

    def _get_many(self, session: Session, request: requests.GetMany) -> Work:
        """Grant the regions up to the first that is refused."""
        if request.names and request.regions:
            raise errors.InvalidRequest("get_many: give either names or regions' numbers")
        wanted: list[tuple[str | None, int | None]] = [(name, None) for name in request.names]
        wanted += [(None, number) for number in request.regions]
        done, more = 0, True
        while more:
            grants: list[Grant] = []
            fds: list[int] = []
            refusal: replies.Refusal | None = None
            room = _GRANTS_BYTES
            for one in itertools.islice(wanted, done, done + self.at_once):
                try:
                    region = self._wanted("get_many", session, *one, request.life)
                    grant, fd = self._get_region(
                        session, region, request.readonly, request.gpu, UNSET
                    )
                except errors.Error as error:
                    refusal = replies.refusal(error, request.id)
                    break
                grants.append(grant)
                fds.append(fd)
                room -= _GRANT_BYTES + len((grant.name or "").encode()) + len(grant.metadata)
                if room < 0:
                    break
            done += len(grants)
            more = refusal is not None or done < len(wanted)
            if grants or not more:
                yield Grants(id=request.id, fds=len(fds), grants=grants, more=more), fds
            if refusal is not None:
                yield refusal, []

    def _grant_made(
        self, session: Session, region: RegionEntry, request: requests.Allocate
    ) -> tuple[Grant, int]:
        """Grant a region to the session that made it, and bind it if the request says so."""
        if region.grace is not None:
            self.table.commit(records.Bound(region.number, session.number))
        return self._grant(session, region, True, request.gpu, request.id)

    def _grant(
        self,
        session: Session,
        region: RegionEntry,
        writable: bool,
        gpu: bool,
        number: int | UnsetType,
    ) -> tuple[Grant, int]:
        """Grant a lease, as the reply to request ``number``, and the memory's descriptor."""
        fd: int | None = region.fd
        enforced = False
        if not writable and (not gpu or region.device == protocol.CPU_DEVICE):
            fd = self._readonly_fd(region)
            enforced = fd is not None
        if self.strict and not (writable or enforced or session.identity.privileged):
            raise errors.PermissionDenied(
                errno.EACCES,
                f"get: {region} is read-only for you, and CUDA would let you write: this broker is "
                f"strict and refuses it; ask with gpu=False"
                + ("" if gpu else ", which helps only for host memory"),
            )
        self._lease(session, region, writable, gpu)
        grant = Grant(
            id=number,
            fds=0 if number is UNSET else 1,
            region=region.number,
            name=region.name,
            nbytes=region.nbytes,
            size=region.size,
            device=region.device,
            version=region.version,
            sealed=region.sealed,
            readonly=not writable,
            enforced=enforced,
            metadata=region.metadata,
            grace=None if region.exporter == session.number else region.grace,
            uuid=region.uuid or None,
        )
        return grant, region.fd if fd is None else fd

    def _readonly_fd(self, region: RegionEntry) -> int | None:
        """The region's read-only descriptor, made on first use."""
        if region.readonly_fd is None:
            fd = memory.readonly(region.fd)
            if fd is not None:
                has = self.table.counted[region.uid] - 1
                self.descriptors.require("get", fd, region.uid, has)
            region.readonly_fd = fd
        return region.readonly_fd

    def _seal(self, session: Session, request: requests.Seal) -> Answer:
        region = self._find("seal", session, None, request.region)
        if not region.draft:  # which only its maker finds
            require(session.identity, region, WRITE, "seal")
        if request.copy_of is not None:
            require_owner(session.identity, region, "seal")  # all processes of its owner trust it
        if not region.sealed:
            # The step that publishes a copy deletes the one before, so none becomes one later.
            mark = None if region.linked else mark_in(region.metadata, region.number)
            self.table.commit(records.SealedNow(region.number, request.copy_of, mark))
            if region.linked:
                self.announce("sealed", region)
        return replies.Reply(id=request.id), []

    def digestible(self, session: Session, request: requests.Digest) -> RegionEntry:
        """The region of a digest request, which takes too long for this thread. Raises Error."""
        region = self._find("digest", session, None, request.region)
        require(session.identity, region, READ, "digest")
        if not region.sealed:
            raise errors.InvalidRequest(
                f"digest: {region} is not sealed, so its contents may change: seal it first"
            )
        return region

    def digested(self, region: RegionEntry, sha256: str) -> None:
        """Remember a digest."""
        if region.number in self.table.regions:
            self.table.commit(records.Digested(region.number, sha256))

    def _delete(self, session: Session, request: requests.Delete) -> Answer | Work:
        answer: Answer = replies.Reply(id=request.id), []
        copies = [
            copy
            for copy in self.table.copies.get(request.name, {}).values()
            if allowed(session.identity, copy, WRITE)
        ]
        whole = not (request.unheld or request.copied)
        asleep = request.region is None and request.name not in self.table.names
        if copies and whole and asleep:
            self._unlink(copies)
            return answer
        region = self._find("delete", session, request.name, None)
        if request.region is not None and request.region != region.number:
            raise errors.Gone(
                f"delete: {request.name!r} no longer refers to region {request.region}"
            )
        if not (request.copied and owns(session.identity, region)):  # who puts it to sleep
            require(session.identity, region, WRITE, "delete")
        if not whole:
            copy = self._copy_with_contents_of(region)
            if not (request.unheld and region.leases) and (copy or not request.copied):
                if copy is not None:
                    self.table.commit(records.Kept(copy.number, region.version))
                self._unlink([region])
            return answer
        copies = [copy for copy in copies if copy.uid == region.uid]
        files = self._files(session, [region] if region.files else [])
        self._unlink([region, *copies, *next(files, [])])
        return self._delete_on(files, answer) if region.files else answer

    def _copy_with_contents_of(self, region: RegionEntry) -> RegionEntry | None:
        """The copy of a sleeper that has a region's contents, of the region's owner."""
        copy = self.table.copies.get(str(region.name), {}).get(region.uid)
        life = self.table.life
        return copy if copy is not None and copy.stamp(life) == region.stamp(life) else None

    def _files(
        self, session: Session, lost: Iterable[RegionEntry], kept: Container[str] = ()
    ) -> Iterator[list[RegionEntry]]:
        """The files that go with checkpoints, some at a time: those of the checkpoint's owner that
        this client may write, but not those of the names ``kept``.
        """
        for index in lost:
            place = after = str(index.files)
            while names := self.table.names_after(after, place, PUBLISH_LIMIT):
                now = self.table.names.get(str(index.name))
                if now is not index and now is not None and now.files == place:
                    break  # they are the files of a newer index
                after = names[-1]
                yield [
                    file
                    for file in (self.table.names[name] for name in names if name not in kept)
                    if file.home == place
                    and file.uid == index.uid
                    and allowed(session.identity, file, WRITE)
                ]

    def _delete_on(self, slices: Iterator[list[RegionEntry]], answer: Answer) -> Work:
        """Delete the names of further files, in turns, then answer."""
        yield None
        for files in slices:
            if files:
                self._unlink(files)
            yield None
        yield answer

    def _unlink(self, regions: list[RegionEntry]) -> None:
        """Delete the names of regions, in one step."""
        first, *others = [region.number for region in regions]
        self.table.commit(records.Unlinked(first, others))
        self._deleted(regions)

    def _deleted(self, regions: Iterable[RegionEntry]) -> None:
        """Tell of regions whose names were deleted, and of the memory of others that is freed."""
        for region in regions:
            self.announce("deleted", region)
        self._tell_of_ends()

    def _list(self, session: Session, request: requests.List) -> Answer:
        return telling.page(self.table, session.identity, request), []

    def _stat(self, session: Session, request: requests.Stat) -> Answer:
        call = requests.call_of(request)
        if request.copy:
            region = self._find_copy_of(session, request)
        else:
            region = self._find(call, session, request.name, request.region)
        # The owner may chmod even an unreadable region, and a holder learns whether it has ended.
        if not (owns(session.identity, region) or self.table.is_held(region, session.identity)):
            require(session.identity, region, READ, call)
        return telling.all_about(self.table, region, request.id), []

    def _find_copy_of(self, session: Session, request: requests.Stat) -> RegionEntry:
        """This user's copy of the region of a name, or root's. Others' are not trusted."""
        region = self._copy_of(session, request.name or "")
        if region is None or request.region is not None:
            raise errors.NotFound(
                f"stat: there is no copy of a region of the name {request.name!r}"
            )
        return region

    def _change(self, session: Session, request: requests.Change) -> Answer:
        call = requests.call_of(request)
        region = self._find(call, session, None, request.region)
        mode, metadata = region.mode, region.metadata
        if request.mode is not UNSET:
            require_owner(session.identity, region, call)
            mode = request.mode
        if request.metadata is not UNSET:
            if not region.draft:  # which only its maker finds
                require(session.identity, region, WRITE, call)
            if region.sealed:
                raise errors.Sealed(
                    f"{call}: {region} is sealed, and so is its metadata: publish a new version"
                )
            metadata = request.metadata
        copy = self._copy_with_contents_of(region) if region.linked else None
        if copy is not None:
            self._change_mode(copy, mode)
        self.table.commit(records.Changed(region.number, mode, metadata))
        return replies.Reply(id=request.id), []

    def _status(self, session: Session, request: requests.Status) -> Work:
        who = session.identity
        largest: list[RegionEntry] = []
        numbers = list(self.table.nameless)
        for start in range(0, len(numbers), SLICE):
            if start:
                yield None
            found = map(self.table.nameless.get, numbers[start : start + SLICE])
            seen = [one for one in found if one is not None and self._may_see_nameless(who, one)]
            largest = heapq.nlargest(SLICE, [*largest, *seen], key=lambda region: region.size)
        nameless = telling.nameless(self.table, largest)
        counts = self.numbers(who)
        yield replies.Counters(id=request.id, uid=who.uid, nameless=nameless, **counts), []

    @staticmethod
    def _may_see_nameless(who: Identity, region: RegionEntry) -> bool:
        """Whether a status tells a user of a region without a name: of drafts only the owner."""
        return owns(who, region) or (not region.draft and allowed(who, region, READ))

    def numbers(self, who: Identity | None) -> dict[str, Any]:
        """The counts of the status reply; ``users`` has only users that ``who`` may see, or all."""
        self.recognize()
        users = {
            f"{device}/{uid}": used
            for (device, uid), used in self.table.used_by.items()
            if who is None or who.privileged or uid == who.uid
        }
        return {
            "regions": len(self.table.regions),
            "names": len(self.table.names),
            "sessions": len(self.table.sessions),
            "leases": sum(self.table.leased.values()),
            "asleep": sum(self.table.slept.values()),
            "used": {str(device): self.table.used[device] for device in self.quotas.devices},
            "limits": {str(device): limit for device, limit in self.quotas.devices.items()},
            "uuids": {str(device): uuid for device, uuid in self.quotas.uuids.items()},
            "gpus": {str(device): name for device, name in self.quotas.gpus.items()},
            "users": users,
            "requests": {requests.name_of(kind): count for kind, count in self.counts.items()},
        }

    def _absent(self, session: Session, name: str) -> str:
        """Why a name refers to no region."""
        if session.identity.uid in self.table.copies.get(name, {}):
            return f"the region {name!r} sleeps: broker.wake({name!r}) opens it"
        return f"there is no region of the name {name!r}"

    def _copy_of(self, session: Session, name: str) -> RegionEntry | None:
        """The copy of a sleeper that counts for a user: the user's own, else root's."""
        copies = self.table.copies.get(name, {})
        return copies.get(session.identity.uid, copies.get(0))

    def _find(
        self, call: str, session: Session, name: str | None, number: int | None
    ) -> RegionEntry:
        """A region by its name, or by its number if the session may know of it."""
        if name is not None and number is None:
            region = self.table.names.get(name)
            if region is None:
                _check_name(call, name)
                raise errors.NotFound(f"{call}: {self._absent(session, name)}")
            return region
        if name is not None or number is None:
            raise errors.InvalidRequest(f"{call}: give either a name or a region's number")
        region = self.table.regions.get(number)
        if region is None or not self._may_know_of(session, region):
            raise errors.Gone(f"{call}: region {number} no longer exists: get it by its name")
        return region

    def _may_know_of(self, session: Session, region: RegionEntry) -> bool:
        """Whether a session may know that a region exists; only its holders know of a draft."""
        if region.number in session.regions:
            return True
        who = session.identity
        return not region.draft and (
            owns(who, region)
            or allowed(who, region, READ)
            or allowed(who, region, WRITE)
            or self.table.is_held(region, who)
        )


def _require_bound(session: Session, region: RegionEntry, grace: float) -> None:
    """Raise InvalidRequest unless a session is the exporter of a region with this grace."""
    ours = region.exporter == session.number
    if ours and region.grace == grace:
        return
    if region.grace is None:
        found = "is not bound to an exporter"
    elif ours:
        found = f"is bound to this connection with a grace of {region.grace:g} s"
    else:
        found = f"is bound to another connection, its exporter, with a grace of {region.grace:g} s"
    raise errors.InvalidRequest(
        f"allocate: {region} exists and {found}, and a grace of {grace:g} s was asked for: leave "
        f"grace out to get it as it is, delete it first, or take another name"
    )


def _check_name(call: str, name: str) -> None:
    if (
        len(name.encode()) > protocol.NAME_LIMIT
        or not name.isprintable()
        or name != name.strip()
        or not (name.isascii() or _INVISIBLE.search(name) is None)
    ):
        raise errors.InvalidRequest(
            f"{call}: a name must be visible characters, with spaces only between them, of at "
            f"most {protocol.NAME_LIMIT} bytes in UTF-8, not {name!a}"
        )


#: Printable but invisible characters: fillers, joiners, variation selectors.
#: Source: Default_Ignorable_Code_Point of Unicode; and the Braille blank.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    "\U000e0100-\U000e01ef]"
)


#: Bytes that a grant takes besides its name and metadata, at most.
_GRANT_BYTES = 200
#: Bytes of grants after which a get_many continues in another packet.
_GRANTS_BYTES = 16 * 1024
