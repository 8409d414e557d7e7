"""What arrives when multiprocessing's pickler sends it, here to the process that it came from."""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Callable, Iterator
from multiprocessing import Pipe, SimpleQueue, resource_sharer, resource_tracker
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest

import gdrpy
from support import open_descriptors, settled_descriptors

REMEDY = (
    r"a Region or Pin cannot be copied or pickled: send it by multiprocessing, through a Queue, a "
    r"Pipe or a Process's arguments; or send a file descriptor, from Region.export\(\), and open "
    r"it there by Region.from_fd\(\); or use a region of a broker, which pickles"
)


@pytest.fixture(scope="module", autouse=True)
def tracker() -> None:
    """The process that a queue's lock starts from Python 3.14 on is kept: no leak of a test."""
    resource_tracker.ensure_running()


@pytest.fixture(autouse=True)
def sharer(contract: None) -> Iterator[None]:
    """The thread that hands out descriptors ends with the test, and what nobody took with it."""
    yield
    resource_sharer.stop()


@pytest.fixture
def fd(region: gdrpy.Region) -> Iterator[int]:
    """A descriptor of the region."""
    number = region.export()
    yield number
    os.close(number)


def through_pipe(thing: Any) -> Any:
    one, other = Pipe()
    with one, other:
        one.send(thing)
        return other.recv()


def through_queue(thing: Any) -> Any:
    queue = SimpleQueue()
    queue.put(thing)
    received = queue.get()
    queue.close()
    return received


def sent(thing: Any) -> Any:
    return ForkingPickler.loads(ForkingPickler.dumps(thing))


class TestSentRegion:
    @pytest.mark.parametrize("send", [through_pipe, through_queue, sent])
    def test_is_the_same_memory(self, region: gdrpy.Region, send: Callable[[Any], Any]) -> None:
        with send(region) as other:
            assert type(other) is gdrpy.Region
            region.write(b"hello")
            assert other.read(5) == b"hello"
            other.cpu.write(b"world", 4096)
            assert region.cpu.read(5, 4096) == b"world"

    @pytest.mark.parametrize(("gpu", "cpu"), [(True, True), (True, False), (False, True)])
    def test_has_the_views_that_it_had(self, fd: int, gpu: bool, cpu: bool) -> None:
        opened = gdrpy.Region.from_fd(fd, 5000, gpu=gpu, cpu=cpu)
        with opened, sent(opened) as other:
            assert (other._ptr is not None, other._cpu is not None) == (gpu, cpu)
            assert (other.nbytes, other.device) == (5000, 0 if gpu else None)

    def test_that_is_read_only_stays_so(self, fd: int) -> None:
        opened = gdrpy.Region.from_fd(fd, gpu=False, readonly=True)
        with opened, sent(opened) as other:
            assert other.cpu.readonly
            with pytest.raises(gdrpy.ReadOnly):
                other.write(b"no")

    def test_keeps_the_memory_when_the_first_is_closed(self, region: gdrpy.Region) -> None:
        region.write(b"hello")
        with sent(region) as other:
            region.close()
            assert other.read(5) == b"hello"

    def test_that_nobody_takes_is_held_until_the_sharer_stops(self, region: gdrpy.Region) -> None:
        before = len(open_descriptors())
        data = ForkingPickler.dumps(region)
        assert len(open_descriptors()) > before
        resource_sharer.stop()
        assert len(open_descriptors()) == before
        with pytest.raises(gdrpy.Gone, match="receiving a Region: the sender has"):
            ForkingPickler.loads(data)

    def test_is_taken_once(self, region: gdrpy.Region, capfd: pytest.CaptureFixture[str]) -> None:
        data = ForkingPickler.dumps(region)
        ForkingPickler.loads(data).close()
        with pytest.raises(gdrpy.Gone, match="another process has received it already"):
            ForkingPickler.loads(data)
        resource_sharer.stop()  # whose thread prints what it was refused for
        assert "KeyError" in capfd.readouterr().err

    def test_that_is_closed_is_refused(self, region: gdrpy.Region) -> None:
        region.close()
        with pytest.raises(gdrpy.Closed, match="sending a Region: the Region is closed"):
            ForkingPickler.dumps(region)

    def test_that_cannot_be_opened_leaves_nothing(self, region: gdrpy.Region, monkeypatch) -> None:
        before = settled_descriptors()
        monkeypatch.setattr(gdrpy.Region, "_of", None)
        with pytest.raises(TypeError):
            sent(region)
        assert settled_descriptors() == before


