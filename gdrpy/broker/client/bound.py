"""Regions that are bound to their exporters: a thread of this process tells of their ends."""

from __future__ import annotations

import heapq
import os
import sys
import time
from collections.abc import Callable, Iterable
from itertools import count
from threading import Lock, Thread
from typing import Any, Protocol
from weakref import ref

from gdrpy._core._mapping import run
from gdrpy.broker import requests
from gdrpy.broker.client.connection import Connection, Lease
from gdrpy.broker.client.transport import BlockingTransport, Lost, Silent
from gdrpy.broker.client.watch import Watching
from gdrpy.broker.replies import LOST, Description
from gdrpy.errors import Error, Gone, OutOfMemory
from gdrpy.memory import reclaim
from gdrpy.memory.gpu import GpuMemory
from gdrpy.memory.memory import Memory, settle_all

#: The broker's life, and the region's number.
Key = tuple[str, int]

#: Seconds between attempts: to reach a broker, and to take memory that is in use.
_PAUSE = 0.1
#: The errors of a broker that is not there, or of a process without room for another connection.
_UNREACHED = (Error, OSError, Lost, Silent)
#: Seconds between looks at what came and went: regions that this process closed are forgotten, and
#: the broker is asked about new ones, which may have ended before the thread knew of them.
_LOOK = 1.0


class Bindable(Protocol):
    """A region of a broker, as far as its end is concerned."""

    id: int
    _life: str
    _memory: Memory

    @property
    def closed(self) -> bool:
        """Whether it is closed."""

    def _end(self) -> tuple[Callable[[Any], object], ...]:
        """Note its end; returns the callbacks."""

    def _take_away(self, key: Key, is_idle: Callable[[], bool]) -> bool:
        """Give the memory of an ended region back; False while it is in use, or BufferError."""


_guards: dict[str, _Guard] = {}


def guard(region: Bindable, lease: Lease, grace: float) -> None:
    """Take a region's memory ``grace`` seconds after its exporter's lease has ended.

    Raises OutOfMemory if no thread can start.
    """
    bound = _Bound(region, lease, grace)
    found = _guards.get(lease.socket)
    while found is None or not found.add(bound):
        found = _guards[lease.socket] = _Guard(lease)


class _Bound:
    """A bound region; its memory may outlive it."""

    def __init__(self, region: Bindable, lease: Lease, grace: float) -> None:
        self.key = lease.life, lease.region
        self.grace = grace
        self._region = ref(region)
        self._memory: ref[Memory] = ref(region._memory)
        self._is_idle = reclaim.queued(region._memory.devices)

    @property
    def gone(self) -> bool:
        """Whether this process has none of it any more."""
        memory = self._memory()
        return memory is None or (memory.closed and not memory.users)

    def tell(self) -> None:
        """Call the region's callbacks."""
        region = self._region()
        if region is not None and (region._life, region.id) == self.key:
            for callback in region._end():
                try:
                    callback(region)
                except (Exception, SystemExit) as error:  # which would end the thread
                    _show(error, f"This was a callback for the end of {region!r}.")

    def take(self) -> bool:
        """Give the memory back; False if it is in use."""
        try:
            settle_all()
            region, memory = self._region(), self._memory()
            if memory is None:
                return True
            if region is not None and not region.closed:
                return region._take_away(self.key, self._is_idle)
            # Only arrays and tensors hold it.
            if isinstance(memory, GpuMemory) and memory.can_detach:
                return self._is_idle() and memory.detach_dropped()
        except BufferError:
            return False
        except Exception as error:
            _show(error, "The memory of a region that ended with its exporter stays.")
        return True


def _show(error: BaseException, note: str) -> None:
    """Show an error that the thread has no caller for."""
    error.add_note(note)
    sys.excepthook(type(error), error, error.__traceback__)


