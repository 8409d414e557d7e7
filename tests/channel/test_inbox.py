"""Inboxes, with a writer on the CPU in place of kernels."""

from __future__ import annotations

import asyncio
import ctypes
import os
import pickle
import re
import signal
import struct
import subprocess
import threading
import weakref
from collections.abc import Callable

import numpy as np
import pytest

import gdrpy

DESCRIPTOR = struct.Struct("<8sIIQQQQQQ")
CLOSED = 1 << 63
MILLION = 1_000_000
ODD = np.uint64(0x9E3779B97F4A7C15)


@pytest.fixture
def inbox(memory: None) -> gdrpy.Inbox:
    """Of 8 records of 32 bytes."""
    return gdrpy.Inbox(32, 8)


@pytest.fixture
def writer(inbox: gdrpy.Inbox) -> gdrpy.channel.InboxWriter:
    return inbox.writer()


@pytest.fixture
def record() -> Callable[[int], bytes]:
    """Record number i: no two have the same bytes anywhere."""
    return lambda i: i.to_bytes(8, "little") * 4


@pytest.fixture
def full(inbox: gdrpy.Inbox, record: Callable[[int], bytes]) -> gdrpy.Inbox:
    """The inbox with records 0 to 7, pushed by a writer that is gone."""
    inbox.writer().push_many(b"".join(record(i) for i in range(8)))
    return inbox


def described(inbox, gpu_read) -> list:
    """The fields of the struct that a kernel is given."""
    return list(DESCRIPTOR.unpack(gpu_read(inbox.ptr, DESCRIPTOR.size)))


def word(gpu_read, ptr: int) -> int:
    return int.from_bytes(gpu_read(ptr, 8), "little")


class TestTaskThatIterates:
    def test_takes_each_record_in_order_up_to_the_end_while_other_tasks_run(
        self, inbox, writer, record
    ):
        async def take() -> list[bytes]:
            return [one async for one in inbox]

        async def push() -> None:
            for i in range(100):
                if i % 8 == 0:  # the inbox is full: the other task takes all
                    while inbox.popped < i:
                        await asyncio.sleep(0)
                writer.push(record(i), 0)
            writer.close()

        async def both() -> list[bytes]:
            return (await asyncio.gather(take(), push()))[0]

        assert asyncio.run(both()) == [record(i) for i in range(100)]

    def test_leaves_the_next_record_when_it_stops(self, inbox, full, record):
        async def take() -> bytes:
            async for one in inbox:
                return one
            raise AssertionError

        assert [asyncio.run(take()), inbox.pop()] == [record(0), record(1)]

    def test_loses_no_record_when_it_is_cancelled(self, inbox, writer, record):
        async def cancel() -> None:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(aiter(inbox)), 0.01)

        asyncio.run(cancel())
        writer.push(record(0))
        assert inbox.pop() == record(0)

    def test_lets_others_run_after_every_64_records(self, memory, record):
        inbox = gdrpy.Inbox(32, 256)
        others = inbox.writer()
        others.push_many(b"".join(record(i) for i in range(200)))
        others.close()
        seen = []

        async def take() -> None:
            async for _one in inbox:
                pass

        async def look() -> None:
            while inbox.popped < 200:
                seen.append(inbox.popped)
                await asyncio.sleep(0)

        async def both() -> None:
            await asyncio.gather(take(), look())

        asyncio.run(both())
        assert seen == [64, 128, 192]


