"""SIGKILLs of processes whose engine copies, and of processes whose memory is copied."""

from __future__ import annotations

import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import gdrpy
from copyengine_child import GUARD, VIA, noise
from gdrpy import Region, cuda
from gpumemory import free_nbytes, memory_back
from harness import Figure, Measurement, Session, Topic
from payload import STALE, Bytes, GpuBytes, same
from sweep import figure_id

MODULE = "copyengine"
KILLED = "SIGKILL amid copies, until its GPU memory is back"
ITSELF, OWNER = "itself", "owner"
WAYS = {ITSELF: "the process that copies", OWNER: "the owner of memory that is copied"}

KILLS = figure_id(MODULE, "killed", "processes")
WRONG = figure_id(MODULE, "killed", "with wrong bytes")
LONGEST = figure_id(MODULE, "killed", "longest time until GPU memory is back")
LEFT = figure_id(MODULE, "killed", "GPU memory less in the end")
DESCRIPTORS = figure_id(MODULE, "killed", "descriptors more in the end")

_CHILD = Path(__file__).resolve().parent / "copyengine_child.py"
MIB = 1 << 20
_NBYTES, _SMALL_NBYTES = 8 * MIB, MIB
_MOST, _QUICK = 1000, 4
_SECONDS = 100
#: Seconds: to be born, and to be gone; until memory is back; and of a process's copies.
_PATIENCE, _MEMORY_PATIENCE, _LONGEST_LIFE = 30.0, 5.0, 0.004


@dataclass
class _Trial:
    """The memory that is copied, and the findings so far: seconds until GPU memory was back."""

    region: Region
    contents: list[Bytes]
    seen: Bytes
    free: int
    peer: socket.socket
    times: dict[str, list[float]] = field(default_factory=lambda: {ITSELF: [], OWNER: []})
    wrong: dict[str, int] = field(default_factory=lambda: {ITSELF: 0, OWNER: 0})


def run(session: Session) -> None:
    """Kill processes into the session: as many as it wants, else what fits into 100 s."""
    small = session.quick or cuda.simulated()
    nbytes = _SMALL_NBYTES if small else _NBYTES
    most = session.kills or (_QUICK if session.quick else _MOST)
    deadline = time.monotonic() + (_SECONDS if session.kills is None else float("inf"))
    choice = random.Random(1)
    with ExitStack() as undo:
        region = undo.enter_context(gdrpy.alloc(nbytes + 2 * GUARD))
        seen = np.zeros(nbytes, np.uint8)
        undo.enter_context(gdrpy.register(seen))
        region.readinto(seen, GUARD, VIA)
        contents = [noise(seed, nbytes) for seed in range(2)]
        peer = undo.enter_context(_nursery(region, nbytes))
        free = free_nbytes()
        for kill in _KINDS:  # makes what this process keeps
            kill(_Trial(region, contents, seen, 0, peer), choice)
        memory_back(free, 1)
        descriptors = _descriptors()
        trial = _Trial(region, contents, seen, free_nbytes(), peer)
        while (done := sum(map(len, trial.times.values()))) < most:
            if time.monotonic() > deadline:
                break
            session.step(f"{MODULE}: process {done + 1} of {most} is killed")
            _KINDS[done % len(_KINDS)](trial, choice)
        less, more = trial.free - free_nbytes(), _descriptors() - descriptors
    _keep(session, trial)
    session.derive_figure(Figure(LEFT, less, "B"))
    session.derive_figure(Figure(DESCRIPTORS, more, ""))


def _kill_itself(trial: _Trial, choice: random.Random) -> None:
    """Kill a process that writes and reads the region by its engine."""
    gpu, nbytes = GpuBytes(trial.region.ptr), trial.seen.nbytes
    gpu.fill(nbytes + 2 * GUARD)
    pid, _ = _born(trial.peer, ITSELF, choice)
    with _ending(pid) as ended:
        time.sleep(choice.uniform(0, _LONGEST_LIFE))
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        ended(_PATIENCE)
    trial.times[ITSELF].append(_back(trial, killed))
    found = gpu.get(nbytes + 2 * GUARD)
    inner = found[GUARD:-GUARD]
    one, other = trial.contents
    right = (found[:GUARD] == STALE).all() and (found[-GUARD:] == STALE).all()
    right = right and bool(((inner == one) | (inner == other)).all())
    kept = inner.copy()
    trial.seen.fill(STALE)
    trial.region.readinto(trial.seen, GUARD, VIA)
    trial.wrong[ITSELF] += not (right and same(trial.seen, kept))


