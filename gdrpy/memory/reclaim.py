"""Unreferenced GPU memory, kept until the GPU is done with it.

CUDA unmaps memory at once; GPU work that still uses it then fails and ends its context. Code that
drops a tensor does not wait for the work queued on it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from gdrpy import cuda
from gdrpy._core._mapping import Undo
from gdrpy.errors import CudaError, OutOfMemory
from gdrpy.memory import captures

#: Since this version of CUDA an event can be recorded after the work of all streams of a context.
_HAS_CONTEXT_EVENTS = 12050
#: Results that do not say that the work is over. All but the first say that CUDA cannot be asked
#: now, during a graph capture that was not seen before, and which this has invalidated, or in a
#: host function of a stream. Any other error ends the context.
_NOT_OVER = (
    "CUDA_ERROR_NOT_READY",
    "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
    "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
    "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
    "CUDA_ERROR_NOT_PERMITTED",
)


class _Kept:
    """Dropped memory, and the source that it keeps."""

    def __init__(self, devices: tuple[int, ...], undo: Undo, source: object) -> None:
        self._devices = devices
        self._undo = undo
        self._source = source
        self._unasked = list(devices)
        self._events: list[Any] = []
        #: One that CUDA has refused to record so far.
        self._unrecorded: Any = None

    def is_over(self, function: str) -> bool:
        """Whether the work that was queued at the first call is done.

        ``function`` checks an event: cuEventQuery, or cuEventSynchronize, which waits.
        """
        try:
            if self._unasked and not self._record_events():
                return False
            with cuda.relaxed():
                for event in self._events:
                    cuda.call(function, event)
        except OutOfMemory:
            return False
        except CudaError as error:
            return error.name not in _NOT_OVER
        return True

    def _record_events(self) -> bool:
        """Record events after all work queued on the devices so far; False during a capture."""
        while self._unasked:
            device = self._unasked[0]
            # The last one's context is ours; another device without one has no work.
            if device == self._devices[-1] or cuda.has_context(device):
                with cuda.context(device):
                    if captures.under_way(device):
                        return False
                    self._events.append(self._record(device))
            del self._unasked[0]
        return True

    def _record(self, device: int) -> Any:
        """An event after all work queued in a device's primary context, which is current."""
        event = self._unrecorded
        if event is None:
            flags = cuda.driver().CUevent_flags.CU_EVENT_DISABLE_TIMING
            event = cuda.made(self._undo, "cuEventCreate", flags, by="cuEventDestroy")
            self._unrecorded = event
        if cuda.call("cuDriverGetVersion") >= _HAS_CONTEXT_EVENTS:
            cuda.call("cuCtxRecordEvent", cuda.primary_context(device), event)
        else:
            cuda.call("cuCtxSynchronize")
        self._unrecorded = None
        return event

    def give_back(self) -> None:
        # There is no caller to report an error to; the next CUDA call will fail too.
        with suppress(CudaError):
            self._undo.close()


#: Dropped memory that is not in _kept, because a signal handler raised an exception in its
#: finalizer; by the devices that reach it.
_left: dict[tuple[int, ...], list[Undo]] = {}

#: Dropped memory by device, oldest first. The garbage collector may run anywhere, so there is no
#: lock: a thread takes an item out before it looks at it.
_kept: dict[int, deque[_Kept]] = {}


def left(devices: tuple[int, ...]) -> list[Undo]:
    """The list of undo steps of dropped memory, which :func:`reclaim` runs."""
    return _left.setdefault(devices, [])


def give_back(devices: tuple[int, ...], undo: Undo, source: object) -> None:
    """Run ``undo`` when the work queued so far on the devices that reach the memory is done.

    ``source`` is kept until then. The memory lies on the first device; this process works on the
    last. If the work is not done yet, a later call of this or :func:`reclaim` runs ``undo``.
    """
    device, dropped = devices[0], _Kept(devices, undo, source)
    if dropped.is_over("cuEventQuery"):
        dropped.give_back()
    else:
        _kept.setdefault(device, deque()).append(dropped)
    reclaim(device)


def wait(devices: tuple[int, ...]) -> bool:
    """Wait for the work queued so far on the devices; False if CUDA cannot be asked now."""
    with Undo() as undo:
        return _Kept(devices, undo, None).is_over("cuEventSynchronize")


def queued(devices: tuple[int, ...]) -> Callable[[], bool]:
    """A function that says whether the work is done that was queued at its first call."""
    return partial(_Kept(devices, Undo(), None).is_over, "cuEventQuery")


def reclaim(device: int, wait: bool = False) -> bool:
    """Free the dropped memory of a device that its GPU is done with; with ``wait``, all of it.

    Returns whether there was any.
    """
    for devices, undos in list(_left.items()):
        while undos and devices[0] == device:
            _kept.setdefault(device, deque()).append(_Kept(devices, undos.pop(), None))
    kept, found = _kept.get(device), False
    while kept:
        try:
            first = kept.popleft()
        except IndexError:  # another thread has it
            break
        if not first.is_over("cuEventSynchronize" if wait else "cuEventQuery"):
            kept.appendleft(first)
            break
        first.give_back()
        found = True
    return found
