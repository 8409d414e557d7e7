"""Nobody is ever left with memory that somebody else gave back."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gdrpy
from gdrpy import cuda
from gdrpy._core import calls
from gdrpy.memory import gpu
from support import Watched

MIB = 1 << 20


def at_once(*works) -> list[BaseException]:
    """Run each in a thread of its own, started together; what they raised."""
    barrier = threading.Barrier(len(works))
    raised: list[BaseException] = []

    def run(work) -> None:
        barrier.wait()
        try:
            work()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


class TestGarbageCycle:
    def test_with_a_view_keeps_the_memory_until_the_view_is_gone(self, backend):
        seen = []

        class Holder:
            def __del__(self):
                seen.append(bytes(self.view[:5]))

        holder = Holder()
        region = gdrpy.alloc(4096)
        region.write(b"alive")
        holder.me, holder.view, holder.region = holder, memoryview(region.cpu), region
        del holder, region
        gc.collect()
        assert seen == [b"alive"]

    def test_with_a_view_of_a_further_mapping_is_collected(self, backend):
        class Holder:
            def __del__(self):
                assert self.view[0] == 7

        with gdrpy.alloc(4096) as region:
            region.write(b"\x07")
            holder = Holder()
            holder.me, holder.mapping = holder, region.map()
            holder.view = memoryview(holder.mapping)
            holder.mapping.holder = holder
            del holder
            gc.collect()

    def test_with_a_view_that_is_saved_leaves_it_usable(self, backend):
        saved = []

        class Holder:
            def __del__(self):
                saved.append(self.view)

        holder = Holder()
        region = gdrpy.alloc(4096)
        region.write(b"saved")
        holder.me, holder.view, holder.region = holder, memoryview(region.cpu), region
        del holder, region
        gc.collect()
        assert bytes(saved[0][:5]) == b"saved"
        saved.clear()
        gc.collect()

    def test_of_regions_and_pins_is_collected_in_the_right_order(self, backend, asking):
        class Node:
            pass

        for _ in range(20):
            node = Node()
            node.me, node.region = node, gdrpy.alloc(4096)
            node.pin = gdrpy.open().pin(node.region, **asking)
            node.maps = [node.pin.map(), node.region.map(100)]
        del node
        gc.collect()


class TestThreads:
    def test_closing_one_region_close_it_once(self, backend):
        for _ in range(50):
            region = gdrpy.alloc(4096)
            assert at_once(region.close, region.close, region.close) == []
            assert region.closed

    def test_mapping_while_another_closes_get_a_mapping_or_closed(self, backend):
        for _ in range(50):
            region = gdrpy.alloc(4096)
            raised = at_once(region.close, region.map, region.map)
            assert {type(error) for error in raised} <= {gdrpy.Closed}
            region.close()

    def test_viewing_while_another_closes_leave_it_open_or_closed(self, backend):
        for _ in range(50):
            region = gdrpy.alloc(4096)
            views = []
            raised = at_once(region.close, lambda one=region, to=views: to.append(one.numpy()))
            assert {type(error) for error in raised} <= {gdrpy.Closed, BufferError}
            while views:
                views.pop()[0] = 1
            region.close()

    @pytest.mark.parametrize("copy", ["write", "readinto"])
    def test_copying_through_the_mapping_hold_it_open(self, backend, copy):
        with gdrpy.alloc(32 * MIB) as region:
            mapping = region.map()
            data = bytearray(8 * MIB if copy == "write" else 256 << 10)

            def work() -> None:
                for _ in range(20):
                    getattr(mapping, copy)(data)

            copying = threading.Thread(target=lambda: at_once(work))
            copying.start()
            while not mapping.closed:
                try:
                    mapping.close()
                except BufferError:
                    continue
            copying.join()


class TestMappingThatEndsInAnotherThread:
    """By its last reference, so that the region does not know of it any more."""

    @pytest.fixture
    def steps(self, backend, monkeypatch) -> SimpleNamespace:
        """The calls that give memory back, as they were made, and the ends of mappings.

        ``ending`` is called in each of those first.
        """
        seen = SimpleNamespace(names=[], ending=lambda: None)

        def call(name: str, function: Any, *args: Any) -> Any:
            if name == "core_memory_unmap":
                seen.ending()
            answer = function(*args)
            seen.names.append(name)
            return answer

        driver = cuda.driver
        ends = "|".join(self.ENDS)
        for module in (gpu, calls):
            monkeypatch.setattr(module, "lib", Watched(module.lib, ends, call))
        monkeypatch.setattr(cuda, "driver", lambda: Watched(driver(), ends, call))
        return seen

    ENDS = "core_memory_unmap", "core_release_from", "cuMemUnmap", "cuMemRelease"

    def test_ends_before_the_memory_of_a_region_that_is_closed_meanwhile(self, steps):
        ending, closed = threading.Event(), threading.Event()

        def wait() -> None:
            ending.set()
            closed.wait()

        region = gdrpy.alloc(4096, cpu=False)
        steps.ending = wait
        # Made there too: without a GIL an object ends in the thread that made it.
        dropping = threading.Thread(target=region.map)
        dropping.start()
        ending.wait()
        region.close()
        assert region.closed
        ends = list(steps.names)
        closed.set()
        dropping.join()
        assert ends == []
        assert tuple(steps.names) == self.ENDS

    def test_ends_before_the_memory_by_chance_too(self, steps):
        for _ in range(100):
            region = gdrpy.alloc(4096)
            mappings = [[region.map()] for _ in range(3)]
            steps.names.clear()
            assert at_once(region.close, *(one.clear for one in mappings)) == []
            assert steps.names == ["core_memory_unmap"] * 4 + list(self.ENDS[1:])


class TestCopyByDma:
    @pytest.mark.parametrize("copy", ["write", "readinto"])
    def test_holds_the_region_open(self, backend, copy):
        data = bytearray(64 * MIB)
        told = None
        while told is None:  # a copy takes milliseconds: it may be over before this thread looks
            with gdrpy.alloc(64 * MIB) as region:
                copying = threading.Thread(target=partial(getattr(region, copy), data, via="dma"))
                copying.start()
                while not region._running and copying.is_alive():
                    pass
                try:
                    region.close()
                except BufferError as error:
                    told = str(error)
                copying.join()
                assert (region._running, region.closed) == (0, told is None)
        assert told.startswith("Region.close: views or running copies still use the memory (1 ")


class TestFailingClose:
    def test_never_hides_the_exception_of_a_with_block(self, backend, monkeypatch):
        def fail() -> None:
            raise OSError("it failed")

        region = gdrpy.alloc(100)
        with monkeypatch.context() as patch:
            patch.setattr(region, "_release", fail)
            with pytest.raises(RuntimeError, match="the body") as caught, region:
                raise RuntimeError("the body")
        assert caught.value.__notes__ == ["closing: OSError: it failed"]
        assert not region.closed
        region.close()

    def test_of_a_gdr_with_a_busy_pin_closes_no_pin(self, backend, asking):
        with gdrpy.alloc(4096) as region:
            gdr = gdrpy.open()
            idle, busy = gdr.pin(region, **asking), gdr.pin(region, **asking)
            mapping = busy.map()
            view = memoryview(mapping)
            with pytest.raises(BufferError, match=r"Pin\.close: .* \(1 of "):
                gdr.close()
            assert (idle.closed, busy.closed, gdr.closed) == (False, False, False)
            view.release()
            gdr.close()


class TestFlagOfAClosedRegion:
    def test_reaches_nobody_elses_memory(self, backend):
        region = gdrpy.alloc(4096)
        flag = region.flag()
        region.close()
        for use in (
            lambda: flag.ptr,
            lambda: flag.stream_write(None, 1),
            lambda: flag.stream_wait(None, 1),
        ):
            with pytest.raises(gdrpy.Closed):
                use()
        assert repr(flag) == "<Flag of 4 bytes at offset 0 CLOSED>"

    def test_that_was_never_made_is_refused(self, backend):
        class Unmade(gdrpy.Flag):
            def __init__(self) -> None:
                pass

        for use in (lambda: Unmade().get(), lambda: Unmade().set(1), lambda: Unmade().wait(1)):
            with pytest.raises(TypeError, match="never initialized"):
                use()

    def test_is_made_once(self, region):
        flag = region.flag()
        with pytest.raises(TypeError, match="initialized once"):
            flag.__init__(region.cpu)
        with pytest.raises(TypeError, match="initialized once"):
            region.cpu.__init__(1, 1, 1, False, lambda: None, "", None, None)


class TestCopyOfAnObject:
    @pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
    @pytest.mark.parametrize("part", [lambda one: one, lambda one: one.cpu])
    def test_is_refused_with_the_way_to_share(self, region, copied, part):
        with pytest.raises(TypeError, match=r"cannot be copied or pickled: .*Region\.from_fd"):
            copied(part(region))


class TestRegionWithoutCpuView:
    def test_maps_the_parts_that_are_asked_for(self, backend):
        with gdrpy.alloc(4 * MIB, cpu=False) as region:
            with region.map(3 * MIB, 100) as part:
                part.write(b"a part")
            assert region.read(6, 3 * MIB) == b"a part"

    def test_reads_only_into_what_may_be_written(self, backend):
        with gdrpy.alloc(4096, cpu=False) as region:
            locked = np.zeros(100, np.uint8)
            locked.flags.writeable = False
            for target in (bytes(100), locked):
                with pytest.raises((BufferError, ValueError)):
                    region.readinto(target)

    def test_takes_scalars_and_arrays_for_their_bytes(self, backend):
        with gdrpy.alloc(4096, cpu=False) as region:
            region.write(np.float32(3))
            assert region.read(4) == np.float32(3).tobytes()
            found = np.array(0, np.float32)
            assert region.readinto(found) == 4
            assert found == 3
            with pytest.raises((ValueError, BufferError), match="contiguous"):
                region.write(np.zeros((4, 4), order="F")[:, :2])


class TestSizeOfNumpy:
    def test_is_an_int_like_any_other(self, backend):
        with gdrpy.alloc(np.int64(4096)) as region:
            region.write(b"x", np.int32(7))
            assert region.read(np.int8(1), np.int16(7)) == b"x"
            assert region.numpy(np.uint8, np.int64(5)).shape == (5,)

    def test_cannot_wrap_around(self, region):
        large = np.int32(2**31 - 1)
        with pytest.raises(ValueError, match=r"Region\.map: offset 2147483647 lies outside"):
            region.map(large, large)


class TestWrongType:
    @pytest.mark.parametrize(
        ("call", "error"),
        [
            (lambda one: gdrpy.alloc(4096, "0"), "alloc: device must be .* address .*, not '0'"),
            (lambda one: gdrpy.alloc(4096, 0.0), "alloc: device must be .*, not 0.0"),
            (lambda one: one.map("a"), "Region.map: offset must be an int, not 'a'"),
            (lambda one: one.map(0, 1.5), "Region.map: nbytes must be an int, not 1.5"),
            (lambda one: one.read("a"), "Region.read: nbytes must be an int, not 'a'"),
            (lambda one: one.write(5), "bytes-like"),
            (lambda one: one.flag("a"), "Flag: offset must be an int, not 'a'"),
            (lambda one: one.flag().wait(5, "a"), "timeout must be seconds"),
            (lambda one: one.flag().stream_write(None, None), "value must be an int"),
            (lambda one: one.flag().stream_write("x", 1), "'x' is not a CUDA stream"),
            (lambda one: one.flag().stream_wait(1.5, 1), "1.5 is not a CUDA stream"),
            (lambda one: one.numpy("S"), "its elements have no size"),
            (lambda one: one.numpy(shape=2.5), "Region.numpy: shape must be an int"),
            (lambda one: gdrpy.Region.from_fd("a"), "Region.from_fd: fd must be an int"),
            (lambda one: gdrpy.Region.from_fd(1 << 40), "not open"),
            (lambda one: gdrpy.rounded_size(1.5), "rounded_size: nbytes must be an int"),
            (lambda one: gdrpy.rounded_size(-5), "rounded_size: nbytes must be 1 or more"),
            (lambda one: gdrpy.open().pin(one.ptr, 1.5), "Gdr.pin: nbytes must be an int"),
        ],
    )
    def test_is_refused_by_name(self, region, call, error):
        with pytest.raises((TypeError, ValueError), match=error):
            call(region)


class TestArgumentThatClosesTheMapping:
    @pytest.mark.parametrize(
        "call",
        [
            lambda one, word: one.store(0, word),
            lambda one, word: one.store(word, 1),
            lambda one, word: one.flag().set(word),
            lambda one, word: one.flag().wait(word, timeout=0),
        ],
    )
    def test_ends_the_call(self, backend, call):
        class Word:
            def __index__(self):
                mapping.close()
                return 0

        region = gdrpy.alloc(4096)
        mapping = region.map()
        with region, pytest.raises(gdrpy.Closed, match="the mapping is closed"):
            call(mapping, Word())


class TestRegionClosedByAnotherThread:
    """Just when the first copy has found all that it needs."""

    @pytest.mark.parametrize(
        "copy",
        [
            lambda one: one.write(bytes(8192)),
            lambda one: one.read(8192),
            lambda one: one.write_strided(np.zeros((2, 64), np.uint8), 128),
            lambda one: one.readinto(bytearray(1), via="dma"),
        ],
    )
    def test_refuses_the_copy(self, backend, monkeypatch, copy):
        prepare = gdrpy.Region._prepare

        def prepare_and_close(region: gdrpy.Region, call: str, writing: bool) -> None:
            prepare(region, call, writing)
            closing = threading.Thread(target=region.close)
            closing.start()
            closing.join()

        monkeypatch.setattr(gdrpy.Region, "_prepare", prepare_and_close)
        with gdrpy.alloc(16384) as region, pytest.raises(gdrpy.Closed, match="Region is closed"):
            copy(region)
