"""Brokers as processes of their own, which tests kill and start again.

Each comes from a *template*: a process that has imported everything and forks a broker when told
to, so that the hundreds of starts of the kill tests take milliseconds each.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import gc
import importlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rawclient import RawClient

#: An ordinary user for brokers that must not be root; nothing else here runs as it.
BROKER_UID = 54321
_PR_SET_DUMPABLE = 4


@dataclass
class Setup:
    """How to run a broker. ``quotas`` and ``options`` are the fields of the server's own."""

    path: str
    quotas: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    linger: float = 30.0
    uid: int | None = None
    descriptors: int | None = None
    #: Bytes after which a journal is begun anew, three records at a time.
    journal: int | None = None
    #: A file for what :func:`longest` finds there.
    turns: str | None = None
    log: str | None = None


class Template:
    """Forks brokers. One at a time: each answers to the next :meth:`start` when it has ended."""

    def __init__(self, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            env=os.environ | {"GDRPY_SIM": "1"} | environment,
            cwd=Path(__file__).parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, setup: Setup) -> int:
        """Fork a broker; its process number when clients can connect to it."""
        self.fork(setup)
        ready = self.line()
        if ready["event"] != "ready":
            raise RuntimeError(f"the broker did not start: {ready}")
        return int(ready["pid"])

    def fork(self, setup: Setup) -> None:
        """Have a broker forked, without waiting for it."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(setup.__dict__) + "\n")
        self._process.stdin.flush()

    def line(self) -> dict[str, Any]:
        """What the broker, or the template about it, says next."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the template ended")
        found: dict[str, Any] = json.loads(line)
        return found

    def ended(self) -> int:
        """Wait for the broker's end; its status as of waitpid."""
        while True:
            event = self.line()
            if event["event"] == "ended":
                return int(event["status"])

    def close(self) -> None:
        """End the template."""
        self._process.communicate()


class Broker:
    """A broker that can be killed and started again at its place; its log is kept."""

    def __init__(self, template: Template, folder: Path, **setup: Any) -> None:
        self._template = template
        self.log = folder / "broker.log"
        self.setup = Setup(str(folder / "broker.sock"), log=str(self.log), **setup)
        self.path = self.setup.path
        self.pid = 0

    def start(self) -> Broker:
        """Start it, or the next one after its end."""
        self.pid = self._template.start(self.setup)
        return self

    def client(self, **options: Any) -> RawClient:
        """A new connection."""
        return RawClient(self.path, **options)

    def kill(self) -> None:
        """End it by SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)
        self.await_end()

    def await_end(self) -> int:
        """Wait until it has ended; its status as of waitpid."""
        self.pid = 0
        return self._template.ended()

    def restart(self) -> None:
        """Kill it, and start the next one."""
        self.kill()
        self.start()

    def stop(self) -> int:
        """End it by SIGTERM, and its keeper with it; its exit status."""
        os.kill(self.pid, signal.SIGTERM)
        return os.waitstatus_to_exitcode(self.await_end())

    @property
    def keeper(self) -> int:
        """Its keeper's process number, when there is one."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            found = self.keepers()
            if len(found) == 1:
                return found[0]
        raise ProcessLookupError(f"{len(found)} keepers")

    def keepers(self) -> list[int]:
        """The processes that listen as its keeper, or did until another one took their place."""
        listeners = set(_listeners(f"{self.path}.keeper"))
        pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
        return [
            pid for pid in pids if pid != self.pid and not listeners.isdisjoint(descriptors(pid))
        ]

    def errors(self) -> list[str]:
        """What its log has of errors and of exceptions that nobody expected."""
        text = self.log.read_text() if self.log.exists() else ""
        return [line for line in text.splitlines() if line.startswith(("ERROR", "Traceback"))]


#: Starts a broker; keywords are the fields of :class:`Setup`.
StartBroker = Callable[..., Broker]


