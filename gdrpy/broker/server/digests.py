"""Digests of regions, made by a thread: they take as long as reading all of the memory."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator

from gdrpy.broker.server import memory
from gdrpy.broker.server.connection import ServerConnection
from gdrpy.broker.server.table import RegionEntry
from gdrpy.broker.server.turns import Turns
from gdrpy.errors import Error, OutOfMemory

#: Bytes that are read in a turn, through a mapping of as many.
_CHUNK = 8 << 20


class Job:
    """A digest that a client waits for, as the reply to its request of this number."""

    def __init__(
        self, connection: ServerConnection, number: int, region: RegionEntry, fd: int
    ) -> None:
        self.connection = connection
        self.number = number
        self.region = region
        self.fd = fd
        #: None before its first turn.
        self.work: Generator[None, None, str] | None = None


class Digests:
    """One thread: users take turns, and a user's digests are made one after the other.

    ``wake`` is called, in it, when one is done.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self._turns: Turns[Job] = Turns()
        self._submitted = threading.Condition()
        self._buffer = bytearray(_CHUNK)
        self._done: deque[tuple[Job, str | Error]] = deque()
        threading.Thread(target=self._run, daemon=True).start()

    def submit(
        self, connection: ServerConnection, number: int, region: RegionEntry, fd: int
    ) -> None:
        """Have a digest made of the region, by a descriptor of its memory that is closed then."""
        with self._submitted:
            self._turns.add(connection.uid, Job(connection, number, region, fd))
            self._submitted.notify()

    def done(self) -> Iterator[tuple[Job, str | Error]]:
        """Those made since last asked, or why not; without those that nobody waits for any more."""
        while self._done:
            yield self._done.popleft()

    def _run(self) -> None:
        while True:
            with self._submitted:
                self._submitted.wait_for(lambda: self._turns.circle)
                job = self._turns.next()
            try:
                made = self._go_on(job)
            except Error as error:
                made = error
            except Exception as error:  # whatever it is, this thread has others to serve
                made = OutOfMemory(f"digest: the broker cannot read the region: {error}")
            if made is None and job.connection.is_open():
                with self._submitted:
                    self._turns.add_again(job.connection.uid, job)
                continue
            if job.work is not None:
                job.work.close()
            os.close(job.fd)
            if made is not None:
                self._done.append((job, made))
                self._wake()

    def _go_on(self, job: Job) -> str | Error | None:
        """Do a turn's worth of a digest: the digest when it is done."""
        if job.region.digest is not None:
            return job.region.digest
        if job.work is None:
            job.work = memory.digest(job.fd, job.region.nbytes, self._buffer)
        try:
            next(job.work)
        except StopIteration as done:
            made: str = done.value
            return made
        return None
