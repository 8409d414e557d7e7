"""Whole regions: the GPU side must show what the CPU writes, and the reverse."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gdrpy import Region
from gdrpy.cli.checks.rig import Rig
from gdrpy.cli.data import Bytes, expect_equal, windows

#: Elements that are stored and loaded one by one.
_ELEMENTS = 256


def _windows(rig: Rig) -> Iterator[tuple[Region, int, Bytes]]:
    """A region, and in turn the offset of each window to check and the bytes for it."""
    region = rig.region()
    for offset, nbytes in windows(region.nbytes):
        yield region, offset, rig.random(nbytes)


def numpy_stores(rig: Rig) -> None:
    """Slices and single elements stored through a numpy view."""
    for region, offset, data in _windows(rig):
        view = region.numpy(np.uint8, data.size, offset)
        view[:] = data
        for i in range(min(_ELEMENTS, data.size)):
            data[i] ^= 0xFF
            view[i] = data[i]
        region.cpu.flush()
        expect_equal("read by the driver", data, rig.get(region.ptr + offset, data.size), offset)


def numpy_loads(rig: Rig) -> None:
    """Slices and single elements loaded through a numpy view."""
    for region, offset, data in _windows(rig):
        rig.put(region.ptr + offset, data)
        view = region.numpy(np.uint8, data.size, offset)
        expect_equal("loaded by the CPU", data, view.copy(), offset)
        few = [int(view[i]) for i in range(min(_ELEMENTS, data.size))]
        expect_equal("loaded one by one", data[: len(few)], bytes(few), offset)


def write_to_mapping(rig: Rig) -> None:
    """Mapping.write, read back by the driver."""
    for region, offset, data in _windows(rig):
        region.cpu.write(data, offset)
        expect_equal("read by the driver", data, rig.get(region.ptr + offset, data.size), offset)


def mapping_round_trip(rig: Rig) -> None:
    """Mapping.write, read back by Mapping.read."""
    for region, offset, data in _windows(rig):
        region.cpu.write(data, offset)
        expect_equal("read through the mapping", data, region.cpu.read(data.size, offset), offset)


def read_from_mapping(rig: Rig) -> None:
    """The driver's copy to the GPU, read by Mapping.read."""
    for region, offset, data in _windows(rig):
        rig.put(region.ptr + offset, data)
        expect_equal("read through the mapping", data, region.cpu.read(data.size, offset), offset)
