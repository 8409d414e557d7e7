"""The broker, or a client, killed at every step of every call.

What was acknowledged before is there for the next broker, the call that was under way happened
wholly or not at all, it can be repeated, and neither broker nor keeper holds more than it needs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgpack import packb

from brokers import Broker, Template, descriptors, running
from killing import Killer
from rawclient import RawClient, Reply, allocation

#: More steps than any call takes.
MOST_STEPS = 2000

Content = dict[str, tuple[Any, ...]]


@dataclass
class Case:
    """A call: what is there before it, and the documented errors of its repetition."""

    op: str
    prepare: Callable[[RawClient], dict[str, Any]] = lambda client: {}
    repeated: set[str] = field(default_factory=set)


def nothing(**fields: Any) -> Callable[[RawClient], dict[str, Any]]:
    return lambda client: fields


def region(**fields: Any) -> Callable[[RawClient], dict[str, Any]]:
    """One that the call is about, by its number."""

    def prepare(client: RawClient) -> dict[str, Any]:
        return {"region": named(client), **fields}

    return prepare


def named(client: RawClient, seal: bool = False) -> int:
    grant = client.allocate("k/a", metadata=b"old")
    grant.write(b"old")
    if seal:
        client.ok("seal", region=grant["region"])
    return int(grant["region"])


def sealed(client: RawClient) -> dict[str, Any]:
    return {"region": named(client, seal=True)}


def there(**fields: Any) -> Callable[[RawClient], dict[str, Any]]:
    """The region is there, and the call names it itself."""

    def prepare(client: RawClient) -> dict[str, Any]:
        named(client)
        return fields

    return prepare


def draft(client: RawClient) -> dict[str, Any]:
    named(client)
    grant = client.create("k/a", metadata=b"new")
    grant.write(b"new")
    return {"region": grant["region"]}


def drafts(client: RawClient) -> dict[str, Any]:
    """Two to publish in one step, one of a new name."""
    return {**draft(client), "others": [client.create("k/b", metadata=b"new")["region"]]}


def checkpoint(client: RawClient) -> dict[str, Any]:
    """Its index and two files, which go with its name."""
    client.allocate("k/a", metadata=packb({"format": "checkpoint", "id": "01234567"}))
    for number in range(2):
        client.allocate(f"k/a/01234567/{number}", metadata=packb({"checkpoint": "k/a"}))
    return {"name": "k/a"}


def draft_over_checkpoint(client: RawClient) -> dict[str, Any]:
    checkpoint(client)
    return {"region": client.create("k/a", metadata=b"new")["region"]}


GET = {"name": "k/a", "gpu": False}
CASES = {
    "allocate host": Case("allocate", nothing(**allocation("k/a"))),
    "allocate gpu": Case("allocate", nothing(**allocation("k/a", device=0, gpu=True))),
    "allocate anonymous": Case("allocate", nothing(**allocation(None))),
    "allocate what is there": Case("allocate", there(**allocation("k/a"))),
    "create": Case("create", nothing(**allocation("k/a"))),
    "publish": Case("publish", draft),
    "publish several": Case("publish", drafts),
    "publish over a checkpoint": Case("publish", draft_over_checkpoint),
    "get readonly": Case("get", there(**GET, readonly=True)),
    "get writable": Case("get", there(**GET, readonly=False)),
    "get many": Case("get_many", there(names=["k/a", "k/a"], readonly=True, gpu=False)),
    "seal": Case("seal", region()),
    "digest": Case("digest", sealed),
    "delete": Case("delete", there(name="k/a"), {"NotFound"}),
    "delete a checkpoint": Case("delete", checkpoint, {"NotFound"}),
    "change mode": Case("change", region(mode=0o640)),
    "change metadata": Case("change", region(metadata=b"new")),
    "list": Case("list", there(prefix="k/", after="")),
    "stat": Case("stat", there(name="k/a")),
    "status": Case("status"),
    "watch": Case("watch", nothing(prefix="k/")),
}


@pytest.fixture(scope="module")
def killer(tmp_path_factory: pytest.TempPathFactory) -> Killer:
    return Killer(tmp_path_factory.mktemp("killer"))


class Victim:
    """A broker that is killed time and again, and what must always be there."""

    def __init__(self, broker: Broker, killer: Killer) -> None:
        self.broker, self.killer = broker, killer
        self.keeper = broker.keeper
        with broker.client() as client:
            for number in range(3):
                device = 0 if number == 2 else -1
                metadata = str(number).encode()
                grant = client.allocate(f"kept-{number}", device=device, metadata=metadata)
                grant.write(b"kept" * (number + 1))
                if number == 1:
                    client.ok("seal", region=grant["region"])
            self.kept = content(client)
            self.await_memory(client)

    def reconnect(self, before: RawClient, leases: list[int]) -> tuple[RawClient, list[int]]:
        """The next broker, a connection to it that has the leases, and those that are lost."""
        self.broker.await_end()
        self.broker.start()
        client = self.broker.client()
        assert client.life == before.life
        wanted = [[number, True, False] for number in leases]
        lost = client.ok("resume", session=before.session, leases=wanted)["lost"]
        before.close()
        return client, lost

    def clean(self, client: RawClient) -> None:
        """Give back all but what is always there, and check that this is all that is left."""
        for name in client.names("k/"):
            client.ok("delete", name=name)
        client.reopen()
        assert content(client) == self.kept
        found = client.ok("status")
        assert (found["regions"], found["leases"], found["sessions"]) == (3, 0, 1)
        self.await_memory(client)
        client.close()

    def await_memory(self, client: RawClient) -> None:
        """Broker and keeper have each region's memory open once, and one journal; and the broker
        once more that of the sealed region which it was asked for.
        """
        count = client.ok("status")["regions"]
        deadline = time.monotonic() + 20
        wanted = [(count + 1, True), (count, True)]
        while (found := [memory_of(self.broker.pid), memory_of(self.keeper)]) != wanted:
            assert time.monotonic() < deadline, (found, wanted)
            time.sleep(0.002)


def memory_of(pid: int) -> tuple[int, bool]:
    """How many regions a process has the memory of, and whether it has a journal's."""
    memory = [name for name in descriptors(pid) if name.startswith("/memfd:")]
    journals = [name for name in memory if "gdrpy-journal" in name]
    return len(memory) - len(journals), len(journals) in (1, 2)  # mapping one takes another


