"""The consumer of a channel for Triton kernels: one program of the kernel.

``channel`` is the address of its descriptor: pass ``channel.ptr`` to the kernel. ``head`` counts
the records taken, as an int64; record number i is the i-th ever.
"""

from __future__ import annotations

from gdrpy.channel import layout
from gdrpy.common.extras import brought_by

with brought_by("gdrpy[torch]"):
    import triton
    import triton.language as tl

_RECORD_NBYTES = tl.constexpr(layout.RECORD_NBYTES)
_CAPACITY = tl.constexpr(layout.CAPACITY)
_RECORDS = tl.constexpr(layout.RECORDS)
_TAIL = tl.constexpr(layout.TAIL)
_CLOSED = tl.constexpr(layout.CLOSED)
_HEAD = tl.constexpr(layout.HEAD)
_STOPPED = tl.constexpr(layout.STOPPED)


@triton.jit
def _words(address):
    return address.to(tl.pointer_type(tl.int64))


@triton.jit
def _field(channel, offset: tl.constexpr):
    return tl.load(_words(channel + offset))


@triton.jit
def _now(address):
    """A word of GPU memory, the same for all threads of the program.

    One thread reads it for all, as in Triton's atomics: several loads might see different values.
    """
    return tl.atomic_add(_words(address), 0, sem="acquire", scope="sys")


@triton.jit
def _store(address, value):
    tl.debug_barrier()  # all threads have loaded their records before the slots are returned
    tl.inline_asm_elementwise(
        "fence.acq_rel.sys; mov.b64 $0, $1;", "=l,l", [value], tl.int64, is_pure=False, pack=1
    )
    tl.store(_words(address), value, cache_modifier=".wt")


@triton.jit
def begin(channel):
    """The number of records that earlier consumers have taken: the first ``head``."""
    return tl.load(_words(_field(channel, _HEAD)), volatile=True)


@triton.jit
def wait(channel, head):
    """Wait until records are ready and return how many; 0 at the end."""
    tail = _field(channel, _TAIL)
    closed = _field(channel, _CLOSED)
    ready = _now(tail) - head
    ended = ready * 0
    while (ready == 0) & (ended == 0):
        ended = _now(closed)
        ready = _now(tail) - head  # after ``ended``, to count records pushed before close()
    return ready


@triton.jit
def load64(channel, index, word, mask):
    """64-bit words ``word`` of the records ``index``, which must be ready; both are blocks."""
    slot = index & (_field(channel, _CAPACITY) - 1)
    nbytes = tl.load((channel + _RECORD_NBYTES).to(tl.pointer_type(tl.int32))).to(tl.int64)
    address = _field(channel, _RECORDS) + slot * nbytes + word * 8
    return tl.load(_words(address), mask=mask, other=0, volatile=True)


@triton.jit
def release(channel, head):
    """Return the slots of the records before number ``head`` to the CPU."""
    _store(_field(channel, _HEAD), head)


@triton.jit
def stop(channel):
    """Take no more records: the CPU's pushes raise Closed."""
    _store(_field(channel, _STOPPED), begin(channel) * 0 + 1)
