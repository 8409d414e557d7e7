"""Copies from region to region without CUDA, on the simulated resource manager."""

from __future__ import annotations

import os
import random
import threading
from itertools import permutations

import numpy as np
import pytest

import gdrpy
import rmclient as rm
from gdrpy import cuda
from gdrpy.memory import vmm

ON_NVRM = {"GDRPY_SIM": "1", "GDRPY_BACKEND": "nvrm"}
MIB = 1 << 20

pytestmark = pytest.mark.preloaded(**ON_NVRM)


def make(nbytes: int, seed: int, device: int = 0) -> tuple[gdrpy.Region, bytes]:
    """A region as a process without CUDA has it, and its content."""
    cuda.driver()
    fd = vmm.create_export(vmm.rounded(nbytes, device), device)
    region = gdrpy.Region.from_fd(fd, nbytes, gpu=False)
    os.close(fd)
    content = random.Random(seed).randbytes(nbytes)
    region.write(content, via="mapping")
    return region, content


def without_host() -> None:
    """From now on nothing but the engine copies."""

    def refuse(*_: object, **__: object) -> object:
        raise AssertionError("bytes went through the host")

    gdrpy.Region.readinto = refuse  # type: ignore[method-assign,assignment]


class TestWrite:
    @pytest.mark.parametrize("size", [256 << 10, MIB + 1])
    def test_of_a_region_stays_on_the_gpu(self, size: int) -> None:
        (region, before), (other, content) = make(3 * MIB, 1), make(size, 2)
        without_host()
        region.write(other, 12_345)
        assert region.cpu.read() == before[:12_345] + content + before[12_345 + size :]
        assert rm.violations() == []

    @pytest.mark.parametrize("via", [None, "engine"])
    def test_of_a_part_of_a_region_stays_on_the_gpu(self, via: str | None) -> None:
        (region, before), (other, content) = make(3 * MIB, 1), make(2 * MIB, 2)
        without_host()
        region.write(other.array(MIB, "U8", 77), 5, via)
        assert region.cpu.read() == before[:5] + content[77:][:MIB] + before[MIB + 5 :]
        assert rm.violations() == []

    def test_without_any_view_is_exact(self) -> None:
        (region, before), (other, content) = make(MIB, 1), make(MIB, 2)
        to = gdrpy.Region.from_fd(region._memory.fd, MIB, gpu=False, cpu=False)
        source = gdrpy.Region.from_fd(other._memory.fd, MIB, gpu=False, cpu=False)
        to.write(source.array(1000, "U8", 3), 5)
        assert region.cpu.read() == before[:5] + content[3:1003] + before[1005:]
        to.write(source)
        assert region.cpu.read() == content

    def test_of_a_few_bytes_makes_no_engine(self) -> None:
        (region, before), (other, content) = make(MIB, 1), make(1000, 2)
        region.write(other, 7)
        assert region.cpu.read() == before[:7] + content + before[1007:]
        assert rm.count("channels") == 0

    @pytest.mark.preloaded(**ON_NVRM, FAKE_RM_NO_COPY="1")
    def test_without_an_engine_is_exact(self) -> None:
        (region, _), (other, content) = make(33 * MIB + 5, 1), make(33 * MIB + 5, 2)
        region.write(other)
        assert region.cpu.read() == content

    @pytest.mark.preloaded(**ON_NVRM, GDRPY_SIM_DEVICES="2")
    def test_between_two_gpus_is_exact(self) -> None:
        (region, before), (other, content) = make(3 * MIB, 1), make(2 * MIB, 2, device=1)
        region.write(other, 3)
        assert region.cpu.read() == before[:3] + content + before[2 * MIB + 3 :]

    def test_amid_which_the_engine_is_lost_for_good_is_exact(self) -> None:
        (region, _), (other, content) = make(2 * MIB, 1), make(2 * MIB, 2)
        region.read(1, via="engine")
        rm.set_fault("ENGINE:1:31,ENGINE:2:79")
        region.write(other)
        assert region.cpu.read() == content
        assert rm.count("channels") == 0
        assert rm.violations() == []

    def test_from_and_to_host_memory_is_exact(self) -> None:
        region, content = make(2 * MIB, 1)
        with gdrpy.alloc(2 * MIB, "cpu") as host:
            host.write(region)
            assert host.cpu.read() == content
            host.write(content[::-1])
            region.write(host)
            assert region.cpu.read() == content[::-1]
            with gdrpy.Region.from_fd(region.export(), gpu=False, cpu=False) as bare:
                host.write(content)
                host.readinto(bare)
                assert region.cpu.read() == content
                host.fill(0)
                bare.readinto(host)
                assert host.cpu.read() == content
        assert rm.violations() == []

    def test_beyond_the_end_is_refused(self) -> None:
        (region, before), (other, _) = make(MIB, 1), make(MIB, 2)
        for via in (None, "engine"):
            with pytest.raises(ValueError, match=r"offset 1 \+ 1048576 bytes lies outside"):
                region.write(other, 1, via)
        assert region.cpu.read() == before

    def test_of_overlapping_bytes_of_the_region_is_refused(self) -> None:
        region, before = make(2 * MIB, 1)
        for via in (None, "engine"):
            with pytest.raises(ValueError, match="Region.write"):
                region.write(region.array(MIB, "U8"), 5, via)
        assert region.cpu.read() == before

    def test_of_a_closed_region_is_refused(self) -> None:
        (region, _), (other, _) = make(MIB, 1), make(MIB, 2)
        array = other.array(MIB, "U8")
        other.close()
        for one in (other, array):
            with pytest.raises(gdrpy.Closed):
                region.write(one)

    def test_to_a_read_only_region_is_refused(self) -> None:
        (region, before), (other, _) = make(MIB, 1), make(MIB, 2)
        shown = gdrpy.Region.from_fd(region._memory.fd, MIB, gpu=False, readonly=True)
        with pytest.raises(gdrpy.ReadOnly):
            shown.write(other)
        with pytest.raises(gdrpy.ReadOnly):
            other.readinto(shown)
        assert region.cpu.read() == before


