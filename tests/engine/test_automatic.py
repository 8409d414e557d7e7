"""When a copy without ``via`` takes the copy engine, seen by the entries of its rings."""

from __future__ import annotations

import gc
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import EMFILE, ENOENT

import numpy as np
import pytest

import gdrpy
import rmclient as rm
from gdrpy.copies import tuning
from gdrpy.copies.tuning import BUILT_IN, NEVER
from gdrpy.memory import page_locked

ON_NVRM = {"GDRPY_SIM": "1", "GDRPY_BACKEND": "nvrm"}
KIB, MIB = 1 << 10, 1 << 20

#: Sizes that tell the ways from each other.
LIMITS = BUILT_IN._replace(
    write_dma=NEVER,
    write_dma_pinned=MIB,
    write_engine=512 * KIB,
    write_registered=64 * KIB,
    read_dma=32 * KIB,
    read_dma_pinned=128 * KIB,
    read_engine=16 * KIB,
    read_registered=8 * KIB,
)

pytestmark = pytest.mark.preloaded(**ON_NVRM)


def entries(call: Callable[[], object]) -> int:
    """How many entries a call puts into the engine's rings."""
    before = rm.count("entries")
    call()
    return rm.count("entries") - before


def set_limits() -> None:
    """For the rest of this process, which runs one test."""
    tuning.BUILT_IN = LIMITS  # type: ignore[misc]
    tuning.forget()


@contextmanager
def reached() -> Iterator[gdrpy.Region]:
    """A region that has the engine."""
    set_limits()
    with gdrpy.alloc(4 * MIB) as region:
        region.write(random.Random(1).randbytes(4 * MIB), via="engine")
        yield region


@contextmanager
def without_cuda() -> Iterator[gdrpy.Region]:
    """A region as a process without CUDA has it."""
    set_limits()
    with gdrpy.alloc(4 * MIB) as region:
        region.write(random.Random(1).randbytes(4 * MIB))
        with gdrpy.Region.from_fd(region.export(), gpu=False) as alone:
            yield alone


class TestEngine:
    def test_reads_into_ordinary_memory_from_its_limit_on(self) -> None:
        with reached() as region:
            buffer = bytearray(16 * KIB)
            with memoryview(buffer) as view:
                assert entries(lambda: region.readinto(view[:-1])) == 0
            assert entries(lambda: region.readinto(buffer)) == 1
            assert entries(lambda: region.read(4 * MIB)) > 1
            assert region.read() == region.cpu.read()

    def test_writes_from_ordinary_memory_from_its_limit_on(self) -> None:
        with reached() as region:
            content = random.Random(2).randbytes(512 * KIB)
            assert entries(lambda: region.write(content[:-1])) == 0
            assert entries(lambda: region.write(content)) > 0
            assert region.cpu.read(512 * KIB) == content

    def test_reads_into_page_locked_memory_up_to_the_limit_of_dma(self) -> None:
        with reached() as region, region.mirror() as array:
            assert entries(lambda: region.readinto(array[: 128 * KIB - 1])) > 0
            assert entries(lambda: region.readinto(array[: 128 * KIB])) == 0

    def test_leaves_writes_from_page_locked_memory_to_dma(self) -> None:
        with reached() as region, region.mirror() as array:
            assert entries(lambda: region.write(array[:MIB])) == 0

    def test_copies_registered_memory_from_its_limits_on(self) -> None:
        with reached() as region:
            buffer = bytearray(64 * KIB)
            with gdrpy.register(buffer), memoryview(buffer) as view:
                assert entries(lambda: region.readinto(view[: 8 * KIB - 1])) == 0
                assert entries(lambda: region.readinto(view[: 8 * KIB])) == 1
                assert entries(lambda: region.write(view[:-1])) == 0
                assert entries(lambda: region.write(buffer)) == 1

    def test_copies_all_of_a_region_without_a_cpu_view(self) -> None:
        with reached() as region:
            fd = region.export()
            with gdrpy.Region.from_fd(fd, cpu=False) as shown:
                shown.read(1, via="engine")
                assert entries(lambda: shown.read(1)) == 1
                assert entries(lambda: shown.write(b"x")) == 1
            assert region.cpu.read(1) == b"x"


