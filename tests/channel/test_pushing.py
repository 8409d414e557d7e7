from __future__ import annotations

import os
import signal
import struct
import threading

import numpy as np
import pytest

import gdrpy
from gdrpy.channel import layout as device

DESCRIPTOR = struct.Struct("<8sIIQQQQQQ")


def described(channel, gpu_read) -> list:
    """The fields of the struct that a kernel is given."""
    return list(DESCRIPTOR.unpack(gpu_read(channel.ptr, DESCRIPTOR.size)))


def word(gpu_read, ptr: int) -> int:
    return int.from_bytes(gpu_read(ptr, 8), "little")


class TestDescriptor:
    def test_says_what_the_ring_is(self, channel, gpu_read):
        magic, version, nbytes, capacity, records, *_ = described(channel, gpu_read)
        assert (magic, version, nbytes, capacity) == (b"GDRCHANL", 1, 32, 8)
        assert records % 256 == 0

    def test_leads_the_gpu_to_records_and_counters(self, channel, record, reader, gpu_read):
        *_, records, tail, closed, head, stopped = described(channel, gpu_read)
        channel.push(record(7))
        channel.push(record(8))
        reader.pop()
        assert gpu_read(records, 64) == record(7) + record(8)
        assert [word(gpu_read, ptr) for ptr in (tail, closed, head, stopped)] == [2, 0, 1, 0]
        channel.close()
        reader.close()
        assert [word(gpu_read, ptr) for ptr in (tail, closed, head, stopped)] == [2, 1, 1, 1]

    def test_has_its_fields_where_kernels_in_python_look_for_them(self, channel, gpu_read):
        offsets = (device.RECORDS, device.TAIL, device.CLOSED, device.HEAD, device.STOPPED)
        addresses = described(channel, gpu_read)[4:]
        assert [word(gpu_read, channel.ptr + offset) for offset in offsets] == addresses
        assert word(gpu_read, channel.ptr + device.CAPACITY) == 8
        assert word(gpu_read, channel.ptr + device.RECORD_NBYTES) & 0xFFFFFFFF == 32


class TestPush:
    def test_arrives_in_order(self, channel, reader, record):
        for i in range(5):
            channel.push(record(i))
        assert [reader.pop() for _ in range(5)] == [record(i) for i in range(5)]

    def test_goes_round_the_ring_many_times(self, channel, reader, record):
        for i in range(100):
            channel.push(record(i))
            assert reader.pop() == record(i)

    @pytest.mark.parametrize(
        "make", [bytearray, memoryview, lambda data: np.frombuffer(data, np.float32)]
    )
    def test_takes_any_contiguous_buffer(self, channel, reader, record, make):
        channel.push(make(record(3)))
        assert reader.pop() == record(3)

    def test_of_the_smallest_and_the_largest_record(self, memory):
        for nbytes in (16, 48, 65536):
            channel = gdrpy.Channel(nbytes, 2)
            reader = channel.reader()
            for i in range(5):
                channel.push(bytes([i]) * nbytes)
                assert reader.pop() == bytes([i]) * nbytes

    def test_works_in_a_ring_of_one(self, memory):
        channel = gdrpy.Channel(16, 1)
        reader = channel.reader()
        for i in range(5):
            channel.push(bytes([i]) * 16)
            assert channel.room == 0
            assert reader.pop() == bytes([i]) * 16

    @pytest.mark.parametrize("nbytes", [0, 31, 33, 64])
    def test_of_another_size_is_refused(self, channel, nbytes):
        message = f"Channel.push: a record has 32 bytes, but {nbytes} were given"
        with pytest.raises(ValueError, match=message):
            channel.push(bytes(nbytes))
        assert channel.pushed == 0

    def test_of_no_buffer_is_refused(self, channel):
        for wrong in ("text", 5, None):
            with pytest.raises(TypeError):
                channel.push(wrong)
        with pytest.raises((ValueError, BufferError)):
            channel.push(np.zeros((4, 16), np.uint8)[:, ::2])
        assert channel.pushed == 0

    @pytest.mark.parametrize("timeout", [-1, float("nan"), "soon"])
    def test_with_no_timeout_is_refused(self, channel, record, timeout):
        with pytest.raises(ValueError, match=r"Channel.push: timeout must be seconds >= 0 or None"):
            channel.push(record(0), timeout)
        assert channel.pushed == 0