class TestThreads:
    def test_that_copy_both_ways_while_others_arm_both_regions_anew_are_exact(self) -> None:
        (region, _), (other, content) = make(MIB, 1), make(MIB, 2)
        region.write(other, via="engine")
        stop = threading.Event()

        def copy(to: gdrpy.Region, source: gdrpy.Region) -> None:
            for _ in range(200):
                to.write(source, via="engine")

        def disarm(one: gdrpy.Region) -> None:
            while not stop.wait(0.0001):
                one._disarm()

        copying = [
            threading.Thread(target=copy, args=both) for both in permutations((region, other))
        ]
        arming = [threading.Thread(target=disarm, args=(one,)) for one in (region, other)]
        for thread in copying + arming:
            thread.start()
        for thread in copying:
            thread.join()
        stop.set()
        for thread in arming:
            thread.join()
        assert region._running == other._running == 0
        assert region.cpu.read() == other.cpu.read() == content
        assert rm.violations() == []


class TestPins:
    """Of one allocation of CUDA's."""

    OWN = "the bytes to copy are the region's own"

    @pytest.mark.parametrize("shift", [1, 4096, 99_999])
    def test_that_overlap_are_refused(self, shift: int) -> None:
        content = random.Random(6).randbytes(100_000)
        with cuda.context(0):
            pointer = int(cuda.call("cuMemAlloc", MIB))
            with (
                gdrpy.pin(pointer, 100_000) as pin,
                gdrpy.pin(pointer + shift, 100_000) as other,
                pin.queue() as queue,
            ):
                pin.write(content)
                for copy in (pin.write, pin.readinto):
                    with pytest.raises(ValueError, match=f"Pin.{copy.__name__}: {self.OWN}"):
                        copy(other, via="engine")
                with pytest.raises(ValueError, match=f"CopyQueue.write: {self.OWN}"):
                    queue.write(pin, other)
                with pytest.raises(ValueError, match=f"CopyQueue.readinto: {self.OWN}"):
                    queue.readinto(pin, other)
                assert pin.read() == content
            cuda.call("cuMemFree", pointer)
        assert rm.violations() == []

    def test_that_touch_are_copied(self) -> None:
        content = random.Random(7).randbytes(100_000)
        with cuda.context(0):
            pointer = int(cuda.call("cuMemAlloc", MIB))
            with gdrpy.pin(pointer, 100_000) as pin, gdrpy.pin(pointer + 100_000, 200_000) as other:
                pin.write(content)
                other.write(pin, via="engine")
                other.write(pin, 100_000, via="engine")
                assert other.read() == content + content
                other.fill(0)
                with pin.queue() as queue:
                    queue.write(pin, other, 50_000)
                    queue.submit().wait()
                assert other.read() == bytes(50_000) + content + bytes(50_000)
            cuda.call("cuMemFree", pointer)

    def test_of_memory_that_was_freed_are_told_from_the_new_one_there(self) -> None:
        content = random.Random(8).randbytes(100_000)
        with cuda.context(0):
            pointer = int(cuda.call("cuMemAlloc", MIB))
            with gdrpy.pin(pointer, 100_000) as pin:
                pin.write(content)
                cuda.call("cuMemFree", pointer)
                again = int(cuda.call("cuMemAlloc", MIB))
                assert again == pointer
                with gdrpy.pin(again, 100_000) as other:
                    other.write(pin, via="engine")
                    assert other.read() == content
            cuda.call("cuMemFree", again)

    def test_of_a_region_are_refused(self) -> None:
        with gdrpy.alloc(MIB) as region, gdrpy.pin(region.ptr + 5, 1000) as pin:
            for at in (0, 5, 1004):
                with pytest.raises(ValueError, match=f"Region.write: {self.OWN}"):
                    region.write(pin, at, via="engine")
            region.write(pin, 1005, via="engine")
            assert region.read(1000, 1005) == region.read(1000, 5)


