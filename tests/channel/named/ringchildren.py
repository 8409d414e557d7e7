"""Processes at the ends of named rings, which tests kill.

They are forked by a process that has imported everything, so that hundreds of starts take little
time. Each writes down what it has done where its end cannot lose it: in a file that is mapped.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gdrpy
from gdrpy.channel import KernelEnd

NBYTES = 64
_WORDS = NBYTES // 8
#: An odd number, so that no two words of records are alike.
_ODD = 0x9E3779B97F4A7C15
_PATIENCE = 30.0
SOON = 20.0
GONE = "the kernel's end was closed, or its process has ended"
#: Imported before the forks: only root may be able to read where this Python is.
_IMPORTED = gdrpy.connect, gdrpy.Channel, gdrpy.Inbox, gdrpy.Link, gdrpy.alloc


def until_closed(call: Callable[[], object]) -> str:
    """Call until Closed is raised, as it is soon; its message."""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        try:
            call()
        except gdrpy.Timeout:
            time.sleep(0.001)
        except gdrpy.Closed as error:
            return str(error)
    raise AssertionError("it was never closed")


def until(happens: Callable[[], object]) -> None:
    """Wait until something happens, as it does soon."""
    for _ in range(10_000):
        if happens():
            return
        time.sleep(0.001)
    raise AssertionError("it did not happen")


def until_pushed(channel: gdrpy.Channel, record: bytes) -> None:
    """Push once the end before is replaced, as it is soon."""
    for _ in range(10_000):
        try:
            channel.push(record, SOON)
        except gdrpy.Closed:
            time.sleep(0.001)
        else:
            return
    raise AssertionError("it stayed closed")


def hearing() -> list[threading.Thread]:
    """The threads that hear of other ends."""
    return [thread for thread in threading.enumerate() if thread.name == "gdrpy-ring"]


def word(value: int) -> bytes:
    """A record of the 16 bytes of the fixtures' rings."""
    return value.to_bytes(16, "little")


def record(producer: int, number: int) -> bytes:
    """A record of a producer: no two have a word in common."""
    words = [producer, number]
    for i in range(2, _WORDS):
        words.append((((producer << 40) + number) * _WORDS + i) * _ODD % (1 << 64))
    return b"".join(one.to_bytes(8, "little") for one in words)


def read(data: bytes) -> tuple[int, int]:
    """The producer and number of a record, which must be whole."""
    producer, number = (int.from_bytes(data[at : at + 8], "little") for at in (0, 8))
    assert data == record(producer, number), "a torn record"
    return producer, number


def records(data: bytes) -> list[tuple[int, int]]:
    """The same of several records."""
    return [read(data[at : at + NBYTES]) for at in range(0, len(data), NBYTES)]


class Notes:
    """Counters in a file, which outlive those who write them."""

    def __init__(self, path: str | Path, count: int = 1024) -> None:
        with Path(path).open("a+b") as file:
            file.truncate(8 * count)
            self._memory = mmap.mmap(file.fileno(), 8 * count)
        self._words = (ctypes.c_uint64 * count).from_buffer(self._memory)

    def __getitem__(self, index: int) -> int:
        return int(self._words[index])

    def __setitem__(self, index: int, value: int) -> None:
        self._words[index] = value

    def close(self) -> None:
        """Unmap the file."""
        del self._words
        self._memory.close()


class Nursery:
    """Forks processes, each of which plays a role below."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(self, role: str, **arguments: Any) -> int:
        """Fork a process; its number. It may not have begun yet."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([role, arguments]) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """End it."""
        self._process.communicate()

    @contextmanager
    def running(self, role: str, **arguments: Any) -> Iterator[int]:
        """A process that is killed at the block's end, and gone then."""
        pid = self.start(role, **arguments)
        try:
            yield pid
        finally:
            kill(pid)


