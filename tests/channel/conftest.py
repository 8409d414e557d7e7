"""Channels, with a reader on the CPU in place of a kernel: on every backend, and on a real GPU."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import gdrpy

HERE = Path(__file__).parent
SOON = 20.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(autouse=True)
def memory(nothing_leaks: None, request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test here also proves that nothing leaks, once pytest lets its arguments go, and the
    threads of ends that were dropped have noticed.
    """
    before = set(threading.enumerate())  # a test that failed keeps what it made, and its thread
    yield
    request.node.funcargs.clear()
    gc.collect()
    for thread in set(threading.enumerate()) - before:
        if thread.name == "gdrpy-ring":
            thread.join(SOON)


@pytest.fixture
def channel(memory: None) -> gdrpy.Channel:
    """Of 8 records of 32 bytes."""
    return gdrpy.Channel(32, 8)


@pytest.fixture
def reader(channel: gdrpy.Channel) -> gdrpy.channel.ChannelReader:
    return channel.reader()


@pytest.fixture
def record(channel: gdrpy.Channel) -> Callable[[int], bytes]:
    """Record number i: no two have the same bytes anywhere."""
    return lambda i: i.to_bytes(8, "little") * (channel.record_nbytes // 8)


@pytest.fixture
def full(channel: gdrpy.Channel, record: Callable[[int], bytes]) -> gdrpy.Channel:
    """The channel, with records 0 to 7 in it and room for no more."""
    for i in range(8):
        channel.push(record(i))
    return channel


@pytest.fixture
def other_thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor
