"""Copies, fills, semaphores and events of the simulated resource manager's copy engines.

Each test runs in a process of its own, behind the manager.
"""

import ctypes
import mmap
import os
import select
import struct

import pytest

import gdrpy
import releases
import rmclient as rm
from channelclient import (
    ACQUIRE_GEQ,
    ACQUIRE_HOLDING,
    BYTES,
    COPY_ERROR,
    FLUSH,
    INTERRUPT,
    LINES,
    MMU_FAULT,
    NON_PIPELINED,
    PBDMA_ERROR,
    PIPELINED,
    RELEASE,
    REMAP,
    SEMAPHORE,
    USERMODE,
    Engine,
    Host,
    eventually,
    fact,
    nothing_is_left,
)
from rmclient import (
    BLOCK,
    INVALID_PARAMETER,
    OK,
    PAGE,
)

pytestmark = pytest.mark.preloaded()


class TestCopy:
    @pytest.mark.parametrize("local", [True, False])
    @pytest.mark.parametrize(
        "first",
        [
            pytest.param(first, marks=pytest.mark.preloaded(FAKE_RM_VERSION=first))
            for first in [release.first for release in releases.read()]
        ],
    )
    def test_goes_both_ways_on_each_release(self, first: str, local: bool) -> None:
        engine = Engine(local=local)
        gpu, owner = engine.block()
        pages = Host(2 * BLOCK)
        _, host = engine.host(pages.address, 2 * BLOCK)
        pages.map[:BLOCK] = BYTES[:BLOCK]
        engine.run(engine.copy(gpu, host, BLOCK))
        assert owner[:] == BYTES[:BLOCK]
        engine.run(engine.copy(host + BLOCK + 3, gpu + 1, 4999))
        assert pages.map[BLOCK : BLOCK + 5003] == bytes(3) + BYTES[1:5000] + bytes(1)
        engine.close()
        nothing_is_left()

    def test_goes_between_two_allocations(self) -> None:
        engine = Engine()
        (one, source), (two, target) = engine.block(), engine.block()
        source[:] = BYTES[:BLOCK]
        engine.run(engine.copy(two, one, BLOCK))
        assert target[:] == source[:]
        engine.close()
        nothing_is_left()

    @pytest.mark.preloaded(GDRPY_SIM="1", GDRPY_BACKEND="nvrm")
    def test_reaches_the_simulated_cudas_memory(self) -> None:
        engine = Engine()
        with gdrpy.alloc(BLOCK) as region:
            fd = region.export()
            gpu = engine.imported(fd)
            os.close(fd)
            region.write(BYTES[:BLOCK])
            pages = Host(BLOCK)
            _, host = engine.host(pages.address, BLOCK)
            engine.run(engine.copy(host, gpu, BLOCK))
            assert pages.map[:] == BYTES[:BLOCK]
            pages.map[:] = bytes(BLOCK)
            engine.run(engine.copy(gpu + 1, host, 5))
            assert region.read(8) == BYTES[:1] + bytes(5) + BYTES[6:8]
        engine.close()

    def test_reaches_what_a_legacy_handle_names(self) -> None:
        engine = Engine(space=False)
        fd = rm.memory_block()
        owner = mmap.mmap(fd, BLOCK)
        source = (os.getpid(), fd)
        assert rm.dup_object(engine.ctl, engine.client, engine.device, source) == OK
        status, gpu = engine.map_dma(engine.dma, 0xE2, BLOCK)
        assert status == OK
        pages = Host(PAGE)
        pages.map[:] = BYTES[:PAGE]
        engine.run(engine.copy(gpu + PAGE, engine.host(pages.address, PAGE)[1], PAGE))
        assert owner[PAGE : 2 * PAGE] == BYTES[:PAGE]
        engine.close()

    def test_of_lines_steps_by_the_pitches(self) -> None:
        engine = Engine()
        gpu, owner = engine.block()
        pages = Host(PAGE)
        _, host = engine.host(pages.address, PAGE)
        owner[:] = BYTES[:BLOCK]
        launch = NON_PIPELINED | LINES | FLUSH | SEMAPHORE
        addresses = (gpu >> 32, gpu, host >> 32, host)
        engine.run(
            engine.payload(),
            engine.method(0x400, *addresses, 100, 10, 7, 5),
            engine.method(0x300, launch),
        )
        expected = b"".join(owner[100 * i : 100 * i + 7] + bytes(3) for i in range(5))
        assert pages.map[:50] == expected
        engine.close()

    def test_of_many_pieces_takes_one_semaphore(self) -> None:
        engine = Engine()
        gpu, owner = engine.block()
        pages = Host(PAGE)
        _, host = engine.host(pages.address, PAGE)
        pages.map[:] = BYTES[:PAGE]
        pieces = [
            engine.transfer(gpu + 5000 * i, host + 64 * i, 64, PIPELINED if i else NON_PIPELINED)
            for i in range(20)
        ]
        engine.run(*pieces, engine.semaphore())
        for i in range(20):
            assert owner[5000 * i : 5000 * i + 65] == BYTES[64 * i : 64 * i + 64] + bytes(1)
        engine.close()

    @pytest.mark.preloaded(FAKE_RM_DELAY="3")
    def test_is_right_when_the_hardware_takes_its_time(self) -> None:
        engine = Engine()
        gpu, owner = engine.block()
        pages = Host(PAGE)
        _, host = engine.host(pages.address, PAGE)
        for i in range(40):
            pages.map[:] = bytes([i]) * PAGE
            engine.run(engine.copy(gpu + i * PAGE, host, PAGE))
        assert owner[: 40 * PAGE] == b"".join(bytes([i]) * PAGE for i in range(40))
        engine.close()

    def test_runs_on_a_grce_too(self) -> None:
        engine = Engine(engine=9)
        engine.run(engine.semaphore())
        engine.close()

    def test_goes_on_beside_a_channel_that_waits(self) -> None:
        waiting, other = Engine(), Engine()
        address = waiting.base + PAGE - 4
        acquire = (address, 0, 7, 0, ACQUIRE_GEQ)
        words = waiting.method(0x5C, address, address >> 32, *acquire[2:], subchannel=0)
        waiting.submit(words, waiting.semaphore())
        for _ in range(20):
            other.run(other.semaphore())
        assert waiting.seen() == waiting.sequence - 1
        ctypes.c_uint32.from_address(waiting.control_at + PAGE - 4).value = 8
        assert waiting.done()
        waiting.close()
        other.close()

    def test_of_two_channels_at_once(self) -> None:
        engines = [Engine(), Engine(engine=11)]
        blocks = [engine.block() for engine in engines]
        pages = Host(BLOCK)
        pages.map[:] = BYTES[:BLOCK]
        hosts = [engine.host(pages.address, BLOCK)[1] for engine in engines]
        for engine, (gpu, _), host in zip(engines, blocks, hosts, strict=True):
            engine.submit(engine.copy(gpu, host, BLOCK))
        assert [engine.done() for engine in engines] == [True, True]
        assert [owner[:] for _, owner in blocks] == [BYTES[:BLOCK]] * 2
        for engine in engines:
            engine.close()
        nothing_is_left()

    def test_of_a_gpu_whose_owner_closed_it_still_works(self) -> None:
        engine = Engine()
        gpu, owner = engine.block()
        owner.close()
        pages = Host(PAGE)
        _, host = engine.host(pages.address, PAGE)
        pages.map[:] = BYTES[:PAGE]
        engine.run(engine.copy(gpu, host, PAGE))
        pages.map[:] = bytes(PAGE)
        engine.run(engine.copy(host, gpu, PAGE))
        assert pages.map[:] == BYTES[:PAGE]
        engine.close()


