"""The consumer's end of a channel for Triton kernels, of which one program is the consumer.

``channel`` is the address of its descriptor: pass ``channel.ptr`` to the kernel. ``head`` counts
the records taken, as an int64; record number i is the i-th ever.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gdrpy.channel import layout

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

    One thread reads it for all, as Triton does atomics: several loads might see several values.
    """
    return tl.atomic_add(_words(address), 0, sem="acquire", scope="sys")


@triton.jit
def _store(address, value):
    tl.debug_barrier()  # all threads have loaded their records before their room is given back
    tl.inline_asm_elementwise(
        "fence.acq_rel.sys; mov.b64 $0, $1;", "=l,l", [value], tl.int64, is_pure=False, pack=1
    )
    tl.store(_words(address), value, cache_modifier=".wt")


@triton.jit
def begin(channel):
    """How many records earlier consumers have taken: the ``head`` to begin with."""
    return tl.load(_words(_field(channel, _HEAD)), volatile=True)


@triton.jit
def wait(channel, head):
    """Wait until records are ready, and say how many; 0 at the end."""
    tail = _field(channel, _TAIL)
    closed = _field(channel, _CLOSED)
    ready = _now(tail) - head
    ended = ready * 0
    while (ready == 0) & (ended == 0):
        ended = _now(closed)
        ready = _now(tail) - head  # after the end was seen: what was pushed before it counts
    return ready


@triton.jit
def load64(channel, index, word, mask):
    """64-bit words number ``word`` of the records number ``index``, which are ready; blocks."""
    slot = index & (_field(channel, _CAPACITY) - 1)
    nbytes = tl.load((channel + _RECORD_NBYTES).to(tl.pointer_type(tl.int32))).to(tl.int64)
    address = _field(channel, _RECORDS) + slot * nbytes + word * 8
    return tl.load(_words(address), mask=mask, other=0, volatile=True)


@triton.jit
def release(channel, head):
    """Give the room of the records before number ``head`` back to the CPU."""
    _store(_field(channel, _HEAD), head)


@triton.jit
def stop(channel):
    """Take no more: the CPU's pushes raise Closed."""
    _store(_field(channel, _STOPPED), begin(channel) * 0 + 1)
