"""Trials of NCCL's ranks: right sums, use of GDRCopy, times, a killed rank."""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpumemory
from gdrpy import cuda
from harness import Check, Contender, Session, Timed
from nccl_log import Log
from nccl_pair import Pair
from sweep import AGAIN, SIZE, Sweep

MODULE = "nccl"
OPERATION = "all-reduce, two GPUs over sockets"

WITH = "GDRCopy"
WITH_AGAIN = f"{WITH} {AGAIN}"
WITHOUT = "without"
#: NCCL then allocates the memory that it pins by cudaMalloc, not by cuMemCreate.
ON_CUDA_MALLOC = "GDRCopy on cudaMalloc"
GAIN = "without over GDRCopy"
OVER_ITSELF = "GDRCopy over itself"

_SOCKETS_ALONE = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_NET": "Socket",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV",
}
_WAYS = {
    WITH: {"NCCL_GDRCOPY_ENABLE": "1"},
    ON_CUDA_MALLOC: {"NCCL_GDRCOPY_ENABLE": "1", "NCCL_CUMEM_ENABLE": "0"},
    WITHOUT: {"NCCL_GDRCOPY_ENABLE": "0"},
}

#: The environment of each way's ranks, besides the paths of libgdrapi.so and of the log.
ENVIRONMENTS = {way: _SOCKETS_ALONE | more for way, more in _WAYS.items()}

_TYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8")
_CHECKED = tuple(4 << power for power in range(27))
_CHECKED_ODD = (12, 100, 1000, 4100, 65540, 1000004, 16777220)
_CHECKED_OTHER_TYPES = (8, 1000, 65536, 1 << 20, 16 << 20)
_TIMED = tuple(4 << power for power in range(0, 27, 2))
_GROUP = 1000
_ITERATIONS = 1000

#: Signals that a rank must not end by when it lost its peer; torch itself ends it by SIGABRT.
_CRASHES = ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGTRAP")

#: Seconds until a GPU must have its memory back.
_SETTLED = 15


class Collective:
    """An all-reduce of ``nbytes`` by a pair, timed."""

    def __init__(self, pair: Pair, nbytes: int) -> None:
        self._pair = pair
        self._nbytes = nbytes

    def once(self) -> bool:
        return all(self._pair.ask("check", self._nbytes, "float32"))

    def batch(self, calls: int) -> int:
        return int(self._pair.ask("timed", self._nbytes, calls)[0])


def _is_right(timed: Timed) -> bool:
    return bool(timed.once())


@dataclass(frozen=True)
class State:
    """The memory in use of each GPU, and its processes."""

    uses: tuple[gpumemory.Use, ...]
    users: frozenset[int]

    def exceeds(self, before: State) -> bool:
        """Whether more is in use, or by more processes, than before."""
        return bool(self.users - before.users) or any(
            new.memory > old.memory or new.bar1 > old.bar1
            for old, new in zip(before.uses, self.uses, strict=True)
        )


def _state() -> State:
    """The state now. This process has a context on each GPU, so the GPUs stay started."""
    for ordinal in range(2):
        cuda.primary_context(ordinal)
    with gpumemory.nvml() as nvml:
        uses = tuple(nvml.use(cuda.device_info(ordinal).pci) for ordinal in range(2))
    return State(uses, frozenset(gpumemory.users()))


