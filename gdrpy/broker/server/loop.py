"""The broker's one thread: it reads requests, has the service do them, and sends the replies."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import socket
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from types import FrameType
from typing import Any, TypeVar

import msgspec

from gdrpy import errors
from gdrpy.broker import protocol
from gdrpy.broker.server import requests
from gdrpy.broker.server.connection import EVENTS_LIMIT, NONSENSE_LIMIT, Connection
from gdrpy.broker.server.digests import Digests
from gdrpy.broker.server.flight import Flight
from gdrpy.broker.server.limits import Limits
from gdrpy.broker.server.rights import READ, allowed, identity_of, start_time
from gdrpy.broker.server.service import Service
from gdrpy.broker.server.state import State
from gdrpy.broker.server.table import Region, Session

log = logging.getLogger(__name__)

_T = TypeVar("_T")

#: Connections of one process, and of one user.
PROCESS_CONNECTIONS = 256
USER_CONNECTIONS = 4096
#: Seconds until a keeper that could not be started is tried again.
_RETRY = 1.0
#: Seconds after which clients that may be sent no more descriptors are looked at again.
_LOOK = 0.002
#: And at least so many seconds for each of them: looking at many shall not be all that is done.
_LOOK_EACH = 5e-5

#: What decoding a packet that is no request raises; the latter two for invalid UTF-8 and nesting.
_UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
#: Characters that are told of why a packet is none.
_REASON_LIMIT = 300

_IN, _OUT = select.EPOLLIN, select.EPOLLOUT
_OF_CONNECTIONS = (
    requests.Hello,
    requests.Resume,
    requests.Release,
    requests.Digest,
    requests.Watch,
)
_encode = msgspec.msgpack.Encoder().encode


class Server:
    """Serves one listening socket until :meth:`stop`."""

    def __init__(
        self, listener: socket.socket, state: State, limits: Limits, server: str, strict: bool
    ) -> None:
        self._listener = listener
        self._state = state
        self.service = Service(state, limits, server, strict, self._announce)
        self._calls = self.service.calls()
        self._connections: dict[int, Connection] = {}
        self._of_process: Counter[int] = Counter()
        self._of_user: Counter[int] = Counter()
        self._watchers: set[Connection] = set()
        self._flight = Flight()
        #: Those that may be sent no more descriptors before they or others of their user read.
        self._waiting: set[Connection] = set()
        self._next_look = 0.0
        #: Sessions of closed connections, which end after the turn that closed them: ending one
        #: tells others of it, and may close them, and no request shall lose its session half-way.
        self._ended: list[Session] = []
        #: Sessions of an earlier broker's connections, by a descriptor of their process.
        self._orphans: dict[int, Session] = {}
        self._store_fd: int | None = None
        self._store_is_new = False
        self._buffer = bytearray(protocol.PACKET_LIMIT + 1)
        self._view = memoryview(self._buffer)
        self._epoll = select.epoll()
        # One descriptor kept back, to refuse connections with when there is no other left.
        self._spare: int | None = _spare()
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._stopping = False
        self._questions: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._digests = Digests(self._wake)

    def run(self) -> None:
        """Serve."""
        self._listener.setblocking(False)
        self._epoll.register(self._listener, _IN)
        self._epoll.register(self._woken, _IN)
        self._state.store_replaced = self._watch_store
        self._watch_store()
        for session in list(self.service.table.sessions.values()):
            self._watch_orphan(session)
        self._end_sessions()
        connections = self._connections
        while not self._stopping:
            if self._state.store_lost:
                self._state.mend_store("there was no room for one")
            ready = self._epoll.poll(self._patience())
            store_fd, self._store_is_new = self._store_fd, False
            for number, events in ready:
                connection = connections.get(number)
                try:
                    if connection is None:
                        self._happened(number, store_fd)
                    elif events == _IN and not connection.busy:
                        self._read(connection)
                    else:
                        self._turn(connection, events)
                    if self._ended:
                        self._end_sessions()
                except Exception:  # of whomever it was about: the others go on
                    log.exception("something failed inside the broker")
                    if connection is not None:
                        self._close(connection)
            if self._waiting:
                self._look_at_waiting()

    def _happened(self, number: int, store_fd: int | None) -> None:
        """What is no client's: a connection, a word of another thread, an end of something."""
        if number == self._listener.fileno():
            self._accept()
        elif number == self._woken.fileno():
            self._woken.recv(4096)
            self._give_digests()
            self._answer()
        elif number == store_fd:
            if not self._store_is_new:  # else a request found out first
                self._state.mend_store("it ended")
        elif number in self._orphans:
            self._end_orphan(number)

    def _patience(self) -> float | None:
        """Seconds to wait for something to happen."""
        return _LOOK if self._waiting else _RETRY if self._state.store_lost else None

    def _look_at_waiting(self) -> None:
        """Send to those that have read in the meantime: the kernel does not tell of that."""
        now = time.monotonic()
        if now < self._next_look:
            return
        waiting, self._waiting = self._waiting, set()
        self._next_look = now + _LOOK_EACH * len(waiting)
        for connection in waiting:
            if connection.open and connection.nonsense >= NONSENSE_LIMIT:
                self._close_read(connection)
            elif connection.open:
                self._turn(connection, _OUT)
                self._listen_to(connection)
        self._end_sessions()

    def stop(self, signal_number: int = 0, frame: FrameType | None = None) -> None:
        """End :meth:`run` soon. For signal handlers and other threads."""
        del signal_number, frame
        self._stopping = True
        self._wake()

    @property
    def waker(self) -> int:
        """A descriptor which wakes :meth:`run` when a byte is written to it; it never blocks."""
        return self._waker.fileno()

    def numbers(self) -> dict[str, Any]:
        """What the service counts, and the connections. For the serving thread."""
        return {**self.service.numbers(None), "connections": len(self._connections)}

    def ask(self, question: Callable[[], _T]) -> Future[_T]:
        """The answer to a question about the state, between two requests. For other threads."""
        answer: Future[_T] = Future()
        self._questions.append((question, answer))
        self._wake()
        return answer

    def _answer(self) -> None:
        while self._questions:
            question, answer = self._questions.popleft()
            try:
                answer.set_result(question())
            except Exception as error:
                answer.set_exception(error)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._waker.send(b"w")

    def _watch_store(self) -> None:
        self._store_fd = self._state.store_fd
        self._store_is_new = True
        if self._store_fd is not None:
            self._epoll.register(self._store_fd, _IN)

    def _watch_orphan(self, session: Session) -> None:
        """Keep what a process held under an earlier broker until it resumes or ends."""
        who = session.identity
        try:
            process = os.pidfd_open(who.pid)
        except OSError:
            self._ended.append(session)
            return
        self._orphans[process] = session
        self._epoll.register(process, _IN)
        with contextlib.suppress(OSError):
            if start_time(who.pid) != who.started:  # another process has the number by now
                self._end_orphan(process)

    def _end_orphan(self, process: int) -> None:
        session = self._orphans.pop(process)
        os.close(process)
        self._ended.append(session)

    def _end_sessions(self) -> None:
        while self._ended:
            self.service.end(self._ended.pop())

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._turn_away()
            return  # else the client is gone already
        try:
            sock.setblocking(False)
            connection = Connection(sock, identity_of(sock), self._flight)
            self._admit(connection)
        except OSError as error:
            log.warning("refused a connection: %s", error)
            sock.close()

    def _turn_away(self) -> None:
        """Close a connection at once, by the descriptor that is kept back for that."""
        log.warning("refused a connection: the broker's descriptors are used up")
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None
        with contextlib.suppress(OSError):
            self._listener.accept()[0].close()
        with contextlib.suppress(OSError):
            self._spare = _spare()

    def _admit(self, connection: Connection) -> None:
        """Serve a new connection, or say that it is one too many. Raises OSError."""
        who = connection.identity
        if (
            self._of_process[who.pid] >= PROCESS_CONNECTIONS
            or self._of_user[who.uid] >= USER_CONNECTIONS
        ):
            refusal = errors.QuotaExceeded(
                f"hello: a process may have {PROCESS_CONNECTIONS} connections to the broker, a "
                f"user {USER_CONNECTIONS}"
            )
            with contextlib.suppress(OSError):  # what is left unread would reset the connection
                connection.sock.recv_into(self._buffer)
            with contextlib.suppress(OSError):
                connection.send(_encode({"id": 0, **protocol.error_message(refusal)}), [])
            connection.sock.close()
            return
        self._epoll.register(connection.number, _IN)
        self._of_process[who.pid] += 1
        self._of_user[who.uid] += 1
        self._connections[connection.number] = connection

    def _close(self, connection: Connection) -> None:
        """The client is gone, or is to be: what it held is given back."""
        if not connection.open:
            return
        connection.open = False
        del self._connections[connection.number]
        self._watchers.discard(connection)
        who = connection.identity
        for counter, key in ((self._of_process, who.pid), (self._of_user, who.uid)):
            counter[key] -= 1
            if not counter[key]:
                del counter[key]
        connection.sock.close()
        self._flight.forget(connection)
        if connection.session is not None:
            self._ended.append(connection.session)

    def _turn(self, connection: Connection, events: int) -> None:
        """One readiness of a connection: one request, or what was still to be sent."""
        if events & _OUT:
            try:
                if connection.flush():
                    if connection.lost:
                        connection.lost = False
                        self._send(connection, _encode({"event": "lost"}), [])
                    if not connection.outbox:
                        self._listen_to(connection)
                elif connection.waiting:
                    self._listen_to(connection)
            except OSError:
                self._close(connection)
        elif connection.busy:
            self._close(connection)
        else:
            self._read(connection)

    def _listen_to(self, connection: Connection) -> None:
        """Take requests again where nothing is left to be sent or done."""
        if connection.open:
            if connection.waiting:
                self._waiting.add(connection)
                mask = 0
            else:
                mask = _OUT if connection.outbox else 0 if connection.busy else _IN
            self._epoll.modify(connection.number, mask)

    def _read(self, connection: Connection) -> None:
        try:
            size = connection.sock.recv_into(self._buffer)
        except BlockingIOError:
            return
        except OSError:
            size = 0
        if not size:
            self._close(connection)
            return
        try:
            if size > protocol.PACKET_LIMIT:
                raise msgspec.DecodeError(f"a packet has {protocol.PACKET_LIMIT} bytes at most")
            request: Any = requests.decoder.decode(self._view[:size])
        except _UNDECODABLE as error:
            self._refuse(connection, size, error)
            return
        kind = type(request)
        session = connection.session
        self.service.counts[kind] += 1
        try:
            if session is None or kind in _OF_CONNECTIONS:
                self._serve_connection(connection, session, request)
            else:
                for reply, fds in self._calls[kind](session, request):
                    self._reply(connection, request.id, reply, fds)
        except errors.Error as error:
            self._fail(connection, request, error)
        except OSError as error:
            out = errors.OutOfMemory(f"the broker has no room left: {error.strerror}")
            self._fail(connection, request, out)
        except Exception:
            log.exception("a request failed inside the broker: %r", request)
            self._close(connection)

    def _serve_connection(
        self, connection: Connection, session: Session | None, request: Any
    ) -> None:
        """Requests that are about the connection, or about what takes longer than a turn of it."""
        match request, session:
            case requests.Hello(), None:
                connection.session, reply = self.service.begin(connection.identity, request)
                self._reply(connection, request.id, reply, [])
            case requests.Hello(), _:
                raise errors.InvalidRequest("hello: this connection has said hello already")
            case _, None:
                raise errors.ProtocolError("the first request of a connection is hello")
            case requests.Resume(), Session():
                self._resume(connection, session, request)
            case requests.Release(), Session():
                self.service.release(session, request)
            case requests.Digest(), Session():
                self._digest(connection, session, request)
            case requests.Watch(), Session():
                connection.watching = request.prefix
                self._watchers.add(connection)
                self._reply(connection, request.id, {}, [])

    def _resume(self, connection: Connection, session: Session, request: requests.Resume) -> None:
        """Take over what a connection of the same process had, which ends if it is still there."""
        ends = request.session in self.service.table.sessions and not request.more
        replies = self.service.resume(session, request)
        if ends:
            for process, orphan in list(self._orphans.items()):
                if orphan.number == request.session:
                    self._end_orphan(process)
            for other in list(self._connections.values()):
                if other.session is not None and other.session.number == request.session:
                    self._close(other)
        for reply, fds in replies:
            self._reply(connection, request.id, reply, fds)

    def _refuse(self, connection: Connection, size: int, error: Exception) -> None:
        """Answer a packet that is no request; a client that goes on sending such is closed."""
        connection.nonsense += 1
        number = 0
        reason = str(error)[:_REASON_LIMIT]  # it may repeat what the packet says
        refusal: errors.Error = errors.InvalidRequest(f"request: {reason}")
        try:
            number = _Numbered.decode(self._view[:size]).id
        except _UNDECODABLE:
            refusal = errors.ProtocolError(f"request: a packet of {size} bytes is none: {reason}")
        self._reply(connection, number, protocol.error_message(refusal), [])
        if connection.nonsense >= NONSENSE_LIMIT:
            self._close_read(connection)

    def _close_read(self, connection: Connection) -> None:
        """Close a connection that sends nonsense, once it has read: until then what it was sent is
        on its way, and counts.
        """
        if connection.in_flight and connection.unread():
            connection.busy = True
            self._waiting.add(connection)
            self._listen_to(connection)
        else:
            log.warning("closed a connection of process %d: nonsense", connection.identity.pid)
            self._close(connection)

    def _digest(self, connection: Connection, session: Session, request: requests.Digest) -> None:
        region = self.service.digestible(session, request)
        if region.digest is not None:
            self._reply(connection, request.id, {"sha256": region.digest}, [])
            return
        self._digests.submit(connection, request.id, region)
        connection.busy = True
        self._listen_to(connection)

    def _give_digests(self) -> None:
        for job, made in self._digests.done():
            if isinstance(made, str):
                self.service.digested(job.region, made)
                reply = {"sha256": made}
            else:
                reply = protocol.error_message(made)
            job.connection.busy = False
            self._listen_to(job.connection)
            self._reply(job.connection, job.number, reply, [])

    def _reply(
        self, connection: Connection, number: int, reply: dict[str, Any], fds: list[int]
    ) -> None:
        reply["id"] = number
        if fds:
            reply["fds"] = len(fds)
        self._send(connection, _encode(reply), fds)

    def _fail(self, connection: Connection, request: Any, error: errors.Error) -> None:
        number = getattr(request, "id", 0)  # a release has none
        self._reply(connection, number, protocol.error_message(error), [])

    def _send(self, connection: Connection, packet: bytes, fds: list[int]) -> None:
        """Send now or when the client reads again; until then none of its requests is taken."""
        if not connection.open:
            return
        try:
            if not connection.send(packet, fds):
                self._listen_to(connection)
        except OSError:
            self._close(connection)

    def _announce(self, event: str, region: Region | None) -> None:
        """Tell watchers of a change that they may know of."""
        if not self._watchers:
            return
        message: dict[str, Any] = {"event": event}
        if region is not None:
            message |= {"name": region.name, "region": region.number, "version": region.version}
        packet = _encode(message)
        for connection in list(self._watchers):
            if region is not None and not (
                region.name is not None
                and region.name.startswith(connection.watching or "")
                and allowed(connection.identity, region, READ)
            ):
                continue
            if len(connection.outbox) >= EVENTS_LIMIT:
                connection.lost = True
            else:
                self._send(connection, packet, [])


def _spare() -> int:
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


class _Number(msgspec.Struct):
    """The number of a request that is none otherwise."""

    id: int


_Numbered = msgspec.msgpack.Decoder(_Number)