class TestRegionWithoutViews:
    def test_is_copied_by_the_engine_alone(self) -> None:
        with reached() as region:
            content = region.cpu.read()
            with gdrpy.Region.from_fd(region.export(), gpu=False, cpu=False) as bare:
                assert entries(bare.read) > 0
                assert bare.read() == content
                bare.write(b"x", 5)
                bare.fill(7, 10, 20)
                rows = np.full((3, 4), 9, np.uint8)
                bare.write_strided(rows, 8, 100)
                assert region.cpu.read(1, 5) == b"x"
                assert region.cpu.read(21, 10) == b"\7" * 20 + content[30:31]
                assert region.cpu.read(12, 100) == b"\t" * 4 + content[104:108] + b"\t" * 4
                found = np.zeros_like(rows)
                bare.readinto_strided(found, 8, 100)
                assert np.array_equal(found, rows)
                assert repr(bare).endswith(", no view>")
                for view in ("cpu", "ptr"):
                    with pytest.raises(gdrpy.MissingView):
                        getattr(bare, view)

    @pytest.mark.preloaded(**ON_NVRM, FAKE_RM_NO_COPY="1")
    def test_says_why_it_cannot_be_copied(self) -> None:
        with (
            gdrpy.alloc(MIB) as region,
            gdrpy.Region.from_fd(region.export(), gpu=False, cpu=False) as bare,
        ):
            for copy in (bare.read, lambda: bare.write(b"x"), lambda: bare.fill(1)):
                with pytest.raises(gdrpy.BackendUnavailable, match="older than Turing"):
                    copy()


class TestFirstUse:
    """Making an engine takes milliseconds."""

    @pytest.mark.parametrize(("nbytes", "copies"), [(4 * MIB, 16), (16 * KIB, 1024)])
    def test_of_a_process_with_cuda_is_after_64_mib_and_a_small_copy_counts_as_64_kib(
        self, nbytes: int, copies: int
    ) -> None:
        set_limits()
        buffer = bytearray(nbytes)
        with gdrpy.alloc(4 * MIB) as region:
            for _ in range(copies - 1):
                region.readinto(buffer)
            assert rm.count("channels") == 0
            region.readinto(buffer)
            assert rm.count("channels") > 0

    def test_does_not_count_copies_that_the_mapping_makes_faster(self) -> None:
        set_limits()
        with gdrpy.alloc(4 * MIB) as region:
            for _ in range(2000):
                region.write(bytes(64))
                region.read(64)
            region.write(bytes(512 * KIB - 1))
        assert rm.count("channels") == 0

    def test_of_a_process_without_cuda_is_after_4_mib(self) -> None:
        with without_cuda() as alone:
            assert [entries(lambda: alone.read(MIB)) > 0 for _ in range(4)] == [False] * 3 + [True]

    def test_is_at_once_for_registered_memory(self) -> None:
        with without_cuda() as alone:
            buffer = bytearray(8 * KIB)
            with gdrpy.register(buffer):
                assert entries(lambda: alone.readinto(buffer)) > 0
            assert buffer == alone.cpu.read(8 * KIB)

    def test_is_one_large_fill_without_cuda(self) -> None:
        set_limits()
        with gdrpy.alloc(64 * MIB) as region:
            with gdrpy.Region.from_fd(region.export(), gpu=False) as alone:
                assert entries(lambda: alone.fill(7, 1)) == 0
                assert entries(lambda: alone.fill(8)) > 0
            assert region.cpu.read() == b"\x08" * (64 * MIB)