class TestFill:
    @pytest.mark.parametrize(
        ("components", "count", "expected"),
        [(0x00000005, 13, b"\x44" * 13), (0x00030005, 3, b"\x44\x33\x22\x11" * 3)],
    )
    def test_writes_the_constant(self, components: int, count: int, expected: bytes) -> None:
        engine = Engine()
        gpu, owner = engine.block()
        at = gpu + (3 if components == 5 else 4)
        engine.run(
            engine.payload(),
            engine.method(0x704, 0x11223344, components),
            engine.method(0x408, at >> 32, at),
            engine.method(0x418, count),
            engine.method(0x300, NON_PIPELINED | REMAP | FLUSH | SEMAPHORE),
        )
        begin = at - gpu
        assert owner[: begin + len(expected) + 1] == bytes(begin) + expected + bytes(1)
        engine.close()

    def test_of_words_wants_an_aligned_address(self) -> None:
        engine = Engine()
        gpu, _ = engine.block()
        xid = engine.refused(
            engine.method(0x704, 1, 0x00030005),
            engine.method(0x408, (gpu + 2) >> 32, gpu + 2),
            engine.method(0x418, 1),
            engine.payload(),
            engine.method(0x300, NON_PIPELINED | REMAP | FLUSH | SEMAPHORE),
        )
        assert xid == COPY_ERROR


