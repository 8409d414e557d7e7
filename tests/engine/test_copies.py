"""``via="engine"``: the copy engine without CUDA, on the simulated resource manager."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from contextlib import nullcontext

import numpy as np
import pytest

import gdrpy
import releases
import rmclient as rm
from gdrpy import cuda
from gdrpy._core._mapping import Undo
from gdrpy.memory import vmm

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


class TestSecondChannel:
    """The one with short time slices."""

    @pytest.mark.parametrize(
        ("nbytes", "copies"), [(64 << 10, None), ((64 << 10) + 1, 8), (MIB, 8), (MIB + 1, 0)]
    )
    def test_is_made_after_a_few_medium_copies_or_for_a_large_one(
        self, nbytes: int, copies: int | None
    ) -> None:
        with gdrpy.alloc(2 * MIB) as region:
            for _ in range(20 if copies is None else copies):
                region.write(bytes(nbytes), via="engine")
                assert rm.count("channels") == 1
            region.write(bytes(nbytes), via="engine")
            assert rm.count("channels") == (1 if copies is None else 2)


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

    @pytest.mark.preloaded(**ON_NVRM, GDRPY_SIM_DEVICES="3")
    @pytest.mark.parametrize("first", [0, 1, 2])
    def test_of_regions_and_pins_on_several_gpus_go_to_their_own(self, first: int) -> None:
        for device in (first, 2 - first, 1):
            with cuda.context(device), gdrpy.alloc(MIB, device) as region:
                pointer = int(cuda.call("cuMemAlloc", MIB))
                with gdrpy.pin(pointer, MIB) as pin:
                    pin.write(b"%d" % device, 5, via="engine")
                    region.write(pin, via="engine")
                    assert region.cpu.read(1, 5) == pin.cpu.read(1, 5) == b"%d" % device
                cuda.call("cuMemFree", pointer)
        assert rm.violations() == []

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


class TestFill:
    def test_sets_the_bytes_of_the_range_alone(self) -> None:
        with gdrpy.alloc(MIB) as region:
            expected = bytearray(random.Random(5).randbytes(MIB))
            region.write(expected)
            for offset, size in ((0, 1), (3, 4), (5, 11), (1001, 70_003), (8, 64), (MIB - 3, 3)):
                region.fill(size % 256, offset, size, via="engine")
                expected[offset : offset + size] = bytes([size % 256]) * size
                assert region.cpu.read() == expected
            region.fill(7, via="engine")
            assert region.cpu.read() == b"\7" * MIB
            region.fill(8, 10, 0, via="engine")
            assert region.cpu.read() == b"\7" * MIB

    def test_by_another_way_is_refused(self) -> None:
        with gdrpy.alloc(MIB) as region, pytest.raises(ValueError, match="must be 'engine' or"):
            region.fill(0, via="dma")


class TestCopyOnTheGpu:
    def test_to_and_from_another_region_is_exact(self) -> None:
        with gdrpy.alloc(3 * MIB) as region, gdrpy.alloc(MIB) as other:
            expected = bytearray(3 * MIB)
            region.write(expected)
            content = random.Random(6).randbytes(MIB)
            other.write(content)
            region.write(other, 12_345, via="engine")
            expected[12_345 : 12_345 + MIB] = content
            assert region.cpu.read() == expected
            assert region.readinto(other, 77, via="engine") == MIB
            assert other.cpu.read() == expected[77 : 77 + MIB]

    def test_of_a_pin_and_of_memory_without_a_cpu_view_is_exact(self) -> None:
        with cuda.context(0), gdrpy.alloc(MIB, cpu=False) as region:
            pointer = int(cuda.call("cuMemAlloc", 10_000))
            with gdrpy.pin(pointer, 10_000) as pin:
                pin.write(b"pinned" * 1000)
                region.write(pin, 5, via="engine")
                assert region.read(6000, 5, via="engine") == b"pinned" * 1000
            cuda.call("cuMemFree", pointer)

    def test_of_a_region_that_is_closed_meanwhile_is_refused(self) -> None:
        region, other = gdrpy.alloc(MIB), gdrpy.alloc(MIB)
        other.write(b"x", via="engine")
        reach = region._memory.engine

        def close_the_other(call: str) -> object:
            other.close()
            return reach(call)

        region._memory.engine = close_the_other  # type: ignore[method-assign]
        with pytest.raises(gdrpy.Closed):
            region.write(other, via="engine")
        assert region.read(1) == bytes(1)
        region.close()

    def test_of_a_region_to_itself_is_refused(self) -> None:
        with gdrpy.alloc(MIB) as region, pytest.raises(ValueError, match="the region's own"):
            region.write(region, via="engine")

    def test_beyond_the_end_is_refused(self) -> None:
        with (
            gdrpy.alloc(MIB) as region,
            gdrpy.alloc(MIB) as other,
            pytest.raises(ValueError, match="lies outside"),
        ):
            region.write(other, 1, via="engine")

    def test_to_a_read_only_region_is_refused(self) -> None:
        with gdrpy.alloc(MIB) as region, gdrpy.alloc(MIB) as other:
            fd = region.export()
            with gdrpy.Region.from_fd(fd, MIB, readonly=True) as shown:
                for copy in (shown.write, other.readinto):
                    target = other if copy == shown.write else shown
                    with pytest.raises(gdrpy.ReadOnly):
                        copy(target, via="engine")

    @pytest.mark.preloaded(**ON_NVRM, GDRPY_SIM_DEVICES="2")
    def test_between_two_gpus_is_refused(self) -> None:
        with (
            gdrpy.alloc(MIB, 0) as region,
            gdrpy.alloc(MIB, 1) as other,
            pytest.raises(gdrpy.InvalidHandle, match="between memory of one GPU"),
        ):
            region.write(other, via="engine")


class TestStrided:
    @pytest.mark.parametrize("shape", [(5, 7), (300, 1001), (2, 1_500_001), (70_000, 3)])
    def test_rows_are_exact(self, shape: tuple[int, int]) -> None:
        choice = np.random.default_rng(7)
        pitch = shape[1] + 13
        with gdrpy.alloc(shape[0] * pitch + 100) as region:
            before = choice.integers(0, 256, region.nbytes, np.uint8)
            region.write(before)
            for data in (
                choice.integers(0, 256, shape, np.uint8),
                choice.integers(0, 256, (shape[0], 2 * shape[1]), np.uint8)[:, ::2],
            ):
                region.write_strided(data, pitch, 50, via="engine")
                seen = np.frombuffer(region.cpu.read(), np.uint8)
                rows = seen[50 : 50 + shape[0] * pitch].reshape(shape[0], pitch)
                assert np.array_equal(rows[:, : shape[1]], data)
                kept = before[50 : 50 + shape[0] * pitch].reshape(shape[0], pitch)
                assert np.array_equal(rows[:-1, shape[1] :], kept[:-1, shape[1] :])
                assert np.array_equal(seen[:50], before[:50])
                found = np.zeros((shape[0], 2 * shape[1]), np.uint8)
                assert region.readinto_strided(found[:, ::2], pitch, 50, via="engine") == data.size
                assert np.array_equal(found[:, ::2], data)
                assert not found[:, 1::2].any()
        assert rm.violations() == []


class TestPieces:
    @pytest.mark.preloaded(**ON_NVRM, FAKE_RM_DELAY="7")
    @pytest.mark.parametrize("registered", [False, True])
    def test_of_any_size_and_order_are_exact_and_nothing_beside_them(
        self, registered: bool
    ) -> None:
        choice = random.Random(10)
        sizes = [0, 1, 3 * MIB + 5, 0, MIB, 65537, *(choice.randrange(3000) for _ in range(2000))]
        choice.shuffle(sizes)
        places, at = [], 0
        for size in sizes:
            places.append((at, size))
            at += size + choice.randrange(5)
        with gdrpy.alloc(at) as region:
            expected = bytearray(choice.randbytes(at))
            region.write(expected)
            host = bytearray(choice.randbytes(at))
            pinned = gdrpy.register(host) if registered else nullcontext()
            with pinned, memoryview(host) as view:
                pieces = [(place, view[at - place - size :][:size]) for place, size in places]
                choice.shuffle(pieces)
                region.write_many(pieces, via="engine")
                for place, data in pieces:
                    expected[place : place + len(data)] = data
                assert region.cpu.read() == expected
                kept, host[:] = bytearray(host), bytes(at)
                for place, data in pieces:
                    kept[at - place - len(data) : at - place] = expected[place:][: len(data)]
                assert region.readinto_many(pieces, via="engine") == sum(sizes)
                for place, data in pieces:
                    assert data == expected[place : place + len(data)]
                assert sum(host) == sum(sum(data) for _, data in pieces)
                del pieces, data
        assert rm.violations() == []

    def test_of_one_call_take_an_entry_of_the_ring_for_twenty_two(self) -> None:
        with gdrpy.alloc(MIB) as region:
            region.read(1, via="engine")
            before = rm.count("entries")
            region.write_many([(at, b"x") for at in range(0, 46 * 20, 20)], via="engine")
            assert rm.count("entries") == before + 3


class TestMemoryOfSeveralAllocations:
    """As of allocators that grow in place."""

    GRANULE = 2 * MIB

    def address(self, undo: Undo) -> int:
        """Two allocations, one after the other."""
        size, driver = self.GRANULE, cuda.driver()
        cuda.primary_context(0)
        reserved, also = (2 * size, 0, 0, 0), (2 * size,)
        start = int(
            cuda.made(undo, "cuMemAddressReserve", *reserved, by="cuMemAddressFree", also=also)
        )
        for place in (start, start + size):
            handle = vmm._create(undo, size, 0)
            also = (place, size)
            cuda.done(undo, "cuMemMap", place, size, 0, handle, 0, by="cuMemUnmap", also=also)
        access = driver.CUmemAccessDesc()
        access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        cuda.call("cuMemSetAccess", start, 2 * size, [access], 1)
        return start

    def test_is_copied_filled_and_strided_across_the_seam(self) -> None:
        seam = self.GRANULE
        with Undo() as undo, gdrpy.pin(self.address(undo), 2 * seam) as pin:
            expected = bytearray(random.Random(8).randbytes(2 * seam))
            pin.write(expected, via="engine")
            assert pin.cpu.read() == expected
            assert pin.read(70_001, seam - 5, via="engine") == expected[seam - 5 : seam + 69_996]
            pin.fill(9, seam - 3, 10_001, via="engine")
            expected[seam - 3 : seam + 9_998] = b"\x09" * 10_001
            rows = np.arange(90, dtype=np.uint8).reshape(9, 10)
            pin.write_strided(rows, 17, seam - 70, via="engine")
            for number, row in enumerate(rows):
                start = seam - 70 + number * 17
                expected[start : start + 10] = row.tobytes()
            assert pin.cpu.read() == expected
            found = np.empty_like(rows)
            pin.readinto_strided(found, 17, seam - 70, via="engine")
            assert np.array_equal(found, rows)
            found[:] = 0
            with gdrpy.register(found):
                pin.readinto_strided(found, 17, seam - 70, via="engine")
            assert np.array_equal(found, rows)
            both = [(seam - 50, bytearray(20)), (seam - 5, bytearray(70_001))]
            assert pin.readinto_many(both, via="engine") == 70_021
            assert all(data == expected[at : at + len(data)] for at, data in both)
            with gdrpy.alloc(MIB) as region:
                pin.readinto(region, seam - 100_003, via="engine")
                assert region.cpu.read() == expected[seam - 100_003 :][:MIB]
        assert rm.violations() == []
