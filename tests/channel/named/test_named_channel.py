"""Named channels: their records, and whose turn it is to push."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from ringchildren import GONE, SOON, kill, until, until_closed, until_pushed, word

import gdrpy
from gdrpy.channel import KernelEnd


class TestChannel:
    def test_ends_for_the_kernel_with_its_last_producer(self, broker, channel):
        with KernelEnd(broker, "ring") as end:
            reader = end.reader()
            with gdrpy.Channel(16, 8, broker=broker, name="ring") as other:
                other.push(word(1))
            channel.push(word(2))
            assert reader.pop(SOON) + reader.pop(SOON) == word(1) + word(2)
            channel.close()
            assert reader.pop(SOON) is None
            assert end.wait(SOON) is False

    def test_goes_on_with_the_next_producer(self, broker, channel):
        with KernelEnd(broker, "ring") as end:
            channel.push(word(1))
            channel.close()
            with gdrpy.Channel(16, 8, broker=broker, name="ring") as other:
                other.push(word(2))
                found = []
                while len(found) < 2 and end.wait(SOON):
                    reader = end.reader()  # which perhaps sees the end of the first
                    while len(found) < 2 and (record := reader.pop(SOON)) is not None:
                        found.append(record)
                    del reader
            assert found == [word(1), word(2)]

    def test_is_closed_while_it_has_no_kernels_end(self, broker, channel):
        with KernelEnd(broker, "ring") as end:
            channel.push(word(1))
            channel.push(word(2))
            assert end.reader().pop(SOON) == word(1)
        assert GONE in until_closed(lambda: channel.push(word(2), 0))
        with pytest.raises(gdrpy.Closed, match=f"Channel.drain: {GONE}"):
            channel.drain(SOON)
        assert not channel.closed
        held = channel.pushed - channel.popped
        with KernelEnd(broker, "ring") as end:
            reader = end.reader()
            assert reader.pop_many(held, SOON) == word(2) * held
            until_pushed(channel, word(3))
            assert reader.pop(SOON) == word(3)

    def test_holds_what_was_pushed_before_there_was_a_kernel(self, broker, channel):
        for number in range(8):
            channel.push(word(number))
        channel.close()
        with KernelEnd(broker, "ring") as end:
            assert end.wait(SOON)
            assert end.reader().pop_many() == b"".join(map(word, range(8)))
            assert end.wait(SOON) is False

    def test_is_pushed_into_again_after_a_kernel_stopped(self, broker, channel):
        with KernelEnd(broker, "ring") as end:
            end.reader().close()
            with pytest.raises(gdrpy.Closed, match="the consumer has stopped"):
                channel.push(word(1))
            assert end.wait(SOON)
            channel.push(word(1), SOON)
            assert end.reader().pop(SOON) == word(1)

    def test_waits_for_a_new_producer_after_the_last_was_closed_if_it_is_told_to(
        self, broker, channel
    ):
        with KernelEnd(broker, "ring") as end, ThreadPoolExecutor(1) as executor:
            channel.close()
            assert end.wait(SOON) is False
            with pytest.raises(gdrpy.Timeout, match="'ring' has no CPU's end, and none came"):
                end.wait(0.01, new=True)
            waiting = executor.submit(end.wait, SOON, new=True)
            until(lambda: end._condition._waiters)
            with gdrpy.Channel(16, 8, broker=broker, name="ring"):
                assert waiting.result(SOON) is True

    def test_waits_for_a_producer(self, broker, channel, nursery, notes, tmp_path):
        ring = {"socket": broker.socket, "name": "other", "notes": str(tmp_path / "notes")}
        pid = nursery.start("produce", **ring, number=1, capacity=8, many=1)
        with KernelEnd(broker, "other", wait=SOON) as end:
            assert end.wait(SOON)
            reader = end.reader()
            assert reader.pop(SOON)
            kill(pid)
            while reader.pop(SOON) is not None:
                pass
            with pytest.raises(gdrpy.Timeout, match="'other' has no CPU's end, and none came"):
                end.wait(0.01)


class TestTurn:
    """The word of the host memory that says whose turn it is."""

    @pytest.fixture
    def host(self, broker, channel):
        with broker.get("ring/host", gpu=False) as region:
            yield region.cpu

    def test_of_a_producer_that_is_gone_is_ended(self, channel, host):
        host.store(64, 1 << 40, 8)
        channel.push(word(1), SOON)
        assert host.load(64, 8) == 0

    def test_of_another_producer_is_waited_for(self, broker, channel, host):
        with gdrpy.Channel(16, 8, broker=broker, name="ring") as other:
            host.store(64, other._named.number, 8)
            message = (
                r"Channel.push: another producer of the ring of 8 records did not end its push"
            )
            with pytest.raises(gdrpy.Timeout, match=message):
                channel.push(word(1), 0.05)
            host.store(64, 0, 8)
            channel.push(word(1), 0)

    def test_that_was_left_begins_at_the_tail_of_gpu_memory(self, broker, channel, host):
        channel.push(word(1))
        host.store(72, 0, 8)  # as if it had died before it told
        for holder in (1 << 40, (1 << 64) - 1):
            host.store(64, holder, 8)
            assert (channel.pushed, channel.room) == (1, 7)
        channel.push(word(2), 0)
        assert (channel.pushed, host.load(72, 8)) == (2, 2)
        with KernelEnd(broker, "ring") as end:
            assert end.reader().pop_many(None, SOON) == word(1) + word(2)

    def test_begins_right_though_others_pushed_and_popped_while_the_producer_joined(
        self, broker, channel, host
    ):
        with broker.get("ring", gpu=False) as memory:
            memory.cpu.store(128, 11, 8)
            host.store(72, 11, 8)
            with gdrpy.Channel(16, 8, broker=broker, name="ring") as other:
                host.store(0, 8, 8)
                other.push(word(1), 0)
                assert (other.pushed, other.room) == (12, 4)
