"""A broker and clients in namespaces of their own, as containers have: only a folder is shared."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import gdrpy
from gdrpy.broker.server import loop
from rawclient import RawClient, allocation

OTHER = 54322
#: All namespaces that a container may have; the maker's user is root in its user namespace.
NAMESPACES = (
    *("unshare", "--user", "--map-root-user", "--mount", "--ipc", "--net", "--uts", "--cgroup"),
    *("--pid", "--fork", "--kill-child", "--mount-proc"),
)

#: Runs each line that it reads, and prints a line when it is done.
CLIENT = """
import sys
import gdrpy
from rawclient import RawClient
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="making namespaces needs root")


class Container:
    """A command in namespaces of its own."""

    def __init__(self, path: str, *command: str, namespaces: Sequence[str] = NAMESPACES) -> None:
        self.process = subprocess.Popen(
            [*namespaces, sys.executable, *command],
            env=os.environ | {"GDRPY_SOCKET": path, "GDRPY_SIM": "1"},
            cwd=Path(__file__).parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        """The next line that it prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def run(self, *lines: str) -> None:
        """Have a client run these lines of Python."""
        assert self.process.stdin is not None
        for line in lines:
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()
            assert self.line() == "done"

    def kill(self) -> None:
        """End it as an engine does, or the kernel."""
        with self.process:
            self.process.send_signal(signal.SIGKILL)


@pytest.fixture
def path(public_path: Path) -> str:
    """That of the broker's socket, in the only folder that the containers share."""
    return str(public_path / "broker.sock")


@pytest.fixture
def start(path: str) -> Iterator[Callable[..., Container]]:
    """Starts a command in a container."""
    started: list[Container] = []

    def start(*command: str, **options: Any) -> Container:
        started.append(Container(path, *command, **options))
        return started[-1]

    yield start
    for one in reversed(started):
        one.kill()


@pytest.fixture
def serve(start: Callable[..., Container], path: str) -> Callable[..., Container]:
    """Starts a broker beside a keeper that outlives it, each in a container."""

    def serve(*options: str, **more: Any) -> Container:
        if not Path(f"{path}.keeper").exists():
            start("-m", "gdrpy.broker.server.keeper", f"{path}.keeper", "inf")
            while not Path(f"{path}.keeper").exists():
                os.sched_yield()
        broker = start("-m", "gdrpy", "serve", "--json", "--socket", path, *options, **more)
        assert json.loads(broker.line())["socket"] == path
        return broker

    return serve


@pytest.fixture
def client(start: Callable[..., Container]) -> Callable[[], Container]:
    """Starts a client in a container."""

    def client() -> Container:
        made = start("-c", CLIENT)
        made.run("broker = gdrpy.connect()")
        return made

    return client


def leases_become(broker: gdrpy.Broker, expected: int) -> None:
    """Wait for a number of leases, less long than the broker waits for the end of a process."""
    with broker.watch(timeout=loop._UNSEEN - 1) as events:
        while broker.status()["leases"] != expected:
            next(events)


class TestContainers:
    def test_share_regions_that_outlive_the_brokers_container(self, serve, client):
        broker = serve()
        one, other = client(), client()
        one.run("region = broker.allocate('shared', 6)", "region.write(b'shared')")
        other.run("got = broker.get('shared')", "assert got.read() == b'shared'")
        broker.kill()
        serve()
        one.run("assert broker.stat('shared').writers == 2", "region.write(b'SHARED')")
        other.run("assert got.read() == b'SHARED'", "got.write(b'back')")
        one.run("assert region.read(4) == b'back'")

    def test_keep_the_leases_of_regions_without_names_over_a_restart(self, serve, client, path):
        broker = serve()
        one, other = client(), client()
        for each in (one, other):
            each.run("region = broker.allocate(None, 9, 'cpu')", "region.write(b'anonymous')")
        broker.kill()
        serve()
        with gdrpy.connect(path) as outside:
            assert outside.status()["leases"] == 2
            one.kill()  # it has not resumed its lease
            leases_become(outside, 1)
            other.run("assert broker.status()['leases'] == 1", "assert region.info().region")
            other.kill()
            leases_become(outside, 0)

    def test_keep_their_leases_when_the_broker_moves_out_of_its_container_and_back(
        self, serve, client, path
    ):
        broker = serve()
        one = client()
        one.run("region = broker.allocate(None, 9, 'cpu')", "region.write(b'anonymous')")
        for namespaces in ((), NAMESPACES):
            broker.kill()
            broker = serve(namespaces=namespaces)
            one.run("assert region.info().writers == 1", "assert region.read() == b'anonymous'")
        one.kill()
        with gdrpy.connect(path) as outside:
            leases_become(outside, 0)

    def test_give_their_regions_back_when_they_close_amid_a_call(self, serve, client, path):
        serve()
        code = """
import asyncio
from gdrpy import aio
async def work():
    async with await aio.connect() as broker:
        kept.append(await broker.allocate(None, 1, 'cpu'))
        call = asyncio.create_task(broker.status())
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
kept = []
asyncio.run(work())
"""
        client().run(f"exec({code!r})")
        with gdrpy.connect(path) as outside:
            leases_become(outside, 0)

    def test_give_their_regions_back_when_they_close_them_or_are_killed(self, serve, client, path):
        serve()
        one, other = client(), client()
        with gdrpy.connect(path) as outside:
            for each in (one, other):
                each.run("region = broker.allocate(None, 1, 'cpu')")
            assert outside.status()["leases"] == 2
            one.run("broker.close()")
            leases_become(outside, 1)
            other.kill()
            leases_become(outside, 0)

    def test_keep_their_leases_until_they_have_ended_unless_they_give_them_back(
        self, serve, client, path
    ):
        """The broker cannot see whether a process that drops its connection exits."""
        serve()
        one = client()
        one.run(
            "raw = RawClient(broker.socket)",
            "kept = raw.allocate(None)",
            "raw.close()",
            "broker.status()",
        )
        with gdrpy.connect(path) as outside:
            assert outside.status()["leases"] == 1
            one.kill()
            leases_become(outside, 0)

    def test_have_limits_of_connections_of_their_own(self, serve, client):
        serve()
        one, other = client(), client()
        for each in (one, other):
            each.run("many = [RawClient(broker.socket) for _ in range(255)]")
        one.run("import pytest")
        one.run(
            "with pytest.raises(gdrpy.QuotaExceeded, match='process 0 has 256'): gdrpy.connect()"
        )

    def test_cannot_resume_each_others_sessions(self, serve, client):
        serve()
        one, other = client(), client()
        one.run("raw = RawClient(broker.socket)", "kept = raw.allocate(None)")
        one.run("open(broker.socket + '.session', 'w').write(f'{raw.session} {kept[\"region\"]}')")
        other.run(
            "raw = RawClient(broker.socket)",
            "session, region = map(int, open(broker.socket + '.session').read().split())",
            "reply = raw.call('resume', session=session, leases=[(region, True, True)])",
            "assert reply['error'] == 'InvalidRequest', reply",
        )


class TestUserOfAnotherNamespace:
    """To a broker in a user namespace that has only root, all other users are one."""

    def test_may_do_what_all_others_may_and_owns_nothing(self, serve, path):
        serve("--mode", "0666")
        with RawClient(path) as root:
            for name, mode in (("for all", 0o604), ("for root", 0o660)):
                root.allocate(name, mode=mode)
            assert asked(path, "get", name="for all", readonly=True, gpu=False) == "no error"
            assert asked(path, "get", name="for root", readonly=True, gpu=False) == (
                "PermissionDenied: get: user 65534 may not read region 'for root'; ask its owner, "
                "who may call broker.chmod('for root', 0o644)"
            )
            assert asked(path, "allocate", **allocation("mine", 1)) == (
                "PermissionDenied: allocate: this process is a user of another user namespace, "
                "whom the broker cannot tell from other such users, so it may own nothing: run the "
                "broker where both users have numbers, as on the host"
            )

    def test_is_no_owner_of_what_another_such_user_has(self, serve, path):
        serve("--mode", "0666")
        with RawClient(path) as root:
            draft = root.create("theirs", owner=(65534, 65534), mode=0o660)
            root.ok("publish", region=draft["region"])
            why = "PermissionDenied: get: user 65534 may not read region 'theirs'; ask its owner"
            assert asked(path, "get", name="theirs", readonly=True, gpu=False).startswith(why)


def asked(path: str, op: str, **fields: Any) -> str:
    """The class and the text of the refusal that another user gets."""
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        os.setgroups([])
        os.setresgid(OTHER, OTHER, OTHER)
        os.setresuid(OTHER, OTHER, OTHER)
        with RawClient(path) as raw:
            reply = raw.call(op, **fields)
        os.write(theirs, f"{reply.get('error', 'no error')}: {reply.get('message')}".encode())
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as pipe:
        assert os.waitpid(child, 0)[1] == 0
        return pipe.read().removesuffix(": None")
