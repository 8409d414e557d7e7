"""The kernel's end of channels, inboxes and links for numba.cuda kernels.

``channel``, ``inbox`` and ``link`` are addresses: pass ``numpy.uint64(channel.ptr)`` to the kernel.
A link is a channel of requests too. ``head`` counts the records taken, as an unsigned 64-bit int;
record number i is the i-th ever.
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
def wait_block(channel, head):
    """:func:`wait` for a block: all its threads call it and get the same result."""
    shared = cuda.shared.array(1, uint64)
    if cuda.threadIdx.x == 0 and cuda.threadIdx.y == 0 and cuda.threadIdx.z == 0:
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
    if cuda.threadIdx.x == 0 and cuda.threadIdx.y == 0 and cuda.threadIdx.z == 0:
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
def _put64(slots, number, word, value):
    capacity = _field(slots + uint64(SLOT_CAPACITY))
    nbytes = uint64(2) * _field(slots + uint64(SLOT_RECORD_NBYTES))
    slot = _field(slots + uint64(SLOT_ADDRESS)) + (uint64(number) & (capacity - uint64(1))) * nbytes
    stamp = (uint64(number) + capacity) << uint64(32)
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
def answer64(link, number, word, value):
    """Store 64-bit word number ``word`` of the answer to request ``number``.

    Every word must be stored, by any threads. Before, ``cuda.threadfence_system()`` lets the CPU
    that has the answer see what this thread has stored.
    """
    _put64(link + uint64(LINK_ANSWERS), number, word, value)
