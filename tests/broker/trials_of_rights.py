"""What other users and other processes try to get."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import itertools
import mmap
import os
import re
from collections.abc import Callable
from typing import Any

from rawclient import Reply, allocation
from trialbed import (
    OWNER,
    STRANGER,
    Bed,
    Lost,
    Unauthorised,
    held,
    trial,
)


@trial()
def sealed_regions_stay_as_they_are(bed: Bed) -> None:
    """For their owner too: no write, no new metadata, one digest."""
    client, other = bed.client(), bed.client()
    data = bed.random.randbytes(5000)
    made = client.allocate("sealed", len(data), metadata=b"old")
    made.write(data)
    number = made["region"]
    bed.refused("InvalidRequest", client, "digest", region=number)
    client.ok("seal", region=number)
    bed.refused("Sealed", client, "change", region=number, metadata=b"new")
    grant = other.get("sealed", readonly=False)
    assert (grant["sealed"], grant["readonly"], grant["enforced"]) == (True, True, True)
    bed.same(grant.bytes(), data, "sealed")
    _cannot_write(bed, grant)
    digest = hashlib.sha256(data).hexdigest()
    for one in (client, other):
        bed.same(one.ok("digest", region=number)["sha256"], digest, "digest")
    client.ok("delete", name="sealed")


def _cannot_write(bed: Bed, grant: Reply) -> None:
    """Try to write through the descriptor of an enforced grant."""
    fd, size = grant.fds[0], grant["size"]
    attempts: list[tuple[Callable[[], object], tuple[int, ...]]] = [
        (lambda: os.pwrite(fd, b"x", 0), (errno.EBADF,)),
        (lambda: mmap.mmap(fd, size), (errno.EACCES,)),
        (lambda: os.ftruncate(fd, 0), (errno.EINVAL, errno.EBADF)),
        (lambda: fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE), (errno.EPERM,)),
        (lambda: os.posix_fallocate(fd, 0, size), (errno.EBADF,)),
    ]
    if os.geteuid() != 0 and bed.root:  # root and the broker's user may open everything
        attempts += [
            (lambda: os.open(f"/proc/self/fd/{fd}", os.O_RDWR), (errno.EACCES,)),
            (lambda: os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_TRUNC), (errno.EACCES,)),
            (lambda: os.fchmod(fd, 0o666), (errno.EPERM,)),
        ]
    for number, (attempt, expected) in enumerate(attempts):
        bed.count("attempts to write through a reader's descriptor")
        try:
            attempt()
            found = 0
        except OSError as error:
            found = error.errno or 0
        if not found:
            raise Unauthorised(f"attempt {number} to write through a reader's descriptor worked")
        assert found in expected, (number, found)


@trial()
def sessions_of_other_processes_are_not_resumed(bed: Bed) -> None:
    """Not of another user, nor of the same; by the same process they are."""
    client = bed.client()
    made = client.allocate(None)
    number, data = made["region"], bed.random.randbytes(8)
    made.write(data)

    def steal(index: int) -> None:
        thief = bed.client(STRANGER if index else OWNER)
        for leases in ([], [[number, True, False]]):
            session = client.session
            bed.refused("InvalidRequest", thief, "resume", session=session, leases=leases)
            bed.count("attempts to resume another process's session")

    bed.each(2, lambda _: steal(0))
    bed.start(lambda: steal(1), STRANGER).result()
    bed.same(held(client, number), {os.getpid(): 1}, "leases")
    again = bed.client()
    leases = [[number, True, False]] * 3 + [[1 << 40, True, False]]
    lost = again.ok("resume", session=client.session, leases=leases)["lost"]
    bed.same(lost, [1 << 40], "lost leases")
    bed.same(held(again, number), {os.getpid(): 3}, "leases")
    bed.same(again.ok("get", region=number, readonly=True, gpu=False).bytes(8), data, "bytes")
    with contextlib.suppress(ConnectionError):
        raise AssertionError(f"the resumed session's connection is open: {client.receive()}")


@trial(others=True)
def another_user_gets_what_the_mode_grants_and_no_more(bed: Bed) -> None:
    """Every request on a region of every mode, by its name and by its number."""
    owner = bed.client()
    secret = bed.random.randbytes(32)
    modes = [0o600, 0o640, 0o660, 0o604, 0o602, 0o606, 0o644, 0o666]
    regions: dict[tuple[int, str], int] = {}
    for mode, (attempt, _) in itertools.product(modes, _ATTEMPTS.items()):
        made = owner.allocate(f"theirs/{mode:o}/{attempt}", mode=mode, metadata=secret)
        made.write(secret)
        regions[mode, attempt] = made["region"]
        made.close()

    def attack() -> None:
        stranger = bed.client(STRANGER)
        listed = set(stranger.names("theirs/"))
        for (mode, attempt), number in regions.items():
            name = f"theirs/{mode:o}/{attempt}"
            readable, writable = bool(mode & 0o004), bool(mode & 0o002)
            request, needed = _ATTEMPTS[attempt]
            expected = needed(readable, writable)
            op, fields = request(name, number)
            reply = stranger.call(op, **fields)
            found = str(reply.get("error", "done"))
            if op == "get" and found == "done":
                found = "reads" if reply["readonly"] else "writes"
            if op == "get_many" and found == "done":
                found = "reads"
            if found != expected:
                words = f"{attempt} of mode {mode:o}: {found}, expected {expected}"
                raise AssertionError(words) if found in _REFUSALS else Unauthorised(words)
            if not readable:
                _tells_nothing(reply, secret, mode)
            if (name in listed) != readable:
                raise (Lost if readable else Unauthorised)(f"{name}: listed {name in listed}")
            if found in _REFUSALS:
                bed.refusals[found] += 1
            bed.count("attempts by another user")
            reply.close()
        stranger.release(*regions.values())
        stranger.ok("status")

    bed.start(attack, STRANGER).result()
    names = owner.names("theirs/")
    for (mode, attempt), number in regions.items():
        found = owner.ok("stat", region=number)
        allowed = mode & 0o002 and attempt in ("delete", "seal", "change metadata", "replace")
        untouched = (
            found["mode"] == mode
            and found["metadata"] == secret
            and not found["sealed"]
            and found["name"] in names
            and names[found["name"]]["region"] == number
        )
        if not (untouched or allowed):
            raise Unauthorised(f"{attempt} of mode {mode:o}: {found}")
        if held(owner, number)[os.getpid()] != 1:
            raise Unauthorised(f"a lease of {attempt} of mode {mode:o} is gone")
    for name in names:
        owner.ok("delete", name=name)


def _tells_nothing(reply: Reply, secret: bytes, mode: int) -> None:
    """A refusal says nothing of a region that its reader may not read."""
    told = repr(reply)
    if repr(secret)[2:-1] in told or re.search(rf"(?<!\d)({OWNER}|{mode:04o})(?!\d)", told):
        raise Unauthorised(f"a refusal tells of what may not be read: {told}")


_REFUSALS = {"PermissionDenied", "Gone", "InvalidRequest", "NotFound"}

_Request = Callable[[str, int], tuple[str, dict[str, Any]]]


def _known(refusal: str = "PermissionDenied") -> Callable[[bool, bool], str]:
    """Refused; by a number, who may neither read nor write is not told that it is there."""
    return lambda reads, writes: refusal if reads or writes else "Gone"


def _by_name(reads: bool, writes: bool) -> str:
    return "reads" if reads else "PermissionDenied"


def _by_number(reads: bool, writes: bool) -> str:
    return "reads" if reads else _known()(reads, writes)


def _writable(reads: bool, writes: bool) -> str:
    return "writes" if reads and writes else _by_name(reads, writes)


def _writable_by_number(reads: bool, writes: bool) -> str:
    return "writes" if reads and writes else _by_number(reads, writes)


def _writes(reads: bool, writes: bool) -> str:
    return "done" if writes else "PermissionDenied"


def _writes_by_number(reads: bool, writes: bool) -> str:
    return "done" if writes else _known()(reads, writes)


#: What another user tries, and what comes of it by the rights to read and to write.
_ATTEMPTS: dict[str, tuple[_Request, Callable[[bool, bool], str]]] = {
    "read": (lambda n, r: ("get", {"name": n, "readonly": True, "gpu": False}), _by_name),
    "write": (lambda n, r: ("get", {"name": n, "readonly": False, "gpu": False}), _writable),
    "read by number": (
        lambda n, r: ("get", {"region": r, "readonly": True, "gpu": False}),
        _by_number,
    ),
    "write by number": (
        lambda n, r: ("get", {"region": r, "readonly": False, "gpu": False}),
        _writable_by_number,
    ),
    "read in a batch": (
        lambda n, r: ("get_many", {"names": [n], "readonly": True, "gpu": False}),
        _by_name,
    ),
    "allocate": (
        lambda n, r: ("allocate", allocation(n)),
        lambda reads, writes: "done" if reads and writes else "PermissionDenied",
    ),
    "replace": (lambda n, r: ("create", allocation(n)), _writes),
    "publish": (lambda n, r: ("publish", {"region": r}), lambda reads, writes: "Gone"),
    "delete": (lambda n, r: ("delete", {"name": n}), _writes),
    "seal": (lambda n, r: ("seal", {"region": r}), _writes_by_number),
    "change mode": (lambda n, r: ("change", {"region": r, "mode": 0o666}), _known()),
    "change metadata": (
        lambda n, r: ("change", {"region": r, "metadata": b"theirs"}),
        _writes_by_number,
    ),
    "stat": (
        lambda n, r: ("stat", {"name": n}),
        lambda reads, writes: "done" if reads else "PermissionDenied",
    ),
    "stat by number": (
        lambda n, r: ("stat", {"region": r}),
        lambda reads, writes: "done" if reads else _known()(reads, writes),
    ),
    "digest": (
        lambda n, r: ("digest", {"region": r}),
        lambda reads, writes: "InvalidRequest" if reads else _known()(reads, writes),
    ),
    "call a copy": (
        lambda n, r: ("seal", {"region": r, "copy_of": ["0" * 32, 1]}),
        _known(),
    ),
}


@trial(others=True)
def readers_cannot_write_through_their_descriptor(bed: Bed) -> None:
    """Where a grant is enforced, the kernel refuses every way."""
    owner = bed.client()
    data = bed.random.randbytes(4096)
    owner.allocate("enforced", mode=0o644).write(data)

    def attack() -> None:
        for readonly in (True, False):
            grant = bed.client(STRANGER).get("enforced", readonly=readonly)
            assert (grant["readonly"], grant["enforced"]) == (True, True)
            _cannot_write(bed, grant)

    bed.start(attack, STRANGER).result()
    if owner.get("enforced").bytes() != data:
        raise Unauthorised("a reader has written")
    owner.ok("delete", name="enforced")
