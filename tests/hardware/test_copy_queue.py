"""Queues of copies on real GPUs: words that CPUs, kernels and other queues set."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest
from engineclient import NOBODY, child, free_nbytes

import gdrpy
from gdrpy import cuda

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("usable_engine")]

MIB = 1 << 20
#: Seconds in which everything here is done many times over.
LONG = 20

#: A block waits until a word is at least `wanted`, or for 10 s; adds a number to all words of an
#: array, into another one; and sets a word.
KERNEL = b"""
.version 6.0
.target sm_60
.address_size 64

.visible .entry add(
	.param .u64 from, .param .u64 to, .param .u32 words, .param .u32 number,
	.param .u64 flag, .param .u32 wanted, .param .u64 reply, .param .u32 value
)
{
	.reg .pred %holds;
	.reg .u32 %i, %threads, %words, %number, %word;
	.reg .s32 %wanted, %now, %past;
	.reg .u64 %from, %to, %flag, %at, %offset, %time, %end;

	ld.param.u64 %from, [from];
	ld.param.u64 %to, [to];
	ld.param.u32 %words, [words];
	ld.param.u32 %number, [number];
	ld.param.u64 %flag, [flag];
	ld.param.s32 %wanted, [wanted];
	mov.u32 %i, %tid.x;
	mov.u32 %threads, %ntid.x;
	mov.u64 %time, %globaltimer;
	add.u64 %end, %time, 10000000000;

POLL:
	ld.volatile.global.s32 %now, [%flag];
	sub.s32 %past, %now, %wanted;
	setp.ge.s32 %holds, %past, 0;
	@%holds bra COME;
	mov.u64 %time, %globaltimer;
	setp.lt.u64 %holds, %time, %end;
	@%holds bra POLL;
	ret;

COME:
	membar.sys;
	setp.ge.u32 %holds, %i, %words;
	@%holds bra ALL;
NEXT:
	mul.wide.u32 %offset, %i, 4;
	add.u64 %at, %from, %offset;
	ld.volatile.global.u32 %word, [%at];
	add.u32 %word, %word, %number;
	add.u64 %at, %to, %offset;
	st.global.u32 [%at], %word;
	add.u32 %i, %i, %threads;
	setp.lt.u32 %holds, %i, %words;
	@%holds bra NEXT;
ALL:
	membar.sys;
	bar.sync 0;
	mov.u32 %i, %tid.x;
	setp.ne.u32 %holds, %i, 0;
	@%holds bra END;
	ld.param.u64 %flag, [reply];
	ld.param.u32 %word, [value];
	st.volatile.global.u32 [%flag], %word;
END:
	ret;
}
\0"""

#: Takes 8 bytes of a region when a word of it is set, and sets another one.
CHILD = """
import sys, gdrpy
region = gdrpy.Region.from_fd(int(sys.argv[1]), gpu=False)
found = bytearray(8)
with gdrpy.register(found), region.queue() as queue:
    queue.wait(region, 0, 1)
    queue.readinto(found, region, 64)
    queue.set(region, 4, 1)
    job = queue.submit()
    print(flush=True)
    job.wait()
print(found.decode(), "cuda.bindings" in sys.modules)
"""


@pytest.fixture
def region() -> Iterator[gdrpy.Region]:
    with zeros(4 * MIB) as region:
        yield region


def zeros(nbytes: int) -> gdrpy.Region:
    region = gdrpy.alloc(nbytes)
    region.fill(0, via="engine")
    return region


class Adder:
    """The kernel on a stream that waits for no other work."""

    TYPES = (
        *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint),
        *(ctypes.c_void_p, ctypes.c_uint, ctypes.c_void_p, ctypes.c_uint),
    )

    def __init__(self, function: Any, stream: Any) -> None:
        self._function = function
        self._stream = stream

    def launch(self, *arguments: int) -> None:
        """With the kernel's parameters, in their order."""
        cuda.call(
            "cuLaunchKernel",
            *(self._function, 1, 1, 1, 256, 1, 1, 0, self._stream, (arguments, self.TYPES), 0),
        )