@contextmanager
def running(template: Template, folder: Path, **setup: Any) -> Iterator[Broker]:
    """A broker, and the next ones at its place; at the end the last one lives, has logged no error
    and leaves nothing behind.
    """
    if setup.get("uid") is not None:  # pytest's folders are root's alone
        with tempfile.TemporaryDirectory() as public:
            Path(public).chmod(0o777)
            with _running(Broker(template, Path(public), **setup)) as broker:
                yield broker
    else:
        with _running(Broker(template, folder, **setup)) as broker:
            yield broker


@contextmanager
def _running(broker: Broker) -> Iterator[Broker]:
    broker.start()
    await_one_journal(broker.pid)
    try:
        yield broker
        if broker.pid:
            keeper = broker.keeper
            assert broker.stop() == 0
            await_end(keeper)
            assert not Path(broker.path).exists()
        assert broker.errors() == [], broker.errors()
    finally:
        if broker.pid:
            broker.kill()


def await_end(pid: int, seconds: float = 20.0) -> None:
    """Wait until a process, of whomever it is a child, has ended."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(process, select.POLLIN)
        assert poll.poll(1000 * seconds), f"process {pid} did not end"
    finally:
        os.close(process)


def resident(pid: int) -> int:
    """KiB of a process's memory."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise ProcessLookupError(pid)


def descriptors(pid: int | str) -> list[str]:
    """What a process has open."""
    found = []
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                found.append(str(entry.readlink()))
            except OSError:
                continue
    except OSError:
        return []
    return found


def await_descriptors(pid: int, wanted: list[str], seconds: float = 20.0) -> None:
    """Wait until a process has open what it is to have, as many sockets as then for one: closing
    memory is a thread's work.
    """
    deadline = time.monotonic() + seconds
    while (found := _kinds(descriptors(pid))) != _kinds(wanted):
        assert time.monotonic() < deadline, found - _kinds(wanted)
        time.sleep(0.002)


def await_one_journal(pid: int, seconds: float = 20.0) -> None:
    """Wait until a broker has closed the journal that its own replaced: it serves before that."""
    deadline = time.monotonic() + seconds
    while (found := sum("gdrpy-journal" in name for name in descriptors(pid))) > 2:  # it is mapped
        assert time.monotonic() < deadline, f"{found} descriptors of journals"
        time.sleep(0.002)


def _kinds(names: list[str]) -> collections.Counter[str]:
    return collections.Counter(name.partition(":[")[0] for name in names)


def _listeners(path: str) -> Iterator[str]:
    """What /proc calls the sockets that listen at a path."""
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        words = line.split()
        if words[7:] == [path] and int(words[3], 16) & 0x10000:
            yield f"socket:[{words[6]}]"


def _say(event: str, **more: Any) -> None:
    os.write(1, (json.dumps({"event": event, **more}) + "\n").encode())


def _serve(setup: Setup) -> None:
    """Be a broker, in a forked child."""
    import logging

    from gdrpy.broker.server import daemon, state, store

    os.environ.update(setup.environment)
    if setup.log is not None:
        log = os.open(setup.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(log, 2)
        os.close(log)
    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.INFO, force=True)
    if setup.descriptors is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (setup.descriptors, setup.descriptors))
    if setup.uid is not None:
        os.setgroups([])
        os.setresgid(setup.uid, setup.uid, setup.uid)
        os.setresuid(setup.uid, setup.uid, setup.uid)
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)  # as if it had been started so
        store.subprocess.Popen = _forked_keeper  # type: ignore[misc, assignment]
    if setup.journal is not None:
        state._COMPACT_BYTES, state._COMPACT_RATIO, state._COMPACT_SLICE = setup.journal, 1, 3
    if setup.turns is not None:
        _measure(daemon, setup.turns)
    if getattr(sys, "_is_gil_enabled", lambda: True)():  # else the broker collects garbage
        _watch_garbage(daemon)
    quotas = daemon.Quotas(**setup.quotas)
    kept = functools.partial(store.KeeperStore, f"{setup.path}.keeper", setup.linger)
    options = daemon.Options(setup.path, quotas, kept, **setup.options)
    daemon.serve(options, "test", lambda *_: _say("ready", pid=os.getpid()))


