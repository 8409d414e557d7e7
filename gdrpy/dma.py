"""Fills by the GPU, and the DMA engine that copies use. Both are done when a call returns.

They wait for no kernels: their streams do not synchronize with the legacy default stream.
"""

from __future__ import annotations

import functools
from typing import Any

from gdrpy import cuda
from gdrpy._core._mapping import open_dma


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


@functools.cache
def _stream(device: int) -> Any:
    """The stream of all fills on a device; the caller has made its primary context current."""
    del device
    flags = cuda.driver().CUstream_flags.CU_STREAM_NON_BLOCKING
    return cuda.call("cuStreamCreate", flags)
