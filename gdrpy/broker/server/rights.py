"""Permissions on regions work like a file's; the kernel authenticates clients."""

from __future__ import annotations

import errno
import functools
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, ref

import msgspec

from gdrpy.broker import unix as _unix
from gdrpy.broker.server.peers import peer_process, process_number
from gdrpy.errors import PermissionDenied

READ = 0o4
WRITE = 0o2
#: The sets of groups of all identities.
_GROUPS: WeakKeyDictionary[frozenset[int], ref[frozenset[int]]] = WeakKeyDictionary()
_WORDS = {READ: "read", WRITE: "write", READ | WRITE: "read and write"}


@dataclass(frozen=True)
class UserMap:
    """Users and groups of other user namespaces, by the numbers that the kernel gives them here.

    A range is the first number here, the first one that counts in its place, and how many follow,
    as in /proc/PID/uid_map. Numbers outside of all ranges count as they are.
    """

    ranges: tuple[tuple[int, int, int], ...] = ()

    def __call__(self, number: int, kind: str = "uid") -> int:
        """The number that counts. That of all users, or groups ("gid"), without one here stays."""
        if number == nobody(kind):
            return number
        for first, counted, many in self.ranges:
            if first <= number < first + many:
                return counted + number - first
        return number


class Identity(msgspec.Struct):
    """A process as the kernel describes it.

    ``pid`` is 0 in another namespace; ``process`` tells it from all others, unless it is 0.
    """

    pid: int
    process: int
    uid: int
    gid: int
    groups: frozenset[int]
    #: Whether it is root or the broker's user, which can access the broker's memory anyway.
    privileged: bool = False

    def __post_init__(self) -> None:
        self.privileged = self.uid in privileged_users()

    def is_same(self, other: Identity) -> bool:
        """Whether both are the same process, as the same user."""
        ours, theirs = ((one.process, one.uid, one.gid, one.groups) for one in (self, other))
        return self.process != 0 and ours == theirs


def identity_of(sock: socket.socket, users: UserMap) -> Identity:
    """The process at the other end of a connection. Raises OSError if descriptors are used up."""
    pid, uid, gid = _unix.peer_credentials(sock)
    uid, gid = users(uid), users(gid, "gid")
    groups = shared_groups(users(group, "gid") for group in _unix.peer_groups(sock))
    try:
        process = peer_process(sock)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return Identity(pid, 0, uid, gid, groups)  # it is gone
    try:
        return Identity(pid, process_number(process, pid), uid, gid, groups)
    finally:
        os.close(process)


@functools.cache
def nobody(kind: str = "uid") -> int | None:
    """The number of all users, or groups ("gid"), that the broker's user namespace does not have.

    None if it has all. Source: user_namespaces(7).
    """
    lines = Path(f"/proc/self/{kind}_map").read_text().splitlines()
    if sum(int(line.split()[2]) for line in lines) >= 0xFFFFFFFF:
        return None
    return int(Path(f"/proc/sys/kernel/overflow{kind}").read_text())


def privileged_users() -> set[int]:
    """Root, and the broker's user unless other users have the same number."""
    own = os.geteuid()
    return {0} if own == nobody() else {0, own}


def require_somebody(who: Identity, call: str) -> None:
    """Raise PermissionDenied for a user whom the broker cannot tell from others."""
    if who.uid == nobody():
        raise PermissionDenied(
            errno.EACCES,
            f"{call}: this process is a user of another user namespace, whom the broker cannot "
            f"tell from other such users, so it may own nothing: run the broker where both users "
            f"have numbers, as on the host",
        )


def shared_groups(groups: Iterable[int]) -> frozenset[int]:
    """A set of groups, one object for all identities that have the same."""
    made = frozenset(groups)
    found = _GROUPS.setdefault(made, ref(made))()
    return made if found is None else found


def allowed(who: Identity, region: Any, wanted: int) -> bool:
    """Whether ``who`` has all of ``wanted``: the first class that fits decides, as for files."""
    return who.privileged or region.mode >> _shift(who, region) & wanted == wanted


def _shift(who: Identity, region: Any) -> int:
    """How far the bits of the class that ``who`` is in lie to the left in a mode."""
    if who.uid == region.uid != nobody():
        return 6
    if region.gid != nobody("gid") and (region.gid == who.gid or region.gid in who.groups):
        return 3
    return 0


def _helpful_mode(who: Identity, region: Any, wanted: int) -> int:
    """The least usual mode that gives ``who`` the right, and to read.

    It takes no right away if ``who`` may know the region's mode. It tells ``who`` whether the
    region is of one of its groups, and nothing else.
    """
    bits = READ | wanted
    mode = {6: 0o600, 3: 0o600 | bits << 3, 0: 0o600 | bits << 3 | bits}[_shift(who, region)]
    return mode | region.mode if _may_see(who, region) else mode


def _may_see(who: Identity, region: Any) -> bool:
    """Whether ``who`` may see the region in a list."""
    return owns(who, region) or allowed(who, region, READ)


def require(who: Identity, region: Any, wanted: int, call: str) -> None:
    """Raise PermissionDenied unless ``who`` has all of ``wanted``."""
    if not allowed(who, region, wanted):
        reason = f"{call}: user {who.uid} may not {_WORDS[wanted]} {region}"
        remedy = "ask its owner"
        if region.name is not None:
            mode = _helpful_mode(who, region, wanted)
            remedy += f", who may call broker.chmod({region.name!r}, {mode:#o})"
        raise _denied(reason, who, region, _WORDS[wanted], remedy)


def owns(who: Identity, region: Any) -> bool:
    """Whether ``who`` may change a region's mode."""
    return who.privileged or who.uid == region.uid != nobody()


def require_owner(who: Identity, region: Any, call: str) -> None:
    """Raise PermissionDenied unless ``who`` owns the region."""
    if not owns(who, region):
        reason = f"{call}: {region} does not belong to user {who.uid}"
        raise _denied(reason, who, region, "own", "ask its owner to do it")


def _denied(reason: str, who: Identity, region: Any, missing: str, remedy: str) -> PermissionDenied:
    """A refusal, which describes the region only if ``who`` may see it in a list."""
    if _may_see(who, region):
        reason += f": it belongs to user {region.uid}, group {region.gid}, mode {region.mode:04o}"
    return PermissionDenied(
        errno.EACCES, f"{reason}; {remedy}", missing=missing, region=region.name
    )
