"""Descriptors in flight: sent, but not read yet.

The kernel lets a user have as many in flight as a process may have files (unix(7), ETOOMANYREFS). A
descriptor stays in flight until its receiver reads it or is gone, whatever the sender does. So
clients that do not read must not use up the broker's share.
"""

from __future__ import annotations

import itertools
import resource
import time
from collections import defaultdict
from typing import Protocol

#: Descriptors that one connection may always leave unread: two packets full of them.
_CONNECTION_FDS = 506
#: Connections of a user that are checked at a time, and for each of them the seconds until the next
#: check, which takes a fiftieth of that.
_SLICE, _PAUSE = 64, 5e-5


class Receiver(Protocol):
    """A connection."""

    in_flight: int

    @property
    def uid(self) -> int:
        """The user that it belongs to."""

    def unread(self) -> int:
        """Bytes that it has not read."""


class Flight:
    """Limits descriptors in flight: a user's connections may have half of the kernel's limit, and
    one connection a quarter of that.

    A connection that has read everything may always be sent one.
    """

    def __init__(self) -> None:
        self._limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
        self._share = max(_CONNECTION_FDS, self._limit // 4)
        self._of_user: dict[int, int] = defaultdict(int)
        #: The receivers of each user, in order of their last check.
        self._receivers: dict[int, dict[Receiver, None]] = defaultdict(dict)
        self._next_look: dict[int, float] = {}

    def admits(self, receiver: Receiver, count: int) -> bool:
        """Whether ``count`` more may be sent to a connection now."""
        if self._fits(receiver, count):
            return True
        if receiver.in_flight and not receiver.unread():
            self.forget(receiver)
        self._look_at(receiver.uid)
        return self._fits(receiver, count)

    def _look_at(self, uid: int) -> None:
        """Check some of a user's connections, few enough not to delay others, and forget those
        that have read everything.
        """
        now = time.monotonic()
        if now < self._next_look.get(uid, 0.0):
            return
        receivers = self._receivers.get(uid, {})
        some = list(itertools.islice(receivers, _SLICE))
        self._next_look[uid] = now + len(some) * _PAUSE
        for receiver in some:
            if receiver.unread():
                receivers[receiver] = receivers.pop(receiver)
            else:
                self.forget(receiver)

    def _fits(self, receiver: Receiver, count: int) -> bool:
        used = self._of_user[receiver.uid]
        if receiver.in_flight + count <= self._share and used + count <= self._limit:
            return True
        return receiver.in_flight == 0 and (count == 1 or used == 0)

    def note(self, receiver: Receiver, count: int) -> None:
        """Count ``count`` sent descriptors."""
        if not receiver.in_flight:
            self._receivers[receiver.uid][receiver] = None
        receiver.in_flight += count
        self._of_user[receiver.uid] += count

    def forget(self, receiver: Receiver) -> None:
        """Stop counting for a connection that has read everything or is gone."""
        uid = receiver.uid
        self._receivers[uid].pop(receiver, None)
        self._of_user[uid] -= receiver.in_flight
        receiver.in_flight = 0
        if not self._receivers[uid]:
            del self._receivers[uid], self._of_user[uid]
            self._next_look.pop(uid, None)
