"""Trials of workers on one region of weights: memory, updates, killed processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import gdrpy
from gdrpy import cuda
from gpumemory import nvml
from harness import Check, Measurement, Session, Topic
from sharedweights_model import LARGE, SMALL
from sharedweights_process import Process, broker, worker

MODULE = "sharedweights"
NAME = "weights"

#: The number of workers, and of updates while they run.
_WORKERS, _WORKERS_SMALL = 4, 2
_UPDATES, _UPDATES_SMALL = 8, 3
_MIB = 1 << 20
#: Seconds until released memory must be free.
_PATIENCE = 10.0

MEMORY = "GPU memory taken"


class Trial:
    """A broker, its workers, and the checks so far."""

    def __init__(self, session: Session, socket: str, small: bool, undo: ExitStack) -> None:
        self.checks: list[Check] = []
        self._session = session
        self._socket = socket
        self._undo = undo
        self._width = SMALL if small else LARGE
        self._count = _WORKERS_SMALL if small else _WORKERS
        self._updates = _UPDATES_SMALL if small else _UPDATES
        self._broker = self._kept(broker(socket))
        self._client = undo.enter_context(gdrpy.connect(socket, reconnect=30.0))
        #: The right answer of each version.
        self._answers: dict[int, str] = {}
        self._workers: list[Process] = []
        #: Bytes of the GPU in use when all workers have one version.
        self._steady = 0

    def all(self) -> None:
        """All trials, in the order of their dependencies."""
        publisher = self._measure_memory()
        self._update_while_workers_run(publisher)
        self._kill_a_worker(publisher)
        self._kill_the_broker(publisher)

    def mark_verified(self) -> None:
        """Mark all times as verified if every check passed."""
        right = all(one.passed for one in self.checks)
        for one in self._session.measurements:
            if one.topic.operation != MEMORY:
                one.verified = right

    def _measure_memory(self) -> Process:
        """The memory of a region, of workers on it, and of as many with separate copies.

        Returns a publisher, a process without weights.
        """
        self._session.step("memory: a region, and workers on it")
        empty = self._used()
        with worker("the first publisher", self._socket, self._width) as maker:
            maker.hear()
            self._publish(maker)
        alone = self._settled(empty + self._client.status()["used"]["0"])
        self._memory("the region, no process", [alone - empty], "after its maker has ended")
        names = [f"worker {number}" for number in range(1, self._count + 1)]
        publisher, *self._workers = self._started(["the publisher", *names])
        contexts = self._used() - alone
        each = contexts / (self._count + 1)
        how = f"of {self._count + 1} processes with a CUDA context and what torch makes once"
        self._memory("a process without weights", [each], how)

        for count, one in enumerate(self._workers, 1):
            self._attach(one)
            taken = self._used() - empty - contexts
            how = "less what they take without weights"
            self._memory(f"the region and {count} on it", [taken], how)
        answers = {found for one in self._workers for found in one.ask("forward", 5)}
        self._check("workers on the region answer as its maker did", answers == self._right(1))
        spread = self._used() - empty - contexts - (alone - empty)
        most = 0 if cuda.simulated() else (alone - empty) / 2
        words = f"{spread / _MIB:.1f} MiB more than the region, for {self._count} workers"
        self._check("the weights are counted once", spread <= most, words)

        if cuda.simulated():
            self._session.absent["memory of processes with their own copies"] = (
                "on the simulated GPU they are in host memory"
            )
            return publisher
        for one in self._workers:
            one.ask("leave")
        before = self._used()
        for count, one in enumerate(self._workers, 1):
            one.ask("copy")
            how = "the region and what they take without weights not counted"
            self._memory(f"{count} with copies of their own", [self._used() - before], how)
        answers = {found for one in self._workers for found in one.ask("forward", 5)}
        self._check("workers with copies answer the same", answers == self._right(1))
        return publisher

    def _update_while_workers_run(self, publisher: Process) -> None:
        self._session.step("updates while workers run")
        for one in self._workers:
            self._attach(one)
        self._steady = self._used()
        undisturbed = self._serve(lambda: time.sleep(0.2))
        served = self._serve(lambda: [self._publish(publisher) for _ in range(self._updates)])
        self._serving_figures("no update", undisturbed)
        self._serving_figures("updates", served)
        self._check_served("every answer is one version's, whole", served)
        newest = f"{max(self._answers)} "
        at_last = all(any(key.startswith(newest) for key in one["answers"]) for one in served)
        self._check("every worker came to the newest version", at_last)
        self._check_only_the_newest_is_left("old versions are freed")

    def _kill_a_worker(self, publisher: Process) -> None:
        self._session.step("a worker killed")
        victim = self._workers.pop()
        victim.ask("serve")
        served = self._serve(victim.kill)
        self._check_served("the others go on when a worker is killed", served)
        left = self._until(lambda: self._holders() == len(self._workers))
        self._check("a killed worker's lease is given back", left, f"{self._holders()} leases")
        served = self._serve(lambda: self._publish(publisher))
        self._check_served("the others take the next version", served)
        self._check_only_the_newest_is_left("what a killed worker had is freed")

    def _kill_the_broker(self, publisher: Process) -> None:
        self._session.step("the broker killed")
        contents = self._workers[0].ask("contents")
        self._broker.kill()
        right = self._right(max(self._answers))
        answers = {found for one in self._workers for found in one.ask("forward", 20)}
        self._check("workers go on while there is no broker", answers == right)

        self._broker = self._kept(broker(self._socket))
        (fresh,) = self._started(["a new worker"])
        self._attach(fresh)
        self._check("a new process finds the same bytes", fresh.ask("contents") == contents)
        self._check("and answers as the others", set(fresh.ask("forward", 5)) == right)
        self._workers.append(fresh)
        served = self._serve(lambda: self._publish(publisher))
        self._check_served("all take the next version from the next broker", served)
        self._check_only_the_newest_is_left("leases from before it are known to it")

    def _started(self, names: Sequence[str]) -> list[Process]:
        """Workers that are ready, started at the same time."""
        found = [self._kept(worker(name, self._socket, self._width)) for name in names]
        for one in found:
            one.hear()
        return found

    def _kept(self, process: Process) -> Process:
        return self._undo.enter_context(process)

    def _attach(self, one: Process) -> None:
        self._time("attach", [one.ask("attach")["ns"]], "get, and a model of views of the region")
        one.ask("forward", 1)

    def _publish(self, publisher: Process) -> None:
        seed = max(self._answers, default=0) + 1
        found = publisher.ask("publish", seed)
        self._answers[found["version"]] = found["answer"]
        how = "put_tensors of a model on the same GPU: allocate, copy, publish"
        self._time("publish", [found["ns"]], how)

    def _serve(self, meanwhile: Callable[[], object]) -> list[dict[str, Any]]:
        """The reports of workers that ran during an act."""
        for one in self._workers:
            one.ask("serve")
        meanwhile()
        for one in self._workers:
            one.tell("stop")
        return [one.hear() for one in self._workers]

    def _right(self, version: int) -> set[str]:
        return {self._answers[version]}

    def _check_served(self, what: str, served: list[dict[str, Any]]) -> None:
        """Check that every answer is that of the worker's version."""
        wrong = count_wrong(served, self._answers)
        answers = sum(sum(one["answers"].values()) for one in served)
        versions = {key.split()[0] for one in served for key in one["answers"]}
        found = f"{wrong} of {answers} answers wrong, of {len(versions)} versions"
        self._check(what, wrong == 0 and all(one["answers"] for one in served), found)

    def _check_only_the_newest_is_left(self, what: str) -> None:
        one = self._client.stat(NAME).size

        def regions() -> int:
            found: int = self._client.status()["used"]["0"]
            return found

        left = self._until(lambda: regions() == one and self._used() <= self._steady + one // 2)
        words = f"{regions() / _MIB:.0f} MiB of regions, a version has {one / _MIB:.0f}"
        more = (self._used() - self._steady) / _MIB
        self._check(what, left, f"{words}; {more:+.0f} MiB in use since before the updates")

    def _holders(self) -> int:
        info = self._client.stat(NAME)
        return info.readers + info.writers

    def _check(self, what: str, passed: bool, found: str = "") -> None:
        self.checks.append(Check(what, passed, found or ("yes" if passed else "no")))

    def _serving_figures(self, when: str, served: list[dict[str, Any]]) -> None:
        how = f"one answer of one of {self._count} workers at a time, with its way to the host"
        self._time(f"forward, {when}", [ns for one in served for ns in one["forwards"]], how)
        how = "the longest time from one answer of a worker to its next, of each worker"
        self._time(f"stall, {when}", [one["longest"] for one in served], how)
        if swaps := [ns for one in served for ns in one["swaps"]]:
            self._time("swap", swaps, "let the old version go, and attach")

    def _time(self, operation: str, nanoseconds: Sequence[float], method: str) -> None:
        self._add(
            Topic(MODULE, operation, unit="ms"), "gdrpy", method, [ns / 1e6 for ns in nanoseconds]
        )

    def _memory(self, way: str, nbytes: Sequence[float], method: str) -> None:
        self._add(Topic(MODULE, MEMORY, unit="MiB"), way, method, [one / _MIB for one in nbytes])

    def _add(self, topic: Topic, way: str, method: str, samples: list[float]) -> None:
        """Add samples to those of the same measurement."""
        added = Measurement(topic, way, method, samples)
        for one in self._session.measurements:
            if one.id == added.id:
                one.samples += samples
                return
        self._session.add(added)

    def _used(self) -> int:
        """Bytes of the GPU that are in use; of the simulated one those of regions."""
        if cuda.simulated():
            found: int = self._client.status()["used"].get("0", 0)
            return found
        with nvml() as library:
            return library.use(cuda.device_info(0).pci).memory

    def _settled(self, expected: int) -> int:
        """Bytes in use once an ended process has released its memory and its context."""
        self._until(lambda: self._used() <= expected + 64 * _MIB)
        return self._used()

    def _until(self, condition: Callable[[], bool]) -> bool:
        """Whether a condition comes true in time; no event reports freed memory."""
        deadline = time.monotonic() + _PATIENCE
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True


def count_wrong(served: Sequence[dict[str, Any]], right: Mapping[int, str]) -> int:
    """The number of answers that are not those of the worker's version."""
    known = {f"{version} {answer}" for version, answer in right.items()}
    told = [pair for one in served for pair in one["answers"].items()]
    return sum(count for key, count in told if key not in known)
