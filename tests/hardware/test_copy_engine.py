"""``via="engine"`` on real GPUs: every copy against CUDA's own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from engineclient import NOBODY, child, free_nbytes

import gdrpy
from gdrpy import cuda
from gdrpy.copies import tuning
from gdrpy.memory import engine

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("usable_engine")]

MIB = 1 << 20
PART = 65536

#: Reads a region by the engine, changes a part of it, and waits for the end of its input.
CHILD = """
import sys, gdrpy
region = gdrpy.Region.from_fd(int(sys.argv[1]), gpu=False)
start = int(sys.argv[2]) * 65536
part = region.read(via="engine")[start : start + 65536]
region.write(bytes(255 - byte for byte in part), start, via="engine")
print("cuda.bindings" in sys.modules, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def region() -> Iterator[gdrpy.Region]:
    with gdrpy.alloc(64 * MIB) as region:
        yield region


def by_cuda(memory: gdrpy.Region) -> bytes:
    return memory.read(via="dma")


def changed(part: bytes) -> bytes:
    return bytes(255 - byte for byte in part)


class TestCopies:
    @pytest.mark.parametrize("registered", [False, True])
    def test_of_random_sizes_at_random_offsets_are_as_cuda_sees_them(
        self, region: gdrpy.Region, registered: bool
    ) -> None:
        choice = random.Random(registered)
        expected = bytearray(choice.randbytes(region.nbytes))
        region.write(expected, via="dma")
        buffer = bytearray(4 * MIB)
        registration = gdrpy.register(buffer) if registered else None
        with memoryview(buffer) as view:
            for _ in range(300):
                size = min(int(2 ** choice.uniform(0, 22)), len(buffer))
                here = choice.randrange(len(buffer) - size + 1)
                there = choice.randrange(region.nbytes - size + 1)
                buffer[:] = choice.randbytes(len(buffer))
                region.write(view[here : here + size], there, via="engine")
                expected[there : there + size] = view[here : here + size]
                kept = bytearray(buffer)
                there = choice.randrange(region.nbytes - size + 1)
                kept[here : here + size] = expected[there : there + size]
                region.readinto(view[here : here + size], there, via="engine")
                assert buffer == kept
            if registration:
                registration.close()
        assert by_cuda(region) == expected

    def test_of_a_gibibyte_are_exact(self) -> None:
        nbytes = (1 << 30) + 12_345
        content = np.random.default_rng(2).integers(0, 256, nbytes, np.uint8)
        found = np.zeros_like(content)
        with gdrpy.alloc(nbytes, cpu=False) as region:
            region.write(content, via="engine")
            region.readinto(found, via="dma")
            assert np.array_equal(found, content)
            found[:] = 0
            with gdrpy.register(found):
                region.readinto(found, via="engine")
            assert np.array_equal(found, content)

    def test_by_many_threads_are_exact(self, region: gdrpy.Region) -> None:
        def work(number: int) -> bool:
            choice = random.Random(number)
            start = number * 4 * MIB
            for _ in range(30):
                content = choice.randbytes(choice.randrange(1, 3 * MIB))
                offset = start + choice.randrange(MIB)
                region.write(content, offset, via="engine")
                if region.read(len(content), offset, via="engine") != content:
                    return False
            return True

        with ThreadPoolExecutor(16) as pool:
            assert all(pool.map(work, range(16)))

    def test_of_memory_that_cuda_allocated_are_exact(self, region: gdrpy.Region) -> None:
        with cuda.context(0):
            pointer = int(cuda.call("cuMemAlloc", 5 * MIB))
            with gdrpy.pin(pointer + 4096, 4 * MIB) as pin:
                content = random.Random(3).randbytes(3 * MIB + 7)
                pin.write(content, 1001, via="engine")
                found = bytearray(len(content))
                cuda.call("cuMemcpyDtoH", found, pointer + 4096 + 1001, len(content))
                assert found == content
                region.write(pin, 77, via="engine")
                assert region.read(len(content), 77 + 1001, via="dma") == content
            cuda.call("cuMemFree", pointer)

    def test_from_region_to_region_are_exact(self, region: gdrpy.Region) -> None:
        with gdrpy.alloc(9 * MIB) as other:
            content = random.Random(4).randbytes(9 * MIB)
            other.write(content, via="dma")
            region.write(other, 12_345, via="engine")
            assert region.read(9 * MIB, 12_345, via="dma") == content
            other.fill(0, via="engine")
            region.readinto(other, 12_346, via="engine")
            assert by_cuda(other)[:-1] == content[1:]

    def test_of_rows_are_exact(self, region: gdrpy.Region) -> None:
        choice = np.random.default_rng(5)
        for shape in ((5, 7), (300, 1001), (70_000, 3), (9, 1_500_001)):
            pitch = shape[1] + 13
            before = by_cuda(region)
            rows = choice.integers(0, 256, shape, np.uint8)
            region.write_strided(rows, pitch, 50, via="engine")
            expected = np.frombuffer(bytearray(before), np.uint8)
            for number, row in enumerate(rows):
                expected[50 + number * pitch :][: shape[1]] = row
            assert by_cuda(region) == expected.tobytes()
            found = np.zeros((shape[0], 2 * shape[1]), np.uint8)
            region.readinto_strided(found[:, ::2], pitch, 50, via="engine")
            assert np.array_equal(found[:, ::2], rows)
            assert not found[:, 1::2].any()

    def test_of_registered_rows_are_exact(self, region: gdrpy.Region) -> None:
        choice = np.random.default_rng(8)
        table = choice.integers(0, 256, (3000, 4001), np.uint8)
        rows = table[:, 5:1006]
        region.fill(0)
        with gdrpy.register(table):
            region.write_strided(rows, 2003, 50, via="engine")
            seen = np.frombuffer(by_cuda(region), np.uint8)[50 : 50 + 3000 * 2003]
            seen = seen.reshape(3000, 2003)
            assert np.array_equal(seen[:, :1001], rows)
            assert not seen[:, 1001:].any()
            expected = np.copy(table)
            expected[::-1, 5:1006] = rows
            region.write_strided(rows[::-1], 2003, 50, via="engine")
            region.readinto_strided(rows, 2003, 50, via="engine")
            assert np.array_equal(table, expected)

    @pytest.mark.parametrize("registered", [False, True])
    def test_of_many_pieces_are_exact(self, region: gdrpy.Region, registered: bool) -> None:
        choice = random.Random(7)
        host = bytearray(choice.randbytes(8 * MIB))
        expected = bytearray(choice.randbytes(region.nbytes))
        region.write(expected, via="dma")
        with (
            gdrpy.register(host) if registered else contextlib.nullcontext(),
            memoryview(host) as view,
        ):
            pieces, at = [], 0
            while at < 8 * MIB - 70_000:
                size = choice.choice((1, 64, 1000, 4096, 70_000))
                pieces.append((at, view[8 * MIB - at - size :][:size]))
                at += size + choice.randrange(5)
            choice.shuffle(pieces)
            region.write_many(pieces, via="engine")
            for at, data in pieces:
                expected[at : at + len(data)] = data
            assert by_cuda(region) == expected
            kept = bytes(host)
            for _, data in pieces:
                data[:] = bytes(len(data))
            region.readinto_many(pieces, via="engine")
            assert host == kept
            del pieces, data

    def test_of_one_value_set_the_bytes_of_the_range_alone(self, region: gdrpy.Region) -> None:
        choice = random.Random(6)
        expected = bytearray(choice.randbytes(region.nbytes))
        region.write(expected, via="dma")
        for size in (1, 3, 4, 5, 63, 4097, 70_003, 20 * MIB + 1):
            offset = choice.randrange(region.nbytes - size + 1)
            region.fill(size % 256, offset, size, via="engine")
            expected[offset : offset + size] = bytes([size % 256]) * size
            assert by_cuda(region) == expected


class TestMoreThan4Gib:
    @pytest.mark.large
    @pytest.mark.parametrize("registered", [False, True])
    def test_are_copied_and_filled_between_guard_bytes(self, registered: bool) -> None:
        guard = 1001
        nbytes = (4 << 30) + 12_345
        # No two words are the same, so that bytes 4 GiB from their place are wrong ones.
        content = np.arange(nbytes // 8 + 1, dtype=np.uint64).view(np.uint8)[:nbytes]
        found = np.zeros(nbytes + 2 * guard, np.uint8)

        def check(kept: int, expected: np.ndarray | int) -> None:
            assert (found[:guard] == kept).all()
            assert (found[-guard:] == kept).all()
            assert (found[guard:-guard] == expected).all()

        with contextlib.ExitStack() as undo:
            region = undo.enter_context(gdrpy.alloc(found.nbytes, cpu=False))
            if registered:
                undo.enter_context(gdrpy.register(content))
                undo.enter_context(gdrpy.register(found))
            region.fill(0x5A)
            region.write(content, guard, via="engine")
            region.readinto(found, via="dma")
            check(0x5A, content)
            found[:] = 0xA5
            region.readinto(found[guard:-guard], guard, via="engine")
            check(0xA5, content)
            region.fill(7, guard, nbytes, via="engine")
            region.readinto(found, via="dma")
            check(0x5A, 7)


@pytest.fixture
def two_gpus() -> Iterator[tuple[gdrpy.Region, gdrpy.Region]]:
    """A region on each of two GPUs, which have an engine each."""
    if cuda.device_count() < 2:
        pytest.skip("this machine has no second GPU")
    status = engine.status(1)
    assert status.usable, status.reason
    with gdrpy.alloc(64 * MIB, 0) as first, gdrpy.alloc(64 * MIB, 1) as second:
        yield first, second


class TestTwoGpus:
    def test_copy_at_once_by_an_engine_each(
        self, two_gpus: tuple[gdrpy.Region, gdrpy.Region]
    ) -> None:
        started = threading.Barrier(2)

        def work(region: gdrpy.Region) -> None:
            choice = random.Random(region.device)
            expected = bytearray(choice.randbytes(region.nbytes))
            started.wait()
            region.write(expected, via="engine")
            for _ in range(100):
                content = choice.randbytes(choice.randrange(1, 3 * MIB))
                offset = choice.randrange(region.nbytes - len(content) + 1)
                region.write(content, offset, via="engine")
                expected[offset : offset + len(content)] = content
                assert region.read(len(content), offset, via="engine") == content
            assert region.read(via="engine") == by_cuda(region) == expected

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(work, two_gpus))

    def test_copy_to_each_other_through_the_host(
        self, two_gpus: tuple[gdrpy.Region, gdrpy.Region]
    ) -> None:
        first, second = two_gpus
        content = random.Random(11).randbytes(first.nbytes)
        first.write(content, via="dma")
        second.fill(0)
        with pytest.raises(gdrpy.InvalidHandle):
            second.write(first, via="engine")
        assert not any(by_cuda(second))
        second.write(first)
        assert by_cuda(second) == content

    @pytest.mark.parametrize("device", [0, 1])
    def test_serve_a_process_without_cuda(
        self, two_gpus: tuple[gdrpy.Region, gdrpy.Region], device: int
    ) -> None:
        region = two_gpus[device]
        content = random.Random(12).randbytes(region.nbytes)
        region.write(content, via="dma")
        with child(CHILD, region, 1) as process:
            assert process.communicate()[0] == "False\n"
        expected = content[:PART] + changed(content[PART : 2 * PART]) + content[2 * PART :]
        assert by_cuda(region) == expected


class TestAsynchronousCopies:
    def test_in_flight_are_exact_while_the_event_loop_goes_on(self, region: gdrpy.Region) -> None:
        content = random.Random(9).randbytes(region.nbytes)
        region.write(content, via="dma")
        count = 0

        async def counter() -> None:
            nonlocal count
            while True:
                count += 1
                await asyncio.sleep(0)

        async def main() -> None:
            counting = asyncio.create_task(counter())
            copies = [region.read_async(MIB, start, "engine") for start in range(0, 64 * MIB, MIB)]
            assert b"".join(await asyncio.gather(*copies)) == content
            during = count
            await region.write_async(content[::-1], via="engine")
            assert count > during > 1
            counting.cancel()

        asyncio.run(main())
        assert by_cuda(region) == content[::-1]

    def test_of_registered_memory_are_exact(self, region: gdrpy.Region) -> None:
        content = random.Random(10).randbytes(region.nbytes)
        region.write(content, via="dma")
        buffer = bytearray(region.nbytes)

        async def main(view: memoryview) -> None:
            starts = range(0, 64 * MIB, MIB)
            await asyncio.gather(
                *(region.readinto_async(view[at : at + MIB], at, "engine") for at in starts)
            )

        with gdrpy.register(buffer), memoryview(buffer) as view:
            asyncio.run(main(view))
        assert buffer == content


class TestProcessWithoutCuda:
    def test_copies_right_and_takes_little_gpu_memory(self, region: gdrpy.Region) -> None:
        self.check(region)

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
    def test_copies_right_as_another_user(self, region: gdrpy.Region) -> None:
        self.check(region, user=NOBODY, group=NOBODY, extra_groups=[])

    def check(self, region: gdrpy.Region, **user: object) -> None:
        content = random.Random(7).randbytes(region.nbytes)
        region.write(content, via="dma")
        before = free_nbytes()
        with child(CHILD, region, 0, **user) as process:
            assert process.stdout is not None
            assert process.stdin is not None
            assert process.stdout.readline() == "False\n"
            taken = before - free_nbytes()
            process.stdin.close()
            assert process.wait() == 0
        assert by_cuda(region) == changed(content[:PART]) + content[PART:]
        assert taken <= 4 * MIB

    def test_uses_the_limits_that_were_measured_with_cuda(self, region: gdrpy.Region) -> None:
        fd = region.export()
        with gdrpy.Region.from_fd(fd, gpu=False) as alone:
            os.close(fd)
            assert tuning.path(alone.location) == tuning.path(0)
            assert tuning.origin(alone.location) == tuning.origin(0)

    def test_keeps_a_region_whose_owner_is_killed(self) -> None:
        code = (
            "import sys, gdrpy; region = gdrpy.alloc(1 << 26); region.write(b'kept' * (1 << 24));"
            "import socket; peer = socket.socket(fileno=int(sys.argv[1]));"
            "socket.send_fds(peer, [b'x'], [region.export()]); peer.recv(1)"
        )
        killed = owner_of_region(code, lambda region: region.read(via="engine"))
        assert killed == b"kept" * (1 << 24)

    def test_is_one_of_ten_at_once(self, region: gdrpy.Region) -> None:
        content = random.Random(8).randbytes(PART) * (region.nbytes // PART)
        region.write(content, via="dma")
        children = [child(CHILD, region, number) for number in range(10)]
        for process in children:
            with process:
                assert process.communicate()[0] == "False\n"
        assert by_cuda(region) == changed(content[:PART]) * 10 + content[10 * PART :]


def owner_of_region(code: str, use: Callable[[gdrpy.Region], bytes]) -> bytes:
    """What `use` returns of a region whose owner was killed."""
    import socket

    own, theirs = socket.socketpair()
    with own:
        owner = subprocess.Popen(
            [sys.executable, "-c", code, str(theirs.fileno())], pass_fds=[theirs.fileno()]
        )
        theirs.close()
        with owner:
            _, [fd], _, _ = socket.recv_fds(own, 1, 1)
            with gdrpy.Region.from_fd(fd, gpu=False) as region:
                os.close(fd)
                use(region)
                owner.send_signal(signal.SIGKILL)
                owner.wait()
                return use(region)
