"""GPU memory that nobody refers to any more, kept until the GPU is done with it.

CUDA unmaps memory at once, under work that uses it, which then fails and takes its context along;
and whoever drops a tensor does not wait for the work that he has queued on it.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import Any

from gdrpy import cuda
from gdrpy._core._mapping import Undo
from gdrpy.errors import CudaError, OutOfMemory

#: Since this version of CUDA an event can be recorded behind all streams of a context.
_HAS_CONTEXT_EVENTS = 12050
#: What does not tell that the work is over: the others say that CUDA may not be asked now, since a
#: graph is captured, or a stream runs a function of the host's. Any other error ends the context.
_NOT_OVER = (
    "CUDA_ERROR_NOT_READY",
    "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
    "CUDA_ERROR_NOT_PERMITTED",
)


class _Kept:
    """Dropped memory, and what it keeps."""

    def __init__(self, devices: tuple[int, ...], undo: Undo, source: object) -> None:
        self._devices = devices
        self._undo = undo
        self._source = source
        self._events: list[Any] | None = None

    def is_over(self, function: str) -> bool:
        """Whether the work is done that was queued when this was first asked.

        ``function`` asks an event: cuEventQuery, or cuEventSynchronize, which waits.
        """
        try:
            if self._events is None:
                self._events = [
                    self._record(device)
                    for device in self._devices
                    # Of the last one it is ours; another has no work without its context.
                    if device == self._devices[-1] or cuda.has_context(device)
                ]
            for event in self._events:
                cuda.call(function, event)
        except OutOfMemory:
            return False
        except CudaError as error:
            return error.name not in _NOT_OVER
        return True

    def _record(self, device: int) -> Any:
        """An event of all that is queued in a device's primary context by now."""
        flags = cuda.driver().CUevent_flags.CU_EVENT_DISABLE_TIMING
        with cuda.context(device):
            event = cuda.made(self._undo, "cuEventCreate", flags, by="cuEventDestroy")
            if cuda.call("cuDriverGetVersion") >= _HAS_CONTEXT_EVENTS:
                cuda.call("cuCtxRecordEvent", cuda.primary_context(device), event)
            else:
                cuda.call("cuCtxSynchronize")
        return event

    def give_back(self) -> None:
        # Nobody is there to be told of an error; the next call of CUDA's will meet it too.
        with suppress(CudaError):
            self._undo.close()


#: By the devices that reach it, memory that was dropped and is not kept: a signal's handler raised
#: an exception in its finalizer.
_left: dict[tuple[int, ...], list[Undo]] = {}

#: By device, the longest dropped first. The garbage collector may come in anywhere, so there is no
#: lock: who looks at one has taken it out.
_kept: dict[int, deque[_Kept]] = {}


def left(devices: tuple[int, ...]) -> list[Undo]:
    """Where the steps stand that give back dropped memory, until :func:`reclaim` runs them."""
    return _left.setdefault(devices, [])


def give_back(devices: tuple[int, ...], undo: Undo, source: object) -> None:
    """Run ``undo`` when what is queued by now on the devices that reach the memory is done.

    ``source`` is kept until then. The memory is the first one's; this process works on the last.
    Where it is not done yet, a later call here or of :func:`reclaim` gives the memory back.
    """
    device, dropped = devices[0], _Kept(devices, undo, source)
    if dropped.is_over("cuEventQuery"):
        dropped.give_back()
    else:
        _kept.setdefault(device, deque()).append(dropped)
    reclaim(device)


def reclaim(device: int, wait: bool = False) -> bool:
    """Give back the dropped memory of a device that its GPU is done with; ``wait``: all of it.

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
