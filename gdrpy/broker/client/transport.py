"""Transports carry a connection's packets, and either block or suspend their caller.

The code above them is written once, as coroutines. The coroutines of a :class:`BlockingTransport`
never suspend, so ``run`` runs them to their end without an event loop.

A signal handler may raise between any two bytecodes. So every descriptor is an object from birth,
and ``alone`` acquires and releases a lock in one call.
"""

from __future__ import annotations

import errno
import functools
import os
import select
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from threading import Lock
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import ref

from gdrpy._core._mapping import Descriptor, alone, exchange, receive, run, try_alone
from gdrpy.broker.place import barred, is_no_socket
from gdrpy.broker.protocol import FDS_LIMIT, PACKET_LIMIT
from gdrpy.broker.unix import TRUNCATED, packet_socket, set_timeout
from gdrpy.errors import PermissionDenied, ProtocolError
from gdrpy.memory.descriptors import fork_lock

S = TypeVar("S")
T = TypeVar("T")
P = ParamSpec("P")

#: None stands for a descriptor that did not arrive.
Descriptors = list[Descriptor | None]
#: A packet and its descriptors, None if they did not all arrive.
Packet = tuple[bytes, Descriptors | None]


#: Sessions that may hold leases. With one more, the oldest ends, and the leases that only it has.
SESSIONS_LIMIT = 16

_DONT_WAIT = int(socket.MSG_DONTWAIT)  # flags of the enum are slow
_UNREAD = (errno.ECONNRESET, errno.EPIPE)


class Lost(Exception):
    """The peer is gone, or never answered."""


class Unread(Lost):
    """The peer is gone and has not read the last packet."""


class Silent(Exception):
    """The peer did not answer in time."""


def receive_packet(sock: socket.socket) -> Packet:
    """One packet. Raises Lost if the peer is gone, Silent after the timeout, ProtocolError."""
    try:
        packet = receive(sock.fileno(), PACKET_LIMIT, FDS_LIMIT)
    except OSError as error:
        raise failure(error) from error
    return _checked(*packet)


def _checked(data: bytes, fds: Descriptors, flags: int) -> Packet:
    """A packet. Raises Lost for the empty one, which means that the peer is gone, ProtocolError."""
    if flags & TRUNCATED:
        fds.clear()
        if flags & socket.MSG_TRUNC:
            raise ProtocolError(f"a packet has more than {PACKET_LIMIT} bytes")
        return data, None
    if not data and not fds:
        raise Lost("it closed the connection")
    return data, fds


def failure(error: OSError) -> Lost | Silent:
    """The exception for a socket's error. ECONNRESET: the peer closed with unread packets."""
    if error.errno == errno.EAGAIN:
        return Silent()
    return (Unread if error.errno in _UNREAD else Lost)(error.strerror)


def refused(error: OSError, path: str) -> Exception:
    """The exception for a socket that cannot be connected."""
    if error.errno in (errno.EACCES, errno.EPERM):
        return PermissionDenied(
            error.errno,
            f"connecting to {path}: {error.strerror}; {barred(path)} does not admit this user: "
            f"start a broker of your own by 'gdrpy serve', or have one started there with --group "
            f"or --mode",
        )
    if error.errno == errno.ECONNREFUSED and is_no_socket(path):
        return Lost("it is not a socket")
    return failure(error)