class TestOrder:
    def test_pipelined_copies_overtake_one_another(self) -> None:
        engine = Engine()
        gpu, owner = engine.block()
        owner[:4] = b"abc\0"
        first = engine.transfer(gpu + 1, gpu, 1)
        second = engine.transfer(gpu + 2, gpu + 1, 1, PIPELINED)
        engine.run(first, second, engine.semaphore())
        assert owner[:4] == b"aab\0"
        engine.close()

    def test_non_pipelined_copies_wait_for_the_one_before(self) -> None:
        engine = Engine()
        gpu, owner = engine.block()
        owner[:4] = b"abc\0"
        engine.run(
            engine.transfer(gpu + 1, gpu, 1),
            engine.transfer(gpu + 2, gpu + 1, 1),
            engine.semaphore(),
        )
        assert owner[:4] == b"aaa\0"
        engine.close()

    def test_a_semaphore_without_a_flush_comes_before_the_data(self) -> None:
        engine = Engine()
        gpu, owner = engine.block()
        owner[:3] = b"abc"
        order = engine.method(0x240, (gpu + 8) >> 32, gpu + 8, 1)
        # The copy takes the semaphore's word with it, if the semaphore is there first.
        engine.run(
            order,
            engine.transfer(gpu + 64, gpu, 16, NON_PIPELINED | SEMAPHORE),
            engine.semaphore(),
        )
        assert owner[64:76] == b"abc" + bytes(5) + b"\1\0\0\0"
        engine.close()

    def test_a_flush_without_a_semaphore_does_nothing(self) -> None:
        engine = Engine()
        gpu, owner = engine.block()
        order = engine.method(0x240, (gpu + 8) >> 32, gpu + 8, 1)
        engine.run(
            engine.transfer(gpu + 64, gpu, 16, NON_PIPELINED | FLUSH),
            order,
            engine.method(0x300, SEMAPHORE),
            engine.semaphore(),
        )
        assert owner[64:76] == bytes(8) + b"\1\0\0\0"
        engine.close()

    def test_unflushed_data_comes_in_the_end(self) -> None:
        engine = Engine()
        gpu, owner = engine.block()
        owner[:3] = b"abc"
        engine.run(engine.payload(), engine.transfer(gpu + 64, gpu, 3, NON_PIPELINED | SEMAPHORE))
        assert eventually(lambda: owner[64:67] == b"abc")
        engine.close()

    @pytest.mark.preloaded(FAKE_RM_DELAY="5")
    def test_a_pushbuffer_used_again_too_early_is_read_in_its_new_form(self) -> None:
        engine = Engine()
        gpu, owner = engine.block()
        owner[:2] = b"ab"
        changed = 0
        for _ in range(200):
            slot = engine.control_at + 3 * PAGE + engine.put * 1024
            new = engine.copy(gpu + 9, gpu + 1, 1)
            engine.submit(engine.method(0x100, 0) * 10, engine.copy(gpu + 8, gpu, 1))
            ctypes.memmove(slot, new, len(new))
            ctypes.memset(slot + len(new), 0, 80)
            assert eventually(lambda: engine.seen() >= engine.sequence - 1)
            changed = owner[9]
            if changed:
                break
        assert changed == ord("b")


