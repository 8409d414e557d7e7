"""Small records to places all over a region, and blocks from there: in one call, or in loops."""

from __future__ import annotations

import numpy as np

import gdrpy
from gdrpy import cuda
from gdrpy.memory import engine
from harness import Contender, Session, Statement, Timed, Topic
from payload import STALE, GpuBytes, payload
from rivals import BINDINGS

MODULE = "scatter"
OPERATION = "records of 64 B, scattered"
GATHERED = "blocks of 4 KiB, gathered"

LOOP = "loop over mapping.write"
BATCH = "loop in mapping.batch()"
WRITE_MANY = "mapping.write_many"
SCATTER = "mapping.scatter"
READ_MANY = "region.readinto_many"

_RECORD = 64
_RECORDS, _QUICK_RECORDS = 10_000, 100
_BLOCK = 4096
_BLOCKS, _QUICK_BLOCKS = 1000, 20


def run(session: Session) -> None:
    """Measure scattered writes, and reads of scattered blocks, into the session."""
    _write_records(session)
    _read_blocks(session)


def _read_blocks(session: Session) -> None:
    count = _QUICK_BLOCKS if session.quick else _BLOCKS
    numbers = np.random.default_rng(3).permutation(2 * count)[:count]
    content = payload(2 * count * _BLOCK).reshape(2 * count, _BLOCK)
    blocks = np.zeros((count, _BLOCK), np.uint8)
    pieces = [(int(at) * _BLOCK, one) for at, one in zip(numbers, blocks, strict=True)]
    with gdrpy.alloc(content.nbytes) as region:
        GpuBytes(region.ptr).put(content)
        if engine.status(0).usable:
            region.read(1, via="engine")

        def verify(timed: Timed) -> bool:
            blocks.fill(STALE)
            timed.once()
            return np.array_equal(blocks, content[numbers])

        names = {
            "region": region,
            "read": region.readinto,
            "pieces": pieces,
            "copy": cuda.driver().cuMemcpyDtoH,
            "pointed": [(one.ctypes.data, region.ptr + at) for at, one in pieces],
        }

        def way(name: str, method: str, text: str) -> Contender:
            method = f"{count} blocks of {_BLOCK} B: {method}"
            return Contender(name, method, Statement(text, **names), verify)

        session.compare(
            Topic(MODULE, GATHERED, unit="ms"),
            [
                way(READ_MANY, "a list of pairs", "region.readinto_many(pieces)"),
                way(
                    "loop over region.readinto",
                    "region.readinto for each",
                    "for offset, block in pieces: read(block, offset)",
                ),
                way(
                    f"loop over {BINDINGS}",
                    "cuMemcpyDtoH for each",
                    f"for host, ptr in pointed: copy(host, ptr, {_BLOCK})",
                ),
            ],
        )


def _write_records(session: Session) -> None:
    count = _QUICK_RECORDS if session.quick else _RECORDS
    # Every other place stays free, so that a record in the wrong one shows.
    offsets = np.random.default_rng(2).permutation(2 * count)[:count] * _RECORD
    records = payload(count * _RECORD).reshape(count, _RECORD).copy()
    pieces = [(int(at), one.tobytes()) for at, one in zip(offsets, records, strict=True)]
    with gdrpy.alloc(2 * count * _RECORD) as region:
        gpu = GpuBytes(region.ptr)
        places = region.numpy(np.uint8, 2 * count * _RECORD).reshape(2 * count, _RECORD)
        wanted = np.full(places.shape, STALE, np.uint8)
        wanted[offsets // _RECORD] = records

        def verify(timed: Timed) -> bool:
            gpu.fill(wanted.nbytes)
            timed.once()
            return np.array_equal(gpu.get(wanted.nbytes), wanted.ravel())

        names = {
            "mapping": region.cpu,
            "write": region.cpu.write,
            "pieces": pieces,
            "offsets": offsets,
            "records": records,
            "places": places,
            "numbers": offsets // _RECORD,
            "copy": cuda.driver().cuMemcpyHtoD,
            "pointed": [(region.ptr + at, data) for at, data in pieces],
        }

        def way(name: str, method: str, text: str) -> Contender:
            method = f"{count} records of {_RECORD} B: {method}"
            return Contender(name, method, Statement(text, **names), verify)

        session.compare(
            Topic(MODULE, OPERATION, unit="ms"),
            [
                way(
                    LOOP,
                    "mapping.write for each, each fenced",
                    "for offset, data in pieces: write(data, offset)",
                ),
                way(
                    BATCH,
                    "the same with one fence",
                    "with mapping.batch():\n for offset, data in pieces: write(data, offset)",
                ),
                way(WRITE_MANY, "a list of pairs", "mapping.write_many(pieces)"),
                way(SCATTER, "an array of each", "mapping.scatter(offsets, records)"),
                way(
                    "numpy indexing",
                    "view[numbers] = records; mapping.flush()",
                    "places[numbers] = records; mapping.flush()",
                ),
                way(
                    f"loop over {BINDINGS}",
                    "cuMemcpyHtoD for each",
                    f"for ptr, data in pointed: copy(ptr, data, {_RECORD})",
                ),
            ],
        )
        del places, names["places"]
