"""What every way between an array library and gdrpy is held to: see ways.py.

The modules that run them say by ``pytest_generate_tests`` which ways there are.
"""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import gdrpy
from gdrpy import cuda
from libraries import Library
from ways import COPY, COUNTED, CPU, GPU, HELD, HOST, KEPT, UNHELD, Refused, Way

OFFSET, NBYTES = 4096, 64


def of(select: Callable[[Way], bool]) -> Callable[[Any], Any]:
    """The test is of the ways that are so selected."""

    def mark(test: Any) -> Any:
        test.select = select
        return test

    return mark


def is_taken(way: Way) -> bool:
    return not isinstance(way.memory, Refused)


def is_refused(way: Way) -> bool:
    return not is_taken(way)


def is_shared(way: Way) -> bool:
    return is_taken(way) and way.memory != COPY


def is_mutable(way: Way) -> bool:
    return is_shared(way) and way.taker.mutable


def is_counted(way: Way) -> bool:
    return is_shared(way) and way.lifetime == COUNTED


def is_held(way: Way) -> bool:
    return is_shared(way) and way.lifetime != UNHELD


def has_streams(way: Way) -> bool:
    return way.memory == GPU and way.taker.streams


def parametrize(
    metafunc: pytest.Metafunc, ways: list[Way], sources: dict[str, type[Library]]
) -> None:
    """Run a test once for each way that it is of, or each library that arrays come from."""
    if "way" in metafunc.fixturenames:
        chosen = [way for way in ways if metafunc.function.select(way)]
        metafunc.parametrize("way", chosen, ids=str)
    if "source" in metafunc.fixturenames:
        chosen = [name for name, kind in sources.items() if metafunc.function.select(kind)]
        metafunc.parametrize("source", [sources[name] for name in chosen], ids=names_of(chosen))


def names_of(sources: list[str]) -> list[str]:
    return [f"array<-{name}" for name in sources]


@pytest.fixture
def library(request: pytest.FixtureRequest) -> Library:
    """The library of a way, or that arrays come from. Skips where it is not installed."""
    names = request.fixturenames
    kind = request.getfixturevalue("way").taker if "way" in names else None
    kind = kind or request.getfixturevalue("source")
    pytest.importorskip(kind.module_name)
    return kind()


@pytest.fixture
def region() -> Iterator[gdrpy.Region]:
    with gdrpy.alloc(1 << 20) as region:
        region.fill(1)
        yield region
        gc.collect()


def show(way: Way, region: gdrpy.Region) -> Any:
    if way.shown == "mapping":
        return region.map(OFFSET, NBYTES, readonly=region.cpu.readonly)
    return region.array(NBYTES, "U8", OFFSET)


def take(way: Way, library: Library, region: gdrpy.Region) -> Any:
    return way.take(library.module, show(way, region))


def address(way: Way, shown: Any) -> int:
    """Where an array that shares the memory begins."""
    if way.shown == "mapping":
        return shown.address
    if way.memory == GPU or (way.memory == HOST and cuda.simulated()):
        return shown.ptr
    assert way.memory in (CPU, HOST)
    return shown.region.cpu.address + OFFSET


def settle(region: gdrpy.Region) -> None:
    """All that either side has written is in memory."""
    region.cpu.flush()
    with cuda.context(0):
        cuda.call("cuCtxSynchronize")


def settle_after(warming: object, region: gdrpy.Region) -> None:
    """What a library loads when it is first used is there: to load it may wait for all work."""
    del warming
    settle(region)


class Memory:
    """Whose memory it is."""

    @of(is_shared)
    def test_is_where_gdrpy_has_it(self, way, library, region):
        shown = show(way, region)
        assert library.address(way.take(library.module, shown)) == address(way, shown)

    @of(is_shared)
    def test_shows_the_library_what_gdrpy_writes(self, way, library, region):
        array = take(way, library, region)
        region.write(b"\x07" * NBYTES, OFFSET)
        assert library.read(array) == b"\x07" * NBYTES

    @of(is_mutable)
    def test_shows_gdrpy_what_the_library_writes(self, way, library, region):
        array = take(way, library, region)
        library.fill(array, 9)
        settle(region)
        assert region.read(NBYTES, OFFSET) == b"\x09" * NBYTES
        assert region.read(1, OFFSET - 1) + region.read(1, OFFSET + NBYTES) == b"\x01\x01"

    @of(lambda way: way.memory == COPY)
    def test_is_the_librarys_own_where_it_copies(self, way, library, region):
        array = take(way, library, region)
        region.fill(2)
        assert library.read(array) == b"\x01" * NBYTES

    @of(is_refused)
    def test_is_refused_with_a_reason(self, way, library, region):
        with pytest.raises(way.memory.error, match=way.memory.match):
            take(way, library, region)