def journals_of(pid: int) -> set[int]:
    """Which journals a process has."""
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            if "gdrpy-journal" in str(entry.readlink()):
                found.add(entry.stat().st_ino)
    return found


def content(client: RawClient) -> Content:
    """All that names mean, without what differs between two runs."""
    found: Content = {}
    for name, entry in client.names().items():
        stat = client.ok("stat", name=name)
        grant = client.ok("get", name=name, readonly=False, gpu=True)
        client.release(grant["region"])
        fields = ("nbytes", "size", "device", "mode", "uid", "gid", "version", "sealed")
        found[name] = (*(entry[key] for key in fields), stat["metadata"], grant.bytes(16))
    return found


@pytest.fixture(scope="module")
def victim(killer: Killer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    template = Template(**killer.environment)
    with running(template, tmp_path_factory.mktemp("victim")) as broker:
        yield Victim(broker, killer)
    template.close()


def steps() -> Iterator[int]:
    """At which steps to kill, until the call is through before."""
    yield from range(1, MOST_STEPS)
    raise AssertionError("a call has no end")


class TestBrokerKilledInTheMiddleOf:
    @pytest.mark.parametrize("case", CASES.values(), ids=CASES)
    def test_call_has_done_it_wholly_or_not_at_all(self, case: Case, victim: Victim) -> None:
        with victim.broker.client() as client:
            fields = case.prepare(client)
            before = content(client)
            assert "error" not in client.call(case.op, **fields)
            after = content(client)
            victim.clean(client)
        for step in steps():
            client = victim.broker.client()
            fields = case.prepare(client)
            held = [fields["region"], *fields.get("others", [])] if "region" in fields else []
            victim.killer.arm(victim.broker.pid, step)
            reply: Reply | None = None
            try:
                reply = client.call(case.op, **fields)
                client.ok("status")  # until this is answered, the call may still go on
            except ConnectionError:
                pass
            if victim.killer.disarm() > 0:
                assert reply is not None
                victim.clean(client)
                return
            if reply is not None:
                assert "error" not in reply
            client, lost = victim.reconnect(client, held)
            assert lost == []
            found = content(client)
            assert found in ((after,) if reply is not None else (before, after)), step
            again = client.call(case.op, **fields)
            assert again.get("error") in {None, *case.repeated} or found == before
            assert content(client) == after
            victim.clean(client)

    def test_hello_leaves_nothing(self, victim: Victim) -> None:
        for step in steps():
            victim.killer.arm(victim.broker.pid, step)
            with ExitStack() as stack:
                # The first steps may be those by which it leaves the connection before.
                with suppress(ConnectionError):
                    client = stack.enter_context(victim.broker.client(hello=False))
                    client.ok("hello", version=1, client="raw")
                    client.ok("status")
                if victim.killer.disarm() > 0:
                    stack.close()
                    victim.clean(victim.broker.client())
                    return
                victim.broker.await_end()
                victim.broker.start()
            with victim.broker.client() as client:
                # The session of a hello that was not answered is kept while its process lives.
                sessions = client.ok("status")["sessions"]
                assert sessions in (1, 2)
                if sessions == 2:
                    client.ok("resume", session=client.session - 1, leases=[])
                victim.clean(client)

    def test_release_gives_back_or_does_not(self, victim: Victim) -> None:
        for step in steps():
            client = victim.broker.client()
            numbers = [client.allocate(None)["region"] for _ in range(2)]
            victim.killer.arm(victim.broker.pid, step)
            try:
                client.release(*numbers)
                client.ok("status")
            except ConnectionError:
                pass
            if victim.killer.disarm() > 0:
                victim.clean(client)
                return
            client, lost = victim.reconnect(client, numbers)
            assert lost in ([], numbers[:1], numbers)
            client.release(*numbers)
            for number in numbers:
                assert client.error("stat", region=number) == "Gone"
            victim.clean(client)

    def test_resume_can_be_repeated(self, victim: Victim) -> None:
        for step in steps():
            first = victim.broker.client()
            numbers = [first.allocate(None)["region"], first.create("k/draft")["region"]]
            os.kill(victim.broker.pid, signal.SIGKILL)
            victim.broker.await_end()
            victim.broker.start()
            first.close()
            second = victim.broker.client()
            leases = [[number, True, False] for number in numbers]
            victim.killer.arm(victim.broker.pid, step)
            try:
                assert second.ok("resume", session=first.session, leases=leases)["lost"] == []
                second.ok("status")
            except ConnectionError:
                pass
            if victim.killer.disarm() > 0:
                victim.clean(second)
                return
            # Whoever does not know whether it had resumed asks for what the later session has,
            # then for the rest in the earlier one.
            client, lost = victim.reconnect(second, numbers)
            rest = [[number, True, False] for number in lost]
            assert client.ok("resume", session=first.session, leases=rest)["lost"] == []
            for number in numbers:
                assert client.ok("stat", region=number)["holders"][0]["count"] == 1
            victim.clean(client)


class TestBrokerKilledWhileItBeginsAnotherJournal:
    @pytest.fixture
    def victim(self, killer: Killer, tmp_path: Path) -> Iterator[Victim]:
        template = Template(**killer.environment)
        with running(template, tmp_path, journal=500) as broker:
            yield Victim(broker, killer)
        template.close()

    def test_has_done_what_it_answered_and_perhaps_one_call_more(self, victim: Victim) -> None:
        for step in steps():
            client = victim.broker.client()
            number = named(client)
            journals = journals_of(victim.keeper)
            victim.killer.arm(victim.broker.pid, step)
            answered = 0
            try:
                for turn in range(6):
                    client.ok("change", region=number, metadata=bytes([turn + 1]) * 200)
                    answered += 1
                    client.ok("status")  # between which the journal is copied
                    journals |= journals_of(victim.keeper)
            except ConnectionError:
                pass
            if victim.killer.disarm() > 0:
                deadline = time.monotonic() + 20  # it is copied a turn at a time
                while len(journals) == 1 and time.monotonic() < deadline:
                    client.ok("status")
                    journals |= journals_of(victim.keeper)
                assert len(journals) > 1
                victim.clean(client)
                return
            client, lost = victim.reconnect(client, [number])
            assert lost == []
            stat = client.ok("stat", region=number)
            assert stat["metadata"] in [
                bytes([turn]) * 200 if turn else b"old" for turn in (answered, answered + 1)
            ]
            assert stat["holders"][0]["count"] == 1
            victim.clean(client)


class TestClientKilledAtEveryStep:
    def test_leaves_nothing_but_what_it_named(self, killer: Killer, victim: Victim) -> None:
        program = Path(__file__).with_name("killed_client.py")
        command = [sys.executable, str(program), victim.broker.path]
        with (
            subprocess.Popen(
                command,
                env=os.environ | killer.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            ) as template,
            victim.broker.client() as client,
        ):
            assert template.stdin is not None
            assert template.stdout is not None
            for step in range(1, MOST_STEPS):
                template.stdin.write(f"{step}\n")
                template.stdin.flush()
                status = int(template.stdout.readline())
                for name in client.names("k/"):
                    client.ok("delete", name=name)
                victim.clean(client)
                client.reopen()
                if status == 0:
                    break
                assert status == -signal.SIGKILL
            assert 50 < step < MOST_STEPS - 1
            template.stdin.close()


class TestSessionsOfALivingProcess:
    def test_that_held_nothing_do_not_come_back(self, broker: Broker) -> None:
        with broker.client() as holder, broker.client() as idle:
            region = holder.allocate("kept")["region"]
            for _ in range(5):
                broker.restart()
                session = holder.session
                for client in (holder, idle):
                    client.reopen()
                holder.ok("resume", session=session, leases=[[region, True, False]])
            assert idle.ok("status")["sessions"] == 2
