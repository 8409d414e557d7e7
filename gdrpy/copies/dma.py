"""Fills and copies by the GPU, and the DMA engine. All are done when a call returns.

They wait for no kernels, but those of a stream that is named: their own streams do not synchronize
with the legacy default stream.
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
    """What copies to and from a device: a capsule for the C core, kept until the process ends."""
    return open_dma(int(cuda.primary_context(device)))


def fill(device: int, ptr: int, value: int, nbytes: int) -> None:
    """Set ``nbytes`` bytes of GPU memory from ``ptr`` on to a byte's value."""
    with cuda.context(device):
        stream = _stream(device)
        cuda.call("cuMemsetD8Async", ptr, value, nbytes, stream)
        cuda.call("cuStreamSynchronize", stream)


def copy(device: int, target: int, source: int, nbytes: int, stream: int | None = -1) -> None:
    """Copy between addresses that a device reaches: its memory, or page-locked host memory.

    ``stream`` is a consumer's of DLPack, behind whose work it is queued: a handle, None for the
    legacy default stream, or -1 for none.
    """
    with cuda.context(device):
        queue = _stream(device) if stream == -1 else cuda.stream_handle(stream or _LEGACY)
        cuda.call("cuMemcpyAsync", target, source, nbytes, queue)
        cuda.call("cuStreamSynchronize", queue)


@functools.cache
def _stream(device: int) -> Any:
    """Of fills and copies on a device; the caller has made its primary context current."""
    del device
    flags = cuda.driver().CUstream_flags.CU_STREAM_NON_BLOCKING
    return cuda.call("cuStreamCreate", flags)
