"""Large copies: through the mapping by one thread, by DMA, and what the library chooses."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gdrpy
from gdrpy import Region
from harness import RATE_UNIT, Contender, Measurement, Session, Statement, Topic
from payload import GpuBytes, fills, lands, payload, pinned, returns

MODULE = "bandwidth"
KIB = 1 << 10
MIB = 1 << 20

WRITE_SIZES = tuple(64 * KIB << step for step in range(11))
READ_SIZES = (*(KIB << step for step in range(7)), MIB, 16 * MIB, 64 * MIB)
QUICK_SIZES = (4 * KIB, 64 * KIB, MIB)

#: Reading more than this through a mapping, at 1 GB/s, tells nothing new.
LONGEST_MAPPING_READ = 16 * MIB

MAPPING = "mapping"
DMA = "DMA, pageable"
DMA_PINNED = "DMA, pinned"
AUTOMATIC = "automatic, pageable"
AUTOMATIC_PINNED = "automatic, pinned"
AUTOMATIC_NEW = "automatic, new bytes"


def run(session: Session) -> None:
    """Measure bandwidths into the session."""
    write_sizes = QUICK_SIZES if session.quick else WRITE_SIZES
    read_sizes = QUICK_SIZES if session.quick else READ_SIZES
    most = max(*write_sizes, *read_sizes)
    with gdrpy.alloc(most) as region, pinned(most) as host:
        for nbytes in write_sizes:
            _writes(session, region, nbytes, host[:nbytes])
        for nbytes in read_sizes:
            _reads(session, region, nbytes, host[:nbytes])


def _writes(session: Session, region: Region, nbytes: int, host: NDArray[np.uint8]) -> None:
    data = payload(nbytes)
    host[:] = np.frombuffer(data, np.uint8)
    verify = lands(GpuBytes(region.ptr), data)
    by_dma = functools.partial(region.write, via="dma")

    def way(name: str, method: str, copy: Any, source: object) -> Contender:
        return Contender(name, method, Statement("copy(data, 0)", copy=copy, data=source), verify)

    session.compare(
        Topic(MODULE, "write", nbytes, RATE_UNIT),
        [
            way(MAPPING, "mapping.write(bytes), one thread", region.cpu.write, data),
            way(DMA, "cuMemcpyHtoDAsync from bytes, synchronized", by_dma, data),
            way(DMA_PINNED, "the same from page-locked memory", by_dma, host),
            way(AUTOMATIC, "region.write(bytes)", region.write, data),
            way(AUTOMATIC_PINNED, "region.write from page-locked memory", region.write, host),
        ],
    )


def _reads(session: Session, region: Region, nbytes: int, host: NDArray[np.uint8]) -> None:
    gpu = GpuBytes(region.ptr)
    pageable = np.empty(nbytes, np.uint8)
    by_dma = functools.partial(region.readinto, via="dma")

    def way(name: str, method: str, copy: Any, target: NDArray[np.uint8]) -> Contender:
        statement = Statement("copy(target, 0)", copy=copy, target=target)
        return Contender(name, method, statement, fills(gpu, target))

    contenders = [
        way(DMA, "cuMemcpyDtoHAsync into an array, synchronized", by_dma, pageable),
        way(DMA_PINNED, "the same into page-locked memory", by_dma, host),
        way(AUTOMATIC, "region.readinto(ndarray)", region.readinto, pageable),
        way(AUTOMATIC_PINNED, "region.readinto page-locked memory", region.readinto, host),
        Contender(
            AUTOMATIC_NEW,
            "region.read(nbytes), a new bytes object",
            Statement("result = read(nbytes)", read=region.read, nbytes=nbytes),
            returns(gpu, nbytes),
        ),
    ]
    if nbytes <= LONGEST_MAPPING_READ:
        method = "mapping.readinto(ndarray), one thread"
        contenders.insert(0, way(MAPPING, method, region.cpu.readinto, pageable))
    session.compare(Topic(MODULE, "read", nbytes, RATE_UNIT), contenders)


def crossovers(measurements: Iterable[Measurement]) -> list[dict[str, Any]]:
    """Up to which measured size the mapping beats DMA, and how well the automatic choice does.

    ``mapping_faster_up_to`` is None where DMA wins from the smallest size on;
    ``worst_choice`` is the time of the automatic way over that of the better one, at its worst.
    """
    measured = [one for one in measurements if one.topic.module == MODULE]
    return [
        _crossover(
            operation,
            dma,
            *(_rates(measured, operation, way) for way in (MAPPING, dma, automatic)),
        )
        for operation in ("write", "read")
        for dma, automatic in ((DMA, AUTOMATIC), (DMA_PINNED, AUTOMATIC_PINNED))
        if measured
    ]


def _rates(measured: list[Measurement], operation: str, way: str) -> dict[int, float]:
    """Median rates by size."""
    return {
        one.topic.nbytes: one.median
        for one in measured
        if one.topic.operation == operation and one.way == way and one.topic.nbytes
    }


def _crossover(
    operation: str,
    against: str,
    mapping: dict[int, float],
    dma: dict[int, float],
    automatic: dict[int, float],
) -> dict[str, Any]:
    sizes = sorted(mapping)
    slower = (position for position, size in enumerate(sizes) if mapping[size] < dma[size])
    faster = sizes[: next(slower, len(sizes))]
    choice = {size: max(mapping[size], dma[size]) / automatic[size] for size in sizes}
    worst = max(sizes, key=choice.__getitem__)
    return {
        "operation": operation,
        "against": against,
        "mapping_faster_up_to": faster[-1] if faster else None,
        "sizes": sizes,
        "mapping_over_dma": [round(mapping[size] / dma[size], 3) for size in sizes],
        "worst_choice": round(choice[worst], 3),
        "worst_choice_at": worst,
    }
