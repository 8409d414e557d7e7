"""Digests of regions, made by a thread: they take as long as reading all of the memory."""

from __future__ import annotations

import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from gdrpy._fd import duplicate
from gdrpy.broker.server import memory
from gdrpy.broker.server.connection import Connection
from gdrpy.broker.server.table import Region
from gdrpy.errors import Error, OutOfMemory


class Job(NamedTuple):
    """A digest that a client waits for, as the reply to its request of this number."""

    connection: Connection
    number: int
    region: Region
    fd: int


class Digests:
    """One thread, one digest after the other. ``wake`` is called, in it, when one is done."""

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._done: deque[tuple[Job, str | Error]] = deque()
        threading.Thread(target=self._run, daemon=True).start()

    def submit(self, connection: Connection, number: int, region: Region) -> None:
        """Have a digest made; the region's memory stays until it is. Raises OSError."""
        self._jobs.put(Job(connection, number, region, duplicate(region.fd)))

    def done(self) -> Iterator[tuple[Job, str | Error]]:
        """Those made since last asked, or why not; without those that nobody waits for any more."""
        while self._done:
            yield self._done.popleft()

    def _run(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                made: str | Error | None = job.region.digest or memory.digest(
                    job.fd, job.region.nbytes, job.connection.is_open
                )
            except Error as error:
                made = error
            except Exception as error:  # whatever it is, this thread has others to serve
                made = OutOfMemory(f"digest: the broker cannot read the region: {error}")
            finally:
                os.close(job.fd)
            if made is not None:
                self._done.append((job, made))
                self._wake()