class TestReadinto:
    def test_of_a_region_or_a_part_stays_on_the_gpu(self) -> None:
        (region, content), (other, _) = make(2 * MIB, 1), make(MIB, 2)
        read = region.readinto
        without_host()
        assert read(other, 9) == MIB
        assert other.cpu.read() == content[9 : MIB + 9]
        part = other.array(MIB // 2, "U8", 100)
        assert read(part) == MIB // 2
        expected = content[9:109] + content[: MIB // 2] + content[MIB // 2 + 109 : MIB + 9]
        assert other.cpu.read() == expected

    def test_of_a_read_only_array_is_refused(self) -> None:
        (region, _), (other, content) = make(MIB, 1), make(MIB, 2)
        array = other.array(MIB, "U8")
        array._readonly = True
        for via in (None, "engine"):
            with pytest.raises((BufferError, ValueError), match="read-?only|writable"):
                region.readinto(array, 0, via)
        assert other.cpu.read() == content


class TestArray:
    def test_written_to_another_stays_on_the_gpu(self) -> None:
        (region, before), (other, content) = make(2 * MIB, 1), make(2 * MIB, 2)
        source = other.array((512, 1024), "U8", 40)
        without_host()
        region.array((512, 1024), "U8", 8).write(source)
        size = 512 * 1024
        assert region.cpu.read() == before[:8] + content[40:][:size] + before[8 + size :]

    def test_of_elements_that_numpy_lacks_is_exact(self) -> None:
        (region, _), (other, content) = make(2 * MIB, 1), make(2 * MIB, 2)
        region.array(MIB, "BF16").write(other.array(MIB, "BF16"))
        assert region.cpu.read() == content

    def test_of_numpy_over_the_mapping_is_as_before(self) -> None:
        (region, _), (other, content) = make(MIB, 1), make(MIB, 2)
        region.write(np.asarray(other))
        assert region.cpu.read() == content