class Lifetime:
    """Who keeps it."""

    @of(is_counted)
    def test_of_the_library_keeps_the_region_open(self, way, library, region):
        array = take(way, library, region)
        with pytest.raises(BufferError, match=r"Region\.close: .* still uses? the memory"):
            region.close()
        assert library.read(array) == b"\x01" * NBYTES

    @of(is_counted)
    def test_of_the_library_may_end_in_another_thread(self, way, library, region):
        held = [take(way, library, region)]

        def let_go() -> None:
            held.clear()
            gc.collect()

        thread = threading.Thread(target=let_go)
        thread.start()
        thread.join()
        region.close()

    @of(is_held)
    def test_of_the_library_may_be_longer_than_the_regions(self, way, library):
        region = gdrpy.alloc(1 << 20)
        region.fill(3)
        array = take(way, library, region)
        gone = weakref.ref(region)
        del region
        gc.collect()
        assert (gone() is None) == is_counted(way)
        assert library.read(array) == b"\x03" * NBYTES


class Uncounted:
    """Arrays whose protocol has no way to tell that they are alive."""

    @of(lambda way: way.lifetime == HELD)
    def test_of_the_library_does_not_keep_the_region_open(self, way, library, region):
        array = take(way, library, region)
        region.close()
        del array

    @of(lambda way: way.lifetime == UNHELD)
    def test_of_the_library_may_not_be_longer_than_the_regions(self, way, library, region):
        shown = show(way, region)
        array = way.take(library.module, shown)
        gone = weakref.ref(shown)
        del shown
        gc.collect()
        assert gone() is None
        del array


@pytest.fixture
def readonly_region(way, region) -> Iterator[gdrpy.Region]:
    """The same bytes, to be read only by whichever view the way takes."""
    fd = region.export()
    gpu = way.memory == GPU
    with gdrpy.Region.from_fd(fd, region.nbytes, gpu=gpu, readonly=True) as reader:
        os.close(fd)
        yield reader
        gc.collect()


class ReadOnly:
    """What becomes of memory that is to be read only."""

    @of(lambda way: is_taken(way) and not isinstance(way.readonly, Refused))
    def test_is_taken(self, way, library, readonly_region):
        array = take(way, library, readonly_region)
        assert library.read(array) == b"\x01" * NBYTES
        if way.readonly == KEPT:
            assert not array.flags.writeable

    @of(lambda way: isinstance(way.readonly, Refused) and is_taken(way))
    def test_is_refused_with_a_reason(self, way, library, readonly_region):
        with pytest.raises(way.readonly.error, match=way.readonly.match):
            take(way, library, readonly_region)


class Source:
    """Arrays of a library that are written into one of gdrpy's."""

    @of(lambda kind: True)
    def test_arrives_whole_and_is_let_go(self, source, library, region):
        theirs = library.make(bytes(range(NBYTES)))
        target = region.array(NBYTES, "U8", OFFSET)
        target.write(theirs)
        assert region.read(NBYTES, OFFSET) == bytes(range(NBYTES))
        assert library.read(theirs) == bytes(range(NBYTES))
        gone = weakref.ref(theirs)
        del theirs
        gc.collect()
        assert gone() is None


class Stream:
    """The order of work on a stream of the library's and of what gdrpy does."""

    @of(has_streams)
    def test_of_the_library_waits_for_gdrpys_flag(self, way, library, region):
        bell = region.flag()
        bell.set(0)
        stream = library.stream()
        array = take(way, library, region)
        with library.on(stream):
            settle_after(library.clone(array), region)
            bell.stream_wait(stream, 1)
            seen = library.clone(array)
        region.write(b"\x07" * NBYTES, OFFSET)
        bell.set(1)
        settle(region)
        assert library.read(seen) == b"\x07" * NBYTES

    @of(has_streams)
    def test_may_be_any_that_the_array_is_taken_on(self, way, library, region):
        with library.on(library.stream()):
            array = take(way, library, region)
            library.fill(array, 5)
            settle(region)
        assert region.read(NBYTES, OFFSET) == b"\x05" * NBYTES

    @of(lambda kind: kind.streams)
    def test_of_a_source_is_waited_for(self, source, library, region, monkeypatch):
        """Its array is written by work that a flag holds up, which is set when gdrpy waits."""
        bell = region.flag()
        bell.set(0)
        call = cuda.call

        def ring(name: str, *args: object) -> object:
            if name == "cuStreamSynchronize":
                bell.set(1)
            return call(name, *args)

        stream = library.stream()
        target = region.array(NBYTES, "U8", OFFSET)
        with library.on(stream):
            theirs = library.make(bytes(NBYTES))
            settle_after(library.fill(theirs, 8), region)
            bell.stream_wait(stream, 1)
            library.fill(theirs, 9)
            monkeypatch.setattr(cuda, "call", ring)
            try:
                target.write(theirs)
            finally:
                bell.set(1)
        assert region.read(NBYTES, OFFSET) == b"\x09" * NBYTES
