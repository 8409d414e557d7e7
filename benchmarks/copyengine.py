"""The GPU's copy engine without CUDA: copies beside CUDA's, fresh processes, neighbours."""

from __future__ import annotations

import compileall
import hashlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import copyengine_kills
import gdrpy
from copyengine_child import VIA, noise
from freshprocess import Times
from gdrpy import Region, cuda
from gdrpy.cli.measure.timing import clock, undisturbed
from gdrpy.memory import engine
from gpumemory import free_nbytes, memory_back
from harness import Contender, Figure, Session, Statement, identifier
from payload import Bytes, GpuBytes, fills, lands, payload, pinned, same
from rivals import BINDINGS, CudaBindings
from sweep import AGAIN, SIZE, Point, Sweep, figure_id
from words import PAGEABLE, PINNED, size_words, way

MODULE = copyengine_kills.MODULE
WRITE = "write"
READ = "read"

#: Its ways. Registered memory is pinned.
ENGINE = "engine"
ENGINE_AGAIN = f"{ENGINE} {AGAIN}"

#: Ratios, for each kind of host memory.
CUDA_OVER = f"{BINDINGS} over {ENGINE}"
OVER_ITSELF = f"{ENGINE} over itself"

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
SIZES = (64, 4 * KIB, 64 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB, GIB)
_QUICK_SIZES = SIZES[:4]
#: The simulated GPU's memory is the host's.
_SIMULATED_MOST = 16 * MIB
#: The sizes of the goals.
SMALL = (4 * KIB, 64 * KIB)
LARGE = 64 * MIB
FROM_ORDINARY = 256 * MIB

#: Figures of sizes from LARGE on.
LEAST_RATE = f"least GB/s from {size_words(LARGE)} on"
LEAST_RATIO = f"{CUDA_OVER}, at worst from {size_words(LARGE)} on"
WORST_ITSELF = f"{OVER_ITSELF}, at worst"

CPU_TIME = figure_id(MODULE, READ, "CPU time of a read of 1 GiB into registered memory")

FRESH = "fresh CPU-only process, descriptor to 1 MiB read"
FROM_MAIN = "fresh CPU-only process, Python's main to 1 MiB read, with imports"
FURTHER = "further region of such a process, until 1 MiB is read"
WARM, COLD = "files cached", "files not cached"
MEMORY = figure_id(MODULE, "fresh CPU-only process", "GPU memory")

NEIGHBOURS = "read 64 B beside another process"
IDLE = "idle"
BESIDE_WRITE, BESIDE_READ = "its bulk write by the engine", "its bulk read by the engine"
_BESIDE = {
    IDLE: (),
    BESIDE_WRITE: ("bulk", "write"),
    BESIDE_READ: ("bulk", "read"),
    "its CUDA stream of writes": ("stream", "write"),
    "its CUDA stream of reads": ("stream", "read"),
}

MANY = "ten processes at once"
WRONG = figure_id(MODULE, MANY, "wrong copies")

_CHILD = Path(__file__).resolve().parent / "copyengine_child.py"
_NOBODY = 65534
_PATIENCE = 120


def run(session: Session) -> None:
    """Measure the copy engine into the session, if this machine has one."""
    session.step(f"{MODULE}: the engine's self-check")
    status = engine.status(0)
    if not status.usable:
        session.absent[f"{MODULE}: {ENGINE}"] = status.reason
        return
    _copies(session)
    _waiting(session)
    _fresh(session)
    _neighbours(session)
    _many(session)
    copyengine_kills.run(session)


