"""What the simulated resource manager's channels do with wrong streams: an Xid, as hardware.

Each test runs in a process of its own, behind the manager.
"""

import random
import struct
import threading
import time

import pytest

import rmclient as rm
from channelclient import (
    COPY_ERROR,
    FLUSH,
    LINES,
    MMU_FAULT,
    NON_PIPELINED,
    PBDMA_ERROR,
    REMAP,
    SEMAPHORE,
    Engine,
    Host,
    nothing_is_left,
    xids,
)
from rmclient import BLOCK, OK, PAGE

pytestmark = pytest.mark.preloaded()


class TestFault:
    def test_of_an_unmapped_address_is_told_by_the_notifier(self) -> None:
        engine = Engine()
        gpu, _ = engine.block()
        assert engine.refused(engine.copy(0x7F0000000, gpu, 4)) == MMU_FAULT
        assert struct.unpack_from("<Q", engine.words.map, PAGE)[0] > 10**18
        assert xids() == [f"31: channel {engine.channel:#x}: write of unmapped address 0x7f0000000"]
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


class TestStall:
    @pytest.mark.preloaded(FAKE_RM_FAULT="STALL:2:1000")
    def test_delays_the_channel_alone_until_so_much_time_has_passed(self) -> None:
        engine = Engine()
        engine.submit(engine.semaphore())
        assert engine.heard()  # or the other one's work could be the second
        other = Engine()
        rm.pass_time(900)
        other.run(other.semaphore())
        assert engine.seen() == engine.sequence - 1
        rm.pass_time(200)
        assert engine.done()
        other.close()
        engine.close()
        nothing_is_left()

    @pytest.mark.preloaded(FAKE_RM_FAULT="STALL:2:1000")
    def test_ends_with_the_channel(self) -> None:
        engine = Engine()
        engine.submit(engine.semaphore())
        engine.close()
        nothing_is_left()

    @pytest.mark.preloaded(FAKE_RM_FAULT="STALL_UNMAP:1:1000")
    def test_of_a_call_lasts_until_so_much_time_has_passed(self) -> None:
        engine = Engine()
        memory, address, _ = engine.local(PAGE)
        began = time.monotonic()
        threading.Timer(0.3, rm.pass_time, [1001]).start()
        assert engine.unmap_dma(engine.dma, memory, address) == OK
        assert 0.3 <= time.monotonic() - began < 500
        engine.close()
        nothing_is_left()


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
