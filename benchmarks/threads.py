"""The copy engine by several threads of its pool, called from C: stores to a mapping, and loads."""

from __future__ import annotations

import numpy as np

import gdrpy
from gdrpy import Region
from harness import Contender, Session
from native import Native, built
from payload import Bytes, GpuBytes, fills, lands, payload
from sweep import SIZE, Sweep

MODULE = "threads"
TO = "to the mapping"
FROM = "from the mapping"

KIB = 1 << 10
MIB = 1 << 20
SIZES = (64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB)
_QUICK_SIZES = (64 * KIB, MIB)
THREADS = (1, 2, 4, 8, 16)

#: The part of a comparison's time for a size.
_SHARE = 0.6


def way(threads: int) -> str:
    """The name of a way."""
    return f"{threads} thread{'s' if threads > 1 else ''}"


#: The rates of the goals: a size, and a number of threads.
RATES = {TO: ((MIB, way(1)), (64 * MIB, way(4))), FROM: ((MIB, way(1)), (64 * MIB, way(16)))}


def run(session: Session) -> None:
    """Measure threads into the session."""
    native = built()
    sizes = _QUICK_SIZES if session.quick else SIZES
    with gdrpy.alloc(max(sizes)) as region:
        host = payload(max(sizes)).copy()
        for operation, contenders in ((TO, _writes), (FROM, _reads)):
            sweep = Sweep(MODULE, operation, (SIZE,))
            session.sweeps.append(sweep)
            for nbytes in sizes:
                session.step(f"{MODULE}: {operation} {nbytes} B")
                ways = contenders(native, region, host[:nbytes])
                sweep.keep(sweep.measure((nbytes,), ways, session.seconds * _SHARE), {})
            for size, name in RATES[operation]:
                sweep.rate(session, size, name)


def _writes(native: Native, region: Region, host: Bytes) -> list[Contender]:
    verify = lands(GpuBytes(region.ptr), host)
    method = "core_copy_to_by and a store fence, in C"
    return [
        Contender(way(threads), method, native.write_by(threads, region.cpu, host), verify)
        for threads in THREADS
    ]


def _reads(native: Native, region: Region, host: Bytes) -> list[Contender]:
    into = np.empty_like(host)
    verify = fills(GpuBytes(region.ptr), into)
    method = "core_copy_from_by, in C"
    return [
        Contender(way(threads), method, native.read_by(threads, region.cpu, into), verify)
        for threads in THREADS
    ]