def _copies(session: Session) -> None:
    most = _SIMULATED_MOST if cuda.simulated() else max(SIZES)
    sizes = _QUICK_SIZES if session.quick else tuple(size for size in SIZES if size <= most)
    with ExitStack() as undo:
        region = undo.enter_context(gdrpy.alloc(max(sizes)))
        rival = CudaBindings(region, undo.enter_context(pinned(max(sizes))))
        pageable, registered = np.zeros(max(sizes), np.uint8), np.zeros(max(sizes), np.uint8)
        undo.enter_context(gdrpy.register(registered))
        for operation, contenders in ((WRITE, _writes), (READ, _reads)):
            sweep = Sweep(MODULE, operation, (SIZE,))
            session.sweeps.append(sweep)
            for nbytes in sizes:
                session.step(f"{MODULE}: {operation} {nbytes} B")
                hosts = pageable[:nbytes], registered[:nbytes]
                point = sweep.measure(
                    (nbytes,),
                    contenders(region, rival, *hosts),
                    session.seconds,
                    verify_before=nbytes < LARGE,
                )
                sweep.keep(point, _ratios(point))
            _figures(session, sweep)


def _writes(
    region: Region, rival: CudaBindings, pageable: Bytes, registered: Bytes
) -> list[Contender]:
    pageable[:] = registered[:] = payload(pageable.nbytes)
    verify = lands(GpuBytes(region.ptr), pageable)
    return [
        *(
            Contender(
                way(who, kind),
                f"region.write(array, via={VIA!r}), from {words} memory",
                Statement("write(data, 0, via)", write=region.write, data=data, via=VIA),
                verify,
            )
            for who, kind, words, data in _ours(pageable, registered)
        ),
        *rival.writes(pageable),
    ]


def _reads(
    region: Region, rival: CudaBindings, pageable: Bytes, registered: Bytes
) -> list[Contender]:
    gpu = GpuBytes(region.ptr)
    return [
        *(
            Contender(
                way(who, kind),
                f"region.readinto(array, via={VIA!r}), into {words} memory",
                Statement("readinto(into, 0, via)", readinto=region.readinto, into=into, via=VIA),
                fills(gpu, into),
            )
            for who, kind, words, into in _ours(pageable, registered)
        ),
        *rival.reads(pageable),
    ]


def _ours(pageable: Bytes, registered: Bytes) -> list[tuple[str, str, str, Bytes]]:
    return [
        (ENGINE, PAGEABLE, "ordinary", pageable),
        (ENGINE, PINNED, "registered", registered),
        (ENGINE_AGAIN, PINNED, "registered", registered),
    ]


def _ratios(point: Point) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for kind in (PAGEABLE, PINNED):
        slower = point.ratio(way(ENGINE, kind), [way(BINDINGS, kind)])
        found[way(CUDA_OVER, kind)] = slower and 1 / slower
    found[way(OVER_ITSELF, PINNED)] = point.ratio(way(ENGINE, PINNED), [way(ENGINE_AGAIN, PINNED)])
    return found


def _figures(session: Session, sweep: Sweep) -> None:
    """The figures of the goals, of the sizes that were measured."""
    ratio = way(CUDA_OVER, PINNED)
    for point in sweep.points:
        nbytes = point.key[0]
        if nbytes in SMALL and not sweep.wrong:
            name = figure_id(MODULE, sweep.operation, time_name(nbytes))
            time = point.median(way(ENGINE, PINNED)) / 1e3
            session.derive_figure(Figure(name, time, "us"))
            sweep.figure(session, ratio_name(nbytes), [ratio], min, (nbytes,).__eq__)
    sweep.figure(session, WORST_ITSELF, [way(OVER_ITSELF, PINNED)], max)
    sweep.figure(session, LEAST_RATIO, [ratio], min, lambda key: key[0] >= LARGE)
    sweep.rate(session, FROM_ORDINARY, way(ENGINE, PAGEABLE))
    sweep.figure(
        session,
        ratio_name(FROM_ORDINARY),
        [way(CUDA_OVER, PAGEABLE)],
        min,
        (FROM_ORDINARY,).__eq__,
    )
    rates = [
        (one.key[0] / one.median(way(ENGINE, PINNED)), one.key)
        for one in sweep.points
        if one.key[0] >= LARGE
    ]
    if rates and not sweep.wrong:
        rate, key = min(rates)
        name = figure_id(MODULE, sweep.operation, LEAST_RATE)
        session.derive_figure(Figure(name, rate, "GB/s", sweep.words(key)))


