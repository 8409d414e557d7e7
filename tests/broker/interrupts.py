"""Ctrl-C at any moment of a client's calls: by a signal after any time or at any system call, or at
any bytecode.

After each of them the same connection serves on, no lock is held, nothing more is open in this
process, and the broker holds for it what it held before.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import faulthandler
import gc
import json
import pickle
import platform
import random
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import gdrpy
from brokers import Broker, Template, running
from gdrpy.broker.client.broker import shared_broker
from gdrpy.memory.descriptors import fork_lock
from gdrpy.memory.reclaim import reclaim
from killing import Steps
from support import open_descriptors

#: Seconds after which a call hangs.
_PATIENCE = 5.0
#: What a call may take, as a multiple of what it takes when nothing comes.
_LATEST = 1.3

Call = Callable[[gdrpy.Broker], object]


def get(broker: gdrpy.Broker) -> None:
    broker.get("named", gpu=False).close()


def get_gpu(broker: gdrpy.Broker) -> None:
    broker.get("named").close()


def get_and_drop(broker: gdrpy.Broker) -> None:
    broker.get("host")


def get_gpu_and_drop(broker: gdrpy.Broker) -> None:
    broker.get("named")


def get_many(broker: gdrpy.Broker) -> None:
    for region in broker.get_many(["named", "host", "named"], gpu=False):
        region.close()


def allocate(broker: gdrpy.Broker) -> None:
    broker.allocate(None, 4096, device="cpu").close()


def create(broker: gdrpy.Broker) -> None:
    broker.create("draft", 4096, device="cpu").close()


def publish(broker: gdrpy.Broker) -> None:
    with broker.create("published", 4096, device="cpu") as draft:
        draft.publish()


def delete(broker: gdrpy.Broker) -> None:
    with contextlib.suppress(gdrpy.NotFound):
        broker.delete("published")


def list_all(broker: gdrpy.Broker) -> None:
    broker.list()


def stat(broker: gdrpy.Broker) -> None:
    broker.stat("named")


def watch(broker: gdrpy.Broker) -> None:
    with broker.watch() as events:
        broker.allocate("watched", 4096, device="cpu").close()
        next(events)
        broker.delete("watched")


def connect(broker: gdrpy.Broker) -> None:
    with gdrpy.connect(broker.socket) as other:
        other.get("host")


def resume_get(broker: gdrpy.Broker) -> None:
    broker._connection._settled = False  # as after an interrupted call
    get(broker)


def resume_get_many(broker: gdrpy.Broker) -> None:
    broker._connection._settled = False
    get_many(broker)


def put(broker: gdrpy.Broker) -> None:
    broker.put("published", np.zeros(4)).close()
    broker.delete("published")


def wait(broker: gdrpy.Broker) -> None:
    with contextlib.suppress(gdrpy.Timeout):
        broker.get("absent", gpu=False, wait=0.001)


def seal(broker: gdrpy.Broker) -> None:
    with broker.allocate("published", 4096, device="cpu") as region:
        region.seal()
        region.digest()
        region.info()
    broker.delete("published")


def unpickle(broker: gdrpy.Broker) -> None:
    with broker.get("named", gpu=False) as region:
        pickled = pickle.dumps(region)
    pickle.loads(pickled).close()


CALLS: dict[str, Call] = {
    call.__name__: call
    for call in (
        get,
        get_gpu,
        get_and_drop,
        get_gpu_and_drop,
        get_many,
        allocate,
        create,
        publish,
        delete,
        list_all,
        stat,
        watch,
        connect,
        resume_get,
        resume_get_many,
        put,
        wait,
        seal,
        unpickle,
    )
}


class Client:
    """A client of a broker, whose calls are interrupted."""

    def __init__(self, broker: Broker) -> None:
        self.broker = gdrpy.connect(broker.path)
        self.observer = broker.client()
        self.held = self.broker.allocate(None, 4096, device="cpu")
        for name, device in (("named", 0), ("host", "cpu")):
            self.broker.allocate(name, 4096, device=device, gpu=False).close()
        for call in CALLS.values():
            call(self.broker)
        gc.collect()
        gc.freeze()  # what is there by now is not looked through after each interrupt
        self.before = self.open()
        self.leases = self.observer.ok("status")["leases"]
        self.leaks: list[str] = []

    def open(self) -> collections.Counter[str]:
        """What this process has open and mapped, by its kind."""
        reclaim(0)
        found = collections.Counter(name.partition(":[")[0] for name in open_descriptors().values())
        for line in Path("/proc/self/maps").read_text().splitlines():
            if "/memfd:gdrpy" in line:
                found[f"mapped {line[73:]}"] += 1
        return found

    def check(self, when: str) -> None:
        """All is as it was."""
        if self.broker._connection.transport.lock.locked() or fork_lock._is_owned():  # type: ignore
            raise AssertionError(f"{when}: a lock is held")
        for broker in (self.broker, shared_broker(self.broker.socket)):
            broker.stat("host")  # which resumes what was interrupted
        gc.collect()
        for name in ("published", "watched"):
            with contextlib.suppress(gdrpy.NotFound):
                self.broker.delete(name)
        if self.held._lease.lost:
            raise AssertionError(f"{when}: what was held is not any more")
        more = self.open() - self.before
        if more:
            self.leaks.append(f"{when}: {dict(more)}")
            self.before = self.open()
        deadline = time.monotonic() + _PATIENCE  # until the broker has read what was sent last
        while (found := self.observer.ok("status")["leases"]) != self.leases:
            if time.monotonic() > deadline:
                self.leaks.append(f"{when}: {found} leases, and not {self.leases}")
                self.leases = found

    def close(self) -> None:
        """End it."""
        self.held.close()
        self.broker.close()
        self.observer.close()


@contextlib.contextmanager
def client_of_its_own() -> Iterator[Client]:
    """A client, and its broker."""
    template = Template()
    with (
        tempfile.TemporaryDirectory() as folder,
        running(template, Path(folder)) as broker,
    ):
        client = Client(broker)
        yield client
        client.close()
    template.close()


def at_bytecode(call: Call, broker: gdrpy.Broker, number: int) -> str | None:
    """Make a call that is interrupted before a bytecode of gdrpy's; where that was."""
    left, where = number, None

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left, where
        if "/gdrpy/" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left < 0 and where is None:
                where = f"{frame.f_code.co_qualname}:{frame.f_lineno}+{frame.f_lasti}"
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        call(broker)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    return where


