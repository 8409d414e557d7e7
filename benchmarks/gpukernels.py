"""Kernels on the GPU: loaded from PTX or from CUDA C++, and launched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gdrpy import cuda
from gdrpy.channel import include_dir


class NotCompiled(Exception):
    """A kernel cannot be compiled here; the message says why."""


class Kernel:
    """A kernel, launched as one block of threads, with fixed types of arguments."""

    def __init__(self, function: Any, threads: int, *kinds: Any) -> None:
        self._function = function
        self._threads = threads
        self._kinds = kinds
        self._launch = cuda.driver().cuLaunchKernel

    def __call__(self, stream: Any, *arguments: int) -> object:
        parameters = (arguments, self._kinds)
        block = (self._threads, 1, 1)
        return self._launch(self._function, 1, 1, 1, *block, 0, stream, parameters, 0)


@contextmanager
def loaded(image: bytes, name: bytes, threads: int, *kinds: Any) -> Iterator[Kernel]:
    """A kernel of PTX, ended by a zero, or of a cubin. Needs a current context."""
    module = cuda.call("cuModuleLoadData", image)
    try:
        yield Kernel(cuda.call("cuModuleGetFunction", module, name), threads, *kinds)
    finally:
        cuda.call("cuModuleUnload", module)


@contextmanager
def stream() -> Iterator[Any]:
    """A stream that does not wait for the default one."""
    made = cuda.call("cuStreamCreate", cuda.driver().CUstream_flags.CU_STREAM_NON_BLOCKING)
    try:
        yield made
    finally:
        cuda.call("cuStreamDestroy", made)


def compiled(source: Path, device: int = 0, more: Sequence[str] = ()) -> bytes:
    """The cubin of CUDA C++ that may include gdrpy's headers; ``more`` are options of NVRTC.

    Raises NotCompiled.
    """
    major, minor = cuda.device_info(device).compute_capability
    options = [f"--gpu-architecture=sm_{major}{minor}", f"-I{include_dir()}", *more]
    try:
        from cuda.bindings import nvrtc

        text = source.read_bytes()
        _, program = nvrtc.nvrtcCreateProgram(text, source.name.encode(), 0, [], [])
    except (ImportError, RuntimeError) as error:  # cuda.pathfinder finds no libnvrtc
        raise NotCompiled(f"NVRTC cannot be loaded: {error}") from error
    done, *_ = nvrtc.nvrtcCompileProgram(
        program, len(options), [option.encode() for option in options]
    )
    if done != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = b" " * nvrtc.nvrtcGetProgramLogSize(program)[1]
        nvrtc.nvrtcGetProgramLog(program, log)
        raise NotCompiled(f"NVRTC refuses {source.name}: {log.decode(errors='replace').strip()}")
    cubin = b" " * nvrtc.nvrtcGetCUBINSize(program)[1]
    nvrtc.nvrtcGetCUBIN(program, cubin)
    return cubin
