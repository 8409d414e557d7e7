"""Blocks out of a region, by Python and through the C functions that libraries are given."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import subprocess
import sys
import threading

import pytest

import gdrpy
from gdrpy import cuda
from gdrpy.arena.blocks import _abandoned

MIB = 1 << 20


@pytest.fixture
def region(nothing_leaks):
    with gdrpy.alloc(2 * MIB) as region:
        yield region


@pytest.fixture
def arena(region):
    with gdrpy.Arena(region) as arena:
        yield arena


class Library:
    """Calls an arena as torch does: by what CUDAPluggableAllocator finds under the two names."""

    def __init__(self, arena: gdrpy.Arena) -> None:
        path, allocate, free = arena.functions
        library = ctypes.CDLL(path)
        word = ctypes.c_void_p
        self.allocate = ctypes.CFUNCTYPE(word, ctypes.c_ssize_t, ctypes.c_int, word)(
            (allocate, library)
        )
        self.free = ctypes.CFUNCTYPE(None, word, ctypes.c_ssize_t, ctypes.c_int, word)(
            (free, library)
        )


def on_two_gpus(code: str) -> subprocess.CompletedProcess[str]:
    """Run a program that sees two simulated GPUs."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"GDRPY_SIM": "1", "GDRPY_SIM_DEVICES": "2"},
        capture_output=True,
        text=True,
        check=False,
    )


class TestBlocks:
    def test_lie_in_the_region(self, arena, region):
        first, second = arena.allocate(1000), arena.allocate(1)
        assert (first, second) == (region.ptr, region.ptr + 1024)
        assert (arena.used, arena.blocks) == (1536, 2)
        arena.free(first)
        arena.free(second)
        assert (arena.used, arena.blocks) == (0, 0)

    def test_lie_in_the_arenas_part_of_the_region(self, region):
        with gdrpy.Arena(region, 100, 1500) as arena:
            block = arena.allocate(1)
            assert block == region.ptr + 512
            with pytest.raises(gdrpy.OutOfMemory, match="largest free piece has 576"):
                arena.allocate(1000)
            arena.free(block)

    def test_that_find_no_room_are_refused_with_what_there_is(self, arena):
        block = arena.allocate(MIB)
        message = (
            r"Arena\.allocate: no free piece has 2 MiB: 1 MiB of 2 MiB are in use in 1 block, "
            r"and the largest free piece has 1 MiB"
        )
        with pytest.raises(gdrpy.OutOfMemory, match=message):
            arena.allocate(2 * MIB)
        arena.free(block)
        arena.free(arena.allocate(2 * MIB))

    @pytest.mark.parametrize("offset", [0, 512, -512, 1 << 64])
    def test_that_are_none_are_not_freed(self, arena, region, offset):
        block = arena.allocate(1024)
        arena.free(block)
        with pytest.raises(ValueError, match=r"Arena\.free: no block of this arena begins at"):
            arena.free(block + offset)

    def test_sizes_are_checked(self, arena):
        with pytest.raises(ValueError, match=r"Arena\.allocate: nbytes must be 1 or more"):
            arena.allocate(0)
        with pytest.raises(TypeError, match=r"Arena\.allocate: nbytes must be an int"):
            arena.allocate("4")

    def test_that_a_stream_uses_are_freed_when_it_is_done(self, arena, region):
        with cuda.context(0):
            stream = cuda.call("cuStreamCreate", 1)
            block = arena.allocate(2 * MIB)
            cuda.call("cuMemsetD8Async", block, 7, 2 * MIB, stream)
            arena.free(block, stream)
            assert region.read(1, 2 * MIB - 1) == b"\x07"
            cuda.call("cuStreamDestroy", stream)

    def test_of_a_captured_stream_are_refused_and_the_capture_stays_valid(self, arena, driver):
        with cuda.context(0):
            stream, other = (cuda.call("cuStreamCreate", 1) for _ in range(2))
            first, second = arena.allocate(512), arena.allocate(512)
            mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
            cuda.call("cuStreamBeginCapture", stream, mode)
            with pytest.raises(BufferError, match=r"Arena\.free: the stream is captured"):
                arena.free(first, stream)
            arena.free(second, other)
            cuda.call("cuGraphDestroy", cuda.call("cuStreamEndCapture", stream))
            arena.free(first, stream)
            assert arena.blocks == 0
            cuda.call("cuStreamDestroy", stream)
            cuda.call("cuStreamDestroy", other)