def at_every_bytecode(client: Client, name: str, step: int = 1) -> int:
    """Interrupt a call at each of its bytecodes in turn, or some; how many there are."""
    number = 0
    with _finalizers_interrupted(), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of coroutines that were not begun
        while where := at_bytecode(CALLS[name], client.broker, number):
            client.check(f"{name} before bytecode {number}, {where}")
            number += step
    return number


@contextlib.contextmanager
def _finalizers_interrupted() -> Iterator[list[str]]:
    """What was raised in finalizers meanwhile, where Python lets nothing out."""
    raised: list[str] = []
    hook = sys.unraisablehook
    sys.unraisablehook = lambda unraisable: raised.append(unraisable.exc_type.__name__)
    try:
        yield raised
    finally:
        sys.unraisablehook = hook


class Alarm:
    """A signal after some time, for which KeyboardInterrupt is raised during one call."""

    def __init__(self) -> None:
        self.armed = False
        #: How often the signal came.
        self.rung = 0
        self._before = signal.signal(signal.SIGALRM, self._ring)

    def _ring(self, *_: object) -> None:
        self.rung += 1
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt

    def interrupts(self, call: Call, broker: gdrpy.Broker, seconds: float) -> bool:
        """Make a call; whether that was interrupted."""
        try:
            try:
                self.armed = True
                signal.setitimer(signal.ITIMER_REAL, seconds)
                call(broker)
            finally:
                self.armed = False
                signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            return True
        return False

    def interrupts_at(self, step: int, steps: Steps, call: Call, broker: gdrpy.Broker) -> bool:
        """Make a call; whether it took so many steps. The killer sends the signal at the last."""
        rung = self.rung
        try:
            try:
                self.armed = True
                steps.arm(step)
                call(broker)
            finally:
                self.armed = False
                steps.arm(0)
        except KeyboardInterrupt:
            pass
        return self.rung > rung

    def close(self) -> None:
        """Have the signal mean what it meant before."""
        signal.signal(signal.SIGALRM, self._before)


