"""The copy engine called from C: built here from native.c and the checkout's own sources."""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gdrpy import Flag, Mapping
from payload import Bytes

_HERE = Path(__file__).resolve().parent
_CORE = _HERE.parent / "gdrpy" / "_core"
_CFLAGS = ["-std=gnu11", "-O2", "-fPIC", "-shared", "-pthread"]

MEMCPY = "memcpy"


class NotBuilt(Exception):
    """The C routine cannot be measured here, for the reason in the message."""


class Loop:
    """A loop in C that makes a number of calls and returns the nanoseconds."""

    def __init__(self, function: Any, *arguments: Any, keep: object = None) -> None:
        self._function = function
        self._arguments = arguments
        self._keep = keep

    def once(self) -> None:
        self.batch(1)

    def batch(self, calls: int) -> int:
        return int(self._function(*self._arguments, calls))


class Native:
    """native.c, compiled with the copy engine as setup.py does it. Raises NotBuilt.

    Each method returns a loop over one way to copy; host memory is an array of bytes, and
    ``offset`` is the place in the mapping.
    """

    def __init__(self) -> None:
        self._library = library = _build()
        size, pointer, calls = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_uint64
        for name, arguments in {
            "bench_write": (ctypes.c_int, pointer, pointer, size, calls),
            "bench_read": (ctypes.c_int, pointer, pointer, size, calls),
            "bench_write_by": (ctypes.c_uint, ctypes.c_int, pointer, pointer, size, calls),
            "bench_read_by": (ctypes.c_uint, ctypes.c_int, pointer, pointer, size, calls),
            "bench_store": (pointer, ctypes.c_uint32, calls),
            "bench_exchange": (pointer, pointer, calls, calls, pointer),
            "bench_routine_write": (pointer, pointer, pointer, size, calls),
            "bench_routine_read": (pointer, pointer, pointer, size, calls),
        }.items():
            function = getattr(library, name)
            function.restype, function.argtypes = calls, arguments
        library.bench_memcpy.restype = library.bench_routine.restype = pointer

    def routines(self, to_mapping: bool) -> dict[str, int]:
        """The addresses of the engine's routines that this CPU has, and of memcpy, by name."""
        return {**dict(self._routines(to_mapping)), MEMCPY: self._library.bench_memcpy()}

    def _routines(self, to_mapping: bool) -> Iterator[tuple[str, int]]:
        name = ctypes.c_char_p()
        number = 0
        while routine := self._library.bench_routine(to_mapping, number, ctypes.byref(name)):
            assert name.value is not None
            yield name.value.decode(), routine
            number += 1

    def write(self, mapping: Mapping, host: Bytes, offset: int = 0) -> Loop:
        """The engine's copy to a mapping, and a store fence."""
        function = self._library.bench_write
        return Loop(function, int(mapping.mapping_type), *_range(mapping, offset, host), keep=host)

    def read(self, mapping: Mapping, host: Bytes, offset: int = 0) -> Loop:
        """The engine's copy from a mapping."""
        function = self._library.bench_read
        return Loop(function, int(mapping.mapping_type), *_range(mapping, offset, host), keep=host)

    def write_by(self, threads: int, mapping: Mapping, host: Bytes) -> Loop:
        """The engine's copy to a mapping by several threads, and a store fence."""
        function = self._library.bench_write_by
        kind = int(mapping.mapping_type)
        return Loop(function, threads, kind, *_range(mapping, 0, host), keep=host)

    def read_by(self, threads: int, mapping: Mapping, host: Bytes) -> Loop:
        """The engine's copy from a mapping by several threads."""
        function = self._library.bench_read_by
        kind = int(mapping.mapping_type)
        return Loop(function, threads, kind, *_range(mapping, 0, host), keep=host)

    def store(self, mapping: Mapping, value: int) -> Loop:
        """A store of a 32-bit word to the mapping's start, between fences."""
        return Loop(self._library.bench_store, mapping.address, value)

    def exchange(self, ping: Flag, reply: Flag, rounds: int) -> list[int]:
        """Exchanges with a responder as ``gdrpy pplat`` plays them: nanoseconds of each."""
        samples = np.zeros(rounds, np.uint64)
        words = (flag.mapping.address + flag.offset for flag in (ping, reply))
        limit = 1_000_000_000
        answered = self._library.bench_exchange(*words, rounds, limit, samples.ctypes.data)
        if answered != rounds:
            raise ValueError(f"exchange {answered + 1} was answered wrongly, or not at all")
        return [int(sample) for sample in samples]

    def routine_write(self, routine: int, mapping: Mapping, host: Bytes, offset: int = 0) -> Loop:
        """One routine's copy to a mapping, and a store fence."""
        function = self._library.bench_routine_write
        return Loop(function, routine, *_range(mapping, offset, host), keep=host)

    def routine_read(self, routine: int, mapping: Mapping, host: Bytes, offset: int = 0) -> Loop:
        """One routine's copy from a mapping."""
        function = self._library.bench_routine_read
        return Loop(function, routine, *_range(mapping, offset, host), keep=host)


@functools.cache
def built() -> Native:
    """The one of this process. Raises NotBuilt."""
    return Native()


def _range(mapping: Mapping, offset: int, host: Bytes) -> tuple[int, int, int]:
    return mapping.address + offset, host.ctypes.data, host.nbytes


def compiled(arguments: Sequence[str], library: Path) -> Path:
    """Compile a shared library. Raises NotBuilt."""
    compiler = os.environ.get("CC", "gcc")
    try:
        subprocess.run(
            [compiler, *_CFLAGS, *arguments, "-o", str(library)],
            check=True,
            capture_output=True,
            text=True,
        )
    except OSError as error:
        raise NotBuilt(f"no C compiler: {compiler}: {error.strerror}") from error
    except subprocess.CalledProcessError as error:
        raise NotBuilt(f"{compiler} failed: {error.stderr.strip()}") from error
    return library


def _build() -> ctypes.CDLL:
    sources = sorted(_CORE.glob("copy/*.c"))
    if not sources:
        raise NotBuilt("the C sources of gdrpy are not beside the benchmarks")
    arguments = [f"-I{_CORE}", str(_HERE / "native.c"), *map(str, sources)]
    with tempfile.TemporaryDirectory() as folder:
        return ctypes.CDLL(str(compiled(arguments, Path(folder) / "native.so")))
