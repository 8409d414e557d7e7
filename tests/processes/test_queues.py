"""What goes to a process of multiprocessing and back through its queues."""

from __future__ import annotations

import errno
import os
from multiprocessing.reduction import ForkingPickler
from typing import Any

import children
import pytest

import gdrpy
from gdrpy.memory import sending
from support import gpu_mappings, settled_descriptors


class TestRegionThroughAQueue:
    def test_is_the_same_memory_with_the_same_views(self, worker: Any) -> None:
        with gdrpy.alloc(5000) as region:
            region.write(b"hello")
            expected = ("Region", 5000, True, region.location, (False, b"hello"))
            assert worker.ask(children.views, region) == expected

    def test_without_gpu_view_has_none_there(self, worker: Any) -> None:
        with gdrpy.alloc(5000, gpu=False) as region:
            region.write(b"hello")
            assert worker.ask(children.views, region)[2:] == (
                False,
                "simulated GPU 0",
                (False, b"hello"),
            )

    def test_of_the_host_is_of_the_host_there(self, worker: Any) -> None:
        with gdrpy.alloc(5000, "cpu") as region:
            region.write(b"hello")
            expected = ("Region", 5000, False, "host memory", (False, b"hello"))
            assert worker.ask(children.views, region) == expected

    @pytest.mark.parametrize("device", [0, "cpu"])
    def test_made_there_comes_back_and_outlives_what_made_it(
        self, worker: Any, device: int | str
    ) -> None:
        with worker.ask(children.make, b"hello", device) as region:
            assert region.read(5) == b"hello"

    def test_that_is_read_only_refuses_writes_there(self, worker: Any) -> None:
        with gdrpy.alloc(4096, gpu=False) as region:
            fd = region.export()
            with gdrpy.Region.from_fd(fd, gpu=False, readonly=True) as readonly:
                error = worker.ask(children.write, readonly, b"no")
            os.close(fd)
        assert type(error) is gdrpy.ReadOnly

    def test_goes_on_from_process_to_process(self, worker: Any) -> None:
        with gdrpy.alloc(4096) as region:
            region.write(b"hello")
            with worker.ask(children.identity, region) as again:
                assert worker.ask(children.views, again)[4] == (False, b"hello")


class TestPartsThroughAQueue:
    def test_mapping_is_of_the_same_range(self, worker: Any) -> None:
        with gdrpy.alloc(8192) as region, region.map(5003, 100) as mapping:
            mapping.write(b"hello")
            assert worker.ask(children.greet, mapping) == ("Mapping", 100, True, b"hello")
            assert mapping.read(5) == b"world"

    def test_array_is_of_the_same_elements(self, worker: Any) -> None:
        with gdrpy.alloc(4096) as region:
            array = region.array((2, 3), "F32", 64)
            assert worker.ask(children.fill, array) == ("F32", (2, 3), 64)
            assert array.read().tolist() == [[7.0] * 3] * 2

    def test_flags_signal_both_ways(self, worker: Any) -> None:
        with gdrpy.alloc(4096) as region:
            asked, answered = region.flag(0), region.flag(64, 8)
            worker.tell(children.answer, asked, answered)
            asked.set(5)
            assert answered.wait(6, timeout=20) == 6
            assert worker.answer() is None

    def test_what_is_of_one_region_is_of_one_there(self, worker: Any) -> None:
        with gdrpy.alloc(4096) as region:
            things = region, region.cpu, region.array(3, "U8"), region.array(3, "F32")
            assert worker.ask(children.same, *things) == [True, True, True]


class TestDescriptors:
    def test_are_as_many_as_before_on_both_sides(self, worker: Any) -> None:
        def here() -> tuple[int, int]:
            return settled_descriptors(), gpu_mappings()

        def round_trips() -> None:
            with gdrpy.alloc(4096) as region, gdrpy.alloc(4096, "cpu") as host:
                things = region, region.map(100, 100), region.flag(), host, host.map()
                for received in worker.ask(children.several, *things):
                    getattr(received, "close", int)()

        round_trips()
        before = here(), worker.ask(children.descriptors)
        for _ in range(5):
            round_trips()
        assert (here(), worker.ask(children.descriptors)) == before

    def test_that_are_used_up_are_told_of_with_a_remedy(self, monkeypatch: Any) -> None:
        def refuse(fd: int) -> None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        monkeypatch.setattr(sending, "DupFd", refuse)
        with gdrpy.alloc(4096) as region, pytest.raises(OSError, match="sending memory: .*ulimit"):
            ForkingPickler.dumps(region)


class TestClosedBeforeItWasTaken:
    def test_region_lives_on_with_the_receiver(self, worker: Any) -> None:
        receiver, sender = worker.context.Pipe(duplex=False)
        with receiver, sender:
            with gdrpy.alloc(4096) as region:
                region.write(b"hello")
                sender.send(region)
            with receiver.recv() as other:
                assert other.read(5) == b"hello"
