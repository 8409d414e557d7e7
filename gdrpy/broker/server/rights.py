"""Permissions on regions work like a file's; the kernel authenticates clients."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary, ref

import msgspec

from gdrpy.broker import unix as _unix
from gdrpy.errors import PermissionDenied

READ = 0o4
WRITE = 0o2
#: A flag of the kernel's processes.
_EXITING = 0x4
#: Threads that are asked for that flag: more would take the broker's time.
_THREADS = 256
#: The sets of groups of all identities.
_GROUPS: WeakKeyDictionary[frozenset[int], ref[frozenset[int]]] = WeakKeyDictionary()
_WORDS = {READ: "read", WRITE: "write", READ | WRITE: "read and write"}


class Identity(msgspec.Struct):
    """A process as the kernel describes it; ``started`` tells it from a later one with its pid."""

    pid: int
    started: int
    uid: int
    gid: int
    groups: frozenset[int]
    #: Whether it is root or the broker's user, which can access the broker's memory anyway.
    privileged: bool = False

    def __post_init__(self) -> None:
        self.privileged = self.uid in (0, os.geteuid())


def identity_of(sock: socket.socket) -> Identity:
    """The process at the other end of a connection."""
    pid, uid, gid = _unix.peer_credentials(sock)
    return Identity(pid, start_time(pid), uid, gid, shared_groups(_unix.peer_groups(sock)))


def shared_groups(groups: Iterable[int]) -> frozenset[int]:
    """A set of groups, one object for all identities that have the same."""
    made = frozenset(groups)
    found = _GROUPS.setdefault(made, ref(made))()
    return made if found is None else found


def start_time(pid: int) -> int:
    """When a process started, in clock ticks since boot; 0 if that is unknown.

    Source: proc_pid_stat(5), field 22. Raises OSError if descriptors are used up.
    """
    fields = _stat(pid)
    return int(fields[19]) if fields else 0


def is_ending(who: Identity) -> bool:
    """Whether all threads of a process have begun to exit; False where that is unknown.

    The kernel then closes its descriptors one by one, and the GPU may still do its queued work.
    Source: proc_pid_stat(5), fields 9, 20 and 22; PF_EXITING of the kernel's sched.h.
    """
    try:
        first = _stat(who.pid)
        if not first or int(first[19]) != who.started or not _is_exiting(first):
            return False
        if int(first[17]) > _THREADS:
            return False
        threads = os.listdir(f"/proc/{who.pid}/task")  # noqa: PTH208 - quicker
        return all(_is_exiting(_stat(f"{who.pid}/task/{thread}")) for thread in threads)
    except OSError:
        return False


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


def allowed(who: Identity, region: Any, wanted: int) -> bool:
    """Whether ``who`` has all of ``wanted``: the first class that fits decides, as for files."""
    if who.privileged:
        return True
    granted: int = region.mode
    if who.uid == region.uid:
        granted >>= 6
    elif region.gid == who.gid or region.gid in who.groups:
        granted >>= 3
    return granted & wanted == wanted


def require(who: Identity, region: Any, wanted: int, call: str) -> None:
    """Raise PermissionDenied unless ``who`` has all of ``wanted``."""
    if not allowed(who, region, wanted):
        reason = f"{call}: user {who.uid} may not {_WORDS[wanted]} {region}"
        raise _denied(reason, who, region, "chmod it")


def owns(who: Identity, region: Any) -> bool:
    """Whether ``who`` may change a region's mode."""
    return who.privileged or who.uid == region.uid


def require_owner(who: Identity, region: Any, call: str) -> None:
    """Raise PermissionDenied unless ``who`` owns the region."""
    if not owns(who, region):
        reason = f"{call}: {region} does not belong to user {who.uid}"
        raise _denied(reason, who, region, "do it")


def _denied(reason: str, who: Identity, region: Any, remedy: str) -> PermissionDenied:
    """A refusal, which describes the region only if ``who`` may see it in a list."""
    if owns(who, region) or allowed(who, region, READ):
        reason += f": it belongs to user {region.uid}, group {region.gid}, mode {region.mode:04o}"
    return PermissionDenied(errno.EACCES, f"{reason}; ask its owner to {remedy}")
