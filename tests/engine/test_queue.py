"""``region.queue()``: steps that the engine does in order, on the simulated resource manager."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable

import numpy as np
import pytest

import gdrpy
import releases
import rmclient as rm
from gdrpy import cuda
from gdrpy.memory.queue import CopyJob, CopyQueue

ON_NVRM = {"GDRPY_SIM": "1", "GDRPY_BACKEND": "nvrm"}
MIB = 1 << 20
#: Seconds: for what comes, and for what does not.
LONG, SHORT = 60, 0.05

pytestmark = pytest.mark.preloaded(**ON_NVRM)

#: A release for each set of facts.
RELEASES = releases.read()
INTERFACES = [
    release.first
    for number, release in enumerate(RELEASES)
    if release.facts not in [older.facts for older in RELEASES[:number]]
]


def zeros(nbytes: int = MIB) -> gdrpy.Region:
    region = gdrpy.alloc(nbytes)
    region.fill(0)
    return region


def word(region: gdrpy.Region, offset: int = 0) -> int:
    return region.flag(offset).get()


def waiting(queue: CopyQueue, region: gdrpy.Region, offset: int = 0) -> CopyJob:
    """A job that waits for a word to be 1."""
    queue.wait(region, offset, 1)
    return queue.submit()


def assert_waits(job: CopyJob) -> None:
    with pytest.raises(gdrpy.Timeout, match=r"CopyJob.wait: the job is not done in time"):
        job.wait(SHORT)
    assert not job.done


def assert_clean() -> None:
    assert (rm.count("xids"), rm.violations()) == (0, [])


def copy_through(region: gdrpy.Region, other: gdrpy.Region, sizes: tuple[int, ...]) -> None:
    """Each job takes bytes to the region, to the other one, and back out of that."""
    choice = random.Random(4)
    for size in sizes:
        content, there = choice.randbytes(size), choice.randrange(region.nbytes - other.nbytes)
        data, found = bytearray(content), bytearray(other.nbytes)
        with gdrpy.register(data), gdrpy.register(found), region.queue() as queue:
            queue.wait(region, MIB - 4, size)
            queue.write(data, region, there)
            queue.write(region=other, data=data)
            queue.readinto(other, region, there)
            queue.readinto(found, other)
            queue.set(region, MIB - 8, size)
            job = queue.submit()
            region.flag(MIB - 4).set(size)
            job.wait(LONG)
            assert job.done
            assert found[:size] == content
            assert word(region, MIB - 8) == size
            assert region.read(size, there) == content


class TestSteps:
    SIZES = (1, 63, 4097, 70_001)

    @pytest.mark.parametrize(
        "release",
        [
            pytest.param(
                release, id=release, marks=pytest.mark.preloaded(**ON_NVRM, FAKE_RM_VERSION=release)
            )
            for release in INTERFACES
        ],
    )
    def test_are_done_in_order_with_every_driver_release(self, release: str) -> None:
        with zeros() as region, gdrpy.alloc(100_000) as other:
            copy_through(region, other, self.SIZES)
        assert_clean()

    @pytest.mark.preloaded(**ON_NVRM, FAKE_RM_DELAY="7")
    def test_are_done_in_order_by_an_engine_that_does_all_as_late_as_it_may(self) -> None:
        with zeros() as region, gdrpy.alloc(100_000) as other:
            copy_through(region, other, self.SIZES)
        assert_clean()

    @pytest.mark.preloaded(**ON_NVRM, FAKE_RM_DELAY="5")
    def test_set_a_word_when_all_copies_before_it_have_arrived(self) -> None:
        content = random.Random(5).randbytes(100 * 501)
        found = bytearray(len(content))
        with zeros() as region, gdrpy.register(found), memoryview(found) as view:
            region.write(content, 4096)
            with region.queue() as queue:
                for at in range(0, len(content), 501):
                    queue.readinto(view[at : at + 501], region, 4096 + at)
                queue.set(region, 8, 3)
                job = queue.submit()
                region.flag(8).wait(3, timeout=LONG)
                assert found == content
                job.wait(LONG)
        assert_clean()

    def test_of_a_pin_reach_the_memory_that_cuda_allocated(self) -> None:
        with cuda.context(0), zeros() as region:
            pointer = int(cuda.call("cuMemAlloc", MIB))
            with gdrpy.pin(pointer + 4096, 8192) as pin, pin.queue() as queue:
                pin.write(bytes(8192))
                queue.wait(pin, 64, 2)
                queue.write(pin, region, 1000)
                queue.set(pin, 128, 9)
                job = queue.submit()
                pin.write(b"pinned", 1)
                pin.flag(64).set(2)
                job.wait(LONG)
                assert region.read(6, 1001) == b"pinned"
                assert pin.flag(128).get() == 9
            cuda.call("cuMemFree", pointer)
        assert_clean()

    def test_need_no_cuda(self) -> None:
        code = (
            "import sys, gdrpy; region = gdrpy.Region.from_fd(int(sys.argv[1]), gpu=False)\n"
            "found = bytearray(8)\n"
            "with gdrpy.register(found), region.queue() as queue:\n"
            "    queue.wait(region, 0, 1); queue.readinto(found, region, 100)\n"
            "    queue.set(region, 4, 1); job = queue.submit(); print(flush=True); job.wait(60)\n"
            "print(found.decode(), 'cuda.bindings' in sys.modules)"
        )
        with zeros() as region:
            fd = region.export()
            child = subprocess.Popen(
                [sys.executable, "-c", code, str(fd)],
                pass_fds=[fd],
                stdout=subprocess.PIPE,
                text=True,
            )
            with child:
                assert child.stdout is not None
                assert child.stdout.readline() == "\n"
                region.write(b"from CPU", 100)
                region.flag(0).set(1)
                region.flag(4).wait(1, timeout=LONG)
                assert child.stdout.read() == "from CPU False\n"
            assert child.returncode == 0

    def test_that_are_not_submitted_are_not_done(self) -> None:
        with zeros() as region, region.queue() as queue:
            job = queue.submit()  # of no steps
            assert job.done
            queue.set(region, 0, 1)
            assert word(region) == 0
            second = queue.submit()
            second.wait(LONG)
            assert word(region) == 1
            assert repr(second) == "<CopyJob 1 of <CopyQueue open>>"

    def test_of_no_bytes_do_nothing(self) -> None:
        nothing = memoryview(bytearray(8))[:0]
        with gdrpy.register(nothing.obj), zeros() as region, region.queue() as queue:
            queue.write(nothing, region, MIB)
            queue.submit().wait(LONG)
        assert_clean()


class TestWait:
    def test_ends_when_a_cpu_sets_the_word_later(self) -> None:
        with zeros() as region, region.queue() as queue:
            job = waiting(queue, region)
            assert_waits(job)
            thread = threading.Thread(target=region.flag(0).set, args=(1,))
            thread.start()
            job.wait(LONG)
            thread.join()
        assert_clean()

    @pytest.mark.parametrize(
        ("found", "wanted"), [(5, 5), (6, 5), (0, 0xFFFFFFFF), (3, 0xF0000000)]
    )
    def test_is_over_for_a_word_that_is_past_the_value(self, found: int, wanted: int) -> None:
        with zeros() as region, region.queue() as queue:
            region.flag(12).set(found)
            queue.wait(region, 12, wanted)
            queue.submit().wait(LONG)

    @pytest.mark.parametrize(("found", "wanted"), [(4, 5), (0xFFFFFFFF, 0), (0xF0000000, 3)])
    def test_goes_on_for_a_word_before_the_value(self, found: int, wanted: int) -> None:
        with zeros() as region, region.queue() as queue:
            region.flag(12).set(found)
            queue.wait(region, 12, wanted)
            job = queue.submit()
            assert_waits(job)
            region.flag(12).set(wanted)
            job.wait(LONG)

    def test_delays_no_other_queue_and_no_other_copy(self) -> None:
        with zeros() as region, zeros() as other, region.queue() as held, other.queue() as free:
            job = waiting(held, region)
            region.write(b"x" * 200_000, 64, via="engine")
            assert region.read(200_000, 64, via="engine") == b"x" * 200_000
            free.set(other, 0, 1)
            free.submit().wait(LONG)
            assert not job.done
            free.set(region, 0, 1)  # the one queue lets the other go on
            free.submit()
            job.wait(LONG)
        assert_clean()

    def test_of_two_queues_for_each_other_goes_to_and_fro_a_thousand_times(self) -> None:
        rounds = 1000
        seen = np.zeros(rounds, np.uint32)
        with zeros() as region, gdrpy.register(seen), region.queue() as ping, zeros() as other:
            with other.queue() as pong:
                for number in range(1, rounds + 1):
                    ping.wait(other, 0, number - 1)
                    ping.set(region, 4, number)
                    last = ping.submit(LONG)
                    pong.wait(region, 4, number)
                    pong.readinto(seen[number - 1 : number], region, 4)
                    pong.set(other, 0, number)
                    answer = pong.submit(LONG)
                last.wait(LONG)
                answer.wait(LONG)
            assert (word(region, 4), word(other)) == (rounds, rounds)
        assert seen.tolist() == list(range(1, rounds + 1))
        assert_clean()


class TestRefusal:
    def refused(
        self, error: type[Exception], match: str, step: Callable[[CopyQueue, gdrpy.Region], None]
    ) -> None:
        """The step is refused, and the queue goes on without it."""
        with zeros() as region, region.queue() as queue:
            with pytest.raises(error, match=match):
                step(queue, region)
            queue.set(region, 0, 1)
            queue.submit().wait(LONG)
            assert word(region) == 1
        assert_clean()

    def test_of_memory_that_is_not_registered_says_how(self) -> None:
        match = (
            r"CopyQueue.%s: a queue copies registered host .* keep gdrpy.register\(buffer\) open"
        )
        self.refused(
            ValueError,
            match % "readinto",
            lambda queue, region: queue.readinto(bytearray(8), region),
        )
        self.refused(ValueError, match % "write", lambda queue, region: queue.write(b"8", region))

    def test_of_bytes_to_fill(self) -> None:
        data = b"12345678"
        with gdrpy.register(data):
            self.refused(
                BufferError,
                "CopyQueue.readinto: buffer must be writable",
                lambda queue, region: queue.readinto(data, region),
            )

    @pytest.mark.parametrize("step", ["wait", "set"])
    @pytest.mark.parametrize(
        ("offset", "value", "match"),
        [
            (2, 0, "offset 2 is not aligned to 4 bytes"),
            (MIB, 0, r"offset 1048576 \+ 4 bytes lies outside"),
            (-4, 0, "offset"),
            (0, 1 << 32, "does not fit"),
            (0, -1, "does not fit"),
        ],
    )
    def test_of_a_word(self, step: str, offset: int, value: int, match: str) -> None:
        self.refused(
            ValueError,
            f"CopyQueue.{step}: .*{match}",
            lambda queue, region: getattr(queue, step)(region, offset, value),
        )

    def test_of_bytes_beyond_the_end(self) -> None:
        buffer = bytearray(8)
        with gdrpy.register(buffer):
            self.refused(
                ValueError,
                "lies outside",
                lambda queue, region: queue.write(buffer, region, MIB - 7),
            )

    def test_of_a_regions_own_bytes(self) -> None:
        self.refused(
            ValueError, "the region's own", lambda queue, region: queue.write(region, region)
        )

    def test_of_what_is_no_region(self) -> None:
        self.refused(
            TypeError,
            "region must be a Region or a Pin, not <class 'bytearray'>",
            lambda queue, region: queue.wait(bytearray(8), 0, 1),  # type: ignore[arg-type]
        )

    def test_of_host_memory(self) -> None:
        with gdrpy.alloc(MIB, device="cpu") as host:
            self.refused(
                gdrpy.BackendUnavailable,
                "CopyQueue.wait: .* this is host memory",
                lambda queue, region: queue.wait(host, 0, 1),
            )
            with pytest.raises(gdrpy.BackendUnavailable, match="CopyQueue: .* this is host memory"):
                host.queue()

    def test_of_stores_to_a_read_only_region(self) -> None:
        with zeros() as region:
            fd = region.export()
            with gdrpy.Region.from_fd(fd, readonly=True) as shown, shown.queue() as queue:
                for store in (
                    lambda: queue.set(shown, 0, 1),
                    lambda: queue.write(b"x", shown),
                    lambda: queue.readinto(shown, region),
                ):
                    with pytest.raises(gdrpy.ReadOnly):
                        store()
                job = waiting(queue, shown)
                region.flag(0).set(1)
                job.wait(LONG)

    @pytest.mark.preloaded(**ON_NVRM, GDRPY_SIM_DEVICES="2")
    def test_of_memory_on_another_gpu(self) -> None:
        with gdrpy.alloc(MIB, 1) as other:
            self.refused(
                gdrpy.InvalidHandle,
                "CopyQueue.set: the memory lies on another GPU than the queue's",
                lambda queue, region: queue.set(other, 0, 1),
            )
        assert_clean()

    def test_of_more_steps_than_a_job_may_have(self) -> None:
        with zeros() as region, region.queue() as queue:
            for number in range(127 * 22):
                queue.set(region, 0, number)
            with pytest.raises(gdrpy.SizeMismatch, match="has 2794 steps already: submit it"):
                queue.set(region, 0, 5)
            queue.submit(0).wait(LONG)
            assert word(region) == 127 * 22 - 1

    def test_keeps_no_buffer_of_a_copy_that_a_full_job_refuses(self) -> None:
        buffer = bytearray(4096)
        with zeros() as region, region.queue() as queue:
            for number in range(127 * 22):
                queue.set(region, 0, number)
            before = rm.count("dma_mappings")
            with gdrpy.register(buffer):
                with pytest.raises(gdrpy.SizeMismatch, match="has 2794 steps already"):
                    queue.write(buffer, region)
                assert rm.count("dma_mappings") == before + 1
            assert rm.count("dma_mappings") == before


class TestRoom:
    def test_is_for_127_jobs_and_submit_waits_for_more(self) -> None:
        with zeros() as region, region.queue() as queue:
            jobs = [waiting(queue, region)]
            for number in range(1, 127):
                queue.set(region, 4, number)
                jobs.append(queue.submit(0))
            queue.set(region, 4, 127)
            for timeout in (0, SHORT):
                with pytest.raises(
                    gdrpy.Timeout, match=r"CopyQueue.submit: .* no room for the job"
                ):
                    queue.submit(timeout)
            assert not any(job.done for job in jobs)
            thread = threading.Thread(target=region.flag(0).set, args=(1,))
            thread.start()
            last = queue.submit()
            thread.join()
            last.wait(LONG)
            assert all(job.done for job in jobs)
            assert word(region, 4) == 127
        assert_clean()

    def test_of_a_large_job_is_that_of_several(self) -> None:
        with zeros() as region, region.queue() as queue:
            job = waiting(queue, region)
            for number in range(126 * 22 + 1):
                queue.set(region, 4, number)
            with pytest.raises(gdrpy.Timeout):
                queue.submit(0)
            region.flag(0).set(1)
            queue.submit(LONG).wait(LONG)
            assert job.done
            assert word(region, 4) == 126 * 22

    def test_comes_again_through_many_rounds_of_the_ring(self) -> None:
        with zeros() as region, region.queue() as queue:
            for number in range(1, 1001):
                queue.set(region, 4, number)
                job = queue.submit()
            job.wait(LONG)
            assert word(region, 4) == 1000


class TestUnfinishedJob:
    def test_is_ended_by_close_which_leaves_nothing(self) -> None:
        with zeros() as region:
            region.write(b"x", 64, via="engine")
            before = rm.counts()
            found = bytearray(8)
            for _ in range(3):
                with gdrpy.register(found), region.queue() as queue:
                    queue.wait(region, 0, 1)
                    queue.readinto(found, region)
                    queue.set(region, 4, 1)
                    job = queue.submit()
                    assert_waits(job)
                queue.close()
                with pytest.raises(gdrpy.Closed, match=r"CopyJob.wait: the CopyQueue is closed"):
                    job.wait()
                with pytest.raises(gdrpy.Closed, match=r"CopyJob.done: the CopyQueue is closed"):
                    _ = job.done
            assert rm.counts() == before
            region.flag(0).set(1)
            assert region.read(4, 4, via="engine") == bytes(4)
        assert_clean()

    def test_that_was_done_before_close_stays_done(self) -> None:
        with zeros() as region:
            with region.queue() as queue:
                queue.set(region, 0, 1)
                job = queue.submit()
                region.flag(0).wait(1, timeout=LONG)
                job.wait(LONG)
            assert job.done
            job.wait()
            for step in (
                lambda: queue.wait(region, 0, 1),
                lambda: queue.set(region, 0, 1),
                lambda: queue.write(region, region),
                queue.submit,
            ):
                with pytest.raises(gdrpy.Closed):
                    step()
            assert repr(queue) == "<CopyQueue CLOSED>"

    def test_keeps_its_regions_from_closing(self) -> None:
        region, other, words = zeros(), zeros(), zeros()
        with words.queue() as queue:
            queue.wait(words, 0, 1)
            queue.write(other, region)
            job = queue.submit()
            for one in (region, other, words):
                with pytest.raises(BufferError, match=r"still use the memory \(1 by DMA\)"):
                    one.close()
            words.flag(0).set(1)
            job.wait(LONG)
            for one in (region, other, words):
                one.close()
        assert_clean()

    def test_frees_its_regions_when_it_is_done_without_being_asked(self) -> None:
        region = zeros()
        with region.queue() as queue:
            queue.wait(region, 0, 1)
            queue.set(region, 4, 1)
            queue.submit()
            region.flag(0).set(1)
            region.flag(4).wait(1, timeout=LONG)
            queue.submit().wait(LONG)
            region.close()

    def test_lets_regions_go_when_the_queue_is_closed(self) -> None:
        region = zeros()
        queue = region.queue()
        waiting(queue, region)
        with pytest.raises(BufferError):
            region.close()
        queue.close()
        region.close()
        assert_clean()

    def test_keeps_the_memory_of_a_region_whose_block_ends(self) -> None:
        with zeros() as words, words.queue() as queue:
            before = rm.counts()
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                with zeros() as region:
                    queue.wait(words, 0, 1)
                    queue.set(region, 0, 1)
                    job = queue.submit()
            assert [one.category for one in told] == [gdrpy.StillInUse]
            assert region.closed
            assert rm.counts() != before
            words.flag(0).set(1)
            job.wait(LONG)
            assert rm.counts() == before
        assert_clean()

    def test_outlives_the_registration_of_its_buffer(self) -> None:
        content = random.Random(8).randbytes(70_000)
        found = bytearray(len(content))
        with zeros() as region, region.queue() as queue:
            region.write(content, 64)
            before = rm.count("dma_mappings")
            with gdrpy.register(found):
                queue.wait(region, 0, 1)
                queue.readinto(found, region, 64)
                job = queue.submit()
            assert rm.count("dma_mappings") == before + 1
            with pytest.raises(BufferError):
                found.extend(b"more")
            with gdrpy.register(bytearray(8)):
                pass
            region.flag(0).set(1)
            job.wait(LONG)
            assert found == content
            found.extend(b"more")
            assert rm.count("dma_mappings") == before
        assert_clean()

    def test_stops_no_other_thread_while_its_buffer_is_unpinned(self) -> None:
        with zeros() as region, region.queue() as queue:
            buffer = bytearray(5000)
            with gdrpy.register(buffer):
                queue.readinto(buffer, region)
                job = queue.submit()
            rm.set_fault("STALL_UNMAP:1:30")
            threading.Timer(0.3, rm.pass_time, [31]).start()
            began = time.monotonic()
            job.wait(LONG)
            assert time.monotonic() - began < 20
        assert_clean()

    def test_that_is_dropped_with_all_it_uses_ends_first(self) -> None:
        cuda.driver()

        def drop() -> weakref.ref[CopyQueue]:
            region, found = zeros(), bytearray(5000)
            registration, queue = gdrpy.register(found), region.queue()
            queue.wait(region, 0, 1)
            queue.readinto(found, region)
            queue.submit()
            region.circle = (queue, registration, region)  # type: ignore[attr-defined]
            return weakref.ref(queue)

        gdrpy.alloc(MIB).write(b"x", via="engine")
        gc.collect()
        before = rm.counts()
        dropped = drop()
        gc.collect()
        assert dropped() is None
        assert rm.counts() == before
        assert_clean()

    def test_may_use_a_buffer_whose_finalizer_closes_the_queue_again(self) -> None:
        closed = []

        class Buffer(bytearray):
            def __del__(self) -> None:
                queue.close()
                closed.append(self)

        with zeros() as region:
            region.write(b"x", 64, via="engine")
            before = rm.counts()
            queue = region.queue()
            for value in (1, 2):
                buffer = Buffer(4096)
                with gdrpy.register(buffer):
                    queue.wait(region, 4, value)
                    queue.readinto(buffer, region, 64)
                    queue.set(region, 0, value)
                queue.submit()
            del buffer
            region.flag(4).set(1)  # the first job, not the second
            region.flag(0).wait(1, timeout=LONG)
            queue.close()
            assert len(closed) == 2
            assert rm.counts() == before
        assert_clean()

    def test_ends_with_the_interpreter(self) -> None:
        code = (
            "import gdrpy; region = gdrpy.alloc(4096); queue = region.queue();"
            "queue.wait(region, 0, 1); queue.submit()"
        )
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
        assert (run.returncode, run.stdout, run.stderr) == (0, b"", b"")

    def test_dies_with_its_process_and_leaves_others_the_memory(self) -> None:
        code = (
            "import sys, gdrpy; region = gdrpy.Region.from_fd(int(sys.argv[1]), gpu=False);"
            "queue = region.queue(); queue.wait(region, 0, 1); queue.set(region, 4, 1);"
            "job = queue.submit(); print(flush=True); job.wait()"
        )
        with zeros() as region:
            fd = region.export()
            child = subprocess.Popen(
                [sys.executable, "-c", code, str(fd)], pass_fds=[fd], stdout=subprocess.PIPE
            )
            with child:
                assert child.stdout is not None
                assert child.stdout.readline() == b"\n"
                child.send_signal(signal.SIGKILL)
                assert child.wait() == -signal.SIGKILL
            region.flag(0).set(1)
            with region.queue() as queue:
                queue.wait(region, 0, 1)
                queue.set(region, 8, 1)
                queue.submit().wait(LONG)
            assert (word(region, 4), word(region, 8)) == (0, 1)


class TestThreads:
    def test_that_wait_are_ended_by_close(self) -> None:
        told: list[BaseException] = []
        with zeros() as region:
            queue = region.queue()
            job = waiting(queue, region)
            began = [threading.Event() for _ in range(3)]

            def work(number: int) -> None:
                began[number].set()
                try:
                    job.wait()
                except BaseException as error:
                    told.append(error)

            threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
            for thread, event in zip(threads, began, strict=True):
                thread.start()
                event.wait()
            queue.close()
            for thread in threads:
                thread.join()
        assert [type(error) for error in told] == [gdrpy.Closed] * 3
        assert_clean()

    def test_that_wait_for_a_job_that_is_done_are_not_told_of_close(self) -> None:
        told: list[BaseException] = []
        for _ in range(10):
            with zeros() as region:
                queue = region.queue()
                job = waiting(queue, region)
                began = threading.Event()

                def work(job: CopyJob = job, began: threading.Event = began) -> None:
                    began.set()
                    try:
                        job.wait(LONG)
                    except BaseException as error:
                        told.append(error)

                thread = threading.Thread(target=work)
                thread.start()
                began.wait()
                region.flag(0).set(1)
                job.wait(LONG)
                queue.close()
                thread.join()
        assert told == []
        assert_clean()

    def test_may_share_a_queue(self) -> None:
        failures: list[BaseException] = []

        def work(number: int) -> None:
            try:
                for value in range(1, 101):
                    queue.set(region, 4 * number, value)
                    queue.submit(LONG).wait(LONG)
                    assert word(region, 4 * number) == value
            except BaseException as error:
                failures.append(error)

        with zeros() as region, region.queue() as queue:
            threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert failures == []
        assert_clean()

    def test_open_and_close_queues_beside_each_other(self) -> None:
        failures: list[BaseException] = []

        def work(number: int) -> None:
            try:
                for turn in range(10):
                    with region.queue() as queue:
                        queue.set(region, 4 * number, turn)
                        queue.submit().wait(LONG)
                        queue.wait(region, 400, 1)
                        queue.submit()
            except BaseException as error:
                failures.append(error)

        with zeros() as region:
            threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert [word(region, 4 * number) for number in range(4)] == [9] * 4
        assert failures == []
        assert_clean()

    def test_run_while_another_waits_and_a_signal_ends_the_wait(self) -> None:
        with zeros() as region, region.queue() as queue:
            job = waiting(queue, region)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            thread = threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGINT))

            def interrupted() -> None:
                thread.start()
                job.wait()

            with pytest.raises(KeyboardInterrupt):
                interrupted()
            thread.join()
            region.flag(0).set(1)
            job.wait(LONG)


class TestFault:
    def test_ends_the_queues_jobs_with_the_reason_and_nothing_else(self) -> None:
        with zeros() as region, region.queue() as queue, region.queue() as other:
            region.write(b"x", 100, via="engine")
            queue.set(region, 4, 1)
            done = queue.submit()
            done.wait(LONG)
            rm.set_fault("ENGINE:1:31")
            queue.set(region, 0, 1)
            lost = queue.submit()
            died = r"CopyJob.%s: the queue's channel died \(Xid 31, see dmesg\): close the queue"
            with pytest.raises(gdrpy.DriverError, match=died % "wait"):
                lost.wait(LONG)
            with pytest.raises(gdrpy.DriverError, match=died % "done"):
                _ = lost.done
            assert done.done
            other.set(region, 8, 1)
            other.submit().wait(LONG)
            assert region.read(1, 100, via="engine") == b"x"
            assert rm.count("clients") == 2  # the mappings' and the engine's
            queue.close()
            with region.queue() as again:
                again.set(region, 0, 1)
                again.submit().wait(LONG)
            assert word(region) == 1
        assert (rm.count("xids"), rm.violations()) == (1, [])

    def test_of_the_engines_own_channel_leaves_the_queue_what_it_has(self) -> None:
        found = bytearray(4)
        with zeros() as region, gdrpy.register(found):
            region.write(b"content", 100, via="engine")
            with region.queue() as queue:
                queue.set(region, 12, 1)
                queue.wait(region, 0, 1)
                queue.readinto(found, region, 100)
                job = queue.submit()
                queue.set(region, 4, 1)
                region.flag(12).wait(1, timeout=LONG)  # so that the fault is not the queue's
                rm.set_fault("ENGINE:1:31")
                assert region.read(7, 100, via="engine") == b"content"
                assert (rm.count("clients"), rm.count("channels")) == (3, 2)
                region.flag(0).set(1)
                job.wait(LONG)
                assert found == b"cont"
                with pytest.raises(gdrpy.BackendUnavailable, match="made anew: open another queue"):
                    queue.set(region, 8, 1)
                queue.submit().wait(LONG)
                assert word(region, 4) == 1
            assert rm.count("clients") == 2
            with region.queue() as queue:
                queue.set(region, 8, 1)
                queue.submit().wait(LONG)
            assert word(region, 8) == 1
        assert (rm.count("xids"), rm.violations()) == (1, [])

    @pytest.mark.parametrize(
        "call",
        [
            *("RM_ALLOC", "RM_CONTROL", "RM_ALLOC_MEMORY", "RM_MAP_MEMORY", "RM_MAP_MEMORY_DMA"),
            "mmap",
        ],
    )
    def test_at_any_step_of_opening_leaves_nothing(self, call: str) -> None:
        with zeros() as region:
            region.write(b"x", via="engine")
            before = rm.counts()
            for nth in range(1, 20):
                rm.set_fault(f"{call}:{nth}:{12 if call == 'mmap' else 0x51}")
                try:
                    queue = region.queue()
                    break
                except gdrpy.Error:
                    assert rm.counts() == before, nth
            rm.set_fault("")
            assert nth > 1
            queue.set(region, 0, 1)
            queue.submit().wait(LONG)
            queue.close()
            assert rm.counts() == before
        assert_clean()

    @pytest.mark.preloaded(GDRPY_SIM="1", FAKE_RM_NO_NODES="1")
    def test_of_a_driver_that_is_not_there_is_the_reason(self) -> None:
        with (
            gdrpy.alloc(MIB) as region,
            pytest.raises(gdrpy.BackendUnavailable, match="CopyQueue: .*/dev/nvidiactl is missing"),
        ):
            region.queue()


class TestFork:
    def test_leaves_the_child_nothing_of_the_queue(self) -> None:
        found = bytearray(4)
        with zeros() as region, gdrpy.register(found), region.queue() as queue:
            region.write(b"read", 100)
            queue.wait(region, 0, 1)
            queue.readinto(found, region, 100)
            job = queue.submit()
            child = os.fork()
            if not child:
                status = 1
                try:
                    for call in (
                        lambda: queue.set(region, 0, 1),
                        queue.submit,
                        job.wait,
                        lambda: job.done,
                    ):
                        with pytest.raises(gdrpy.Forked, match="make a queue in the child"):
                            call()
                    queue.close()
                    del queue, job
                    gc.collect()
                    status = 2 if rm.count("files") or rm.violations() else 0
                finally:
                    os._exit(status)
            assert os.waitpid(child, 0)[1] == 0
            assert not job.done
            region.flag(0).set(1)
            job.wait(LONG)
            assert found == b"read"
        assert_clean()
