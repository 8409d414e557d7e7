"""LMCache's genuine wrapper of VMM memory, whose descriptors come from the broker."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from select import select
from typing import Any

import lmcache_programs as programs
import pytest
from lmcache_sources import INDEX, unpack

import gdrpy
from gdrpy.broker import temporary

_LIMIT = 60.0
FIRST = [[[12.0 * i + 4 * j + k for k in range(4)] for j in range(3)] for i in range(2)]
#: The second layer as its memory lies.
SECOND = [[[12.0 * i + 4 * j + k for j in range(3)] for i in range(2)] for k in range(4)]

#: Runs a function of the programs in a process.
Run = Callable[..., Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """LMCache's modules; skips without a network."""
    made: Path = tmp_path_factory.mktemp("lmcache")
    try:
        unpack(made)
    except OSError as error:
        pytest.skip(f"needs {INDEX}: {error}")
    return str(made)


@contextmanager
def process(folder: str) -> Iterator[Run]:
    with ProcessPoolExecutor(1, get_context("spawn"), programs.start, [folder]) as pool:
        yield lambda function, *args: pool.submit(function, *args).result(_LIMIT)


@pytest.fixture(scope="module")
def socket() -> Iterator[str]:
    with temporary() as path, pytest.MonkeyPatch.context() as patch:
        patch.setenv("GDRPY_SOCKET", path)
        yield path


@pytest.fixture(scope="module")
def processes(folder: str, socket: str) -> Iterator[tuple[Run, Run]]:
    with process(folder) as worker, process(folder) as server:
        yield worker, server


@pytest.fixture
def worker(processes: tuple[Run, Run]) -> Iterator[Run]:
    """An engine's worker, which has nothing in the end."""
    yield processes[0]
    processes[0](programs.reset)


@pytest.fixture
def server(processes: tuple[Run, Run]) -> Iterator[Run]:
    """LMCache's server, which has nothing in the end."""
    yield processes[1]
    processes[1](programs.reset)


@pytest.fixture
def victim(folder: str, socket: str) -> Iterator[Run]:
    """A worker to kill."""
    with process(folder) as run:
        yield run


def kill(run: Run) -> None:
    number = run(programs.pid)
    process = os.pidfd_open(number)
    try:
        os.kill(number, signal.SIGKILL)
        assert select([process], [], [], _LIMIT)[0]
    finally:
        os.close(process)


class TestKvCacheInARegion:
    def test_is_the_very_memory_in_the_server(self, worker, server):
        wires = worker(programs.share)
        assert server(programs.open_all, wires) == [FIRST, SECOND]
        worker(programs.fill, 1)
        assert server(programs.read)[0] == [[[1.0] * 4] * 3] * 2
        server(programs.fill, 2)
        assert worker(programs.read) == [[[[2.0] * 4] * 3] * 2] * 2

    def test_is_mapped_once_for_all_layers_and_unmapped_with_the_last(self, worker, server):
        wires = worker(programs.share)
        with pytest.raises(gdrpy.Gone):  # connects
            server(programs.resolve, b"x" * 16)
        before = server(programs.held)
        server(programs.open_all, wires)
        assert server(programs.mapped) == [2]
        assert server(programs.close_one) == [1]
        assert server(programs.close_one) == []
        assert server(programs.held) == before

    def test_stays_in_the_server_when_the_worker_is_killed(self, victim, server, socket):
        server(programs.open_all, victim(programs.share))
        kill(victim)
        with gdrpy.connect(socket) as broker:
            broker.delete("kv")
        assert server(programs.read) == [FIRST, SECOND]
        server(programs.close_one)
        assert server(programs.close_one) == []

    def test_of_the_plug_in_for_vllm_is_the_very_memory_too(self, worker, server):
        assert server(programs.open_all, worker(programs.share_cache)) == [FIRST]
        worker(programs.fill, 1)
        assert server(programs.read) == [[[[1.0] * 4] * 3] * 2]


class TestResolve:
    def test_is_what_lmcache_asks_for_descriptors(self, worker, server):
        wires = worker(programs.share)
        server(programs.uninstall)
        with pytest.raises(RuntimeError, match="No VMM fd resolver installed"):
            server(programs.open_all, wires)

    def test_raises_gone_for_a_region_that_was_freed(self, victim, server, socket):
        wires = victim(programs.share)
        kill(victim)
        with gdrpy.connect(socket) as broker:
            broker.delete("kv")
        with pytest.raises(gdrpy.Gone, match="no longer exists"):
            server(programs.open_all, wires)

    def test_raises_gone_for_the_id_of_another_exporter(self, server):
        with pytest.raises(gdrpy.Gone, match="export id 78787878.* names no region of the broker"):
            server(programs.resolve, b"x" * 16)


class TestWrap:
    def test_refuses_a_region_that_may_not_be_written(self, worker):
        with pytest.raises(gdrpy.ReadOnly, match="LMCache writes to the KV cache"):
            worker(programs.share, True)

    def test_refuses_a_tensor_with_gaps(self, worker):
        worker(programs.share)
        with pytest.raises(ValueError, match=r"wrap: a tensor of shape .* has gaps"):
            worker(programs.wrap_gaps)

    def test_leaves_other_memory_to_lmcache(self, worker):
        assert worker(programs.wrap_other) == "wrapped by LMCache: (3,)"
