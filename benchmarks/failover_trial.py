"""Kills of engines and of the broker under load, and of a process whose GPU work is queued."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import gdrpy
from failover_front import PROMPTS, Engines, Examples, Front
from gdrpy import cuda
from gpumemory import nvml
from harness import Check, Figure, Measurement, Session, Topic
from sharedweights_process import Process, Silent
from sweep import figure_id

MODULE = "failover"
LEADER, STANDBY, BROKER = "leader", "standby", "broker"
#: The processes that are killed one after the other, by what the kill is called.
KINDS = {
    "the leader": (LEADER,),
    "a standby": (STANDBY,),
    "the broker": (BROKER,),
    "the leader, then the broker": (LEADER, BROKER),
    "the broker, then the leader": (BROKER, LEADER),
}
LEASE, END = "its lease has ended", "it has been waited for"

KILLS = figure_id(MODULE, "killed", "times")
ANSWERS = figure_id(MODULE, "killed", "answers")

_WRITER = Path(__file__).with_name("failover_writer.py")
_WEIGHTS, _KV = "weights", "kv"
_MIB = 1 << 20
_CLIENTS, _CLIENTS_SIMULATED = 8, 4
#: The longest times before a kill, and between two, in seconds.
_BEFORE, _BETWEEN = 0.05, 0.02
#: How often a writer is killed, its region's size, and the fills that are queued by then.
_WRITERS, _WRITERS_SIMULATED = 5, 2
_KV_NBYTES, _KV_NBYTES_SIMULATED = 256 * _MIB, _MIB
_QUEUED = 900
#: Seconds for which a dead writer's region is looked at, and until what ended must be freed.
_QUIET, _PATIENCE = 0.2, 20.0


class Trial:
    """A broker with a model's weights, and the checks so far."""

    def __init__(self, session: Session, folder: Path, engines: type[Engines] = Examples) -> None:
        self.checks: list[Check] = []
        self._session = session
        self._small = cuda.simulated()
        self.socket = f"{folder}/broker.sock"
        self.engines = engines(self.socket, folder)
        self._choice = random.Random(1)
        self._times: dict[str, list[float]] = {kind: [] for kind in KINDS}
        self._fences: dict[str, list[float]] = {LEASE: [], END: []}
        self._answers = self._wrong = 0
        self._fewest = _CLIENTS
        self._undo = ExitStack()

    def __enter__(self) -> Trial:
        with ExitStack() as undo:
            self._broker = self._served()
            undo.callback(lambda: self._broker.__exit__())
            self.client = undo.enter_context(gdrpy.connect(self.socket, reconnect=30.0))
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def all(self) -> None:
        """All trials, and what they leave."""
        self._session.step(f"{MODULE}: the model alone")
        right = self.engines.publish()
        alone = {"sessions": 1, "leases": 0}  # the session is this process's
        regions = self._settled(lambda status: alone.items() <= status.items())["regions"]
        contents, size = self._contents(), self.client.stat(_WEIGHTS).size
        before, descriptors = self._used(), self._descriptors()
        self._kill_under_load(right)
        self._kill_writers()

        self._check("the weights have the bytes that they had", self._contents() == contents)
        once = {"regions": regions, **alone}
        status = self._settled(
            lambda status: status["used"]["0"] == size and once.items() <= status.items()
        )
        found = f"{status['used']['0']} B of regions, the model has {size}"
        self._check("one model is what is left", status["used"]["0"] == size, found)
        left = {name: status[name] for name in once}
        found = ", ".join(f"{count} {name}" for name, count in left.items())
        self._check("no region, session or lease is left", left == once, found)
        most = before if self._small else before + 8 * _MIB
        self._until(lambda: self._used() <= most)
        found = f"{(self._used() - before) / _MIB:+.1f} MiB in use since before"
        self._check("GPU memory is back", self._used() <= most, found)
        # The broker and its keeper close theirs later: those of before may be too many.
        self._until(lambda: self._descriptors() <= descriptors)
        now = self._descriptors()
        found = f"{now} of this process, the broker and its keeper; before {descriptors}"
        self._check("no descriptor is left", now <= descriptors, found)

    def keep(self) -> None:
        """Keep times and figures in the session; they are verified if every check was passed."""
        right = all(one.passed for one in self.checks)
        how = "from the first SIGKILL to the next right answer, of an engine that was not killed"
        self._keep("next answer after a kill", how, self._times, right)
        how = "from its SIGKILL; then its region is looked at"
        self._keep("a process with queued GPU work is gone", how, self._fences, right)
        kills = sum(map(len, self._times.values()))
        self._session.derive_figure(Figure(KILLS, kills, ""))
        self._session.derive_figure(Figure(ANSWERS, self._answers, "", f"{self._wrong} wrong"))

    def _keep(self, operation: str, how: str, times: dict[str, list[float]], right: bool) -> None:
        topic = Topic(MODULE, operation, unit="ms")
        for way, taken in times.items():
            if taken:
                samples = [topic.sample(1e9 * one) for one in taken]
                self._session.add(Measurement(topic, way, how, samples, verified=right))

    def _kill_under_load(self, right: list[list[int]]) -> None:
        front = Front(self.engines)
        stop = threading.Event()
        clients = [
            threading.Thread(target=_ask, args=(front, right, number, stop))
            for number in range(_CLIENTS_SIMULATED if self._small else _CLIENTS)
        ]
        try:
            for client in clients:
                client.start()
            assert self._session.kills is not None
            for number, kind in enumerate(self._kinds(self._session.kills)):
                self._session.step(f"{MODULE}: kill {number + 1}: {kind}")
                self._times[kind].append(self._kill(front, kind))
        finally:
            stop.set()
            for client in clients:
                client.join()
            front.close()
            self._answers = len(front.answers)
            self._wrong = sum(not one.right for one in front.answers)
        found = f"{self._wrong} of {self._answers} answers wrong"
        self._check("every answer is that of the model alone", self._wrong == 0, found)
        found = f"{self._fewest} at least"
        self._check("several requests wait at each kill", self._fewest > 1, found)

    def _kinds(self, count: int) -> list[str]:
        """As many kinds, each as often as the others, in any order."""
        kinds = list(KINDS) * (count // len(KINDS) + 1)
        del kinds[count:]
        self._choice.shuffle(kinds)
        return kinds

    def _kill(self, front: Front, kind: str) -> float:
        """Kill, start the next broker if it was the broker; the seconds to the next answer."""
        front.wait_until(lambda: bool(front.leader and front.standby()))
        time.sleep(self._choice.uniform(0, _BEFORE))
        killed: set[int | None] = set()
        self._fewest = min(self._fewest, front.waiting)
        since, begun = len(front.answers), time.monotonic()
        for victim in KINDS[kind]:
            if victim != KINDS[kind][0]:
                time.sleep(self._choice.uniform(0, _BETWEEN))
            if victim == BROKER:
                self._broker.kill()
            elif engine := front.leader if victim == LEADER else front.standby():
                engine.process.kill()
                killed.add(engine.process.pid)
        if BROKER in KINDS[kind]:
            self._broker = self._served()
        return front.answered(since, killed) - begun

    def _kill_writers(self) -> None:
        """Kill processes whose writes to a region are queued, and look at it afterwards."""
        nbytes = _KV_NBYTES_SIMULATED if self._small else _KV_NBYTES
        self.client.allocate(_KV, nbytes, gpu=False).close()
        for way, gone in ((LEASE, self._lease_ended), (END, _ended)):
            self._session.step(f"{MODULE}: writers are killed: {way}")
            late = 0
            for _ in range(_WRITERS_SIMULATED if self._small else _WRITERS):
                late += self._kill_writer(way, gone)
            found = f"{late} of {len(self._fences[way])} wrote later"
            self._check(f"a killed process writes nothing once {way}", late == 0, found)
        self.client.delete(_KV)

    def _kill_writer(self, way: str, gone: Callable[[Any], bool]) -> bool:
        """Whether a writer that was killed wrote after it was gone."""
        command = [sys.executable, "-P", str(_WRITER), self.socket, _KV, str(_QUEUED)]
        with (
            self.client.get(_KV, gpu=False, readonly=True) as region,
            subprocess.Popen(command, stdout=subprocess.PIPE) as writer,
        ):
            assert writer.stdout is not None
            try:
                if not writer.stdout.readline():
                    raise Silent(f"the writer ended, status {writer.wait()}")
                if not _changes(region, _PATIENCE):
                    raise Silent("the writer does not write")
            finally:
                writer.kill()
            begun = time.monotonic()
            if not self._until(lambda: gone(writer)):
                raise Silent(f"the writer was killed, and not gone in {_PATIENCE:g} s")
            self._fences[way].append(time.monotonic() - begun)
            return _changes(region, _QUIET)

    def _lease_ended(self, _: Any) -> bool:
        return self.client.stat(_KV).writers == 0

    def _served(self) -> Process:
        """A broker that clients can connect to."""
        words = ("-P", "-m", "gdrpy", "serve", "--json", "--log-level=warning", "--socket")
        process = Process("the broker", *words, self.socket)
        process.hear()
        return process

    def _contents(self) -> str:
        with self.client.wake(_WEIGHTS, gpu=False) as region:
            return hashlib.sha256(region.read()).hexdigest()

    def _settled(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The broker's counters, once a condition holds or in the end."""
        self._until(lambda: condition(self.client.status()))
        return self.client.status()

    def _used(self) -> int:
        """Bytes of the GPU that are in use; of the simulated one those of regions."""
        if self._small:
            return int(self.client.status()["used"]["0"])
        with nvml() as library:
            return library.use(cuda.device_info(0).pci).memory

    def _descriptors(self) -> int:
        self.client.status()  # connected
        those = ("self", self._broker.pid, *self._keepers())
        return sum(len(list(Path(f"/proc/{one}/fd").iterdir())) for one in those)

    def _keepers(self) -> Iterable[int]:
        name = f"{self.socket}.keeper".encode()
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if name in path.read_bytes().split(b"\0"):
                    yield int(path.parent.name)
            except OSError:  # it has ended
                continue

    def _until(self, condition: Callable[[], bool]) -> bool:
        """Whether a condition comes true in time; no event reports it."""
        deadline = time.monotonic() + _PATIENCE
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
        return True

    def _check(self, what: str, passed: bool, found: str = "") -> None:
        self.checks.append(Check(what, passed, found or ("yes" if passed else "no")))


def _ask(front: Front, right: list[list[int]], seed: int, stop: threading.Event) -> None:
    """Ask until told to stop, without a pause."""
    choice = random.Random(seed)
    while not stop.is_set():
        number = choice.randrange(len(PROMPTS))
        front.ask(PROMPTS[number], right[number])


def _changes(region: gdrpy.BrokerRegion, seconds: float) -> bool:
    """Whether a region's first word changes within so many seconds."""
    noted = region.read(4)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if region.read(4) != noted:
            return True
    return False


def _ended(process: subprocess.Popen[bytes]) -> bool:
    return process.poll() is not None