class Transport(ABC):
    """A packet socket, a way to wait for it, and earlier sockets that are still open.

    Raises Lost if the peer is gone, Silent after ``timeout`` seconds (None is no limit),
    ProtocolError for a packet that is too long, PermissionDenied.
    """

    def __init__(self, timeout: float | None) -> None:
        self.timeout = timeout
        self.connected = False
        self._sock: socket.socket | None = None
        self._left: list[socket.socket] = []

    @abstractmethod
    async def connect(self, path: str) -> None:
        """Connect; the transport is not connected before."""

    @abstractmethod
    async def exchange(self, packet: bytes) -> Packet:
        """Send a packet and receive one."""

    @abstractmethod
    async def receive(self) -> Packet:
        """Receive another packet."""

    @abstractmethod
    async def wait(self, deadline: float | None) -> bool:
        """Wait until a packet has come; False if ``time.monotonic()`` reaches the deadline."""

    @abstractmethod
    async def sleep(self, seconds: float) -> None:
        """Wait for some seconds."""

    @abstractmethod
    def send_now(self, packet: bytes, again: Callable[[], object]) -> bool:
        """Send without waiting; returns whether the packet was sent.

        If the socket has no room, an event loop calls ``again`` later.
        """

    def send_patiently(self, packet: bytes, again: Callable[[], object]) -> bool:
        """As :meth:`send_now`. A blocking transport waits for room instead, or raises."""
        return self.send_now(packet, again)

    @abstractmethod
    async def alone(self, do: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Await ``do(*args)`` while no other caller has the turn."""

    @abstractmethod
    def try_alone(self, do: Callable[[], bool]) -> bool:
        """The result of ``do``; False at once if another caller has the turn."""

    def fileno(self) -> int:
        """The socket's descriptor, -1 if not connected."""
        return -1 if self._sock is None else self._sock.fileno()

    def begin(self) -> socket.socket:
        """A new socket to connect. Forked children close it, so that the broker sees the end of
        this process.
        """
        return alone(fork_lock, self._begin)

    def _begin(self) -> socket.socket:
        _begun.add(ref(self, _begun.discard))
        self._sock = packet_socket()
        return self._sock

    def hang_up(self) -> None:
        """Disconnect; sockets that :meth:`leave` left stay open."""
        self.connected = False
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def leave(self) -> None:
        """Disconnect, which the peer notices only after :meth:`forget`, or many more of these."""
        self.connected = False
        if self._sock is not None:
            self._left.append(self._sock)
            self._sock = None
            while len(self._left) > SESSIONS_LIMIT:
                self._left.pop(0).close()

    def send_last(self, packet: bytes) -> None:
        """Send by all sockets, without waiting, before they are closed."""
        for sock in (self._sock, *self._left):
            if sock is not None:
                with suppress(OSError):
                    sock.send(packet, _DONT_WAIT)

    def forget(self) -> None:
        """Close the sockets that were left."""
        while self._left:
            self._left[-1].close()
            self._left.pop()

    def abandon(self) -> None:
        """Only close all sockets: after a fork they belong to the parent process."""
        self.hang_up()
        self.forget()

    def close(self) -> None:
        """Disconnect, and close all sockets."""
        self.abandon()


class BlockingTransport(Transport):
    """A transport whose coroutines block instead of suspending."""

    def __init__(self, timeout: float | None) -> None:
        super().__init__(timeout)
        self.lock = Lock()

    async def connect(self, path: str) -> None:
        sock = self.begin()
        try:
            sock.settimeout(None)
            set_timeout(sock, self.timeout)
            sock.connect(path)
        except OSError as error:
            self.hang_up()
            raise refused(error, path) from error
        self.connected = True

    async def alone(self, do: Callable[..., Awaitable[T]], *args: Any) -> T:
        made: T = alone(self.lock, run, do, *args)
        return made

    def try_alone(self, do: Callable[[], bool]) -> bool:
        return try_alone(self.lock, do)

    def exchange_now(self, packet: bytes) -> Packet:
        """As :meth:`exchange`, for callers that are not coroutines."""
        assert self._sock is not None
        try:
            data, fds, flags = exchange(self._sock.fileno(), packet, PACKET_LIMIT, FDS_LIMIT)
        except OSError as error:
            raise failure(error) from error
        return _checked(data, fds, flags)

    async def exchange(self, packet: bytes) -> Packet:
        return self.exchange_now(packet)

    async def receive(self) -> Packet:
        assert self._sock is not None
        return receive_packet(self._sock)

    async def wait(self, deadline: float | None) -> bool:
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            # The limit is a C int of milliseconds, so longer waits are made of several.
            if poll.poll(None if left is None else min(left * 1000, 1 << 30)):
                return True
            if not left:
                return False

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def send_now(self, packet: bytes, again: Callable[[], object]) -> bool:  # noqa: ARG002
        if self._sock is None:
            return False
        try:
            self._sock.send(packet, _DONT_WAIT)
        except OSError:
            return False
        return True

    def send_patiently(self, packet: bytes, again: Callable[[], object]) -> bool:  # noqa: ARG002
        if self._sock is None:
            return False
        try:
            self._sock.send(packet)
        except OSError as error:
            raise failure(error) from error
        return True


_begun: set[ref[Transport]] = set()


def _abandon_all() -> None:
    for known in list(_begun):
        transport = known()
        if transport is not None:
            transport.abandon()


os.register_at_fork(after_in_child=_abandon_all)


def blocking(
    call: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, P], T]:
    """A method that runs a coroutine function to its end."""

    @functools.wraps(call)
    def method(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run(call, self, *args, **kwargs)

    return method
