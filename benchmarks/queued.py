"""Starting work on the GPU: queued ahead and started by a flag, or launched when it is wanted.

What is timed is from the CPU's call until the CPU sees the work's result in page-locked memory.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gdrpy
import gpukernels
from gdrpy import Flag, cuda
from harness import Contender, Session, Topic

MODULE = "queued"

LAUNCHED = "launched then"
BY_MAPPING = "queued, flag.set through the mapping"
BY_PINNED = "queued, flag.set in page-locked memory"

STREAM_WRITE = "a stream's write"
MEMSET = "a memset of 4 B"
KERNEL = "a kernel"

#: Time for the GPU to reach the wait, or to come to rest, before the clock starts (ns).
_SETTLE = 30_000
_TIMEOUT = 5.0

_PTX = b"""
.version 6.0
.target sm_60
.address_size 64
.visible .entry put(.param .u64 address, .param .u32 value)
{
	.reg .u64 %address;
	.reg .u32 %value;
	ld.param.u64 %address, [address];
	ld.param.u32 %value, [value];
	st.volatile.global.u32 [%address], %value;
	ret;
}
\0"""

#: Queues the storing of a value.
Work = Callable[[int], object]


class Started:
    """Work that stores a number in ``reply``; a ``bell`` starts it, or its launch."""

    def __init__(self, work: Work, reply: Flag, stream: Any, bell: Flag | None) -> None:
        self._work = work
        self._reply = reply
        self._stream = stream
        self._bell = bell

    def once(self) -> bool:
        """Whether the number arrived."""
        taken, right = self._start()
        return taken > 0 and right

    def batch(self, calls: int) -> int:
        return sum(self._start()[0] for _ in range(calls))

    def _start(self) -> tuple[int, bool]:
        now, wait, bell = time.perf_counter_ns, self._reply.wait, self._bell
        number = self._reply.get() + 1
        if bell:
            bell.stream_wait(self._stream, number)
            self._work(number)
        settled = now() + _SETTLE
        while now() < settled:
            pass
        act, argument = (bell.set, number) if bell else (self._work, number)
        begun = now()
        act(argument)
        found = wait(number, _TIMEOUT)
        return now() - begun, found == number


def run(session: Session) -> None:
    """Measure starts into the session."""
    with (
        gdrpy.alloc(4096) as region,
        gdrpy.page_locked(4096) as memory,
        gpukernels.stream() as stream,
        _works(memory.flag(0), stream) as works,
    ):
        reply = memory.flag(0)
        bells = {LAUNCHED: None, BY_MAPPING: region.flag(), BY_PINNED: memory.flag(64)}
        for flag in (reply, *bells.values()):
            if flag:
                flag.set(0)
        for operation, work in works.items():
            session.compare(
                Topic(MODULE, operation),
                [
                    Contender(
                        way,
                        "until the result is seen; queued and at rest for 30 us before"
                        if bell
                        else "from the launch until the result is seen; at rest for 30 us before",
                        Started(work, reply, stream, bell),
                        lambda timed: bool(timed.once()),
                    )
                    for way, bell in bells.items()
                ],
            )


@contextmanager
def _works(reply: Flag, stream: Any) -> Iterator[dict[str, Work]]:
    """The kinds of work; the simulated GPU has no kernels. Raises CudaError."""
    cuda.call("cuMemsetD32Async", reply.ptr, 0, 1, stream)  # the calls below do not tell
    memset = cuda.driver().cuMemsetD32Async
    works: dict[str, Work] = {
        STREAM_WRITE: lambda number: reply.stream_write(stream, number),
        MEMSET: lambda number: memset(reply.ptr, number, 1, stream),
    }
    if cuda.simulated():
        yield works
        return
    with gpukernels.loaded(_PTX, b"put", 1, ctypes.c_void_p, ctypes.c_uint) as put:
        address = reply.ptr
        works[KERNEL] = lambda number: put(stream, address, number)
        yield works
