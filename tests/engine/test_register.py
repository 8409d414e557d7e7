"""gdrpy.register(): buffers that the copy engine reaches without staging."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import tempfile
import threading
import time

import pytest

import gdrpy
import rmclient as rm

ON_NVRM = {"GDRPY_SIM": "1", "GDRPY_BACKEND": "nvrm"}
MIB = 1 << 20
#: The least whose first bytes may take a transfer of their own.
LARGE = 8 * MIB

pytestmark = pytest.mark.preloaded(**ON_NVRM)


def objects() -> tuple[int, int]:
    return rm.count("objects"), rm.count("dma_mappings")


def begin_slow_read(region: gdrpy.Region, buffer: bytearray) -> threading.Thread:
    """A thread in a read that takes the engine 30 seconds."""
    rm.set_fault("STALL:1:30")
    thread = threading.Thread(target=region.readinto, args=(buffer,), kwargs={"via": "engine"})
    thread.start()
    while not rm.count("stalls"):
        pass
    return thread


class TestRegisteredBuffer:
    def test_is_copied_exactly_at_odd_offsets(self) -> None:
        choice = random.Random(1)
        content = choice.randbytes(3 * MIB)
        buffer = bytearray(content)
        with gdrpy.alloc(3 * MIB) as region, gdrpy.register(buffer), memoryview(buffer) as view:
            region.write(buffer, via="engine")
            assert region.cpu.read() == content
            for size in (1, 63, 4097, 70_001, MIB + 3):
                here, there = choice.randrange(MIB), choice.randrange(MIB)
                expected = bytearray(buffer)
                expected[here : here + size] = content[there : there + size]
                assert region.readinto(view[here : here + size], there, via="engine") == size
                assert buffer == expected
        assert rm.violations() == []

    @pytest.mark.parametrize(
        ("write", "past", "nbytes", "transfers"),
        [
            (True, 0, LARGE, 1),
            (True, 64, LARGE, 2),
            (True, 255, LARGE, 2),
            (True, 255, LARGE - 1, 1),
            (False, 64, LARGE, 1),
            (False, 65, LARGE, 2),
            (False, 0, LARGE, 2),
            (False, 0, LARGE - 1, 1),
        ],
    )
    def test_that_is_large_begins_where_the_engine_is_fastest(
        self, write: bool, past: int, nbytes: int, transfers: int
    ) -> None:
        content = random.Random(3).randbytes(nbytes)
        buffer = bytearray(nbytes + 2 * 256)
        with memoryview(buffer) as whole, gdrpy.register(whole), gdrpy.alloc(2 * LARGE) as region:
            place = -ctypes.addressof(ctypes.c_char.from_buffer(buffer)) % 256 + past
            view = whole[place : place + nbytes]
            region.cpu.write(bytes(region.nbytes))
            region.readinto(view[:1], via="engine")  # a first copy checks the engine
            before = rm.count("transfers")
            if write:
                view[:] = content
                region.write(view, 7, via="engine")
                assert region.cpu.read(nbytes + 2, 6) == b"\0" + content + b"\0"
            else:
                region.cpu.write(content, 7)
                region.readinto(view, 7, via="engine")
                assert buffer == bytes(place) + content + bytes(len(buffer) - nbytes - place)
            assert rm.count("transfers") - before == transfers
            view.release()
        assert rm.violations() == []

    def test_takes_no_staging(self) -> None:
        buffer = bytearray(b"x" * 100_000)
        with gdrpy.alloc(MIB) as region:
            region.write(bytes(100_000), via="engine")
            before = objects()
            with gdrpy.register(buffer):
                assert objects() == before  # pinned when it is copied first
                region.write(buffer, via="engine")
                pinned = objects()
                assert pinned[1] == before[1] + 1
                region.readinto(buffer, via="engine")
                assert objects() == pinned
            assert objects() == before
        assert rm.violations() == []

    def test_of_another_librarys_array_takes_no_staging_either(self) -> None:
        import torch

        tensor = torch.zeros(10_000, dtype=torch.uint8)
        with gdrpy.alloc(MIB) as region, gdrpy.register(tensor):
            region.fill(7)
            region.write(tensor[:1], via="engine")
            before = objects()
            region.readinto(tensor[1:], offset=1, via="engine")
            assert objects() == before
            assert (int(tensor[0]), int(tensor[1:].min()), int(tensor[1:].max())) == (0, 7, 7)
        assert rm.violations() == []

    def test_of_memory_that_only_others_may_write_is_refused(self) -> None:
        with pytest.raises(BufferError, match="register: buffer must be writable"):
            gdrpy.register(memoryview(bytearray(8)).toreadonly())

    def test_of_bytes_is_written_from(self) -> None:
        data = random.Random(2).randbytes(200_000)
        with gdrpy.alloc(MIB) as region, gdrpy.register(data):
            region.write(data, 7, via="engine")
            assert region.cpu.read(len(data), 7) == data

    def test_beside_other_memory_leaves_that_to_staging(self) -> None:
        buffer, other = bytearray(5000), bytearray(5000)
        with gdrpy.alloc(MIB) as region, gdrpy.register(buffer):
            region.write(b"y" * 5000)
            region.readinto(other, via="engine")
            region.readinto(buffer, via="engine")
            assert buffer == other == b"y" * 5000

    def test_that_the_driver_does_not_pin_is_staged(self) -> None:
        with tempfile.TemporaryFile(dir=".") as file, gdrpy.alloc(MIB) as region:
            file.truncate(MIB)
            with mmap.mmap(file.fileno(), MIB) as mapped, gdrpy.register(mapped):
                region.write(b"z" * MIB)
                region.readinto(mapped, via="engine")
                assert mapped[:] == b"z" * MIB

    def test_cannot_be_resized_until_it_is_closed(self) -> None:
        buffer = bytearray(100)
        registration = gdrpy.register(buffer)
        with pytest.raises(BufferError):
            buffer.extend(b"more")
        registration.close()
        registration.close()
        buffer.extend(b"more")
        assert repr(registration) == "<Registration CLOSED>"

    def test_of_no_bytes_is_refused(self) -> None:
        with pytest.raises(ValueError, match="register: buffer has no bytes"):
            gdrpy.register(b"")
        with pytest.raises(TypeError, match="register: buffer"):
            gdrpy.register(7)

    def test_outlives_a_lost_channel(self) -> None:
        buffer = bytearray(b"c" * 70_000)
        with gdrpy.alloc(MIB) as region, gdrpy.register(buffer):
            region.write(buffer, via="engine")
            rm.set_fault("ENGINE:1:31")
            buffer[:] = b"d" * 70_000
            region.write(buffer, 100, via="engine")
            assert rm.count("xids") == 1
            assert region.cpu.read(70_000, 100) == b"d" * 70_000
        assert rm.violations() == []

    def test_is_not_the_childs(self) -> None:
        buffer = bytearray(b"e" * 5000)
        with gdrpy.alloc(MIB) as region, gdrpy.register(buffer) as registration:
            region.write(buffer, via="engine")
            fd = region.export()
            child = os.fork()
            if not child:
                status = 1
                try:
                    registration.close()
                    own = gdrpy.Region.from_fd(fd, gpu=False)
                    own.write(buffer, via="engine")
                    status = 0
                finally:
                    os._exit(status)
            assert os.waitpid(child, 0)[1] == 0
            region.write(buffer, 6000, via="engine")
            assert region.cpu.read(5000, 6000) == buffer

    def test_waits_for_no_copy_of_another_one(self) -> None:
        content = random.Random(4).randbytes(5000)
        buffer = bytearray(5000)
        with gdrpy.alloc(MIB) as region, gdrpy.register(buffer):
            region.write(content, via="engine")
            thread = begin_slow_read(region, buffer)
            with gdrpy.register(bytearray(8)):
                pass
            assert rm.count("stalls") == 1
            rm.pass_time(31)
            thread.join()
            assert buffer == content
        assert rm.violations() == []

    def test_takes_little_cpu_for_a_copy_that_takes_long(self) -> None:
        buffer = bytearray(5000)
        with gdrpy.alloc(MIB) as region, gdrpy.register(buffer):
            region.readinto(buffer, via="engine")
            rm.set_fault("STALL:1:2")
            cpu, wall = time.thread_time(), time.monotonic()
            region.readinto(buffer, via="engine")
            cpu, wall = time.thread_time() - cpu, time.monotonic() - wall
            assert wall > 1
            assert cpu < wall / 10  # a tenth also beside other work; spinning takes all

    def test_that_is_closed_amid_a_copy_stays_pinned_to_its_end(self) -> None:
        content = random.Random(5).randbytes(5000)
        buffer = bytearray(5000)
        with gdrpy.alloc(MIB) as region:
            region.write(content, via="engine")
            before = objects()
            registration = gdrpy.register(buffer)
            region.readinto(buffer, via="engine")
            pinned = objects()
            buffer[:] = bytes(5000)
            thread = begin_slow_read(region, buffer)
            registration.close()
            assert rm.count("stalls") == 1
            assert objects() == pinned
            rm.pass_time(31)
            thread.join()
            assert buffer == content
            assert objects() == before
        assert rm.violations() == []

    def test_is_unregistered_after_the_copies_of_other_threads(self) -> None:
        failures: list[BaseException] = []

        def work() -> None:
            try:
                buffer = bytearray(choice.randbytes(300_000))
                expected = bytes(buffer)
                for _ in range(10):
                    with gdrpy.register(buffer):
                        region.write(buffer, via="engine")
                    assert buffer == expected
            except BaseException as error:
                failures.append(error)

        choice = random.Random(3)
        with gdrpy.alloc(MIB) as region:
            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert failures == []
        assert rm.violations() == []
