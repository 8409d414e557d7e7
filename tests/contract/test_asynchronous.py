"""read_async(), readinto_async() and write_async(): copies beside an event loop."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import subprocess
import sys
import threading
from collections.abc import Coroutine, Iterator
from queue import SimpleQueue
from typing import Any
from weakref import ref

import numpy as np
import pytest

import gdrpy
from gdrpy import cuda

MIB = 1 << 20
SIZES = (0, 1, 4096, 4097, 65536, 65537, MIB + 3)


class Gate:
    """Takes the place of a region's call: copies wait in their threads until it is opened."""

    def __init__(self, region: gdrpy.Region, name: str) -> None:
        self.begun: SimpleQueue[Any] = SimpleQueue()
        self.most = 0
        self._opened = threading.Event()
        self._running: list[Any] = []
        self._call = getattr(region, name)
        setattr(region, name, self)

    def __call__(self, *args: Any) -> Any:
        self._running.append(args)
        self.most = max(self.most, len(self._running))
        self.begun.put(args)
        self._opened.wait()
        self._running.pop()
        return self._call(*args)

    def open(self) -> None:
        self._opened.set()

    async def waits(self, copies: int = 1) -> None:
        """Go on when so many more copies wait here; the event loop turns meanwhile."""
        for _ in range(copies):
            while self.begun.empty():
                await asyncio.sleep(0)
            self.begun.get()


async def turns(loops: int = 5) -> None:
    for _ in range(loops):
        await asyncio.sleep(0)