class TestKeptLimits:
    def test_hold_without_cuda_for_the_gpu_that_the_memory_lies_on(self) -> None:
        kept = LIMITS._replace(read_engine=MIB)
        with (
            tempfile.TemporaryDirectory() as cache,
            gdrpy.alloc(4 * MIB) as region,
            gdrpy.Region.from_fd(region.export(), gpu=False) as alone,
        ):
            os.environ["XDG_CACHE_HOME"] = cache
            file = tuning.save(alone.location, kept)
            assert file == f"{cache}/gdrpy/limits-simulated-gpu.json"
            assert tuning.limits(alone.location) == kept
            alone.read(1, via="engine")
            assert entries(lambda: alone.read(MIB - 1)) == 0
            assert entries(lambda: alone.read(MIB)) > 0

    @pytest.mark.preloaded(**ON_NVRM, GDRPY_TUNING="0")
    def test_are_ignored_if_told(self) -> None:
        with (
            tempfile.TemporaryDirectory() as cache,
            gdrpy.alloc(MIB) as region,
            gdrpy.Region.from_fd(region.export(), gpu=False) as alone,
        ):
            os.environ["XDG_CACHE_HOME"] = cache
            tuning.save(alone.location, LIMITS)
            assert tuning.limits(alone.location) == BUILT_IN

    @pytest.mark.parametrize("error", [EMFILE, ENOENT])
    def test_of_a_gpu_whose_model_cannot_be_read_are_the_built_in_ones(self, error: int) -> None:
        with gdrpy.alloc(MIB) as region:
            location = region.location
        rm.set_fault(f"open:/proc/driver/nvidia/gpus/{location}/information:{error}")
        assert tuning.limits(location) == BUILT_IN


class TestFill:
    def test_takes_an_engine_that_is_there_from_256_kib_on(self) -> None:
        with without_cuda() as alone:
            assert entries(lambda: alone.fill(1, 0, MIB)) == 0
            expected = bytearray(alone.cpu.read())
            alone.read(1, via="engine")
            assert entries(lambda: alone.fill(2, 5, 256 * KIB - 1)) == 0
            assert entries(lambda: alone.fill(3, MIB + 5, 256 * KIB)) > 0
            expected[5 : 256 * KIB + 4] = b"\2" * (256 * KIB - 1)
            expected[MIB + 5 : MIB + 256 * KIB + 5] = b"\3" * (256 * KIB)
            assert alone.cpu.read() == expected
            rm.set_fault("ENGINE:1:31,ENGINE:2:31,ENGINE:3:31")
            alone.fill(4)
            assert alone.cpu.read() == b"\4" * (4 * MIB)

    def test_with_a_gpu_view_is_left_to_cuda(self) -> None:
        with reached() as region:
            assert entries(lambda: region.fill(1)) == 0


class TestMirrorWithoutCuda:
    def mirrored(self, region: gdrpy.Region, value: int) -> tuple[int, int]:
        """Fill 64 KiB by a mirror: its address, and the entries that it takes."""
        address = 0

        def mirror() -> None:
            nonlocal address
            with region.mirror(shape=64 * KIB) as array:
                array[:] = value
                address = array.ctypes.data

        made = entries(mirror)
        gc.collect()
        assert region.cpu.read(64 * KIB) == bytes([value]) * (64 * KIB)
        return address, made

    def test_is_registered_and_reused_once_the_engine_is_there(self) -> None:
        with without_cuda() as alone:
            assert self.mirrored(alone, 1)[1] == 0
            alone.read(1, via="engine")
            address, made = self.mirrored(alone, 2)
            assert made == 1
            objects = rm.count("objects")
            assert self.mirrored(alone, 3) == (address, 1)
            assert rm.count("objects") == objects
            page_locked.free_kept()
            assert rm.count("objects") < objects
        assert rm.violations() == []

    def test_beyond_what_is_kept_is_ordinary_memory(self) -> None:
        page_locked.KEPT_MAX = 64 * KIB - 1
        with without_cuda() as alone:
            alone.read(1, via="engine")
            assert self.mirrored(alone, 1)[1] == 0

    def test_is_not_the_childs(self) -> None:
        with without_cuda() as alone:
            alone.read(1, via="engine")
            self.mirrored(alone, 1)
            fd = alone.export()
            child = os.fork()
            if not child:
                status = 1
                try:
                    own = gdrpy.Region.from_fd(fd, gpu=False)
                    own.read(1, via="engine")
                    status = self.mirrored(own, 2)[1] - 1
                finally:
                    os._exit(status)
            assert os.waitpid(child, 0)[1] == 0
            assert self.mirrored(alone, 3)[1] == 1
        assert rm.violations() == []


