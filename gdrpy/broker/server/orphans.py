"""Sessions without a connection, whose processes may still run."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import time
from collections.abc import Callable

from gdrpy.broker.server.rights import start_time
from gdrpy.broker.server.table import Session

log = logging.getLogger(__name__)


class Orphans:
    """Sessions that are passed to ``end`` when their processes end or resume them.

    Sessions that are not resumed within ``resume_within`` seconds are ended too.
    """

    def __init__(
        self, poll: select.epoll, end: Callable[[Session], object], resume_within: float
    ) -> None:
        self._poll = poll
        self._end = end
        self._resume_by = time.monotonic() + resume_within
        #: By their process's descriptor, and the descriptors by the session's number.
        self.sessions: dict[int, Session] = {}
        self._process_of: dict[int, int] = {}

    def keep(self, session: Session) -> None:
        """Keep a process's session until the process resumes it or ends."""
        who = session.identity
        if not (session.regions or session.asleep):  # nothing to keep
            self._end(session)
            return
        try:
            process = os.pidfd_open(who.pid)
        except OSError:
            self._end(session)
            return
        self.sessions[process] = session
        self._process_of[session.number] = process
        self._poll.register(process, select.EPOLLIN)
        with contextlib.suppress(OSError):
            # It has ended by now, or another process has the pid.
            if _is_over(process) or start_time(who.pid) != who.started:
                self.happened(process)

    def happened(self, process: int) -> bool:
        """Handle an event of a descriptor; returns whether it was a process's, which has ended."""
        session = self.sessions.pop(process, None)
        if session is None:
            return False
        del self._process_of[session.number]
        os.close(process)
        self._end(session)
        return True

    def resumed(self, number: int) -> None:
        """End the kept session ``number``, if there is one: its process resumed it."""
        process = self._process_of.get(number)
        if process is not None:
            self.happened(process)

    def patience(self) -> float:
        """Seconds until sessions are late, 0 or less if they are."""
        return self._resume_by - time.monotonic()

    def give_up(self) -> None:
        """End all. Their clients live, but may have released regions while no broker ran."""
        log.info(
            "ended %d sessions with the earlier broker: their clients did not resume them in time",
            len(self.sessions),
        )
        for process in list(self.sessions):
            self.happened(process)


def _is_over(process: int) -> bool:
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(0))
