"""The processes that hold leases, and their sessions without a connection."""

from __future__ import annotations

import heapq
import logging
import math
import os
import select
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

from gdrpy.broker.server.peers import is_over, peer_process, process_number, start_time
from gdrpy.broker.server.quotas import PROCESS_CONNECTIONS, DescriptorReserve
from gdrpy.broker.server.rights import Identity
from gdrpy.broker.server.table import Session
from gdrpy.broker.server.throttle import Throttle
from gdrpy.errors import OutOfMemory

log = logging.getLogger(__name__)
log.addFilter(Throttle())


@dataclass(eq=False)
class _Process:
    fd: int
    who: Identity
    #: The numbers of its sessions that have had leases.
    sessions: set[int] = field(default_factory=set)


class Processes:
    """Descriptors of the processes whose sessions have leases; a store keeps them for the next
    broker, since no number finds a process of another namespace.

    A process takes one of the broker's descriptors. Without one, its leases end with its
    connection.
    """

    def __init__(self, hold: Callable[[str, int], object], drop: Callable[[str], object]) -> None:
        """``hold`` and ``drop`` are those of the store."""
        self._hold, self._drop = hold, drop
        self._descriptors = DescriptorReserve()
        self._by_key: dict[str, _Process] = {}
        self._of_session: dict[int, _Process] = {}
        self._of_user: Counter[int] = Counter()

    def hold(self, session: Session) -> None:
        """Know the process of a session, which gets a lease, until the session has ended."""
        who = session.identity
        if session.number in self._of_session or session.sock is None or not who.process:
            return
        process = self._by_key.get(_key(who)) or self._opened(who, session.sock)
        if process is not None:
            self._count(session, process)

    def _count(self, session: Session, process: _Process) -> None:
        process.sessions.add(session.number)
        self._of_session[session.number] = process

    def _opened(self, who: Identity, sock: socket.socket) -> _Process | None:
        with suppress(OSError), ExitStack() as undo:
            fd = peer_process(sock)
            undo.callback(os.close, fd)
            has = self._of_user[who.uid]
            room = has < self._descriptors.of_user and self._descriptors.admits(fd, who.uid, has)
            if room and process_number(fd, who.pid) == who.process:
                made = self._known(who, fd)
                undo.pop_all()
                self._store(who, fd)
                return made
        return None

    def _store(self, who: Identity, fd: int) -> None:
        try:
            self._hold(_key(who), fd)
        except (OSError, OutOfMemory) as error:
            log.warning("leases of process %d may end with the broker: %s", who.pid, error)

    def _known(self, who: Identity, fd: int) -> _Process:
        made = self._by_key[_key(who)] = _Process(fd, who)
        self._of_user[who.uid] += 1
        return made

    def recover(self, sessions: Iterable[Session], found: dict[str, int]) -> None:
        """Take the descriptors of an earlier broker's sessions out of those of the store."""
        for session in sessions:
            who = session.identity
            if _key(who) not in self._by_key:
                if _key(who) in found:
                    self._known(who, found.pop(_key(who)))
                else:
                    self._know_by_number(who)
            if _key(who) in self._by_key:
                self._count(session, self._by_key[_key(who)])

    def _know_by_number(self, who: Identity) -> None:
        """Know a process of this namespace whose descriptor the store did not have.

        One that a broker noted by its start, as earlier ones did, gets its number of today.
        """
        with suppress(OSError), ExitStack() as undo:
            fd = os.pidfd_open(who.pid)
            undo.callback(os.close, fd)
            number = process_number(fd, who.pid)
            if who.process and who.process in (number, start_time(who.pid)):
                who.process = number
                if _key(who) not in self._by_key:
                    self._known(who, fd)
                    undo.pop_all()
                    self._store(who, fd)

    def drop(self, session: int) -> None:
        """Forget the process of a session that has ended, if that was its last one."""
        process = self._of_session.pop(session, None)
        if process is None:
            return
        process.sessions.remove(session)
        if not process.sessions:
            del self._by_key[_key(process.who)]
            self._of_user[process.who.uid] -= 1
            os.close(process.fd)
            self._drop(_key(process.who))

    def descriptor(self, session: Session) -> int | None:
        """The descriptor of a session's process, which stays this object's."""
        process = self._of_session.get(session.number)
        return None if process is None else process.fd

    def held(self) -> Iterator[tuple[str, int]]:
        """All descriptors, and their keys in the store."""
        for key, process in self._by_key.items():
            yield key, process.fd

    def close(self) -> None:
        """Close all descriptors."""
        for _, fd in self.held():
            os.close(fd)
        self._by_key.clear()
        self._of_session.clear()


def _key(who: Identity) -> str:
    return f"p{who.process:x}"


class Orphans:
    """Sessions that are passed to ``end`` when their processes end or resume them, or in time."""

    def __init__(
        self, poll: select.epoll, processes: Processes, end: Callable[[Session], object]
    ) -> None:
        self._poll = poll
        self._processes = processes
        self._end = end
        #: By the descriptors of their processes; and these by their numbers.
        self._of: dict[int, dict[int, Session]] = {}
        self._fds: dict[int, int] = {}
        #: When they end at the latest, with their numbers, as a heap.
        self._due: list[tuple[float, int]] = []

    def __bool__(self) -> bool:
        return bool(self._of)

    def keep(self, session: Session, seconds: float) -> None:
        """Keep a session until its process resumes it or ends, up to so many seconds."""
        worth = seconds and (session.regions or session.asleep)
        fd = self._processes.descriptor(session) if worth else None
        if fd is None or is_over(fd) or not self._watches(fd):
            self._end(session)
            return
        if len(self._of[fd]) >= PROCESS_CONNECTIONS:
            self.resumed(next(iter(self._of[fd])))
        self._of[fd][session.number] = session
        self._fds[session.number] = fd
        if seconds < math.inf:
            heapq.heappush(self._due, (time.monotonic() + seconds, session.number))

    def keeps(self, session: Session) -> bool:
        """Whether a session is kept."""
        return session.number in self._fds

    def _watches(self, fd: int) -> bool:
        if fd not in self._of:
            try:
                self._poll.register(fd, select.EPOLLIN)
            except OSError:
                return False
            self._of[fd] = {}
        return True

    def happened(self, fd: int) -> bool:
        """Handle an event of a descriptor; returns whether it was a process's, which has ended."""
        if fd not in self._of:
            return False
        # An event of the same poll may be of an earlier descriptor with this number.
        for number in list(self._of[fd]) if is_over(fd) else ():
            self.resumed(number)
        return True

    def resumed(self, number: int) -> None:
        """End the kept session ``number``, if there is one: its process resumed it."""
        fd = self._fds.pop(number, None)
        if fd is not None:
            sessions = self._of[fd]
            session = sessions.pop(number)
            if not sessions:
                del self._of[fd]
                # The store's duplicate would keep it registered after it was closed.
                self._poll.unregister(fd)
            self._end(session)

    def patience(self) -> float:
        """Seconds until a session is late, 0 or less if one is."""
        while self._due and self._due[0][1] not in self._fds:
            heapq.heappop(self._due)
        return self._due[0][0] - time.monotonic() if self._due else math.inf

    def give_up(self) -> None:
        """End those that are late. Their clients may live, but have given up their regions while
        no broker ran, or by closing their connection.
        """
        ended = 0
        while self.patience() <= 0:
            self.resumed(self._due[0][1])
            ended += 1
        log.info("ended %d sessions: their clients neither resumed them nor ended in time", ended)
