"""Blocks that take and free GPU memory one by one, and sleep at their addresses."""

from __future__ import annotations

import random
import threading

import pytest
from test_arena import Library, on_two_gpus

import gdrpy
from gdrpy import cuda
from gdrpy.arena.blocks import _abandoned
from gdrpy.memory import reclaim
from support import free_nbytes

MIB = 1 << 20
UNIT = 2 * MIB

pytestmark = pytest.mark.usefixtures("nothing_leaks")


@pytest.fixture
def heap():
    with gdrpy.Heap() as heap:
        yield heap
        heap.wake()
        for block in heap._blocks():
            heap.free(block.start)


def write(block: int, content: bytes) -> None:
    with cuda.context(0):
        cuda.call("cuMemcpyHtoD", block, content, len(content))


def read(block: int, nbytes: int) -> bytes:
    found = bytearray(nbytes)
    with cuda.context(0):
        cuda.call("cuMemcpyDtoH", found, block, nbytes)
    return bytes(found)


def fill(heap: gdrpy.Heap, sizes: list[int]) -> dict[int, bytes]:
    """Blocks with random bytes."""
    made = {heap.allocate(size): random.Random(size).randbytes(size) for size in sizes}
    for block, content in made.items():
        write(block, content)
    return made


def contents(made: dict[int, bytes]) -> dict[int, bytes]:
    return {block: read(block, len(content)) for block, content in made.items()}


class TestBlocks:
    def test_take_memory_and_free_it_one_by_one(self, heap):
        free = free_nbytes()
        first, second = heap.allocate(1), heap.allocate(UNIT + 1)
        assert (second - first, heap.used, heap.blocks) == (UNIT, 3 * UNIT, 2)
        assert free_nbytes() == free - 3 * UNIT
        heap.free(first)
        assert free_nbytes() == free - 2 * UNIT
        heap.free(second)
        assert (free_nbytes(), heap.used) == (free, 0)

    def test_that_find_no_memory_are_refused(self, heap):
        block = heap.allocate(UNIT)
        free = free_nbytes()
        message = r"Heap\.allocate: GPU 0 has no .* left: this heap has 2 MiB in 1 block$"
        with pytest.raises(gdrpy.OutOfMemory, match=message):
            heap.allocate(free + UNIT)
        assert (free_nbytes(), heap.blocks) == (free, 1)
        heap.free(block)

    def test_take_dropped_memory_that_the_gpu_is_done_with(self, heap, monkeypatch):
        asked = []

        def none_yet(device: int, wait: bool = False) -> bool:
            asked.append((device, wait))
            return False

        monkeypatch.setattr(reclaim, "reclaim", none_yet)
        with pytest.raises(gdrpy.OutOfMemory):
            heap.allocate(free_nbytes() + UNIT)
        assert asked == [(0, True)]

    def test_are_refused_if_the_heap_falls_asleep_just_before(self, heap, monkeypatch):
        sleeps = heap._is_asleep

        def late() -> bool:
            monkeypatch.setattr(heap, "_is_asleep", sleeps)
            heap.sleep()
            return False

        monkeypatch.setattr(heap, "_is_asleep", late)
        with pytest.raises(gdrpy.Detached, match=r"Heap\.allocate: the heap sleeps: wake\(\) it"):
            heap.allocate(1)

    def test_are_made_if_the_heap_wakes_just_after_it_was_asked(self, heap, monkeypatch):
        heap.sleep()
        without_room = heap._without_room

        def late(call: str, size: int) -> int:
            heap.wake()
            return without_room(call, size)

        monkeypatch.setattr(heap, "_without_room", late)
        monkeypatch.setattr(heap, "_is_asleep", lambda: False)
        heap.free(heap.allocate(1))

    def test_that_are_none_are_not_freed(self, heap):
        block = heap.allocate(1)
        with pytest.raises(ValueError, match=r"Heap\.free: no block of this heap begins at"):
            heap.free(block + 512)

    def test_are_shared_with_c_code(self, heap):
        library = Library(heap)
        block = library.allocate(4096, 0, None)
        write(block, b"from C")
        assert (read(block, 6), heap.used) == (b"from C", UNIT)
        assert library.allocate(1, 1, None) is None
        library.free(block, 4096, 0, None)
        assert heap.blocks == 0

    def test_lie_on_their_device(self):
        code = (
            "import gdrpy\n"
            "from gdrpy import cuda\n"
            "with gdrpy.Heap('cuda:1') as heap:\n"
            "    block = heap.allocate(1)\n"
            "    kinds = cuda.driver().CUpointer_attribute\n"
            "    kind = kinds.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL\n"
            "    print(cuda.call('cuPointerGetAttribute', kind, block), heap)\n"
            "    heap.free(block)\n"
        )
        done = on_two_gpus(code)
        told = "1 <Heap on GPU 1, 2097152 used in 1 block>\n"
        assert (done.stdout, done.returncode) == (told, 0)


