"""Regions as arguments of processes, of pools' tasks, and as their results."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import resource_sharer
from typing import Any

import children
import pytest

import gdrpy
from support import open_descriptors

METHODS = pytest.mark.parametrize("method", ["spawn", "forkserver"])


@pytest.fixture(params=[True, False], ids=["vfork", "fork"])
def vfork(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether Python may start programs by vfork and posix_spawn, as documented in subprocess."""
    monkeypatch.setattr(subprocess, "_USE_VFORK", request.param)
    monkeypatch.setattr(subprocess, "_USE_POSIX_SPAWN", request.param)
    return bool(request.param)


@METHODS
@pytest.mark.usefixtures("vfork")
class TestProcessArguments:
    def test_are_the_same_memory(self, method: str) -> None:
        context = multiprocessing.get_context(method)
        with gdrpy.alloc(4096) as region:
            bell = region.flag(64)
            process = context.Process(target=children.ring, args=(region, bell))
            process.start()
            assert bell.wait(1, timeout=30) == 1
            assert region.read(5) == b"world"
            process.join(30)
            assert process.exitcode == 0

    def test_of_a_dropped_region_are_sent_too(self, method: str) -> None:
        context: Any = multiprocessing.get_context(method)
        region = gdrpy.alloc(8192, "cpu")
        one, two = region.map(0, 4096), region.map(4096, 4096)
        del region
        before = len(open_descriptors())
        process = context.Process(target=children.answer, args=(one.flag(), two.flag(8)))
        process.start()
        one.flag().set(5)
        assert two.flag(8).wait(6, timeout=30) == 6
        process.join(30)
        assert process.exitcode == 0
        process.close()
        assert len(open_descriptors()) == before
        one.close()
        two.close()


@METHODS
class TestExecutor:
    def test_takes_and_gives_regions(self, method: str) -> None:
        context = multiprocessing.get_context(method)
        with (
            ProcessPoolExecutor(1, mp_context=context) as executor,
            gdrpy.alloc(4096) as region,
        ):
            made = executor.submit(children.make, b"hello")
            assert executor.submit(children.greet, region.cpu).result(30)[:2] == ("Mapping", 4096)
            assert region.read(5) == b"world"
            with made.result(30) as result:
                assert result.read(5) == b"hello"
        resource_sharer.stop()


class TestPool:
    def test_takes_and_gives_regions(self) -> None:
        with (
            multiprocessing.get_context("forkserver").Pool(1) as pool,
            gdrpy.alloc(4096) as region,
        ):
            region.write(b"hello")
            assert pool.apply(children.views, (region,))[4] == (False, b"hello")
            with pool.map(children.make, [b"hello"])[0] as made:
                assert made.read(5) == b"hello"
        resource_sharer.stop()


class TestForkedChild:
    @pytest.mark.parametrize("device", [0, "cpu"])
    def test_of_a_thread_that_sent_a_region_keeps_none_of_it(
        self, device: int | str, vfork: bool
    ) -> None:
        context = multiprocessing.get_context("spawn")
        with gdrpy.alloc(4096, device) as region:
            process = context.Process(target=children.write, args=(region, b"world"))
            process.start()
            descriptor = region._allocation.fd
            pid = os.fork()
            if not pid:
                os._exit(str(descriptor) in open_descriptors())
            assert os.waitpid(pid, 0)[1] == 0
            process.join(30)
            assert (process.exitcode, region.read(5)) == (0, b"world")

    def test_is_told_that_its_copy_is_the_parents(self) -> None:
        context = multiprocessing.get_context("fork")
        receiver, sender = context.Pipe(duplex=False)
        with gdrpy.alloc(4096) as region, receiver, sender:
            process = context.Process(target=children.report, args=(region, sender))
            process.start()
            assert "belongs to the parent process" in receiver.recv()
            process.join(30)
            assert process.exitcode == 0

    @pytest.mark.parametrize("device", [0, "cpu"])
    def test_may_take_one_without_gpu_view(self, device: int | str) -> None:
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe()
        with gdrpy.alloc(4096, device, gpu=False) as region, here, there:
            process = context.Process(target=children.answer_one, args=(there,))
            process.start()
            region.write(b"hello")
            here.send(region)
            assert here.recv() == b"hello"
            process.join(30)
            assert process.exitcode == 0
        resource_sharer.stop()
