from __future__ import annotations

import signal
import threading

import numpy as np
import pytest

import gdrpy
from gdrpy.channel import layout as device

MILLION = 1_000_000
ODD = np.uint64(0x9E3779B97F4A7C15)


class TestPop:
    def test_waits_for_a_record(self, channel, reader, record, other_thread):
        popping = other_thread.submit(reader.pop, timeout=60)
        channel.push(record(4))
        assert popping.result() == record(4)

    def test_times_out(self, reader):
        with pytest.raises(gdrpy.Timeout, match=r"ChannelReader.pop: no record arrived in time"):
            reader.pop(timeout=0)

    def test_answers_a_signal(self, reader):
        class Interrupted(Exception):
            pass

        def interrupt(number: int, frame: object) -> None:
            raise Interrupted

        def wait_with_alarm() -> None:
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            reader.pop()

        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            with pytest.raises(Interrupted):
                wait_with_alarm()
        finally:
            signal.signal(signal.SIGALRM, before)

    def test_gives_none_at_the_end(self, channel, reader, record):
        channel.push(record(0))
        channel.close()
        assert [reader.pop(), reader.pop(), reader.pop()] == [record(0), None, None]

    def test_that_waits_learns_of_the_end(self, channel, reader, other_thread):
        popping = other_thread.submit(reader.pop)
        channel.close()
        assert popping.result() is None


class TestPopMany:
    def test_gives_what_is_there(self, full, reader, record):
        assert reader.pop_many() == b"".join(record(i) for i in range(8))
        with pytest.raises(
            gdrpy.Timeout, match=r"ChannelReader.pop_many: no record arrived in time"
        ):
            reader.pop_many(timeout=0)

    def test_gives_no_more_than_its_limit(self, full, reader, record):
        assert reader.pop_many(3) == b"".join(record(i) for i in range(3))
        assert reader.pop_many(limit=100) == b"".join(record(i) for i in range(3, 8))

    def test_gives_no_bytes_at_the_end(self, channel, reader):
        channel.close()
        assert reader.pop_many() == b""

    @pytest.mark.parametrize(("limit", "error"), [(0, "1 or more"), (-1, "must be 0 or more")])
    def test_of_none_is_refused(self, full, reader, limit, error):
        with pytest.raises(ValueError, match=error):
            reader.pop_many(limit)
        assert full.popped == 0


class TestReader:
    def test_is_iterated_up_to_the_end(self, full, reader, record):
        full.close()
        assert list(reader) == [record(i) for i in range(8)]

    def test_goes_on_where_another_has_left_off(self, full, record):
        first = full.reader()
        first.pop_many(3)
        del first
        assert full.reader().pop() == record(3)

    def test_that_was_closed_is_the_last(self, full):
        full.reader().close()
        message = "Channel.reader: the consumer has stopped: make another Channel"
        with pytest.raises(gdrpy.Closed, match=message):
            full.reader()

    def test_has_no_other_beside_it(self, full, reader, record):
        with pytest.raises(ValueError, match="this Channel has a reader, and may have only one"):
            full.reader()
        assert reader.pop() == record(0)

    def test_keeps_the_channel(self, record):
        with gdrpy.Channel(32, 8) as channel:
            channel.push(record(1))
            reader = channel.reader()
        del channel
        assert reader.pop() == record(1)
        assert reader.channel.pushed == 1

    def test_that_is_closed_pops_nothing(self, full, reader):
        with reader:
            reader.pop()
        reader.close()
        assert reader.closed
        for pop in (reader.pop, reader.pop_many):
            with pytest.raises(gdrpy.Closed, match="the reader is closed"):
                pop()

    def test_that_is_closed_refuses_pushes(self, channel, reader, record):
        reader.close()
        with pytest.raises(gdrpy.Closed, match=r"Channel.push: the consumer has stopped"):
            channel.push(record(0))

    @pytest.mark.parametrize("tail", [0, 10, 1 << 20, 1 << 63])
    def test_takes_nothing_by_a_counter_that_no_producer_gives(
        self, full, reader, gpu_write, gpu_read, tail
    ):
        reader.pop()
        ptr = int.from_bytes(gpu_read(full.ptr + device.TAIL, 8), "little")
        gpu_write(ptr, tail.to_bytes(8, "little"))
        for pop in (reader.pop_many, reader.pop_many, reader.pop):
            with pytest.raises(gdrpy.Closed, match="the producer's counter was overwritten"):
                pop(timeout=60)

    def test_that_waits_may_be_closed_by_another_thread(self, reader, other_thread):
        popping = other_thread.submit(reader.pop)
        reader.close()
        with pytest.raises(gdrpy.Closed, match=r"ChannelReader.pop: the reader is closed"):
            popping.result()

    def test_may_be_shared_by_threads(self, memory):
        channel = gdrpy.Channel(16, 64)
        reader = channel.reader()
        found: list[bytes] = []
        threads = [threading.Thread(target=lambda: found.extend(reader)) for _ in range(3)]
        for thread in threads:
            thread.start()
        channel.push_many(np.arange(2 * 3000, dtype=np.uint64))
        channel.close()
        for thread in threads:
            thread.join()
        assert sorted(int.from_bytes(one[:8], "little") for one in found) == list(range(0, 6000, 2))


class TestManyRecords:
    @pytest.mark.parametrize(
        ("nbytes", "capacity", "records"), [(64, 4096, MILLION), (48, 16, MILLION // 100)]
    )
    def test_arrive_whole_and_in_order_by_batches(
        self, memory, nbytes, capacity, records, other_thread
    ):
        words = nbytes // 8
        channel = gdrpy.Channel(nbytes, capacity)
        taking = other_thread.submit(verified, channel.reader(), words)
        numbers = np.arange(records * words, dtype=np.uint64).reshape(records, words) * ODD
        ends = np.random.default_rng(5).integers(0, records, records // 100)
        with channel:
            for batch in np.split(numbers, np.sort(ends)):
                channel.push_many(batch)
        assert taking.result() == records

    def test_arrive_whole_and_in_order_one_by_one(self, memory, other_thread):
        channel = gdrpy.Channel(16, 4096)
        taking = other_thread.submit(verified, channel.reader(), 2)
        numbers = (np.arange(2 * MILLION, dtype=np.uint64) * ODD).tobytes()
        with channel:
            push, view = channel.push, memoryview(numbers)
            for start in range(0, len(numbers), 16):
                push(view[start : start + 16])
        assert taking.result() == MILLION


def verified(reader: gdrpy.channel.ChannelReader, words: int) -> int:
    """How many records came, if each word of them was the one that should come next."""
    done = 0
    while found := reader.pop_many():
        numbers = np.frombuffer(found, np.uint64)
        expected = np.arange(done * words, done * words + len(numbers), dtype=np.uint64) * ODD
        assert np.array_equal(numbers, expected), f"after {done} records"
        done += len(numbers) // words
    return done
