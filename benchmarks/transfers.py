"""region.write and region.read at every size: their choice, both ways, memcpy, and the rivals."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np

import gdrpy
from gdrpy import Region, cuda
from gdrpy.memory import engine
from harness import Contender, Session, Statement
from native import MEMCPY, NotBuilt, built
from payload import Bytes, GpuBytes, fills, lands, payload, pinned, returns
from rivals import NAMES, Rival, all_reads, all_writes, rivals
from sweep import AGAIN, SIZE, Point, Sweep
from words import NEW, PAGEABLE, PINNED, REGISTERED, way

MODULE = "transfers"
WRITE = "write"
READ = "read"

#: The ways: the library's choice, and each path by force.
AUTOMATIC = "automatic"
MAPPING = "mapping"
DMA = "DMA"
ENGINE = "engine"
NUMPY = "numpy view"
AUTOMATIC_AGAIN = f"{AUTOMATIC} {AGAIN}"
WAYS = {
    AUTOMATIC: None,
    AUTOMATIC_AGAIN: None,
    MAPPING: "mapping",
    DMA: "dma",
    ENGINE: "engine",
}

#: Memory is registered where there is a copy engine.
KINDS = {
    WRITE: (PAGEABLE, PINNED, REGISTERED),
    READ: (PAGEABLE, PINNED, REGISTERED, NEW),
}

#: Ratios, for each kind of host memory.
OVER_BETTER = "automatic over better way"
RIVAL_OVER = "best rival over automatic"
OVER_ITSELF = "automatic over itself"

#: Figures: the worst of these. Small copies take less time than a round trip of DMA.
WORST = f"{OVER_BETTER}, at worst"
WORST_RIVAL_SMALL = f"{RIVAL_OVER}, at worst up to 64 KiB"
WORST_RIVAL_LARGE = f"{RIVAL_OVER}, at worst above 64 KiB"
WORST_ITSELF = f"{OVER_ITSELF}, at worst"

KIB = 1 << 10
MIB = 1 << 20
SIZES = tuple(1 << power for power in range(2, 31))
#: The simulated GPU's memory is the host's.
_SIMULATED_MOST = 16 * MIB
QUICK_SIZES = (4, 4 * KIB, MIB)
_SMALL = 64 * KIB

#: Plain loads reach 60 MB/s, and those of the engine some GB/s: larger reads show nothing new.
_LONGEST_PLAIN_READ = 64 * KIB
_LONGEST_MAPPING_READ = 64 * MIB

#: The part of a comparison's time for a size, and its least and most rounds.
_SHARE_SMALL, _SHARE_LARGE, _LARGE = 1.5, 0.6, 16 * MIB
_ROUNDS_SMALL, _ROUNDS_LARGE = (15, 100), (11, 50)


def run(session: Session) -> None:
    """Measure transfers into the session."""
    most = _SIMULATED_MOST if cuda.simulated() else max(SIZES)
    sizes = QUICK_SIZES if session.quick else tuple(size for size in SIZES if size <= most)
    with ExitStack() as undo:
        region = undo.enter_context(gdrpy.alloc(max(sizes)))
        hosts = {
            PAGEABLE: np.zeros(max(sizes), np.uint8),
            PINNED: undo.enter_context(pinned(max(sizes))),
        }
        if engine.status(0).usable:
            hosts[REGISTERED] = np.zeros(max(sizes), np.uint8)
            undo.enter_context(gdrpy.register(hosts[REGISTERED]))
        others = rivals(session, region, hosts[PINNED])
        for operation, contenders in ((WRITE, _writes), (READ, _reads)):
            sweep = Sweep(MODULE, operation, (SIZE,))
            session.sweeps.append(sweep)
            for nbytes in sizes:
                session.step(f"{MODULE}: {operation} {nbytes} B")
                _measure(
                    sweep,
                    nbytes,
                    contenders(session, region, _first(hosts, nbytes), others),
                    session.seconds,
                )
            _figures(session, sweep, KINDS[operation])


def _first(hosts: dict[str, Bytes], nbytes: int) -> dict[str, Bytes]:
    return {kind: host[:nbytes] for kind, host in hosts.items()}


def _measure(sweep: Sweep, nbytes: int, ways: list[Contender], seconds: float) -> None:
    small = nbytes < _LARGE
    share = _SHARE_SMALL if small else _SHARE_LARGE
    least, most = _ROUNDS_SMALL if small else _ROUNDS_LARGE
    point = sweep.measure((nbytes,), ways, seconds * share, least, most, verify_before=small)
    sweep.keep(point, _ratios(point, KINDS[sweep.operation]))


def _ways(operation: str, nbytes: int) -> dict[str, str | None]:
    """The WAYS that this machine has, and that have a chance at this size."""
    slow = operation == READ and nbytes > _LONGEST_MAPPING_READ
    absent = {MAPPING: slow, ENGINE: not engine.status(0).usable}
    return {who: via for who, via in WAYS.items() if not absent.get(who)}


def _writes(
    session: Session, region: Region, hosts: dict[str, Bytes], others: list[Rival]
) -> list[Contender]:
    pageable = hosts[PAGEABLE]
    nbytes = pageable.nbytes
    data = payload(nbytes)
    for host in hosts.values():
        host[:] = data
    verify = lands(GpuBytes(region.ptr), pageable)
    view = region.numpy(np.uint8, nbytes)
    return [
        *(
            Contender(
                way(who, kind),
                f"region.write(array, via={via!r}), from {kind} memory",
                Statement(
                    f"write(data, 0, {via!r})" if via else "write(data, 0)",
                    write=region.write,
                    data=data,
                ),
                verify,
            )
            for who, via in _ways(WRITE, nbytes).items()
            for kind, data in hosts.items()
        ),
        Contender(
            way(NUMPY, PAGEABLE),
            "view[:] = array, then mapping.flush()",
            Statement("view[:] = data; flush()", view=view, data=pageable, flush=region.cpu.flush),
            verify,
        ),
        *_memcpy(session, region, pageable, WRITE),
        *all_writes(others, pageable),
    ]


def _reads(
    session: Session, region: Region, hosts: dict[str, Bytes], others: list[Rival]
) -> list[Contender]:
    pageable = hosts[PAGEABLE]
    nbytes = pageable.nbytes
    gpu = GpuBytes(region.ptr)
    ways = _ways(READ, nbytes)
    found = [
        *(
            Contender(
                way(who, kind),
                f"region.readinto(array, via={via!r}), into {kind} memory",
                Statement(
                    f"readinto(target, 0, {via!r})" if via else "readinto(target, 0)",
                    readinto=region.readinto,
                    target=target,
                ),
                fills(gpu, target),
            )
            for who, via in ways.items()
            for kind, target in hosts.items()
        ),
        *(
            Contender(
                way(who, NEW),
                f"region.read(nbytes, via={via!r}), a new bytes object",
                Statement(
                    f"result = read(nbytes, 0, {via!r})" if via else "result = read(nbytes, 0)",
                    read=region.read,
                    nbytes=nbytes,
                ),
                returns(gpu, nbytes),
            )
            for who, via in ways.items()
        ),
        *all_reads(others, pageable),
    ]
    if nbytes <= _LONGEST_PLAIN_READ:
        view = region.numpy(np.uint8, nbytes)
        found += [
            Contender(
                way(NUMPY, PAGEABLE),
                "array[:] = view",
                Statement("target[:] = view", target=pageable, view=view),
                fills(gpu, pageable),
            ),
            *_memcpy(session, region, pageable, READ),
        ]
    return found


def _memcpy(session: Session, region: Region, host: Bytes, operation: str) -> list[Contender]:
    try:
        native = built()
    except NotBuilt as error:
        session.absent[f"{MODULE}: {MEMCPY}"] = str(error)
        return []
    gpu = GpuBytes(region.ptr)
    memcpy = native.routines(to_mapping=True)[MEMCPY]
    if operation == WRITE:
        loop, verify = native.routine_write(memcpy, region.cpu, host), lands(gpu, host)
    else:
        loop, verify = native.routine_read(memcpy, region.cpu, host), fills(gpu, host)
    return [Contender(way(MEMCPY, PAGEABLE), "memcpy on the mapping, in C", loop, verify)]


def _ratios(point: Point, kinds: tuple[str, ...]) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for kind in kinds:
        automatic = way(AUTOMATIC, kind)
        others = [way(name, kind) for name in (MAPPING, DMA, ENGINE)]
        found[way(OVER_BETTER, kind)] = point.ratio(automatic, others)
        theirs = PINNED if kind == REGISTERED else kind
        slower = point.ratio(automatic, [way(name, theirs) for name in NAMES])
        found[way(RIVAL_OVER, kind)] = slower and 1 / slower
        found[way(OVER_ITSELF, kind)] = point.ratio(automatic, [way(AUTOMATIC_AGAIN, kind)])
    return found


def _figures(session: Session, sweep: Sweep, kinds: tuple[str, ...]) -> None:
    rival = [way(RIVAL_OVER, kind) for kind in kinds]
    sweep.figure(session, WORST, [way(OVER_BETTER, kind) for kind in kinds], max)
    sweep.figure(session, WORST_ITSELF, [way(OVER_ITSELF, kind) for kind in kinds], max)
    sweep.figure(session, WORST_RIVAL_SMALL, rival, min, lambda key: key[0] <= _SMALL)
    sweep.figure(session, WORST_RIVAL_LARGE, rival, min, lambda key: key[0] > _SMALL)
