"""What threads do to one object at once: where there is no GIL, nothing else orders them."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import sysconfig
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import numpy as np
import pytest

import gdrpy
from gdrpy._core import _mapping

THREADS = 4
ROUNDS = 50


def at_once(*works: Callable[[], object]) -> None:
    """Run each in a thread, all begun together; what one of them raises is raised."""
    barrier = threading.Barrier(len(works))
    failures: list[BaseException] = []

    def run(work: Callable[[], object]) -> None:
        barrier.wait()
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def until_closed(call: Callable[[], object]) -> Callable[[], None]:
    """Calls many times, or until that raises Closed: who is refused meanwhile has his turn then."""

    def work() -> None:
        with suppress(gdrpy.Closed):
            for _ in range(1000):
                call()

    return work


def closing(resource: gdrpy.Mapping | gdrpy.Region) -> Callable[[], None]:
    """Closes as soon as no long copy is in the way."""

    def work() -> None:
        while not resource.closed:
            with suppress(BufferError):
                resource.close()

    return work


USES = {
    "write": lambda mapping: lambda: mapping.write(b"x" * 32768, 64),
    "read": lambda mapping: lambda: mapping.read(4095),
    "readinto": lambda mapping: lambda: mapping.readinto(bytearray(4095)),
    "write_many": lambda mapping: lambda: mapping.write_many([(0, b"abc"), (64, b"def")]),
    "scatter": lambda mapping: lambda: mapping.scatter(np.arange(4) * 8, np.arange(4)),
    "write_strided": lambda mapping: lambda: mapping.write_strided(np.ones((4, 4)), 64),
    "readinto_strided": lambda mapping: lambda: mapping.readinto_strided(np.ones((4, 4)), 64),
    "store": lambda mapping: lambda: mapping.store(0, 1),
    "load": lambda mapping: lambda: mapping.load(0),
    "flag": lambda mapping: partial(lambda flag: flag.set(flag.get() | 1), mapping.flag()),
}


class TestInterpreter:
    def test_goes_on_without_a_gil(self):
        code = "import gdrpy, sys; gdrpy.alloc(1).write(b'x'); print(sys._is_gil_enabled())"
        free = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
        if not hasattr(sys, "_is_gil_enabled"):
            code = code.replace("sys._is_gil_enabled()", "True")
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
        )
        assert (done.stderr, done.stdout) == ("", f"{not free}\n")


class TestMapping:
    @pytest.mark.parametrize("use", USES)
    def test_may_be_closed_while_others_use_it(self, use):
        with gdrpy.alloc(1 << 16) as region:
            for _ in range(ROUNDS):
                mapping = region.map()
                work = until_closed(USES[use](mapping))
                at_once(work, work, mapping.close)
                assert (mapping.closed, mapping._users) == (True, 0)

    def test_is_closed_once_by_many(self):
        released = []
        memory = bytearray(64)
        address = np.frombuffer(memory, np.uint8).ctypes.data
        for i in range(ROUNDS):
            mapping = _mapping.Mapping(address, 64, 2, False, lambda i=i: released.append(i))
            at_once(*[mapping.close] * THREADS)
        assert released == list(range(ROUNDS))

    def test_is_kept_open_by_every_view(self):
        with gdrpy.alloc(4096) as region:
            mapping = region.map()
            views: list[memoryview] = []

            def view() -> None:
                for _ in range(100):
                    memoryview(mapping).release()
                views.append(memoryview(mapping))

            at_once(*[view] * THREADS)
            assert mapping._users == THREADS
            with pytest.raises(BufferError, match=f"Mapping.close: .* .{THREADS} in all"):
                mapping.close()
            at_once(*(one.release for one in views))
            mapping.close()

    def test_keeps_what_a_long_copy_uses(self):
        with gdrpy.alloc(1 << 20) as region:
            for _ in range(ROUNDS):
                mapping = region.map()
                data = bytes(1 << 20)
                at_once(until_closed(lambda m=mapping, d=data: m.write(d)), closing(mapping))

    def test_fences_again_after_the_batches_of_many(self):
        with gdrpy.alloc(4096) as region:

            def batch() -> None:
                for _ in range(1000):
                    with region.cpu.batch():
                        pass

            at_once(*[batch] * THREADS)
            assert region.cpu._batch == 0

    def test_writes_the_pairs_of_a_list_that_another_changes(self):
        with gdrpy.alloc(4096) as region:
            pairs = [(i * 64, bytes([i]) * 64) for i in range(16)]
            expected = b"".join(data for _, data in pairs)
            region.write(expected)
            ended = threading.Event()

            def change() -> None:
                while not ended.is_set():
                    pairs.clear()
                    pairs.extend((i * 64, bytes(bytearray([i]) * 64)) for i in range(16))

            def write() -> None:
                try:
                    for _ in range(2000):
                        region.cpu.write_many(pairs)
                        assert region.cpu.read(1024) == expected
                finally:
                    ended.set()

            at_once(write, change)


class TestRegion:
    @pytest.mark.parametrize("via", ["mapping", "dma", None])
    def test_may_be_closed_while_others_copy(self, via):
        for _ in range(ROUNDS):
            region = gdrpy.alloc(4096)
            at_once(
                until_closed(lambda region=region: region.write(b"x" * 4096, via=via)),
                until_closed(lambda region=region: region.read(4096, via=via)),
                until_closed(
                    lambda region=region: region.write_strided(np.ones((8, 8)), 256, via=via)
                ),
                closing(region),
            )
            assert region._running == 0

    def test_has_every_byte_that_threads_wrote(self):
        with gdrpy.alloc(THREADS * 4096) as region:

            def fill(number: int) -> Callable[[], None]:
                def work() -> None:
                    for at in range(number * 64, region.nbytes, THREADS * 64):
                        region.write(bytes([number]) * 64, at)

                return work

            at_once(*map(fill, range(THREADS)))
            rows = np.frombuffer(region.read(), np.uint8).reshape(-1, THREADS, 64)
            assert (rows == np.arange(THREADS)[:, None]).all()


class TestChannel:
    def test_brings_the_records_of_many_producers_whole_and_once(self):
        each = 2000
        with gdrpy.Channel(record_nbytes=16, capacity=64) as channel, channel.reader() as reader:
            taken: list[bytes] = []

            def produce(number: int) -> Callable[[], None]:
                def work() -> None:
                    for i in range(each):
                        channel.push(np.array([number, i]))
                    channel.push_many(np.array([[number, each + i] for i in range(100)]))

                return work

            def consume() -> None:
                while len(taken) < THREADS * (each + 100):
                    records = reader.pop_many(timeout=60)
                    taken.extend(records[i : i + 16] for i in range(0, len(records), 16))

            at_once(consume, *map(produce, range(THREADS)))
            assert channel.pushed == channel.popped == len(taken)
        pairs = np.frombuffer(b"".join(taken), np.int64).reshape(-1, 2)
        for number in range(THREADS):  # each one's in its order
            assert pairs[pairs[:, 0] == number][:, 1].tolist() == list(range(each + 100))

    def test_gives_each_record_to_one_of_many_readers(self):
        count = 8000
        with gdrpy.Channel(record_nbytes=16, capacity=64) as channel, channel.reader() as reader:
            taken: list[bytes] = []

            def consume() -> None:
                while (record := reader.pop(timeout=60)) is not None:
                    taken.append(record)

            def produce() -> None:
                for i in range(count):
                    channel.push(np.array([i, i]))
                channel.close()

            at_once(produce, *[consume] * THREADS)
        found = Counter(int.from_bytes(record[:8], "little") for record in taken)
        assert found == Counter(range(count))

    def test_counts_every_record_that_was_pushed_before_it_was_closed(self):
        for _ in range(ROUNDS):
            with gdrpy.Channel(record_nbytes=16, capacity=1 << 14) as channel:
                at_once(
                    until_closed(lambda channel=channel: channel.push(bytes(16))), channel.close
                )
                with channel.reader() as reader:
                    assert len(list(reader)) == channel.pushed


class TestCapsule:
    def test_is_consumed_by_one_of_many(self):
        with gdrpy.alloc(4096) as region:
            for _ in range(ROUNDS):
                capsule = region.__dlpack__()
                taken: list[object] = []

                def take(capsule: object = capsule, taken: list[object] = taken) -> None:
                    with suppress(TypeError, ValueError):
                        taken.append(_mapping.take_dlpack(capsule))

                at_once(*[take] * THREADS)
                assert len(taken) == 1
                taken.clear()


#: As cuMemExportToShareableHandle(), while another call of the driver waits for another thread: it
#: tells the descriptor in the low half of `handle`, and waits for the one in the high half.
EXPORT_THAT_WAITS = """
#include <poll.h>
#include <unistd.h>

int export_slowly(int *fd, unsigned long long handle, int type, unsigned long long flags)
{
	struct pollfd answer = {.fd = (int)(handle >> 32), .events = POLLIN};

	if (write((int)(handle & 0xffffffff), "!", 1) != 1 || poll(&answer, 1, 10000) != 1)
		return 999;
	*fd = dup(answer.fd);
	return 0;
}
"""


class TestDescriptor:
    def test_lets_other_threads_run_while_cuda_exports_it(self, tmp_path):
        library = tmp_path / "export.so"
        command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", library]
        subprocess.run(command, input=EXPORT_THAT_WAITS, text=True, check=True)
        function = ctypes.cast(ctypes.CDLL(str(library)).export_slowly, ctypes.c_void_p).value
        (begun, tell), (answer, go_on) = os.pipe(), os.pipe()
        other = threading.Thread(target=lambda: os.read(begun, 1) and os.write(go_on, b"!"))
        other.start()
        made = _mapping.Descriptor.exported(function, tell | answer << 32)
        other.join()
        for fd in (begun, tell, answer, go_on):
            os.close(fd)
        assert isinstance(made, _mapping.Descriptor)
        made.close()
