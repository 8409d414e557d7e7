"""Which way a copy takes, seen by the driver calls that the simulated GPU counts."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import gdrpy
from gdrpy import sim
from gdrpy.copies import tuning
from gdrpy.copies.tuning import NEVER, Limits

KIB = 1 << 10
MIB = 1 << 20

#: Unlike the built-in ones, so that it is these that decide.
LIMITS = Limits(
    write_threads=64 * KIB,
    write_dma=3 * MIB,
    write_dma_pinned=512 * KIB,
    write_engine=2 * MIB,
    write_registered=128 * KIB,
    read_threads=64 * KIB,
    read_dma=32 * KIB,
    read_dma_pinned=64 * KIB,
    read_engine=16 * KIB,
    read_registered=8 * KIB,
    threads_to=3,
    threads_from=3,
    lanes=5,
)


@pytest.fixture
def region(monkeypatch: pytest.MonkeyPatch) -> Iterator[gdrpy.Region]:
    monkeypatch.setattr(tuning, "BUILT_IN", LIMITS)
    monkeypatch.setenv("GDRPY_TUNING", "0")
    tuning.forget()
    with gdrpy.alloc(4 * MIB) as region:
        yield region
    tuning.forget()


@pytest.fixture
def dma_copies() -> Callable[[Callable[[], object]], int]:
    """How many DMA copies a call makes."""
    library = ctypes.CDLL(sim.driver_path())
    library.gdrsim_call_count.restype = ctypes.c_uint64

    def count() -> int:
        return sum(
            library.gdrsim_call_count(name)
            for name in (b"cuMemcpyHtoDAsync", b"cuMemcpyDtoHAsync", b"cuMemcpy2DAsync")
        )

    def made_by(call: Callable[[], object]) -> int:
        before = count()
        call()
        return count() - before

    return made_by


class TestWriteFromPageableMemory:
    @pytest.mark.parametrize("nbytes", [1, 64 * KIB, 512 * KIB, 3 * MIB - 1])
    def test_goes_through_the_mapping_below_the_limit(self, region, dma_copies, nbytes):
        assert dma_copies(lambda: region.write(bytes(nbytes))) == 0

    def test_goes_by_dma_in_several_chunks_from_the_limit_on(self, region, dma_copies):
        assert dma_copies(lambda: region.write(bytes(3 * MIB))) > 1


class TestWriteFromPageLockedMemory:
    def test_goes_by_one_dma_copy_from_its_limit_on(self, region, dma_copies):
        with region.mirror() as array:
            assert dma_copies(lambda: region.write(array[: 512 * KIB - 1])) == 0
            assert dma_copies(lambda: region.write(array[: 512 * KIB])) == 1
            assert dma_copies(lambda: region.write(array)) == 1

    def test_is_page_locked_to_its_end_or_not_at_all(self, region, dma_copies):
        """A buffer that begins in page-locked memory and ends elsewhere goes the pageable way."""
        from gdrpy import cuda

        memory = np.zeros(2 * MIB, np.uint8)
        with cuda.context(0):
            cuda.call("cuMemHostRegister", memory.ctypes.data, MIB, 0)
            try:
                assert dma_copies(lambda: region.write(memory[:MIB])) == 1
                assert dma_copies(lambda: region.write(memory)) == 0
            finally:
                cuda.call("cuMemHostUnregister", memory.ctypes.data)


class TestRead:
    def test_goes_through_the_mapping_below_the_limit(self, region, dma_copies):
        assert dma_copies(lambda: region.read(32 * KIB - 1)) == 0
        assert dma_copies(lambda: region.readinto(bytearray(32 * KIB - 1))) == 0

    def test_goes_by_dma_from_the_limit_on(self, region, dma_copies):
        assert dma_copies(lambda: region.read(32 * KIB)) == 1
        assert dma_copies(lambda: region.readinto(bytearray(32 * KIB))) == 1

    def test_into_page_locked_memory_is_asked_for_but_not_into_new(self, region):
        def asked(call: Callable[[], object]) -> int:
            before = sim.call_count("cuPointerGetAttributes")
            call()
            return sim.call_count("cuPointerGetAttributes") - before

        assert asked(lambda: region.readinto(bytearray(MIB))) > 0
        assert asked(lambda: region.read(MIB)) == 0
        assert asked(lambda: region.read(MIB, via="dma")) == 0

    def test_into_page_locked_memory_needs_no_staging(self, region, dma_copies):
        with region.mirror() as array:
            assert dma_copies(lambda: region.readinto(array)) == 1
        assert dma_copies(lambda: region.readinto(bytearray(4 * MIB))) > 1


class TestRows:
    def test_without_gaps_go_as_the_same_bytes_in_one_piece_would(self, region, dma_copies):
        for rows in (np.zeros((32, KIB), np.uint8), np.zeros((3 * KIB, KIB), np.uint8)):
            of_bytes = dma_copies(lambda data=rows: region.write(data))
            assert dma_copies(lambda data=rows: region.write_strided(data, KIB)) == of_bytes
            of_bytes = dma_copies(lambda data=rows: region.readinto(data))
            assert dma_copies(lambda data=rows: region.readinto_strided(data, KIB)) == of_bytes

    def test_are_written_by_one_dma_copy_if_long_and_page_locked(self, region, dma_copies):
        with region.mirror() as array:
            rows = array[: 3 * MIB].reshape(-1, 2 * KIB)
            assert dma_copies(lambda: region.write_strided(rows[:, :KIB], 2 * KIB)) == 1
            assert dma_copies(lambda: region.write_strided(rows[:511, :KIB], 2 * KIB)) == 0
            assert dma_copies(lambda: region.write_strided(rows[:, : KIB - 1], 2 * KIB)) == 0
            assert dma_copies(lambda: region.write_strided(rows[::-1, :KIB], 2 * KIB)) == 0
        assert dma_copies(lambda: region.write_strided(np.copy(rows[:, :KIB]), 2 * KIB)) == 0

    def test_are_read_by_dma_when_loads_would_take_as_long_as_the_limit(self, region, dma_copies):
        def read(rows: int, pitch: int) -> int:
            return dma_copies(lambda: region.readinto_strided(np.zeros((rows, 8), "u1"), pitch))

        assert read(31, KIB) == 0  # with the gaps, which are read over
        assert read(32, KIB) == 1
        assert read(31, 64 * KIB) == 0  # a bus round trip each
        assert read(32, 64 * KIB) == 1
        assert read(511, 64) == 0
        assert read(512, 64) == 1

    def test_that_are_page_locked_need_no_staging_to_be_read(self, region, dma_copies):
        with region.mirror() as array:
            rows = array.reshape(-1, 2 * KIB)[:, :KIB]
            assert dma_copies(lambda: region.readinto_strided(rows, 2 * KIB)) == 1
            assert dma_copies(lambda: region.readinto_strided(rows[::-1], 2 * KIB)) > 1


class TestForcing:
    def test_a_way_takes_it_whatever_the_size(self, region, dma_copies):
        assert dma_copies(lambda: region.write(b"x", via="dma")) == 1
        assert dma_copies(lambda: region.read(1, via="dma")) == 1
        assert dma_copies(lambda: region.readinto(bytearray(1), via="dma")) == 1
        everything = bytearray(4 * MIB)
        assert dma_copies(lambda: region.write(everything, via="mapping")) == 0
        assert dma_copies(lambda: region.read(via="mapping")) == 0
        assert dma_copies(lambda: region.readinto(everything, via="mapping")) == 0

    def test_a_way_takes_rows_whatever_their_size(self, region, dma_copies):
        row, rows = np.zeros((2, 1), np.uint8), np.zeros((2 * KIB, KIB), np.uint8)
        assert dma_copies(lambda: region.write_strided(row, 2, via="dma")) == 1
        assert dma_copies(lambda: region.readinto_strided(row, 2, via="dma")) == 1
        assert dma_copies(lambda: region.readinto_strided(rows, 2 * KIB, via="mapping")) == 0
        with region.mirror() as array:
            rows = array.reshape(-1, 2 * KIB)[:, :KIB]
            assert dma_copies(lambda: region.write_strided(rows, 2 * KIB, via="mapping")) == 0

    @pytest.mark.parametrize("via", ["DMA", "", 1, True])
    def test_an_unknown_way_is_refused(self, region, via):
        for call in (
            lambda: region.write(b"x", via=via),
            lambda: region.read(1, via=via),
            lambda: region.readinto(bytearray(1), via=via),
        ):
            with pytest.raises(ValueError, match="via must be 'mapping', .* or None, not "):
                call()

    def test_a_way_without_its_view_is_refused(self, region):
        fd = region.export()
        with (
            gdrpy.Region.from_fd(fd, gpu=False) as cpu_only,
            gdrpy.Region.from_fd(fd, cpu=False) as gpu_only,
        ):
            with pytest.raises(gdrpy.MissingView, match="via='dma' needs a GPU view"):
                cpu_only.write(b"x", via="dma")
            with pytest.raises(gdrpy.MissingView, match="via='mapping' needs a CPU view"):
                gpu_only.read(1, via="mapping")
            gpu_only.write(b"by dma")
            assert cpu_only.read(6) == b"by dma"
        os.close(fd)


class TestNever:
    def test_is_a_limit_that_no_size_reaches(self, region, dma_copies):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tuning, "BUILT_IN", LIMITS._replace(write_dma=NEVER))
            tuning.forget()
            with gdrpy.alloc(4 * MIB) as other:
                assert dma_copies(lambda: other.write(bytes(4 * MIB))) == 0