class TestPieces:
    def pieces(self) -> tuple[list[tuple[int, bytes]], bytes]:
        """Three as long as the limit of writes, and small ones; and 4 MiB of them and zeros."""
        choice = random.Random(6)
        places = [(index * MIB + 3, 512 * KIB) for index in range(3)]
        places += [(600 * KIB + index * 100, 64) for index in range(500)]
        pieces = [(offset, choice.randbytes(nbytes)) for offset, nbytes in places]
        expected = bytearray(4 * MIB)
        for offset, data in pieces:
            expected[offset : offset + len(data)] = data
        return pieces, bytes(expected)

    def test_of_8_kib_or_more_are_written_by_the_engine_from_its_limit_on(self) -> None:
        pieces, expected = self.pieces()
        with without_cuda() as alone:
            alone.fill(0)
            alone.read(1, via="engine")
            assert entries(lambda: alone.write_many(pieces[3:])) == 0
            assert entries(lambda: alone.write_many(iter(pieces))) > 0
            assert alone.cpu.read() == expected
            medium = [(index * 16 * KIB + 5, bytes([index]) * 8 * KIB) for index in range(64)]
            assert entries(lambda: alone.write_many(medium[:-1])) == 0
            assert entries(lambda: alone.write_many([*medium, (9 * KIB, b"x")])) > 0
            assert alone.cpu.read(1, 9 * KIB) == b"x"
            assert all(alone.cpu.read(len(data), at) == data for at, data in medium)
            short = [(index * 16 * KIB, bytes(8 * KIB - 1)) for index in range(256)]
            assert entries(lambda: alone.write_many(short)) == 0

    def test_are_read_by_the_engine_as_soon_as_loads_would_take_long(self) -> None:
        with without_cuda() as alone:
            content = alone.cpu.read()
            alone.read(1, via="engine")

            def read(count: int, nbytes: int) -> int:
                buffers = [bytearray(nbytes) for _ in range(count)]
                pieces = [(index * 5 * KIB + 3, buffer) for index, buffer in enumerate(buffers)]
                made = entries(lambda: alone.readinto_many(pieces))
                assert all(buffer == content[at : at + nbytes] for at, buffer in pieces)
                return made

            assert read(15, 100) == 0
            assert read(16, 100) > 0
            assert read(1, 16 * KIB - 1) == 0
            assert read(1, 16 * KIB) > 0
            assert read(700, 100) == 30 + 3  # for 656 of them, a chunk of 64 KiB, and the rest
        assert rm.violations() == []

    def test_are_copied_by_the_engine_with_cuda_too(self) -> None:
        with reached() as region:
            buffers = [bytearray(KIB) for _ in range(64)]
            pieces = [(index * 3 * KIB, buffer) for index, buffer in enumerate(buffers)]
            assert entries(lambda: region.readinto_many(pieces)) > 0
            assert all(buffer == region.cpu.read(KIB, at) for at, buffer in pieces)
            assert entries(lambda: region.write_many([(0, bytes(MIB))])) > 0

    def test_that_are_long_and_page_locked_go_by_dma(self) -> None:
        with reached() as region, region.mirror() as array:
            halves = [(0, array[: 2 * MIB]), (2 * MIB, array[2 * MIB :])]
            assert entries(lambda: region.readinto_many(halves)) == 0
            assert entries(lambda: region.write_many(halves)) == 0
            short = [(index * 8 * KIB, array[index * 4 * KIB :][: 4 * KIB]) for index in range(8)]
            assert entries(lambda: region.readinto_many(short)) > 0

    def test_that_are_registered_together_take_no_staging(self) -> None:
        buffer = bytearray(random.Random(9).randbytes(MIB))
        with without_cuda() as alone, gdrpy.register(buffer), memoryview(buffer) as view:
            pieces = [(at * 3 + 7, view[at : at + 8 * KIB]) for at in range(0, MIB, 16 * KIB)]
            assert entries(lambda: alone.write_many(pieces[:7])) == 0
            alone.write_many(pieces)
            assert rm.count("channels") > 0
            objects = rm.count("objects")
            assert entries(lambda: alone.write_many(pieces)) == 3
            assert all(alone.cpu.read(8 * KIB, at) == data for at, data in pieces)
            alone.write(bytes(4 * MIB), via="mapping")
            assert entries(lambda: alone.readinto_many(pieces[:1])) == 1
            assert rm.count("objects") == objects
            assert buffer[: 8 * KIB] == bytes(8 * KIB)
            assert buffer[8 * KIB :] == random.Random(9).randbytes(MIB)[8 * KIB :]
        assert rm.violations() == []

    def test_that_are_registered_together_may_have_empty_ones_beside_them(self) -> None:
        buffer = bytearray(4 * KIB)
        with without_cuda() as alone, gdrpy.register(buffer), memoryview(buffer) as view:
            alone.read(1, via="engine")
            empty = [(index, bytearray()) for index in range(2)]
            pieces = [(at * 2, view[at : at + KIB]) for at in range(0, 4 * KIB, KIB)]
            assert entries(lambda: alone.readinto_many([empty[0], *pieces, empty[1]])) == 1
            assert all(data == alone.cpu.read(KIB, at) for at, data in pieces)
            assert entries(lambda: alone.readinto_many(empty)) == 0
        assert rm.violations() == []

    def test_go_other_ways_when_the_engine_is_lost(self) -> None:
        pieces, expected = self.pieces()
        with without_cuda() as alone:
            alone.fill(0)
            alone.read(1, via="engine")
            rm.set_fault("ENGINE:1:31,ENGINE:2:31,ENGINE:3:31")
            alone.write_many(pieces)
            assert alone.cpu.read() == expected
            found = [(at, bytearray(len(data))) for at, data in pieces]
            assert entries(lambda: alone.readinto_many(found)) == 0
            assert found == pieces
            with pytest.raises(gdrpy.BackendUnavailable, match="Xid 31"):
                alone.readinto_many(found, via="engine")

    def test_without_a_cpu_view_all_go_by_the_engine(self) -> None:
        pieces, expected = self.pieces()
        with reached() as region:
            region.fill(0)
            with gdrpy.Region.from_fd(region.export(), gpu=False, cpu=False) as bare:
                bare.write_many(pieces)
                found = [(at, bytearray(len(data))) for at, data in pieces]
                assert bare.readinto_many(found) == 3 * 512 * KIB + 500 * 64
            assert found == pieces
            assert region.cpu.read() == expected