def at_once(copy: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine returns that never suspends."""
    with pytest.raises(StopIteration) as ended:
        copy.send(None)
    return ended.value.value


@pytest.fixture
def region_of_megabytes(contract: None) -> Iterator[gdrpy.Region]:
    with gdrpy.alloc(4 * MIB) as region:
        yield region


class TestCopies:
    @pytest.mark.parametrize("via", [None, "mapping", "dma"])
    def test_of_any_size_and_offset_are_exact(self, region_of_megabytes, via):
        async def main() -> None:
            choice = random.Random(1)
            region = region_of_megabytes
            expected = bytearray(choice.randbytes(region.nbytes))
            await region.write_async(expected, via=via)
            for size in SIZES:
                offset = choice.randrange(region.nbytes - size + 1)
                data = choice.randbytes(size)
                assert await region.write_async(data, offset, via) is None
                expected[offset : offset + size] = data
                buffer = bytearray(size + 64)
                with memoryview(buffer)[32:-32] as inner:
                    assert await region.readinto_async(inner, offset, via) == size
                assert buffer == bytes(32) + data + bytes(32)
                assert await region.read_async(size, offset, via) == data
            assert await region.read_async(via=via) == expected

        asyncio.run(main())

    def test_of_a_pin_are_exact(self, backend):
        async def main(pin: gdrpy.Pin) -> None:
            await pin.write_async(b"pinned" * 50_000, 7)
            assert await pin.read_async(300_000, 7) == b"pinned" * 50_000

        with cuda.context(0):
            pointer = int(cuda.call("cuMemAlloc", MIB))
            with gdrpy.pin(pointer, MIB) as pin:
                asyncio.run(main(pin))
            cuda.call("cuMemFree", pointer)

    def test_many_at_once_are_exact(self, region_of_megabytes):
        region = region_of_megabytes

        async def work(number: int) -> None:
            data = random.Random(number).randbytes(10_000)
            for _ in range(3):
                await region.write_async(data, number * 10_000, "dma")
                assert await region.read_async(10_000, number * 10_000) == data

        async def main() -> None:
            await asyncio.gather(*(work(number) for number in range(200)))

        asyncio.run(main())

    def test_of_a_region_without_a_cpu_view_are_exact(self, backend):
        async def main() -> None:
            with gdrpy.alloc(MIB, cpu=False) as region:
                await region.write_async(b"by the GPU", 5)
                assert await region.read_async(10, 5) == b"by the GPU"

        asyncio.run(main())

    @pytest.mark.parametrize("count", [10, 50_000])
    def test_take_arrays_of_other_libraries(self, region_of_megabytes, count):
        class Theirs:
            """An array without the buffer protocol."""

            def __init__(self) -> None:
                self.array = np.zeros(count, np.int16)

            def __dlpack_device__(self) -> tuple[int, int]:
                return 1, 0

            def __dlpack__(self, **wishes: Any) -> object:
                return self.array.__dlpack__(**wishes)

        async def main() -> None:
            given, found = Theirs(), Theirs()
            given.array[:] = np.arange(count)
            await region_of_megabytes.write_async(given, 64)
            assert await region_of_megabytes.readinto_async(found, 64) == 2 * count
            assert np.array_equal(found.array, given.array)

        asyncio.run(main())

    def test_take_elements_that_no_memoryview_has(self, region_of_megabytes):
        async def main() -> None:
            times = np.arange(30_000).astype("datetime64[s]")
            found = np.zeros_like(times)
            await region_of_megabytes.write_async(times)
            await region_of_megabytes.readinto_async(found)
            assert np.array_equal(found, times)

        asyncio.run(main())

    def test_follow_stores_of_their_callers_thread(self, region_of_megabytes):
        async def main() -> None:
            with region_of_megabytes.cpu.batch():
                for value in range(50):
                    region_of_megabytes.cpu.write(bytes([value]) * 8192)
                    assert await region_of_megabytes.read_async(8192, via="dma") == (
                        bytes([value]) * 8192
                    )

        asyncio.run(main())


class TestSmallCopy:
    def test_is_made_at_once(self, region):
        assert at_once(region.write_async(b"quick", 10)) is None
        assert at_once(region.read_async(5, 10)) == b"quick"
        buffer = bytearray(5)
        assert at_once(region.readinto_async(buffer, 10, "mapping")) == 5
        assert buffer == b"quick"
        buffer.extend(b"may be resized")


class TestEventLoop:
    def test_goes_on_while_a_copy_is_made(self, region_of_megabytes):
        region = region_of_megabytes
        region.write(b"x" * MIB)
        gate = Gate(region, "read")

        async def main() -> None:
            task = asyncio.create_task(region.read_async(MIB))
            await gate.waits()
            await turns(100)
            gate.open()  # by this loop: a copy that held it up would never end
            assert await task == b"x" * MIB

        asyncio.run(main())

    def test_has_eight_copies_made_at_a_time(self, region_of_megabytes):
        gate = Gate(region_of_megabytes, "read")

        async def main() -> None:
            copies = [asyncio.create_task(region_of_megabytes.read_async(MIB)) for _ in range(50)]
            await gate.waits(8)
            await turns(100)
            gate.open()
            for copy in copies:
                assert len(await copy) == MIB
            assert gate.most == 8

        asyncio.run(main())

    def test_of_a_second_thread_shares_the_threads(self, region_of_megabytes):
        region = region_of_megabytes
        content = random.Random(2).randbytes(region.nbytes)
        region.write(content)
        gate = Gate(region, "read")
        wrong: list[int] = []

        async def main() -> None:
            async def read(number: int) -> None:
                if await region.read_async(10_000, number) != content[number : number + 10_000]:
                    wrong.append(number)

            await asyncio.gather(*(read(number) for number in range(100)))

        threads = [threading.Thread(target=asyncio.run, args=(main(),)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(8):
            gate.begun.get()
        gate.open()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert gate.most == 8

    def test_that_is_closed_during_a_copy_leaves_it_to_its_end(self, region_of_megabytes, caplog):
        region = region_of_megabytes
        gate = Gate(region, "readinto")
        region.write(b"y" * MIB)
        buffer = bytearray(MIB)
        loop = asyncio.new_event_loop()
        copy = region.readinto_async(buffer)
        task = loop.create_task(copy)
        loop.run_until_complete(gate.waits())
        loop.close()
        gate.open()
        while region._memory.users:
            pass
        assert buffer == b"y" * MIB
        region.close()
        assert region.closed
        copy.close()
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        assert caplog.records == []

    def test_is_not_kept(self, region_of_megabytes):
        async def main() -> ref[asyncio.AbstractEventLoop]:
            await asyncio.gather(*(region_of_megabytes.read_async(8192) for _ in range(50)))
            return ref(asyncio.get_running_loop())

        loop = asyncio.run(main())
        while loop() is not None:  # by the last thread, until it has heard of no other copy
            gc.collect()


class TestUseMeanwhile:
    @pytest.mark.parametrize("waiting", [False, True], ids=["begun", "waiting for a turn"])
    def test_keeps_the_region_open_and_the_buffer_in_place(self, region_of_megabytes, waiting):
        region = region_of_megabytes
        gate = Gate(region, "readinto")
        buffer = bytearray(MIB)

        async def main() -> None:
            others = [
                asyncio.create_task(region.readinto_async(bytearray(MIB)))
                for _ in range(8 * waiting)
            ]
            await gate.waits(len(others))
            task = asyncio.create_task(region.readinto_async(buffer))
            await (turns() if waiting else gate.waits())
            with pytest.raises(BufferError, match="or asynchronous copies"):
                region.close()
            with pytest.raises(BufferError):
                buffer.extend(b"x")
            gate.open()
            await task
            buffer.extend(b"x")  # at once, whatever the thread does yet
            await asyncio.gather(*others)
            region.close()
            assert region.closed

        asyncio.run(main())

    def test_at_the_end_of_a_block_is_told_and_the_memory_stays(self, backend):
        async def main() -> None:
            region = gdrpy.alloc(MIB)
            memory = region._memory
            gate = Gate(region, "read")
            task = asyncio.create_task(region.read_async(MIB))
            await gate.waits()
            with pytest.warns(gdrpy.StillInUse, match="asynchronous copies"):
                region.__exit__(None, None, None)
            assert memory.users == 1
            gate.open()
            with pytest.raises(gdrpy.Closed):
                await task
            assert memory.users == 0

        asyncio.run(main())


class TestCancelledCall:
    def test_returns_when_its_copy_is_over(self, region_of_megabytes):
        region = region_of_megabytes
        region.write(b"z" * MIB)
        gate = Gate(region, "readinto")
        buffer = bytearray(MIB)

        async def main() -> None:
            task = asyncio.create_task(region.readinto_async(buffer))
            await gate.waits()
            for _ in range(3):
                task.cancel()
                await turns()
                assert not task.done()
            with pytest.raises(BufferError):
                region.close()
            gate.open()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert buffer == b"z" * MIB
            buffer.extend(b"is free")
            region.close()

        asyncio.run(main())

    def test_drops_the_failure_of_its_copy(self, region_of_megabytes, caplog):
        gate = Gate(region_of_megabytes, "write")

        async def main() -> None:
            task = asyncio.create_task(region_of_megabytes.write_async(bytes(MIB), 4 * MIB))
            await gate.waits()
            task.cancel()
            await turns()
            gate.open()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(main())
        assert caplog.records == []

    def test_that_waits_for_its_turn_never_copies(self, region_of_megabytes):
        region = region_of_megabytes
        gate = Gate(region, "write")

        async def main() -> None:
            running = [asyncio.create_task(region.write_async(bytes(MIB))) for _ in range(8)]
            waiting = [asyncio.create_task(region.write_async(bytes(MIB))) for _ in range(1000)]
            await gate.waits(8)
            await turns()
            for task in waiting:
                task.cancel()
            ended, _ = await asyncio.wait(waiting)
            assert all(task.cancelled() for task in ended)
            gate.open()
            await asyncio.gather(*running)
            assert gate.begun.empty()
            await region.write_async(bytes(MIB))  # all turns are free again

        asyncio.run(main())

    def test_that_waits_for_a_thread_never_copies(self, region_of_megabytes):
        """Of a second loop, whose turn it is while the first one's copies have all threads."""
        region = region_of_megabytes
        gate = Gate(region, "write")
        idle = threading.Event()

        async def first() -> None:
            await asyncio.gather(*(region.write_async(bytes(MIB)) for _ in range(8)))
            idle.set()

        async def second() -> None:
            task = asyncio.create_task(region.write_async(bytes(2 * MIB)))
            await turns()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        thread = threading.Thread(target=asyncio.run, args=(first(),))
        thread.start()
        for _ in range(8):
            gate.begun.get()
        asyncio.run(second())
        assert not idle.is_set()
        gate.open()
        thread.join()
        assert gate.begun.empty()


class TestRefusedCall:
    def test_raises_as_the_plain_one(self, region_of_megabytes):
        region = region_of_megabytes

        async def main() -> None:
            for size in (1, MIB):
                with pytest.raises(ValueError, match="lies outside"):
                    await region.write_async(bytes(size), region.nbytes)
                with pytest.raises(ValueError, match="read_async: .* lies outside"):
                    await region.read_async(size, region.nbytes)
                with pytest.raises(ValueError, match="via must be"):
                    await region.read_async(size, via="air")
                with pytest.raises(BufferError, match="must be writable"):
                    await region.readinto_async(bytes(size))
                with (
                    memoryview(region.cpu)[:size] as own,
                    pytest.raises(ValueError, match="overlap"),
                ):
                    await region.write_async(own)
            with pytest.raises(TypeError, match="must be a bytes-like object or an array"):
                await region.write_async(5)
            region.close()
            for size in (1, MIB):
                for call in (region.read_async(size), region.write_async(bytes(size))):
                    with pytest.raises(gdrpy.Closed, match="the Region is closed"):
                        await call

        asyncio.run(main())

    def test_of_a_read_only_region_raises(self, region_of_megabytes):
        async def main() -> None:
            fd = region_of_megabytes.export()
            with gdrpy.Region.from_fd(fd, readonly=True) as shown:
                for size in (1, MIB):
                    with pytest.raises(gdrpy.ReadOnly):
                        await shown.write_async(bytes(size))
            os.close(fd)

        asyncio.run(main())

    def test_of_a_gpu_array_names_the_call_that_takes_it(self, region_of_megabytes):
        class OnGpu:
            def __dlpack_device__(self) -> tuple[int, int]:
                return 2, 0

            def __dlpack__(self, **wishes: Any) -> object:
                raise AssertionError("the copy waits for the stream of another thread")

        async def main() -> None:
            for call in ("write_async", "readinto_async"):
                with pytest.raises(TypeError, match=f"Region.{call}: .* pass it to write"):
                    await getattr(region_of_megabytes, call)(OnGpu())

        asyncio.run(main())


class TestFork:
    def test_gives_the_child_threads_of_its_own(self, backend):
        """While the parent's copies have all of the parent's."""

        async def copies(region: gdrpy.Region) -> bool:
            data = random.Random(3).randbytes(100_000)
            await asyncio.gather(*(region.write_async(data, i * 100_000) for i in range(10)))
            return await region.read_async(100_000, 900_000) == data

        region = gdrpy.alloc(MIB, device="cpu")
        gate = Gate(region, "read")

        async def main() -> int:
            tasks = [asyncio.create_task(region.read_async(MIB)) for _ in range(20)]
            await gate.waits(8)
            fd = region.export()
            child = os.fork()
            if not child:
                status = 1
                try:
                    with gdrpy.Region.from_fd(fd, gpu=False) as own:
                        status = 0 if asyncio.run(copies(own)) else 2
                finally:
                    os._exit(status)
            os.close(fd)
            gate.open()
            await asyncio.gather(*tasks)
            return os.waitpid(child, 0)[1]

        assert asyncio.run(main()) == 0
        region.close()


class TestEndOfTheInterpreter:
    @pytest.mark.parametrize(
        "code",
        [
            "asyncio.run(main())",
            "threading.Thread(target=asyncio.run, args=(for_ever(), ), daemon=True).start();"
            "begun.wait()",
            "loop = asyncio.new_event_loop(); task = loop.create_task(for_ever());"
            "task._log_destroy_pending = False;"
            "loop.run_until_complete(asyncio.to_thread(begun.wait))",
        ],
        ids=["of a loop that ends", "in a daemon", "of a loop that stops"],
    )
    def test_is_quiet_with_copies_in_flight(self, backend, code):
        program = (
            "import asyncio, threading, gdrpy\n"
            "region = gdrpy.alloc(1 << 23)\n"
            "begun = threading.Event()\n"
            "async def main():\n"
            "    copies = [asyncio.create_task(region.read_async(via='dma')) for _ in range(20)]\n"
            "    await copies[0]\n"
            "async def copy():\n"
            "    try:\n"
            "        while True:\n"
            "            await region.write_async(bytes(1 << 23))\n"
            "            begun.set()\n"
            "    except RuntimeError as error:  # no thread is started any more\n"
            "        assert 'shutdown' in str(error)\n"
            "async def for_ever():\n"
            "    await asyncio.gather(*(copy() for _ in range(20)))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program + code], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
