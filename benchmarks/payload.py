"""The bytes that benchmarks move, and the proofs that they arrived."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdrpy import cuda
from harness import Timed, Verify

Bytes = NDArray[np.uint8]

#: No payload holds this byte, so memory filled with it shows every byte that did not arrive.
STALE = 0xFF

#: Payloads repeat after a prime number of bytes, so that no misplaced block looks right.
_PERIOD = 1048583
_STARTS = 4096

_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]

_random = np.random.default_rng(1)
_noise: Bytes = _random.integers(0, STALE, _PERIOD, dtype=np.uint8)
_seen: Bytes = np.empty(0, np.uint8)


def payload(nbytes: int) -> Bytes:
    """New random bytes without STALE among them. Do not change them."""
    global _noise
    if _noise.size < nbytes + _STARTS:
        _noise = np.resize(_noise, nbytes + _STARTS)
    start = int(_random.integers(_STARTS))
    return _noise[start : start + nbytes]


class GpuBytes:
    """GPU memory as the CUDA driver's own copies see it. Needs a current context."""

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr

    def put(self, data: Bytes) -> None:
        """Copy bytes to it, done on return."""
        cuda.call("cuMemcpyHtoD", self.ptr, data.ctypes.data, data.nbytes)
        cuda.call("cuCtxSynchronize")

    def fill(self, nbytes: int) -> None:
        """Make its first bytes STALE."""
        cuda.call("cuMemsetD8", self.ptr, STALE, nbytes)
        cuda.call("cuCtxSynchronize")

    def get(self, nbytes: int) -> Bytes:
        """Its first bytes, in memory that the next call reuses."""
        global _seen
        if _seen.size < nbytes:
            _seen = np.empty(nbytes, np.uint8)
        cuda.call("cuMemcpyDtoH", _seen.ctypes.data, self.ptr, nbytes)
        return _seen[:nbytes]


def as_bytes(buffer: Any) -> Bytes:
    """A buffer's bytes."""
    return np.frombuffer(buffer, np.uint8)


def same(one: Bytes, other: Bytes) -> bool:
    """Whether two contiguous arrays hold the same bytes; array_equal would copy."""
    return one.nbytes == other.nbytes and not _memcmp(
        one.ctypes.data, other.ctypes.data, one.nbytes
    )


def lands(gpu: GpuBytes, data: Bytes) -> Verify:
    """Proves that a call writes ``data`` to the GPU memory."""

    def verify(timed: Timed) -> bool:
        gpu.fill(data.nbytes)
        timed.once()
        return same(gpu.get(data.nbytes), data)

    return verify


def fills(gpu: GpuBytes, buffer: Bytes) -> Verify:
    """Proves that a call reads the GPU memory into a buffer of that many bytes."""

    def verify(timed: Timed) -> bool:
        data = payload(buffer.nbytes)
        gpu.put(data)
        buffer.fill(STALE)
        timed.once()
        return same(buffer, data)

    return verify


def returns(gpu: GpuBytes, nbytes: int, seen: Callable[[Any], Bytes] = as_bytes) -> Verify:
    """Proves that a call returns the bytes of the GPU memory."""

    def verify(timed: Timed) -> bool:
        data = payload(nbytes)
        gpu.put(data)
        return same(seen(timed.once()), data)

    return verify


@contextmanager
def pinned(nbytes: int) -> Iterator[Bytes]:
    """Page-locked host memory as an array of bytes. Needs a current context."""
    address = int(cuda.call("cuMemAllocHost", nbytes))
    try:
        yield np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
    finally:
        cuda.call("cuMemFreeHost", address)
