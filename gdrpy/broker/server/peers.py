"""Clients' processes, by descriptors (pidfds), which no namespace and no later process confuses."""

from __future__ import annotations

import errno
import functools
import os
import select
import socket

from gdrpy.broker import unix as _unix

#: Source: asm-generic/socket.h, since Linux 6.5. It gives a descriptor of the peer's process.
_SO_PEERPIDFD = 77
#: Bits of a process's number. Source: PID_MAX_LIMIT of the kernel's threads.h.
_PID_BITS = 22
#: A flag of the kernel's processes.
_EXITING = 0x4
#: Threads that are asked for that flag: more would take the broker's time.
_THREADS = 256


def peer_process(sock: socket.socket) -> int:
    """A descriptor of the process that made a connection. Raises OSError if it is unknown.

    Before Linux 6.5 it may be another process, which has got its number meanwhile.
    """
    try:
        return sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise
    return os.pidfd_open(_unix.peer_credentials(sock)[0])


def process_number(process: int, pid: int) -> int:
    """What tells a process from all others, by its descriptor; 0 if nothing does.

    It is the descriptor's inode. Before Linux 6.9 it is made of the process's number and its start,
    which a process of another namespace does not have. Raises OSError if descriptors are used up.
    """
    found = os.fstat(process)
    if found.st_dev != _anonymous():
        return found.st_ino
    started = start_time(pid)
    return started << _PID_BITS | pid if started else 0


@functools.cache
def _anonymous() -> int:
    """The device of descriptors that share one inode."""
    event = os.eventfd(0)
    try:
        return os.fstat(event).st_dev
    finally:
        os.close(event)


def start_time(pid: int) -> int:
    """When a process started, in clock ticks since boot; 0 if that is unknown.

    Source: proc_pid_stat(5), field 22. Raises OSError if descriptors are used up.
    """
    fields = _stat(pid)
    return int(fields[19]) if fields else 0


def is_over(process: int) -> bool:
    """Whether a process has ended."""
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(0))


def is_ending(process: int) -> bool | None:
    """Whether all threads of a process have begun to exit; None where that cannot be seen.

    The kernel then closes its descriptors one by one, and the GPU may still do its queued work.
    Source: proc_pid_fdinfo(5); proc_pid_stat(5), fields 9 and 20; PF_EXITING of the kernel's
    sched.h.
    """
    try:
        pid = _pid_here(process)
        if pid <= 0:
            return None if pid == 0 else True
        first = _stat(pid)
        if not first or not _is_exiting(first) or int(first[17]) > _THREADS:
            return False
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - quicker
        return all(_is_exiting(_stat(f"{pid}/task/{thread}")) for thread in threads)
    except OSError:
        return False


def _pid_here(process: int) -> int:
    """The number of a process in /proc: 0 in another namespace, -1 if it has ended."""
    with open(f"/proc/self/fdinfo/{process}", "rb", buffering=0) as file:  # noqa: PTH123 - quicker
        return int(file.read().partition(b"\nPid:")[2].split(maxsplit=1)[0])


def _is_exiting(fields: list[bytes]) -> bool:
    """Whether a thread exits, by the fields of _stat(), or is gone."""
    return not fields or bool(int(fields[6]) & _EXITING)


def _stat(pid: int | str) -> list[bytes]:
    """The fields of a process or thread from the third on; none if it is unknown.

    Raises OSError if descriptors are used up.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:  # noqa: PTH123 - quicker
            text = file.read()  # the name in it may be any bytes
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return []
    return text.rpartition(b")")[2].split()
