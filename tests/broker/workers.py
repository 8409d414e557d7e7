"""Clients that write down what they are about to do and what was acknowledged, and check it.

Each publishes, deletes and reads regions whose bytes say what they are, while brokers, keepers and
clients are killed. Whoever comes after a kill finds what was acknowledged last, or what was under
way.
"""

from __future__ import annotations

import collections
import random
import select
import time
from pathlib import Path
from typing import Any

from rawclient import RawClient, Reply, allocation
from trialbed import Lost

_NAMES = 5


class Diary:
    """What a worker does to its names, in a file that survives it. 0 is that there is none."""

    def __init__(self, path: Path) -> None:
        self.possible: dict[str, set[int]] = collections.defaultdict(lambda: {0})
        self.last = 0
        if path.exists():
            for line in path.read_text().splitlines():
                kind, name, text = line.split()
                self._note(kind, name, int(text))
        self._file = path.open("ab", buffering=0)

    def _note(self, kind: str, name: str, number: int) -> None:
        self.last = max(self.last, number)
        if kind == "intent":
            self.possible[name].add(number)
        else:
            self.possible[name] = {number}

    def note(self, kind: str, name: str, number: int) -> None:
        """Write down an intent, or what is certain now."""
        self._file.write(f"{kind} {name} {number}\n".encode())
        self._note(kind, name, number)

    def check(self, name: str, found: int) -> None:
        """What a name means was acknowledged last, or under way."""
        if found not in self.possible[name]:
            raise Lost(f"{name} means {found}, and may mean {self.possible[name]}")


class Worker:
    """A client with names of its own, which works until the descriptor ``stop`` can be read."""

    def __init__(
        self, path: str, index: int, diary: Path, seed: float, stop: int, patience: float
    ) -> None:
        self.prefix = f"worker-{index}/"
        self.diary = Diary(diary)
        self.random = random.Random(seed)
        self.stop = select.poll()
        self.stop.register(stop, select.POLLIN)
        self.patience = patience
        self.client = self.connect(path)

    def connect(self, path: str) -> RawClient:
        """A connection to the broker, or to the next one."""
        deadline = time.monotonic() + self.patience
        while True:
            try:
                return RawClient(path, timeout=self.patience)
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

    def work(self) -> int:
        """Go on until told to stop; how many steps it took."""
        steps = 0
        for number in range(_NAMES):
            self.look_again(f"{self.prefix}{number}")
        while not self.stop.poll(0):
            steps += 1
            name = f"{self.prefix}{self.random.randrange(_NAMES)}"
            step = self.random.choice([self.put, self.put, self.look, self.remove, self.borrow])
            try:
                step(name)
            except ConnectionError:
                self.look_again(name)
        self.client.close()
        return steps

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
            if reply["metadata"] != content(found):
                raise Lost(f"{name} has the bytes {found} and the metadata {reply['metadata']}")
            self.client.release(reply["region"])
        self.diary.check(name, found)
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
