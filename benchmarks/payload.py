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

#: No payload holds this byte, so memory filled with it shows every byte that did not arrive.
STALE = 0xFF

_random = np.random.default_rng(1)


def payload(nbytes: int) -> bytes:
    """Random bytes without STALE among them, different in each call."""
    return _random.integers(0, STALE, nbytes, dtype=np.uint8).tobytes()


class GpuBytes:
    """GPU memory as the CUDA driver's own copies see it. Needs a current context."""

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr

    def put(self, data: bytes) -> None:
        """Copy bytes to it, done on return."""
        cuda.call("cuMemcpyHtoD", self.ptr, data, len(data))
        cuda.call("cuCtxSynchronize")

    def get(self, nbytes: int) -> bytes:
        """Its first bytes."""
        buffer = bytearray(nbytes)
        cuda.call("cuMemcpyDtoH", buffer, self.ptr, nbytes)
        return bytes(buffer)


def lands(gpu: GpuBytes, data: bytes) -> Verify:
    """Proves that a call writes ``data`` to the GPU memory."""

    def verify(timed: Timed) -> bool:
        gpu.put(bytes([STALE]) * len(data))
        timed.once()
        return gpu.get(len(data)) == data

    return verify


def fills(gpu: GpuBytes, buffer: NDArray[np.uint8]) -> Verify:
    """Proves that a call reads the GPU memory into a buffer of that many bytes."""

    def verify(timed: Timed) -> bool:
        data = payload(buffer.nbytes)
        gpu.put(data)
        buffer.fill(STALE)
        timed.once()
        return buffer.tobytes() == data

    return verify


def returns(gpu: GpuBytes, nbytes: int, as_bytes: Callable[[Any], bytes] = bytes) -> Verify:
    """Proves that a call reads the GPU memory and gives it as its result."""

    def verify(timed: Timed) -> bool:
        data = payload(nbytes)
        gpu.put(data)
        return as_bytes(timed.once()) == data

    return verify


@contextmanager
def pinned(nbytes: int) -> Iterator[NDArray[np.uint8]]:
    """Page-locked host memory as an array of bytes. Needs a current context."""
    address = int(cuda.call("cuMemAllocHost", nbytes))
    try:
        yield np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
    finally:
        cuda.call("cuMemFreeHost", address)
