"""GPU memory as the driver's own copies see it: what gdrpy's are held against."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdrpy import cuda
from gdrpy.cli.checks.difference import Bytes


def on_gpu(device: int, name: str, *args: Any) -> None:
    """A driver call that works on a device's default stream, waited for."""
    with cuda.context(device):
        cuda.call(name, *args)
        cuda.call("cuStreamSynchronize", cuda.stream_handle(None))


def put(device: int, ptr: int, data: Any) -> None:
    """Write a contiguous buffer's bytes to GPU memory."""
    on_gpu(device, "cuMemcpyHtoD", ptr, data, memoryview(data).nbytes)


def get(device: int, ptr: int, nbytes: int) -> Bytes:
    """Read GPU memory."""
    buffer = np.zeros(nbytes, np.uint8)
    on_gpu(device, "cuMemcpyDtoH", buffer, ptr, nbytes)
    return buffer
