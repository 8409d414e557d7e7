"""Packets without end for a broker, from a seed: valid ones, mutated ones and noise."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgpack

from rawclient import allocation

#: Bytes that the protocol's page gives a packet.
PACKET_LIMIT = 64 * 1024
#: What one name may be; few, so that connections meet.
_NAMES = ["a", "b", "c", "d/e", "\u00e4\U0001f600", "x" * 255]


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
        return packet[: 2 * PACKET_LIMIT]

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
                {
                    "op": "resume",
                    "session": self.region(),
                    "leases": [],
                    "asleep": [self.region()],
                },
                {"op": "allocate", **memory},
                {"op": "allocate", **memory},
                {"op": "allocate", **memory, "grace": choice([0, 0.5, 3600, 3601, None])},
                {"op": "create", **named},
                {"op": "create", **named, "grace": 1},
                {"op": "create", **named, "owner": [choice([0, 1, 1 << 32]), 1]},
                {"op": "publish", "region": self.region()},
                {"op": "publish", "region": self.region(), "missing": flag},
                {"op": "publish", "region": self.region(), "beside": self.region()},
                {
                    "op": "publish",
                    "region": self.region(),
                    "others": [self.region() for _ in range(choice([0, 1, 3, 255, 256]))],
                },
                {"op": "get", "readonly": flag, "gpu": choice([True, False]), **which},
                {
                    "op": "get_many",
                    "names": [self.name() for _ in range(choice([0, 1, 3, 300]))],
                    "readonly": flag,
                    "gpu": False,
                },
                {"op": "release", "regions": [self.region() for _ in range(choice([1, 9]))]},
                {
                    "op": "release",
                    "regions": [],
                    "asleep": [self.region() for _ in range(choice([0, 1, 9, 65]))],
                    "awake": [self.region() for _ in range(choice([0, 1, 9, 65]))],
                },
                {"op": "seal", "region": self.region()},
                {"op": "digest", "region": self.region()},
                {"op": "delete", "name": self.name()},
                {"op": "delete", "name": self.name(), "region": self.region()},
                {"op": "delete", "name": self.name(), "unheld": flag},
                {"op": "delete", "name": self.name(), "copied": flag},
                {"op": "list", "prefix": choice(["", "a", "d/"]), "after": choice(["", "b"])},
                {"op": "stat", **which},
                {"op": "stat", "copy": flag, **which},
                {"op": "change", "region": self.region(), "mode": choice([0, 0o600, 0o666])},
                {"op": "change", "region": self.region(), "metadata": b"changed"},
                {"op": "watch", "prefix": choice(["", "a"])},
                {"op": "watch", "prefix": "", "ends": flag},
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
