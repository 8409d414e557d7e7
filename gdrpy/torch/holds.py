"""Storages that other processes use: the sender keeps each until its last receiver is done.

A storage in an allocator's pool is a part of a region that is used again when the storage is gone,
so a receiver's import of the region does not keep it. The sender therefore notes each storage that
it sends in a slot of a memory file, which travels like any region. A receiver locks the slot for as
long as it has the storage. The kernel ends the locks of a process that dies.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import struct
import threading
from collections import deque
from collections.abc import Callable
from errno import EACCES, EAGAIN

from gdrpy._core._mapping import Descriptor, alone
from gdrpy.broker.client.connection import Lease
from gdrpy.errors import Gone
from gdrpy.memory.descriptors import private
from gdrpy.memory.memory import Memory, settle
from gdrpy.region import Region

#: The size of a memory file of slots.
NBYTES = 1 << 16
#: A slot: the token of the storage that it stands for, and whether a receiver has it by now.
_SLOT = struct.Struct("=8sQ")
#: struct flock of 64-bit Linux: type, whence, start, length, and the process, which must be 0.
_FLOCK = struct.Struct("hhqqi4x")
#: Seconds between two looks for storages that receivers are done with: from the first to the last.
_FIRST_PAUSE, _LAST_PAUSE = 0.02, 0.5

CALL = "receiving a tensor"

#: Of the outboxes. A fork waits for the thread that holds it, which takes no other lock.
_lock = threading.RLock()
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)


class _Slots:
    """A memory file of slots, with locks that are this object's.

    Another user's broker gives descriptors that cannot be opened again. All of its clients share
    one open file then, and the locks are those of the process.
    """

    def __init__(self, region: Region, shared: bool) -> None:
        """``shared`` says whether a broker gave the region."""
        self.region = region
        fd = region._memory.fd
        self._own: Descriptor | None = None
        self._set, self._wait = fcntl.F_OFD_SETLK, fcntl.F_OFD_SETLKW
        try:
            path = f"/proc/self/fd/{fd}"
            self._own = private(os.open, path, os.O_RDWR | os.O_CLOEXEC)
        except PermissionError:
            if not shared:
                raise
            self._set, self._wait = fcntl.F_SETLK, fcntl.F_SETLKW

    def close(self) -> None:
        """Close the memory file."""
        if self._own is not None:
            self._own.close()
        self.region.close()

    @property
    def lost(self) -> bool:
        """Whether its broker no longer knows it."""
        lease = self.region._memory.source
        return isinstance(lease, Lease) and lease.lost

    @property
    def _fd(self) -> int:
        return self.region._memory.fd if self._own is None else self._own.fileno()

    def _lock(self, command: int, kind: int, index: int) -> None:
        place = _FLOCK.pack(kind, os.SEEK_SET, index * _SLOT.size, _SLOT.size, 0)
        fcntl.fcntl(self._fd, command, place)

    def _read(self, index: int) -> tuple[bytes, int]:
        token, received = _SLOT.unpack(os.pread(self._fd, _SLOT.size, index * _SLOT.size))
        return token, received

    def _write(self, index: int, token: bytes, received: bool) -> None:
        os.pwrite(self._fd, _SLOT.pack(token, received), index * _SLOT.size)

    def _come(self, index: int, token: bytes) -> None:
        """Note that a storage was received. Raises Gone if the sender does not keep it any more."""
        if self._read(index)[0] != token:
            raise _gone()
        self._write(index, token, True)


class Outbox(_Slots):
    """The storages that this process has sent."""

    def __init__(self, region: Region, shared: bool) -> None:
        super().__init__(region, shared)
        self.pid = os.getpid()
        self._kept: dict[int, tuple[bytes, object, Memory]] = {}
        self._free = list(range(NBYTES // _SLOT.size))

    def keep(self, storage: object, memory: Memory) -> tuple[int, bytes] | None:
        """Keep a storage in some memory until it was received and no receiver has it: its slot and
        token.

        None if all slots are in use.
        """
        return alone(_lock, self._keep, storage, memory)

    def _keep(self, storage: object, memory: Memory) -> tuple[int, bytes] | None:
        if not self._free:
            return None
        index, token = self._free.pop(), secrets.token_bytes(8)
        self._write(index, token, False)
        self._kept[index] = token, storage, memory
        memory.sent += 1
        return index, token

    def came(self, index: int, token: bytes) -> object:
        """The storage, which this process itself has received. Raises Gone."""
        return alone(_lock, self._came, index, token)

    def _came(self, index: int, token: bytes) -> object:
        self._come(index, token)
        return self._kept[index][1]

    def collect(self, received: bool = True) -> int:
        """Drop the storages that no receiver has, if they were received; or those that were not.

        Returns how many.
        """
        dropped: list[object] = []
        alone(_lock, self._collect, dropped, received)
        return len(dropped)

    def _collect(self, dropped: list[object], received: bool = True) -> None:
        for index, (token, storage, memory) in list(self._kept.items()):
            if self._read(index) != (token, received):
                continue
            try:
                self._lock(self._set, fcntl.F_WRLCK, index)
            except OSError as error:
                if error.errno not in (EACCES, EAGAIN):
                    raise
                continue
            try:
                self._write(index, bytes(len(token)), False)
            finally:
                self._lock(self._set, fcntl.F_UNLCK, index)
            del self._kept[index]
            memory.sent -= 1
            dropped.append((storage, memory))
            self._free.append(index)

    def retire(self) -> bool:
        """Have it keep nothing from now on, with the lock held. False if it keeps something."""
        if not self._kept:
            self._free.clear()
        return not self._kept

    @property
    def count(self) -> int:
        """The number of storages that it keeps."""
        return len(self._kept)


class Inbox(_Slots):
    """The storages that one sender has sent, as a receiver sees them."""

    def __init__(self, region: Region, shared: bool) -> None:
        super().__init__(region, shared)
        self._turn = threading.Lock()
        #: How many storages of this process each locked slot has.
        self._counts: dict[int, int] = {}
        #: Slots whose storage is gone; the garbage collector may add to it anywhere.
        self._ended: deque[int] = deque()

    def take(self, index: int, token: bytes) -> None:
        """Have the sender keep a storage until :meth:`end`. Raises Gone."""
        with self._turn:
            if not self._counts.get(index):
                self._lock(self._wait, fcntl.F_RDLCK, index)
            self._counts[index] = self._counts.get(index, 0) + 1
        try:
            self._come(index, token)
        except BaseException:
            self.end(index)
            raise
        self._settle()

    def came(self, index: int, token: bytes) -> None:
        """Note that a storage was received, which is kept otherwise. Raises Gone."""
        self.take(index, token)
        self.end(index)

    def end(self, index: int) -> None:
        """End a :meth:`take`. Never waits."""
        self._ended.append(index)
        self._settle()

    def _settle(self) -> None:
        # A thread that has the lock does it when it has released that.
        while self._ended and self._turn.acquire(blocking=False):
            try:
                self._end_all()
            finally:
                self._turn.release()

    def _end_all(self) -> None:
        while self._ended:
            index = self._ended.popleft()
            self._counts[index] -= 1
            if not self._counts[index]:
                del self._counts[index]
                self._lock(self._set, fcntl.F_UNLCK, index)


def _gone() -> Gone:
    return Gone(
        f"{CALL}: another process has received it and is done with it, or the sender discarded it: "
        f"send it to each receiver separately"
    )


class Outboxes:
    """The outboxes of this process, by the broker's socket."""

    def __init__(self) -> None:
        #: Those of a parent stay: a child must not free its copies of their storages.
        self._all: dict[tuple[int, str | None], list[Outbox]] = {}
        settle.append(self.collect)

    def own(self) -> list[Outbox]:
        """Those of this process."""
        pid = os.getpid()
        return [box for key, boxes in list(self._all.items()) if key[0] == pid for box in boxes]

    @property
    def count(self) -> int:
        """The number of storages that they keep."""
        return sum(box.count for box in self.own())

    def keep(
        self, socket: str | None, make: Callable[[], Region], storage: object, memory: Memory
    ) -> tuple[Outbox, int, bytes]:
        """Keep a storage in some memory, in an outbox of this broker, or without one: the outbox,
        slot and token.

        ``make()`` makes the region of another outbox.
        """
        boxes = self._all.setdefault((os.getpid(), socket), [])
        while True:
            for box in list(boxes):
                if not box.lost and (place := box.keep(storage, memory)) is not None:
                    return box, *place
            boxes.append(Outbox(make(), socket is not None))

    def collect(self) -> None:
        """Drop what receivers are done with."""
        for box in self.own():
            if box.count:
                box.collect()

    def close(self) -> None:
        """Close the outboxes that keep nothing."""
        self.collect()
        for box in self.own():
            if alone(_lock, box.retire):
                for boxes in self._all.values():
                    if box in boxes:
                        boxes.remove(box)
                box.close()


class Watcher:
    """A thread that looks again and again, as long as there is something to wait for.

    A process that was killed, and the garbage collector, tell nobody.
    """

    def __init__(self, look: Callable[[], bool]) -> None:
        """``look()`` returns whether to look again."""
        self._look = look
        self._thread: threading.Thread | None = None
        self._woken = threading.Event()
        os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        self._thread, self._woken = None, threading.Event()

    def wake(self) -> None:
        """Look soon. Not for finalizers."""
        alone(_lock, self._start)

    def _start(self) -> None:
        self._woken.set()
        if self._thread is None or not self._thread.is_alive():  # an error may have ended it
            self._thread = threading.Thread(target=self._run, daemon=True, name="gdrpy-torch")
            self._thread.start()

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while self._look() or not alone(_lock, self._end):
            if self._woken.wait(pause):
                self._woken.clear()
                pause = _FIRST_PAUSE
            pause = min(_LAST_PAUSE, 1.5 * pause)

    def _end(self) -> bool:
        """End the thread unless it was woken since it looked."""
        if self._woken.is_set():
            return False
        self._thread = None
        return True
