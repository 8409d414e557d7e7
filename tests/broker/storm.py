"""Kills without end: of the broker, of its clients, of its keeper, at any moment.

Workers publish, delete and read regions whose bytes say what they are, and write down what they are
about to do and what was acknowledged. Whoever comes after a kill finds what was acknowledged last,
or what was under way. At the end nothing is left but what the names mean.
"""

from __future__ import annotations

import collections
import os
import platform
import random
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import recording
from brokers import Broker, Template, await_descriptors, await_end, descriptors, running
from rawclient import RawClient, Reply, allocation

_WORKERS = 4
_NAMES = 5
#: Seconds between two kills, at most.
_PAUSE = 0.03
#: Seconds for which a worker looks for the next broker.
_PATIENCE = 20.0


class Diary:
    """What a worker does to its names, in a file that survives it. 0 is that there is none."""

    def __init__(self, path: Path) -> None:
        self.possible: dict[str, set[int]] = collections.defaultdict(lambda: {0})
        self.last = 0
        if path.exists():
            for line in path.read_text().splitlines():
                kind, name, text = line.split()
                self._note(kind, name, int(text))
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def _note(self, kind: str, name: str, number: int) -> None:
        self.last = max(self.last, number)
        if kind == "intent":
            self.possible[name].add(number)
        else:
            self.possible[name] = {number}

    def note(self, kind: str, name: str, number: int) -> None:
        """Write down an intent, or what is certain now."""
        os.write(self._file, f"{kind} {name} {number}\n".encode())
        self._note(kind, name, number)