class TestDescriptor:
    def test_says_what_the_ring_is(self, inbox, gpu_read):
        magic, version, unused, _, capacity, nbytes, *_ = described(inbox, gpu_read)
        assert (magic, version, unused, capacity, nbytes) == (b"GDRINBOX", 1, 0, 8, 32)

    def test_leads_kernels_to_slots_and_counters(self, inbox, writer, record, gpu_read):
        *_, slots, _, _, reserved, taken, end = described(inbox, gpu_read)
        for i in range(3):
            writer.push(record(i))
        inbox.pop_many()
        writer.push(record(3))
        assert [word(gpu_read, ptr) for ptr in (reserved, taken, end)] == [4, 3, 0]
        words = np.frombuffer(gpu_read(slots + 3 * 64, 64), "<u4").reshape(8, 2)
        assert words[:, 0].tobytes() == record(3)
        assert words[:, 1].tolist() == [3 + 8] * 8
        writer.close()
        inbox.close()
        found = [word(gpu_read, ptr) for ptr in (reserved, taken, end)]
        assert found == [4, 3 | CLOSED, 5]

    def test_of_a_kernel_that_pushes_makes_a_record(self, inbox, record, gpu_read, gpu_write):
        *_, slots, _, _, reserved, _, _ = described(inbox, gpu_read)
        gpu_write(reserved, (1).to_bytes(8, "little"))
        stamped = np.empty((8, 2), "<u4")
        stamped[:, 0] = np.frombuffer(record(5), "<u4")
        stamped[:, 1] = 8
        gpu_write(slots, stamped[:7].tobytes())
        with pytest.raises(gdrpy.Timeout):
            inbox.pop(timeout=0)
        gpu_write(slots + 56, stamped[7:].tobytes())
        assert inbox.pop(timeout=60) == record(5)


class TestPop:
    def test_waits_for_a_record(self, inbox, writer, record, other_thread):
        popping = other_thread.submit(inbox.pop, timeout=60)
        writer.push(record(4))
        assert popping.result() == record(4)

    def test_times_out(self, inbox):
        with pytest.raises(gdrpy.Timeout, match=r"Inbox.pop: no record arrived in time"):
            inbox.pop(timeout=0)

    def test_answers_a_signal(self, inbox):
        class Interrupted(Exception):
            pass

        def interrupt(number: int, frame: object) -> None:
            raise Interrupted

        def wait_with_alarm() -> None:
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            inbox.pop()

        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            with pytest.raises(Interrupted):
                wait_with_alarm()
        finally:
            signal.signal(signal.SIGALRM, before)

    def test_goes_round_the_ring_many_times(self, inbox, writer, record):
        for i in range(100):
            writer.push(record(i))
            assert inbox.pop() == record(i)
        assert inbox.popped == 100

    def test_works_for_the_smallest_and_the_largest_record(self, memory):
        for nbytes in (16, 48, 65536):
            inbox = gdrpy.Inbox(nbytes, 2)
            writer = inbox.writer()
            for i in range(5):
                data = np.random.default_rng(i).bytes(nbytes)
                writer.push(data)
                assert inbox.pop() == data

    def test_works_in_a_ring_of_one(self, memory, other_thread):
        inbox = gdrpy.Inbox(16, 1)
        writer = inbox.writer()
        pushing = other_thread.submit(
            lambda: [writer.push(bytes([i]) * 16, timeout=60) for i in range(20)]
        )
        assert [inbox.pop(timeout=60) for _ in range(20)] == [bytes([i]) * 16 for i in range(20)]
        pushing.result()

    def test_gives_none_at_the_end(self, inbox, writer, record):
        writer.push(record(0))
        writer.close()
        assert [inbox.pop(), inbox.pop()] == [record(0), None]
        assert inbox.pop_many() == b""

    def test_that_waits_learns_of_the_end(self, inbox, writer, other_thread):
        popping = other_thread.submit(inbox.pop)
        writer.close()
        assert popping.result() is None

    def test_of_an_end_that_was_overwritten_waits_for_what_it_announces(
        self, inbox, writer, record, gpu_read, gpu_write
    ):
        *_, end = described(inbox, gpu_read)
        writer.push(record(0))
        gpu_write(end, (99).to_bytes(8, "little"))
        assert inbox.pop() == record(0)
        with pytest.raises(gdrpy.Timeout):
            inbox.pop(timeout=0)


class TestPopMany:
    def test_gives_what_is_there(self, full, record):
        assert full.pop_many() == b"".join(record(i) for i in range(8))
        with pytest.raises(gdrpy.Timeout, match=r"Inbox.pop_many: no record arrived in time"):
            full.pop_many(timeout=0)

    def test_gives_no_more_than_its_limit(self, full, record):
        assert full.pop_many(3) == b"".join(record(i) for i in range(3))
        assert full.pop_many(limit=100) == b"".join(record(i) for i in range(3, 8))

    @pytest.mark.parametrize(("limit", "error"), [(0, "1 or more"), (-1, "must be 0 or more")])
    def test_of_none_is_refused(self, full, limit, error):
        with pytest.raises(ValueError, match=error):
            full.pop_many(limit)
        assert full.popped == 0