@contextmanager
def adder() -> Iterator[Adder]:
    with cuda.context(0):
        module = cuda.call("cuModuleLoadData", KERNEL)
        stream = cuda.call("cuStreamCreate", cuda.driver().CUstream_flags.CU_STREAM_NON_BLOCKING)
        try:
            yield Adder(cuda.call("cuModuleGetFunction", module, b"add"), stream)
            cuda.call("cuStreamSynchronize", stream)
        finally:
            cuda.call("cuStreamDestroy", stream)
            cuda.call("cuModuleUnload", module)


class TestFlagOfACpu:
    def test_begins_the_copies_and_is_answered_after_them(self, region: gdrpy.Region) -> None:
        content = random.Random(1).randbytes(3 * MIB + 5)
        found = bytearray(len(content))
        region.write(content, 4097, via="dma")
        with gdrpy.register(found), region.queue() as queue:
            for number in range(1, 51):
                found[:] = bytes(len(found))
                queue.wait(region, 0, number)
                queue.readinto(found, region, 4097)
                queue.set(region, 4, number)
                job = queue.submit()
                assert not job.done
                region.flag(0).set(number)
                region.flag(4).wait(number, timeout=LONG)
                assert found == content
                job.wait(LONG)

    def test_that_is_late_leaves_the_queue_and_all_other_copies_alive(
        self, region: gdrpy.Region
    ) -> None:
        content = random.Random(2).randbytes(MIB)
        with region.queue() as queue:
            queue.wait(region, 0, 1)
            queue.set(region, 4, 1)
            job = queue.submit()
            until = time.monotonic() + 5
            while time.monotonic() < until:
                region.write(content, 4096, via="engine")
                assert region.read(MIB, 4096, via="engine") == content
                assert region.read(MIB, 4096, via="dma") == content
                assert not job.done
            region.flag(0).set(1)
            job.wait(LONG)
            assert region.flag(4).get() == 1

    def test_that_never_comes_is_ended_by_close(self, region: gdrpy.Region) -> None:
        with region.queue():  # what the engine makes once
            pass
        before = free_nbytes()
        found = bytearray(64)
        for _ in range(20):
            with gdrpy.register(found), region.queue() as queue:
                queue.wait(region, 0, 1)
                queue.readinto(found, region)
                queue.set(region, 4, 1)
                job = queue.submit()
                with pytest.raises(gdrpy.Timeout):
                    job.wait(0.01)
            with pytest.raises(gdrpy.Closed):
                job.wait()
        assert free_nbytes() >= before - 2 * MIB
        region.flag(0).set(1)
        with region.queue() as queue:
            queue.wait(region, 0, 1)
            queue.set(region, 8, 1)
            queue.submit().wait(LONG)
        assert region.read(12, via="dma") == bytes([1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0])

    def test_is_that_of_each_of_many_queues(self, region: gdrpy.Region) -> None:
        with ExitStack() as stack:
            queues = [stack.enter_context(region.queue()) for _ in range(16)]
            jobs = []
            for number, queue in enumerate(queues):
                queue.wait(region, 8 * number, 1)
                queue.set(region, 8 * number + 4, 1)
                jobs.append(queue.submit())
            for number in reversed(range(16)):
                assert not jobs[number].done
                region.flag(8 * number).set(1)
                jobs[number].wait(LONG)
                assert region.flag(8 * number + 4).get() == 1


class TestQueues:
    def test_set_each_others_flags_a_thousand_times(self, region: gdrpy.Region) -> None:
        rounds = 1000
        seen = np.zeros(rounds, np.uint32)
        with gdrpy.register(seen), region.queue() as ping, region.queue() as pong:
            for number in range(1, rounds + 1):
                ping.wait(region, 64, number - 1)
                ping.set(region, 0, number)
                last = ping.submit(LONG)
                pong.wait(region, 0, number)
                pong.readinto(seen[number - 1 : number], region)
                pong.set(region, 64, number)
                answer = pong.submit(LONG)
            last.wait(LONG)
            answer.wait(LONG)
        assert seen.tolist() == list(range(1, rounds + 1))

    def test_copy_from_region_to_region_in_order(self, region: gdrpy.Region) -> None:
        content = random.Random(3).randbytes(MIB)
        data, found = bytearray(content), bytearray(MIB)
        with ExitStack() as stack:
            for buffer in (data, found):
                stack.enter_context(gdrpy.register(buffer))
            other = stack.enter_context(zeros(MIB))
            queue = stack.enter_context(region.queue())
            for _ in range(20):
                found[:] = bytes(MIB)
                queue.write(data, region, 1001)
                queue.readinto(other, region, 1001)
                queue.write(other, region, 2 * MIB + 3)
                queue.write(found, other)
                queue.readinto(found, region, 2 * MIB + 3)
                queue.submit().wait(LONG)
                assert found == content
                assert other.read(via="dma") == bytes(MIB)


