"""Digests of regions, made by a thread, since they read all of the memory."""

from __future__ import annotations

import mmap
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

from gdrpy.broker.server import memory
from gdrpy.broker.server.connection import ServerConnection
from gdrpy.broker.server.table import RegionEntry
from gdrpy.broker.server.turns import Turns
from gdrpy.errors import Error, OutOfMemory
from gdrpy.memory.engine import register

#: Bytes that are mapped and read in a turn.
_CHUNK = 8 << 20


@dataclass
class Job:
    """A digest that a client waits for, as the reply to its request ``number``."""

    connection: ServerConnection
    number: int
    region: RegionEntry
    #: A descriptor of the region's memory, closed afterwards.
    fd: int
    #: None before its first turn.
    work: Generator[None, None, str] | None = None


class Digests:
    """One thread that makes digests: users take turns, and so do a user's digests.

    It calls ``wake`` when a digest is done.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self._turns: Turns[Job] = Turns()
        self._submitted = threading.Condition()
        # Shared memory, so that a fork takes no page from under the copy engine.
        self._buffer = mmap.mmap(-1, _CHUNK)
        self._registration = register(self._buffer)
        self._done: deque[tuple[Job, str | Error]] = deque()
        threading.Thread(target=self._run, daemon=True).start()

    def submit(self, job: Job) -> None:
        """Queue a digest."""
        with self._submitted:
            self._turns.add(job.connection.uid, job)
            self._submitted.notify()

    def done(self) -> Iterator[tuple[Job, str | Error]]:
        """Finished jobs since the last call, each with its digest or error."""
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
            except Exception as error:  # the thread must serve other jobs
                made = OutOfMemory(f"digest: the broker cannot read the region: {error}")
            if made is None and job.connection.open:
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
        """Do one turn of a digest; returns the digest when it is done."""
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
