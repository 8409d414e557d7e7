"""Fabric handles on the GPU that is here: a round trip, or the reason why there are none."""

from __future__ import annotations

import re

import pytest

import gdrpy
from gdrpy import fabric

pytestmark = pytest.mark.gpu

#: What the driver answers where each thing is missing.
REFUSALS = {
    "reports none": "CUDA_ERROR_(NOT_SUPPORTED|INVALID_VALUE)",
    "this process may use no IMEX channel": "CUDA_ERROR_NOT_PERMITTED",
}


class TestFabricHandle:
    def test_goes_round_or_is_refused_for_the_reason_that_info_gives(self) -> None:
        status = fabric.status(0)
        if status.usable:
            with gdrpy.alloc(4096, fabric=True) as region:
                region.write(b"hello")
                handle = region.export_fabric()
                with gdrpy.Region.from_fabric(handle, 4096) as other:
                    assert other.read(5) == b"hello"
                    other.write(b"world")
                assert region.cpu.read(5) == b"world"
            return
        (code,) = (code for reason, code in REFUSALS.items() if reason in status.reason)
        said = re.escape(f"{status.reason}: {status.remedy}")
        refusal = rf"cuMemCreate: no fabric handle can be had \({code}\): {said}$"
        with pytest.raises(gdrpy.BackendUnavailable, match=refusal):
            gdrpy.alloc(4096, fabric=True)

    def test_leaves_memory_without_one_as_it_is(self) -> None:
        with gdrpy.alloc(4096) as region:
            region.write(b"hello")
            assert region.read(5) == b"hello"
