"""read_async() and its like by the copy engine, on the simulated resource manager."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import threading

import pytest

import gdrpy
import rmclient as rm

ON_NVRM = {"GDRPY_SIM": "1", "GDRPY_BACKEND": "nvrm"}
MIB = 1 << 20

pytestmark = pytest.mark.preloaded(**ON_NVRM)


async def check_copies(region: gdrpy.Region, tasks: int, times: int = 4) -> None:
    """Write and read from many tasks, each in a part of the region, at odd offsets."""
    room = region.nbytes // tasks

    async def work(number: int) -> None:
        choice = random.Random(number)
        for _ in range(times):
            data = choice.randbytes(choice.randrange(1, room))
            offset = number * room + choice.randrange(room - len(data))
            await region.write_async(data, offset, "engine")
            assert await region.read_async(len(data), offset, "engine") == data
            buffer = bytearray(len(data) + 64)
            with memoryview(buffer)[32:-32] as inner:
                assert await region.readinto_async(inner, offset, "engine") == len(data)
            assert buffer == bytes(32) + data + bytes(32)

    await asyncio.gather(*(work(number) for number in range(tasks)))


class TestCopiesByTheEngine:
    def test_many_at_once_are_exact(self) -> None:
        with gdrpy.alloc(8 * MIB) as region:
            asyncio.run(check_copies(region, 40))
        assert rm.violations() == []

    @pytest.mark.preloaded(**ON_NVRM, FAKE_RM_DELAY="7")
    def test_are_exact_on_an_engine_that_does_all_as_late_as_it_may(self) -> None:
        with gdrpy.alloc(4 * MIB) as region:
            asyncio.run(check_copies(region, 20))
        assert rm.violations() == []

    def test_of_an_array_of_another_region_stay_on_the_gpu(self) -> None:
        content = random.Random(3).randbytes(MIB)
        with gdrpy.alloc(MIB) as region, gdrpy.alloc(2 * MIB) as other:
            region.write(content)
            with (
                gdrpy.Region.from_fd(region.export(), gpu=False) as source,
                gdrpy.Region.from_fd(other.export(), gpu=False) as target,
            ):
                array = source.array((MIB,), "uint8")
                before = rm.count("entries")
                asyncio.run(target.write_async(array, 5))
                assert rm.count("entries") > before
                assert other.cpu.read(MIB, 5) == content
                del array
        assert rm.violations() == []

    def test_of_two_event_loops_are_exact(self) -> None:
        with gdrpy.alloc(4 * MIB) as one, gdrpy.alloc(4 * MIB) as other:
            failures: list[BaseException] = []

            def work() -> None:
                try:
                    asyncio.run(check_copies(other, 20))
                except BaseException as error:
                    failures.append(error)

            thread = threading.Thread(target=work)
            thread.start()
            asyncio.run(check_copies(one, 20))
            thread.join()
        assert failures == []
        assert rm.violations() == []

    def test_need_no_cuda_and_no_view(self) -> None:
        code = (
            "import asyncio, sys, gdrpy\n"
            "region = gdrpy.Region.from_fd(int(sys.argv[1]), gpu=False, cpu=False)\n"
            "async def main():\n"
            "    data = await region.read_async(100_000)\n"
            "    await region.write_async(data[::-1])\n"
            "asyncio.run(main())\n"
            "print('cuda.bindings' in sys.modules)"
        )
        content = random.Random(1).randbytes(100_000)
        with gdrpy.alloc(MIB) as region:
            region.write(content)
            fd = region.export()
            child = subprocess.run(
                [sys.executable, "-c", code, str(fd)],
                pass_fds=[fd],
                capture_output=True,
                text=True,
                check=False,
            )
            assert (child.stdout, child.stderr) == ("False\n", "")
            assert region.read(100_000) == content[::-1]

    def test_of_a_registered_buffer_take_no_staging(self) -> None:
        async def main() -> None:
            await region.write_async(buffer, via="engine")
            buffer[:] = bytes(len(buffer))
            await region.readinto_async(buffer, via="engine")

        content = random.Random(2).randbytes(MIB)
        buffer = bytearray(content)
        with gdrpy.alloc(MIB) as region, gdrpy.register(buffer):
            region.fill(0, via="engine")
            before = rm.count("dma_mappings")
            asyncio.run(main())
            assert rm.count("dma_mappings") == before + 1
            assert buffer == content
        assert rm.violations() == []

    def test_from_region_to_region_keep_both_open(self) -> None:
        region, other = gdrpy.alloc(MIB), gdrpy.alloc(MIB)
        content = random.Random(3).randbytes(MIB)
        other.write(content)
        begun, ended = threading.Event(), threading.Event()
        write = region.write

        def write_later(*args: object) -> None:
            begun.set()
            ended.wait()
            write(*args)  # type: ignore[arg-type]

        region.write = write_later  # type: ignore[assignment,method-assign]

        async def main() -> None:
            task = asyncio.create_task(region.write_async(other, via="engine"))
            await asyncio.to_thread(begun.wait)
            for one in (region, other):
                with pytest.raises(BufferError, match="asynchronous copies"):
                    one.close()
            ended.set()
            await task

        asyncio.run(main())
        assert region.cpu.read() == content
        region.close()
        other.close()
        assert rm.violations() == []


class TestCancelledCall:
    def test_leaves_its_buffer_alone(self) -> None:
        async def main() -> None:
            for number in range(50):
                buffer = bytearray(MIB)
                task = asyncio.create_task(region.readinto_async(buffer, via="engine"))
                for _ in range(number % 7):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])  # some are over already
                assert bytes(buffer) in (bytes(MIB), content)
                buffer.extend(b"is free")
            assert await region.read_async(via="engine") == content

        content = random.Random(4).randbytes(MIB)
        with gdrpy.alloc(MIB) as region:
            region.write(content)
            asyncio.run(main())
        assert rm.violations() == []


class TestLostChannel:
    def test_under_many_copies_is_made_anew_once(self) -> None:
        with gdrpy.alloc(4 * MIB) as region:
            region.write(b"x", via="engine")
            rm.set_fault("ENGINE:25:31")
            asyncio.run(check_copies(region, 20))
        assert rm.count("xids") == 1
        assert rm.violations() == []

    @pytest.mark.preloaded(**ON_NVRM, FAKE_RM_NO_COPY="1")
    def test_or_one_that_never_was_tells_every_caller(self) -> None:
        async def main() -> None:
            copies = (region.read_async(100, via="engine") for _ in range(20))
            for told in await asyncio.gather(*copies, return_exceptions=True):
                assert isinstance(told, gdrpy.BackendUnavailable)

        with gdrpy.alloc(MIB) as region:
            asyncio.run(main())


class TestFork:
    def test_beside_copies_in_flight_leaves_the_child_copies_of_its_own(self) -> None:
        region = gdrpy.alloc(8 * MIB)
        fd = region.export()

        async def main() -> list[int]:
            copies = asyncio.create_task(check_copies(region, 20))
            ended = []
            for _ in range(5):
                await asyncio.sleep(0)
                child = os.fork()
                if not child:
                    status = 1
                    try:
                        with gdrpy.alloc(MIB, device="cpu") as own:
                            asyncio.run(asyncio.wait_for(fill(own), 60))
                        status = 0
                    finally:
                        os._exit(status)
                ended.append(os.waitpid(child, 0)[1])
            await copies
            return ended

        async def fill(own: gdrpy.Region) -> None:
            await asyncio.gather(*(own.write_async(b"y" * MIB, 0) for _ in range(20)))
            assert await own.read_async() == b"y" * MIB

        assert asyncio.run(main()) == [0] * 5
        os.close(fd)
        region.close()
        assert rm.violations() == []


class TestEndOfTheInterpreter:
    def test_is_quiet_with_copies_in_flight(self) -> None:
        code = (
            "import asyncio, gdrpy\n"
            "region = gdrpy.alloc(1 << 23)\n"
            "async def main():\n"
            "    copies = [region.read_async(via='engine') for _ in range(20)]\n"
            "    copies = [asyncio.create_task(copy) for copy in copies]\n"
            "    await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)\n"
            "asyncio.run(main())\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