class TestKernel:
    WORDS = MIB // 4

    def test_that_sets_the_flag_has_its_output_copied_out(self, region: gdrpy.Region) -> None:
        source = np.random.default_rng(4).integers(0, 1 << 31, self.WORDS, np.uint32)
        found = np.zeros_like(source)
        region.write(source, via="dma")
        flag, reply = 2 * MIB, 2 * MIB + 64
        with adder() as kernel, gdrpy.register(found), region.queue() as queue:
            for number in range(1, 201):
                queue.wait(region, flag, number)
                queue.readinto(found, region, MIB)
                queue.set(region, reply, number)
                job = queue.submit()
                kernel.launch(
                    *(region.ptr, region.ptr + MIB, self.WORDS, number),
                    *(region.ptr + flag, number - 1, region.ptr + flag, number),
                )
                job.wait(LONG)
                assert np.array_equal(found, source + np.uint32(number))
                assert region.flag(reply).get() == number

    def test_gets_its_input_and_gives_its_output_without_the_cpu(
        self, region: gdrpy.Region
    ) -> None:
        rounds, begin, end = 100, 2 * MIB, 2 * MIB + 64
        choice = np.random.default_rng(5)
        source = choice.integers(0, 1 << 31, (rounds, 4096), np.uint32)
        found = np.zeros_like(source)
        with (
            gdrpy.register(source),
            gdrpy.register(found),
            region.queue() as queue,
            adder() as kernel,
        ):
            for number in range(1, rounds + 1):
                queue.write(source[number - 1], region)
                queue.set(region, begin, number)
                queue.wait(region, end, number)
                queue.readinto(found[number - 1], region, MIB)
                job = queue.submit(LONG)
                kernel.launch(
                    *(region.ptr, region.ptr + MIB, 4096, number),
                    *(region.ptr + begin, number, region.ptr + end, number),
                )
            job.wait(LONG)
        numbers = np.arange(1, rounds + 1, dtype=np.uint32)[:, None]
        assert np.array_equal(found, source + numbers)


class TestProcessWithoutCuda:
    def test_takes_what_another_process_announces(self, region: gdrpy.Region) -> None:
        self.check(region)

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
    def test_takes_it_as_another_user(self, region: gdrpy.Region) -> None:
        self.check(region, user=NOBODY, group=NOBODY, extra_groups=[])

    def check(self, region: gdrpy.Region, **user: object) -> None:
        with child(CHILD, region, **user) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "\n"
            region.write(b"from CPU", 64)
            region.flag(0).set(1)
            region.flag(4).wait(1, timeout=LONG)
            assert process.stdout.read() == "from CPU False\n"

    def test_that_is_killed_while_it_waits_leaves_others_the_memory(
        self, region: gdrpy.Region
    ) -> None:
        with region.queue() as queue:
            before = free_nbytes()
            with child(CHILD, region) as process:
                assert process.stdout is not None
                assert process.stdout.readline() == "\n"
                process.send_signal(signal.SIGKILL)
                assert process.wait() == -signal.SIGKILL
            until = time.monotonic() + LONG
            while free_nbytes() < before - 2 * MIB and time.monotonic() < until:
                time.sleep(0.01)
            assert free_nbytes() >= before - 2 * MIB
            region.flag(0).set(1)
            queue.wait(region, 0, 1)
            queue.set(region, 8, 1)
            queue.submit().wait(LONG)
        assert region.read(12, via="dma") == bytes([1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0])
