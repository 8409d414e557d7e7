"""The tools of a check: fresh GPU memory, and the driver's own copies to compare with."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import gdrpy
from gdrpy import cuda
from gdrpy.cli.data import Bytes, Noise, gpu_get, gpu_put, on_gpu


class Unsupported(Exception):
    """The driver here does not support the subject of the check."""


@dataclass(frozen=True)
class Settings:
    """The settings of all checks of a run. ``nbytes`` is the size of a region."""

    device: int
    backend: str | None
    nbytes: int
    seed: int


class Rig:
    """The memory and data of one check; ``stack`` releases everything."""

    def __init__(self, settings: Settings, check: str, stack: ExitStack) -> None:
        self.settings = settings
        self.seeds = (settings.seed, crc32(check.encode()))
        self.stack = stack
        self._noise = Noise(*self.seeds)

    def random(self, nbytes: int) -> Bytes:
        """The next ``nbytes`` bytes of this check's seeded noise."""
        return self._noise.bytes(nbytes)

    def region(self, nbytes: int | None = None, *, cpu: bool = True) -> gdrpy.Region:
        """A fresh region, by default of the run's size; without a CPU view if ``cpu`` is false."""
        size = self.settings.nbytes if nbytes is None else nbytes
        region = gdrpy.alloc(size, self.settings.device, cpu=cpu, backend=self.settings.backend)
        self.stack.callback(region.close)  # which fails if a view is left
        return region

    def cuda_memory(self, nbytes: int) -> int:
        """The address of fresh memory by cuMemAlloc, which torch and other libraries use."""
        ptr = self.call("cuMemAlloc", nbytes)
        self.stack.callback(self.call, "cuMemFree", ptr)
        return int(ptr)

    def open(self, backend: str | None) -> gdrpy.Gdr:
        """The gdrcopy API."""
        gdr = gdrpy.open(backend)
        self.stack.callback(gdr.close)
        return gdr

    def pin(self, ptr: int, nbytes: int) -> gdrpy.Pin:
        """Pin device memory of this process. Raises Unsupported if the driver cannot."""
        gdr = self.open(self.settings.backend)
        try:
            return gdr.pin(ptr, nbytes)
        except gdrpy.InvalidHandle as error:
            if error.result == "CUDA_ERROR_NOT_SUPPORTED":
                raise Unsupported(str(error)) from error
            raise

    def stream(self) -> Any:
        """A stream that does not synchronize with the driver's copies below."""
        flags = cuda.driver().CUstream_flags.CU_STREAM_NON_BLOCKING
        stream = self.call("cuStreamCreate", flags)
        self.stack.callback(self.call, "cuStreamDestroy", stream)
        return stream

    def call(self, name: str, *args: Any) -> Any:
        """A driver call in the device's context."""
        with cuda.context(self.settings.device):
            return cuda.call(name, *args)

    def on_gpu(self, name: str, *args: Any) -> None:
        """Make a driver call on the default stream and wait for it."""
        on_gpu(self.settings.device, name, *args)

    def put(self, ptr: int, data: Any) -> None:
        """Write GPU memory by the driver's own copy."""
        gpu_put(self.settings.device, ptr, data)

    def get(self, ptr: int, nbytes: int) -> Bytes:
        """Read GPU memory by the driver's own copy."""
        return gpu_get(self.settings.device, ptr, nbytes)
