"""Fills and copies by the GPU, and the DMA engine. Each is complete when its call returns.

They wait for no kernels, except those of a ``stream`` argument: their internal streams do not
synchronize with the legacy default stream.
"""

from __future__ import annotations

import functools
from typing import Any

from gdrpy import cuda
from gdrpy._core._mapping import open_dma

#: CUDA's handle of the legacy default stream.
_LEGACY = 1


@functools.cache
def engine(device: int) -> object:
    """The DMA engine of a device: a capsule for the C core, kept until the process ends."""
    return open_dma(int(cuda.primary_context(device)))


def fill(device: int, ptr: int, value: int, nbytes: int) -> None:
    """Set ``nbytes`` bytes of GPU memory from ``ptr`` on to a byte value."""
    with cuda.context(device):
        stream = _stream(device)
        cuda.call("cuMemsetD8Async", ptr, value, nbytes, stream)
        cuda.call("cuStreamSynchronize", stream)


def copy(device: int, target: int, source: int, nbytes: int, stream: int | None = -1) -> None:
    """Copy between addresses that a device reaches: its memory, or page-locked host memory.

    The copy runs after the work on ``stream``, a DLPack consumer's: a handle, None for the legacy
    default stream, or -1 for no stream.
    """
    with cuda.context(device):
        queue = _stream(device) if stream == -1 else cuda.stream_handle(stream or _LEGACY)
        cuda.call("cuMemcpyAsync", target, source, nbytes, queue)
        cuda.call("cuStreamSynchronize", queue)


@functools.cache
def _stream(device: int) -> Any:
    """The stream for fills and copies on a device, whose primary context must be current."""
    del device
    flags = cuda.driver().CUstream_flags.CU_STREAM_NON_BLOCKING
    return cuda.call("cuStreamCreate", flags)
