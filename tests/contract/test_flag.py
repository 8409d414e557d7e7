from __future__ import annotations

import os
import signal
import threading

import pytest

import gdrpy
from gdrpy import cuda


@pytest.fixture(params=[4, 8])
def width(request) -> int:
    return request.param


@pytest.fixture(params=["GPU memory", "page-locked host memory"])
def flag(request, region: gdrpy.Region, width):
    memory = region.cpu if request.param == "GPU memory" else gdrpy.page_locked(4096)
    flag = memory.flag(64, width)
    flag.set(0)
    yield flag
    memory.close()


@pytest.fixture
def stream(contract: None, driver):
    stream = cuda.call("cuStreamCreate", driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
    yield stream
    cuda.call("cuStreamDestroy", stream)


@pytest.fixture
def finish(stream):
    """Wait for the stream: what it works on must not be given back before."""
    return lambda: cuda.call("cuStreamSynchronize", stream)


class TestOnTheCpu:
    def test_set_is_seen_by_get_and_by_the_gpu(self, flag, gpu_read):
        flag.set(5)
        assert flag.get() == 5
        assert gpu_read(flag.ptr, flag.width) == (5).to_bytes(flag.width, "little")

    def test_wait_returns_the_value_that_met_it(self, flag):
        flag.set(7)
        assert flag.wait(5) == 7
        assert flag.wait(7, op="==") == 7
        assert flag.wait(4, op="&") == 7
        assert flag.wait(0xF, op="nor") == 7

    def test_wait_takes_a_wrapped_counter_for_later(self, flag):
        flag.set(1)
        assert flag.wait((1 << 8 * flag.width) - 3) == 1

    def test_wait_ends_when_another_thread_sets_it(self, flag):
        thread = threading.Thread(target=flag.set, args=(3,))
        thread.start()
        assert flag.wait(3, timeout=60) == 3
        thread.join()

    @pytest.mark.parametrize(("value", "op"), [(1, ">="), (1, "=="), (1, "&")])
    def test_wait_gives_up_at_its_deadline(self, flag, value, op):
        with pytest.raises(gdrpy.Timeout, match=f"is 0, and not {op} 1 in time") as caught:
            flag.wait(value, timeout=0, op=op)
        assert isinstance(caught.value, TimeoutError)

    def test_wait_for_a_bit_unset_in_both_gives_up_when_all_are_set(self, flag):
        everything = (1 << 8 * flag.width) - 1
        with pytest.raises(gdrpy.Timeout):
            flag.wait(everything, timeout=0, op="nor")

    def test_wait_answers_a_signal(self, flag):
        class Interrupted(Exception):
            pass

        def interrupt(number: int, frame: object) -> None:
            raise Interrupted

        def wait_with_alarm() -> None:
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            flag.wait(1)

        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            with pytest.raises(Interrupted):
                wait_with_alarm()
        finally:
            signal.signal(signal.SIGALRM, before)

    @pytest.mark.parametrize("value", [-1, 1 << 64])
    def test_value_that_does_not_fit_is_refused(self, flag, value):
        for call in (flag.set, flag.wait):
            with pytest.raises(ValueError, match="does not fit"):
                call(value)

    def test_wrong_wait_is_refused(self, flag):
        with pytest.raises(ValueError, match="op must be"):
            flag.wait(1, op="<")
        with pytest.raises(ValueError, match="timeout must be"):
            flag.wait(1, timeout=-1)
        with pytest.raises(TypeError):
            flag.wait("1")


class TestOnAStream:
    def test_work_starts_when_the_cpu_sets_it(self, region, stream, finish):
        go, done = region.flag(0), region.flag(64)
        go.set(0)
        done.set(0)
        go.stream_wait(stream, 1)
        done.stream_write(stream, 2)
        assert done.get() == 0
        go.set(1)
        assert done.wait(2, timeout=60) == 2
        finish()

    def test_64_bit_words_are_waited_for_whole(self, region, stream, finish):
        go, done = region.flag(0, 8), region.flag(64, 8)
        go.set(0)
        done.set(0)
        go.stream_wait(stream, 1 << 40, op="==")
        done.stream_write(stream, 1 << 50)
        go.set(1 << 40)
        assert done.wait(1 << 50, timeout=60, op="==") == 1 << 50
        finish()

    def test_value_that_does_not_fit_is_refused(self, flag, stream):
        for call in (flag.stream_wait, flag.stream_write):
            with pytest.raises(ValueError, match="does not fit"):
                call(stream, 1 << 64)
        with pytest.raises(ValueError, match="op must be"):
            flag.stream_wait(stream, 1, op="<")

    def test_without_the_gpu_view_is_refused(self, region):
        fd = region.export()
        other = gdrpy.Region.from_fd(fd, gpu=False)
        os.close(fd)
        with other, pytest.raises(gdrpy.MissingView, match="gpu=True"):
            other.flag().stream_wait(None, 1)


class TestPlace:
    @pytest.mark.parametrize(
        ("offset", "width", "error"),
        [
            (1, 4, "not aligned"),
            (4, 8, "not aligned"),
            (0, 2, "width must be 4 or 8"),
            (1 << 20, 4, "lies outside"),
            (-4, 4, "must be 0 or more"),
        ],
    )
    def test_that_is_no_word_of_the_mapping_is_refused(self, region, offset, width, error):
        with pytest.raises(ValueError, match=error):
            region.flag(offset, width)