class TestIterating:
    def test_takes_every_record_up_to_the_end(self, inbox, writer, record):
        for i in range(5):
            writer.push(record(i))
        writer.close()
        assert list(inbox) == [record(i) for i in range(5)]


class TestClose:
    def test_refuses_pops_and_may_be_repeated(self, full):
        full.close()
        full.close()
        assert full.closed
        for pop in (full.pop, full.pop_many):
            with pytest.raises(gdrpy.Closed, match="the inbox is closed"):
                pop()
        with pytest.raises(gdrpy.Closed, match="the inbox is closed"):
            full.c_reader  # noqa: B018

    def test_ends_a_with_block(self, memory):
        with gdrpy.Inbox(32, 8) as inbox:
            pass
        assert inbox.closed

    def test_ends_a_pop_that_waits(self, inbox, other_thread):
        popping = other_thread.submit(inbox.pop)
        inbox.close()
        with pytest.raises(gdrpy.Closed, match=r"Inbox.pop: the inbox is closed"):
            popping.result()

    def test_ends_a_push_that_waits_for_room(self, full, record, other_thread):
        pushing = other_thread.submit(full.writer().push, record(8))
        full.close()
        with pytest.raises(gdrpy.Closed, match=r"InboxWriter.push: the inbox is closed"):
            pushing.result()

    def test_refuses_pushes_where_there_is_room_too(self, inbox, writer, record):
        inbox.close()
        with pytest.raises(gdrpy.Closed, match=r"InboxWriter.push: the inbox is closed"):
            writer.push(record(0))

    def test_keeps_the_memory_for_the_kernel(self, full, gpu_read):
        full.close()
        magic, *_ = described(full, gpu_read)
        assert magic == b"GDRINBOX"


class TestWriter:
    def test_waits_for_room(self, full, record, other_thread):
        pushing = other_thread.submit(full.writer().push, record(8), timeout=60)
        assert full.pop_many(2) == record(0) + record(1)  # room is told by quarters of the ring
        pushing.result()
        assert full.pop_many() == b"".join(record(i) for i in range(2, 9))

    def test_times_out_where_the_ring_is_full(self, full, record):
        message = r"InboxWriter.push: the ring of 8 records is full, .*; 8 records have been pushed"
        with pytest.raises(gdrpy.Timeout, match=message):
            full.writer().push(record(8), timeout=0)

    def test_pushes_more_at_once_than_the_ring_holds(self, inbox, writer, record, other_thread):
        data = b"".join(record(i) for i in range(1000))
        pushing = other_thread.submit(writer.push_many, data)
        found = bytearray()
        while len(found) < len(data):
            found += inbox.pop_many(timeout=60)
        pushing.result()
        assert found == data

    def test_goes_on_where_another_has_left_off(self, inbox, record):
        for i in range(3):
            inbox.writer().push(record(i))
        assert inbox.pop_many() == b"".join(record(i) for i in range(3))

    def test_has_no_other_beside_it(self, inbox, writer):
        with pytest.raises(ValueError, match=r"Inbox.writer: this Inbox has a writer, and may hav"):
            inbox.writer()

    def test_that_is_closed_pushes_nothing(self, inbox, writer, record):
        writer.close()
        writer.close()
        assert writer.closed
        with pytest.raises(gdrpy.Closed, match=r"InboxWriter.push: the writer is closed"):
            writer.push(record(0))
        assert inbox.pop() is None

    def test_cannot_follow_the_end(self, inbox, writer, record):
        writer.close()
        with pytest.raises(gdrpy.Closed, match=r"InboxWriter.push: the inbox has ended"):
            inbox.writer().push(record(0))
        assert inbox.pop() is None

    @pytest.mark.parametrize("nbytes", [0, 31, 33, 64])
    def test_refuses_records_of_another_size(self, inbox, writer, nbytes):
        message = f"InboxWriter.push: a record has 32 bytes, but {nbytes} were given"
        with pytest.raises(ValueError, match=message):
            writer.push(bytes(nbytes))
        with pytest.raises(gdrpy.Timeout):
            inbox.pop(timeout=0)

    @pytest.mark.parametrize("value", [9, 1 << 40, (1 << 63) - 1])
    def test_pushes_nothing_by_a_counter_that_no_reader_gives(
        self, full, record, gpu_read, gpu_write, value
    ):
        *_, taken, _ = described(full, gpu_read)
        gpu_write(taken, value.to_bytes(8, "little"))
        with pytest.raises(gdrpy.Closed, match=r"InboxWriter.push: the reader's counter was over"):
            full.writer().push(record(8), timeout=60)

    def test_keeps_the_inbox(self, record):
        inbox = gdrpy.Inbox(32, 8)
        writer = inbox.writer()
        gone = weakref.ref(inbox)
        del inbox
        writer.push(record(0))
        assert gone() is writer.inbox