def time_name(nbytes: int) -> str:
    """The name of the figure that is the time of a copy from or to registered memory."""
    return f"{size_words(nbytes)}, {way(ENGINE, PINNED)}"


def ratio_name(nbytes: int) -> str:
    """The name of the figure that is how many times faster than CUDA a copy is."""
    return f"{CUDA_OVER}, {size_words(nbytes)}"


def _waiting(session: Session) -> None:
    """Take the CPU time of large reads, which only wait. Raises ValueError for wrong bytes."""
    nbytes = MIB if session.quick else _SIMULATED_MOST if cuda.simulated() else GIB
    session.step(f"{MODULE}: CPU time")
    with gdrpy.alloc(nbytes) as region:
        data, into = payload(nbytes), np.zeros(nbytes, np.uint8)
        GpuBytes(region.ptr).put(data)
        with gdrpy.register(into):
            region.readinto(into, 0, VIA)  # pins
            cpu, wall, reads = time.process_time(), time.perf_counter(), 0
            while reads < 3 or time.perf_counter() - wall < session.seconds:
                region.readinto(into, 0, VIA)
                reads += 1
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    if not same(into, data):
        raise ValueError(f"{MODULE}: {CPU_TIME}: wrong bytes after {reads} reads")
    words = f"of the time that {reads} reads of {size_words(nbytes)} take"
    session.derive_figure(Figure(CPU_TIME, 100 * cpu / wall, "%", words))


def _fresh(session: Session) -> None:
    """Time the first acts of CPU-only processes, and take their GPU memory."""
    processes = 2 if session.quick else 10
    taken = []
    compileall.compile_dir(Path(gdrpy.__file__).parent, quiet=2)
    with gdrpy.alloc(MIB) as region:
        data = payload(MIB)
        GpuBytes(region.ptr).put(data)
        digest = hashlib.blake2b(data).hexdigest()
        free = free_nbytes()
        for state in (WARM, COLD):
            times = Times(session, MODULE)
            for number in range(1, processes + 1):
                session.step(f"{MODULE}: fresh process {number}, {state}")
                if state == COLD:
                    _forget_files()
                with _shared(region) as fd, _begun("read", fd, MIB, inherit=[fd]) as found:
                    taken.append(free - free_nbytes())
                right = found.pop("digest") == digest, not found.pop("cuda")
                found["verified"] = all(right)
                times.add(found)
                memory_back(free, 1)
            first = f"Region.from_fd(fd, gpu=False).read(1 MiB, via={VIA!r}); one a process"
            times.report("first", FRESH, first, state)
            times.report("main", FROM_MAIN, f"from gdrpy import Region, then {first}", state)
            if state == WARM:
                times.report("further", FURTHER, "the same again, and close; 10 a process", state)
    session.derive_figure(Figure(MEMORY, max(taken) / MIB, "MiB", f"{len(taken)} processes"))