class TestPushMany:
    @pytest.mark.parametrize("count", range(9))
    def test_of_each_number_from_each_place(self, channel, reader, record, count):
        done = 0
        for _ in range(8):
            channel.push_many(b"".join(record(done + i) for i in range(count)))
            assert channel.room == 8 - count
            found = reader.pop_many() if count else b""
            assert found == b"".join(record(done + i) for i in range(count))
            channel.push(record(0))
            reader.pop()
            done += count

    def test_of_more_than_the_ring_holds_waits_for_room(
        self, channel, reader, record, other_thread
    ):
        data = b"".join(record(i) for i in range(1000))
        pushing = other_thread.submit(channel.push_many, data)
        found = bytearray()
        while len(found) < len(data):
            found += reader.pop_many(timeout=60)
        pushing.result()
        assert found == data

    def test_of_an_array_of_structures(self, channel, reader):
        orders = np.zeros(3, np.dtype([("price", "f8"), ("size", "u8", 3)]))
        orders["price"] = [1.5, 2.5, 3.5]
        channel.push_many(orders)
        assert np.frombuffer(reader.pop_many(), orders.dtype)["price"].tolist() == [1.5, 2.5, 3.5]

    def test_of_a_part_of_a_record_is_refused_whole(self, channel):
        message = r"Channel.push_many: a record has 32 bytes, and 65 is not a multiple"
        with pytest.raises(ValueError, match=message):
            channel.push_many(bytes(65))
        assert channel.pushed == 0

    def test_that_times_out_has_pushed_the_first_ones(self, channel, reader, record):
        with pytest.raises(gdrpy.Timeout, match="8 records have been pushed so far"):
            channel.push_many(b"".join(record(i) for i in range(20)), timeout=0)
        assert channel.pushed == 8
        assert reader.pop_many() == b"".join(record(i) for i in range(8))


class TestFullRing:
    def test_times_out(self, full, record):
        message = r"Channel.push: the ring of 8 records is full, and nothing was taken in time"
        with pytest.raises(gdrpy.Timeout, match=message) as caught:
            full.push(record(8), timeout=0)
        assert isinstance(caught.value, TimeoutError)
        assert (full.pushed, full.popped, full.room) == (8, 0, 0)

    def test_goes_on_when_a_record_is_taken(self, full, reader, record, other_thread):
        pushing = other_thread.submit(full.push, record(8), timeout=60)
        assert reader.pop() == record(0)
        pushing.result()
        assert reader.pop_many() == b"".join(record(i) for i in range(1, 9))

    def test_answers_a_signal(self, full, record):
        class Interrupted(Exception):
            pass

        def interrupt(number: int, frame: object) -> None:
            raise Interrupted

        def wait_with_alarm() -> None:
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            full.push(record(8))

        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            with pytest.raises(Interrupted):
                wait_with_alarm()
        finally:
            signal.signal(signal.SIGALRM, before)
        assert full.pushed == 8

    def test_lets_other_threads_run(self, full, reader, record, other_thread):
        pushing = other_thread.submit(full.push, record(8), timeout=60)
        assert sum(range(100_000)) == 4_999_950_000
        assert not pushing.done()
        reader.pop()
        pushing.result()

    def test_may_be_closed_by_another_thread(self, full, record, other_thread):
        pushing = other_thread.submit(full.push, record(8))
        full.close()
        with pytest.raises(gdrpy.Closed, match=r"Channel.push: the channel is closed"):
            pushing.result()

    def test_may_be_closed_by_the_handler_of_a_signal(self, full, record):
        before = signal.signal(signal.SIGALRM, lambda number, frame: full.close())
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            with pytest.raises(gdrpy.Closed, match="the channel is closed"):
                full.push(record(8))
        finally:
            signal.signal(signal.SIGALRM, before)

    def test_ends_when_the_consumer_takes_no_more(self, full, reader, record, other_thread):
        pushing = other_thread.submit(full.push, record(8))
        reader.close()
        with pytest.raises(gdrpy.Closed, match=r"Channel.push: the consumer has stopped"):
            pushing.result()


class TestCounters:
    def test_follow_both_sides(self, channel, reader, record):
        assert (channel.pushed, channel.popped, channel.room) == (0, 0, 8)
        channel.push_many(record(0) * 5)
        assert (channel.pushed, channel.popped, channel.room) == (5, 0, 3)
        reader.pop_many(2)
        assert (channel.pushed, channel.popped, channel.room) == (5, 2, 5)

    def test_that_no_consumer_gives_end_the_pushes(self, full, record, gpu_write, gpu_read):
        *_, head, _ = described(full, gpu_read)
        gpu_write(head, (9).to_bytes(8, "little"))
        with pytest.raises(gdrpy.Closed, match=r"Channel.push: the consumer's counter was overwr"):
            full.push(record(8))
        assert full.room == 0


class TestDrain:
    def test_returns_when_all_was_taken(self, full, reader, other_thread):
        draining = other_thread.submit(full.drain, timeout=60)
        reader.pop_many(5)
        assert not draining.done()
        reader.pop_many()
        draining.result()

    def test_of_an_empty_channel_returns_at_once(self, channel):
        channel.drain(timeout=0)

    def test_works_on_a_closed_channel(self, full, reader):
        full.close()
        reader.pop_many()
        full.drain(timeout=0)

    def test_times_out(self, full, reader):
        reader.pop_many(3)
        with pytest.raises(
            gdrpy.Timeout, match=r"Channel.drain: of 8 records, 3 were taken in time"
        ):
            full.drain(timeout=0)

    def test_ends_when_the_consumer_takes_no_more(self, full, reader, other_thread):
        draining = other_thread.submit(full.drain)
        reader.close()
        message = "of 8 records, 0 were taken, and the consumer has stopped"
        with pytest.raises(gdrpy.Closed, match=message):
            draining.result()


