"""The broker's state, which outlives the broker by its journal, store and descriptors."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable

from gdrpy.broker import unix as _unix
from gdrpy.broker.protocol import CPU_DEVICE
from gdrpy.broker.server import records
from gdrpy.broker.server.compaction import Compaction
from gdrpy.broker.server.journal import Journal
from gdrpy.broker.server.orphans import Processes
from gdrpy.broker.server.store import Full, Store
from gdrpy.broker.server.table import RegionEntry, Table
from gdrpy.broker.server.throttle import Throttle
from gdrpy.errors import OutOfMemory

log = logging.getLogger(__name__)
log.addFilter(Throttle())

#: A journal is compacted above this many bytes, and above this multiple of its size when new: less
#: if it is large, since it stays in memory.
_COMPACT_BYTES = 1 << 20
_COMPACT_RATIO = 4
_LARGE, _LARGE_RATIO = 4 << 20, 2
#: Seconds for which a new keeper may leave descriptors in flight.
_PATIENCE = 2.0
#: Records that a turn of compaction copies.
_COMPACT_SLICE = 128


class State:
    """The table, recorded in a journal. It begins with the state of the store's last broker."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.table = Table(self._remember, self._free)
        #: Descriptors and journals for the closing thread; None ends it.
        self._closing: queue.SimpleQueue[int | Journal | None] = queue.SimpleQueue()
        self._closer = threading.Thread(target=self._close, daemon=True)
        self._closer.start()
        self.freed = False
        #: The processes that hold leases.
        self.processes = Processes(self._hold, self._drop)
        #: Whether the store was lost and could not be replaced.
        self.store_lost = False
        #: Called when the store was replaced.
        self.store_replaced: Callable[[], object] = lambda: None
        #: Called when the journal is so long that :meth:`compact` must be called.
        self.too_long: Callable[[], object] = lambda: None
        self._compact_at = _COMPACT_BYTES
        self._due = False
        #: The next journal, and the compaction that fills it.
        self._next: tuple[Journal, Compaction] | None = None
        found = store.recover()
        try:
            self._journal = self._replay(found)
            self._claim(found)
        except BaseException:
            _unix.close_all(list(found.values()))
            raise
        self.recovered = len(self.table.regions)
        while not self._compact():
            pass

    def _close(self) -> None:
        while (one := self._closing.get()) is not None:
            if isinstance(one, Journal):
                one.close()
            else:
                os.close(one)

    def _replay(self, found: dict[str, int]) -> Journal:
        """The newest journal found, with its records applied, or a first one."""
        journals: list[Journal] = []
        for key in [key for key in found if key.startswith("j")]:
            fd = found.pop(key)
            try:
                journals.append(Journal(fd))
            except ValueError:  # the broker was killed while it wrote the snapshot
                os.close(fd)
                self.store.drop(key)
        journals.sort(key=lambda journal: journal.generation)
        if not journals:
            first = Journal.begin(0, [records.encode(records.Life(os.urandom(16).hex(), 1))])
            journals.append(first)
        for older in journals[:-1]:
            self.store.drop(f"j{older.generation}")
            older.close()
        for entry in journals[-1].entries():
            self.table.apply(records.decode(entry))
        return journals[-1]

    def _claim(self, found: dict[str, int]) -> None:
        """Give every region and process its descriptor, and drop the others."""
        self.table.discard_unheld()
        self.processes.recover(self.table.sessions.values(), found)
        for region in list(self.table.regions.values()):
            fd = found.pop(_key(region), None)
            if fd is None:
                log.error("%s is lost: the store did not hold its memory", region)
                self._lose(region)
            else:
                region.fd = fd
        for key, fd in found.items():
            self.store.drop(key)
            self._closing.put(fd)
        found.clear()

    def _lose(self, region: RegionEntry) -> None:
        for session in list(region.leases):
            self.table.commit(records.Released(session, region.number))
        if region.linked:
            self.table.commit(records.Unlinked(region.number))

    def _remember(self, record: records.Record) -> None:
        journal = self._journal
        journal.append(records.encode(record))
        if self._next is not None:
            try:
                self._next[1].follow(record)
            except OSError as error:
                self._stay(error)
        elif journal.size > self._compact_at and not self._due:
            self._due = True
            self.too_long()

    def compact(self) -> bool:
        """Do one turn of a compaction that is due; returns whether none is due any more."""
        try:
            return not self._due or self._compact()
        except (OSError, OutOfMemory) as error:
            self._stay(error)
            return True

    def _compact(self) -> bool:
        """Copy some of the state into the next journal, and switch to it when it is complete.

        Raises OSError, OutOfMemory. A broker that is killed meanwhile leaves the old journal.
        """
        if self._next is None:
            made = Journal.empty(self._journal.generation + 1)
            self._next = made, Compaction(self.table, lambda one: made.append(records.encode(one)))
        new, compaction = self._next
        if not compaction.go_on(_COMPACT_SLICE):
            return False
        new.complete()
        self._hold(f"j{new.generation}", new.fd)
        old, self._journal, self._next, self._due = self._journal, new, None, False
        ratio = _COMPACT_RATIO if new.size < _LARGE else _LARGE_RATIO
        self._compact_at = max(_COMPACT_BYTES, ratio * new.size)
        self._drop(f"j{old.generation}")
        self._closing.put(old)
        return True

    def _stay(self, error: Exception) -> None:
        """Keep using the current journal."""
        log.warning("the journal keeps growing: it cannot be compacted (%s)", error)
        self._compact_at = 2 * self._journal.size
        self._due = False
        if self._next is not None:
            self._next[0].close()
            self._next = None

    def add(self, made: records.Made, fd: int) -> RegionEntry:
        """Take over a new region's memory. Raises OSError; the caller keeps ``fd`` then."""
        self._hold(f"r{made.number}", fd)
        self.table.commit(made)
        region = self.table.regions[made.number]
        region.fd = fd
        return region

    def _free(self, region: RegionEntry) -> None:
        self.freed = True
        if region.fd < 0:  # while an earlier broker's journal is read
            return
        self._drop(_key(region))
        # Freeing much memory may take seconds; for a small file, asking a thread takes longer.
        small = region.device == CPU_DEVICE and region.size <= _unix.SMALL
        close = os.close if small else self._closing.put
        close(region.fd)
        if region.readonly_fd is not None:
            close(region.readonly_fd)

    def _hold(self, key: str, fd: int) -> None:
        try:
            self.store.hold(key, fd)
        except Full:
            raise
        except OSError as error:
            self.mend_store(error)
            self.store.hold(key, fd)

    def _drop(self, key: str) -> None:
        try:
            self.store.drop(key)
        except OSError as error:
            self.mend_store(error)

    def mend_store(self, reason: object) -> None:
        """Replace a lost store, if possible, and store everything again."""
        log.warning("the keeper is gone (%s): starting another one", reason)
        try:
            self.store.replace()
            self.store.hold(f"j{self._journal.generation}", self._journal.fd, _PATIENCE)
            for region in self.table.regions.values():
                if region.fd >= 0:
                    self.store.hold(_key(region), region.fd, _PATIENCE)
            for key, fd in self.processes.held():
                self.store.hold(key, fd, _PATIENCE)
        except (OSError, OutOfMemory) as error:
            log.error("cannot start a keeper, so all regions would end with the broker: %s", error)
            self.store_lost = True
        else:
            self.store_lost = False
            self.store_replaced()

    def end(self) -> None:
        """Drop the state, whose memory goes with the process: the broker stops for good."""
        self.store.end()
        self._journal.close()
        if self._next is not None:
            self._next[0].close()
        self.processes.close()
        self._closing.put(None)
        self._closer.join()


def _key(region: RegionEntry) -> str:
    return f"r{region.number}"
