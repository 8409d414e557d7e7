"""How often gdrpy calls the CUDA driver for one operation."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import gdrpy
from gdrpy import cuda, sim

FUNCTIONS = set(
    re.findall(r"(?m)^SIM_\w+\((\w+)", (Path(sim.__file__).parent / "src/functions.h").read_text())
)


def calls_of(work: Callable[[], None]) -> dict[str, int]:
    """The driver calls of one more run of what has run before."""
    work()
    before = {name: sim.call_count(name) for name in FUNCTIONS}
    work()
    counts = {name: sim.call_count(name) - before[name] for name in FUNCTIONS}
    return {name: count for name, count in counts.items() if count}


@pytest.fixture(autouse=True)
def _simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDRPY_BACKEND", "sim")


class TestDriverCalls:
    def test_of_a_pin_ask_each_fact_of_its_memory_once(self):
        with cuda.context(0):
            pointer = int(cuda.call("cuMemAlloc", 4096))
            calls = calls_of(lambda: gdrpy.pin(pointer, 4096).close())
            cuda.call("cuMemFree", pointer)
        assert calls == {
            "cuPointerGetAttribute": 6,
            "cuMemRetainAllocationHandle": 1,
            "cuCtxPushCurrent": 1,
            "cuThreadExchangeStreamCaptureMode": 2,
            "cuIpcGetMemHandle": 1,
            "cuCtxPopCurrent": 1,
        }

    def test_of_a_pin_of_vmm_memory_ask_for_its_access_and_export_it_once(self):
        with gdrpy.alloc(4096, cpu=False) as region:
            calls = calls_of(lambda: gdrpy.pin(region.ptr, 4096).close())
        assert calls == {
            "cuPointerGetAttribute": 6,
            "cuMemGetAccess": 1,
            "cuMemRetainAllocationHandle": 1,
            "cuMemExportToShareableHandle": 1,
            "cuMemRelease": 1,
        }

    def test_of_an_allocation_make_and_undo_each_step_once(self):
        assert calls_of(lambda: gdrpy.alloc(4096).close()) == {
            "cuMemCreate": 1,
            "cuMemExportToShareableHandle": 1,
            "cuMemAddressReserve": 1,
            "cuMemMap": 1,
            "cuMemSetAccess": 1,
            "cuMemUnmap": 1,
            "cuMemAddressFree": 1,
            "cuMemRelease": 1,
        }

    def test_of_a_pin_are_made_anew_after_the_memory_was_freed(self):
        with cuda.context(0):
            pointer = int(cuda.call("cuMemAlloc", 8 << 20))
            gdrpy.pin(pointer, 8 << 20).close()
            cuda.call("cuMemFree", pointer)
        with pytest.raises(gdrpy.InvalidHandle, match="is not memory that CUDA knows"):
            gdrpy.pin(pointer, 8 << 20)
