"""Queues of copies that wait for words in GPU memory, without the CPU."""

from __future__ import annotations

from weakref import ref

from gdrpy._core import _mapping
from gdrpy.common.resource import Resource
from gdrpy.memory.memory import settle

#: By their ids. A dict, since threads may change it while another one lists it.
_queues: dict[int, ref[CopyQueue]] = {}


def _settle_all() -> None:
    """Let go the memory that finished jobs used."""
    for known in list(_queues.values()):
        queue = known()
        if queue is not None:
            queue._settle()


class CopyQueue(Resource, _mapping.CopyQueue):
    """Steps that the GPU's copy engine does in order, with no CPU in between.

    Made by :meth:`gdrpy.Region.queue`; a context manager. :meth:`wait`, :meth:`readinto`,
    :meth:`write` and :meth:`set` add steps, and :meth:`submit` has the engine do those added since
    the last time. A queue that waits delays no other queue and no other copy.

    Until a job is done, its regions cannot be closed (BufferError), and its registered buffers stay
    pinned. :meth:`close` ends unfinished jobs: copies among them may have happened in part.

    If the engine meets a fault (an Xid in dmesg), the queue's unfinished jobs raise DriverError;
    other queues go on. Threads may share a queue. A forked child cannot use it.
    """

    _again = "make a queue in the child, from a region that it opened"
    _elsewhere = "make a queue in each process"

    def __init__(self, region: _mapping.Transfers) -> None:
        super().__init__()
        self._open(region)
        key = id(self)
        _queues[key] = ref(self, lambda _: _queues.pop(key, None))
        if _settle_all not in settle:
            settle.append(_settle_all)

    def submit(self, timeout: float | None = None) -> CopyJob:
        """Have the engine do the steps added so far; returns at once while there is room.

        There is room for 127 jobs of up to 22 steps, a copy counting once for each GiB; a larger
        job takes the room of several. Beyond, this waits until earlier jobs are done.

        Args:
            timeout: For how many seconds to wait for room; None waits forever.

        Raises Timeout: the steps can be submitted later.
        """
        return CopyJob(self, self._submit(timeout))

    def _release(self) -> None:
        _queues.pop(id(self), None)
        self._close()

    def __repr__(self) -> str:
        return f"<CopyQueue {'CLOSED' if self.closed else 'open'}>"


class CopyJob:
    """Steps that a queue does. Made by :meth:`CopyQueue.submit`."""

    def __init__(self, queue: CopyQueue, number: int) -> None:
        self._queue = queue
        self._number = number

    @property
    def done(self) -> bool:
        """Whether all steps are done. Raises if they never will be, as :meth:`wait`."""
        return self._queue._is_done(self._number)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until all steps are done. Meanwhile other threads run and signals are handled.

        Args:
            timeout: For how many seconds to wait; None waits forever.

        Raises Timeout, Closed (the queue was closed before), DriverError (the queue's channel
        died, with the Xid).
        """
        self._queue._wait(self._number, timeout)

    def __repr__(self) -> str:
        return f"<CopyJob {self._number} of {self._queue!r}>"