class TestHostSemaphore:
    def acquire(
        self, engine: Engine, address: int, value: int, execute: int = ACQUIRE_GEQ
    ) -> bytes:
        return engine.method(0x5C, address, address >> 32, value, 0, execute, subchannel=0)

    @pytest.mark.parametrize(("word", "wanted"), [(5, 5), (6, 5), (0, 0xFFFFFFFF), (3, 0xF0000000)])
    def test_lets_through_what_is_circularly_greater(self, word: int, wanted: int) -> None:
        engine = Engine()
        gpu, owner = engine.block()
        owner[:4] = struct.pack("<I", word)
        engine.run(self.acquire(engine, gpu, wanted), engine.semaphore())
        engine.close()

    def test_holds_the_copy_until_the_word_is_there(self) -> None:
        engine = Engine()
        gpu, owner = engine.block()
        engine.submit(self.acquire(engine, gpu, 1), engine.copy(gpu + 64, gpu, 4))
        assert not eventually(lambda: engine.seen() == engine.sequence, 0.05)
        owner[:4] = struct.pack("<I", 1)
        assert engine.done()
        assert owner[64:68] == struct.pack("<I", 1)
        engine.close()

    def test_releases_a_word(self) -> None:
        engine = Engine()
        gpu, owner = engine.block()
        engine.run(
            engine.transfer(gpu + 64, gpu, 4),
            self.acquire(engine, gpu, 9, RELEASE),
            engine.semaphore(),
        )
        assert (owner[:4], owner[64:68]) == (struct.pack("<I", 9), bytes(4))
        engine.close()

    def test_holds_up_its_engine_alone_if_it_is_not_to_switch(self) -> None:
        waiting, beside, elsewhere = Engine(), Engine(), Engine(engine=11)
        gpu, owner = waiting.block()
        waiting.submit(self.acquire(waiting, gpu, 1, ACQUIRE_HOLDING), waiting.semaphore())
        read = 0x88
        assert eventually(
            lambda: ctypes.c_uint32.from_address(waiting.control_at + PAGE + read).value == 2
        )
        beside.submit(beside.semaphore())
        elsewhere.run(elsewhere.semaphore())
        assert not eventually(lambda: beside.seen() == beside.sequence, 0.05)
        owner[:4] = struct.pack("<I", 1)
        assert waiting.done()
        assert beside.done()
        for engine in (waiting, beside, elsewhere):
            engine.close()

    def test_on_memory_that_goes_away_is_a_fault(self) -> None:
        engine = Engine()
        memory, gpu, _ = engine.local(PAGE)
        engine.submit(self.acquire(engine, gpu, 1), engine.semaphore())
        assert engine.unmap_dma(engine.dma, memory, gpu) == OK
        assert not engine.done()
        assert engine.error() == (0xFFFF, MMU_FAULT)

    def test_of_the_copy_class_reaches_gpu_memory(self) -> None:
        engine = Engine()
        gpu, owner = engine.block()
        engine.run(
            engine.transfer(gpu + 64, gpu + 128, 4),
            engine.payload(gpu + 8, 0x12345678) + engine.method(0x300, FLUSH | SEMAPHORE),
            engine.semaphore(),
        )
        assert owner[:16] == bytes(8) + struct.pack("<I", 0x12345678) + bytes(4)
        engine.close()

    def test_wants_an_aligned_word(self) -> None:
        engine = Engine()
        gpu, _ = engine.block()
        assert engine.refused(self.acquire(engine, gpu + 2, 0), engine.semaphore()) == PBDMA_ERROR


