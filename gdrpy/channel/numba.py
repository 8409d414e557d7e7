"""The kernel's end of channels, inboxes and links for numba.cuda kernels.

``channel``, ``inbox`` and ``link`` are addresses: pass ``numpy.uint64(channel.ptr)`` to the kernel.
``head`` counts the records taken, as an unsigned 64-bit int. Numbers of records and of requests are
such ints too, counted from the first.
"""

from __future__ import annotations

from typing import Any

from gdrpy.channel.layout import (
    CAPACITY,
    CLOSED,
    END,
    HEAD,
    INBOX_SLOTS,
    LINK_ANSWERS,
    LINK_END,
    LINK_REQUESTS,
    LINK_STOPPED,
    LINK_TAKEN,
    READER_CLOSED,
    RECORD_NBYTES,
    RECORDS,
    RESERVED,
    SLOT_ADDRESS,
    SLOT_CAPACITY,
    SLOT_RECORD_NBYTES,
    STOPPED,
    TAIL,
    TAKEN,
)
from gdrpy.common.extras import brought_by

with brought_by("gdrpy[numba]"):
    from llvmlite import ir
    from numba import cuda, int64, types, uint64
    from numba.cuda.extending import intrinsic


def _load(instruction: str, result: Any, side_effect: bool) -> Any:
    """A device function that loads from an address by one PTX instruction."""

    @intrinsic
    def load(context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = context.get_value_type(signature.return_type)
            constraint = {32: "r", 64: "l"}[signature.return_type.bitwidth]
            code = ir.InlineAsm(
                ir.FunctionType(kind, [ir.IntType(64)]),
                f"{instruction} $0, [$1];",
                f"={constraint},l" + ",~{memory}" * side_effect,
                side_effect=side_effect,
            )
            return builder.call(code, args)

        return result(types.uint64), generate

    return load


# The descriptor never changes, so the compiler may load its fields once; other words are reloaded.
_field = _load("ld.global.u64", types.uint64, side_effect=False)
_half_field = _load("ld.global.u32", types.uint32, side_effect=False)
_acquire = _load("ld.acquire.sys.global.u64", types.uint64, side_effect=True)
_volatile = _load("ld.volatile.global.u64", types.uint64, side_effect=True)


def _act(instruction: str, arguments: int, result: bool) -> Any:
    """A device function of 64-bit arguments, of which one PTX instruction makes an access."""
    word = ir.IntType(64)
    kind = word if result else ir.VoidType()
    constraints = ",".join(["=l"] * result + ["l"] * arguments + ["~{memory}"])

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        shape = ir.FunctionType(kind, [word] * arguments)
        code = ir.InlineAsm(shape, instruction, constraints, side_effect=True)
        done = builder.call(code, args)
        return done if result else context.get_dummy_value()

    made = types.uint64 if result else types.void
    if arguments == 3:

        @intrinsic
        def act(context: Any, address: Any, value: Any, second: Any) -> Any:
            return made(*[types.uint64] * 3), generate

    else:

        @intrinsic
        def act(context: Any, address: Any, value: Any) -> Any:
            return made(*[types.uint64] * 2), generate

    return act


_store = _act("st.relaxed.sys.global.u64 [$0], $1;", 2, result=False)
_store_pair = _act("st.relaxed.sys.global.v2.u64 [$0], {$1, $2};", 3, result=False)
_add = _act("atom.relaxed.gpu.global.add.u64 $0, [$1], $2;", 2, result=True)


@cuda.jit(device=True)
def begin(channel):
    """The number of records that earlier consumers have taken: the first ``head``."""
    return _acquire(_field(channel + uint64(HEAD)))


@cuda.jit(device=True)
def wait(channel, head):
    """Wait until records are ready and return how many; 0 at the end. For one thread."""
    tail = _field(channel + uint64(TAIL))
    closed = _field(channel + uint64(CLOSED))
    while True:
        ready = _acquire(tail) - head
        if ready != uint64(0):
            return ready
        if _acquire(closed) != uint64(0):
            return _acquire(tail) - head  # records pushed before close()


@cuda.jit(device=True)
def _is_first_thread():
    return cuda.threadIdx.x == 0 and cuda.threadIdx.y == 0 and cuda.threadIdx.z == 0


@cuda.jit(device=True)
def wait_block(channel, head):
    """:func:`wait` for a block: all its threads call it and get the same result."""
    shared = cuda.shared.array(1, uint64)
    if _is_first_thread():
        shared[0] = wait(channel, head)
    cuda.syncthreads()
    ready = shared[0]
    cuda.syncthreads()  # all threads have it before the next call changes it
    return ready


@cuda.jit(device=True)
def load64(channel, index, word):
    """64-bit word number ``word`` of record number ``index``, which must be ready."""
    slot = uint64(index) & (_field(channel + uint64(CAPACITY)) - uint64(1))
    start = _field(channel + uint64(RECORDS))
    nbytes = uint64(_half_field(channel + uint64(RECORD_NBYTES)))
    return _volatile(start + slot * nbytes + uint64(8) * uint64(word))


@cuda.jit(device=True)
def release(channel, head):
    """Return the slots of the records before number ``head`` to the CPU. For one thread."""
    cuda.threadfence_system()  # records are loaded before their slots are returned
    _store(_field(channel + uint64(HEAD)), uint64(head))


@cuda.jit(device=True)
def release_block(channel, head):
    """:func:`release` for a block: all its threads call it after they loaded the records."""
    cuda.syncthreads()
    if _is_first_thread():
        release(channel, head)


@cuda.jit(device=True)
def stop(channel):
    """Take no more records: the CPU's pushes raise Closed. For one thread."""
    cuda.threadfence_system()
    _store(_field(channel + uint64(STOPPED)), uint64(1))


@cuda.jit(device=True)
def reserve(inbox):
    """The number of a record to push, whose place is free; READER_CLOSED once the reader is closed.

    It waits while there is no room. Threads of a warp that call it at the same time make one
    atomic; then the inbox must have a capacity of 64 or more. The CPU that has the record sees all
    that this thread stored before.
    """
    together = cuda.match_any_sync(cuda.activemask(), int64(inbox))
    leader = cuda.ffs(together) - 1
    before = cuda.popc(together & ((1 << cuda.laneid) - 1))
    number = uint64(0)
    if before == 0:
        number = _add(_field(inbox + uint64(RESERVED)), uint64(cuda.popc(together)))
    number = uint64(cuda.shfl_sync(together, int64(number), leader)) + uint64(before)
    taken = _field(inbox + uint64(TAKEN))
    capacity = _field(inbox + uint64(INBOX_SLOTS + SLOT_CAPACITY))
    while True:
        now = _acquire(taken)
        if now >= uint64(READER_CLOSED):
            return uint64(READER_CLOSED)
        if number - now < capacity:
            break
    cuda.threadfence_system()
    return number


@cuda.jit(device=True)
def _slot(slots, number):
    """The address of a record's slot, and the stamp of its words."""
    capacity = _field(slots + uint64(SLOT_CAPACITY))
    nbytes = uint64(2) * _field(slots + uint64(SLOT_RECORD_NBYTES))
    slot = _field(slots + uint64(SLOT_ADDRESS)) + (uint64(number) & (capacity - uint64(1))) * nbytes
    return slot, (uint64(number) + capacity) << uint64(32)


@cuda.jit(device=True)
def _put64(slots, number, word, value):
    slot, stamp = _slot(slots, number)
    low, high = uint64(value) & uint64(0xFFFFFFFF), uint64(value) >> uint64(32)
    _store_pair(slot + uint64(16) * uint64(word), stamp | low, stamp | high)


@cuda.jit(device=True)
def put64(inbox, number, word, value):
    """Store 64-bit word number ``word`` of a reserved record; every word of it must be stored."""
    _put64(inbox + uint64(INBOX_SLOTS), number, word, value)


@cuda.jit(device=True)
def finish(inbox):
    """Tell the reader that no record follows: for one thread, after all have reserved theirs."""
    _store(_field(inbox + uint64(END)), _acquire(_field(inbox + uint64(RESERVED))) + uint64(1))


@cuda.jit(device=True)
def begin_link(link):
    """The number of the first request that earlier servers have not released."""
    return _acquire(_field(link + uint64(LINK_TAKEN)))


@cuda.jit(device=True)
def wait_link(link, number):
    """Wait for request ``number``; false at the end, where it will not come. For one thread.

    The thread then sees all that the CPU stored before the request.
    """
    slot, stamp = _slot(link + uint64(LINK_REQUESTS), number)
    nbytes = _field(link + uint64(LINK_REQUESTS + SLOT_RECORD_NBYTES))
    last = nbytes // uint64(4) - uint64(1)
    end_word = _field(link + uint64(LINK_END))
    while True:
        end = _volatile(end_word)
        wrong = uint64(0)
        for word in range(last):
            wrong |= _volatile(slot + uint64(8) * word) ^ stamp
        wrong |= _acquire(slot + uint64(8) * last) ^ stamp
        if wrong >> uint64(32) == uint64(0):
            return True
        if end != uint64(0) and uint64(number) >= end - uint64(1):
            return False


@cuda.jit(device=True)
def wait_link_block(link, number):
    """:func:`wait_link` for a block: all its threads call it and get the same result."""
    shared = cuda.shared.array(1, uint64)
    if _is_first_thread():
        shared[0] = wait_link(link, number)
    cuda.syncthreads()
    came = shared[0] != uint64(0)
    cuda.syncthreads()  # all threads have it before the next call changes it
    return came


@cuda.jit(device=True)
def request64(link, number, word):
    """64-bit word number ``word`` of request ``number``, which must have come.

    All that is needed of a request must be loaded before the last word of its answer is stored.
    """
    slot, _ = _slot(link + uint64(LINK_REQUESTS), number)
    address = slot + uint64(16) * uint64(word)
    low, high = _volatile(address), _volatile(address + uint64(8))
    return low & uint64(0xFFFFFFFF) | high << uint64(32)


@cuda.jit(device=True)
def answer64(link, number, word, value):
    """Store 64-bit word number ``word`` of the answer to request ``number``.

    Every word must be stored, by any threads. Before, ``cuda.threadfence_system()`` lets the CPU
    that has the answer see what this thread has stored.
    """
    _put64(link + uint64(LINK_ANSWERS), number, word, value)


@cuda.jit(device=True)
def release_link(link, number):
    """Let a later server begin at request ``number``. For one thread."""
    _store(_field(link + uint64(LINK_TAKEN)), uint64(number))


@cuda.jit(device=True)
def stop_link(link):
    """Answer no more requests: calls that still wait raise Closed. For one thread."""
    cuda.threadfence_system()  # the CPU sees the answers before
    _store(_field(link + uint64(LINK_STOPPED)), uint64(1))