def _forget_files() -> None:
    """Drop gdrpy's files from the page cache, as far as no process maps them."""
    for file in Path(gdrpy.__file__).parent.rglob("*"):
        if file.is_file():
            opened = os.open(file, os.O_RDONLY)
            os.posix_fadvise(opened, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(opened)


def _neighbours(session: Session) -> None:
    """Time single small reads while another process copies as much as it can."""
    nbytes = MIB if session.quick or cuda.simulated() else 256 * MIB
    samples: dict[str, list[int]] = {}
    with ExitStack() as undo:
        bulk = undo.enter_context(gdrpy.alloc(nbytes))
        region = undo.enter_context(gdrpy.alloc(64))
        into = np.zeros(64, np.uint8)
        undo.enter_context(gdrpy.register(into))
        data = payload(64)
        GpuBytes(region.ptr).put(data)
        for name, (*action,) in _BESIDE.items():
            session.step(f"{MODULE}: {NEIGHBOURS}, {name}")
            with ExitStack() as neighbour:
                if action:
                    fd = neighbour.enter_context(_shared(bulk))
                    which = [fd, action[1]] if action[0] == "bulk" else [action[1], nbytes]
                    neighbour.enter_context(_begun(action[0], *which, inherit=[fd]))
                samples[name] = _single_reads(session, region, into, data)
    method = f"region.readinto(array, 0, {VIA!r}), into registered memory, call by call"
    session.keep_single_times(MODULE, NEIGHBOURS, dict.fromkeys(samples, method), samples)


def _single_reads(session: Session, region: Region, into: Bytes, data: Bytes) -> list[int]:
    """Nanoseconds of each of many reads. Raises ValueError for wrong bytes."""
    least, most = (5, 20) if session.quick else (100, 10_000)
    times: list[int] = []
    deadline = time.monotonic() + session.seconds
    with undisturbed():
        while len(times) < least or (len(times) < most and time.monotonic() < deadline):
            into.fill(~data[0])
            begun = clock()
            region.readinto(into, 0, VIA)
            times.append(clock() - begun)
            if not same(into, data):
                raise ValueError(f"{MODULE}: {NEIGHBOURS}: wrong bytes after {len(times)} reads")
    return times


def neighbour_id(name: str) -> str:
    """The id of the median time of a small read beside a neighbour."""
    return identifier(MODULE, NEIGHBOURS, None, name)


def _many(session: Session) -> None:
    """Have processes copy at random at the same time, as an unprivileged user if possible."""
    processes, copies = (2, 3) if session.quick else (10, 300)
    slot = MIB if session.quick else 16 * MIB
    user = _unprivileged(session)
    wrong = 0
    with gdrpy.alloc(processes * slot) as region, _shared(region) as fd, ExitStack() as undo:
        session.step(f"{MODULE}: {MANY}")
        gpu = GpuBytes(region.ptr)
        gpu.put(np.concatenate([noise(number, slot) for number in range(processes)]))
        started = [
            undo.enter_context(_started("random", fd, number, slot, copies, inherit=[fd], **user))
            for number in range(processes)
        ]
        found = [_heard(one, "random") for one in started]
        left = gpu.get(region.nbytes).reshape(processes, slot)
        for part, one in zip(left, found, strict=True):
            wrong += one["wrong"] + (hashlib.blake2b(part).hexdigest() != one["digest"])
    words = f"of {processes * copies * 2}, 1 B to {size_words(slot // 4)}"
    if user:
        words += f", as user {_NOBODY}"
    session.derive_figure(Figure(WRONG, wrong, "", words))


def _unprivileged(session: Session) -> dict[str, Any]:
    """Arguments of Popen for another user, if this process may switch to one that can run it."""
    if os.geteuid():
        return {}
    user: dict[str, Any] = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []}
    command = [sys.executable, "-c", "import gdrpy, numpy, sys; open(sys.argv[1])", str(_CHILD)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, **user)
    except (OSError, subprocess.CalledProcessError) as error:
        session.absent[f"{MODULE}: as user {_NOBODY}"] = str(error)
        return {}
    return user


@contextmanager
def _shared(region: Region) -> Iterator[int]:
    fd = region.export()
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _started(
    action: str, *arguments: object, inherit: Sequence[int], **user: Any
) -> Iterator[subprocess.Popen[str]]:
    """A process of copyengine_child.py, killed in the end if it does not end by itself."""
    process = subprocess.Popen(
        [sys.executable, str(_CHILD), action, *map(str, arguments)],
        pass_fds=inherit,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **user,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def _begun(action: str, *arguments: object, inherit: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Like _started(); yields the message that it sends when it has begun."""
    with _started(action, *arguments, inherit=inherit) as process:
        yield _heard(process, action)


def _heard(process: subprocess.Popen[str], action: str) -> dict[str, Any]:
    """The one line that a process says. Raises RuntimeError if it ended or hangs instead."""
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], _PATIENCE)[0]:
        raise RuntimeError(f"{_CHILD.name} {action} said nothing for {_PATIENCE} s")
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{_CHILD.name} {action} ended with status {process.wait(_PATIENCE)}")
    found: dict[str, Any] = json.loads(line)
    return found
