"""Regions that are bound to their exporters: a thread of this process tells of their ends."""

from __future__ import annotations

import heapq
import logging
import os
import time
from collections import deque
from collections.abc import Callable
from itertools import count
from threading import Lock, Thread
from typing import Any, Protocol
from weakref import ref

from gdrpy._core._mapping import run
from gdrpy.broker import requests
from gdrpy.broker.client.connection import Connection, Lease
from gdrpy.broker.client.transport import BlockingTransport
from gdrpy.broker.client.watch import Watching
from gdrpy.broker.replies import LOST, Description
from gdrpy.errors import Error, Gone
from gdrpy.memory import reclaim
from gdrpy.memory.gpu import GpuMemory
from gdrpy.memory.memory import Memory

log = logging.getLogger(__name__)

#: The broker's life, and the region's number.
_Key = tuple[str, int]

#: Seconds between attempts: to reach a broker, and to take memory that is in use.
_PAUSE = 0.1
#: Seconds after which the thread looks whether this process still has bound regions.
_LOOK = 10.0
#: Ends that are remembered for regions that this process is about to get.
_ENDS = 4096


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

    def _take_away(self) -> None:
        """Give its memory back. Raises BufferError while it is in use."""


_guards: dict[str, _Guard] = {}


def guard(region: Bindable, lease: Lease, grace: float) -> None:
    """Take a region's memory ``grace`` seconds after its exporter's lease has ended."""
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
                except Exception:
                    log.exception("a callback for the end of %s failed", repr(region))

    def take(self) -> bool:
        """Give the memory back; False if it is in use."""
        region, memory = self._region(), self._memory()
        if memory is None:
            return True
        if region is not None and (region._life, region.id) != self.key:
            return True  # it has another version's memory now
        try:
            if region is not None and not region.closed:
                region._take_away()
            else:
                _take_orphan(memory)
        except BufferError:
            return False
        except Error as error:
            log.error("the memory of a region that ended with its exporter stays: %s", error)
        return True


def _take_orphan(memory: Memory) -> None:
    """Take memory that only tensors of other libraries hold. Raises BufferError."""
    if isinstance(memory, GpuMemory) and memory.can_detach and not memory.detached:
        if memory.busy or not reclaim.wait(memory.devices):
            raise BufferError("it is in use")
        memory.detach()
        memory.source = None


class _Guard:
    """The bound regions of a broker, and the thread that hears of their ends."""

    def __init__(self, lease: Lease) -> None:
        connection = lease._connection
        self._path, self._reconnect = connection.path, connection.reconnect
        self._pid = os.getpid()
        self._lock = Lock()
        self._bound: dict[_Key, list[_Bound]] = {}
        #: Recent ends. The reply that grants a region may be read after the event.
        self._ends: deque[_Key] = deque(maxlen=_ENDS)
        #: Memory to take, by the time; and numbers that order equal times.
        self._due: list[tuple[float, int, _Bound]] = []
        self._order = count()
        self._watching: Watching | None = None
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
                Thread(target=self._run, name="gdrpy-bound", daemon=True).start()
                self._begun = True
            self._bound.setdefault(bound.key, []).append(bound)
            ended = bound.key in self._ends
        if ended:
            self._end(bound.key)
        return True

    def _run(self) -> None:
        """Hear of ends, and take memory, until this process has no bound regions."""
        while not self._is_over():
            try:
                self._hear()
            except Error as error:  # the exporter may be alive without the broker
                log.debug("watching for the ends of regions: %s", error)
                self._drop_watch()
                time.sleep(_PAUSE)
            self._take()

    def _is_over(self) -> bool:
        """Forget what this process has closed; whether it has no bound regions any more."""
        with self._lock:
            self._due = sorted(item for item in self._due if not item[2].gone)
            for key, those in list(self._bound.items()):
                those[:] = [bound for bound in those if not bound.gone]
                if not those:
                    del self._bound[key]
            self._over = not self._bound and not self._due
        if self._over:
            self._drop_watch()
        return self._over

    def _hear(self) -> None:
        """Wait for an event, and act on it. Raises Error."""
        if self._watching is None:
            self._watching = Watching(self._connection(), "", ends=True)
            run(self._watching.begin)
            self._ask()
        deadline = time.monotonic() + _LOOK
        with self._lock:
            if self._due:
                deadline = min(deadline, self._due[0][0])
        event = run(self._watching.next, deadline)
        if event == LOST:
            self._ask()
        elif event is not None and event.region is not None:
            self._end((self._watching.life, event.region))

    def _ask(self) -> None:
        """Ask the broker which regions have ended. Raises Error."""
        connection = self._connection()
        try:
            run(connection.open)
            with self._lock:
                keys = list(self._bound)
            for key in keys:
                if key[0] == connection.life and _has_ended(connection, key[1]):
                    self._end(key)
        finally:
            connection.close()

    def _connection(self) -> Connection:
        return Connection(BlockingTransport(self._reconnect), self._path, self._reconnect)

    def _drop_watch(self) -> None:
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.close()

    def _end(self, key: _Key) -> None:
        with self._lock:
            self._ends.append(key)
            those = self._bound.pop(key, [])
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


def _has_ended(connection: Connection, region: int) -> bool:
    try:
        told, _ = run(connection.ask, requests.Stat(region=region, id=0), Description)
    except Gone:
        return True
    return told.ended
