"""Whole regions: the GPU side must show what the CPU writes, and the reverse."""

from __future__ import annotations

import numpy as np

from gdrpy.cli.checks.rig import Rig
from gdrpy.cli.data import expect_equal, windows

#: Elements that are stored and loaded one by one.
_ELEMENTS = 256


def numpy_stores(rig: Rig) -> None:
    """Slices and single elements stored through a numpy view."""
    region = rig.region()
    for offset, nbytes in windows(region.nbytes):
        data = rig.random(nbytes)
        view = region.numpy(np.uint8, nbytes, offset)
        view[:] = data
        for i in range(min(_ELEMENTS, nbytes)):
            data[i] ^= 0xFF
            view[i] = data[i]
        region.cpu.flush()
        expect_equal("read by the driver", data, rig.get(region.ptr + offset, nbytes), offset)


def numpy_loads(rig: Rig) -> None:
    """Slices and single elements loaded through a numpy view."""
    region = rig.region()
    for offset, nbytes in windows(region.nbytes):
        data = rig.random(nbytes)
        rig.put(region.ptr + offset, data)
        view = region.numpy(np.uint8, nbytes, offset)
        expect_equal("loaded by the CPU", data, view.copy(), offset)
        few = [int(view[i]) for i in range(min(_ELEMENTS, nbytes))]
        expect_equal("loaded one by one", data[: len(few)], bytes(few), offset)


def write_to_mapping(rig: Rig) -> None:
    """Mapping.write, read back by the driver."""
    region = rig.region()
    for offset, nbytes in windows(region.nbytes):
        data = rig.random(nbytes)
        region.cpu.write(data, offset)
        expect_equal("read by the driver", data, rig.get(region.ptr + offset, nbytes), offset)


def mapping_round_trip(rig: Rig) -> None:
    """Mapping.write, read back by Mapping.read."""
    region = rig.region()
    for offset, nbytes in windows(region.nbytes):
        data = rig.random(nbytes)
        region.cpu.write(data, offset)
        expect_equal("read through the mapping", data, region.cpu.read(nbytes, offset), offset)


def read_from_mapping(rig: Rig) -> None:
    """The driver's copy to the GPU, read by Mapping.read."""
    region = rig.region()
    for offset, nbytes in windows(region.nbytes):
        data = rig.random(nbytes)
        rig.put(region.ptr + offset, data)
        expect_equal("read through the mapping", data, region.cpu.read(nbytes, offset), offset)