class TestThreads:
    def test_may_share_a_writer_and_the_inbox(self, memory):
        inbox = gdrpy.Inbox(16, 64)
        writer = inbox.writer()
        each, found = 2000, []

        def produce(number: int) -> None:
            for i in range(each):
                writer.push(np.array([number, i], np.uint64))

        producers = [threading.Thread(target=produce, args=(i,)) for i in range(3)]
        consumers = [threading.Thread(target=lambda: found.extend(inbox)) for _ in range(2)]
        for thread in producers + consumers:
            thread.start()
        for thread in producers:
            thread.join()
        writer.close()
        for thread in consumers:
            thread.join()
        pairs = np.frombuffer(b"".join(found), np.uint64).reshape(-1, 2)
        for number in range(3):
            mine = pairs[pairs[:, 0] == number, 1]
            assert sorted(mine.tolist()) == list(range(each))

    def test_get_a_million_records_whole_and_in_order_by_batches(self, memory, other_thread):
        inbox = gdrpy.Inbox(64, 4096)
        taking = other_thread.submit(verified, inbox)
        writer = inbox.writer()
        numbers = np.arange(MILLION * 8, dtype=np.uint64).reshape(MILLION, 8) * ODD
        ends = np.random.default_rng(5).integers(0, MILLION, MILLION // 100)
        for batch in np.split(numbers, np.sort(ends)):
            writer.push_many(batch)
        writer.close()
        assert taking.result() == MILLION


def verified(inbox: gdrpy.Inbox) -> int:
    """How many records came, if each word of them was the one that should come next."""
    done = 0
    while found := inbox.pop_many():
        numbers = np.frombuffer(found, np.uint64)
        expected = np.arange(done * 8, done * 8 + len(numbers), dtype=np.uint64) * ODD
        assert np.array_equal(numbers, expected), f"after {done} records"
        done += len(numbers) // 8
    return done


#: What the page's C does, with a sum of the records' first words.
READER = """
unsigned long long sum(struct gdr_inbox_reader *reader, unsigned long long *count)
{
	unsigned long long records[16][4], all = 0, n;

	while (!gdr_inbox_ended(reader)) {
		n = gdr_inbox_pop(reader, records, 16);
		for (unsigned long long i = 0; i < n; i++)
			all += records[i][0];
		*count += n;
	}
	return all;
}

#ifdef __cplusplus
extern "C"
#endif
void close_it(struct gdr_inbox_reader *reader)
{
	gdr_inbox_close(reader);
}
"""


@pytest.fixture(scope="module", params=["gcc -std=c99 -x c", "g++ -std=c++11 -x c++"])
def library(request, tmp_path_factory) -> ctypes.CDLL:
    """READER, compiled as each language that it is written in."""
    path = tmp_path_factory.mktemp("reader") / "reader.so"
    text = f'#include <gdrpy/inbox.h>\n#ifdef __cplusplus\nextern "C"\n#endif\n{READER}'
    flags = f"-shared -fPIC -Wall -Wextra -Wpedantic -Werror -I{gdrpy.channel.include_dir()} -o"
    command = [*request.param.split(), *flags.split(), path, "-"]
    subprocess.run(command, input=text.encode(), check=True)
    return ctypes.CDLL(str(path))


class TestReaderForC:
    def test_takes_the_records_beside_python(self, inbox, writer, record, library, other_thread):
        function, count = library.sum, ctypes.c_ulonglong()
        function.restype = ctypes.c_ulonglong
        function.argtypes = ctypes.c_void_p, ctypes.c_void_p
        writer.push(record(1000))
        assert inbox.pop() == record(1000)
        summing = other_thread.submit(function, inbox.c_reader, ctypes.addressof(count))
        for i in range(100):
            writer.push(record(i), timeout=60)
        writer.close()
        assert (summing.result(), count.value, inbox.popped) == (4950, 100, 101)
        assert inbox.pop() is None

    def test_that_closes_in_c_ends_it_for_python_and_kernels(self, full, library, gpu_read):
        *_, taken, _ = described(full, gpu_read)
        library.close_it.argtypes = (ctypes.c_void_p,)
        library.close_it(full.c_reader)
        assert full.closed
        with pytest.raises(gdrpy.Closed, match=r"Inbox.pop: the inbox is closed"):
            full.pop()
        assert word(gpu_read, taken) == CLOSED

    def test_of_the_page_compiles(self, memory, checkout):
        page = (checkout / "docs" / "channel.md").read_text()
        (program,) = re.findall(r"```c\n(.*?)```", page, re.DOTALL)
        flags = f"-fsyntax-only -Wall -Wextra -Werror -I{gdrpy.channel.include_dir()}"
        command = ["gcc", *flags.split(), "-x", "c", "-"]
        subprocess.run(command, input=program.encode(), check=True)


class TestForkedChild:
    def test_may_not_use_it_and_harms_nothing(self, full, record):
        writer = full.writer()
        calls = [
            lambda: full.pop(0),
            lambda: full.pop_many(None, 0),
            lambda: full.popped,
            lambda: full.ptr,
            lambda: full.c_reader,
            lambda: full.writer(),
            lambda: writer.push(record(0), 0),
            lambda: writer.push_many(record(0), 0),
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
            writer.close()
            os._exit(refused)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == len(calls)
        assert (full.closed, writer.closed) == (False, False)
        assert full.pop_many() == b"".join(record(i) for i in range(8))
        writer.push(record(8))
        assert full.pop() == record(8)


class TestRefusal:
    @pytest.mark.parametrize("nbytes", [0, -16, 8, 24, 65552])
    def test_of_record_sizes(self, memory, nbytes):
        message = f"Inbox: record_nbytes must be a multiple of 16 up to 65536, not {nbytes}"
        with pytest.raises(ValueError, match=message):
            gdrpy.Inbox(nbytes)

    @pytest.mark.parametrize("capacity", [0, -8, 3, 4097, 1 << 32, 1 << 70])
    def test_of_capacities(self, memory, capacity):
        refusal = f"Inbox: capacity must be a power of two up to {1 << 31}, not {capacity}$"
        with pytest.raises(ValueError, match=refusal):
            gdrpy.Inbox(64, capacity)

    def test_of_a_device_that_is_not_there(self, memory):
        with pytest.raises(gdrpy.NotFound):
            gdrpy.Inbox(device=99)

    def test_of_making_it_again(self, full, record):
        before = full.ptr
        with pytest.raises(TypeError, match="Inbox: an object is initialized once"):
            full.__init__(64, 16)
        assert (full.ptr, full.capacity, full.pop()) == (before, 8, record(0))

    def test_of_copies(self, inbox, writer):
        for thing in (inbox, writer):
            with pytest.raises(TypeError, match="cannot be copied or pickled"):
                pickle.dumps(thing)


class TestRepr:
    def test_says_what_it_is(self, inbox, writer):
        where = inbox._region.location
        assert repr(inbox) == f"<Inbox of 8 records of 32 bytes on {where}>"
        assert repr(writer) == f"<InboxWriter of {inbox!r}>"
        assert inbox.device == 0
        inbox.close()
        writer.close()
        assert repr(inbox) == "<Inbox of 8 records of 32 bytes CLOSED>"
        assert repr(writer) == f"<InboxWriter of {inbox!r} CLOSED>"