class Trial:
    """The pairs of ranks, and the checks of their answers."""

    def __init__(self, library: Path, folder: Path) -> None:
        self._library = library
        self._folder = folder
        self._pairs: dict[str, Pair] = {}
        self.checks: list[Check] = []
        self.logs: dict[str, list[Any]] = {}
        self.versions: dict[str, str] = {}

    def all(self, session: Session) -> None:
        """Everything, into the session and the checks. Raises RankFailed."""
        before = _state()
        with ExitStack() as undo:
            for way in _WAYS:
                session.step(f"starting {way}")
                self._pairs[way] = undo.enter_context(self._start(way))
            self.versions = self._pairs[WITH].versions
            self._use()
            for way in _WAYS:
                session.step(f"checking {way}")
                self._right(way)
                self._logged(way, self._pairs[way])
            self._time(session)
            for way in (ON_CUDA_MALLOC, WITHOUT):
                self._pairs[way].close()
            session.step("killing a rank")
            self._pairs[WITH].ask("forever")
            how = self._pairs[WITH].kill_one()
            crashed = any(name in how for name in _CRASHES)
            what = "rank 1 killed by SIGKILL while it iterates"
            self._check(what, not crashed, f"rank 0 {how}")
        self._left(before)
        with self._start(WITH) as pair:
            right = all(pair.ask("check", 1 << 20, "float32"))
            self._check("the next run", right, "right" if right else "WRONG SUMS")
            self._logged(WITH, pair)

    def _start(self, way: str) -> Pair:
        folder = Path(tempfile.mkdtemp(prefix="pair-", dir=self._folder))
        libraries = [str(self._library)]
        libraries += filter(None, [os.environ.get("LD_LIBRARY_PATH")])
        return Pair(
            ENVIRONMENTS[way]
            | {"LD_LIBRARY_PATH": ":".join(libraries), "NCCL_DEBUG_FILE": f"{folder}/%p.log"},
            folder,
        )

    def _logged(self, way: str, pair: Pair) -> None:
        """Check the logs of the ranks, after they made all channels."""
        logs = [Log.read(path.read_text(errors="replace")) for path in pair.folder.glob("*.log")]
        self.logs[way] = [log.json() for log in logs]
        reasons = [reason for log in logs if (reason := log.why_not_in_use())]
        if len(logs) != 2:
            reasons = [f"{len(logs)} logs of 2 ranks"]
        if way == WITHOUT:
            off = len(logs) == 2 and all(
                log.gdrcopy is None and log.socket_channels and not log.other_ways for log in logs
            )
            words = "not in use, all channels by NET/Socket" if off else "not as asked for"
            self._check("log without GDRCopy", off, words)
        else:
            words = "; ".join(reasons) or "enabled in both ranks, all channels by NET/Socket"
            self._check(f"log with {way}", not reasons, words)

    def _use(self) -> None:
        """Compare the mappings of a rank with those of a rank without GDRCopy."""
        found, plain = (self._pairs[way].ask("mappings")[0] for way in (WITH, WITHOUT))
        more = found["mappings"] - plain["mappings"]
        loaded = ", ".join(found["libraries"])
        self._check(
            f"GPU memory mapped by a rank with {WITH}",
            bool(loaded) and more > 0,
            f"{loaded or 'no libgdrapi'}, {more} mappings more than without",
        )

    def _right(self, way: str) -> None:
        pair = self._pairs[way]
        cases = [(nbytes, "float32") for nbytes in sorted((*_CHECKED, *_CHECKED_ODD))]
        cases += [(nbytes, name) for nbytes in _CHECKED_OTHER_TYPES for name in _TYPES[1:]]
        wrong = [
            f"{nbytes} B of {name}"
            for nbytes, name in cases
            if not all(pair.ask("check", nbytes, name))
        ]
        words = f"{len(cases)} sizes and types, 4 B to 256 MiB"
        self._check(f"sums, {way}", not wrong, words + "".join(f"; WRONG: {one}" for one in wrong))
        grouped = all(pair.ask("check_group", _GROUP))
        self._check(
            f"sums of {_GROUP} in one group, {way}", grouped, "right" if grouped else "WRONG"
        )
        right = pair.ask("iterate", _ITERATIONS)
        self._check(
            f"{_ITERATIONS} iterations, {way}",
            right == [_ITERATIONS] * 2,
            f"{min(right)} of them right in every element",
        )

    def _time(self, session: Session) -> None:
        sweep = Sweep(MODULE, OPERATION, (SIZE,))
        session.sweeps.append(sweep)
        for nbytes in _TIMED:
            session.step(f"{MODULE}: {nbytes} B")
            contenders = [
                Contender(
                    way,
                    "all-reduces one after the other, synchronized at the end",
                    Collective(self._pairs[WITHOUT if way == WITHOUT else WITH], nbytes),
                    _is_right,
                )
                for way in (WITH, WITH_AGAIN, WITHOUT)
            ]
            point = sweep.measure((nbytes,), contenders, session.seconds, least=5)
            sweep.keep(
                point,
                {
                    GAIN: point.ratio(WITHOUT, [WITH]),
                    OVER_ITSELF: point.ratio(WITH_AGAIN, [WITH]),
                },
            )

    def _left(self, before: State) -> None:
        """Check that the ranks left nothing behind, after a while."""
        deadline = time.monotonic() + _SETTLED
        while (after := _state()).exceeds(before) and time.monotonic() < deadline:
            time.sleep(0.2)
        for ordinal, (old, new) in enumerate(zip(before.uses, after.uses, strict=True)):
            self._check(
                f"GPU {ordinal} after all ranks: memory and BAR1 in use as before",
                new.memory <= old.memory and new.bar1 <= old.bar1,
                f"memory {new.memory - old.memory:+d} B, BAR1 {new.bar1 - old.bar1:+d} B",
            )
        stray = after.users - before.users
        self._check("processes that have a GPU open, more than before", not stray, str(len(stray)))

    def _check(self, what: str, passed: bool, found: str) -> None:
        self.checks.append(Check(what, passed, found))
