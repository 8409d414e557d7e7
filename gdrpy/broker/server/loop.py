"""The broker's serving thread: it reads requests, passes them to the service, sends replies."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import math
import select
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar, cast

import msgspec

from gdrpy import errors
from gdrpy.broker import replies, requests
from gdrpy.broker.protocol import PACKET_LIMIT, UNDECODABLE
from gdrpy.broker.server import malformed, records
from gdrpy.broker.server.connection import NONSENSE_LIMIT, Flight, ServerConnection, User
from gdrpy.broker.server.digests import Digests, Job
from gdrpy.broker.server.door import Door
from gdrpy.broker.server.orphans import Orphans
from gdrpy.broker.server.peers import is_ending
from gdrpy.broker.server.rights import Identity
from gdrpy.broker.server.service import SLICE, Service, Work
from gdrpy.broker.server.table import Session
from gdrpy.broker.server.throttle import Throttle
from gdrpy.broker.server.turns import JOURNAL, Turns
from gdrpy.broker.server.watchers import LOST, Watchers
from gdrpy.memory.descriptors import duplicate

log = logging.getLogger(__name__)
log.addFilter(Throttle())

_T = TypeVar("_T")

#: Bytes kept for all connections of a user: unread replies, also in the kernel, and requests under
#: way. Above this, the connections with the most bytes are closed, down to three quarters.
USER_BYTES = 64 << 20
#: Bytes that a name, lease or region of a request under way takes, at most.
_ASKED_BYTES = 128
#: Seconds of serving turns after which the loop polls again.
_ROUND = 0.0002
#: Events that one poll returns; and the number of events above which the loop stops listening to
#: connections that already wait for their turn.
_EVENTS, _KNOWN = 1024, 64
#: Seconds until the loop tries again to start a keeper.
_RETRY = 1.0
#: Seconds between checks of clients that may get no more descriptors, and how many are checked.
_LOOK, _LOOK_SLICE = 0.002, 8
#: The least seconds for each of them, so that the checks leave time for other work.
_LOOK_EACH = 5e-5

#: Seconds for which the leases of a process in another namespace stay after its connection, unless
#: it ends: the broker cannot see whether it exits or lives on.
_UNSEEN = 10.0
#: Packets that such a process sent before it closed its connection, and that are read: up to the
#: one that exceeds these bytes.
_LAST_WORDS, _LAST_BYTES = 64, 16 << 10

_IN, _OUT, _END = select.EPOLLIN, select.EPOLLOUT, select.EPOLLHUP | select.EPOLLERR
_decode = msgspec.msgpack.Decoder(requests.AnyRequest).decode


class Server:
    """Serves one listening socket until :meth:`stop`."""

    def __init__(self, listener: socket.socket, service: Service, resume_within: float) -> None:
        self.service = service
        self._state = service.state
        self._connections: dict[int, ServerConnection] = {}
        self._users: dict[int, User] = {}
        #: Connections, and other work for a user.
        self._turns: Turns[ServerConnection | Callable[[], object]] = Turns()
        self._watchers = Watchers(self._turns, self._tell, self._state.table)
        service.announce = self._watchers.announce
        self._calls = service.calls()
        self._flight = Flight()
        #: Connections that get no more descriptors until a client of their user reads.
        self._waiting: dict[ServerConnection, None] = {}
        self._next_look = 0.0
        #: Sessions of closed connections, which end after the turn that closed them: ending one
        #: sends events, which may close other connections, and a request must keep its session.
        self._ended: list[Session] = []
        #: Those that could not be ended.
        self._stuck: list[Session] = []
        #: Connections by their session's number.
        self._of_session: dict[int, ServerConnection] = {}
        self._store_fd: int | None = None
        self._store_is_new = False
        self._buffer = bytearray(PACKET_LIMIT + 1)
        self._view = memoryview(self._buffer)
        self._epoll = select.epoll()
        self._door = Door(
            listener,
            self._epoll,
            self._turns,
            service.descriptors,
            self._users,
            service.users,
            self._let_in,
        )
        self._resume_within = resume_within
        processes = self._state.processes
        self._orphans = Orphans(self._epoll, processes, self._ended.append)
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._stopping = False
        #: Set when :meth:`run` is over.
        self.stopped = threading.Event()
        self._questions: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._digests = Digests(self._wake)

    def run(self) -> None:
        """Serve."""
        self._epoll.register(self._woken, _IN)
        self._state.store_replaced = self._watch_store
        self._state.too_long = functools.partial(self._turns.add, JOURNAL, self._compact)
        self._watch_store()
        for session in list(self.service.table.sessions.values()):
            within = self._resume_within
            self._orphans.keep(session, min(within, _UNSEEN) if session.left else within)
        self._end_sessions()
        connections, waits, late = self._connections, self._turns.circle, self._door.late
        state, orphans = self._state, self._orphans
        waiting, stuck = self._waiting, self._stuck
        while not self._stopping:
            patience = self._tend() if waiting or stuck or orphans or state.store_lost else None
            were_late = len(late)
            ready = self._epoll.poll(0 if waits or late else patience, _EVENTS)
            store_fd, self._store_is_new = self._store_fd, False
            at_once, end = not waits, 0.0
            for number, events in ready:
                connection = connections.get(number)
                if connection is None:
                    self._guarded(self._happened, number, store_fd)
                    continue
                if events & _END:
                    connection.ended = True
                if at_once:
                    self._serve(connection)
                    if len(ready) > 1:
                        now = time.monotonic()
                        end = end or now + _ROUND
                        at_once = now < end
                elif not connection.queued:
                    self._queue(connection)
                elif len(ready) > _KNOWN:
                    self._listen(connection, 0)
            if were_late:
                self._door.admit_late(were_late)
            if waits:
                self._serve_turns()
        self.stopped.set()

    def _guarded(
        self, do: Callable[..., object], *args: object, client: ServerConnection | None = None
    ) -> None:
        """Call a function; log an exception, close the client that it was for, and go on."""
        try:
            do(*args)
        except Exception:
            log.exception("something failed inside the broker")
            if client is not None:
                self._close(client)
        if self._ended:
            self._end_sessions()

    def _serve_turns(self) -> None:
        """Serve turns for _ROUND seconds."""
        end = time.monotonic() + _ROUND
        turns = self._turns
        while turns.circle:
            one = turns.next()
            if isinstance(one, ServerConnection):
                one.queued = False
                self._serve(one)
                if one.mask != _IN:
                    self._listen_to(one)
            else:
                self._guarded(one)
            if time.monotonic() > end:
                return

    def _queue(self, connection: ServerConnection) -> None:
        if not connection.queued:
            connection.queued = True
            self._turns.add(connection.uid, connection)

    def _serve(self, connection: ServerConnection) -> None:
        """One turn of a connection: send its outbox, else go on with its request, else read one."""
        try:
            try:
                if not connection.open:
                    self._leave(connection)
                elif connection.outbox or connection.busy:
                    self._flush(connection)
                elif connection.work is None:
                    self._read(connection)
                else:
                    self._go_on(connection)
            except errors.Error as error:
                self._fail(connection, error)
            except OSError as error:
                out = errors.OutOfMemory(
                    f"the broker has no room left ({error.strerror}): close or delete regions"
                )
                self._fail(connection, out)
            if connection.user.owed > USER_BYTES:
                self._relieve(connection.user)
        except Exception:  # only this client fails; the broker serves the others
            log.exception("a request failed inside the broker: %r", connection.request)
            self._close(connection)
        if self._ended:
            self._end_sessions()

    def _relieve(self, user: User) -> None:
        """Close a user's connections with the most unread bytes, before other work for the user."""
        if not user.relieved:
            user.relieved = True
            self._go_on_in_turns(user.uid, self._relief(user), self._turns.add_again)

    def _relief(self, user: User) -> Iterator[None]:
        try:
            yield from self._close_the_fullest(user)
        finally:
            user.relieved = False

    def _close_the_fullest(self, user: User) -> Iterator[None]:
        connections = list(user.connections)
        for start in range(0, len(connections), SLICE):
            for connection in connections[start : start + SLICE]:
                if connection.open:
                    connection.settle()
            yield
        if user.owed <= USER_BYTES * 7 // 8:  # above, the next turns would settle all again
            return
        for connection in sorted(user.connections, key=lambda one: one.owed, reverse=True):
            if user.owed <= USER_BYTES * 3 // 4:
                return
            if connection.open:
                log.warning(
                    "closed a connection of process %d: user %d leaves too much unread",
                    connection.identity.pid,
                    user.uid,
                )
                self._close(connection)
                yield

    def listen_on(self, listener: socket.socket) -> None:
        """Accept new connections from another socket. For the serving thread."""
        self._door.listen_on(listener)

    def _happened(self, number: int, store_fd: int | None) -> None:
        """Handle an event that is not a client's: of the door, a process, a thread, the store."""
        if self._door.happened(number) or self._orphans.happened(number):
            return
        if number == self._woken.fileno():
            self._woken.recv(4096)
            self._give_digests()
            self._answer()
        elif number == store_fd and not self._store_is_new:  # a request may have replaced it
            self._state.mend_store("it ended")

    def _tend(self) -> float | None:
        """Do the work that is due without an event; returns how many seconds to wait for events."""
        if self._state.store_lost:
            self._state.mend_store("there was no room for one")
        if self._orphans and self._orphans.patience() < 0:
            self._orphans.give_up()
            self._end_sessions()
        if self._stuck:
            self._ended += self._stuck
            self._stuck.clear()
            self._end_sessions()
        if self._waiting:
            self._look_at_waiting()
        if self._waiting or self._stuck or self._state.store_lost:
            return _LOOK if self._waiting else _RETRY
        patience = self._orphans.patience()
        return max(0.0, patience) if patience < math.inf else None

    def _look_at_waiting(self) -> None:
        """Send to waiting connections that have read meanwhile, which epoll does not report."""
        now = time.monotonic()
        if now < self._next_look:
            return
        some = list(itertools.islice(self._waiting, _LOOK_SLICE))
        self._next_look = now + _LOOK_EACH * len(some)
        for connection in some:
            del self._waiting[connection]
        for connection in some:
            if not connection.open:
                self._guarded(self._leave, connection)
            elif connection.nonsense >= NONSENSE_LIMIT:
                self._guarded(self._close_read, connection, client=connection)
            else:
                self._guarded(self._flush, connection, client=connection)

    def stop(self, *_: object) -> None:
        """End :meth:`run` soon. For signal handlers and other threads."""
        self._stopping = True
        self._wake()

    @property
    def waker(self) -> int:
        """A descriptor which wakes :meth:`run` when a byte is written to it; it never blocks."""
        return self._waker.fileno()

    def numbers(self) -> dict[str, Any]:
        """The service's numbers, and the number of connections. For the serving thread."""
        return {**self.service.numbers(None), "connections": len(self._connections)}

    def ask(self, question: Callable[[], _T]) -> Future[_T]:
        """Call ``question`` in the serving thread, between two requests. For other threads."""
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
        self._store_fd = self._state.store.fileno()
        self._store_is_new = True
        if self._store_fd is not None:
            self._epoll.register(self._store_fd, _IN)

    def _compact(self) -> None:
        if not self._state.compact():
            self._turns.add(JOURNAL, self._compact)

    def _end_sessions(self) -> None:
        """End one session now, and the others in turns."""
        first = True
        while self._ended:
            session = self._ended.pop()
            uid, work = session.identity.uid, self._ending(session)
            turn = functools.partial(self._go_on_in_turns, uid, work, self._turns.add)
            if first:
                turn()
            else:
                self._turns.add(uid, turn)
            first = False

    def _ending(self, session: Session) -> Iterator[object]:
        """The turns that end a session; if that fails, it is tried again later."""
        try:
            yield from self.service.end(session)
        except Exception:
            log.exception("a session could not be ended")
            self._stuck.append(session)

    def _go_on_in_turns(self, uid: int, work: Iterator[object], add: Callable[..., object]) -> None:
        """Do one turn of work for a user, and queue the rest for the user's next turn."""
        for _ in work:
            add(uid, functools.partial(self._go_on_in_turns, uid, work, add))
            return

    def _let_in(self, sock: socket.socket, who: Identity) -> None:
        """Serve a new connection. Raises OSError."""
        user = self._users.get(who.uid) or User(who.uid)
        connection = ServerConnection(sock, who, self._flight, user)
        self._epoll.register(connection.number, _IN)
        connection.mask = _IN
        self._users[who.uid] = user
        user.connections[connection] = None
        self._connections[connection.number] = connection

    def _close(self, connection: ServerConnection) -> None:
        """Close a connection, and release its leases once its process is not about to end."""
        if not connection.open:
            return
        connection.open = False
        self._watchers.remove(connection)
        connection.forget()
        if connection.session is not None:
            del self._of_session[connection.session.number]
            seconds = self._seconds_left(connection.session)
            self._orphans.keep(connection.session, seconds)
            if seconds == _UNSEEN and self._orphans.keeps(connection.session):
                work = self._leaving(connection.session, self._last_words(connection))
                uid, add = connection.uid, self._turns.add
                add(uid, functools.partial(self._go_on_in_turns, uid, work, add))
        self._leave(connection)

    def _last_words(self, connection: ServerConnection) -> Counter[int]:
        """How many grants of each lease a client gave back before it closed its connection.

        The complements of regions' numbers are of regions that it had asleep.
        """
        session, given = connection.session, Counter[int]()
        assert session is not None
        room = _LAST_BYTES
        for _ in range(_LAST_WORDS):
            try:
                size = connection.sock.recv_into(self._buffer)
            except ConnectionResetError:  # it left replies unread; what it sent is still here
                continue
            except OSError:
                break
            if not size:
                break
            with contextlib.suppress(*UNDECODABLE):
                request = _decode(self._view[:size])
                if isinstance(request, requests.Release):
                    given.update(one for one in request.regions if one in session.regions)
                    given.update(~one for one in request.awake if one in session.asleep)
            room -= size
            if room <= 0:
                break
        return given

    def _leaving(self, session: Session, given: Counter[int]) -> Iterator[object]:
        """The turns in which a closed session gives leases back, for as long as it is kept: its
        process may resume it or end meanwhile.
        """
        if self._orphans.keeps(session):
            self.service.table.commit(records.Left(session.number))
        numbers = given.elements()
        while self._orphans.keeps(session) and (some := list(itertools.islice(numbers, SLICE))):
            held = [number for number in some if number >= 0]
            awake = [~number for number in some if number < 0]
            self._calls[requests.Release](session, requests.Release(held, [], awake))
            yield None
        if not (session.regions or session.asleep):
            self._orphans.resumed(session.number)

    def _seconds_left(self, session: Session) -> float:
        """How long a session stays whose connection was closed, if its process does not end.

        The queued GPU work of a process that has begun to exit may go on until it is gone.
        """
        process = self._state.processes.descriptor(session)
        ending = False if process is None else is_ending(process)
        return _UNSEEN if ending is None else math.inf if ending else 0.0

    def _leave(self, connection: ServerConnection) -> None:
        """Stop counting a closed connection, once it has read its descriptors or is gone: until
        then they are in flight.
        """
        if connection.in_flight and connection.unread():
            self._waiting[connection] = None
            self._listen(connection, 0)
        elif self._connections.get(connection.number) is connection:
            del self._connections[connection.number]
            self._waiting.pop(connection, None)
            user = connection.user
            del user.connections[connection]
            if not user.connections:
                del self._users[user.uid]
            self._door.left(connection.identity)
            self._flight.forget(connection)
            connection.sock.close()

    def _flush(self, connection: ServerConnection) -> None:
        """Send the outbox, unless the client is gone."""
        if connection.ended:
            self._close(connection)
            return
        try:
            if connection.flush() and connection.lost:
                connection.lost = False
                self._send(connection, LOST)
        except OSError:
            self._close(connection)
        else:
            self._listen_to(connection)

    def _listen_to(self, connection: ServerConnection) -> None:
        """Listen for requests if nothing is left to send or do."""
        if not connection.open:
            return
        if connection.waiting:
            self._waiting[connection] = None
            self._listen(connection, 0)
        elif connection.outbox:
            self._listen(connection, _OUT)
        elif connection.busy:
            self._listen(connection, 0)
        elif connection.work is not None:
            self._listen(connection, 0)
            self._queue(connection)
        else:
            self._listen(connection, _IN)

    def _listen(self, connection: ServerConnection, mask: int) -> None:
        if mask != connection.mask:
            connection.mask = mask
            self._epoll.modify(connection.number, mask)

    def _read(self, connection: ServerConnection) -> None:
        """Read a request, and do as much of it as fits a turn."""
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
            if size > PACKET_LIMIT:
                raise msgspec.DecodeError(f"a packet has {PACKET_LIMIT} bytes at most")
            request: Any = _decode(self._view[:size])
        except UNDECODABLE as error:
            self._refuse(connection, size, error)
            return
        connection.nonsense = 0
        connection.request = request
        kind = type(request)
        session = connection.session
        self.service.counts[kind] += 1
        call = self._calls.get(kind)
        if session is None or call is None:
            self._serve_connection(connection, session, request)
        else:
            made = call(session, request)
            if type(made) is tuple:
                reply, fds = made
                self._send(connection, replies.encode(reply), fds)
                return
            if made is not None:
                connection.work = cast(Work, made)
        if connection.work is not None:
            self._go_on(connection)
            if connection.work is not None:
                connection.ask(size + _ASKED_BYTES * requests.count_of(request))

    def _go_on(self, connection: ServerConnection) -> None:
        """Do one turn of the request under way."""
        assert connection.work is not None
        if type(connection.request) is requests.GetMany:
            # Otherwise it would wait for other clients of its user, which may never read.
            self.service.at_once = SLICE if self._flight.admits(connection, SLICE) else 1
        for made in connection.work:
            if made is not None:
                reply, fds = made
                self._reply(connection, reply, fds)
                if not (isinstance(reply, replies.Grants) and reply.more):
                    break
            self._listen_to(connection)
            return
        connection.work = connection.request = None
        connection.ask(0)

    def _serve_connection(
        self, connection: ServerConnection, session: Session | None, request: Any
    ) -> None:
        """Handle requests about the connection, and requests that take longer than a turn."""
        match request, session:
            case requests.Hello(), None:
                connection.session, welcome = self.service.begin(connection.identity, request)
                connection.session.sock = connection.sock
                self._of_session[connection.session.number] = connection
                self._reply(connection, welcome)
            case requests.Hello(), _:
                raise errors.InvalidRequest("hello: this connection has said hello already")
            case _, None:
                raise errors.ProtocolError("the first request of a connection is hello")
            case requests.Resume(), Session():
                connection.work = self._resume(session, request)
            case requests.Digest(), Session():
                self._digest(connection, session, request)
            case requests.Watch(), Session():
                self._watchers.add(connection, request)
                self._reply(connection, replies.Reply(id=request.id))

    def _resume(self, session: Session, request: requests.Resume) -> Work:
        """Take over the leases of a connection of the same process, which is closed if open."""
        for made in self.service.resume(session, request):
            if made is not None and not request.more:
                ended = self.service.before(session, request.session)
                if ended is not None:  # before the reply: the broker may be killed after it
                    before = self._of_session.get(request.session)
                    if before is not None:
                        self._close(before)
                    self._orphans.resumed(request.session)
                    yield from self.service.end(ended)
            yield made

    def _refuse(self, connection: ServerConnection, size: int, error: Exception) -> None:
        """Reply to a packet that is not a request; close a client that sends only such packets."""
        packet = self._view[:size]
        refusal = malformed.hello_of_another_version(packet)
        if refusal is None:
            connection.nonsense += 1
            refusal = malformed.refusal(packet, error, connection.nonsense)
        self._reply(connection, refusal)
        if connection.open and connection.nonsense >= NONSENSE_LIMIT:
            self._close_read(connection)

    def _close_read(self, connection: ServerConnection) -> None:
        """Close a connection that sends nonsense, once its outbox was sent."""
        try:
            told = connection.flush()
        except OSError:
            told = True
        if not told:
            connection.busy = True
            connection.work = None
            self._waiting[connection] = None
            self._listen(connection, 0)
            return
        pid, count = connection.identity.pid, connection.nonsense
        log.warning("closed a connection of process %d: %d malformed packets in a row", pid, count)
        with contextlib.suppress(OSError):  # unread data would reset it before the client reads
            connection.sock.shutdown(socket.SHUT_RD)
            while connection.sock.recv_into(self._buffer):
                pass
        self._close(connection)

    def _digest(
        self, connection: ServerConnection, session: Session, request: requests.Digest
    ) -> None:
        region = self.service.digestible(session, request)
        if region.digest is not None:
            self._reply(connection, replies.Sha256(id=request.id, sha256=region.digest))
            return
        fd = duplicate(region.fd)
        who = session.identity
        self.service.descriptors.require("digest", fd, who.uid, len(connection.user.connections))
        self._digests.submit(Job(connection, request.id, region, fd))
        connection.busy = True
        self._listen_to(connection)

    def _give_digests(self) -> None:
        for job, made in self._digests.done():
            reply: msgspec.Struct
            if isinstance(made, str):
                self.service.digested(job.region, made)
                reply = replies.Sha256(id=job.number, sha256=made)
            else:
                reply = replies.refusal(made, job.number)
            job.connection.busy = False
            self._listen_to(job.connection)
            self._reply(job.connection, reply)

    def _reply(
        self, connection: ServerConnection, reply: msgspec.Struct, fds: Sequence[int] = ()
    ) -> None:
        self._send(connection, replies.encode(reply), fds)

    def _fail(self, connection: ServerConnection, error: errors.Error) -> None:
        number = getattr(connection.request, "id", 0)  # a release has none
        connection.work = None
        connection.ask(0)
        self._reply(connection, replies.refusal(error, number))

    def _send(self, connection: ServerConnection, packet: bytes, fds: Sequence[int] = ()) -> None:
        """Send now, or when the client reads again; until then its requests wait."""
        if not connection.open:
            return
        try:
            if not connection.send(packet, fds):
                self._listen_to(connection)
        except OSError:
            self._close(connection)

    def _tell(self, connection: ServerConnection, packet: bytes) -> None:
        """Send an event to a watcher."""
        self._guarded(self._send, connection, packet, client=connection)
        if connection.user.owed > USER_BYTES:
            self._relieve(connection.user)
