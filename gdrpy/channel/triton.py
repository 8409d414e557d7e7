"""The kernel's end of channels, inboxes and links for Triton kernels.

``channel``, ``inbox`` and ``link`` are addresses: pass ``channel.ptr`` to the kernel. One program
of the kernel takes records or requests, any number of them pushes. ``head`` counts the records
taken, as an int64. Numbers of records and of requests are such ints too, counted from the first.
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
_LINK_REQUESTS = tl.constexpr(layout.LINK_REQUESTS)
_LINK_ANSWERS = tl.constexpr(layout.LINK_ANSWERS)
_LINK_END = tl.constexpr(layout.LINK_END)
_LINK_TAKEN = tl.constexpr(layout.LINK_TAKEN)
_LINK_STOPPED = tl.constexpr(layout.LINK_STOPPED)
_RESERVED = tl.constexpr(layout.RESERVED)
_TAKEN = tl.constexpr(layout.TAKEN)
_END = tl.constexpr(layout.END)
#: Words of a slot that are looked at together: those of 64 bytes.
_LOOKED_AT = tl.constexpr(16)


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
def _slot(slots, number):
    """The addresses of records' slots, and the stamps of their words."""
    capacity = _field(slots, _SLOT_CAPACITY)
    nbytes = _field(slots, _SLOT_RECORD_NBYTES) * 2
    return _field(slots, 0) + (number & (capacity - 1)) * nbytes, (number + capacity) << 32


@triton.jit
def _put64(slots, number, word, value, mask):
    slot, stamp = _slot(slots, number)
    address = slot + word * 16
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
def _all(condition):
    """Whether a condition, 0 or 1, holds for all threads of the program, which all get the answer.

    It is a barrier: afterwards all threads see what each of them saw before.
    """
    return tl.inline_asm_elementwise(
        """
        {
            .reg .pred one, all;
            setp.ne.s32 one, $1, 0;
            barrier.red.and.pred all, 0, one;
            selp.s32 $0, 1, 0, all;
        }
        """,
        "=r,r",
        [condition],
        tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def begin_link(link):
    """The number of the first request that earlier servers have not released."""
    return tl.load(_words(_field(link, _LINK_TAKEN)), volatile=True)


@triton.jit
def wait_link(link, number):
    """Wait for request ``number``; whether it came: false at the end.

    :func:`fence` after it lets the program see what the CPU stored before the request.
    """
    slot, stamp = _slot(link + _LINK_REQUESTS, number)
    words = _field(link, _LINK_REQUESTS + _SLOT_RECORD_NBYTES) // 4
    end_word = _words(_field(link, _LINK_END))
    came = 0
    ended = 0
    # Threads may see different words. What all have seen, none can miss later.
    while (came == 0) & (ended == 0):
        end = tl.load(end_word, volatile=True)
        wrong = tl.zeros([_LOOKED_AT], tl.int64)
        for first in range(0, words, _LOOKED_AT):
            word = first + tl.arange(0, _LOOKED_AT)
            found = tl.load(_words(slot + word * 8), mask=word < words, other=stamp, volatile=True)
            wrong |= (found ^ stamp) >> 32
        came = _all((tl.max((wrong != 0).to(tl.int32)) == 0).to(tl.int32))
        ended = _all(((end != 0) & (number >= end - 1)).to(tl.int32))
    return came != 0


@triton.jit
def request64(link, number, word, mask):
    """64-bit words ``word`` of the requests ``number``, which must have come; all are blocks.

    All that is needed of a request must be loaded before the last call of :func:`answer64` for it.
    """
    slot, _stamp = _slot(link + _LINK_REQUESTS, number)
    address = slot + word * 16
    low = tl.load(_words(address), mask=mask, other=0, volatile=True)
    high = tl.load(_words(address + 8), mask=mask, other=0, volatile=True)
    return (low & 0xFFFFFFFF) | (high << 32)


@triton.jit
def answer64(link, number, word, value, mask):
    """64-bit words ``word`` of the answers to the requests ``number``; all are blocks.

    Every word of an answer must be stored. :func:`fence` before it lets the CPU that has the answer
    see what this program has stored.
    """
    tl.debug_barrier()  # all threads have loaded the request, whose slot is then the CPU's again
    _put64(link + _LINK_ANSWERS, number, word, value, mask)


@triton.jit
def release_link(link, number):
    """Let a later server begin at request ``number``."""
    tl.store(_words(_field(link, _LINK_TAKEN)), number)


@triton.jit
def stop_link(link):
    """Answer no more requests: calls that still wait raise Closed."""
    _store(_field(link, _LINK_STOPPED), begin_link(link) * 0 + 1)
