"""Who answers a flag: the thread of the simulated GPU, and the launch of the kernel."""

from __future__ import annotations

import ctypes
import re
import threading
from itertools import product

import pytest

import gdrpy
from gdrpy import cuda
from gdrpy.cli.measure import pingpong
from gdrpy.cli.measure.pingpong import FINISHED, OUT_OF_TIME, STOPPED, Ending, play, responder


@pytest.fixture
def region():
    with gdrpy.alloc(4096) as region:
        yield region


@pytest.fixture
def host():
    with gdrpy.page_locked(4096) as host:
        yield host


@pytest.fixture
def flags(region, host):
    return region.flag(0), host.flag(128)


class TestResponder:
    @pytest.mark.parametrize("places", [*product((0, 1), repeat=2)])
    def test_answers_every_round_whatever_memory_the_flags_lie_in(self, region, host, places):
        mappings = region.cpu, host
        ping, reply = (mappings[place].flag(at) for place, at in zip(places, (0, 128), strict=True))
        with responder(ping, reply, 50) as answering:
            samples = play(ping, reply, 50)
        assert answering.ending == Ending(FINISHED, 50)
        assert len(samples) == 50
        assert min(samples) > 0
        assert reply.get() == 50

    def test_begins_at_0_whatever_was_there(self, flags):
        for flag in flags:
            flag.set(12345)
        with responder(*flags, 5) as answering:
            play(*flags, 5)
        assert answering.ending == Ending(FINISHED, 5)

    def test_stops_at_the_end_of_the_block(self, flags):
        with responder(*flags, 1000) as answering:
            play(*flags, 3)
        assert answering.ending == Ending(STOPPED, 3)

    def test_stops_when_the_block_raises(self, flags):
        before = threading.active_count()
        with pytest.raises(ZeroDivisionError), responder(*flags, 1000) as answering:
            raise ZeroDivisionError
        assert answering.ending == Ending(STOPPED, 0)
        assert threading.active_count() == before

    def test_ends_when_its_time_is_over(self, flags):
        with responder(*flags, 1000, seconds=1.0) as answering:
            play(*flags, 3)
            answering.finish()
        assert answering.ending == Ending(OUT_OF_TIME, 3)

    @pytest.mark.parametrize("rounds", [0, -1, 0x7FFF_FFFF])
    def test_refuses_rounds_that_cannot_be_counted(self, flags, rounds):
        said = f"a responder answers 1 to 2147483646 rounds, not {rounds}"
        with pytest.raises(ValueError, match=re.escape(said)), responder(*flags, rounds):
            pass

    @pytest.mark.parametrize("seconds", [0, -1.0, 20.5, float("nan")])
    def test_refuses_to_run_for_longer_than_20_seconds(self, flags, seconds):
        said = f"a responder runs for up to 20 seconds, not {seconds:g}"
        with (
            pytest.raises(ValueError, match=re.escape(said)),
            responder(*flags, 1, seconds=seconds),
        ):
            pass

    def test_refuses_flags_of_8_bytes(self, region, flags):
        said = "a responder's flags must be 4 bytes wide"
        with pytest.raises(ValueError, match=said), responder(region.flag(0, 8), flags[1], 1):
            pass


class FakeDriver:
    """Stands in for the calls of the driver that the simulated one does not have."""

    def __init__(self, monkeypatch, fails: str | None = None) -> None:
        self.calls: list[tuple[str, tuple]] = []
        self._fails = fails
        self._really = cuda.call
        monkeypatch.setattr(cuda, "simulated", lambda: False)
        monkeypatch.setattr(cuda, "call", self._call)

    def _call(self, name, *args):
        if not re.match("cuModule|cuLaunch|cuMemcpyDtoH", name):
            return self._really(name, *args)
        self.calls.append((name, args))
        if name == self._fails:
            raise gdrpy.CudaError(name, "CUDA_ERROR_INVALID_VALUE", "invalid argument")
        if name == "cuMemcpyDtoH":
            args[0][:] = 1, 5
        return {"cuModuleLoadData": 1, "cuModuleGetFunction": 2, "cuModuleGetGlobal": (3, 8)}.get(
            name
        )

    def args_of(self, name):
        (found,) = [args for called, args in self.calls if called == name]
        return found


class TestKernel:
    def test_is_launched_as_one_thread_with_the_flags_addresses(self, monkeypatch, flags):
        driver = FakeDriver(monkeypatch)
        with responder(*flags, 5, seconds=2.5) as answering:
            pass
        function, *shape, stream, (values, types), extra = driver.args_of("cuLaunchKernel")
        assert (function, shape, extra) == (2, [1, 1, 1, 1, 1, 1, 0], 0)
        assert int(stream) != 0
        assert values == (flags[0].ptr, flags[1].ptr, 5, 0x7FFF_FFFF, 2_500_000_000)
        assert [ctypes.sizeof(kind) for kind in types] == [8, 8, 4, 4, 8]
        assert answering.ending == Ending(FINISHED, 5)
        assert driver.calls[-1] == ("cuModuleUnload", (1,))

    def test_takes_the_parameters_that_are_given(self, monkeypatch, flags):
        text = pingpong._PTX.read_text()
        declared = re.findall(r"\.param \.([ub]\d+) (\w+)", text)
        assert declared == [
            ("u64", "ping"),
            ("u64", "reply"),
            ("u32", "rounds"),
            ("u32", "stop"),
            ("u64", "nanoseconds"),
        ]

    def test_is_given_to_the_driver_as_text_that_ends_with_a_zero(self, monkeypatch, flags):
        driver = FakeDriver(monkeypatch)
        with responder(*flags, 5):
            pass
        (image,) = driver.args_of("cuModuleLoadData")
        assert image.endswith(b"}\n\0")
        assert image.isascii()

    @pytest.mark.parametrize("fails", ["cuModuleGetFunction", "cuLaunchKernel"])
    def test_that_cannot_be_launched_leaves_no_module(self, monkeypatch, flags, fails):
        driver = FakeDriver(monkeypatch, fails)
        with pytest.raises(gdrpy.CudaError, match=fails), responder(*flags, 5):
            pass
        assert driver.calls[-1] == ("cuModuleUnload", (1,))
