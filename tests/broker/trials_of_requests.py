"""What one client asks, and what all of them get."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import Counter
from typing import Any

import msgpack

from packets import PACKET_LIMIT
from rawclient import RawClient, Reply, allocation
from trialbed import (
    OWNER,
    STRANGER,
    Bed,
    Lost,
    Unauthorised,
    held,
    trial,
)
from workers import content


@trial()
def gets_of_many_processes_are_exact(bed: Bed) -> None:
    """Each get is one lease and the very bytes, whoever else gets at the same time."""
    processes, gets = 10 * bed.scale, 100 * bed.scale
    data = bed.random.randbytes(4096)
    maker = bed.client()
    region = maker.allocate("gets", metadata=data[:16])
    region.write(data)
    number = region["region"]
    before = maker.ok("status")["requests"].get("get", 0)

    def get(index: int) -> None:
        client = bed.client()
        for _ in range(gets):
            grant = client.get("gets")
            found = (grant["region"], grant["metadata"], grant.bytes())
            bed.same(found, (number, data[:16], data), "gets")
            grant.close()
        bed.same(held(client, number)[os.getpid()], gets, "leases")
        if index % 2:
            client.release(*[number] * (gets - 1))
            bed.same(held(client, number)[os.getpid()], 1, "leases")
        bed.count("gets", gets)

    bed.each(processes, get)
    bed.same(maker.ok("status")["requests"]["get"] - before, processes * gets, "gets")
    for _ in bed.until("the leases of processes that ended end"):
        if held(maker, number) == {os.getpid(): 1}:
            break
    maker.ok("delete", name="gets")


@trial()
def leases_are_counted_and_memory_ends_with_the_last(bed: Bed) -> None:
    """Chance decides what four clients do with five names; all of it is foretold."""
    clients = [bed.client() for _ in range(4)]
    names: dict[str, int] = {}
    held: dict[int, Counter[int]] = {}
    data: dict[int, bytes] = {}
    dead: list[int] = []

    def granted(reply: Reply, name: str, which: int) -> None:
        bed.same(reply["region"], names[name], name)
        bed.same(reply.bytes(8), data[names[name]], name)
        held[names[name]][which] += 1

    def forget(number: int) -> None:
        if number not in names.values() and not held[number].total():
            del held[number]
            dead.append(number)

    def allocate(which: int, client: RawClient, name: str) -> None:
        reply = client.allocate(name)
        assert reply["created"] == (name not in names), reply
        if reply["created"]:
            number = names[name] = reply["region"]
            held[number], data[number] = Counter(), bed.random.randbytes(8)
            reply.write(data[number])
        granted(reply, name, which)

    def get(which: int, client: RawClient, name: str) -> None:
        if name in names:
            granted(client.get(name, readonly=bed.random.random() < 0.5), name, which)
        else:
            bed.refused("NotFound", client, "get", name=name, readonly=True, gpu=False)

    def release(which: int, client: RawClient, name: str) -> None:
        if not held:
            return
        number, much = bed.random.choice(sorted(held)), bed.random.randint(1, 5)
        client.release(*[number] * much)
        client.ok("status")
        held[number][which] -= min(much, held[number][which])
        forget(number)

    def delete(which: int, client: RawClient, name: str) -> None:
        if name not in names:
            bed.refused("NotFound", client, "delete", name=name)
            return
        client.ok("delete", name=name, region=names[name])
        forget(names.pop(name))

    def stat(which: int, client: RawClient, name: str) -> None:
        for number in held:
            found = client.ok("stat", region=number)
            counts = sorted(holder["count"] for holder in found["holders"])
            bed.same(counts, sorted((+held[number]).values()), "leases")
            bed.same(found["readers"] + found["writers"], len(counts), "holders")
            bed.same(found["linked"], number in names.values(), "linked")
        for number in dead[-3:]:
            bed.refused("Gone", client, "stat", region=number)

    for _ in range(200 * bed.scale):
        step = bed.random.choice([allocate, get, get, release, delete, stat])
        which = bed.random.randrange(len(clients))
        step(which, clients[which], f"counted/{bed.random.randrange(5)}")
        bed.count("steps of counted leases")
    for name in names:
        clients[0].ok("delete", name=name)


@trial()
def versions_are_published_one_after_the_other(bed: Bed) -> None:
    """Every publisher gets a version of its own, and every reader all of one version."""
    publishers, versions = 4, 25 * bed.scale
    first = bed.client()
    draft = first.create("versions", metadata=content(0))
    draft.write(content(0))
    first.ok("publish", region=draft["region"])
    history: list[tuple[int, int, int | None]] = [(1, draft["region"], None)]

    def publish(index: int) -> list[tuple[int, int, int | None]]:
        client = bed.client()
        found = []
        for number in range(versions):
            data = content(1 + index * versions + number)
            made = client.create("versions", metadata=data)
            made.write(data)
            reply = client.ok("publish", region=made["region"])
            found.append((reply["version"], made["region"], reply["replaced"]))
            client.release(made["region"])
            bed.count("versions")
        return found

    def read(index: int) -> list[tuple[int, int, int | None]]:
        client, last = bed.client(), 0
        for _ in range(versions):
            grant = client.get("versions")
            bed.same(grant.bytes(8), grant["metadata"], "versions")
            if grant["version"] < last:
                raise Lost(f"version {grant['version']} came after {last}")
            last = grant["version"]
            client.release(grant["region"])
        return []

    def work(index: int) -> list[tuple[int, int, int | None]]:
        return publish(index) if index < publishers else read(index)

    history += sorted(itertools.chain(*bed.each(publishers + 2, work)))
    bed.same([one[0] for one in history], list(range(1, publishers * versions + 2)), "versions")
    for (_, before, _), (_, _, replaced) in itertools.pairwise(history):
        bed.same(replaced, before, "replaced")
    bed.same(first.ok("stat", name="versions")["version"], len(history), "version")
    first.ok("delete", name="versions")


@trial()
def batches_of_thousands_are_answered_in_order(bed: Bed) -> None:
    """Names that are there, and for some a name that is not, from many connections at once."""
    clients = [bed.client() for _ in range(4 * bed.scale)]
    maker = clients[0]
    data = {f"batch/{number}": bed.random.randbytes(8) for number in range(8)}
    for name in data:
        maker.allocate(name).write(data[name])
    wanted = {client: bed.random.choices(list(data), k=4096) for client in clients}
    for client in clients[::2]:
        wanted[client].insert(bed.random.randrange(4096), "batch/none")
        wanted[client].pop()
    for client, names in wanted.items():
        client.send("get_many", names=names, readonly=True, gpu=False)
    found: dict[RawClient, list[bytes | str]] = {client: [] for client in clients}
    reading = list(clients)
    while reading:
        for client in list(reading):
            reply = client.receive()
            if "error" in reply:
                found[client].append(reply["error"])
                reading.remove(client)
                continue
            assert len(reply["grants"]) <= 64
            bed.same(reply.get("fds", 0), len(reply.fds), "descriptors")
            found[client] += [os.pread(fd, 8, 0) for fd in reply.fds]
            if not reply["more"]:
                reading.remove(client)
            reply.close()
    for client, names in wanted.items():
        end = names.index("batch/none") if "batch/none" in names else len(names)
        refusal = ["NotFound"] * (end < len(names))
        bed.same(found[client], [data[name] for name in names[:end]] + refusal, "grants")
        bed.count("names in batches", len(names))
        bed.refusals["NotFound"] += found[client].count("NotFound")
    for name in data:
        maker.ok("delete", name=name)


@trial()
def watchers_hear_every_change_once_and_in_order(bed: Bed) -> None:
    """All of their prefix, of regions that they may read, and nothing else."""
    maker = bed.client()
    watchers = []
    for prefix, uid in itertools.product(("events/", "events/a"), (OWNER, STRANGER)):
        watcher = bed.client(uid)
        watcher.ok("watch", prefix=prefix)
        watchers.append((watcher, prefix, uid))
    for _ in range(bed.scale):
        happened = _change_at_random(bed, maker)
        for watcher, prefix, uid in watchers:
            expected = [
                event
                for event, mode in happened
                if event["name"].startswith(prefix)
                and (mode & 0o004 or uid == OWNER or not bed.root)
            ]
            for event in expected:
                found = watcher.receive()
                while found["event"] == "freed":
                    found = watcher.receive()
                if event != found:
                    denied = [one for one, _ in happened if one == found and one not in expected]
                    words = f"heard {found}, expected {event}"
                    raise Unauthorised(words) if denied else Lost(words)
                bed.count("events")


def _change_at_random(bed: Bed, maker: RawClient) -> list[tuple[dict[str, Any], int]]:
    """What happens to a few names, with the mode of each region; the last event is for all."""
    happened: list[tuple[dict[str, Any], int]] = []
    there: dict[str, tuple[int, int, int]] = {}

    def tell(event: str, name: str) -> None:
        region, version, mode = there[name]
        told = {"event": event, "name": name, "region": region, "version": version}
        happened.append((told, mode))

    for _ in range(40):
        name, mode = bed.random.choice(["events/a", "events/b"]), bed.random.choice([0o600, 0o644])
        if name not in there:
            there[name] = (maker.allocate(name, mode=mode)["region"], 1, mode)
            tell("allocated", name)
            continue
        match bed.random.randrange(3):
            case 0:
                made = maker.create(name, mode=mode)["region"]
                maker.ok("publish", region=made)
                there[name] = (made, there[name][1] + 1, mode)
                tell("published", name)
            case 1:
                if not maker.ok("stat", name=name)["sealed"]:
                    maker.ok("seal", region=there[name][0])
                    tell("sealed", name)
            case _:
                maker.ok("delete", name=name)
                tell("deleted", name)
                del there[name]
    for name in list(there):
        maker.ok("delete", name=name)
        tell("deleted", name)
    there["events/a"] = (maker.allocate("events/a", mode=0o644)["region"], 1, 0o644)
    tell("allocated", "events/a")
    maker.ok("delete", name="events/a")
    tell("deleted", "events/a")
    return happened


#: Requests that are refused, the error, and what is wrong with them.
_BAD: list[tuple[str, str, dict[str, Any]]] = [
    ("InvalidRequest", "format_disk", {}),
    ("InvalidRequest", "status", {"verbose": True}),
    ("InvalidRequest", "list", {"prefix": ""}),
    ("InvalidRequest", "hello", {"version": 1, "client": "again"}),
    ("InvalidRequest", "stat", {}),
    ("InvalidRequest", "stat", {"name": "good", "region": 1}),
    ("InvalidRequest", "stat", {"region": -1}),
    ("InvalidRequest", "stat", {"region": True}),
    ("InvalidRequest", "stat", {"region": 1 << 63}),
    ("InvalidRequest", "stat", {"name": "x" * 256}),
    ("InvalidRequest", "stat", {"name": b"good"}),
    ("InvalidRequest", "get", {"name": "", "readonly": True, "gpu": False}),
    ("InvalidRequest", "get_many", {"names": ["n"] * 4097, "readonly": True, "gpu": False}),
    ("InvalidRequest", "resume", {"session": 1, "leases": [[1, False, False]] * 4097}),
    ("InvalidRequest", "resume", {"session": 1, "leases": [[1, False]]}),
    ("InvalidRequest", "watch", {"prefix": "x" * 256}),
    ("InvalidRequest", "allocate", allocation("\u00e4" * 128)),
    ("InvalidRequest", "allocate", allocation("a\nb")),
    ("InvalidRequest", "allocate", allocation("a\0b")),
    ("InvalidRequest", "create", allocation("\x1b[31m")),
    ("InvalidRequest", "create", allocation("a\u202eb")),
    ("InvalidRequest", "allocate", allocation("bad", 0)),
    ("InvalidRequest", "allocate", allocation("bad", -1)),
    ("InvalidRequest", "allocate", allocation("bad", (1 << 61) + 1)),
    ("InvalidRequest", "allocate", allocation("bad") | {"nbytes": 4096.0}),
    ("InvalidRequest", "allocate", allocation("bad", device=-2)),
    ("InvalidRequest", "allocate", allocation("bad", device=1 << 16)),
    ("InvalidRequest", "allocate", allocation("bad", device="GPU-7")),
    ("InvalidRequest", "allocate", allocation("bad", mode=0o755)),
    ("InvalidRequest", "allocate", allocation("bad", metadata=bytes(4097))),
    ("InvalidRequest", "allocate", allocation("bad", metadata="text")),
    ("NotFound", "allocate", allocation("bad", device=7)),
    ("NotFound", "get", {"name": "absent", "readonly": True, "gpu": False}),
    ("NotFound", "stat", {"name": "absent"}),
    ("NotFound", "delete", {"name": "absent"}),
    ("Gone", "get", {"region": 1 << 40, "readonly": True, "gpu": False}),
    ("Gone", "publish", {"region": 1 << 40}),
    ("Gone", "seal", {"region": 1 << 40}),
    ("Gone", "change", {"region": 1 << 40, "mode": 0o600}),
    ("Gone", "delete", {"name": "good", "region": 1 << 40}),
    ("SizeMismatch", "allocate", allocation("good", 8192)),
    ("TooLarge", "allocate", allocation("bad", 1 << 61)),
]


@trial()
def bad_requests_between_good_ones_cost_nothing(bed: Bed) -> None:
    """Each is refused by its error, and the connection keeps its leases and its drafts."""
    client = bed.client()
    good = client.allocate("good")["region"]
    draft = client.create("good/draft")["region"]
    for _ in range(bed.scale):
        for error, op, fields in bed.random.sample(_BAD, len(_BAD)):
            reply = bed.refused(error, client, op, **fields)
            assert len(reply["message"]) < 1000
            bed.same(client.get("good")["region"], good, "good")
            bed.count("bad requests")
    bed.same(client.ok("publish", region=draft)["version"], 1, "version")
    bed.same(set(client.names("good")), {"good", "good/draft"}, "names")
    for name in ("good", "good/draft"):
        client.ok("delete", name=name)


@trial()
def packets_that_are_no_message_end_their_connection_alone(bed: Bed) -> None:
    """After sixteen: each is answered, then it is closed."""
    other = bed.client()
    other.allocate("beside")
    bad = [b"\xc1", b"\xc0", b"\x91" * 60_000, b"\xdd\xff\xff\xff\xff", bytes(1000)]
    bad += [msgpack.packb(["status", 7]), msgpack.packb({"op": "status", "id": 7}) + b"\0"]
    bad += [b"\xff" * PACKET_LIMIT, b"\xff" * (PACKET_LIMIT + 1), msgpack.packb({"op": "status"})]
    for _ in range(3 * bed.scale):
        client = bed.client()
        for _ in range(16):
            client.send_bytes(bed.random.choice(bad))
            reply = client.receive()
            bed.same((reply["id"], reply["error"]), (0, "ProtocolError"), "the answer")
            bed.refusals["ProtocolError"] += 1
            bed.count("packets that are no message")
        with contextlib.suppress(ConnectionError):
            raise AssertionError(f"the connection is open: {client.receive()}")
        other.get("beside")
    other.ok("delete", name="beside")


@trial()
def greetings_come_first_and_of_this_version(bed: Bed) -> None:
    """A newer client is told both versions, whatever else its hello says."""
    for more in ({}, {"compression": "zstd"}, {"client": 7}, {"client": "x" * 81}):
        client = bed.client(hello=False)
        for op, fields in (("status", {}), ("watch", {"prefix": ""}), ("create", allocation("a"))):
            bed.refused("ProtocolError", client, op, **fields)
        for version in (0, 2, bed.random.randrange(3, 1 << 62)):
            hello = {"version": version, "client": "newer", **more}
            message = bed.refused("ProtocolError", client, "hello", **hello)["message"]
            assert f"version {version} " in message, message
            assert "version 1" in message, message
            bed.count("greetings of other versions")
        client.ok("hello", version=1, client="trials")
        client.ok("status")


@trial()
def metadata_of_any_bytes_comes_back_as_it_was(bed: Bed) -> None:
    """It need not be msgpack: the broker does not look into it."""
    client, other = bed.client(), bed.client()
    sizes = [0, 1, 17, 4096]
    odd = [b"\xc1" * 9, b"\xff\xfe", msgpack.packb({"a": 1})[:-1], b"\x91" * 4096]
    for data in odd + [bed.random.randbytes(size) for size in sizes * bed.scale]:
        number = client.allocate("metadata", metadata=data, device=-1)["region"]
        bed.same(other.get("metadata")["metadata"], data, "metadata of a grant")
        bed.same(other.ok("stat", name="metadata")["metadata"], data, "metadata of a stat")
        client.ok("change", region=number, metadata=data[::-1])
        bed.same(other.ok("stat", region=number)["metadata"], data[::-1], "metadata after a change")
        client.ok("delete", name="metadata")
        client.release(number)
        bed.count("metadata")


@trial()
def names_that_cannot_be_seen_are_refused(bed: Bed) -> None:
    """Fillers, joiners and blanks; letters of every language are names."""
    client = bed.client()
    for name in ("\u3164", "a\u115f", "weights\ufe0f", "a\u2800b", " ", " a", "a ", "a\u200bb"):
        for op in ("allocate", "create"):
            message = bed.refused("InvalidRequest", client, op, **allocation(name))["message"]
            assert ascii(name) in message, message
    seen = {"a b", "gewichte/\u00e4", "\u91cd\u307f", "\U0001f600", "x" * 255}
    for name in seen:
        client.allocate(name)
    bed.same(set(client.names()) & seen, seen, "names")
    for name in seen:
        client.ok("delete", name=name)


@trial()
def lists_are_complete_page_by_page(bed: Bed) -> None:
    """All names of a prefix, in order, each once."""
    client = bed.client()
    names = sorted(f"list/{bed.random.randrange(10)}/{number:04}" for number in range(300))
    for name in names:
        client.release(client.allocate(name)["region"])
    for prefix in ("list/", "list/3", "list/7/", "list/none"):
        wanted = [name for name in names if name.startswith(prefix)]
        bed.same(list(client.names(prefix)), wanted, prefix)
    for name in names:
        client.ok("delete", name=name)
    bed.same(client.names("list/"), {}, "names")
    bed.count("names listed", len(names))
