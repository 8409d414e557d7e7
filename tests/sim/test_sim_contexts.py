"""Contexts that end, and what becomes of what they had."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
from cuda_calls import GRANULE, Cuda


@pytest.fixture
def created(cuda: Cuda) -> Iterator[Any]:
    """A second context of device 0, current."""
    context = (
        cuda("cuCtxCreate", None, 0, 0)
        if int(cuda("cuDriverGetVersion")) >= 13000 and _takes_parameters(cuda)
        else cuda("cuCtxCreate", 0, 0)
    )
    yield context
    if int(cuda("cuCtxGetCurrent")) == int(context):
        cuda("cuCtxDestroy", context)


def _takes_parameters(cuda: Cuda) -> bool:
    """cuda.bindings of CUDA 13 asks for the fourth cuCtxCreate, of CUDA 12 for the second."""
    return "CUctxCreateParams" in (cuda.driver.cuCtxCreate.__doc__ or "")


class TestDestroyedContext:
    def test_its_handle_stays_known_as_destroyed(self, cuda: Cuda, created: Any) -> None:
        cuda("cuCtxPushCurrent", created)
        cuda("cuCtxPopCurrent")
        cuda("cuCtxDestroy", created)
        assert cuda.error("cuCtxDestroy", created) == "CONTEXT_IS_DESTROYED"
        assert cuda.error("cuCtxPushCurrent", created) == "CONTEXT_IS_DESTROYED"

    def test_it_is_no_longer_current(self, cuda: Cuda, created: Any) -> None:
        cuda("cuCtxDestroy", created)
        assert int(cuda("cuCtxGetCurrent")) != int(created)
        cuda.allocate(4)

    def test_a_context_below_on_the_stack_says_so(self, cuda: Cuda, created: Any) -> None:
        primary = cuda("cuDevicePrimaryCtxRetain", 0)
        cuda("cuCtxPushCurrent", primary)
        cuda("cuCtxDestroy", created)
        cuda("cuCtxPopCurrent")
        assert cuda.error("cuMemAlloc", 4) == "CONTEXT_IS_DESTROYED"
        assert int(cuda("cuCtxGetDevice")) == 0
        cuda("cuCtxPopCurrent")
        cuda("cuDevicePrimaryCtxRelease", 0)

    def test_its_memory_is_gone(self, cuda: Cuda, created: Any) -> None:
        before = cuda("cuMemGetInfo")
        pointer = int(cuda("cuMemAlloc", GRANULE))
        pinned = cuda("cuMemHostAlloc", 64, 0)
        cuda("cuCtxDestroy", created)
        assert cuda("cuMemGetInfo") == before
        assert cuda.error("cuMemFree", pointer) == "INVALID_VALUE"
        assert cuda.error("cuMemFreeHost", pinned) == "INVALID_VALUE"

    def test_mapped_allocations_belong_to_no_context(self, cuda: Cuda, created: Any) -> None:
        pointer = cuda.mapped()
        cuda.write(pointer, b"kept")
        cuda("cuCtxDestroy", created)
        assert cuda.read(pointer, 4) == b"kept"


class TestHandlesThatAreNone:
    def test_they_are_refused(self, cuda: Cuda) -> None:
        bogus = 0x123456
        assert cuda.error("cuCtxSetCurrent", bogus) == "INVALID_CONTEXT"
        assert cuda.error("cuMemRelease", bogus) == "INVALID_VALUE"
        assert cuda.error("cuMemMap", cuda.reserve(), GRANULE, 0, bogus, 0) == "INVALID_VALUE"
        arguments = (bogus, cuda.fd_type, 0)
        assert cuda.error("cuMemExportToShareableHandle", *arguments) == "INVALID_VALUE"

    @pytest.mark.parametrize("kind", ["stream", "event"])
    @pytest.mark.parametrize("context", ["lives", "has ended"])
    def test_a_destroyed_stream_or_event_ends_the_process(self, fresh_process, kind, context):
        name = kind.capitalize()
        end = f"cu{name}Destroy(gone)" if context == "lives" else "cuDevicePrimaryCtxReset(0)"
        done = fresh_process(
            f"""
driver.cuInit(0)
driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])
gone = driver.cu{name}Create(0)[1]
driver.{end}
driver.cu{name}Query(gone)
"""
        )
        assert done.returncode == -signal.SIGABRT
        assert f"gdrpy simulated GPU: there is no {kind} 0x" in done.stderr

    def test_a_released_handle_is_never_given_again(self, cuda: Cuda) -> None:
        handle = cuda("cuMemCreate", GRANULE, cuda.properties(), 0)
        cuda("cuMemRelease", handle)
        assert int(cuda.create()) != int(handle)
        assert cuda.error("cuMemRelease", handle) == "INVALID_VALUE"


class TestPrimaryContext:
    @pytest.fixture
    def run(self, another_process: Any) -> Any:
        return another_process

    def test_its_last_release_and_its_reset_take_everything(self, run: Any) -> None:
        output = run(
            """
context = cuda("cuDevicePrimaryCtxRetain", 0)
cuda("cuCtxSetCurrent", context)
cuda("cuDevicePrimaryCtxRetain", 0)
pointer = int(cuda("cuMemAlloc", GRANULE))
cuda("cuDevicePrimaryCtxRelease", 0)
cuda.write(pointer, b"x")
cuda("cuDevicePrimaryCtxRelease", 0)
print(cuda.error("cuMemAlloc", 4), cuda.error("cuMemFree", pointer))
print(cuda.error("cuDevicePrimaryCtxRelease", 0))
print(int(cuda("cuDevicePrimaryCtxRetain", 0)) == int(context))
free, total = cuda("cuMemGetInfo")
print(free == total)
cuda.allocate(GRANULE)
cuda("cuDevicePrimaryCtxReset", 0)
print(cuda("cuDevicePrimaryCtxGetState", 0)[1], cuda.error("cuMemAlloc", 4))
"""
        )
        assert output.splitlines() == [
            "CONTEXT_IS_DESTROYED INVALID_VALUE",
            "INVALID_CONTEXT",
            "True",
            "True",
            "0 CONTEXT_IS_DESTROYED",
        ]