class TestSleep:
    def test_gives_the_memory_back_and_keeps_the_addresses(self, heap):
        free = free_nbytes()
        made = fill(heap, [1000, 2 * UNIT, 5])
        heap.sleep()
        assert (heap.sleeping, free_nbytes()) == (True, free)
        heap.wake()
        assert (heap.sleeping, free_nbytes()) == (False, free - 4 * UNIT)
        assert contents(made) == made

    def test_twice_is_sleep_and_so_is_wake(self, heap):
        made = fill(heap, [1000])
        heap.wake()
        for _ in range(2):
            heap.sleep()
        for _ in range(2):
            heap.wake()
        assert contents(made) == made

    def test_of_what_is_unchanged_needs_no_new_copy(self, heap):
        made = fill(heap, [1000])
        heap.sleep(unchanged=True)  # makes the first copy
        heap.wake()
        write(next(iter(made)), b"breaks the promise")
        heap.sleep(unchanged=True)
        heap.wake()
        assert contents(made) == made

    def test_copies_again_if_there_are_new_blocks(self, heap):
        made = fill(heap, [1000])
        heap.sleep()
        heap.wake()
        made |= fill(heap, [2 * UNIT])
        heap.sleep(unchanged=True)
        heap.wake()
        assert contents(made) == made

    def test_that_keeps_nothing_frees_its_host_memory(self, heap):
        made = fill(heap, [1000])
        heap.sleep()
        assert heap._host is not None
        heap.wake()
        heap.sleep(keep=None)
        assert heap._host is None
        heap.wake()
        for block, content in made.items():
            write(block, content)
        heap.sleep(unchanged=True)  # has no copy that could serve
        heap.wake()
        assert contents(made) == made

    def test_lets_blocks_be_freed_and_makes_none(self, heap):
        made = fill(heap, [1000, 2000])
        heap.sleep()
        heap.free(next(iter(made)))
        with pytest.raises(gdrpy.Detached, match=r"Heap.allocate: the heap sleeps: wake\(\) it"):
            heap.allocate(1)
        assert Library(heap).allocate(1, 0, None) is None
        heap.wake()
        made.pop(next(iter(made)))
        assert contents(made) == made

    def test_waits_for_the_gpu(self, heap):
        with cuda.context(0):
            stream = cuda.call("cuStreamCreate", 1)
            block = heap.allocate(8 * UNIT)
            cuda.call("cuMemsetD8Async", block, 7, 8 * UNIT, stream)
            heap.sleep()
            heap.wake()
            assert read(block, 8 * UNIT) == b"\x07" * (8 * UNIT)
            cuda.call("cuStreamDestroy", stream)

    def test_is_refused_while_cuda_cannot_tell_what_the_gpu_does(self, heap, monkeypatch):
        made = fill(heap, [1000])
        with monkeypatch.context() as patch:
            patch.setattr(reclaim, "wait", lambda devices: False)
            with pytest.raises(BufferError, match=r"Heap\.sleep: .*sleep after that"):
                heap.sleep()
        assert (heap.sleeping, contents(made)) == (False, made)

    def test_without_host_memory_leaves_it_awake(self, heap, monkeypatch):
        made = fill(heap, [1000])

        def refuse(*_: object) -> None:
            raise gdrpy.OutOfMemory("the host has no more memory")

        with monkeypatch.context() as patch:
            patch.setattr("gdrpy.arena.blocks.page_locked", refuse)
            with pytest.raises(gdrpy.OutOfMemory, match="the host"):
                heap.sleep()
        assert (heap.sleeping, contents(made)) == (False, made)

    def test_after_one_that_failed_has_no_copy_that_could_serve(self, heap, monkeypatch):
        made = fill(heap, [1000])
        heap.sleep()
        heap.wake()
        more = heap.allocate(UNIT)

        def refuse(*_: object) -> None:
            raise gdrpy.OutOfMemory("the host has no more memory")

        with monkeypatch.context() as patch:
            patch.setattr("gdrpy.arena.blocks.page_locked", refuse)
            with pytest.raises(gdrpy.OutOfMemory, match="the host"):
                heap.sleep()
        heap.free(more)
        heap.sleep(unchanged=True)
        heap.wake()
        assert contents(made) == made

    @pytest.mark.parametrize("keep", ["host", None])
    def test_that_is_interrupted_when_it_is_done_wakes(self, heap, monkeypatch, keep):
        made = fill(heap, [1000])

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(heap, "_require", interrupt)
            with pytest.raises(KeyboardInterrupt):
                heap.sleep()
        assert heap.sleeping
        heap.sleep(keep=keep)  # it sleeps already
        heap.wake()
        assert (heap.sleeping, contents(made)) == (False, made)

    def test_keeps_the_block_that_another_thread_makes_meanwhile(self, heap, monkeypatch):
        made = {}
        make_host = heap._make_host

        def late(nbytes: int) -> None:
            if not made:
                made.update(fill(heap, [1000]))
            make_host(nbytes)

        monkeypatch.setattr(heap, "_make_host", late)
        heap.sleep()
        heap.wake()
        assert contents(made) == made

    def test_that_finds_no_memory_to_wake_sleeps_on_and_loses_nothing(self, heap):
        made = fill(heap, [UNIT, 4 * UNIT])
        heap.sleep()
        with gdrpy.alloc(free_nbytes() - 4 * UNIT, cpu=False):
            free = free_nbytes()
            with pytest.raises(gdrpy.OutOfMemory, match=r"Heap\.wake: the GPU is out of memory"):
                heap.wake()
            assert (heap.sleeping, free_nbytes()) == (True, free)
        heap.wake()
        assert contents(made) == made

    @pytest.mark.parametrize("keep", ["disk", "", 1])
    def test_keeps_on_the_host_or_nowhere(self, heap, keep):
        with pytest.raises(ValueError, match=r'Heap\.sleep: keep must be "host" or None, not'):
            heap.sleep(keep)

    def test_may_run_beside_threads_that_make_blocks(self, heap):
        made, done, lost = fill(heap, [1000]), threading.Event(), []
        library = Library(heap)

        def churn() -> None:
            while not done.is_set():
                block = library.allocate(1, 0, None)
                if block:
                    library.free(block, 1, 0, None)

        threads = [threading.Thread(target=churn) for _ in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(50):
            heap.sleep()
            heap.wake()
            if contents(made) != made:
                lost.append(contents(made))
        done.set()
        for thread in threads:
            thread.join()
        assert (lost, heap.blocks) == ([], 1)


class TestKept:
    def test_is_the_copy_of_a_part_of_a_block_while_it_sleeps(self, heap):
        made = fill(heap, [1000, 3 * UNIT])
        block, content = list(made.items())[1]
        assert heap.kept(block + 5, 100) is None
        heap.sleep()
        assert heap.kept(block + 5, 100) == content[5:105]
        heap.wake()
        heap.sleep(keep=None)
        assert heap.kept(block + 5, 100) is None

    def test_of_other_memory_is_refused(self, heap):
        block = heap.allocate(1)
        with pytest.raises(ValueError, match=r"Heap\.kept: no block of this heap has the 2 bytes"):
            heap.kept(block + UNIT - 1, 2)

    def test_may_be_asked_of_addresses_that_the_heap_contains(self, heap):
        block = heap.allocate(1)
        addresses = [block - UNIT, block - 1, block, block + heap.nbytes - 1, block + heap.nbytes]
        assert [heap.contains(one) for one in addresses] == [False, False, True, True, False]


class TestClosing:
    def test_is_refused_while_there_are_blocks(self, heap):
        heap.allocate(1)
        with pytest.raises(BufferError, match=r"Heap\.close: 1 block with 2097152 bytes"):
            heap.close()

    def test_frees_its_addresses_when_the_last_block_is_gone(self):
        with pytest.warns(gdrpy.StillInUse), gdrpy.Heap() as heap:
            block, library = heap.allocate(1), Library(heap)
        write(block, b"still there")
        assert len(_abandoned) == 1
        library.free(block, 1, 0, None)
        gdrpy.Heap().close()
        assert _abandoned == []

    def test_leaves_nothing(self):
        free = free_nbytes()
        for _ in range(100):  # more than there are slots
            heap = gdrpy.Heap()
            heap.free(heap.allocate(1))
            heap.close()
            heap.close()
        assert (free_nbytes(), repr(heap)) == (free, "<Heap CLOSED>")

    def test_makes_it_unusable(self):
        heap = gdrpy.Heap()
        heap.close()
        for call in (lambda: heap.allocate(1), heap.sleep, heap.wake, lambda: heap.kept(0, 1)):
            with pytest.raises(gdrpy.Closed):
                call()


def test_it_tells_what_it_has(heap):
    heap.allocate(1)
    assert repr(heap) == "<Heap on GPU 0, 2097152 used in 1 block>"


def test_of_a_device_that_is_none_is_refused():
    with pytest.raises(gdrpy.NotFound, match="Heap: there is no CUDA device 9"):
        gdrpy.Heap(9)