class TestSentTogether:
    def test_a_region_and_what_is_of_it_stay_together(self, region: gdrpy.Region) -> None:
        things = region, region.cpu, region.flag(8), region.array((2, 3), "F32", 16)
        other, cpu, flag, array = sent(things)
        assert other.cpu is cpu
        assert flag.mapping is cpu
        assert array.region is other
        assert (flag.offset, flag.width) == (8, 4)
        assert (array.dtype, array.shape, array.offset) == ("F32", (2, 3), 16)
        other.close()

    def test_mappings_of_a_dropped_region_share_a_descriptor(self, backend: str) -> None:
        region = gdrpy.alloc(1 << 20)
        one, two = region.map(0, 4096), region.map(4096, 4096)
        two.write(b"hello")
        del region
        ForkingPickler.dumps(one)
        before = len(open_descriptors())
        data = ForkingPickler.dumps([one, two])
        assert len(open_descriptors()) == before + 1
        first, second = ForkingPickler.loads(data)
        assert second.read(5) == b"hello"
        for mapping in (first, second, one, two):
            mapping.close()


class TestSentMapping:
    def test_is_of_the_same_range(self, region: gdrpy.Region) -> None:
        region.write(b"hello", 5003)
        with region.map(5003, 100, readonly=True) as mapping, sent(mapping) as other:
            assert type(other) is gdrpy.Mapping
            assert (other.nbytes, other.readonly, other.device) == (100, True, 0)
            assert other.ptr is not None
            assert other.read(5) == b"hello"

    @pytest.mark.parametrize("gpu", [False, True])
    def test_keeps_its_memory_when_the_region_is_dropped(self, fd: int, gpu: bool) -> None:
        region = gdrpy.Region.from_fd(fd, gpu=gpu)
        region.write(b"hello", 5003)
        mapping = region.map(5003, 100)
        del region
        with mapping, sent(mapping) as other:
            assert (other.nbytes, other.ptr is not None) == (100, gpu)
            mapping.close()
            assert other.read(5) == b"hello"

    def test_that_is_closed_is_refused(self, region: gdrpy.Region) -> None:
        mapping = region.map(0, 100)
        mapping.close()
        with pytest.raises(gdrpy.Closed):
            ForkingPickler.dumps(mapping)


class TestSentFlag:
    def test_is_the_same_word(self, region: gdrpy.Region) -> None:
        flag = region.flag(64, 8)
        other = sent(flag)
        flag.set(1 << 40)
        assert other.get() == 1 << 40
        assert other.ptr != 0


class TestSentHostMemory:
    def test_is_the_same_memory(self, backend: str) -> None:
        with gdrpy.alloc(5000, "cpu") as region, sent(region) as other:
            region.write(b"hello")
            assert other.read(5) == b"hello"
            assert (other.nbytes, other.location) == (5000, "host memory")

    def test_mapping_of_a_dropped_region_is_sent(self, backend: str) -> None:
        mapping = gdrpy.alloc(5000, "cpu").map(100, 100)
        with mapping, sent(mapping) as other:
            mapping.write(b"hello")
            assert other.read(5) == b"hello"


class TestSentPin:
    @pytest.mark.parametrize("part", [lambda pin: pin, lambda pin: pin.map()])
    def test_arrives_as_a_mapping_or_says_what_is_missing(
        self, region: gdrpy.Region, asking: dict[str, bool], part: Callable[[gdrpy.Pin], Any]
    ) -> None:
        region.write(b"hello")
        with gdrpy.open() as gdr, gdr.pin(region.ptr, 4096, **asking) as pin:
            thing = part(pin)
            if not shareable(pin):
                with pytest.raises(TypeError, match="multiprocessing cannot send this memory: "):
                    ForkingPickler.dumps(thing)
                return
            with sent(thing) as mapping:
                assert type(mapping) is gdrpy.Mapping
                assert (mapping.nbytes, mapping.ptr) == (4096, None)
                assert mapping.read(5) == b"hello"


class TestWhatIsNotSent:
    @pytest.mark.parametrize("copied", [pickle.dumps, copy.deepcopy])
    @pytest.mark.parametrize(
        "part",
        [
            lambda region, **_: region,
            lambda region, **_: region.cpu,
            lambda region, **_: region.map(64),
            lambda region, **_: region.flag(),
            lambda region, **_: region.array(3, "F32"),
            lambda region, **asking: gdrpy.open().pin(region.ptr, 4096, **asking),
        ],
    )
    def test_by_any_other_pickler_it_is_refused_with_the_remedy(
        self,
        region: gdrpy.Region,
        asking: dict[str, bool],
        copied: Callable[[Any], Any],
        part: Callable[..., Any],
    ) -> None:
        with pytest.raises(TypeError, match=REMEDY):
            copied(part(region, **asking))

    @pytest.mark.parametrize("send", [ForkingPickler.dumps, pickle.dumps])
    def test_page_locked_memory_is_of_its_process(
        self, backend: str, send: Callable[[Any], Any]
    ) -> None:
        with gdrpy.page_locked(4096) as mapping:
            for thing in (mapping, mapping.flag()):
                with pytest.raises(
                    TypeError, match=r"gdrpy.page_locked\(\) .*gdrpy.alloc\(nbytes, dev"
                ):
                    send(thing)


def shareable(pin: gdrpy.Pin) -> bool:
    try:
        os.close(pin.export())
    except gdrpy.BackendUnavailable:
        return False
    return True
