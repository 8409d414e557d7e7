"""The copy engines of the simulated resource manager, and that it catches a wrong client.

Each test runs in a process of its own, behind the manager.
"""

import ctypes
import itertools
import mmap
import os
import random
import select
import signal
import struct
import tempfile
import time
from pathlib import Path

import pytest

import gdrpy
import releases
import rmclient as rm
from channelclient import (
    ACQUIRE_GEQ,
    CLASSES,
    COPY4,
    FLUSH,
    HOST_FLAGS,
    INTERRUPT,
    LINES,
    NON_PIPELINED,
    PIPELINED,
    READ_ONLY,
    RELEASE,
    REMAP,
    SEMAPHORE,
    Client,
    Engine,
    Host,
    eventually,
    fact,
    pack,
)
from rmclient import (
    BLOCK,
    INVALID_ADDRESS,
    INVALID_ARGUMENT,
    INVALID_BASE,
    INVALID_CLASS,
    INVALID_FLAGS,
    INVALID_LIMIT,
    INVALID_OBJECT_HANDLE,
    INVALID_OBJECT_PARENT,
    INVALID_PARAMETER,
    INVALID_STATE,
    NOT_SUPPORTED,
    OBJECT_NOT_FOUND,
    OK,
    PAGE,
    STATE_IN_USE,
)

pytestmark = pytest.mark.preloaded()

MMU_FAULT = 31
PBDMA_ERROR = 32
COPY_ERROR = 71  # of COPY4

