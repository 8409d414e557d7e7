"""Out of memory at every step of making a region: nothing is left behind."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

import gdrpy
from gdrpy import sim
from gdrpy.memory import page_locked as pinnedpool
from support import open_descriptors

FUNCTIONS = (
    "cuMemCreate",
    "cuMemExportToShareableHandle",
    "cuMemAddressReserve",
    "cuMemMap",
    "cuMemSetAccess",
)


def calls_of(function: str, work: Callable[[], object]) -> int:
    before = sim.call_count(function)
    work()
    return sim.call_count(function) - before


def make_region() -> None:
    gdrpy.alloc(4096).close()


RINGS: dict[str, Callable[[], object]] = {
    "channel": lambda: gdrpy.Channel(16, 1),
    "inbox": lambda: gdrpy.Inbox(16, 1),
    "link": lambda: gdrpy.Link(16, 16, 1),
}


@pytest.mark.usefixtures("nothing_leaks")
class TestFailingStep:
    @pytest.mark.parametrize("function", FUNCTIONS)
    @pytest.mark.parametrize(("code", "kind"), [(2, gdrpy.OutOfMemory), (999, gdrpy.CudaError)])
    def test_of_alloc_raises_its_error_and_leaves_nothing(self, backend, function, code, kind):
        times = calls_of(function, make_region)
        assert times > 0
        for nth in range(1, times + 1):
            with sim.fault(f"{function}:{nth}:{code}"), pytest.raises(kind, match=function):
                make_region()
        make_region()

    @pytest.mark.parametrize(
        "function",
        [
            "cuMemImportFromShareableHandle",
            "cuMemGetAllocationPropertiesFromHandle",
            *FUNCTIONS[2:],
        ],
    )
    def test_of_an_import_raises_and_leaves_nothing(self, backend, function):
        with gdrpy.alloc(4096) as region:
            fd = region.export()
            times = calls_of(function, lambda: gdrpy.Region.from_fd(fd).close())
            assert times > 0
            for nth in range(1, times + 1):
                with sim.fault(f"{function}:{nth}"), pytest.raises(gdrpy.Error):
                    gdrpy.Region.from_fd(fd)
            os.close(fd)

    @pytest.mark.parametrize(
        "function",
        [
            "cuMemImportFromShareableHandle",
            "cuMemGetAllocationPropertiesFromHandle",
            *FUNCTIONS[3:],
        ],
    )
    def test_of_an_attach_raises_and_leaves_the_region_detached(self, backend, function):
        with gdrpy.alloc(4096) as region:
            fd, address = region.export(), region.ptr
            region.write(b"kept")
            region.detach()
            with sim.fault(f"{function}:1"), pytest.raises(gdrpy.Error):
                region.attach(fd)
            assert region.detached
            region.attach(fd)
            os.close(fd)
            assert (region.ptr, region.read(4)) == (address, b"kept")

    @pytest.mark.parametrize(
        "function", [*FUNCTIONS, "cuMemHostAlloc", "cuMemHostGetDevicePointer"]
    )
    @pytest.mark.parametrize("make", RINGS.values(), ids=list(RINGS))
    def test_of_a_ring_raises_its_error_and_leaves_nothing(self, backend, make, function):
        pinnedpool.free_kept()  # else its page-locked memory takes no call
        times = calls_of(function, make)
        assert times > 0
        for nth in range(1, times + 1):
            pinnedpool.free_kept()
            with sim.fault(f"{function}:{nth}:999"), pytest.raises(gdrpy.CudaError, match=function):
                make()
        make()


class TestFailingClose:
    @pytest.mark.parametrize("function", ["cuMemUnmap", "cuMemAddressFree", "cuMemRelease"])
    def test_tells_what_failed_first_and_does_the_other_steps(self, backend, function):
        make_region()
        before = set(open_descriptors())
        region = gdrpy.alloc(4096)
        mapping, allocation = region.cpu, region._memory
        with sim.fault(f"{function}:1:999"), pytest.raises(gdrpy.CudaError, match=function):
            region.close()
        assert mapping.closed
        region.close()
        assert (region.closed, allocation.closed) == (True, True)
        # What CUDA refused to give back is left: the block's own descriptor, nothing of ours.
        left = {name for number, name in open_descriptors().items() if number not in before}
        assert left <= {"/memfd:gdrpy-sim-dev0 (deleted)"}

    def test_of_a_half_made_region_keeps_the_first_error(self, backend):
        with (
            sim.fault("cuMemSetAccess:1:2,cuMemAddressFree:1:999"),
            pytest.raises(gdrpy.OutOfMemory, match="cuMemSetAccess") as caught,
        ):
            gdrpy.alloc(4096)
        assert len(caught.value.__notes__) == 1
        assert caught.value.__notes__[0].startswith("cleaning up: CudaError: cuMemAddressFree")
