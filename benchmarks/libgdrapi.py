"""The C library libgdrapi: the cost of pins and maps, its copies, and its leaks."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import engine
from freshprocess import Times, found_by
from gdrpy import cuda
from gpumemory import NoNvml, nvml
from harness import Figure, Measurement, Session, Timed, Topic
from libgdrapi_child import KINDS
from libgdrapi_native import Gdr, Pinned, build, opened
from native import built
from payload import Bytes, GpuBytes, payload, same
from sweep import Sweep, figure_id

MODULE = "libgdrapi"

FURTHER = "pin and map a further buffer"
CYCLE = "pin, map, copy 4 KiB in and out, unmap, unpin"
LEFT = "left by the cycles"
DESCRIPTORS, BAR1, GPU_MEMORY, RESIDENT = "descriptors", "BAR1", "GPU memory", "resident memory"

#: The times of a child, as rows of the table.
_CALLS = {
    "open": "gdr_open",
    "first pin": "gdr_pin_buffer, the first of a process",
    "first map": "gdr_map, the first of a process",
    "pin": "gdr_pin_buffer",
    "map": "gdr_map",
    "pin and map": FURTHER,
    "unmap": "gdr_unmap",
    "unpin": "gdr_unpin_buffer",
}
_CHILD = Path(__file__).resolve().parent / "libgdrapi_child.py"
_PROCESSES, _PROCESSES_QUICK = 5, 2
_BUFFERS = 10

_SIZES = (*(1 << power for power in range(25)), 3, 13, 100, 1000, 4097, 12289, 65537, 1000003)
_QUICK_SIZES = (1, 200, 64 << 10)
_OFFSETS = ((0, 0), (8, 8), (33, 7))

_PINNED = 64 << 10
_COPIED = 4096
_BATCHES, _BATCH = 100, 100
_BATCHES_QUICK, _BATCH_QUICK = 5, 10
_PAGE = os.sysconf("SC_PAGE_SIZE")
_MIB = 1 << 20


class Writes(engine.Writes):
    """The library's copies to the mapping."""

    region: Pinned
    way = MODULE
    method = "gdr_copy_to_mapping"

    def copy(self, host: Bytes, start: int) -> Timed:
        return self.region.write(host, start)


class Reads(engine.Reads):
    """The library's copies from the mapping."""

    region: Pinned
    way = MODULE
    method = "gdr_copy_from_mapping"

    def copy(self, host: Bytes, start: int) -> Timed:
        return self.region.read(host, start)


def run(session: Session) -> None:
    """Measure the library into the session. Raises NotBuilt if it is not built."""
    with tempfile.TemporaryDirectory(prefix="gdrpy-bench-") as folder:
        library = build(Path(folder))
        for kind in KINDS:
            _calls(session, library, kind)
        with opened(library) as gdr:
            _copies(session, gdr)
            _cycles(session, gdr)


def _calls(session: Session, library: Path, kind: str) -> None:
    """Each call alone, in fresh processes."""
    times = Times(session, MODULE)
    for number in range(_PROCESSES_QUICK if session.quick else _PROCESSES):
        session.step(f"{MODULE}: {kind}, process {number + 1}")
        times.add(found_by(_CHILD, library, kind, _BUFFERS))
    method = f"64 KiB of a buffer of {kind}, in a process that has a CUDA context"
    for name, operation in _CALLS.items():
        times.report(name, operation, method, kind)


def _copies(session: Session, gdr: Gdr) -> None:
    """Copies beside the engine's routines on the same mapping, in turns."""
    native = built()
    sizes = _QUICK_SIZES if session.quick else sorted(_SIZES)
    nbytes = max(sizes) + 4 * 64
    with _allocated(nbytes) as ptr:
        pinned = gdr.pin(ptr, nbytes)
        for operation, side in ((engine.TO, Writes), (engine.FROM, Reads)):
            points = [(size, *offsets) for size in sizes for offsets in _OFFSETS]
            sweep = Sweep(MODULE, operation, engine.KEYS, spread=False)
            engine.measure(session, sweep, side(native, pinned), points)
        pinned.close()


def _cycles(session: Session, gdr: Gdr) -> None:
    """Many pins, one after the other, and the resources in use afterwards."""
    batches, batch = (_BATCHES_QUICK, _BATCH_QUICK) if session.quick else (_BATCHES, _BATCH)
    session.step(f"{MODULE}: {batches * batch} cycles")
    data, back = payload(_COPIED), np.empty(_COPIED, np.uint8)
    with _allocated(_PINNED) as ptr:
        cycles = gdr.cycles(ptr, _PINNED, data, back)
        cycles.batch(batch)
        _in_use()  # from its first use on NVML keeps memory and a descriptor
        before = _in_use()
        taken = [cycles.batch(batch) for _ in range(batches)]
        after = _in_use()
        right = same(back, data) and same(GpuBytes(ptr).get(_COPIED), data)
    topic = Topic(MODULE, CYCLE)
    samples = [topic.sample(time / batch) for time in taken]
    method = f"64 KiB of cudaMalloc, {batches * batch} times one after the other"
    session.add(Measurement(topic, MODULE, method, samples, batch, verified=right))
    for what, unit in ((DESCRIPTORS, ""), (BAR1, "B"), (GPU_MEMORY, "B"), (RESIDENT, "B")):
        if what in before:
            more = after[what] - before[what]
            session.derive_figure(Figure(figure_id(MODULE, LEFT, what), more, unit))


def _in_use() -> dict[str, int]:
    """Resources of this process and of the GPU; a simulated GPU reports none."""
    found = {
        DESCRIPTORS: len(list(Path("/proc/self/fd").iterdir())),
        RESIDENT: int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE,
    }
    try:
        with nvml() as library:
            use = library.use(cuda.device_info(0).pci)
    except NoNvml:
        return found
    return found | {BAR1: use.bar1, GPU_MEMORY: use.memory}


@contextmanager
def _allocated(nbytes: int) -> Iterator[int]:
    """Memory of cuMemAlloc, which is cudaMalloc's."""
    ptr = int(cuda.call("cuMemAlloc", nbytes))
    try:
        yield ptr
    finally:
        cuda.call("cuMemFree", ptr)