class TestClose:
    def test_refuses_pushes_and_may_be_repeated(self, channel, record):
        channel.close()
        channel.close()
        assert channel.closed
        for push in (channel.push, channel.push_many):
            with pytest.raises(gdrpy.Closed, match="the channel is closed"):
                push(record(0))

    def test_ends_a_with_block(self, memory, record):
        with gdrpy.Channel(32, 8) as channel:
            channel.push(record(0))
            reader = channel.reader()
        assert channel.closed
        assert list(reader) == [record(0)]

    def test_keeps_the_memory_for_the_kernel(self, full, gpu_read):
        full.close()
        magic, *_ = described(full, gpu_read)
        assert magic == b"GDRCHANL"


class TestThreads:
    def test_may_push_into_one_channel(self, memory):
        channel = gdrpy.Channel(16, 64)
        each = 5000

        def produce(number: int) -> None:
            pairs = np.stack([np.full(each, number), np.arange(each)], axis=1).astype(np.uint64)
            for pair in pairs[: each // 2]:
                channel.push(pair)
            channel.push_many(pairs[each // 2 :])

        threads = [threading.Thread(target=produce, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        reader = channel.reader()
        found = b""
        while len(found) < 16 * 4 * each:
            found += reader.pop_many(timeout=60)
        for thread in threads:
            thread.join()
        pairs = np.frombuffer(found, np.uint64).reshape(-1, 2)
        for number in range(4):
            assert pairs[pairs[:, 0] == number, 1].tolist() == list(range(each))


class TestForkedChild:
    def test_may_not_use_it_and_harms_nothing(self, full, reader, record):
        calls = [
            lambda: full.push(record(0)),
            lambda: full.push_many(record(0)),
            lambda: full.room,
            lambda: full.pushed,
            lambda: full.popped,
            lambda: full.ptr,
            lambda: full.drain(0),
            lambda: full.reader(),
            lambda: reader.pop(0),
            lambda: reader.pop_many(None, 0),
        ]
        child = os.fork()
        if child == 0:
            refused = 0
            for call in calls:
                try:
                    call()
                except gdrpy.Forked:
                    refused += 1
            full.close()
            reader.close()
            os._exit(refused)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == len(calls)
        assert (full.closed, reader.closed) == (False, False)
        assert reader.pop_many() == b"".join(record(i) for i in range(8))
        full.push(record(8))
        assert reader.pop() == record(8)


class TestRefusal:
    @pytest.mark.parametrize("nbytes", [0, -16, 8, 24, 65552])
    def test_of_record_sizes(self, memory, nbytes):
        message = f"record_nbytes must be a multiple of 16 up to 65536, not {nbytes}"
        with pytest.raises(ValueError, match=message):
            gdrpy.Channel(nbytes)

    @pytest.mark.parametrize("capacity", [0, -8, 3, 4097, 1 << 41, 1 << 70])
    def test_of_capacities(self, memory, capacity):
        refusal = f"Channel: capacity must be a power of two up to {1 << 40}, not {capacity}$"
        with pytest.raises(ValueError, match=refusal):
            gdrpy.Channel(64, capacity)

    def test_of_what_is_no_number(self, memory):
        for wrong in ("64", 64.0, None, True):
            with pytest.raises(TypeError, match="record_nbytes must be an int"):
                gdrpy.Channel(wrong)
            with pytest.raises(TypeError, match="capacity must be an int"):
                gdrpy.Channel(64, wrong)
        with pytest.raises(ValueError, match="device must be a CUDA ordinal, .*, not 'cpu'"):
            gdrpy.Channel(64, 8, "cpu")

    def test_of_a_device_that_is_not_there(self, memory):
        with pytest.raises(gdrpy.NotFound):
            gdrpy.Channel(device=99)

    def test_of_more_memory_than_there_is(self, memory):
        with pytest.raises(gdrpy.OutOfMemory):
            gdrpy.Channel(65536, 1 << 40)

    def test_of_making_it_again(self, full, record):
        before = full.ptr
        with pytest.raises(TypeError, match="Channel: an object is initialized once"):
            full.__init__(64, 16)
        assert (full.ptr, full.capacity, full.reader().pop()) == (before, 8, record(0))

    def test_of_copies(self, channel, reader):
        import pickle

        for thing in (channel, reader):
            with pytest.raises(TypeError, match="cannot be copied or pickled"):
                pickle.dumps(thing)


class TestRepr:
    def test_says_what_it_is(self, channel, reader):
        where = channel._region.location
        assert repr(channel) == f"<Channel of 8 records of 32 bytes on {where}>"
        assert repr(reader) == f"<ChannelReader of {channel!r}>"
        channel.close()
        assert repr(channel) == "<Channel of 8 records of 32 bytes CLOSED>"