class TestDoorbell:
    def test_that_was_not_rung_starts_nothing(self) -> None:
        engine = Engine()
        engine.push(engine.semaphore())
        ctypes.c_uint32.from_address(engine.control_at + PAGE + 0x8C).value = engine.put
        assert not eventually(lambda: engine.seen() == engine.sequence, 0.05)
        engine.ring()
        assert engine.done()
        engine.close()

    def test_rung_with_another_token_is_a_violation(self) -> None:
        engine = Engine()
        engine.push(engine.semaphore())
        engine.ring(token=engine.token + 1)
        assert eventually(lambda: rm.count("violations") == 1)
        assert "doorbell" in rm.violations()[0]
        assert engine.seen() == engine.sequence - 1

    def test_in_bar0_is_a_violation_from_hopper_on(self) -> None:
        engine = Engine()
        engine.doorbell = engine.view(engine.made(engine.subdevice, USERMODE, None), 0x10000) + 0x90
        engine.run(engine.semaphore())
        assert rm.violations() == [
            "doorbell in BAR0 rung, which may overtake what was stored before"
        ]
        engine.close()

    @pytest.mark.preloaded(FAKE_RM_GPU="ada")
    def test_before_hopper_is_in_bar0(self) -> None:
        engine = Engine()
        engine.run(engine.semaphore())
        assert rm.violations() == []
        engine.close()

    def test_of_a_channel_that_is_not_scheduled_waits(self) -> None:
        engine = Engine()
        assert engine.control(engine.channel, 0xA06F0103, bytes(fact("size.schedule")))[0] == OK
        engine.submit(engine.semaphore())
        assert not eventually(lambda: engine.seen() == engine.sequence, 0.05)
        assert engine.schedule() == OK
        assert engine.done()
        engine.close()


class TestEvent:
    @staticmethod
    def event(engine: Engine, flags: int = 0) -> int:
        fd = os.open(f"/dev/nvidia{engine.minor}", os.O_RDWR | flags)
        rm.call(fd, 201, struct.pack("<i", engine.ctl))
        data = struct.pack("<IIII", engine.client, engine.device, fd, 0)
        assert struct.unpack("<IIII", rm.call(fd, 206, data))[3] == OK
        index = 23 + engine.engine - 9 | 0x18000000
        params = struct.pack("<IIIIQ", engine.client, engine.subdevice, 0x79, index, fd)
        engine.made(engine.subdevice, 0x79, params)
        return fd

    def test_wakes_a_poll_once(self) -> None:
        engine = Engine()
        fd = self.event(engine)
        poll = select.poll()
        poll.register(fd, select.POLLIN | select.POLLPRI)
        assert poll.poll(0) == []
        engine.submit(engine.semaphore(FLUSH | SEMAPHORE | INTERRUPT))
        assert poll.poll(20000) == [(fd, select.POLLIN | select.POLLPRI)]
        assert engine.seen() == engine.sequence
        assert poll.poll(0) == []
        os.close(fd)
        engine.close()
        nothing_is_left()

    def test_wakes_an_epoll_once(self) -> None:
        engine = Engine()
        fd = self.event(engine)
        with select.epoll() as epoll:
            epoll.register(fd, select.EPOLLIN)
            for _ in range(3):
                engine.submit(engine.semaphore(FLUSH | SEMAPHORE | INTERRUPT))
                assert epoll.poll(20) == [(fd, select.EPOLLIN)]
                assert epoll.poll(0) == []
        os.close(fd)
        engine.close()

    def test_wakes_nobody_on_a_non_blocking_descriptor(self) -> None:
        engine = Engine()
        fd = self.event(engine, os.O_NONBLOCK)
        engine.run(engine.semaphore(FLUSH | SEMAPHORE | INTERRUPT))
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        assert eventually(lambda: rm.count("violations") == 1)
        assert poll.poll(0) == []
        assert "non-blocking" in rm.violations()[0]

    def test_is_of_its_engine_alone(self) -> None:
        engine, other = Engine(), Engine(engine=11)
        fd = self.event(engine)
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        other.run(other.semaphore(FLUSH | SEMAPHORE | INTERRUPT))
        assert poll.poll(0) == []

    def test_wants_a_descriptor_that_was_made_one(self) -> None:
        engine = Engine()
        params = struct.pack(
            "<IIIIQ", engine.client, engine.subdevice, 0x79, 27 | 0x18000000, engine.node
        )
        assert engine.alloc(engine.subdevice, 0x79, params)[0] == INVALID_PARAMETER