class TestLibrary:
    def test_shares_the_arena_with_python(self, arena, region):
        library = Library(arena)
        block = library.allocate(4096, 0, None)
        assert block == region.ptr
        assert arena.allocate(1) == region.ptr + 4096
        library.free(region.ptr + 4096, 1, 0, None)
        arena.free(block)
        assert arena.blocks == 0

    def test_gets_null_where_there_is_no_room_or_for_another_device(self, arena):
        library = Library(arena)
        assert library.allocate(2 * MIB + 1, 0, None) is None
        assert library.allocate(1, 1, None) is None
        assert arena.blocks == 0

    def test_frees_a_block_when_its_stream_is_done(self, arena, region):
        library = Library(arena)
        with cuda.context(0):
            stream = cuda.call("cuStreamCreate", 1)
            block = library.allocate(2 * MIB, 0, int(stream))
            cuda.call("cuMemsetD8Async", block, 9, 2 * MIB, stream)
            library.free(block, 2 * MIB, 0, int(stream))
            assert region.read(1, 2 * MIB - 1) == b"\x09"
            cuda.call("cuStreamDestroy", stream)

    def test_is_told_of_a_bad_free_on_stderr(self, arena, region, capfd):
        Library(arena).free(region.ptr, 1, 0, None)
        assert "gdrpy: arena" in capfd.readouterr().err

    def test_may_use_it_from_threads(self, arena):
        library = Library(arena)
        owners: dict[int, int] = {}
        clashes = []

        def churn(me: int) -> None:
            choose = random.Random(me)
            blocks = []
            for _ in range(300):
                if blocks and choose.random() < 0.5:
                    block = blocks.pop(choose.randrange(len(blocks)))
                    if owners.pop(block) != me:
                        clashes.append(block)
                    library.free(block, 0, 0, None)
                elif block := library.allocate(choose.randrange(1, 9000), 0, None):
                    if owners.setdefault(block, me) != me:
                        clashes.append(block)
                    blocks.append(block)
            for block in blocks:
                owners.pop(block)
                library.free(block, 0, 0, None)

        threads = [threading.Thread(target=churn, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert clashes == []
        assert (arena.blocks, arena.used) == (0, 0)


class TestClose:
    def test_with_blocks_is_refused(self, region):
        arena = gdrpy.Arena(region)
        block = arena.allocate(600)
        with pytest.raises(BufferError, match=r"Arena\.close: 1 block with 1024 bytes in use"):
            arena.close()
        with pytest.raises(BufferError):
            region.close()
        arena.free(block)
        arena.close()
        assert repr(arena) == "<Arena CLOSED>"
        with pytest.raises(gdrpy.Closed, match=r"Arena\.allocate: the Arena is closed"):
            arena.allocate(1)

    def test_at_the_end_of_a_block_leaves_the_blocks_in_it_usable(self, region):
        with (
            pytest.warns(gdrpy.StillInUse, match=r"^<Arena .*: 1 block with 1024 bytes in use"),
            gdrpy.Arena(region) as arena,
        ):
            library, block = Library(arena), arena.allocate(600)
        with pytest.raises(gdrpy.Closed, match=r"Arena\.allocate: the Arena is closed"):
            arena.allocate(1)
        with pytest.raises(BufferError):
            region.close()
        library.free(block, 600, 0, None)
        region.close()
        assert _abandoned == []

    def test_of_a_region_at_the_end_of_its_block_leaves_it_usable(self):
        with (
            pytest.warns(gdrpy.StillInUse, match=r"1 of the GPU view, such as .* arenas"),
            gdrpy.alloc(4096) as region,
        ):
            arena = gdrpy.Arena(region)
        arena.free(arena.allocate(600))
        arena.close()

    def test_of_the_region_under_it_is_refused(self, arena, region):
        with pytest.raises(BufferError):
            region.close()
        assert region.closed is False

    def test_that_was_forgotten_keeps_the_memory_while_there_are_blocks(self, region):
        arena = gdrpy.Arena(region)
        library, block = Library(arena), arena.allocate(600)
        del arena
        gc.collect()
        with pytest.raises(BufferError):
            region.close()
        library.free(block, 600, 0, None)
        region.close()
        assert _abandoned == []

    def test_that_was_forgotten_leaves_its_slot_to_the_next_one(self, region):
        arena = gdrpy.Arena(region)
        slot, library, block = arena._slot, Library(arena), arena.allocate(600)
        del arena
        gc.collect()
        library.free(block, 600, 0, None)
        with gdrpy.Arena(region) as other:
            assert other._slot == slot
        assert _abandoned == []
        region.close()

    def test_that_was_forgotten_without_blocks_leaves_nothing(self, region):
        arena = gdrpy.Arena(region)
        slot = arena._slot
        del arena
        gc.collect()
        with gdrpy.Arena(region) as other:
            assert other._slot == slot
        region.close()


class TestMaking:
    def test_more_than_64_is_refused(self, region):
        arenas = [gdrpy.Arena(region, 512 * number, 512) for number in range(64)]
        with pytest.raises(gdrpy.OutOfMemory, match="already has 64 arenas and heaps, the limit"):
            gdrpy.Arena(region, 512 * 64)
        for arena in arenas:
            arena.close()
        region.close()

    def test_over_another_one_is_refused(self, region):
        with gdrpy.Arena(region, 512, 1024):
            for offset, nbytes in ((0, 1024), (512, 512), (1024, None), (0, None)):
                with pytest.raises(ValueError, match="Arena: another arena has part of these"):
                    gdrpy.Arena(region, offset, nbytes)
            gdrpy.Arena(region, 0, 512).close()
            gdrpy.Arena(region, 1536).close()
        gdrpy.Arena(region).close()

    def test_outside_the_region_is_refused(self, region):
        with pytest.raises(ValueError, match="Arena: offset 1 "):
            gdrpy.Arena(region, 1, 2 * MIB)
        with pytest.raises(ValueError, match="Arena: there are 0 bytes at offset 2097152"):
            gdrpy.Arena(region, 2 * MIB)

    def test_of_a_region_without_gpu_view_is_refused(self, region):
        fd = region.export()
        with gdrpy.Region.from_fd(fd, gpu=False) as reader, pytest.raises(gdrpy.MissingView):
            gdrpy.Arena(reader)
        os.close(fd)

    def test_forked_child_cannot_use_it(self, arena):
        child = os.fork()
        if not child:
            try:
                arena.allocate(1)
            except gdrpy.Forked:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0) == (child, 0)


class TestCurrentDevice:
    def test_may_be_the_regions_alone(self):
        code = (
            "import gdrpy\n"
            "from gdrpy import cuda\n"
            "with gdrpy.alloc(4096, 1) as region, gdrpy.Arena(region) as arena:\n"
            "    with cuda.context(1):\n"
            "        arena.require_current('allocator')\n"
            "    with cuda.context(0):\n"
            "        arena.require_current('allocator')\n"
        )
        assert on_two_gpus(code).stderr.splitlines()[-1] == (
            "ValueError: allocator: the current device is 0, and the memory lies on 1: make that "
            "one current first"
        )