def kill(pid: int) -> None:
    """Kill a process of the nursery, and wait until it is gone."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        os.kill(pid, signal.SIGKILL)
        assert select.select([descriptor], [], [], _PATIENCE)[0]
    finally:
        os.close(descriptor)


def produce(socket: str, name: str, notes: str, number: int, capacity: int, many: int) -> None:
    """Push records of producer ``number``, and note how many were pushed for sure."""
    noted = Notes(notes)
    with gdrpy.Channel(NBYTES, capacity, broker=gdrpy.connect(socket), name=name) as channel:
        done = 0
        while True:
            channel.push_many(b"".join(record(number, done + i) for i in range(many)))
            done += many
            noted[number] = done


def consume(socket: str, name: str, out: str, number: int) -> None:
    """Take records at the kernel's end, and write them down."""
    file = os.open(out, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with KernelEnd(gdrpy.connect(socket), name, wait=_PATIENCE) as end:
        while end.wait(_PATIENCE):
            reader = end.reader()
            while data := reader.pop_many(5):
                os.write(file, data)
            del reader


def write(socket: str, name: str, notes: str, number: int) -> None:
    """Push into an inbox in place of a kernel, and note how many were pushed for sure."""
    noted = Notes(notes)
    with KernelEnd(gdrpy.connect(socket), name, wait=_PATIENCE) as end:
        done = 0
        while end.wait(_PATIENCE):
            writer = end.writer()
            try:
                while True:
                    writer.push(record(number, done))
                    done += 1
                    noted[number] = done
            except gdrpy.Closed:
                del writer


def take(socket: str, name: str, out: str, capacity: int) -> None:
    """Take records of an inbox, and write them down."""
    file = os.open(out, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    broker = gdrpy.connect(socket)
    inbox = gdrpy.Inbox(NBYTES, capacity, broker=broker, name=name, wait=_PATIENCE)
    while data := inbox.pop_many(5):
        os.write(file, data)


def answer(socket: str, name: str) -> None:
    """Answer the calls of a link by the same record of producer 1 more."""
    with KernelEnd(gdrpy.connect(socket), name, wait=_PATIENCE) as end:
        while end.wait(_PATIENCE):
            end.server().serve(answer_to)


def answer_to(request: bytes) -> bytes:
    """The answer to a request, which must be whole."""
    producer, number = read(request)
    return record(producer + (1 << 20), number)


def call(socket: str, name: str, notes: str, number: int, capacity: int) -> None:
    """Call, hold the answers against the requests, and note how many came."""
    noted = Notes(notes)
    broker = gdrpy.connect(socket)
    link = gdrpy.Link(NBYTES, capacity=capacity, broker=broker, name=name, wait=_PATIENCE)
    done = 0
    while True:
        asked = [link.submit(record(number, done + i)) for i in range(3)]
        for i, one in enumerate(asked):
            right = one.result() == record(number + (1 << 20), done + i)
            noted[number + 512] += not right
        done += 3
        noted[number] = done


def join(socket: str, name: str, said: str) -> None:
    """Write down why a channel cannot be joined."""
    say(said, lambda: gdrpy.Channel(NBYTES, 16, broker=gdrpy.connect(socket), name=name))


def occupy(socket: str, name: str, said: str) -> None:
    """Write down why the name of an end cannot be taken."""
    say(said, lambda: gdrpy.connect(socket).allocate(name, 1, "cpu", mode=0o644))


def say(path: str, do: Callable[[], object]) -> None:
    """Write down how a call was refused."""
    words = "it was done"
    try:
        do()
    except gdrpy.Error as error:
        words = f"{type(error).__name__}: {error}"
    Path(path).write_text(f"{words}\n")


_ROLES = (produce, consume, write, take, answer, call, join, occupy)
ROLES = {one.__name__: one for one in _ROLES}


def become(user: int | None) -> None:
    """Be a process of another user."""
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)


def main() -> None:
    """Fork what the lines of stdin ask for, until its end."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    for line in sys.stdin:
        role, arguments = json.loads(line)
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            become(arguments.pop("user", None))
            ROLES[role](**arguments)
            os._exit(0)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