class TestRows:
    def test_are_read_by_the_engine_without_cuda(self) -> None:
        with without_cuda() as alone:
            rows = np.empty((4096, 64), np.uint8)
            made = [entries(lambda: alone.readinto_strided(rows, 256)) for _ in range(8)]
            assert made[0] == 0
            assert made[-1] > 0
            expected = np.frombuffer(alone.cpu.read(MIB), np.uint8).reshape(4096, 256)
            assert np.array_equal(rows, expected[:, :64])
            rm.set_fault("ENGINE:1:31,ENGINE:2:31,ENGINE:3:31")
            rows[:] = 0
            assert alone.readinto_strided(rows, 256) == rows.size
            assert np.array_equal(rows, expected[:, :64])
            assert entries(lambda: alone.readinto_strided(rows, 256)) == 0

    def test_of_a_kib_or_more_are_written_by_the_engine_without_cuda(self) -> None:
        with without_cuda() as alone:
            expected = np.frombuffer(bytearray(alone.cpu.read()), np.uint8)
            rows = np.random.default_rng(5).integers(0, 256, (513, KIB), np.uint8)

            def write(rows: np.ndarray, pitch: int = 2 * KIB) -> int:
                nbytes = rows.shape[1]
                for number, row in enumerate(rows):
                    expected[7 + number * pitch :][:nbytes] = row
                made = entries(lambda: alone.write_strided(rows, pitch, 7))
                assert alone.cpu.read() == expected.tobytes()
                return made

            # Eight of them are 4 MiB: then the engine is made.
            assert [write(rows[:512]) > 0 for _ in range(8)] == [False] * 7 + [True]
            assert write(rows[:511]) == 0
            assert write(rows[:, : KIB - 1]) == 0
            assert write(rows[::-1]) > 0
            assert write(np.vstack([rows, rows, rows])) > 0
            rm.set_fault("ENGINE:1:31,ENGINE:2:31,ENGINE:3:31")
            write(rows[::2].repeat(2, 0))
            assert write(rows) == 0

    def test_with_cuda_take_the_engine_from_its_limits_on(self) -> None:
        with reached() as region:
            rows = np.random.default_rng(7).integers(0, 256, (512, KIB), np.uint8)
            assert entries(lambda: region.write_strided(rows[:-1], 2 * KIB)) == 0
            assert entries(lambda: region.write_strided(rows, 2 * KIB)) > 0
            found = np.empty_like(rows)
            assert entries(lambda: region.readinto_strided(found, 2 * KIB)) > 0
            assert np.array_equal(found, rows)
            few = np.empty((16 * KIB // 128 - 1, 64), np.uint8)
            assert entries(lambda: region.readinto_strided(few, 128)) == 0

    def test_that_are_page_locked_go_by_dma(self) -> None:
        with reached() as region, region.mirror() as array:
            rows = array[: 2 * MIB].reshape(-1, 2 * KIB)[:, :KIB]
            assert entries(lambda: region.write_strided(rows, 2 * KIB)) == 0
            assert entries(lambda: region.readinto_strided(rows, 2 * KIB)) == 0
            assert entries(lambda: region.readinto_strided(rows[::-1], 2 * KIB)) > 0

    def test_make_an_engine_with_cuda_after_64_mib(self) -> None:
        set_limits()
        rows = np.zeros((1024, 2 * KIB), np.uint8)
        with gdrpy.alloc(4 * MIB) as region:
            made = [entries(lambda: region.write_strided(rows, 4 * KIB)) for _ in range(32)]
        assert [count > 0 for count in made] == [False] * 31 + [True]

    def test_that_are_registered_are_copied_at_once_from_its_limits_on(self) -> None:
        buffer = bytearray(random.Random(8).randbytes(4 * MIB))
        rows = np.frombuffer(buffer, np.uint8).reshape(-1, 4 * KIB)[:, 5 : KIB + 5]
        with without_cuda() as alone, gdrpy.register(buffer):
            assert entries(lambda: alone.write_strided(rows[:63], 2 * KIB, 3)) == 0
            alone.write_strided(rows[:64], 2 * KIB, 3)
            assert rm.count("channels") > 0
            assert entries(lambda: alone.write_strided(rows, 2 * KIB, 3)) == 1
            seen = np.frombuffer(alone.cpu.read(2 * MIB, 3), np.uint8).reshape(-1, 2 * KIB)
            assert np.array_equal(seen[:, :KIB], rows)
            assert entries(lambda: alone.readinto_strided(rows[:4, :900], KIB)) == 0
            before = np.frombuffer(bytes(buffer), np.uint8).reshape(-1, 4 * KIB)
            found = np.copy(before)
            found[::8, 5 : KIB + 5] = np.copy(seen)[:128, KIB:]
            assert entries(lambda: alone.readinto_strided(rows[::8], 2 * KIB, 3 + KIB)) == 1
            assert np.array_equal(np.frombuffer(buffer, np.uint8).reshape(-1, 4 * KIB), found)
        assert rm.violations() == []


class TestWithoutAnEngine:
    @pytest.mark.preloaded(**ON_NVRM, FAKE_RM_NO_COPY="1")
    def test_copies_go_another_way_and_it_is_tried_once(
        self,
    ) -> None:
        set_limits()
        tried = []
        prepare = gdrpy.Region._prepare_engine

        def note(region: gdrpy.Region, call: str) -> None:
            tried.append(call)
            prepare(region, call)

        gdrpy.Region._prepare_engine = note  # type: ignore[method-assign]
        content = random.Random(3).randbytes(4 * MIB)
        with (
            gdrpy.alloc(4 * MIB) as region,
            gdrpy.Region.from_fd(region.export(), gpu=False) as alone,
        ):
            for _ in range(40):
                region.write(content)
                assert region.read() == alone.read() == content
        assert len(tried) == 2  # once for each region

    @pytest.mark.preloaded(GDRPY_SIM="1", FAKE_RM_NO_NODES="1")
    def test_fills_go_another_way(self) -> None:
        with gdrpy.alloc(64 * MIB) as region:
            with gdrpy.Region.from_fd(region.export(), gpu=False) as alone:
                alone.fill(9)
            assert region.cpu.read() == b"\x09" * (64 * MIB)


class TestRefusedEngine:
    """Without room for it, as in a full GPU or BAR."""

    @pytest.mark.parametrize("fault", ["RM_MAP_MEMORY_DMA:1:0x51", f"open:/dev/nvidia0:{EMFILE}"])
    def test_leaves_fills_and_copies_between_regions_to_the_mapping(self, fault: str) -> None:
        with (
            without_cuda() as alone,
            gdrpy.alloc(64 * MIB) as owned,
            gdrpy.Region.from_fd(owned.export(), gpu=False) as other,
        ):
            rm.set_fault(fault)
            other.fill(7)
            rm.set_fault(fault)
            other.write(alone)
            rm.set_fault("")
            assert owned.cpu.read(4 * MIB) == alone.cpu.read()
            assert owned.cpu.read(MIB, 4 * MIB) == b"\x07" * MIB


class TestEngineWithoutRoom:
    """Descriptors or memory may be there again later."""

    @pytest.mark.parametrize("fault", [f"open:/dev/nvidia0:{EMFILE}", "RM_MAP_MEMORY_DMA:1:0x51"])
    def test_of_the_first_copies_is_tried_again_after_five_seconds(self, fault: str) -> None:
        with without_cuda() as alone:
            rm.set_fault(fault)
            assert entries(lambda: alone.read(4 * MIB)) == 0
            rm.set_fault("")
            assert entries(lambda: alone.read(4 * MIB)) == 0
            rm.pass_time(5)
            assert entries(lambda: alone.read(4 * MIB)) > 0
        assert rm.violations() == []

    def test_of_a_later_copy_is_tried_again_after_five_seconds(self) -> None:
        set_limits()
        with gdrpy.alloc(MIB) as region:
            region.fill(7, via="engine")  # takes no memory for staging
            rm.set_fault("RM_ALLOC_MEMORY:1:0x51")
            for copied, seconds in ((0, 0), (0, 5), (1, 0)):
                buffer = bytearray(16 * KIB)
                assert entries(lambda buffer=buffer: region.readinto(buffer)) == copied
                assert buffer == b"\x07" * (16 * KIB)
                rm.pass_time(seconds)
        assert rm.violations() == []

    def test_for_registered_pages_is_tried_again_after_five_seconds(self) -> None:
        buffer = bytearray(64 * KIB)
        with reached() as region, gdrpy.register(buffer):
            before = rm.count("dma_mappings")
            rm.set_fault("RM_ALLOC_MEMORY:1:0x51")
            for pinned, seconds in ((0, 0), (0, 5), (1, 0)):
                region.readinto(buffer, via="engine")
                assert rm.count("dma_mappings") == before + pinned
                rm.pass_time(seconds)
            assert buffer == region.cpu.read(64 * KIB)
        assert rm.violations() == []

    def test_that_the_driver_refuses_for_another_reason_is_not_tried_again(self) -> None:
        buffer = bytearray(64 * KIB)
        with reached() as region, gdrpy.register(buffer):
            before = rm.count("dma_mappings")
            rm.set_fault("RM_ALLOC_MEMORY:1:0x1e")
            for _ in range(2):
                region.readinto(buffer, via="engine")
                assert rm.count("dma_mappings") == before
                rm.pass_time(1000)


class TestPageLockedReads:
    def test_make_no_engine(self) -> None:
        set_limits()
        with gdrpy.alloc(16 * MIB) as region, region.mirror() as array:
            for _ in range(6):
                region.readinto(array)
        assert rm.count("channels") == 0


class TestLostEngine:
    def test_leaves_copies_to_the_other_ways(self) -> None:
        with without_cuda() as alone:
            content = random.Random(4).randbytes(4 * MIB)
            alone.write(content, via="engine")
            rm.set_fault("ENGINE:1:31,ENGINE:2:31,ENGINE:3:31")
            assert alone.read() == content
            rm.set_fault("")
            with pytest.raises(gdrpy.BackendUnavailable, match="Xid 31"):
                alone.read(via="engine")
            assert alone.read() == content

    def test_leaves_copies_of_cuda_processes_to_dma(self) -> None:
        with reached() as region:
            rm.set_fault("ENGINE:1:31,ENGINE:2:31,ENGINE:3:31")
            assert region.read() == region.cpu.read()
            buffer = np.empty(4 * MIB, np.uint8)
            assert entries(lambda: region.readinto(buffer)) == 0
            assert buffer.tobytes() == region.cpu.read()