def _kill_owner(trial: _Trial, choice: random.Random) -> None:
    """Kill a process while it and this one copy the region that it owns."""
    pid, fds = _born(trial.peer, OWNER, choice)
    seen, (content, other) = trial.seen, trial.contents
    right = True
    with gdrpy.Region.from_fd(fds[0], gpu=False) as region, _ending(pid) as ended:
        os.close(fds[0])
        life = time.monotonic() + choice.uniform(0, _LONGEST_LIFE)
        over, killed = False, 0.0
        while not over:
            over = bool(killed) and (ended(0) or time.monotonic() - killed > _PATIENCE)
            if not killed and time.monotonic() > life:
                os.kill(pid, signal.SIGKILL)
                killed = time.monotonic()
            seen.fill(STALE)
            region.readinto(seen, GUARD, VIA)
            right = right and same(seen, content)
        region.write(other, GUARD, VIA)
        region.readinto(seen, GUARD, VIA)
        right = right and same(seen, other)
    trial.times[OWNER].append(_back(trial, time.monotonic()))
    trial.wrong[OWNER] += not right


_KINDS = (_kill_itself, _kill_owner)


def _back(trial: _Trial, since: float) -> float:
    """Seconds until the GPU has as much free memory as before."""
    memory_back(trial.free, _MEMORY_PATIENCE)
    return time.monotonic() - since


def _keep(session: Session, trial: _Trial) -> None:
    topic = Topic(MODULE, KILLED, unit="ms")
    methods = {
        ITSELF: "from its SIGKILL; the region's bytes are then held against both that it wrote, "
        "and against guards around them",
        OWNER: "from the end of its last user, after its SIGKILL; every copy is verified",
    }
    for kind, times in trial.times.items():
        if times:
            samples = [topic.sample(1e9 * one) for one in times]
            right = not trial.wrong[kind]
            session.add(Measurement(topic, WAYS[kind], methods[kind], samples, verified=right))
    kinds = ", ".join(f"{len(times)}: {WAYS[kind]}" for kind, times in trial.times.items())
    count = sum(map(len, trial.times.values()))
    session.derive_figure(Figure(KILLS, count, "", kinds))
    session.derive_figure(Figure(WRONG, sum(trial.wrong.values()), "", f"of {count}"))
    longest = max(max(times, default=0) for times in trial.times.values())
    session.derive_figure(Figure(LONGEST, longest, "s"))


def _born(peer: socket.socket, kind: str, choice: random.Random) -> tuple[int, list[int]]:
    """A new process that copies by now, and the descriptors that it sent."""
    peer.send(f"{kind} {choice.choice(('registered', 'ordinary'))}".encode())
    pid = int(_received(peer)[0])
    deadline = time.monotonic() + _PATIENCE
    with _ending(pid) as ended:
        while not select.select([peer], [], [], 0.05)[0]:
            if ended(0):
                raise RuntimeError(f"process {pid} ended before its first copy")
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"no first copy of process {pid} in {_PATIENCE} s: {_state(pid)}"
                )
    return pid, _received(peer)[1]


def _received(peer: socket.socket) -> tuple[bytes, list[int]]:
    said, fds, _, _ = socket.recv_fds(peer, 64, 1)
    if not said:
        raise RuntimeError(f"{_CHILD.name} nursery ended")
    return said, fds


def _state(pid: int) -> str:
    """Describe what a process waits for, from its files in /proc."""
    found = []
    for name in ("wchan", "syscall", "stack"):
        with suppress(OSError):
            found.append(f"{name} {Path(f'/proc/{pid}/{name}').read_text().strip()}")
    return ", ".join(found)


@contextmanager
def _nursery(region: Region, nbytes: int) -> Iterator[socket.socket]:
    """The socket of a process that forks those that are killed. It has no CUDA."""
    own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    own.settimeout(_PATIENCE)
    fd = region.export()
    command = [sys.executable, str(_CHILD), "nursery", str(fd), str(theirs.fileno())]
    with own, subprocess.Popen(command, pass_fds=[fd, theirs.fileno()]) as process:
        theirs.close()
        os.close(fd)
        try:
            own.send(str(nbytes).encode())
            own.recv(64)
            yield own
        finally:
            process.kill()


@contextmanager
def _ending(pid: int) -> Iterator[Callable[[float], bool]]:
    """A function that waits so many seconds for another's child, and tells whether it ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        yield lambda _: True
        return
    try:
        yield lambda seconds: bool(select.select([descriptor], [], [], seconds)[0])
    finally:
        os.close(descriptor)


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
