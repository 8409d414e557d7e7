"""Copies and fills by the GPU's DMA engine, done when the call returns.

They wait for no kernels: DMA runs in a stream of its own that does not synchronize with the legacy
default stream.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from gdrpy import cuda
from gdrpy._arguments import as_range
from gdrpy._core import _ffi
from gdrpy.allocation import Allocation
from gdrpy.backends.memfd import Memfd

ffi = _ffi.ffi


def write(allocation: Allocation | Memfd, room: int, data: Any, offset: Any) -> None:
    """Copy a contiguous buffer to byte ``offset`` of the ``room`` first bytes."""
    source = ffi.from_buffer(data)
    host, nbytes = _address(source), len(source)
    start, _ = as_range("Region.write", offset, nbytes, room)
    _run(allocation, start, nbytes, lambda ptr: ("cuMemcpyHtoDAsync", ptr, host, nbytes))


def readinto(allocation: Allocation | Memfd, room: int, buffer: Any, offset: Any) -> int:
    """Fill a writable contiguous buffer from byte ``offset``; returns its size in bytes."""
    target = ffi.from_buffer(buffer, require_writable=True)
    host, nbytes = _address(target), len(target)
    start, _ = as_range("Region.readinto", offset, nbytes, room)
    _run(allocation, start, nbytes, lambda ptr: ("cuMemcpyDtoHAsync", host, ptr, nbytes))
    return nbytes


def fill(allocation: Allocation | Memfd, value: int, start: int, nbytes: int) -> None:
    """Set ``nbytes`` bytes from ``start`` on, which lie inside, to a byte's value."""
    _run(allocation, start, nbytes, lambda ptr: ("cuMemsetD8Async", ptr, value, nbytes))


def _run(
    allocation: Allocation | Memfd, start: int, nbytes: int, work: Callable[[int], tuple[Any, ...]]
) -> None:
    """Queue a call that works on ``nbytes`` bytes at an address, and wait for it."""
    ptr, device = allocation.ptr, allocation.device
    assert ptr is not None
    assert device is not None
    if not nbytes:
        return
    allocation.hold()
    try:
        with cuda.context(device):
            stream = _stream(device)
            cuda.call(*work(ptr + start), stream)
            cuda.call("cuStreamSynchronize", stream)
    finally:
        allocation.let_go()


def _address(buffer: Any) -> int:
    return int(ffi.cast("uintptr_t", buffer))


@functools.cache
def _stream(device: int) -> Any:
    """The stream of all DMA on a device; the caller has made its primary context current."""
    del device
    flags = cuda.driver().CUstream_flags.CU_STREAM_NON_BLOCKING
    return cuda.call("cuStreamCreate", flags)
