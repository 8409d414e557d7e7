"""Sessions of an earlier broker's connections, whose processes may live."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable

from gdrpy.broker.server.rights import start_time
from gdrpy.broker.server.table import Session


class Orphans:
    """Sessions that are given to ``end`` when their processes end, or resume them."""

    def __init__(self, poll: select.epoll, end: Callable[[Session], object]) -> None:
        self._poll = poll
        self._end = end
        #: By a descriptor of their process, and these descriptors by the session's number.
        self._sessions: dict[int, Session] = {}
        self._process_of: dict[int, int] = {}

    def keep(self, session: Session) -> None:
        """Keep what a process held under an earlier broker until it resumes or ends."""
        who = session.identity
        if not session.regions:  # nothing to keep
            self._end(session)
            return
        try:
            process = os.pidfd_open(who.pid)
        except OSError:
            self._end(session)
            return
        self._sessions[process] = session
        self._process_of[session.number] = process
        self._poll.register(process, select.EPOLLIN)
        with contextlib.suppress(OSError):
            if start_time(who.pid) != who.started:  # another process has the number by now
                self.happened(process)

    def happened(self, process: int) -> bool:
        """Whether a descriptor that something happened to was of a process, which has ended."""
        session = self._sessions.pop(process, None)
        if session is None:
            return False
        del self._process_of[session.number]
        os.close(process)
        self._end(session)
        return True

    def resumed(self, number: int) -> None:
        """The session of this number, if it is one of these, was resumed."""
        process = self._process_of.get(number)
        if process is not None:
            self.happened(process)