BYTES = bytes(range(251)) * (1 + BLOCK // 251)


def nothing_is_left() -> None:
    assert rm.counts() == {}


def fakerm_xids() -> list[str]:
    rm.libc.fakerm_xid.restype = ctypes.c_char_p
    return [rm.libc.fakerm_xid(i).decode() for i in range(rm.count("xids"))]


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

    def test_wants_an_aligned_word(self) -> None:
        engine = Engine()
        gpu, _ = engine.block()
        assert engine.refused(self.acquire(engine, gpu + 2, 0), engine.semaphore()) == PBDMA_ERROR


class TestFault:
    def test_of_an_unmapped_address_is_told_by_the_notifier(self) -> None:
        engine = Engine()
        gpu, _ = engine.block()
        assert engine.refused(engine.copy(0x7F0000000, gpu, 4)) == MMU_FAULT
        assert struct.unpack_from("<Q", engine.words.map, PAGE)[0] > 10**18
        assert fakerm_xids() == [
            f"31: channel {engine.channel:#x}: write of unmapped address 0x7f0000000"
        ]
        # Dead for good; a new one works.
        engine.submit(engine.semaphore())
        assert engine.seen() == engine.sequence - 2
        engine.close()
        again = Engine()
        again.run(again.semaphore())
        again.close()
        nothing_is_left()

    @pytest.mark.preloaded(FAKE_RM_DELAY="2")
    def test_may_be_told_late(self) -> None:
        engine = Engine()
        begin = time.time_ns()
        assert engine.refused(engine.copy(0x1000, engine.base, 4)) == MMU_FAULT
        assert struct.unpack_from("<Q", engine.words.map, PAGE)[0] - begin >= 40_000_000
        engine.close()

    def test_leaves_other_channels_alone(self) -> None:
        engine, other = Engine(), Engine()
        assert engine.refused(engine.copy(0x1000, engine.base, 4)) == MMU_FAULT
        other.run(other.semaphore())
        other.close()
        engine.close()

    def test_of_the_byte_behind_a_mapping(self) -> None:
        engine = Engine()
        gpu, _ = engine.block()
        assert engine.refused(engine.copy(gpu, gpu + BLOCK - 8, 9)) == MMU_FAULT

    def test_of_a_write_to_read_only_pages(self) -> None:
        engine = Engine()
        pages = Host(PAGE)
        _, host = engine.host(pages.address, PAGE, read_only=True)
        gpu, _ = engine.block()
        engine.run(engine.copy(gpu, host, PAGE))
        assert engine.refused(engine.copy(host, gpu, 1)) == MMU_FAULT

    def test_of_what_was_unmapped_or_freed(self) -> None:
        engine = Engine()
        pages = Host(PAGE)
        memory, host = engine.host(pages.address, PAGE)
        gpu, _ = engine.block()
        engine.run(engine.copy(gpu, host, 1))
        assert engine.unmap_dma(engine.dma, memory, host) == OK
        assert engine.refused(engine.copy(gpu, host, 1)) == MMU_FAULT
        engine.close()
        engine = Engine()
        memory, host = engine.host(pages.address, PAGE)
        assert engine.free(engine.device, memory) == OK
        assert engine.refused(engine.copy(host, host, 1)) == MMU_FAULT

    def test_of_a_mapping_in_another_address_space(self) -> None:
        engine = Engine()
        other = engine.made(engine.device, 0x70, bytes(24))
        pages = Host(PAGE)
        status, memory = engine.register(pages.address, PAGE)
        status, host = engine.map_dma(other, memory, PAGE, 0x10)
        assert status == OK
        assert engine.refused(engine.copy(engine.base, host, 1)) == MMU_FAULT

    def test_of_an_unmapped_ring(self) -> None:
        engine = Engine()
        assert engine.unmap_dma(engine.dma, engine.memory, engine.base) == OK
        assert engine.refused(engine.semaphore()) == MMU_FAULT

    @pytest.mark.parametrize(
        ("name", "xid"),
        [
            ("a method header of no kind", PBDMA_ERROR),
            ("fewer words than a header says", PBDMA_ERROR),
            ("a subchannel without an object", PBDMA_ERROR),
            ("another class", PBDMA_ERROR),
            ("a host method that is none", PBDMA_ERROR),
            ("a copy method that is none", COPY_ERROR),
            ("a copy of nothing", COPY_ERROR),
            ("a copy beyond 1 GiB", COPY_ERROR),
            ("a layout that is not pitch", COPY_ERROR),
            ("an unknown launch bit", COPY_ERROR),
            ("a semaphore with a time", COPY_ERROR),
            ("an unaligned semaphore", COPY_ERROR),
            ("no lines", COPY_ERROR),
            ("a remap of the source", COPY_ERROR),
        ],
    )
    def test_of_a_stream_with(self, name: str, xid: int) -> None:
        engine = Engine()
        gpu, _ = engine.block()
        at = (gpu >> 32, gpu, gpu >> 32, gpu)
        streams = {
            "a method header of no kind": struct.pack("<I", 7 << 29),
            "fewer words than a header says": engine.method(0x400, 1, 2)[:-4],
            "a subchannel without an object": engine.method(0x418, 1, subchannel=3),
            "another class": engine.method(0, 0xC7B5),
            "a host method that is none": engine.method(0x30, 0, subchannel=0),
            "a copy method that is none": engine.method(0x500, 0),
            "a copy of nothing": engine.transfer(gpu, gpu, 0),
            "a copy beyond 1 GiB": engine.transfer(gpu, gpu, (1 << 30) + 1),
            "a layout that is not pitch": engine.transfer(gpu, gpu, 1, 0x102),
            "an unknown launch bit": engine.transfer(gpu, gpu, 1, 0x182 | 1 << 20),
            "a semaphore with a time": engine.method(0x300, FLUSH | 2 << 3),
            "an unaligned semaphore": engine.method(0x240, *at[:1], gpu + 2, 1)
            + engine.method(0x300, FLUSH | SEMAPHORE),
            "no lines": engine.method(0x400, *at, 1, 1, 1, 0)
            + engine.method(0x300, NON_PIPELINED | LINES),
            "a remap of the source": engine.method(0x704, 0, 0)
            + engine.transfer(gpu, gpu, 1, NON_PIPELINED | REMAP),
        }
        assert engine.refused(streams[name], engine.semaphore()) == xid

    def test_of_a_copy_before_the_object_is_set(self) -> None:
        engine = Engine(set_object=False)
        assert engine.refused(engine.semaphore()) == PBDMA_ERROR

    @pytest.mark.parametrize("spoilt", [1, 1 << 41, 1 << 63])
    def test_of_an_entry_with_a_wrong_bit(self, spoilt: int) -> None:
        engine = Engine()
        stream = engine.semaphore()
        at = engine.base + 3 * PAGE + engine.put * 1024
        engine.push(stream, entry=at | (len(stream) // 4) << 42 | spoilt)
        engine.ring()
        assert not engine.done()
        assert engine.error() == (0xFFFF, PBDMA_ERROR)

    def test_of_a_put_outside_the_ring(self) -> None:
        engine = Engine()
        engine.push(engine.semaphore())
        engine.ring(put=16)
        assert not engine.done()
        assert engine.error() == (0xFFFF, PBDMA_ERROR)

    def test_of_a_group_takes_its_channels_with_it(self) -> None:
        engine = Engine(group=True)
        assert engine.refused(engine.copy(0x1000, engine.base, 4)) == MMU_FAULT
        engine.close()

    @pytest.mark.preloaded(FAKE_RM_FAULT="ENGINE:3:79")
    def test_can_be_ordered(self) -> None:
        engine = Engine()
        engine.run(engine.semaphore())
        assert engine.refused(engine.semaphore()) == 79
        engine.close()


class TestRandomStream:
    @pytest.mark.parametrize("seed", [1, 2, 3])
    def test_ends_in_its_semaphore_or_in_an_xid(self, seed: int) -> None:
        chance = random.Random(seed)
        ends = set()
        for _ in range(60):
            engine = Engine()
            gpu, _ = engine.block()
            values = [0, 1, 5, 8, 0x182, 0x58E, 0x30005, gpu, gpu >> 32, chance.getrandbits(32)]
            methods = [0x100, 0x240, 0x300, 0x400, 0x410, 0x418, 0x704, 0x708]
            if not chance.randrange(4):
                methods.append(chance.randrange(0, 0x2000, 4))
            stream = b"".join(
                engine.method(
                    chance.choice(methods),
                    *chance.choices(values, k=chance.randrange(1, 5)),
                    subchannel=4 if chance.randrange(20) else 0,
                    kind=chance.choice([1, 1, 1, 1, 3, 5]),
                )
                for _ in range(chance.randrange(1, 4))
            )
            engine.submit(stream, engine.semaphore())
            ends.add(0 if engine.done() else engine.error()[1])
            engine.close()
        assert ends >= {0, COPY_ERROR}
        nothing_is_left()


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

    def test_of_a_channel_that_is_not_scheduled_waits(self) -> None:
        engine = Engine()
        assert engine.control(engine.channel, 0xA06F0103, bytes(fact("size.schedule")))[0] == OK
        engine.submit(engine.semaphore())
        assert not eventually(lambda: engine.seen() == engine.sequence, 0.05)
        assert engine.schedule() == OK
        assert engine.done()
        engine.close()


class TestUserMemory:
    def test_must_begin_with_a_page(self) -> None:
        client = Client()
        pages = Host(2 * PAGE)
        assert client.register(pages.address + 64, PAGE)[0] == NOT_SUPPORTED

    def test_must_be_there(self) -> None:
        client = Client()
        pages = Host(4 * PAGE)
        hole = pages.address + 2 * PAGE
        rm.munmap(hole, PAGE)
        assert client.register(pages.address, 4 * PAGE)[0] == INVALID_ADDRESS

    def test_that_can_only_be_read_needs_the_flag(self) -> None:
        client = Client()
        with tempfile.TemporaryFile(dir="/dev/shm") as file:
            file.truncate(PAGE)
            address = rm.mmap(file.fileno(), PAGE, protection=mmap.PROT_READ)
            assert client.register(address, PAGE)[0] == INVALID_ADDRESS
            assert client.register(address, PAGE, HOST_FLAGS | READ_ONLY)[0] == OK

    def test_of_a_file_on_disk_is_for_reading_or_private(self) -> None:
        client = Client()
        with tempfile.NamedTemporaryFile(dir=Path.cwd()) as file:
            file.truncate(PAGE)
            shared = rm.mmap(file.fileno(), PAGE)
            assert client.register(shared, PAGE)[0] == INVALID_ADDRESS
            assert client.register(shared, PAGE, HOST_FLAGS | READ_ONLY)[0] == OK
            private = rm.mmap(file.fileno(), PAGE, flags=mmap.MAP_PRIVATE)
            assert client.register(private, PAGE)[0] == OK

    def test_can_be_registered_twice(self) -> None:
        client = Client()
        pages = Host(PAGE)
        assert [client.register(pages.address, PAGE)[0] for _ in range(2)] == [OK, OK]

    @pytest.mark.parametrize("flags", [0, 0x1010, 0x40000010, 0x40001000, 0x40002010, 0x40801010])
    def test_takes_these_flags_alone(self, flags: int) -> None:
        client = Client()
        pages = Host(PAGE)
        expected = OK if flags == 0x40000010 else INVALID_FLAGS
        assert client.register(pages.address, PAGE, flags)[0] == expected

    def test_is_registered_through_a_node_that_knows_the_client(self) -> None:
        client = Client()
        pages = Host(PAGE)
        stranger = rm.open_minor(client.minor)
        assert client.register(pages.address, PAGE, node=stranger)[0] == rm.INVALID_CLIENT
        assert client.register(pages.address, PAGE, node=client.ctl)[0] == INVALID_ARGUMENT
        rm.call(stranger, 201, struct.pack("<i", client.ctl))
        assert client.register(pages.address, PAGE, node=stranger)[0] == OK

    def test_is_not_for_the_cpu_to_map(self) -> None:
        client = Client()
        pages = Host(PAGE)
        _, memory = client.register(pages.address, PAGE)
        fd = rm.open_minor(client.minor)
        status, _ = rm.map_memory(client.ctl, client.client, client.device, memory, fd, length=PAGE)
        assert status == NOT_SUPPORTED

    def test_cannot_be_a_view_of_the_gpu(self) -> None:
        engine = Engine()
        assert engine.register(engine.control_at, PAGE)[0] == INVALID_ADDRESS


class TestRegisterFd:
    def test_is_once_for_a_node_and_for_a_control_file(self) -> None:
        client = Client()
        for fd, to in [(client.node, client.ctl), (client.ctl, client.ctl), (-1, client.node)]:
            node = rm.open_minor(0) if fd == -1 else fd
            with pytest.raises(OSError, match="Invalid argument"):
                rm.call(node, 201, struct.pack("<i", to))

    def test_keeps_the_client_while_the_node_is_open(self) -> None:
        client = Client()
        os.close(client.ctl)
        assert rm.count("clients") == 1
        os.close(client.node)
        assert (rm.count("clients"), rm.count("violations")) == (0, 1)


class TestGpuAddresses:
    def test_are_below_a_tebibyte_and_apart(self) -> None:
        engine = Engine()
        blocks = [engine.block()[0] for _ in range(3)]
        assert all(a % BLOCK == 0 and a + BLOCK < 1 << 40 for a in blocks)
        assert all(b - a > BLOCK for a, b in itertools.pairwise(blocks))

    def test_are_not_given_out_again_at_once(self) -> None:
        engine = Engine()
        pages = Host(PAGE)
        memory, host = engine.host(pages.address, PAGE)
        assert engine.unmap_dma(engine.dma, memory, host) == OK
        assert engine.map_dma(engine.dma, memory, PAGE, 0x10)[1] != host

    def test_can_be_of_a_part(self) -> None:
        engine = Engine()
        pages = Host(4 * PAGE)
        pages.map[2 * PAGE : 2 * PAGE + 3] = b"abc"
        _, memory = engine.register(pages.address, 4 * PAGE)
        status, host = engine.map_dma(engine.dma, memory, PAGE, 0x10, 2 * PAGE)
        assert status == OK
        gpu, owner = engine.block()
        engine.run(engine.copy(gpu, host, 3))
        assert owner[:3] == b"abc"

    @pytest.mark.parametrize(
        ("offset", "size", "flags", "status"),
        [
            (0, PAGE, 0, INVALID_FLAGS),
            (0, PAGE, 0x12, INVALID_FLAGS),
            (64, PAGE, 0x10, INVALID_BASE),
            (PAGE, PAGE, 0x10, INVALID_BASE),
            (0, 2 * PAGE, 0x10, INVALID_BASE),
            (0, 0, 0x10, INVALID_LIMIT),
        ],
    )
    def test_are_refused_for(self, offset: int, size: int, flags: int, status: int) -> None:
        engine = Engine()
        pages = Host(PAGE)
        _, memory = engine.register(pages.address, PAGE)
        assert engine.map_dma(engine.dma, memory, size, flags, offset)[0] == status

    def test_of_read_only_pages_are_read_only(self) -> None:
        engine = Engine()
        pages = Host(PAGE)
        _, memory = engine.register(pages.address, PAGE, HOST_FLAGS | READ_ONLY)
        assert engine.map_dma(engine.dma, memory, PAGE, 0x10)[0] == INVALID_ARGUMENT
        assert engine.map_dma(engine.dma, memory, PAGE, 0x11)[0] == OK

    def test_want_a_virtual_object_and_a_memory(self) -> None:
        engine = Engine()
        assert engine.map_dma(engine.channel, engine.memory, PAGE)[0] == OBJECT_NOT_FOUND
        assert engine.map_dma(engine.dma, engine.channel, PAGE)[0] == OBJECT_NOT_FOUND
        assert engine.map_dma(engine.dma, engine.usermode, PAGE)[0] == OBJECT_NOT_FOUND
        assert engine.unmap_dma(engine.dma, engine.memory, 0x1000) == OBJECT_NOT_FOUND

    @pytest.mark.parametrize(
        ("release", "map_size", "unmap_size", "schedule_size"),
        [
            pytest.param(first, *sizes, marks=pytest.mark.preloaded(FAKE_RM_VERSION=first))
            for first, *sizes in [
                ("535.43.02", 56, 40, 2),
                ("550.40.07", 56, 48, 2),
                ("575.51.02", 56, 48, 3),
                ("595.44.02", 64, 48, 3),
            ]
        ],
    )
    def test_come_by_structures_of_the_releases_size_alone(
        self, release: str, map_size: int, unmap_size: int, schedule_size: int
    ) -> None:
        engine = Engine()
        for number, wrong in [(0x57, 120 - map_size), (0x58, 88 - unmap_size)]:
            with pytest.raises(OSError, match="Invalid argument"):
                rm.call(engine.ctl, number, bytes(wrong))
        assert engine.schedule(size=5 - schedule_size) == INVALID_ARGUMENT
        assert (fact("size.map_dma"), fact("size.unmap_dma")) == (map_size, unmap_size)


class TestClasses:
    def test_are_counted_and_listed(self) -> None:
        client = Client()
        status, answer = client.control(client.device, 0x800201, bytes(16))
        count = struct.unpack_from("<I", answer)[0]
        assert (status, count > 5) == (OK, True)
        items = (ctypes.c_uint32 * count)()
        params = struct.pack("<I4xQ", count, ctypes.addressof(items))
        assert client.control(client.device, 0x800201, params)[0] == OK
        assert {0xC86F, 0xC8B5, 0xC661} <= set(items)
        params = struct.pack("<I4xQ", count - 1, ctypes.addressof(items))
        assert client.control(client.device, 0x800201, params)[0] == INVALID_ARGUMENT

    @pytest.mark.parametrize(
        "gpu",
        [pytest.param(gpu, marks=pytest.mark.preloaded(FAKE_RM_GPU=gpu)) for gpu in CLASSES],
    )
    def test_of_another_gpu_are_its_own_and_older_ones(self, gpu: str) -> None:
        engine = Engine()
        engine.run(engine.semaphore())
        status, answer = engine.control(engine.device, 0x800201, bytes(16))
        assert status == OK
        items = (ctypes.c_uint32 * struct.unpack_from("<I", answer)[0])()
        params = struct.pack("<I4xQ", len(items), ctypes.addressof(items))
        assert engine.control(engine.device, 0x800201, params)[0] == OK
        assert [max(c for c in items if c & 0xFF == kind) for kind in (0x6F, 0xB5, 0x61)] == list(
            CLASSES[gpu]
        )
        engine.close()
        nothing_is_left()

    @pytest.mark.preloaded(FAKE_RM_NO_COPY="1")
    def test_may_lack_the_copy_class(self) -> None:
        client = Client()
        _, answer = client.control(client.device, 0x800201, bytes(16))
        items = (ctypes.c_uint32 * struct.unpack_from("<I", answer)[0])()
        params = struct.pack("<I4xQ", len(items), ctypes.addressof(items))
        assert client.control(client.device, 0x800201, params)[0] == OK
        assert 0xC8B5 not in set(items)


class TestEngines:
    def test_are_those_of_an_h100(self) -> None:
        client = Client()
        answers = [
            client.control(client.subdevice, 0x20802A03, struct.pack("<II", 9 + i, 0))
            for i in range(6)
        ]
        assert [answer[4] & 3 for status, answer in answers if status == OK] == [3, 3, 2, 2, 0]
        assert answers[5][0] == NOT_SUPPORTED

    def test_are_asked_of_the_subdevice(self) -> None:
        client = Client()
        params = struct.pack("<II", 9, 0)
        assert client.control(client.device, 0x20802A03, params)[0] == NOT_SUPPORTED
        assert client.control(client.subdevice, 0x20802A03, bytes(12))[0] == INVALID_ARGUMENT


class TestChannelAllocation:
    @pytest.mark.parametrize(
        ("changes", "status"),
        [
            ({"flags": 0}, INVALID_FLAGS),
            ({"engine": 14}, INVALID_ARGUMENT),
            ({"entries": 12}, INVALID_ARGUMENT),
            ({"entries": 0}, INVALID_ARGUMENT),
            ({"ring": 0x120000004}, INVALID_ARGUMENT),
            ({"userd": 0}, OBJECT_NOT_FOUND),
            ({"userd_offset": 256}, INVALID_ARGUMENT),
            ({"userd_offset": 1 << 30}, INVALID_ARGUMENT),
            ({"userd_offset": PAGE}, STATE_IN_USE),
            ({"error": 0xBAD}, INVALID_OBJECT_HANDLE),
            ({"address_space": 0xBAD}, OBJECT_NOT_FOUND),
            ({"context_share": 1}, INVALID_ARGUMENT),
        ],
    )
    def test_is_refused_for(self, changes: dict[str, int], status: int) -> None:
        engine = Engine()
        params = engine.channel_params(**{"userd_offset": 2 * PAGE, **changes})
        assert engine.alloc(engine.device, 0xC86F, params)[0] == status

    def test_takes_the_releases_size_or_none(self) -> None:
        engine = Engine()
        params = engine.channel_params(userd_offset=2 * PAGE)
        size = fact("size.channel_params")
        for wrong in (size - 8, size + 8):
            assert engine.alloc(engine.device, 0xC86F, params, wrong)[0] == INVALID_ARGUMENT
        status, handle = engine.alloc(engine.device, 0xC86F, params, size)
        assert status == OK
        assert engine.free(engine.device, handle) == OK

    @pytest.mark.preloaded(FAKE_RM_FAULT="CHANNEL:2:0x51")
    def test_can_be_refused_by_order(self) -> None:
        engine = Engine()
        params = engine.channel_params(userd_offset=2 * PAGE)
        assert engine.alloc(engine.device, 0xC86F, params)[0] == rm.NO_MEMORY
        engine.run(engine.semaphore())
        engine.close()

    def test_copies_only_by_an_object_of_its_engine(self) -> None:
        engine = Engine()
        for version, number in [(0, COPY4), (1, COPY4 - 1)]:
            params = struct.pack("<II", version, number)
            assert engine.alloc(engine.channel, 0xC8B5, params)[0] == INVALID_ARGUMENT
        params = struct.pack("<II", 1, COPY4)
        assert engine.alloc(engine.device, 0xC8B5, params)[0] == INVALID_OBJECT_PARENT
        assert engine.alloc(engine.channel, 0xC7B5, params)[0] == INVALID_CLASS

    def test_is_bound_to_its_engine_before_it_is_scheduled(self) -> None:
        engine = Engine()
        params = engine.channel_params(userd_offset=2 * PAGE)
        channel = engine.made(engine.device, 0xC86F, params)
        on = bytes([1]).ljust(fact("size.schedule"), b"\0")
        assert engine.control(channel, 0xA06F0103, on)[0] == INVALID_STATE
        assert engine.control(channel, 0xA06F0104, struct.pack("<I", 9))[0] == INVALID_ARGUMENT
        assert engine.control(channel, 0xA06F0104, struct.pack("<I", COPY4))[0] == OK
        assert engine.control(channel, 0xA06F0103, on)[0] == OK

    @pytest.mark.preloaded(FAKE_RM_MIG="3")
    def test_is_refused_on_a_split_gpu_without_a_subscription(self) -> None:
        with pytest.raises(AssertionError, match="0x40"):
            Engine(local=False)


class TestGroup:
    @pytest.mark.parametrize(
        "first",
        [
            pytest.param(first, marks=pytest.mark.preloaded(FAKE_RM_VERSION=first))
            for first in ("535.43.02", "595.44.02")
        ],
    )
    def test_has_a_timeslice_and_a_channel(self, first: str) -> None:
        engine = Engine(group=True)
        assert engine.control(engine.group, 0xA06C0104, bytes(8)) == (OK, struct.pack("<Q", 1024))
        assert engine.control(engine.group, 0xA06C0103, struct.pack("<Q", 50))[0] == OK
        assert engine.control(engine.group, 0xA06C0104, bytes(8)) == (OK, struct.pack("<Q", 50))
        engine.run(engine.semaphore())
        engine.close()
        nothing_is_left()

    def test_has_no_timeslice_of_0(self) -> None:
        engine = Engine(group=True)
        assert engine.control(engine.group, 0xA06C0103, bytes(8))[0] == INVALID_ARGUMENT
        assert engine.control(engine.channel, 0xA06C0103, bytes(8))[0] == NOT_SUPPORTED

    def test_gives_its_channels_the_address_space(self) -> None:
        engine = Engine(group=True)
        params = engine.channel_params(userd_offset=2 * PAGE, address_space=engine.space)
        assert engine.alloc(engine.group, 0xC86F, params)[0] == INVALID_ARGUMENT


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


class TestEnd:
    def test_of_the_client_leaves_nothing(self) -> None:
        engine = Engine(group=True)
        engine.block()
        engine.close()
        nothing_is_left()

    def test_of_the_descriptors_ends_the_channel(self) -> None:
        engine = Engine()
        engine.unview()
        os.close(engine.node)
        os.close(engine.ctl)
        assert (rm.count("channels"), rm.count("parts"), rm.count("dma_mappings")) == (0, 0, 0)
        assert rm.violations() == [f"control file closed with client {engine.client:#x} on it"]

    def test_of_the_userd_before_the_channel_is_a_violation(self) -> None:
        engine = Engine()
        engine.unview()
        assert engine.free(engine.device, engine.memory) == OK
        assert rm.violations() == [
            f"memory {engine.memory:#x} freed, the USERD of channel {engine.channel:#x}"
        ]

    def test_of_registered_pages_before_their_object_is_a_violation(self) -> None:
        engine = Engine()
        pages = Host(4 * PAGE)
        engine.host(pages.address, 4 * PAGE)
        rm.munmap(pages.address + PAGE, PAGE)
        assert "registered" in rm.violations()[0]

    def test_in_the_middle_of_a_copy(self) -> None:
        engine = Engine()
        size = 256 << 20
        (one, _), (two, _) = engine.block(size), engine.block(size)
        engine.submit(engine.copy(one, two, size))
        engine.close()
        nothing_is_left()

    def test_of_a_channel_leaves_the_rest(self) -> None:
        engine = Engine()
        assert engine.free(engine.device, engine.channel) == OK
        assert rm.count("channels") == 0
        assert engine.free(engine.channel, engine.copy_object) == OBJECT_NOT_FOUND
        engine.channel = engine.made(engine.device, 0xC86F, engine.channel_params())
        engine.close()
        nothing_is_left()

    def test_by_sigkill_in_the_middle_of_a_copy_leaves_the_memory_to_others(self) -> None:
        fd = rm.memory_block(0, 4 * BLOCK)
        owner = mmap.mmap(fd, 4 * BLOCK)
        for _ in range(5):
            owner[:1] = b"\0"
            child = os.fork()
            if not child:
                engine = Engine()
                gpu = engine.imported(fd, 4 * BLOCK)
                pages = Host(4 * BLOCK)
                pages.map[:] = b"\1" * 4 * BLOCK
                _, host = engine.host(pages.address, 4 * BLOCK)
                while True:
                    engine.run(engine.copy(gpu, host, 4 * BLOCK))
            assert eventually(lambda: owner[:1] == b"\1")
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            owner[:] = bytes(4 * BLOCK)
            engine = Engine()
            gpu = engine.imported(fd, 4 * BLOCK)
            engine.run(engine.transfer(gpu, gpu + 1, 1), engine.semaphore())
            assert owner[:] == bytes(4 * BLOCK)
            engine.close()

    def test_of_a_forked_child_leaves_the_parents_channel(self) -> None:
        engine = Engine()
        engine.unview()
        child = os.fork()
        if not child:
            fine = rm.count("channels") == 0
            again = Engine()
            again.run(again.semaphore())
            os._exit(0 if fine else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        engine.doorbell = engine.view(engine.usermode, 0x10000) + 0x90
        assert rm.count("channels") == 1
        engine.close()


class TestLocalMemory:
    def test_is_of_the_kind_that_the_engine_takes(self) -> None:
        client = Client()
        good = {"owner": client.client, "attributes": 2 << 27 | 1 << 23, "size": PAGE}
        for wrong in ({"owner": 1}, {"attributes": 0}, {"size": 0}, {"alignment": 64}):
            params = bytes(pack("memory_params", **{**good, **wrong}))
            assert client.alloc(client.device, 0x40, params)[0] == INVALID_ARGUMENT
        assert client.alloc(client.device, 0x40, bytes(pack("memory_params", **good)))[0] == OK
