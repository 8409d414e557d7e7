"""Region.write and Region.read, which choose between the mapping and DMA."""

from __future__ import annotations

import numpy as np

from gdrpy.cli.checks.rig import Rig
from gdrpy.cli.data import expect_equal

_GUARD = 64
#: Off every alignment.
_OFFSET = _GUARD + 3
#: Sizes on both sides of every limit: around powers of two, and halfway between.
_SIZES = sorted(
    {1}
    | {
        size + step
        for power in range(2, 20)
        for size in (1 << power, 3 << power - 1)
        for step in (-1, 0, 1)
    }
)
#: A region with both views, and a region that only DMA reaches.
_VIEWS = {"both views": True, "GPU view only": False}


def region_writes(rig: Rig) -> None:
    """Region.write of many sizes, with unchanged neighbours."""
    for views, cpu in _VIEWS.items():
        region = rig.region(_OFFSET + max(_SIZES) + _GUARD, cpu=cpu)
        for nbytes in _SIZES:
            total = _OFFSET + nbytes + _GUARD
            expected = rig.random(total)
            rig.put(region.ptr, expected)
            expected[_OFFSET : _OFFSET + nbytes] ^= 0xFF
            region.write(expected[_OFFSET : _OFFSET + nbytes], _OFFSET)
            got = rig.get(region.ptr, total)
            expect_equal(f"{views}, write of {nbytes} bytes", expected, got)


def region_reads(rig: Rig) -> None:
    """Region.read and Region.readinto of many sizes."""
    for views, cpu in _VIEWS.items():
        region = rig.region(_OFFSET + max(_SIZES), cpu=cpu)
        data = rig.random(region.nbytes)
        rig.put(region.ptr, data)
        for nbytes in _SIZES:
            expected = data[_OFFSET : _OFFSET + nbytes]
            what, got = f"{views}, read of {nbytes} bytes", region.read(nbytes, _OFFSET)
            expect_equal(what, expected, got, _OFFSET)
            buffer = np.zeros(nbytes, np.uint8)
            region.readinto(buffer, _OFFSET)
            expect_equal(f"{views}, readinto of {nbytes} bytes", expected, buffer, _OFFSET)
