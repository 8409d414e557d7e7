"""``via="engine"``: the copy engine without CUDA, on the simulated resource manager."""

from __future__ import annotations

import random
import subprocess
import sys
import threading

import pytest

import gdrpy
import releases
import rmclient as rm
from gdrpy import cuda

ON_NVRM = {"GDRPY_SIM": "1", "GDRPY_BACKEND": "nvrm"}
MIB = 1 << 20

pytestmark = pytest.mark.preloaded(**ON_NVRM)

#: Around what the engine cuts at: bytes, pages, chunks, and a lane of them.
SIZES = (1, 2, 3, 7, 64, 4095, 4097, 65535, 65537, MIB, MIB + 1, 3 * MIB + 5)

#: A release for each set of facts.
RELEASES = releases.read()
INTERFACES = [
    release.first
    for number, release in enumerate(RELEASES)
    if release.facts not in [older.facts for older in RELEASES[:number]]
]


def check_copies(region: gdrpy.Region, sizes: tuple[int, ...] = SIZES, seed: int = 1) -> None:
    """Write and read at random offsets; all other bytes stay as they are."""
    choice = random.Random(seed)
    expected = bytearray(choice.randbytes(region.nbytes))
    region.write(expected, via="engine")
    for size in sizes:
        offset = choice.randrange(region.nbytes - size + 1)
        data = choice.randbytes(size)
        region.write(data, offset, via="engine")
        expected[offset : offset + size] = data
        offset = choice.randrange(region.nbytes - size + 1)
        assert region.read(size, offset, via="engine") == expected[offset : offset + size]
        buffer = bytearray(size + 64)
        with memoryview(buffer)[32:-32] as inner:
            assert region.readinto(inner, offset, via="engine") == size
        assert buffer == bytes(32) + expected[offset : offset + size] + bytes(32)
    assert region.read(via="engine") == expected
    if region._has_cpu_view:
        assert region.cpu.read() == expected


class TestCopies:
    def test_of_any_size_and_offset_are_exact(self) -> None:
        with gdrpy.alloc(4 * MIB) as region:
            check_copies(region)
        assert rm.violations() == []

    @pytest.mark.preloaded(**ON_NVRM, FAKE_RM_DELAY="7")
    def test_are_exact_on_an_engine_that_does_all_as_late_as_it_may(self) -> None:
        with gdrpy.alloc(4 * MIB) as region:
            check_copies(region)
        assert rm.violations() == []

    def test_by_several_threads_each_are_exact(self) -> None:
        with gdrpy.alloc(20 * MIB) as region:
            check_copies(region, (17 * MIB + 1,))

    @pytest.mark.parametrize(
        "release",
        [
            pytest.param(
                release, id=release, marks=pytest.mark.preloaded(**ON_NVRM, FAKE_RM_VERSION=release)
            )
            for release in INTERFACES
        ],
    )
    def test_are_exact_with_every_driver_release(self, release: str) -> None:
        with gdrpy.alloc(2 * MIB) as region:
            check_copies(region, (5, 70_001))
        assert rm.violations() == []

    def test_need_no_cpu_view(self) -> None:
        with gdrpy.alloc(2 * MIB, cpu=False) as region:
            check_copies(region, (1, 4097))

    def test_need_no_cuda(self) -> None:
        with gdrpy.alloc(2 * MIB) as region:
            region.write(b"from the owner", 1000)
            code = (
                "import sys, gdrpy; region = gdrpy.Region.from_fd(int(sys.argv[1]), gpu=False);"
                "print(region.read(14, 1000, via='engine').decode());"
                "region.write(b'from the child', 3000, via='engine');"
                "print('cuda.bindings' in sys.modules)"
            )
            fd = region.export()
            child = subprocess.run(
                [sys.executable, "-c", code, str(fd)],
                pass_fds=[fd],
                capture_output=True,
                text=True,
            )
            assert (child.stdout, child.stderr) == ("from the owner\nFalse\n", "")
            assert region.read(14, 3000) == b"from the child"

    def test_of_pinned_memory_that_cuda_allocated_are_exact(self) -> None:
        with cuda.context(0):
            pointer = int(cuda.call("cuMemAlloc", MIB))
            with gdrpy.pin(pointer + 4096, 100_000) as pin:
                pin.write(b"abc" * 10_000, 5, via="engine")
                assert pin.cpu.read(30_000, 5) == b"abc" * 10_000
                assert pin.read(30_000, 5, via="engine") == b"abc" * 10_000
            cuda.call("cuMemFree", pointer)

    def test_of_several_regions_on_two_gpus_go_to_their_own(self) -> None:
        with gdrpy.alloc(MIB) as one, gdrpy.alloc(MIB) as other:
            one.write(b"one", via="engine")
            other.write(b"other", via="engine")
            assert (one.cpu.read(3), other.cpu.read(5)) == (b"one", b"other")

    def test_of_no_bytes_do_nothing(self) -> None:
        with gdrpy.alloc(MIB) as region:
            region.write(b"", via="engine")
            assert region.read(0, via="engine") == b""

    def test_by_many_threads_at_once_are_exact(self) -> None:
        failures: list[BaseException] = []

        def work(number: int) -> None:
            try:
                choice = random.Random(number)
                for _ in range(20):
                    data = choice.randbytes(choice.randrange(1, 200_000))
                    region.write(data, number * MIB, via="engine")
                    assert region.read(len(data), number * MIB, via="engine") == data
            except BaseException as error:
                failures.append(error)

        with gdrpy.alloc(8 * MIB) as region:
            threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert failures == []
        assert rm.violations() == []

    def test_of_a_read_only_region_are_reads_alone(self) -> None:
        with gdrpy.alloc(MIB) as region:
            region.write(b"written")
            fd = region.export()
            with gdrpy.Region.from_fd(fd, readonly=True) as shown:
                assert shown.read(7, via="engine") == b"written"
                with pytest.raises(gdrpy.ReadOnly):
                    shown.write(b"x", via="engine")

    def test_outside_the_region_are_refused(self) -> None:
        with gdrpy.alloc(MIB) as region, pytest.raises(ValueError, match="lies outside"):
            region.write(b"abc", MIB - 2, via="engine")


