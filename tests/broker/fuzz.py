"""Packets without end for a broker: valid ones, mutated ones and noise, with descriptors or not.

Many connections send them; an oracle, a client with regions of its own, checks all the while that
they and their bytes are as they were. At the end the broker is the same process, has logged no
error, and has as many descriptors and as much memory as before.
"""

from __future__ import annotations

import contextlib
import os
import platform
import random
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack

import recording
from brokers import Broker, Template, await_descriptors, descriptors, running
from gdrpy.broker import protocol
from rawclient import RawClient, allocation

_CONNECTIONS = 24
#: Packets between two checks of the oracle.
_ROUND = 250
#: The user who sends them; the oracle and the broker are root's.
_STRANGER = 40404
#: KiB by which the broker's memory may have grown at the end.
_GROWTH = 16 * 1024
_SETUP: dict[str, Any] = {"limits": {"regions": 300}, "options": {"mode": 0o666}}
#: What one name may be; few, so that connections meet.
_NAMES = ["a", "b", "c", "d/e", "\u00e4\U0001f600", "x" * 255]


@dataclass
class Tally:
    """What was sent, and what came back."""

    sent: Counter[str] = field(default_factory=Counter)
    replies: Counter[str] = field(default_factory=Counter)
    closed: int = 0
    checks: int = 0


class Generator:
    """Packets from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.number = 0
        #: Numbers of regions and sessions that replies told of.
        self.seen: list[int] = [0, 1, 2]

    def packet(self) -> tuple[str, bytes]:
        """A kind of packet, and one of it."""
        kind = self.random.choices(
            ["valid", "wrong value", "mutated", "cut", "noise"], [50, 20, 18, 6, 6]
        )[0]
        make: dict[str, Callable[[], bytes]] = {
            "valid": lambda: self.encode(self.request()),
            "wrong value": self.wrong_value,
            "mutated": self.mutated,
            "cut": self.cut,
            "noise": self.noise,
        }
        return kind, make[kind]()

    def encode(self, message: Any) -> bytes:
        packet: bytes = msgpack.packb(message, unicode_errors="surrogatepass")
        return packet[: 2 * protocol.PACKET_LIMIT]

    def name(self) -> str:
        return self.random.choice(_NAMES)

    def region(self) -> int:
        return self.random.choice(self.seen[-64:])

    def request(self) -> dict[str, Any]:
        """A request that is understood; whether it can be done is another matter."""
        choice, self.number = self.random.choice, self.number + 1
        flag = self.random.random() < 0.5
        memory = allocation(
            choice([None, self.name(), self.name()]),
            choice([1, 4096, 4097, 1 << 16]),
            device=choice([-1, -1, -1, 0]),
            mode=choice([0, 0o600, 0o644, 0o666]),
            metadata=b"m" * choice([0, 1, 4096]),
            gpu=flag,
        )
        named = {**memory, "name": self.name()}
        which = {"name": self.name()} if flag else {"region": self.region()}
        leases = [[self.region(), flag, not flag] for _ in range(choice([0, 1, 5]))]
        fields = choice(
            [
                {"op": "hello", "version": choice([0, 1, 1, 1, 2]), "client": "fuzz"},
                {"op": "resume", "session": self.region(), "leases": leases},
                {"op": "allocate", **memory},
                {"op": "allocate", **memory},
                {"op": "create", **named},
                {"op": "publish", "region": self.region()},
                {"op": "get", "readonly": flag, "gpu": choice([True, False]), **which},
                {
                    "op": "get_many",
                    "names": [self.name() for _ in range(choice([0, 1, 3, 300]))],
                    "readonly": flag,
                    "gpu": False,
                },
                {"op": "release", "regions": [self.region() for _ in range(choice([1, 9]))]},
                {"op": "seal", "region": self.region()},
                {"op": "digest", "region": self.region()},
                {"op": "delete", "name": self.name()},
                {"op": "delete", "name": self.name(), "region": self.region()},
                {"op": "list", "prefix": choice(["", "a", "d/"]), "after": choice(["", "b"])},
                {"op": "stat", **which},
                {"op": "change", "region": self.region(), "mode": choice([0, 0o600, 0o666])},
                {"op": "change", "region": self.region(), "metadata": b"changed"},
                {"op": "watch", "prefix": choice(["", "a"])},
                {"op": "status"},
            ]
        )
        return fields if fields["op"] == "release" else {"id": self.number, **fields}

    def value(self) -> Any:
        """Any value at all."""
        numbers = [0, -1, 1, 127, 128, 255, 1 << 31, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
        numbers += [-(1 << 63), self.region()]
        texts = ["", "a", "\0", "\n", "\ud800", "\u202e", "x" * 256, "\U0001f600" * 300]
        deep: Any = None
        for _ in range(self.random.choice([3, 50, 400])):
            deep = [deep] if self.random.random() < 0.5 else {"a": deep}
        anything = [None, True, False, 0.5, float("nan"), b"", b"x" * 5000, [], {}, deep]
        anything += [msgpack.ExtType(5, b"x"), msgpack.Timestamp(1, 2), {1: 2}, [[]] * 5000]
        return self.random.choice([*numbers, *texts, *anything])

    def wrong_value(self) -> bytes:
        """A request with a field that is changed, missing or too many."""
        message = self.request()
        field_name = self.random.choice([*message, "unknown", "id", "op"])
        if field_name in message and self.random.random() < 0.3:
            del message[field_name]
        else:
            message[field_name] = self.value()
        return self.encode(message)

    def mutated(self) -> bytes:
        """A request with some bytes changed, moved or doubled."""
        packet = bytearray(self.encode(self.request()))
        for _ in range(self.random.randint(1, 4)):
            at = self.random.randrange(len(packet))
            match self.random.randrange(4):
                case 0:
                    packet[at] = self.random.randrange(256)
                case 1:
                    packet[at] ^= 1 << self.random.randrange(8)
                case 2:
                    packet[at:at] = packet[at : at + self.random.randrange(1, 20)]
                case 3 if len(packet) > 1:
                    del packet[at : at + self.random.randrange(1, 4)]
            packet = packet or bytearray(b"\0")
        return bytes(packet)

    def cut(self) -> bytes:
        packet = self.encode(self.request())
        return packet[: self.random.randrange(1, len(packet) + 1)]

    def noise(self) -> bytes:
        if self.random.random() < 0.1:
            return self.random.choice([b"\x91", b"\x81\xa1a", b"\xdc\xff\xff"]) * 20_000
        return self.random.randbytes(self.random.choice([1, 2, 7, 100, 5000, 65_537]))


class Stranger:
    """A process of another user, who connects for this one: to the broker, all that comes over
    these connections is that user's.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._ours, theirs = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            self._ours.close()
            try:
                self._serve(theirs)
            finally:
                os._exit(0)
        theirs.close()

    def _serve(self, theirs: socket.socket) -> None:
        os.setgroups([])
        os.setresgid(_STRANGER, _STRANGER, _STRANGER)
        os.setresuid(_STRANGER, _STRANGER, _STRANGER)
        while theirs.recv(1):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
                sock.connect(self._path)
                socket.send_fds(theirs, [b"x"], [sock.fileno()])

    def connect(self, hello: bool) -> RawClient:
        """A new connection."""
        self._ours.send(b"x")
        _, fds, _, _ = socket.recv_fds(self._ours, 1, 1)
        connected = socket.socket(fileno=fds[0])
        return RawClient(self._path, hello=hello, timeout=30, connected=connected)

    def close(self) -> None:
        """End the process."""
        self._ours.close()
        os.waitpid(self._pid, 0)


class Oracle:
    """A client whose regions nobody may change."""

    def __init__(self, broker: Broker) -> None:
        self.client = broker.client(timeout=30)
        self.expected: dict[str, bytes] = {}
        for number in range(4):
            name, content = f"oracle/{number}", os.urandom(32)
            grant = self.client.allocate(name, metadata=content, device=-1 if number else 0)
            grant.write(content)
            self.expected[name] = content
        sealed = self.client.ok("stat", name="oracle/1")["region"]
        self.client.ok("seal", region=sealed)

    def check(self) -> None:
        """Everything of its own is as it was, and its requests are answered."""
        assert set(self.client.names("oracle/")) == set(self.expected)
        for name, content in self.expected.items():
            grant = self.client.get(name)
            assert grant.bytes(32) == content
            assert grant["metadata"] == content
            assert grant["sealed"] == (name == "oracle/1")
            self.client.release(grant["region"])


def resident(pid: int) -> int:
    """A process's memory in KiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0


class Fuzz:
    """One run over one broker."""

    def __init__(self, broker: Broker, seed: int) -> None:
        self.broker = broker
        self.oracle = Oracle(broker)
        self.generator = Generator(seed)
        self.stranger = Stranger(broker.path)
        self.tally = Tally()
        self.clients: list[RawClient] = []
        self.pipe = os.pipe()

    def run(self, packets: int) -> None:
        """Send so many packets."""
        self.oracle.check()
        before = descriptors(self.broker.pid)
        memory = 0
        for number in range(packets):
            self.one()
            if number % _ROUND == 0:
                self.oracle.check()
                self.tally.checks += 1
            if number == packets // 4:
                memory = resident(self.broker.pid)  # when all that it keeps for good is there
        for client in self.clients:
            client.close()
        self.stranger.close()
        with contextlib.suppress(OSError):
            os.close(self.pipe[1])
        assert os.read(self.pipe[0], 1) == b"", "the broker kept a descriptor that it was sent"
        self.oracle.check()
        for name in set(self.oracle.client.names()) - set(self.oracle.expected):
            self.oracle.client.ok("delete", name=name)
        found = self.oracle.client.ok("status")
        assert (found["regions"], found["sessions"]) == (len(self.oracle.expected), 1), found
        await_descriptors(self.broker.pid, before)
        self.growth = resident(self.broker.pid) - memory
        assert self.growth < _GROWTH, f"the broker has {self.growth} KiB more than before"
        self.broker.restart()
        self.oracle.client.reopen()
        self.oracle.check()

    def one(self) -> None:
        """One packet from some connection, and what came back to that."""
        choose = self.generator.random
        if len(self.clients) < _CONNECTIONS:
            self.clients.append(self.stranger.connect(hello=choose.random() < 0.98))
        client = choose.choice(self.clients)
        kind, packet = self.generator.packet()
        fds = [self.pipe[1]] * choose.choice([1, 2, 253]) if choose.random() < 0.02 else []
        try:
            client.sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                client.send_bytes(packet, fds)
                self.tally.sent[kind] += 1
            if choose.random() < 0.9:  # else it is left unread for now
                self.read(client)
            if choose.random() < 0.002:
                raise ConnectionResetError  # it goes away in the middle of things
        except (ConnectionError, OSError):
            self.tally.closed += 1
            client.close()
            self.clients.remove(client)

    def read(self, client: RawClient) -> None:
        for _ in range(64):
            try:
                reply = client.receive()
            except BlockingIOError:
                return
            self.tally.replies[reply.get("error") or reply.get("event") or "done"] += 1
            for key in ("region", "session"):
                if isinstance(reply.get(key), int):
                    self.generator.seen.append(reply[key])
            reply.close()


def run(packets: int, seed: int) -> dict[str, Any]:
    """One run on a broker of its own; what it did, to be recorded."""
    if os.geteuid() != 0:
        raise PermissionError("the packets are to be another user's: that needs CAP_SETUID")
    template = Template()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        with running(template, Path(folder), **_SETUP) as broker:
            fuzz = Fuzz(broker, seed)
            fuzz.run(packets)
            assert broker.errors() == []
            fuzz.oracle.client.close()
    template.close()
    tally = fuzz.tally
    return {
        "packets": sum(tally.sent.values()),
        "seed": seed,
        "sent": dict(tally.sent),
        "replies": dict(tally.replies),
        "connections_closed": tally.closed,
        "oracle_checks": tally.checks,
        "memory_growth_kib": fuzz.growth,
        "seconds": round(time.monotonic() - begun, 1),
        "kernel": platform.release().partition("-")[0],
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    recording.main(__doc__, "packets", 20_000, run)