class Worker:
    """A client with names of its own."""

    def __init__(self, path: str, index: int, diary: Path, seed: int) -> None:
        self.prefix = f"worker-{index}/"
        self.diary = Diary(diary)
        self.random = random.Random(seed)
        self.stopping = False
        signal.signal(signal.SIGTERM, self.stop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        self.client = self.connect(path)

    def stop(self, *_: object) -> None:
        """Be done after this step."""
        self.stopping = True

    def connect(self, path: str) -> RawClient:
        """A connection to the broker, or to the next one."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                return RawClient(path)
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.002)

    def call(self, op: str, **fields: Any) -> Reply:
        """A call. Raises ConnectionError when there is another broker, and resumes with that."""
        try:
            return self.client.call(op, **fields)
        except OSError as error:
            self.client.close()
            self.client = self.resume(self.client)
            raise ConnectionResetError("there is another broker") from error

    def resume(self, before: RawClient) -> RawClient:
        """A connection that has ended the session of an earlier one, and needs none of its leases.

        One that breaks before has a session too, which ends with this process.
        """
        while True:
            client = self.connect(before.path)
            try:
                client.ok("resume", session=before.session, leases=[])
                return client
            except OSError:
                client.close()

    def work(self) -> None:
        """Go on until told to stop."""
        for number in range(_NAMES):
            self.look_again(f"{self.prefix}{number}")
        while not self.stopping:
            name = f"{self.prefix}{self.random.randrange(_NAMES)}"
            step = self.random.choice([self.put, self.put, self.look, self.remove, self.borrow])
            try:
                step(name)
            except ConnectionError:
                self.look_again(name)
        self.client.close()

    def look_again(self, name: str) -> None:
        """Find out what became of what was under way."""
        while True:
            try:
                return self.look(name)
            except ConnectionError:
                continue

    def look(self, name: str) -> None:
        """What the name means is what was acknowledged last, or what was under way."""
        reply = self.call("get", name=name, readonly=True, gpu=False)
        if "error" in reply:
            assert reply["error"] == "NotFound", reply
            found = 0
        else:
            found = int(reply.bytes(8).hex(), 16)
            assert reply["metadata"] == content(found), (name, found, reply)
            self.client.release(reply["region"])
        assert found in self.diary.possible[name], (name, found, self.diary.possible[name])
        self.diary.note("certain", name, found)

    def put(self, name: str) -> None:
        """A new version."""
        number = self.diary.last + 1
        fields = allocation(name, metadata=content(number), device=self.random.choice([-1, -1, 0]))
        draft = self.call("create", **fields)
        assert "error" not in draft, draft
        draft.write(content(number))
        self.diary.note("intent", name, number)
        reply = self.call("publish", region=draft["region"])
        assert "error" not in reply, reply
        self.diary.note("certain", name, number)
        self.client.release(draft["region"])

    def remove(self, name: str) -> None:
        """No version any more."""
        self.diary.note("intent", name, 0)
        reply = self.call("delete", name=name)
        assert reply.get("error") in (None, "NotFound"), reply
        self.diary.note("certain", name, 0)

    def borrow(self, name: str) -> None:
        """Memory without a name, for a moment."""
        reply = self.call("allocate", **allocation(None))
        assert "error" not in reply, reply
        if self.random.random() < 0.7:
            self.client.release(reply["region"])


def content(number: int) -> bytes:
    """What the region of a number begins with."""
    return number.to_bytes(8, "big")


class Storm:
    """One run over one broker."""

    def __init__(self, broker: Broker, folder: Path, seed: int) -> None:
        self.broker, self.folder = broker, folder
        self.random = random.Random(seed)
        self.workers: dict[int, int] = {}
        self.killed: collections.Counter[str] = collections.Counter()
        self.client = broker.client()
        self.secret = os.urandom(32)
        self.client.allocate("kept", device=0, metadata=self.secret).write(self.secret)
        self.check()
        self.before = descriptors(broker.pid)

    def run(self, kills: int) -> None:
        """Kill so often."""
        try:
            self.kill_at_random(kills)
            self.finish()
        finally:
            for index in list(self.workers):
                os.kill(self.workers.pop(index), signal.SIGKILL)

    def kill_at_random(self, kills: int) -> None:
        """Start the workers, and kill."""
        for index in range(_WORKERS):
            self.start_worker(index)
        for _ in range(kills):
            time.sleep(self.random.uniform(0, _PAUSE))
            victim = self.random.choices(["broker", "client", "keeper"], [10, 9, 1])[0]
            getattr(self, f"kill_{victim}")()
            self.killed[victim] += 1
            self.check()

    def start_worker(self, index: int) -> None:
        seed = self.random.random()
        # It may be told to stop before it listens to that.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                self.client.sock.close()
                diary = self.folder / f"diary-{index}"
                Worker(self.broker.path, index, diary, int(seed * 2**32)).work()
                status = 0
            finally:
                if status:
                    import traceback

                    traceback.print_exc()
                os._exit(status)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        self.workers[index] = pid

    def kill_broker(self) -> None:
        """The next one has everything."""
        self.broker.restart()
        session = self.client.session
        self.client.reopen()
        self.client.ok("resume", session=session, leases=[])

    def kill_client(self) -> None:
        """The next one of its number finds what it left."""
        index = self.random.choice(list(self.workers))
        self.end_worker(index, signal.SIGKILL)
        self.start_worker(index)

    def kill_keeper(self) -> None:
        """Another one has everything before the broker may die: to lose both is to lose all."""
        keeper = self.broker.keeper
        os.kill(keeper, signal.SIGKILL)
        await_end(keeper)
        assert self.broker.keeper != keeper
        self.client.ok("status")

    def end_worker(self, index: int, number: signal.Signals) -> None:
        pid = self.workers.pop(index)
        os.kill(pid, number)
        _, status = os.waitpid(pid, 0)
        expected = -number if number == signal.SIGKILL else 0
        assert os.waitstatus_to_exitcode(status) == expected, f"worker {index} failed before"

    def check(self) -> None:
        """What nobody touches is as it was."""
        grant = self.client.get("kept")
        assert grant.bytes(32) == self.secret
        assert grant["metadata"] == self.secret
        self.client.release(grant["region"])

    def finish(self) -> None:
        """All is as the workers wrote down, and goes."""
        for index in list(self.workers):
            self.end_worker(index, signal.SIGTERM)
        names = self.client.names("worker-")
        for index in range(_WORKERS):
            diary = Diary(self.folder / f"diary-{index}")
            for name, possible in diary.possible.items():
                found = 0
                if name in names:
                    found = int(self.client.get(name).bytes(8).hex(), 16)
                assert found in possible, (name, found, possible)
        for name in names:
            self.client.ok("delete", name=name)
        self.kill_broker()
        found = self.client.ok("status")
        wanted = (1, 1, 1, 0)
        assert tuple(found[key] for key in ("regions", "names", "sessions", "leases")) == wanted
        self.check()
        await_descriptors(self.broker.pid, self.before)
        self.client.close()


def run(kills: int, seed: int) -> dict[str, Any]:
    """One run on a broker of its own; what it did, to be recorded."""
    template = Template()
    begun = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as folder,
        running(template, Path(folder)) as broker,
    ):
        storm = Storm(broker, Path(folder), seed)
        storm.run(kills)
        steps = sum(
            len((Path(folder) / f"diary-{index}").read_text().splitlines())
            for index in range(_WORKERS)
        )
    template.close()
    return {
        "kills": sum(storm.killed.values()),
        "killed": dict(storm.killed),
        "seed": seed,
        "steps_written_down": steps,
        "lost": 0,
        "leaked": 0,
        "seconds": round(time.monotonic() - begun, 1),
        "kernel": platform.release().partition("-")[0],
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    recording.main(__doc__, "kills", 30, run)