class TestAutomaticRead:
    def test_takes_the_engine_once_reads_took_as_long_as_making_one(self) -> None:
        with gdrpy.alloc(4 * MIB) as region:
            content = random.Random(2).randbytes(4 * MIB)
            region.write(content)
            fd = region.export()
            with gdrpy.Region.from_fd(fd, gpu=False) as shown:
                for _ in range(3):
                    assert shown.read() == content
                assert rm.count("channels") == 0
                for _ in range(2):
                    assert shown.read() == content
                assert rm.count("channels") > 0

    def test_with_a_gpu_view_does_not(self) -> None:
        with gdrpy.alloc(4 * MIB) as region:
            for _ in range(6):
                region.read()
        assert rm.count("channels") == 0

    @pytest.mark.preloaded(**ON_NVRM, FAKE_RM_NO_COPY="1")
    def test_takes_the_mapping_where_there_is_no_engine(self) -> None:
        with gdrpy.alloc(4 * MIB) as region:
            content = random.Random(2).randbytes(4 * MIB)
            region.write(content)
            fd = region.export()
            with gdrpy.Region.from_fd(fd, gpu=False) as shown:
                for _ in range(6):
                    assert shown.read() == content
        assert rm.count("channels") == 0


class TestEnd:
    def test_of_a_region_leaves_the_engine_nothing_of_it(self) -> None:
        with gdrpy.alloc(MIB) as region:
            region.write(b"x", via="engine")
        before = {what: rm.count(what) for what in ("objects", "dma_mappings", "files", "parts")}
        for _ in range(3):
            with gdrpy.alloc(MIB) as region:
                region.write(b"x", via="engine")
        gdrpy.alloc(MIB).write(b"x", via="engine")  # dropped
        assert {what: rm.count(what) for what in before} == before
        assert rm.violations() == []

    def test_of_the_interpreter_is_quiet(self) -> None:
        code = "import gdrpy; region = gdrpy.alloc(4096); region.write(b'x', via='engine')"
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
        assert (run.returncode, run.stdout, run.stderr) == (0, b"", b"")
