"""Kernels of one thread that stay on the GPU while the CPU plays with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gdrpy import cuda
from gdrpy._core._mapping import Undo

KERNEL = "a kernel of one thread, resident on the GPU"
#: What plays the kernel's part where there is none.
THREAD = "a Python thread, since the simulated GPU has no kernels"


class Resident:
    """A kernel of a file of PTX, which the driver assembles, running in a separate stream.

    ``kinds`` are the ctypes of its arguments. Allocate memory before: that may wait for kernels.

    Raises CudaError.
    """

    def __init__(
        self, ptx: Path, name: str, device: int, arguments: Sequence[int], kinds: Sequence[Any]
    ) -> None:
        flags = cuda.driver().CUstream_flags.CU_STREAM_NON_BLOCKING
        self._device = device
        with cuda.context(device), Undo() as undo:
            self._module = cuda.call("cuModuleLoadData", ptx.read_bytes() + b"\0")
            undo.callback(cuda.call, "cuModuleUnload", self._module)
            function = cuda.call("cuModuleGetFunction", self._module, name.encode())
            self._stream = cuda.call("cuStreamCreate", flags)
            undo.callback(cuda.call, "cuStreamDestroy", self._stream)
            parameters = (tuple(arguments), tuple(kinds))
            one = (1, 1, 1)
            cuda.call("cuLaunchKernel", function, *one, *one, 0, self._stream, parameters, 0)
            self._undo = undo.pop_all()

    @contextmanager
    def ended(self) -> Iterator[Any]:
        """Wait for its end; in the block there is its module, in the current context."""
        with cuda.context(self._device), self._undo:
            cuda.call("cuStreamSynchronize", self._stream)
            yield self._module
