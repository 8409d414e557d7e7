"""The checkout's libgdrapi called from C: libgdrapi.c, built against its header."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from native import Loop, NotBuilt, compiled
from payload import Bytes

_HERE = Path(__file__).resolve().parent
_PACKAGE = _HERE.parent / "gdrpy"
_LIBRARY = _PACKAGE / "lib" / "libgdrapi.so.2"

_size, _pointer, _count = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_uint64


class _Pinned(ctypes.Structure):
    """``struct bench_pinned``."""

    _fields_ = (
        ("pin", ctypes.c_ulong),
        ("start", _pointer),
        ("address", _pointer),
        ("mapped", _count),
        ("pin_ns", _count),
        ("map_ns", _count),
        ("unmap_ns", _count),
        ("unpin_ns", _count),
    )


def build(folder: Path) -> Path:
    """Compile libgdrapi.c into a folder. Raises NotBuilt."""
    if not _LIBRARY.exists():
        raise NotBuilt("libgdrapi.so.2 is not built in this checkout: make build")
    arguments = [f"-I{_PACKAGE / 'include'}", str(_HERE / "libgdrapi.c")]
    linked = [str(_LIBRARY), f"-Wl,-rpath,{_LIBRARY.parent}"]
    return compiled([*arguments, *linked], folder / "libgdrapi-bench.so")


class Gdr:
    """A ``gdr_t``, opened by libgdrapi.c as :func:`build` left it. Raises OSError."""

    def __init__(self, path: Path) -> None:
        self._library = library = ctypes.CDLL(str(path))
        library.gdr_open.restype = _pointer
        pinned = ctypes.POINTER(_Pinned)
        for name, result, arguments in (
            ("gdr_close", ctypes.c_int, (_pointer,)),
            ("bench_pin", ctypes.c_int, (_pointer, ctypes.c_ulong, _size, pinned)),
            ("bench_unpin", ctypes.c_int, (_pointer, pinned)),
            ("bench_to", _count, (pinned, _size, _pointer, _size, _count)),
            ("bench_from", _count, (pinned, _size, _pointer, _size, _count)),
            (
                "bench_cycles",
                _count,
                (_pointer, ctypes.c_ulong, _size, _pointer, _pointer, _size, _count),
            ),
        ):
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        start = time.perf_counter_ns()
        self._handle = library.gdr_open()
        self.opening_ns = time.perf_counter_ns() - start
        if not self._handle:
            raise OSError("gdr_open() returned NULL; GDRCOPY_ENABLE_LOGGING=1 shows why")

    def close(self) -> None:
        _check("gdr_close", self._library.gdr_close(self._handle))

    def pin(self, ptr: int, nbytes: int) -> Pinned:
        """Pin and map ``nbytes`` bytes. Raises OSError."""
        pinned = _Pinned()
        _check("pin and map", self._library.bench_pin(self._handle, ptr, nbytes, pinned))
        return Pinned(self._library, self._handle, pinned, ptr, nbytes)

    def cycles(self, ptr: int, nbytes: int, data: Bytes, back: Bytes) -> Cycles:
        """A loop over pin, map, a copy in and one out, unmap and unpin."""
        ends = (data.ctypes.data, back.ctypes.data, data.nbytes)
        return Cycles(self._library.bench_cycles, self._handle, ptr, nbytes, *ends)


class Cycles(Loop):
    """A loop that raises OSError if a cycle failed."""

    def batch(self, calls: int) -> int:
        taken = super().batch(calls)
        if not taken:
            raise OSError("a call of pin, map, copy, unmap and unpin failed")
        return taken


@dataclass
class View:
    """The address of a mapping, in the form that native.py takes."""

    address: int


class Pinned:
    """A buffer, pinned and mapped. Like a region it has ``ptr``, ``nbytes`` and ``cpu``."""

    def __init__(
        self, library: ctypes.CDLL, gdr: int, pinned: _Pinned, ptr: int, nbytes: int
    ) -> None:
        self._library, self._gdr, self.calls = library, gdr, pinned
        self.ptr, self.nbytes = ptr, nbytes
        self.cpu = View(int(pinned.address))

    def close(self) -> None:
        """Unmap and unpin. Raises OSError."""
        _check("unmap and unpin", self._library.bench_unpin(self._gdr, self.calls))

    def write(self, host: Bytes, offset: int) -> Loop:
        """gdr_copy_to_mapping."""
        return self._loop(self._library.bench_to, host, offset)

    def read(self, host: Bytes, offset: int) -> Loop:
        """gdr_copy_from_mapping."""
        return self._loop(self._library.bench_from, host, offset)

    def _loop(self, function: object, host: Bytes, offset: int) -> Loop:
        return Loop(function, self.calls, offset, host.ctypes.data, host.nbytes, keep=host)


@contextmanager
def opened(path: Path) -> Iterator[Gdr]:
    """A Gdr for a while."""
    gdr = Gdr(path)
    try:
        yield gdr
    finally:
        gdr.close()


def _check(what: str, error: int) -> None:
    if error:
        raise OSError(error, f"{what}: {os.strerror(error)}")