def _watch_garbage(daemon: Any) -> None:
    """Have a broker log as errors that it makes garbage that only the collector finds, and that it
    runs that: it would take as long as there is much to look at.
    """
    run = daemon.Server.run

    def complain(phase: str, about: dict[str, int]) -> None:
        print(f"ERROR garbage is collected: {phase} {about}", file=sys.stderr, flush=True)

    def watched(server: Any) -> None:
        for thread in threading.enumerate():
            if getattr(thread, "_target", None) is daemon._begin_cuda:
                thread.join()
        gc.collect()  # what importing everything and beginning CUDA left
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.callbacks.append(complain)
        run(server)
        gc.callbacks.remove(complain)
        gc.collect()
        if gc.garbage:
            kinds = collections.Counter(type(one).__name__ for one in gc.garbage)
            print(f"ERROR garbage: {dict(kinds)}", file=sys.stderr, flush=True)

    daemon.Server.run = watched


def _measure(daemon: Any, path: str) -> None:
    """Have a broker note its longest turn, and pass of its loop."""
    clock = time.thread_time
    worst: dict[str, Any] = {}
    out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC)

    def note(what: str, began: float, about: str = "") -> None:
        took = round(1000 * (clock() - began), 3)
        if took < 0.05:
            return
        if not os.fstat(out).st_size:  # somebody emptied it, to have it measured anew
            worst.clear()
        if took > 2:
            worst[f"{what}_over_2_ms"] = worst.get(f"{what}_over_2_ms", 0) + 1
        elif took < worst.get(f"{what}_ms", 0):
            return
        worst[f"{what}_ms"] = max(took, worst.get(f"{what}_ms", 0))
        if about:
            worst[what] = about
        os.pwrite(out, json.dumps(worst).encode().ljust(1000), 0)

    class Poll:
        """The loop's epoll, which sees how long each pass takes."""

        def __init__(self, epoll: select.epoll) -> None:
            self.epoll, self.began = epoll, clock()
            self.register, self.modify = epoll.register, epoll.modify

        def poll(self, timeout: float | None, most: int) -> list[tuple[int, int]]:
            note("pass", self.began)
            found = self.epoll.poll(timeout, most)
            self.began = clock()
            return found

    class Server(daemon.Server):  # type: ignore[misc]
        """A loop with a clock."""

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self._epoll = Poll(self._epoll)

        def _guarded(self, do: Any, *args: Any, client: Any = None) -> None:
            began = clock()
            super()._guarded(do, *args, client=client)
            note("turn", began, getattr(do, "func", do).__name__)

        def _serve(self, connection: Any) -> None:
            began = clock()
            super()._serve(connection)
            note("turn", began, type(connection.request).__name__)

    daemon.Server = Server


def longest(path: str) -> dict[str, Any]:
    """The longest turn and pass of a broker, in milliseconds of its thread's time."""
    found: dict[str, Any] = json.loads(Path(path).read_bytes() or b"{}")
    return found


def _forked_keeper(command: list[str], **_: object) -> None:
    """A keeper without a new program: only root may be able to run this Python from where it is."""
    from gdrpy.broker.server import keeper

    linger, listener = float(command[-2]), int(command[-1])
    if os.fork() == 0:
        os.setsid()
        os.closerange(3, listener)
        os.closerange(listener + 1, 4096)
        try:
            keeper.main(listener, linger)
        finally:
            os._exit(0)


def _main() -> None:
    from gdrpy import sim

    sim.load()
    for module in ("cuda.bindings.driver", "cuda.pathfinder", "gdrpy.broker.server.daemon"):
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # the brokers' own collections have nothing of this to look through
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            devnull = os.open(os.devnull, os.O_RDONLY)
            os.dup2(devnull, 0)
            os.close(devnull)
            status = 1
            try:
                _serve(Setup(**json.loads(line)))
                status = 0
            except BaseException as error:
                print(f"ERROR {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                raise
            finally:
                sys.stderr.flush()
                if status == 0:
                    os._exit(0)
        _, status = os.waitpid(pid, 0)
        _say("ended", status=status)


if __name__ == "__main__":
    _main()
