"""Records to a kernel and back, one at a time: pushes, pops and calls."""

from __future__ import annotations

import ctypes
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from gdrpy import Channel, Flag, Inbox, Link, cuda
from gdrpy.cli.data import Mismatch
from gdrpy.cli.measure.resident import KERNEL, THREAD, Resident
from gdrpy.cli.measure.timing import clock, undisturbed

#: Bytes of each record, request and answer. Its 64-bit words are the number of its round.
NBYTES = 64

#: Seconds that a round may take.
_TIMEOUT = 5.0
#: In the flag that asks for records: all of them, the greatest number that Flag.wait takes for one
#: above those of rounds.
_ALL = 0x7FFF_FFFF

_PTX = Path(__file__).with_name("records.ptx")


def record(number: int) -> bytes:
    """The record of a round."""
    return number.to_bytes(8, "little") * (NBYTES // 8)


def complement(number: int) -> bytes:
    """The answer to the request of a round."""
    return (number ^ 0xFFFF_FFFF_FFFF_FFFF).to_bytes(8, "little") * (NBYTES // 8)


class Way(ABC):
    """A ring on a device, with a kernel at its other end, or a thread on the simulated GPU.

    ``asked`` and ``wrong`` are flags of 4 bytes: the kernel polls the one, and counts wrong records
    in the other. A way is used from one thread. Raises what the rings raise.
    """

    name: ClassVar[str]
    _kernel: ClassVar[str]
    _ring: Channel | Inbox | Link

    def __init__(self, asked: Flag, wrong: Flag) -> None:
        self._asked, self._wrong = asked, wrong
        self._next = 1
        asked.set(0)

    @contextmanager
    def other_end(self, rounds: int) -> Iterator[range]:
        """Have the other end play the next rounds; their numbers.

        It ends with them, or when the block raises. Raises Mismatch if wrong records reached it.
        """
        first, self._next = self._next, self._next + rounds
        self._wrong.set(0)
        numbers = range(first, first + rounds)
        end = (_Thread if cuda.simulated() else _Kernel)(self, numbers)
        try:
            yield numbers
        except BaseException:
            self.close()
            raise
        finally:
            end.finish()
        if wrong := self._wrong.get():
            raise Mismatch(f"{self.name}: {wrong} of {rounds} records reached {end.kind} wrong")

    def close(self) -> None:
        """End the ring, and with it its other end."""
        self._asked.set(_ALL)
        self._ring.close()

    def launch(self, numbers: range) -> Resident:
        """Its kernel for these rounds."""
        addresses = self._ring.ptr, self._asked.ptr, self._wrong.ptr
        kinds = (ctypes.c_void_p,) * 3 + (ctypes.c_uint,) * 2
        arguments = (*addresses, numbers.start, len(numbers))
        return Resident(_PTX, self._kernel, self._ring.device, arguments, kinds)

    @abstractmethod
    def play(self, numbers: range) -> list[int]:
        """Play these rounds; the nanoseconds of each. Raises Timeout, Closed, Mismatch."""

    @abstractmethod
    def stand_in(self, numbers: range) -> int:
        """Do what the kernel does, by Python; how many records were wrong."""


class Push(Way):
    """From before ``Channel.push`` until ``Channel.drain`` has found that it was taken."""

    name = "Channel.push"
    _kernel = "take"

    def __init__(self, asked: Flag, wrong: Flag, device: int) -> None:
        super().__init__(asked, wrong)
        self._ring = self._channel = Channel(NBYTES, device=device)
        self._reader = self._channel.reader() if cuda.simulated() else None

    def play(self, numbers: range) -> list[int]:
        push, drain, samples = self._channel.push, self._channel.drain, []
        with undisturbed():
            for number in numbers:
                one = record(number)
                begun = clock()
                push(one, _TIMEOUT)
                drain(_TIMEOUT)
                samples.append(clock() - begun)
        return samples

    def stand_in(self, numbers: range) -> int:
        assert self._reader
        wrong = 0
        for number in numbers:
            found = self._reader.pop()
            if found is None:
                break
            wrong += found != record(number)
        return wrong


class Pop(Way):
    """From before ``Flag.set``, which asks the kernel, until ``Inbox.pop`` has its record."""

    name = "Inbox.pop"
    _kernel = "report"

    def __init__(self, asked: Flag, wrong: Flag, device: int) -> None:
        super().__init__(asked, wrong)
        self._ring = self._inbox = Inbox(NBYTES, device=device)
        self._writer = self._inbox.writer() if cuda.simulated() else None

    def play(self, numbers: range) -> list[int]:
        ask, pop, samples = self._asked.set, self._inbox.pop, []
        with undisturbed():
            for number in numbers:
                begun = clock()
                ask(number)
                found = pop(_TIMEOUT)
                samples.append(clock() - begun)
                if found != record(number):
                    raise Mismatch(f"{self.name}: the record of round {number} is wrong")
        return samples

    def stand_in(self, numbers: range) -> int:
        assert self._writer
        for number in numbers:
            if self._asked.wait(number) == _ALL:
                break
            self._writer.push(record(number))
        return 0


class Call(Way):
    """From before ``Link.call`` until it has returned."""

    name = "Link.call"
    _kernel = "answer"

    def __init__(self, asked: Flag, wrong: Flag, device: int) -> None:
        super().__init__(asked, wrong)
        self._ring = self._link = Link(NBYTES, device=device)
        self._server = self._link.server() if cuda.simulated() else None

    def play(self, numbers: range) -> list[int]:
        call, samples = self._link.call, []
        with undisturbed():
            for number in numbers:
                request = record(number)
                begun = clock()
                answer = call(request, _TIMEOUT)
                samples.append(clock() - begun)
                if answer != complement(number):
                    raise Mismatch(f"{self.name}: the answer of round {number} is wrong")
        return samples

    def stand_in(self, numbers: range) -> int:
        assert self._server
        wrong = 0
        for number in numbers:
            place, found = self._server.popped, self._server.pop()
            if found is None:
                break
            self._server.answer(place, complement(number))
            wrong += found != record(number)
        return wrong


#: The ways by what ``gdrpy pplat --what`` calls them.
WAYS: dict[str, Callable[[Flag, Flag, int], Way]] = {"push": Push, "pop": Pop, "call": Call}


@contextmanager
def opened(what: str, asked: Flag, wrong: Flag, device: int, backend: str | None) -> Iterator[Way]:
    """A way, until the end of the block. Rings take their backend from the environment alone."""
    before = os.environ.get("GDRPY_BACKEND")
    if backend:
        os.environ["GDRPY_BACKEND"] = backend
    try:
        way = WAYS[what](asked, wrong, device)
    finally:
        if before is not None:
            os.environ["GDRPY_BACKEND"] = before
        else:
            os.environ.pop("GDRPY_BACKEND", None)
    try:
        yield way
    finally:
        way.close()


class _Kernel:
    kind = KERNEL

    def __init__(self, way: Way, numbers: range) -> None:
        self._kernel = way.launch(numbers)

    def finish(self) -> None:
        with self._kernel.ended():
            pass


class _Thread:
    kind = THREAD

    def __init__(self, way: Way, numbers: range) -> None:
        self._way, self._numbers = way, numbers
        self._thread = threading.Thread(target=self._play, name="the kernel's part")
        self._thread.start()

    def _play(self) -> None:
        self._way._wrong.set(self._way.stand_in(self._numbers))

    def finish(self) -> None:
        self._thread.join()
