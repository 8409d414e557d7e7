"""Processes that have one block of GPU memory mapped when it is freed."""

from __future__ import annotations

import ctypes
import faulthandler
import fcntl
import mmap
import os
import pickle
import select
import struct
import time
from dataclasses import dataclass
from typing import Self

import standin
from gdrdrv import REVOKED, Gdrdrv

WORD = struct.Struct("Q")
#: What is stored once the end was told; in GPU memory it came too late.
AFTERWARDS = 0xAFAFAFAFAFAFAFAF


class Block(standin.View):
    """A block that each of several processes can have as its own, at an address by number."""

    def address_of(self, number: int) -> int:
        return self.address + (number << 40)

    def give(self, number: int) -> int:
        """Makes it the calling process's; the address."""
        address = self.address_of(number)
        fcntl.ioctl(self.fd, standin.REGISTER, ctypes.c_uint64(address))
        return address

    def free(self, number: int) -> int:
        """Takes it from whom it was given to; the time when that began."""
        start = time.monotonic_ns()
        fcntl.ioctl(self.fd, standin.UNREGISTER, ctypes.c_uint64(self.address_of(number)))
        return start

    def words(self) -> list[int]:
        """The first words of the memory, as the GPU has them."""
        with mmap.mmap(self.fd, self.size, prot=mmap.PROT_READ) as memory:
            return [WORD.unpack_from(memory, at)[0] for at in range(0, mmap.PAGESIZE, WORD.size)]


@dataclass(frozen=True)
class Told:
    """How often a process was told of the end, when first (``time.monotonic_ns``), and by then
    how many words it had stored."""

    times: int
    when: int
    stored: int


class Mapping:
    """A process's own mapping of the block, and what tells it of the end."""

    def __init__(self, fd: int, mapped: mmap.mmap, number: int) -> None:
        self._mapped = mapped
        self._at = number * WORD.size
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)

    def store(self, word: int) -> None:
        WORD.pack_into(self._mapped, self._at, word)

    def load(self) -> int:
        return WORD.unpack_from(self._mapped, self._at)[0]

    def is_told(self, timeout_ms: int | None = 0) -> bool:
        return bool(self._poll.poll(timeout_ms))


class Pinner(Mapping):
    """Pins the block, as given to this process, through a node of its own."""

    def __init__(self, block: Block, number: int, flags: int) -> None:
        self.node = Gdrdrv()
        address = block.give(number)
        self.handle = self.node.pin(address, block.size, flags)
        super().__init__(self.node.fd, self.node.map(self.handle, block.size), number)

    def times_told(self) -> int:
        events = self.node.events()
        assert all((event.kind, event.handle) == (REVOKED, self.handle) for event in events)
        return len(events)


class Sharer(Mapping):
    """Maps a share descriptor, which tells by hanging up, and that for good."""

    def __init__(self, block: Block, number: int, share: int) -> None:
        super().__init__(share, mmap.mmap(share, block.size), number)

    def times_told(self) -> int:
        return int(self.is_told())


class Holder:
    """A forked process with a mapping: a sharer's of ``share``, else a pinner's.

    It begins when ``start``, an eventfd, lets it. It stores, if it is to, until it is told; then it
    stores again, and answers.
    """

    def __init__(
        self, block: Block, number: int, flags: int, start: int, share: int | None, stores: bool
    ) -> None:
        self.number = number
        self.pins = share is None
        self._answers, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            # A bus error is what some of them are to get.
            faulthandler.disable()
            status = 1
            try:
                if share is None:
                    mapping: Pinner | Sharer = Pinner(block, number, flags)
                else:
                    mapping = Sharer(block, number, share)
                mapping.store(0)
                os.write(writer, b"r")
                os.eventfd_read(start)
                os.write(writer, pickle.dumps(_hold(mapping, stores)))
                status = 0
            finally:
                os._exit(status)
        os.close(writer)
        ready = os.read(self._answers, 1)
        assert ready == b"r", f"process {number} did not map the block"

    def await_end(self) -> Told | int:
        """What it was told; or if it was not, by which signal it ended."""
        with os.fdopen(self._answers, "rb") as answers:
            answer = answers.read()
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return pickle.loads(answer) if code == 0 else -code


def _hold(mapping: Pinner | Sharer, stores: bool) -> Told:
    stored = 0
    while stores and not mapping.is_told():
        stored += 1
        mapping.store(stored)
    mapping.is_told(None)
    when = time.monotonic_ns()
    times = mapping.times_told()
    if stores:
        for _ in range(100):
            mapping.store(AFTERWARDS)
        assert mapping.load() == AFTERWARDS
    if isinstance(mapping, Pinner):
        times += mapping.times_told()
    return Told(times, when, stored)


class Owner:
    """Who made the block, and pinned it to share it; leaving the context takes all of it back."""

    def __init__(self, flags: int) -> None:
        self.block = Block(1)
        self._flags = flags
        self.node = Gdrdrv()
        self.handle = self.node.pin(self.block.address, self.block.size, flags)
        self._share = self.node.share(self.handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._share)
        self.node.__exit__()
        self.block.close()

    def fork(self, stores: bool = True) -> list[Holder]:
        """Eight processes, every other one with a pin of its own; all have begun to store.

        Stores use most of the CPUs' time and slow down forks, so all are forked before any stores.
        """
        start = os.eventfd(0, os.EFD_SEMAPHORE)
        numbers = range(1, 9)
        holders = [
            Holder(
                self.block, number, self._flags, start, self._share if number % 2 else None, stores
            )
            for number in numbers
        ]
        os.eventfd_write(start, len(holders))
        os.close(start)
        while stores and not all(self.block.words()[number] for number in numbers):
            os.sched_yield()
        return holders

    def free(self, holders: list[Holder]) -> dict[int, int]:
        """Frees the memory for all; when that began for each, by its number."""
        began = {holder.number: self.block.free(holder.number) for holder in holders if holder.pins}
        owners = self.block.free(0)
        return {holder.number: began.get(holder.number, owners) for holder in holders}
