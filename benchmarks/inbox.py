"""gdrpy.Inbox: records a second from a kernel, each verified by the CPU."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import gdrpy
import gpukernels
import native
import rings
from gdrpy import cuda
from gdrpy.cli.measure.timing import clock, undisturbed
from harness import Figure, Measurement, Session, Topic

MODULE = "inbox"
OPERATION = "records of 64 B, one reader"
#: Millions of records a second.
UNIT = "M/s"

#: How many records Python takes at a time.
BATCHES = (64, 1024, 4096)
IN_C = "gdr_inbox_pop, in C"
IN_C_RELAXED = f"{IN_C}, of push_relaxed"

#: Figures of all that was pushed.
VERIFIED = f"{MODULE}/millions of records verified"
LOST = f"{MODULE}/records lost, words torn, messages late"

_RECORD = 64
_WORDS = _RECORD // 8
_THREADS = 512
_ROUNDS = 9
_TIMEOUT = 20.0
_ODD = np.uint64(0x9E3779B97F4A7C15)
_KERNEL = Path(__file__).with_name("inbox_kernel.cu")


@dataclass(frozen=True)
class _Amounts:
    """Records of each thread: of a sample, and of the whole run."""

    sample: int
    total: int


_FULL = _Amounts(4000, 2_000_000)
_SIMULATED = _Amounts(40, 1000)
_QUICK = _Amounts(4, 16)


def way(batch: int) -> str:
    """The name of the way that takes up to ``batch`` records at a time."""
    return f"pop_many of {batch}"


class _Producers:
    """The producers: ``start(first, each, relaxed)`` has each thread push its next records."""

    words = ""
    messages: int | None = None

    def __init__(self, inbox: gdrpy.Inbox, start: Callable[[int, int, bool], None]) -> None:
        self.inbox = inbox
        self.start = start
        self.done = 0  # records of each thread
        self.wrong = 0
        self.following = np.zeros(_THREADS, np.uint64)

    def rate(self, each: int, take: Callable[[int, bool], None], relaxed: bool = False) -> float:
        """Millions of records a second, from the start of the producers to the last record."""
        with undisturbed():
            begun = clock()
            self.start(self.done, each, relaxed)
            take(each * _THREADS, relaxed)
            taken = clock() - begun
        self.done += each
        return each * _THREADS / taken * 1e3

    def take_in_c(self, count: int, relaxed: bool) -> None:
        messages = None if relaxed else self.messages
        self.wrong += rings.take(self.inbox, count, self.following, messages)

    def verify(self, pieces: list[bytes]) -> None:
        """Verify records that Python took."""
        records = np.frombuffer(b"".join(pieces), np.uint64).reshape(-1, _WORDS)
        source, index = records[:, 0], records[:, 1]
        words = (source << np.uint64(40) | index)[:, None] * np.uint64(_WORDS)
        wanted = (words + np.arange(_WORDS, dtype=np.uint64)) * _ODD
        self.wrong += int((records[:, 2:] != wanted[:, 2:]).sum())
        order = np.argsort(source, kind="stable")
        counts = np.bincount(source.astype(np.int64), minlength=_THREADS)[:_THREADS]
        starts = np.repeat(np.cumsum(counts) - counts, counts)
        expected = np.repeat(self.following, counts) + (np.arange(len(order)) - starts).astype(
            np.uint64
        )
        self.wrong += int((index[order][: len(expected)] != expected).sum())
        self.following += counts.astype(np.uint64)


def run(session: Session) -> None:
    """Measure an inbox into the session."""
    amounts = _QUICK if session.quick else _SIMULATED if cuda.simulated() else _FULL
    topic = Topic(MODULE, OPERATION, unit=UNIT)
    with (_threads if cuda.simulated() else _kernels)() as producers:
        pieces: list[bytes] = []
        ways: dict[str, tuple[Callable[[int, bool], None], bool]] = {
            way(batch): (_taking(producers.inbox, batch, pieces), False) for batch in BATCHES
        }
        try:
            rings.require()
        except native.NotBuilt as error:
            session.absent[f"{MODULE}: {IN_C}"] = str(error)
        else:
            ways |= {IN_C: (producers.take_in_c, False), IN_C_RELAXED: (producers.take_in_c, True)}
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(2 if session.quick else _ROUNDS):
            session.step(f"{MODULE}: round {number + 1}")
            for name, (take, relaxed) in ways.items():
                rates[name].append(producers.rate(amounts.sample, take, relaxed))
                if pieces:
                    producers.verify(pieces)
                    pieces.clear()
        if IN_C in ways:
            session.step(f"{MODULE}: {amounts.total * _THREADS} records")
            producers.rate(max(amounts.total - producers.done, 1), producers.take_in_c)
    method = f"from {producers.words}, until the last was taken; Python verifies afterwards"
    for name, samples in rates.items():
        verified = producers.wrong == 0
        session.add(Measurement(topic, name, method, samples, verified=verified))
    taken = int(producers.following.sum())
    session.derive_figure(Figure(VERIFIED, taken / 1e6, "M", producers.words))
    lost = producers.done * _THREADS - taken + producers.wrong
    session.derive_figure(Figure(LOST, lost, "", f"of {producers.done * _THREADS:,}"))


def _taking(inbox: gdrpy.Inbox, batch: int, pieces: list[bytes]) -> Callable[[int, bool], None]:
    """Take records by Python into ``pieces``."""

    def take(count: int, _relaxed: bool) -> None:
        pop_many, left = inbox.pop_many, count * _RECORD
        while left:
            piece = pop_many(batch, _TIMEOUT)
            left -= len(piece)
            pieces.append(piece)

    return take


@contextmanager
def _kernels() -> Iterator[_Producers]:
    """The kernels of inbox_kernel.cu, one block of threads, launched for each sample."""
    image = gpukernels.compiled(_KERNEL)
    kinds = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_ulonglong, ctypes.c_ulonglong)
    with ExitStack() as undo:
        messages = undo.enter_context(gdrpy.page_locked(8 * _THREADS))
        stream = undo.enter_context(gpukernels.stream())
        push, relaxed_push = (
            undo.enter_context(gpukernels.loaded(image, name, _THREADS, *kinds))
            for name in (b"push", b"push_relaxed")
        )
        inbox = undo.enter_context(gdrpy.Inbox(_RECORD))

        def start(first: int, each: int, relaxed: bool) -> None:
            kernel = relaxed_push if relaxed else push
            kernel(stream, inbox.ptr, messages.ptr, first, each)

        producers = _Producers(inbox, start)
        producers.messages = messages.address
        producers.words = f"a kernel of one block of {_THREADS} threads"
        try:
            yield producers
        finally:
            inbox.close()  # ends a kernel that waits for room
            cuda.call("cuStreamSynchronize", stream)


@contextmanager
def _threads() -> Iterator[_Producers]:
    """A Python thread instead of kernels, which the simulated GPU does not have."""
    with gdrpy.Inbox(_RECORD) as inbox:
        writer = inbox.writer()
        thread = threading.Thread()

        def start(first: int, each: int, _relaxed: bool) -> None:
            nonlocal thread
            thread = threading.Thread(target=writer.push_many, args=(_records(first, each),))
            thread.start()

        producers = _Producers(inbox, start)
        producers.words = f"a Python thread in place of {_THREADS} threads of a kernel"
        try:
            yield producers
        finally:
            inbox.close()
            if thread.ident is not None:
                thread.join()


def _records(first: int, each: int) -> NDArray[np.uint64]:
    """Records of all threads, as inbox_kernel.cu makes them."""
    index = np.repeat(np.arange(first, first + each, dtype=np.uint64), _THREADS)
    source = np.tile(np.arange(_THREADS, dtype=np.uint64), each)
    words = (source << np.uint64(40) | index)[:, None] * np.uint64(_WORDS)
    records = (words + np.arange(_WORDS, dtype=np.uint64)) * _ODD
    records[:, 0], records[:, 1] = source, index
    return records
