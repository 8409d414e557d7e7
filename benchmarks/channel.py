"""gdrpy.Channel: records a second into a kernel that verifies every one of them."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gdrpy
import gpukernels
from gdrpy import Channel, cuda
from gdrpy.channel import ChannelReader
from harness import Figure, Measurement, Session, Topic

MODULE = "channel"
OPERATION = "records of 64 B, one Python thread"
#: Millions of records a second.
UNIT = "M/s"

#: How many records are pushed at a time.
BATCHES = (1, 16, 64, 256, 1024, 4096)

#: Figures of all that was pushed.
VERIFIED = f"{MODULE}/millions of records verified"
LOST = f"{MODULE}/records lost, words torn"

_RECORD = 64
_WORDS = _RECORD // 8
_ROUNDS = 9
_FIRST = 1000
_TIMEOUT = 20.0

#: How every word of the records is made of its number: see channel_kernel.cu.
_ODD = np.uint64(0x9E3779B97F4A7C15)
_KERNEL = Path(__file__).with_name("channel_kernel.cu")
_BLOCK = 512


@dataclass(frozen=True)
class _Amounts:
    """Records of a sample, one by one and in batches, and of the whole run."""

    singles: int
    batched: int
    total: int


_FULL = _Amounts(100_000, 400_000, 100_000_000)
_SIMULATED = _Amounts(10_000, 20_000, 500_000)
_QUICK = _Amounts(200, 4096, 20_000)


def way(batch: int) -> str:
    """The name of the way that pushes ``batch`` records at a time."""
    return "push" if batch == 1 else f"push_many of {batch}"


def run(session: Session) -> None:
    """Measure a channel into the session."""
    amounts = _QUICK if session.quick else _SIMULATED if cuda.simulated() else _FULL
    consume = _reader if cuda.simulated() else _kernel
    rates: dict[int, list[float]] = {batch: [] for batch in BATCHES}
    with consume() as consumer:
        channel = consumer.channel
        _push_up_to(channel, _FIRST)  # raises if no consumer takes them; timed pushes wait for ever
        for number in range(2 if session.quick else _ROUNDS):
            session.step(f"{MODULE}: round {number + 1}")
            for batch, samples in rates.items():
                count = amounts.singles if batch == 1 else amounts.batched
                samples.append(_rate(channel, count, batch))
        session.step(f"{MODULE}: {amounts.total} records")
        _push_up_to(channel, amounts.total)
    lost = channel.pushed - consumer.records + consumer.mismatches
    topic = Topic(MODULE, OPERATION, unit=UNIT)
    method = f"until all are taken by {consumer.words}; the records were made before"
    for batch, samples in rates.items():
        session.add(Measurement(topic, way(batch), method, samples, verified=lost == 0))
    session.derive_figure(Figure(VERIFIED, consumer.records / 1e6, "M", consumer.words))
    session.derive_figure(Figure(LOST, lost, "", f"of {channel.pushed:,}"))


def _rate(channel: Channel, count: int, batch: int) -> float:
    """Millions of records a second, until the last was taken."""
    records = _records(channel.pushed, count)
    if batch == 1:
        push, pieces = channel.push, [record.tobytes() for record in records]
    else:
        push = channel.push_many
        pieces = [records[at : at + batch] for at in range(0, count, batch)]
    begun = time.perf_counter_ns()
    for piece in pieces:
        push(piece)
    channel.drain(_TIMEOUT)
    return count / (time.perf_counter_ns() - begun) * 1e3


def _push_up_to(channel: Channel, total: int) -> None:
    """Push records until ``total`` are pushed, in pieces that stay in the CPU's cache."""
    while (left := total - channel.pushed) > 0:
        channel.push_many(_records(channel.pushed, min(left, 16384)), _TIMEOUT)
    channel.drain(_TIMEOUT)


def _records(first: int, count: int) -> NDArray[np.uint64]:
    """The records from number ``first`` on: each of their words is its number times ODD."""
    words = np.arange(first * _WORDS, (first + count) * _WORDS, dtype=np.uint64)
    words *= _ODD
    return words.reshape(count, _WORDS)


class _Consumer:
    """The consumer of the records; its findings exist when the block ends."""

    words = ""
    records = 0
    mismatches = 0

    def __init__(self, channel: Channel) -> None:
        self.channel = channel


@contextmanager
def _kernel() -> Iterator[_Consumer]:
    """The kernel of channel_kernel.cu, one block of threads."""
    image = gpukernels.compiled(_KERNEL)
    pointers = (ctypes.c_void_p, ctypes.c_void_p)
    with ExitStack() as undo:
        verdict = undo.enter_context(gdrpy.alloc(4096))
        verdict.fill(0)
        stream = undo.enter_context(gpukernels.stream())
        verify = undo.enter_context(gpukernels.loaded(image, b"verify", _BLOCK, *pointers))
        consumer = _Consumer(Channel(_RECORD))
        consumer.words = f"a kernel of one block of {_BLOCK} threads, which verifies each"
        try:
            verify(stream, consumer.channel.ptr, verdict.ptr)
            yield consumer
        finally:
            consumer.channel.close()
            cuda.call("cuStreamSynchronize", stream)
        found = np.frombuffer(verdict.read(16), np.uint64)
        consumer.records, consumer.mismatches = map(int, found)


@contextmanager
def _reader() -> Iterator[_Consumer]:
    """A thread instead of a kernel: the simulated GPU has no kernels."""
    with Channel(_RECORD) as channel:
        consumer = _Consumer(channel)
        consumer.words = "a Python thread, which verifies each"
        thread = threading.Thread(target=_take, args=(consumer, channel.reader()))
        thread.start()
        try:
            yield consumer
        finally:
            channel.close()
            thread.join()


def _take(consumer: _Consumer, reader: ChannelReader) -> None:
    found: Any
    while found := reader.pop_many():
        records = np.frombuffer(found, np.uint64).reshape(-1, _WORDS)
        wanted = _records(consumer.records, len(records))
        consumer.mismatches += int((records != wanted).sum())
        consumer.records += len(records)