def at_every_step(client: Client, name: str, steps: Steps) -> int:
    """Interrupt a call before and after each of its system calls in turn; how many steps it took.

    The killer sends this process SIGALRM.
    """
    step = 1
    alarm = Alarm()
    try:
        with _finalizers_interrupted():
            while True:
                faulthandler.dump_traceback_later(4 * _PATIENCE, exit=True)
                if not alarm.interrupts_at(step, steps, CALLS[name], client.broker):
                    return step - 1
                client.check(f"{name} at step {step}")
                step += 1
    finally:
        faulthandler.cancel_dump_traceback_later()
        alarm.close()


def by_signals(client: Client, interrupts: int, seed: int) -> dict[str, Any]:
    """Interrupt calls by signals at random moments so often; what was done."""
    chance = random.Random(seed)
    usual = {name: _usual(call, client.broker) for name, call in CALLS.items()}
    done: collections.Counter[str] = collections.Counter()
    calls = 0
    alarm = Alarm()
    try:
        with _finalizers_interrupted() as swallowed:
            while done.total() + len(swallowed) < interrupts:
                name = chance.choice(list(CALLS))
                calls += 1
                faulthandler.dump_traceback_later(4 * _PATIENCE, exit=True)
                moment = chance.uniform(1e-6, _LATEST * usual[name])
                if alarm.interrupts(CALLS[name], client.broker, moment):
                    done[name] += 1
                client.check(f"{name} after {1e6 * moment:.1f} us")
    finally:
        faulthandler.cancel_dump_traceback_later()
        alarm.close()
    return {
        "interrupts": done.total() + len(swallowed),
        "of_calls": dict(sorted(done.items())),
        "of_finalizers": len(swallowed),
        "calls": calls,
    }


def _usual(call: Call, broker: gdrpy.Broker) -> float:
    """Seconds that a call takes."""
    taken = []
    for _ in range(20):
        begun = time.monotonic()
        call(broker)
        taken.append(time.monotonic() - begun)
    return sorted(taken)[len(taken) // 2]


def run(interrupts: int, seed: int) -> dict[str, Any]:
    """One run on a broker of its own; what it did, to be recorded."""
    begun = time.monotonic()
    with client_of_its_own() as client:
        done = by_signals(client, interrupts, seed)
        leaks = client.leaks
    for leak in leaks:
        print(leak, file=sys.stderr)
    return {
        **done,
        "seed": seed,
        "hangs": 0,  # else the process would have ended
        "leaks": len(leaks),
        "seconds": round(time.monotonic() - begun, 1),
        "kernel": platform.release().partition("-")[0],
        "python": platform.python_version(),
    }


def step_on() -> dict[str, Any]:
    """Interrupt all calls at every step; how many each took, and what was left behind."""
    steps = Steps()
    with client_of_its_own() as client:
        taken = {name: at_every_step(client, name, steps) for name in CALLS}
        return {"steps": taken, "leaks": client.leaks}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--interrupts", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where to write what was done")
    parser.add_argument("--steps", action="store_true", help="at each system call instead")
    options = parser.parse_args()
    gc.freeze()
    report = step_on() if options.steps else run(options.interrupts, options.seed)
    text = json.dumps(report, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
