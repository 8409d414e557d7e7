"""Region.write and Region.read, which choose between the mapping and DMA by the size."""

from __future__ import annotations

import numpy as np

from gdrpy import transfer
from gdrpy.cli.checks.difference import expect_equal
from gdrpy.cli.checks.rig import Rig

_GUARD = 64
#: Off every alignment.
_OFFSET = _GUARD + 3


def _sizes() -> list[int]:
    """Sizes on both sides of where the way changes, and far from it."""
    around = {transfer.MAPPING_READ_MAX + step for step in (-1, 0, 1)}
    return sorted({1, 4, 64, *around, 1 << 20})


def region_writes(rig: Rig) -> None:
    """Region.write around the thresholds, neighbours left alone."""
    region = rig.region(_OFFSET + max(_sizes()) + _GUARD)
    for nbytes in _sizes():
        total = _OFFSET + nbytes + _GUARD
        expected = rig.random(total)
        rig.put(region.ptr, expected)
        expected[_OFFSET : _OFFSET + nbytes] = rig.random(nbytes)
        region.write(expected[_OFFSET : _OFFSET + nbytes], _OFFSET)
        expect_equal(f"write of {nbytes} bytes", expected, rig.get(region.ptr, total))


def region_reads(rig: Rig) -> None:
    """Region.read and Region.readinto around the thresholds."""
    region = rig.region(_OFFSET + max(_sizes()))
    data = rig.random(region.nbytes)
    rig.put(region.ptr, data)
    for nbytes in _sizes():
        expected = data[_OFFSET : _OFFSET + nbytes]
        expect_equal(f"read of {nbytes} bytes", expected, region.read(nbytes, _OFFSET), _OFFSET)
        buffer = np.zeros(nbytes, np.uint8)
        region.readinto(buffer, _OFFSET)
        expect_equal(f"readinto of {nbytes} bytes", expected, buffer, _OFFSET)
