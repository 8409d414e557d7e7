"""The copy engine called from C: built here from native.c and the checkout's own sources."""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gdrpy import Mapping

_HERE = Path(__file__).resolve().parent
_CORE = _HERE.parent / "gdrpy" / "_core"
_CFLAGS = ["-std=gnu11", "-O2", "-fPIC", "-shared"]


class NotBuilt(Exception):
    """The C routine cannot be measured here; the message says why."""


def build() -> ctypes.CDLL:
    """Compile native.c with the copy engine, as setup.py does it, and load it. Raises NotBuilt."""
    sources = sorted(_CORE.glob("copy*.c"))
    if not sources:
        raise NotBuilt("the C sources of gdrpy are not beside the benchmarks")
    compiler = os.environ.get("CC", "gcc")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "native.so"
        command = [compiler, *_CFLAGS, f"-I{_CORE}", str(_HERE / "native.c"), *map(str, sources)]
        try:
            subprocess.run(
                [*command, "-o", str(library)], check=True, capture_output=True, text=True
            )
        except OSError as error:
            raise NotBuilt(f"no C compiler: {compiler}: {error.strerror}") from error
        except subprocess.CalledProcessError as error:
            raise NotBuilt(f"{compiler} failed: {error.stderr.strip()}") from error
        loaded = ctypes.CDLL(str(library))
    for name in ("bench_write", "bench_read"):
        function = getattr(loaded, name)
        function.restype = ctypes.c_uint64
        function.argtypes = [
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_uint64,
        ]
    return loaded


class NativeLoop:
    """A loop in C over the copy routine, between a buffer and the start of a mapping."""

    def __init__(
        self, library: ctypes.CDLL, name: str, mapping: Mapping, buffer: NDArray[np.uint8]
    ) -> None:
        self._function = getattr(library, name)
        self._buffer = buffer
        self._range = (
            int(mapping.mapping_type),
            mapping.address,
            buffer.ctypes.data,
            buffer.nbytes,
        )

    def once(self) -> None:
        self.batch(1)

    def batch(self, calls: int) -> int:
        return int(self._function(*self._range, calls))