class _Guard:
    """The bound regions of a broker, and the thread that hears of their ends."""

    def __init__(self, lease: Lease) -> None:
        connection = lease._connection
        self._path, self._timeout = connection.path, connection.transport.timeout
        self._pid = os.getpid()
        self._lock = Lock()
        #: By the memory's id().
        self._bound: dict[Key, dict[int, _Bound]] = {}
        #: Regions that the broker was not asked about.
        self._fresh: set[Key] = set()
        #: Memory to take, by the time; and numbers that order equal times.
        self._due: list[tuple[float, int, _Bound]] = []
        self._order = count()
        self._watching: Watching | None = None
        self._next_look = 0.0
        self._over = False
        self._begun = False

    def add(self, bound: _Bound) -> bool:
        """Guard a region; False if the thread has ended, or runs in another process."""
        if self._pid != os.getpid():
            return False
        with self._lock:
            if self._over:
                return False
            if not self._begun:
                self._begin()
            self._bound.setdefault(bound.key, {})[id(bound._memory())] = bound
            self._fresh.add(bound.key)
        return True

    def _begin(self) -> None:
        try:
            Thread(target=self._run, name="gdrpy-bound", daemon=True).start()
        except RuntimeError as error:
            raise OutOfMemory(
                f"opening a region that is bound to its exporter: {error}, and one must hear of "
                f"its end: raise the limit (ulimit -u), or end other threads"
            ) from error
        self._begun = True

    def _run(self) -> None:
        """Hear of ends, and take memory, until this process has no bound regions."""
        while not self._over:
            try:
                self._hear()
            except Exception as error:
                if not isinstance(error, _UNREACHED):
                    _show(error, "gdrpy goes on watching for the ends of regions.")
                self._drop_watch()
                time.sleep(_PAUSE)
            self._take()
            if time.monotonic() >= self._next_look:
                self._look()
        self._drop_watch()

    def _look(self) -> None:
        """Forget what this process has closed; note if it has no bound regions any more."""
        with self._lock:
            self._due = sorted(item for item in self._due if not item[2].gone)
            for key, those in list(self._bound.items()):
                for number in [number for number, bound in those.items() if bound.gone]:
                    del those[number]
                if not those:
                    del self._bound[key]
            self._over = not self._bound and not self._due
        self._next_look = time.monotonic() + _LOOK

    def _hear(self) -> None:
        """Wait for an event, and act on it. Raises Error, OSError."""
        if self._watching is None:
            self._watching = Watching(self._connection(), "", ends=True)
            run(self._watching.begin)
            self._ask(self._bound)
        deadline = self._next_look
        with self._lock:
            if self._due:
                deadline = min(deadline, self._due[0][0])
        event = run(self._watching.next, deadline)
        if event == LOST:
            self._ask(self._bound)
        elif event is not None and event.region is not None:
            self._end((self._watching.life, event.region))
        if time.monotonic() >= self._next_look:
            self._ask(self._fresh)

    def _ask(self, keys: Iterable[Key]) -> None:
        """Ask the broker which regions have ended. Raises Error, OSError."""
        with self._lock:
            wanted = [key for key in keys if key in self._bound]
            self._fresh = set()
        if not wanted:
            return
        connection = self._connection()
        try:
            for key in wanted:
                if _has_ended(connection, key):
                    self._end(key)
        finally:
            connection.close()

    def _connection(self) -> Connection:
        """A connection that does not wait for a broker, since memory may be due."""
        return Connection(BlockingTransport(self._timeout), self._path, 0)

    def _drop_watch(self) -> None:
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.close()

    def _end(self, key: Key) -> None:
        with self._lock:
            those = list(self._bound.pop(key, {}).values())
            for bound in those:
                due = time.monotonic() + bound.grace
                heapq.heappush(self._due, (due, next(self._order), bound))
        for bound in those:
            bound.tell()

    def _take(self) -> None:
        """Take the memory that is due."""
        now = time.monotonic()
        with self._lock:
            due = []
            while self._due and self._due[0][0] <= now:
                due.append(heapq.heappop(self._due)[2])
        for bound in due:
            if not bound.take():
                with self._lock:
                    again = time.monotonic() + _PAUSE, next(self._order), bound
                    heapq.heappush(self._due, again)


def _has_ended(connection: Connection, key: Key) -> bool:
    """Whether a region has ended. False if the broker has lost its state: see the documentation."""
    life, region = key
    try:
        told, _ = run(connection.ask, requests.Stat(region=region, id=0), Description)
    except Gone:
        return connection.life == life
    return told.ended and connection.life == life
