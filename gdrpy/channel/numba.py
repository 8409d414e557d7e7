"""The consumer of a channel for numba.cuda kernels.

``channel`` is the address of its descriptor: pass ``numpy.uint64(channel.ptr)`` to the kernel.
``head`` counts the records taken, as an unsigned 64-bit int; record number i is the i-th ever.
"""

from __future__ import annotations

from typing import Any

from gdrpy.channel.layout import CAPACITY, CLOSED, HEAD, RECORD_NBYTES, RECORDS, STOPPED, TAIL
from gdrpy.common.extras import brought_by

with brought_by("gdrpy[numba]"):
    from llvmlite import ir
    from numba import cuda, types, uint64
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


@intrinsic
def _store(context: Any, address: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(64)
        code = ir.InlineAsm(
            ir.FunctionType(ir.VoidType(), [word, word]),
            "st.volatile.global.u64 [$0], $1;",
            "l,l,~{memory}",
            side_effect=True,
        )
        builder.call(code, args)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64), generate


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
