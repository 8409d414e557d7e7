"""The end of a ``with`` block whose views are still in use."""

from __future__ import annotations

import gc
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import gdrpy
from gdrpy import cuda
from support import free_nbytes, gpu_mappings

MIB = 1 << 20

#: Views of a region, and how the warning counts them.
VIEWS: dict[str, tuple[Callable[[gdrpy.Region], Any], str]] = {
    "numpy": (lambda one: one.numpy(), "1 of the CPU view"),
    "memoryview": (lambda one: memoryview(one), "1 of the CPU view"),
    "dlpack-of-the-mapping": (lambda one: one.cpu.__dlpack__(), "1 of the CPU view"),
    "dlpack": (lambda one: one.__dlpack__(), "1 of the GPU view"),
}


@pytest.fixture(params=VIEWS)
def view(request: pytest.FixtureRequest) -> tuple[Callable[[gdrpy.Region], Any], str]:
    return VIEWS[request.param]


@contextmanager
def told_once(match: str) -> Iterator[None]:
    """The block gives one warning, for the line that the caller's ``with`` is on."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        yield
        gc.collect()
    assert [one.category for one in told] == [gdrpy.StillInUse]
    assert re.search(match, str(told[0].message))
    assert told[0].filename == __file__


def free() -> int:
    """The free GPU memory in bytes, once the GPU is done with what was dropped."""
    gdrpy.alloc(4).close()
    return free_nbytes()


class TestViewThatOutlivesABlock:
    def test_keeps_the_memory_until_it_is_gone(self, backend, view):
        make, _ = view
        before = free(), gpu_mappings()
        with told_once("released with its last user"), gdrpy.alloc(32 * MIB) as region:
            kept = make(region)
        assert free() == before[0] - 32 * MIB
        del kept
        assert (free(), gpu_mappings()) == before

    def test_is_told_of_with_the_region_and_its_kind(self, backend, view):
        make, kind = view
        with (
            told_once(
                rf"^<Region of 4096 bytes on .*{backend}> was in use when its with block ended: .*"
                rf"Region\.close: .* \({kind}, such as .*\); delete"
            ),
            gdrpy.alloc(4096) as region,
        ):
            kept = make(region)
        del kept

    def test_shows_and_changes_the_same_bytes(self, backend):
        with told_once(r"still use the memory \(1 of "), gdrpy.alloc(4096) as region:
            fd = region.export()
            array = region.numpy()
        array[:3] = 7, 8, 9
        with gdrpy.Region.from_fd(fd, gpu=False) as other:
            assert other.read(3) == bytes((7, 8, 9))
            other.write(b"abc")
            assert bytes(array[:3]) == b"abc"
        os.close(fd)

    def test_is_the_last_use_of_the_region(self, backend):
        with told_once(r"still use the memory \(1 of "), gdrpy.alloc(4096) as region:
            array, flag, part = region.array(4, "F32"), region.flag(), region.map(0, 64)
            mapping, view = region.cpu, region.numpy()
        assert region.closed
        assert mapping.closed
        assert part.closed
        for use in (
            lambda: region.write(b"x"),
            lambda: region.read(1),
            lambda: region.map(),
            lambda: region.ptr,
            lambda: region.cpu,
            lambda: region.export(),
            lambda: array.numpy(),
            lambda: np.from_dlpack(array),
            lambda: flag.get(),
            lambda: mapping.write(b"x"),
            lambda: mapping.flush(),
            lambda: mapping.address,
            lambda: memoryview(mapping),
            lambda: part.load(0),
        ):
            with pytest.raises(gdrpy.Closed):
                use()
        region.close()
        mapping.close()
        assert repr(region) == "<Region CLOSED>"
        view[0] = 1

    def test_of_a_further_mapping_leaves_the_others_to_be_unmapped_at_once(self, backend):
        before = gpu_mappings()
        with told_once(r"still use the memory \(1 of "), gdrpy.alloc(4096, cpu=False) as region:
            first = region.map(0, 64)
            with_one = gpu_mappings()
            others = [region.map(0, 64) for _ in range(2)]
            view = memoryview(first)
        assert [other.closed for other in others] == [True, True]
        assert gpu_mappings() == with_one > before
        view.release()
        assert gpu_mappings() == before

    def test_is_told_of_once_by_blocks_inside_one_another(self, backend, asking):
        before = gpu_mappings()
        with gdrpy.alloc(4096) as region:
            with (
                told_once("^<Mapping of 4096 bytes"),
                gdrpy.open() as gdr,
                gdr.pin(region, **asking) as pin,
                pin.map() as mapping,
            ):
                view = memoryview(mapping)
            assert (gdr.closed, pin.closed, mapping.closed) == (True, True, True)
            view[0] = 5
            assert region.read(1) == b"\5"
            view.release()
        assert gpu_mappings() == before

    def test_of_a_mapping_with_a_block_keeps_close_of_its_region_from_closing(self, region):
        with told_once("^<Mapping of 64 bytes"), region.map(0, 64) as part:
            view = memoryview(part)
        with pytest.raises(BufferError, match=r"Region\.close: .* \(1 of "):
            region.close()
        view.release()

    def test_is_counted_beside_others(self, backend):
        with (
            told_once(r"still use the memory \(3 of the CPU view, .*, 1 of the GPU view, "),
            gdrpy.alloc(4096) as region,
        ):
            views = [region.numpy(), region.numpy(), memoryview(region.map()), region.__dlpack__()]
        views.pop()
        assert [bytes(one[:1]) for one in views] == [views[0][:1].tobytes()] * 3

    def test_ends_a_block_of_page_locked_memory(self, contract):
        with told_once("^<Mapping of 4096 bytes"), gdrpy.page_locked(4096) as memory:
            array = memory.numpy("uint32")
        array[:] = 3
        assert memory.closed
        assert array.sum() == 3 * 1024

    def test_ends_a_block_of_host_memory(self, contract):
        before = gpu_mappings()
        with told_once("<Region of 4096 bytes on host"), gdrpy.alloc(4096, "cpu") as region:
            array = region.numpy()
        array[:] = 3
        assert gpu_mappings() == before + 1
        del array
        assert gpu_mappings() == before

    @pytest.mark.any_pointer
    def test_ends_a_block_of_an_array_of_a_tensor(self, backend, driver, asking):
        pointer = cuda.call("cuMemAlloc", 4096)
        tensor = type("Tensor", (), {"__cuda_array_interface__": None})()
        tensor.__cuda_array_interface__ = {
            "data": (int(pointer), False),
            "shape": (4096,),
            "typestr": "|u1",
            "version": 3,
        }
        if asking:  # the array's pin asks for nothing
            with pytest.raises(gdrpy.BackendUnavailable, match="makes revocable pins only"):
                gdrpy.from_tensor(tensor)
            cuda.call("cuMemFree", pointer)
            return
        with gdrpy.pin(int(pointer), 4096) as pinned, told_once("<Pin of 4096 bytes"):
            with gdrpy.from_tensor(tensor) as array:
                view = array.numpy()
            assert array.closed
            view[:2] = 1, 2
            assert pinned.read(2) == b"\1\2"
            del view
        cuda.call("cuMemFree", pointer)


class TestBlockThatRaises:
    def test_keeps_its_exception_and_tells_by_a_note(self, backend):
        region = gdrpy.alloc(100)
        view = region.numpy()
        with pytest.raises(RuntimeError, match="the body") as caught, region:
            raise RuntimeError("the body")
        (note,) = caught.value.__notes__
        assert re.search(r"^<Region of 100 bytes .* was in use .* Region\.close: .* \(1 of ", note)
        assert region.closed
        view[0] = 1

    def test_keeps_it_where_warnings_are_errors(self, backend):
        region = gdrpy.alloc(4096)
        with memoryview(region), warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(ZeroDivisionError), region:
                raise ZeroDivisionError


class TestWarningAsAnError:
    def test_is_raised_by_the_block_when_the_region_is_closed(self, backend):
        before = gpu_mappings()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with (
                pytest.raises(gdrpy.StillInUse, match="<Region of 4096 bytes"),
                gdrpy.alloc(4096) as region,
            ):
                view = memoryview(region)
        assert region.closed
        view.release()
        assert gpu_mappings() == before


class TestThreads:
    def test_that_drop_views_release_the_memory_once(self, backend):
        before = gpu_mappings()
        for _ in range(30):
            barrier = threading.Barrier(5)
            views: list[list[memoryview]] = []

            def drop(mine: list[memoryview], barrier: threading.Barrier = barrier) -> None:
                barrier.wait()
                mine.clear()

            with warnings.catch_warnings():
                warnings.simplefilter("ignore", gdrpy.StillInUse)
                with gdrpy.alloc(4096) as region:
                    views = [[memoryview(region.cpu)] for _ in range(4)]
                    threads = [threading.Thread(target=drop, args=(one,)) for one in views]
                    for one in threads:
                        one.start()
                    barrier.wait()
            for one in threads:
                one.join()
            assert region.closed
            assert gpu_mappings() == before

    def test_that_use_the_region_get_closed(self, backend):
        """No call of theirs touches memory that is gone, and none holds the block up."""
        for _ in range(20):
            errors: list[BaseException] = []
            begun = threading.Barrier(4)

            def use(region: gdrpy.Region, begun: Any = begun, errors: Any = errors) -> None:
                mapping, part = region.cpu, region.map(64)
                begun.wait()
                try:
                    while True:
                        mapping.write(b"x" * 64)
                        part.write(bytes(256 << 10))
                        region.write(b"y" * 64, 128)
                        region.readinto(bytearray(16 << 10))
                except BaseException as error:
                    errors.append(error)

            with warnings.catch_warnings():
                warnings.simplefilter("ignore", gdrpy.StillInUse)
                with gdrpy.alloc(MIB) as region:
                    threads = [threading.Thread(target=use, args=(region,)) for _ in range(3)]
                    for one in threads:
                        one.start()
                    begun.wait()
                    view = region.numpy()
            view[:] = 1
            for one in threads:
                one.join()
            assert {type(one) for one in errors} == {gdrpy.Closed}
            del view

    def test_that_wait_for_a_flag_get_closed(self, backend):
        ended: list[type[BaseException]] = []

        def wait(flag: gdrpy.Flag) -> None:
            try:
                flag.wait(1)
            except BaseException as error:
                ended.append(type(error))

        with told_once(r"still use the memory \(1 of "), gdrpy.alloc(4096) as region:
            region.flag().set(0)
            waiting = threading.Thread(target=wait, args=(region.flag(),))
            waiting.start()
            while not region.cpu._users:
                pass
        waiting.join()
        assert ended == [gdrpy.Closed]

    @pytest.mark.parametrize("copy", ["write", "readinto"])
    def test_that_copy_by_dma_copy_everything(self, backend, copy):
        found = None
        while found is None:  # a copy takes milliseconds: it may be over before this thread looks
            data = bytearray(b"\7") * (64 * MIB)
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                with gdrpy.alloc(64 * MIB) as region:
                    region.fill(9)
                    fd = region.export()
                    copying = threading.Thread(
                        target=getattr(region, copy), args=(data,), kwargs={"via": "dma"}
                    )
                    copying.start()
                    while not region._running and copying.is_alive():
                        pass
            copying.join()
            with gdrpy.Region.from_fd(fd, gpu=False) as other:
                if told:
                    found = other.read() if copy == "write" else bytes(data)
            os.close(fd)
        assert region.closed
        assert "(1 by DMA)" in str(told[0].message)
        assert found == (b"\7" if copy == "write" else b"\t") * (64 * MIB)


class TestGarbageCycle:
    def test_of_a_view_and_its_closed_region_is_collected(self, backend):
        class Holder:
            pass

        before = free(), gpu_mappings()
        with told_once(r"\(1 of the CPU view, .*, 1 of the GPU view, "):
            holder = Holder()
            with gdrpy.alloc(32 * MIB) as holder.region:
                holder.me, holder.view = holder, memoryview(holder.region.cpu)
                holder.capsule = holder.region.__dlpack__()
        del holder
        gc.collect()
        assert (free(), gpu_mappings()) == before

    def test_with_a_view_that_is_saved_leaves_it_usable(self, backend):
        saved = []

        class Holder:
            def __del__(self):
                saved.append(self.view)

        with told_once(r"still use the memory \(1 of "):
            holder = Holder()
            with gdrpy.alloc(4096) as holder.region:
                holder.region.write(b"saved")
                holder.me, holder.view = holder, memoryview(holder.region.cpu)
            del holder
        assert bytes(saved[0][:5]) == b"saved"
        saved.clear()
