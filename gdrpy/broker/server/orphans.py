"""Sessions without a connection, whose processes may still run."""

from __future__ import annotations

import logging
import os
import select
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

from gdrpy.broker.server.quotas import DescriptorReserve
from gdrpy.broker.server.rights import Identity, start_time
from gdrpy.broker.server.table import Session

log = logging.getLogger(__name__)


@dataclass
class _Process:
    """A process, by its descriptor, and its sessions by number."""

    fd: int
    who: Identity
    sessions: dict[int, Session] = field(default_factory=dict)


class Orphans:
    """Sessions that are passed to ``end`` when their processes end or resume them.

    Sessions that are not resumed within ``resume_within`` seconds are ended too. A process takes
    one of the broker's descriptors; without one its sessions are ended at once.
    """

    def __init__(
        self,
        poll: select.epoll,
        end: Callable[[Session], object],
        resume_within: float,
        descriptors: DescriptorReserve,
    ) -> None:
        self._poll = poll
        self._end = end
        self._resume_by = time.monotonic() + resume_within
        self._descriptors = descriptors
        #: By descriptor, by pid and start, and by the numbers of their sessions.
        self._by_fd: dict[int, _Process] = {}
        self._by_key: dict[tuple[int, int], _Process] = {}
        self._of_session: dict[int, _Process] = {}
        self._of_user: Counter[int] = Counter()

    def __bool__(self) -> bool:
        return bool(self._by_fd)

    def keep(self, session: Session) -> None:
        """Keep a process's session until the process resumes it or ends."""
        worth = session.regions or session.asleep
        process = self._watched(session.identity) if worth else None
        if process is None:
            self._end(session)
            return
        process.sessions[session.number] = session
        self._of_session[session.number] = process
        if _is_over(process.fd):
            self.happened(process.fd)

    def _watched(self, who: Identity) -> _Process | None:
        """A process that runs or dies; None if it is gone, or if there is no descriptor for it."""
        key = who.pid, who.started
        if key in self._by_key:
            return self._by_key[key]
        with suppress(OSError), ExitStack() as undo:
            fd = os.pidfd_open(who.pid)
            undo.callback(os.close, fd)
            ours = start_time(who.pid) == who.started  # else another process has the pid now
            if ours and self._descriptors.admits(fd, who.uid, self._of_user[who.uid]):
                self._poll.register(fd, select.EPOLLIN)
                undo.pop_all()
                made = self._by_key[key] = self._by_fd[fd] = _Process(fd, who)
                self._of_user[who.uid] += 1
                return made
        return None

    def happened(self, fd: int) -> bool:
        """Handle an event of a descriptor; returns whether it was a process's, which has ended."""
        process = self._by_fd.get(fd)
        if process is None:
            return False
        self._forget(process)
        for number, session in process.sessions.items():
            del self._of_session[number]
            self._end(session)
        return True

    def resumed(self, number: int) -> None:
        """End the kept session ``number``, if there is one: its process resumed it."""
        process = self._of_session.pop(number, None)
        if process is not None:
            self._end(process.sessions.pop(number))
            if not process.sessions:
                self._forget(process)

    def _forget(self, process: _Process) -> None:
        who = process.who
        del self._by_fd[process.fd], self._by_key[who.pid, who.started]
        self._of_user[who.uid] -= 1
        os.close(process.fd)

    def patience(self) -> float:
        """Seconds until sessions are late, 0 or less if they are."""
        return self._resume_by - time.monotonic()

    def give_up(self) -> None:
        """End all. Their clients live, but may have released regions while no broker ran."""
        log.info(
            "ended %d sessions with the earlier broker: their clients did not resume them in time",
            len(self._of_session),
        )
        for fd in list(self._by_fd):
            self.happened(fd)


def _is_over(process: int) -> bool:
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(0))
