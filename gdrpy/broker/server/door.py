"""Accepting connections, and the limits of connections for each user and process."""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from gdrpy import errors
from gdrpy._core import _packet
from gdrpy.broker import replies
from gdrpy.broker.protocol import PACKET_LIMIT
from gdrpy.broker.server.connection import User
from gdrpy.broker.server.quotas import PROCESS_CONNECTIONS, USED_UP, DescriptorReserve
from gdrpy.broker.server.rights import Identity, UserMap, identity_of
from gdrpy.broker.server.table import count
from gdrpy.broker.server.throttle import Throttle
from gdrpy.broker.server.turns import DOOR, Turns

log = logging.getLogger(__name__)
log.addFilter(Throttle())

#: Seconds for which a turn accepts new connections.
_SLICE = 0.0002
#: Refused connections that are kept until their hello.
_REFUSED = 8
#: Connections of a user that wait to be checked a second time, because others may have ended.
_LATE = 64
_LIMIT = "connections to the broker, which is the limit: close some"


class Door:
    """Accepts connections from a listening socket, in turns, and passes those within the limits to
    ``let_in``.
    """

    def __init__(
        self,
        listener: socket.socket,
        poll: select.epoll,
        turns: Turns[Any],
        descriptors: DescriptorReserve,
        users: dict[int, User],
        user_map: UserMap,
        let_in: Callable[[socket.socket, Identity], object],
    ) -> None:
        self._poll = poll
        self._turns = turns
        self._descriptors = descriptors
        self._users = users
        self._user_map = user_map
        self._let_in = let_in
        #: By user and number.
        self._of_process: dict[tuple[int, int], int] = {}
        self._accepting = False
        #: Connections that are checked again before they are refused.
        self.late: deque[tuple[socket.socket, Identity]] = deque()
        #: How many of each user's wait for that, here or for their turn.
        self._late_of: dict[int, int] = {}
        self._refused: dict[int, socket.socket] = {}
        #: A descriptor reserved for refusing connections when all others are used up.
        self._spare: int | None = _spare()
        self._listener = listener
        self._listen()

    def _listen(self) -> None:
        self._listener.setblocking(False)
        self._poll.register(self._listener, select.EPOLLIN)
        #: Polls for another connection: a failed accept takes longer.
        self._waits = select.poll()
        self._waits.register(self._listener, select.POLLIN)

    def listen_on(self, listener: socket.socket) -> None:
        """Accept connections from another socket."""
        self._listener.close()
        self._listener = listener
        self._listen()

    def happened(self, number: int) -> bool:
        """Handle an event of a descriptor; returns whether the descriptor is the door's."""
        if number == self._listener.fileno():
            if not self._accepting:
                self._accepting = True
                self._turns.add(DOOR, self._accept)
            return True
        if number in self._refused:
            self._leave(number)
            return True
        return False

    def admit_late(self, number: int) -> None:
        """Check ``number`` late connections again, in their users' turns."""
        for _ in range(number):
            sock, who = self.late.popleft()
            self._turns.add(who.uid, functools.partial(self._admit, sock, who, True))

    def left(self, who: Identity) -> None:
        """Stop counting a connection, which is closed."""
        count(self._of_process, _process(who), -1)

    def _accept(self) -> None:
        self._accepting = False  # epoll reports further ones again
        end = time.monotonic() + _SLICE
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self._turn_away()
                return  # with another errno the client is gone already
            try:
                sock.setblocking(False)
                if _is_gone(sock):
                    sock.close()
                else:
                    self._admit(sock, identity_of(sock, self._user_map))
            except OSError as error:
                self._refuse(sock, _reason(error))
            if time.monotonic() > end or not self._waits.poll(0):
                return

    def _turn_away(self) -> None:
        """Refuse a connection with the reserved descriptor."""
        while self._refused:
            self._leave(next(iter(self._refused)))
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None
        with contextlib.suppress(OSError):
            sock, _ = self._listener.accept()
            sock.setblocking(False)
            self._refuse(sock, USED_UP)
        with contextlib.suppress(OSError):
            self._spare = _spare()

    def _admit(self, sock: socket.socket, who: Identity, late: bool = False) -> None:
        """Serve a new connection, or refuse it if it exceeds a limit.

        It is refused only after the loop has seen which of its user's connections have ended.
        """
        if late:
            count(self._late_of, who.uid, -1)
        reason = self._too_many(sock, who)
        if not reason:
            try:
                self._let_in(sock, who)
            except OSError as error:
                self._refuse(sock, _reason(error))
            else:
                count(self._of_process, _process(who), 1)
        elif late or reason is USED_UP or self._late_of.get(who.uid, 0) >= _LATE:
            self._refuse(sock, reason)
        else:
            count(self._late_of, who.uid, 1)
            self.late.append((sock, who))

    def _too_many(self, sock: socket.socket, who: Identity) -> str | None:
        """Why a new connection exceeds a limit of its user or process; None if it does not."""
        user = self._users.get(who.uid)
        has = 0 if user is None else len(user.connections)
        process = self._of_process.get(_process(who), 0)
        if not self._descriptors.admits(sock.fileno(), who.uid, has):
            return USED_UP
        if process >= PROCESS_CONNECTIONS:
            return f"process {who.pid} has {process} {_LIMIT}"
        if has >= self._descriptors.of_user:
            return f"user {who.uid} has {has} {_LIMIT}"
        return None

    def _refuse(self, sock: socket.socket, reason: str) -> None:
        """Refuse a connection, and close it after its hello.

        Closing with unread or unsent data would end it before the client reads the reason.
        """
        log.warning("refused a connection: %s", reason)
        refusal = errors.QuotaExceeded(f"hello: {reason}")
        while len(self._refused) >= _REFUSED:
            self._leave(next(iter(self._refused)))
        with contextlib.suppress(OSError):
            _packet.send(sock.fileno(), replies.encode(replies.refusal(refusal)), [])
        self._refused[sock.fileno()] = sock
        try:
            self._poll.register(sock, select.EPOLLIN)
        except OSError:
            self._leave(sock.fileno())

    def _leave(self, number: int) -> None:
        sock = self._refused.pop(number)
        with contextlib.suppress(OSError):
            sock.recv(PACKET_LIMIT)
        sock.close()


def _reason(error: OSError) -> str:
    """Why a connection cannot be served."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return USED_UP
    return f"the broker cannot serve this connection: {error.strerror}"


def _process(who: Identity) -> tuple[int, int]:
    return who.uid, who.process


def _is_gone(sock: socket.socket) -> bool:
    """Whether the client has closed its end already."""
    poll = select.poll()
    poll.register(sock, 0)
    return bool(poll.poll(0))


def _spare() -> int:
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
