"""A broker's regions that give their GPU memory back, and take it again at the same addresses."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable

import gdrpy
from gdrpy import cuda
from gpumemory import free_nbytes
from harness import Measurement, Session, Topic
from sharedweights_process import broker

MODULE = "detach"
DETACH, ATTACH = "detach_many", "attach_many"
UNMAP, MAP = "the driver's calls to unmap", "the driver's calls to map"

_GIB, _MIB = 1 << 30, 1 << 20
_REGIONS, _NBYTES = 200, 328 * _MIB  # 64 GiB
#: For the simulated GPU, quick runs, and GPUs with less free memory.
_NBYTES_SMALL = 2 * _MIB
_ROUNDS, _ROUNDS_QUICK = 20, 3


def run(session: Session) -> None:
    """Measure detaching and attaching into the session."""
    large = not (session.quick or cuda.simulated()) and free_nbytes() > 66 * _GIB
    nbytes = _NBYTES if large else _NBYTES_SMALL
    with (
        tempfile.TemporaryDirectory(prefix="gdrpy-bench-") as folder,
        broker(f"{folder}/broker.sock"),
        gdrpy.connect(f"{folder}/broker.sock") as client,
    ):
        names = [f"layer/{number}" for number in range(_REGIONS)]
        regions = [client.allocate(name, nbytes, cpu=False) for name in names]
        for number, region in enumerate(regions):
            region.write(number.to_bytes(4, "little"), offset=nbytes - 4)
        session.step(f"{MODULE}: {nbytes * _REGIONS / _GIB:.0f} GiB")
        _measure(session, client, regions)
        for region in regions:
            region.close()


def _measure(session: Session, client: gdrpy.Broker, regions: list[gdrpy.BrokerRegion]) -> None:
    nbytes = regions[0].nbytes
    topic = Topic(MODULE, f"{_REGIONS} regions, all in one call", nbytes, "ms")
    addresses = [region.ptr for region in regions]
    samples: dict[str, list[float]] = {way: [] for way in (DETACH, ATTACH, UNMAP, MAP)}
    right = True

    def take(way: str, act: Callable[[], object]) -> None:
        begun = time.perf_counter_ns()
        act()
        samples[way].append(topic.sample(time.perf_counter_ns() - begun))

    for _ in range(_ROUNDS_QUICK if session.quick else _ROUNDS):
        take(DETACH, lambda: gdrpy.detach_many(regions))
        take(ATTACH, lambda: client.attach_many(regions))
        right &= [region.ptr for region in regions] == addresses
        right &= all(
            region.read(4, offset=nbytes - 4) == number.to_bytes(4, "little")
            for number, region in enumerate(regions)
        )
    alone = _Alone(regions)
    gdrpy.detach_many(regions)
    try:
        for _ in range(_ROUNDS_QUICK if session.quick else _ROUNDS):
            take(MAP, alone.map)
            take(UNMAP, alone.unmap)
    finally:
        alone.close()
    methods = {
        DETACH: "gdrpy.detach_many(regions): the leases and the memory are given back",
        ATTACH: "broker.attach_many(regions): granted and mapped again; then each is read",
        UNMAP: "cuMemUnmap of as many allocations, imported from descriptors, and cuMemRelease",
        MAP: "cuMemImportFromShareableHandle, cuMemMap and cuMemSetAccess",
    }
    for way, taken in samples.items():
        verified = right if way in (DETACH, ATTACH) else None
        session.add(Measurement(topic, way, methods[way], taken, verified=verified))


class _Alone:
    """The driver's calls for the memory of regions, at addresses of its own."""

    def __init__(self, regions: list[gdrpy.BrokerRegion]) -> None:
        driver = cuda.driver()
        self._nbytes = regions[0].nbytes
        self._kind = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        self._access = driver.CUmemAccessDesc()
        self._access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        self._access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        self._fds = [region.export() for region in regions]
        self._addresses = [cuda.call("cuMemAddressReserve", self._nbytes, 0, 0, 0) for _ in regions]
        self._handles: list[object] = []

    def map(self) -> None:
        for fd, address in zip(self._fds, self._addresses, strict=True):
            handle = cuda.call("cuMemImportFromShareableHandle", fd, self._kind)
            self._handles.append(handle)
            cuda.call("cuMemMap", address, self._nbytes, 0, handle, 0)
            cuda.call("cuMemSetAccess", address, self._nbytes, [self._access], 1)

    def unmap(self) -> None:
        for handle, address in zip(self._handles, self._addresses, strict=True):
            cuda.call("cuMemUnmap", address, self._nbytes)
            cuda.call("cuMemRelease", handle)
        self._handles.clear()

    def close(self) -> None:
        for address in self._addresses:
            cuda.call("cuMemAddressFree", address, self._nbytes)
        for fd in self._fds:
            os.close(fd)
