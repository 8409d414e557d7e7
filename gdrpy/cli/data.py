"""The bytes that commands move, and the proof that they arrived.

Noise is the same for the same seeds, so a second process needs nothing but seeds to expect it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdrpy import Region, cuda

#: Bytes shown of each side, from the first differing one on.
_SHOWN = 16

#: Regions up to this size are checked whole, in bytes; larger ones are sampled in windows.
WHOLE_UP_TO = 16 << 20
_WINDOW = 1 << 20
_WINDOWS = 16

Bytes = NDArray[np.uint8]


class Noise:
    """Random bytes, the same for the same seeds."""

    def __init__(self, *seeds: int) -> None:
        self._generator = np.random.default_rng(seeds)

    def bytes(self, nbytes: int) -> Bytes:
        """The next ``nbytes`` bytes."""
        return self._generator.integers(0, 256, nbytes, dtype=np.uint8)


def windows(nbytes: int) -> list[tuple[int, int]]:
    """(offset, size) of the ranges to check: the whole region, or a sample that has both ends."""
    if nbytes <= WHOLE_UP_TO:
        return [(0, nbytes)]
    last = nbytes - _WINDOW
    return [(last * i // (_WINDOWS - 1), _WINDOW) for i in range(_WINDOWS)]


def repeated(word: int, offset: int, nbytes: int) -> Bytes:
    """``nbytes`` bytes, from ``offset`` on, of memory filled with a 32-bit word."""
    words = np.full(nbytes // 4 + 2, word, "<u4").view(np.uint8)
    return words[offset % 4 :][:nbytes]


def on_gpu(device: int, name: str, *args: Any) -> None:
    """Make a driver call on the device's default stream and wait for it."""
    with cuda.context(device):
        cuda.call(name, *args)
        cuda.call("cuStreamSynchronize", cuda.stream_handle(None))


def gpu_put(device: int, ptr: int, data: Any) -> None:
    """Write a contiguous buffer to GPU memory by the driver's own copy."""
    on_gpu(device, "cuMemcpyHtoD", ptr, data, memoryview(data).nbytes)


def gpu_get(device: int, ptr: int, nbytes: int) -> Bytes:
    """Read GPU memory by the driver's own copy."""
    buffer = np.zeros(nbytes, np.uint8)
    on_gpu(device, "cuMemcpyDtoH", buffer, ptr, nbytes)
    return buffer


@dataclass(frozen=True)
class Difference:
    """``offset`` is that of the first differing byte; the excerpts begin there, in hex."""

    offset: int
    nbytes: int
    differing: int
    expected: str
    got: str

    def __str__(self) -> str:
        return (
            f"first differing byte at offset {self.offset}: expected {self.expected}, "
            f"got {self.got}; {self.differing} of {self.nbytes} bytes differ"
        )


class Mismatch(Exception):
    """A check found a wrong value."""

    def __init__(self, message: str, difference: Difference | None = None) -> None:
        super().__init__(message)
        self.difference = difference


def difference(expected: Any, got: Any, base: int = 0) -> Difference | None:
    """How two buffers differ, or None; ``base`` is the offset of their first byte."""
    wanted, seen = np.frombuffer(expected, np.uint8), np.frombuffer(got, np.uint8)
    if wanted.size != seen.size:
        raise Mismatch(f"{seen.size} bytes were read instead of {wanted.size}")
    if np.array_equal(wanted, seen):
        return None
    where = np.flatnonzero(wanted != seen)
    first = int(where[0])
    return Difference(
        offset=base + first,
        nbytes=wanted.size,
        differing=int(where.size),
        expected=wanted[first : first + _SHOWN].tobytes().hex(" "),
        got=seen[first : first + _SHOWN].tobytes().hex(" "),
    )


def expect_equal(what: str, expected: Any, got: Any, base: int = 0) -> None:
    """Raise Mismatch unless the two buffers are the same."""
    found = difference(expected, got, base)
    if found:
        raise Mismatch(f"{what}: {found}", found)


def expect(condition: bool, message: str) -> None:
    """Raise Mismatch with the message unless the condition holds."""
    if not condition:
        raise Mismatch(message)


def prepare(region: Region, host: Bytes, data: Bytes, *, writes: bool) -> None:
    """Before a copy: put ``data`` at its source, and other bytes at its destination."""
    assert region.device is not None
    host[:] = data if writes else ~data
    gpu_put(region.device, region.ptr, ~data if writes else data)


def arrived(region: Region, host: Bytes, data: Bytes, *, writes: bool) -> Difference | None:
    """After a copy: how the bytes at its destination differ from ``data``, or None."""
    assert region.device is not None
    seen = gpu_get(region.device, region.ptr, host.size) if writes else host
    return difference(data, seen)
