from __future__ import annotations

import random

import numpy as np
import pytest

import gdrpy
from gdrpy.transfer import MAPPING_READ_MAX

EDGES = (1, 3, MAPPING_READ_MAX, MAPPING_READ_MAX + 1, 1 << 20)


@pytest.fixture
def large(contract: None):
    with gdrpy.alloc(2 * EDGES[-1]) as region:
        yield region


class TestRegionCopies:
    @pytest.mark.parametrize("nbytes", EDGES)
    @pytest.mark.parametrize("offset", [0, 13])
    def test_arrive_whole_on_either_side_of_the_thresholds(self, large, gpu_read, nbytes, offset):
        data = random.Random(nbytes).randbytes(nbytes)
        large.write(data, offset)
        assert gpu_read(large.ptr + offset, nbytes) == data
        assert large.read(nbytes, offset) == data
        buffer = np.zeros(nbytes, np.uint8)
        assert large.readinto(buffer, offset) == nbytes
        assert buffer.tobytes() == data

    def test_by_dma_are_seen_by_the_mapping_at_once(self, large):
        for number in range(50):
            data = bytes([number]) * 65536
            large._views.dma_write(data, 0)
            assert large.cpu.read(8, 65528) == bytes([number]) * 8

    def test_by_the_mapping_are_seen_by_dma_at_once(self, large):
        buffer = bytearray(65536)
        for number in range(50):
            large.cpu.write(bytes([number]) * 65536)
            large._views.dma_readinto(buffer, 0)
            assert buffer == bytes([number]) * 65536

    @pytest.mark.parametrize("nbytes", [8, 1 << 20])
    def test_outside_the_region_are_refused(self, large, nbytes):
        for offset in (large.nbytes - nbytes + 1, -1):
            for call in (
                lambda at: large.write(bytes(nbytes), at),
                lambda at: large.read(nbytes, at),
                lambda at: large.readinto(bytearray(nbytes), at),
            ):
                with pytest.raises(ValueError, match="outside|negative"):
                    call(offset)

    def test_to_a_read_only_region_are_refused_whatever_their_size(self, large):
        import os

        fd = large.export()
        with gdrpy.Region.from_fd(fd, readonly=True) as reader:
            for nbytes in (8, large.nbytes):
                with pytest.raises(gdrpy.ReadOnly):
                    reader.write(bytes(nbytes))
        os.close(fd)
