"""The kernel that answers a flag, and pplat with it."""

from __future__ import annotations

import json
from itertools import product

import pytest

import gdrpy
from gdrpy import cuda
from gdrpy.cli import main
from gdrpy.cli.measure import pplat, records
from gdrpy.cli.measure.pingpong import FINISHED, OUT_OF_TIME, STOPPED, Ending, play, responder

pytestmark = pytest.mark.gpu

BY_KERNEL = "a kernel of one thread, resident on the GPU"


@pytest.fixture
def places(backend):
    """The CPU views of GPU memory and of pinned memory."""
    with gdrpy.alloc(4096) as region, gdrpy.page_locked(4096) as host:
        yield region.cpu, host


@pytest.fixture
def flags(places):
    return places[0].flag(0), places[1].flag(128)


def await_kernels() -> None:
    """Wait until nothing runs any more in the device's context."""
    with cuda.context(0):
        cuda.call("cuCtxSynchronize")


def free_memory() -> int:
    with cuda.context(0):
        return int(cuda.call("cuMemGetInfo")[0])


class TestKernel:
    @pytest.mark.parametrize("where", [*product((0, 1), repeat=2)])
    def test_answers_every_round_whatever_memory_the_flags_lie_in(self, places, where):
        ping, reply = (places[place].flag(at) for place, at in zip(where, (0, 128), strict=True))
        with responder(ping, reply, 1000) as answering:
            samples = play(ping, reply, 1000)
        assert answering.kind == BY_KERNEL
        assert answering.ending == Ending(FINISHED, 1000)
        assert len(samples) == 1000
        assert reply.get() == 1000

    def test_stops_at_the_end_of_the_block(self, flags):
        with responder(*flags, 1000) as answering:
            play(*flags, 3)
        assert answering.ending == Ending(STOPPED, 3)

    def test_stops_when_the_block_raises(self, flags):
        with pytest.raises(ZeroDivisionError), responder(*flags, 1000) as answering:
            raise ZeroDivisionError
        assert answering.ending == Ending(STOPPED, 0)

    def test_ends_by_itself_when_it_is_never_called(self, flags):
        with responder(*flags, 1000, seconds=0.05) as answering:
            await_kernels()
        assert answering.ending == Ending(OUT_OF_TIME, 0)

    def test_ends_by_itself_between_two_rounds(self, flags):
        with responder(*flags, 1000, seconds=0.05) as answering:
            play(*flags, 5)
            await_kernels()
        assert answering.ending == Ending(OUT_OF_TIME, 5)
        assert flags[1].get() == 5

    def test_leaves_no_gpu_memory_behind(self, flags):
        def run() -> int:
            with responder(*flags, 10):
                play(*flags, 10)
            return free_memory()

        first = run()  # what a context makes once
        assert [run() for _ in range(3)] == [first] * 3


class TestPplat:
    def test_measures_flags_and_records_with_kernels_in_several_runs(
        self, backend, capsys, monkeypatch
    ):
        monkeypatch.setattr(pplat, "_RECORDS_A_RUN", 1000)
        assert main(["pplat", "--count", "2500", "--json"]) == 0
        result = json.loads(capsys.readouterr().out)
        assert result["answered_by"] == BY_KERNEL
        assert result["header"]["simulated"] is False
        assert result["header"]["backend"] == backend
        assert [one["nanoseconds"]["count"] for one in result["results"]] == [2500] * 7
        assert all(one["verified"] for one in result["results"])

    @pytest.mark.parametrize("what", records.WAYS)
    def test_leaves_no_kernel_behind_when_it_is_broken_off(self, places, what):
        asked, wrong = places[0].flag(0), places[1].flag(0)
        with cuda.context(0), records.opened(what, asked, wrong, 0, None) as way:
            with pytest.raises(ZeroDivisionError), way.other_end(1000) as numbers:
                divmod(len(way.play(numbers[:3])), 0)
            await_kernels()


class TestCommandsThatMeasure:
    @pytest.mark.parametrize(
        "words",
        [
            ["copylat", "--sizes", "4,64,4K", "--seconds", "0.01"],
            ["apiperf", "--count", "5"],
        ],
        ids=["copylat", "apiperf"],
    )
    def test_find_the_right_data(self, backend, capsys, words):
        assert main([*words, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["header"]["backend"] == backend
