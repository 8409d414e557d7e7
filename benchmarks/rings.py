"""Inboxes read and links called from C: built here from rings.c and the checkout's sources."""

from __future__ import annotations

import ctypes
import functools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gdrpy
from native import NotBuilt, compiled

_HERE = Path(__file__).resolve().parent
_CORE = _HERE.parent / "gdrpy" / "_core"
_INCLUDE = _HERE.parent / "gdrpy" / "include"

#: In ns: what a wait in C takes at most.
_LIMIT = 20_000_000_000
#: Bytes of a ``struct gdr_link``.
_LINK_NBYTES = 88


class Lost(Exception):
    """A record or an answer did not come, or a wrong one did."""


@functools.cache
def _library() -> ctypes.CDLL:
    """Raises NotBuilt."""
    channel = [_CORE / "channel" / name for name in ("inbox.c", "requests.c")]
    sources = [_HERE / "rings.c", *sorted(_CORE.glob("copy/*.c")), *channel]
    if not sources[-1].exists():
        raise NotBuilt("the C sources of gdrpy are not beside the benchmarks")
    arguments = [f"-I{_CORE}", f"-I{_INCLUDE}", *map(str, sources)]
    with tempfile.TemporaryDirectory() as folder:
        library = ctypes.CDLL(str(compiled(arguments, Path(folder) / "rings.so")))
    pointer, number = ctypes.c_void_p, ctypes.c_uint64
    inbox, calls = library.bench_inbox, library.bench_calls
    inbox.restype = calls.restype = number
    inbox.argtypes = (pointer, number, number, number, pointer, pointer, pointer)
    calls.argtypes = (ctypes.c_int, pointer, pointer, number, number, pointer)
    library.bench_serve.restype = None
    library.bench_serve.argtypes = (ctypes.c_int, pointer, pointer)
    return library


def require() -> None:
    """Raises NotBuilt."""
    _library()


def take(
    inbox: gdrpy.Inbox, count: int, following: NDArray[np.uint64], messages: int | None
) -> int:
    """Take records of inbox_kernel.cu; how many were wrong.

    ``following`` has the next index of each thread, ``messages`` is the address of their messages.
    Raises Lost.
    """
    wrong = ctypes.c_uint64()
    arguments = (len(following), following.ctypes.data, messages, ctypes.byref(wrong))
    done = _library().bench_inbox(inbox.c_reader, count, _LIMIT, *arguments)
    if done != count:
        raise Lost(f"of {count} records, {done} came in time")
    return wrong.value


def call(region: gdrpy.Region, rounds: int) -> list[int]:
    """Call the link that lies in ``region``: nanoseconds of each call.

    Afterwards the Link knows nothing of these calls, and can only be closed. Raises Lost.
    """
    samples = np.zeros(rounds, np.uint64)
    answered = _library().bench_calls(*_end(region), rounds, _LIMIT, samples.ctypes.data)
    if answered != rounds:
        raise Lost(f"call {answered + 1} was answered wrongly, or not in time")
    return [int(sample) for sample in samples]


def serve(region: gdrpy.Region) -> None:
    """Answer the requests of the link that lies in ``region``, as link_kernel.cu does."""
    _library().bench_serve(*_end(region))


def _end(region: gdrpy.Region) -> tuple[int, int, Any]:
    """A link as its end in C takes it."""
    mapping = region.cpu
    descriptor = ctypes.create_string_buffer(mapping.read(_LINK_NBYTES), _LINK_NBYTES)
    return int(mapping.mapping_type), mapping.address, descriptor
