"""The kernel's end of channels, inboxes and links for Triton kernels.

``channel``, ``inbox`` and ``link`` are addresses: pass ``channel.ptr`` to the kernel. A link is a
channel of requests too. One program of the kernel takes records, any number of them pushes.
``head`` counts the records taken, as an int64; record number i is the i-th ever.
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
_SLOT_CAPACITY = tl.constexpr(layout.SLOT_CAPACITY)
_SLOT_RECORD_NBYTES = tl.constexpr(layout.SLOT_RECORD_NBYTES)
_INBOX_SLOTS = tl.constexpr(layout.INBOX_SLOTS)
_LINK_ANSWERS = tl.constexpr(layout.LINK_ANSWERS)
_RESERVED = tl.constexpr(layout.RESERVED)
_TAKEN = tl.constexpr(layout.TAKEN)
_END = tl.constexpr(layout.END)


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
def fence(value):
    """The CPU that sees a later store of this program sees all its earlier ones. ``value`` is any
    int64, which is not changed.
    """
    tl.debug_barrier()
    tl.inline_asm_elementwise(
        "fence.acq_rel.sys; mov.b64 $0, $1;", "=l,l", [value], tl.int64, is_pure=False, pack=1
    )


@triton.jit
def _store(address, value):
    fence(value)  # all threads have loaded their records before the slots are returned
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


@triton.jit
def reserve(inbox, count):
    """The number of the first of ``count`` records to push, whose places are free; negative once
    the reader is closed.

    It waits while there is no room. ``count`` is at most half of the inbox's capacity. The CPU that
    has the records sees all that this program stored before.
    """
    number = tl.atomic_add(_words(_field(inbox, _RESERVED)), count, sem="relaxed", scope="gpu")
    last = number + count - _field(inbox, _INBOX_SLOTS + _SLOT_CAPACITY)
    word = _field(inbox, _TAKEN)
    taken = _now(word)
    while (taken >= 0) & (taken <= last - 1):
        taken = _now(word)
    fence(number)
    return tl.where(taken < 0, taken, number)


@triton.jit
def _put64(slots, number, word, value, mask):
    capacity = _field(slots, _SLOT_CAPACITY)
    nbytes = _field(slots, _SLOT_RECORD_NBYTES) * 2
    address = _field(slots, 0) + (number & (capacity - 1)) * nbytes + word * 16
    stamp = (number + capacity) << 32
    low = stamp | (value & 0xFFFFFFFF)
    high = stamp | ((value >> 32) & 0xFFFFFFFF)
    tl.store(_words(address), low, mask=mask, cache_modifier=".wt")
    tl.store(_words(address + 8), high, mask=mask, cache_modifier=".wt")


@triton.jit
def put64(inbox, number, word, value, mask):
    """64-bit words ``word`` of the records ``number``, which are reserved; all are blocks.

    Every word of a record must be stored.
    """
    _put64(inbox + _INBOX_SLOTS, number, word, value, mask)


@triton.jit
def finish(inbox):
    """Tell the reader that no record follows: for one program, after all have reserved theirs."""
    _store(_field(inbox, _END), _now(_field(inbox, _RESERVED)) + 1)


@triton.jit
def answer64(link, number, word, value, mask):
    """64-bit words ``word`` of the answers to the requests ``number``; all are blocks.

    Every word of an answer must be stored. :func:`fence` before it lets the CPU that has the answer
    see what this program has stored.
    """
    _put64(link + _LINK_ANSWERS, number, word, value, mask)
