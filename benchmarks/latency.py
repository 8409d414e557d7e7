"""Small copies and single words: the cost of a call from Python, from C, and by other libraries."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import gdrpy
from gdrpy import Region
from harness import Contender, Measurement, Session, Statement, Topic
from native import Native, NotBuilt, built
from payload import GpuBytes, as_bytes, fills, lands, payload, pinned, returns
from rivals import Rival, all_reads, all_writes, rivals

MODULE = "latency"
SIZES = (4, 64, 256, 1024, 4096)

#: Ways that other figures are compared with.
C_ROUTINE = "C routine"
EMPTY_CALL = "empty call"
WRITE = "mapping.write"
WRITE_ARRAY = "mapping.write, ndarray"
READ = "mapping.read"
READINTO = "mapping.readinto"
FLAG_SET = "flag.set(value)"

_WORD = 0x01020304
_WORD_BYTES = _WORD.to_bytes(4, "little")


def run(session: Session) -> None:
    """Measure latencies into the session."""
    with gdrpy.alloc(max(SIZES)) as region, pinned(max(SIZES)) as host:
        others = rivals(session, region, host)
        try:
            native: Native | None = built()
        except NotBuilt as error:
            session.absent[C_ROUTINE] = str(error)
            native = None
        for nbytes in SIZES:
            _writes(session, region, nbytes, native, others)
        for nbytes in SIZES:
            _reads(session, region, nbytes, native, others)
        _words(session, region, native)


def _empty_call() -> Contender:
    def nothing(_data: object, _offset: int) -> None:
        return None

    return Contender(
        EMPTY_CALL,
        "a Python function of two arguments that returns at once",
        Statement("nothing(None, 0)", nothing=nothing),
    )


def _writes(
    session: Session,
    region: Region,
    nbytes: int,
    native: Native | None,
    others: list[Rival],
) -> None:
    source = payload(nbytes).copy()
    verify = lands(GpuBytes(region.ptr), source)
    loops = [native.write(region.cpu, source)] if native else []
    found = session.compare(
        Topic(MODULE, "write", nbytes),
        [
            Contender(
                WRITE,
                "mapping.write(bytes, 0): stores and a store fence",
                Statement("write(data, 0)", write=region.cpu.write, data=source.tobytes()),
                verify,
            ),
            Contender(
                WRITE_ARRAY,
                "mapping.write(ndarray, 0): stores and a store fence",
                Statement("write(data, 0)", write=region.cpu.write, data=source),
                verify,
            ),
            *(
                Contender(C_ROUTINE, "core_copy_to and core_store_fence, in C", loop, verify)
                for loop in loops
            ),
            _empty_call(),
            *all_writes(others, source),
        ],
    )
    _differences(session, found, WRITE)


def _reads(
    session: Session,
    region: Region,
    nbytes: int,
    native: Native | None,
    others: list[Rival],
) -> None:
    gpu = GpuBytes(region.ptr)
    buffer = np.empty(nbytes, np.uint8)
    loops = [native.read(region.cpu, buffer)] if native else []
    found = session.compare(
        Topic(MODULE, "read", nbytes),
        [
            Contender(
                READ,
                "mapping.read(nbytes, 0), a new bytes object",
                Statement("result = read(nbytes, 0)", read=region.cpu.read, nbytes=nbytes),
                returns(gpu, nbytes),
            ),
            Contender(
                READINTO,
                "mapping.readinto(ndarray, 0)",
                Statement("readinto(buffer, 0)", readinto=region.cpu.readinto, buffer=buffer),
                fills(gpu, buffer),
            ),
            *(
                Contender(C_ROUTINE, "core_copy_from, in C", loop, fills(gpu, buffer))
                for loop in loops
            ),
            _empty_call(),
            *all_reads(others, buffer),
        ],
    )
    _differences(session, found, READ, READINTO)


def _differences(session: Session, found: dict[str, Measurement], *ways: str) -> None:
    for way in ways:
        for other in (C_ROUTINE, EMPTY_CALL):
            if other in found:
                session.derive_difference(found[way], found[other])


def _words(session: Session, region: Region, native: Native | None) -> None:
    gpu = GpuBytes(region.ptr)
    view = region.numpy(np.uint32, 1)
    names = {"mapping": region.cpu, "flag": region.flag(), "view": view, "value": _WORD}
    written = lands(gpu, as_bytes(_WORD_BYTES))
    gives = returns(gpu, 4, lambda word: as_bytes(int(word).to_bytes(4, "little")))
    loops = [native.store(region.cpu, _WORD)] if native else []

    def word(statement: str, method: str, verify: Callable[..., bool]) -> Contender:
        way = statement.removeprefix("result = ")
        return Contender(way, method, Statement(statement, **names), verify)

    found = session.compare(
        Topic(MODULE, "store a word", 4),
        [
            word("mapping.store(0, value)", "one 32-bit store and a store fence", written),
            word(FLAG_SET, "one 32-bit store between store fences", written),
            *(
                Contender(C_ROUTINE, "one 32-bit store between store fences, in C", loop, written)
                for loop in loops
            ),
            word("view[0] = value", "numpy element store, not fenced", written),
            word("view[0] = value; mapping.flush()", "numpy element store, fenced", written),
            _empty_call(),
        ],
    )
    _differences(session, found, FLAG_SET)
    session.compare(
        Topic(MODULE, "load a word", 4),
        [
            word("result = mapping.load(0)", "one 32-bit load", gives),
            word("result = flag.get()", "one 32-bit load", gives),
            word("result = view[0]", "numpy element load", gives),
            _empty_call(),
        ],
    )
