"""Clients that flood, do not read, die, or send anything: what others have meanwhile."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import select
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack

from brokers import BROKER_UID, Template, resident, running
from crowd import KINDS, crowd
from crowd import trial as beside
from packets import Generator
from rawclient import RawClient, allocation
from trialbed import (
    OWNER,
    REGIONS,
    STRANGER,
    WORDS,
    Bed,
    Grown,
    Unauthorised,
    Watched,
    trial,
)

#: KiB of a user's unread replies and requests, and of what is rounded beside them.
_UNREAD = (64 + 16) << 10
#: KiB of all that one user may make the broker keep, by the broker's page.
_OF_USER = 192 << 10
#: Turns that a request waits for at most, after the pass under way: of the crowd's user, of its
#: own user, of new connections and of the journal; and for how many ms in all. Other work on the
#: machine can only make a measurement longer, so that the least of some counts.
_TURNS, _WAIT_MS, _MEASURED = 4, 20, 10
#: Regions that each of ten clients holds at most, all of one user's who may have 512.
_HELD = 40
#: Leases of a user's sessions, by the protocol's page.
_LEASES = 131072


@trial(others=True)
def a_crowd_costs_another_user_nothing_but_time(bed: Bed) -> None:
    """Floods, absent names, readers that do not read, watchers, nonsense: others are answered."""
    root = bed.client(0)
    root.allocate("hostile/metadata", mode=0o666, metadata=bytes(4096)).close()
    for number in range(1000):
        root.allocate(f"hostile/{number}", mode=0o666).close()
    connections = min(512, 64 * bed.scale)
    data = bed.random.randbytes(8)
    victim = bed.client()
    victim.allocate("victim").write(data)
    pid = bed.broker.process.pid
    for kind in bed.random.sample(sorted(KINDS), 3):
        before = peak = resident(pid)
        with crowd(bed.broker.path, kind, connections):
            for _ in range(100):
                with bed.client() as late:
                    bed.same(late.get("victim").bytes(8), data, "victim")
                bed.same(victim.get("victim").bytes(8), data, "victim")
                peak = max(peak, resident(pid))
        if peak - before > _UNREAD:
            raise Grown(f"{connections} connections of {kind} took {peak - before} KiB")
        bed.count("hostile connections", connections)
        bed.count("gets beside a crowd", 200)
    victim.ok("delete", name="victim")
    for name in root.names("hostile/"):
        root.ok("delete", name=name)


@trial()
def replies_left_unread_arrive_in_order_when_read(bed: Bed) -> None:
    """A client that reads late gets all that it asked for, and nobody waits for it."""
    other, late = bed.client(), bed.client()
    data = bed.random.randbytes(8)
    other.allocate("late").write(data)
    fields = {"op": "get", "name": "late", "readonly": True, "gpu": False}
    packets = [msgpack.packb({**fields, "id": number}) for number in range(150 * bed.scale)]
    late.sock.setblocking(False)
    sent = 0
    with contextlib.suppress(BlockingIOError):  # the rest when it reads
        for packet in packets:
            late.send_bytes(packet)
            sent += 1
    bed.same(other.get("late").bytes(8), data, "late")
    late.sock.settimeout(60)
    for number in range(sent):
        reply = late.receive()
        bed.same((reply["id"], reply.bytes(8)), (number, data), "replies")
        reply.close()
    bed.count("replies read late", sent)
    other.ok("delete", name="late")


@trial()
def events_left_unread_end_in_one_that_says_so(bed: Bed) -> None:
    """What a watcher hears before that is all that happened first, and it hears of what is next."""
    maker, watcher = bed.client(), bed.client()
    watcher.ok("watch", prefix="unread/")
    expected = []
    for _ in range(900):
        number = maker.allocate("unread/name")["region"]
        maker.ok("delete", name="unread/name")
        maker.release(number)
        expected += [("allocated", number), ("deleted", number)]
    heard = []
    while (found := watcher.receive())["event"] != "lost":
        if found["event"] != "freed":
            heard.append((found["event"], found["region"]))
    assert 100 < len(heard) < len(expected)
    bed.same(heard, expected[: len(heard)], "events")
    number = maker.allocate("unread/next")["region"]
    for _ in bed.until("a watcher that lost events hears of the next ones"):
        found = watcher.receive()
        if found.get("region") == number:
            break
    maker.ok("delete", name="unread/next")
    bed.count("events left unread", len(expected))


@trial()
def descriptors_that_clients_send_are_closed(bed: Bed) -> None:
    """Beside any packet: the other end of a pipe ends when the client has closed its own."""
    client = bed.client()
    packets = [msgpack.packb({"op": "status", "id": 1}), b"\xc1", msgpack.packb({"op": "no"})]
    for _ in range(bed.scale):
        reader, writer = os.pipe()
        for packet, much in itertools.product(packets, (1, 253)):
            client.send_bytes(packet, [writer] * much)
            client.receive()
            bed.count("descriptors sent", much)
        client.close()
        client = bed.client()
        os.close(writer)
        found = os.read(reader, 1)
        os.close(reader)
        if found:
            raise Grown("the broker has a descriptor that it was sent")


@trial()
def a_process_has_256_connections(bed: Bed) -> None:
    """One more is refused with the reason, also again and again, until one of them is closed."""

    def connect() -> None:
        clients = [bed.client() for _ in range(256)]
        for _ in range(20 * bed.scale):
            _refused_connection(bed, f"process {os.getpid()} has 256 ")
        for client in clients:
            client.ok("status")
        clients.pop().close()
        bed.client().ok("status")

    bed.start(connect).result()


def _refused_connection(bed: Bed, reason: str, **options: Any) -> None:
    """The next connection is refused for a reason, and closed."""
    with bed.client(hello=False, **options) as client:
        client.send("hello", version=1, client="trials")
        reply = client.receive()
        bed.same((reply["id"], reply["error"]), (0, "QuotaExceeded"), "the refusal")
        assert reason in reply["message"], reply
        with contextlib.suppress(ConnectionError):
            raise AssertionError(f"a refused connection is open: {client.receive()}")
        bed.refusals["QuotaExceeded"] += 1
        bed.count("connections one too many")


@trial()
def connections_that_come_and_go_leave_nothing(bed: Bed) -> None:
    """In the middle of a greeting, of a request, of a reply."""
    endings: list[Callable[[RawClient], object]] = [
        lambda client: None,
        lambda client: client.send_bytes(b"\xc1"),
        lambda client: client.send("hello", version=1, client="x"),
        lambda client: (client.ok("hello", version=1, client="x"), client.send("status")),
        lambda client: (
            client.ok("hello", version=1, client="x"),
            client.send("allocate", **allocation(None)),
        ),
        lambda client: (
            client.ok("hello", version=1, client="x"),
            client.send("get_many", names=["kept/2"] * 600, readonly=True, gpu=False),
        ),
        lambda client: client.sock.shutdown(socket.SHUT_WR),
    ]
    for _ in range(5 * bed.scale):
        clients = [bed.client(hello=False) for _ in range(100)]
        for client in clients:
            bed.random.choice(endings)(client)
        for client in clients:
            client.close()
        bed.broker.check()
        bed.count("connections that came and went", len(clients))


@trial()
def clients_killed_at_any_moment_leave_nothing(bed: Bed) -> None:
    """Whatever they were about to do, and whatever they held."""
    bed.client(0).allocate("beside", mode=0o666).close()

    def work(seed: float) -> None:
        chance = random.Random(seed)
        client = bed.client()
        names = ["beside"] * 300
        held = 0
        while True:
            match chance.randrange(6):
                case 0 | 1 if held == _HELD:
                    continue
                case 0:
                    held += 1
                    client.allocate(None, device=chance.choice([-1, 0])).write(b"mine")
                case 1:
                    held += 1
                    client.create(f"draft/{os.getpid()}")
                case 2:
                    client.get("beside", readonly=False)
                case 3:
                    client.send("get_many", names=names, readonly=True, gpu=False)
                    while client.receive()["more"]:
                        pass
                case 4:
                    client.release(client.get("beside")["region"])
                case 5:
                    bed.client().ok("watch", prefix="")

    for _ in range(2 * bed.scale):
        children = [bed.start(lambda: work(bed.random.random())) for _ in range(10)]
        for child in children:
            time.sleep(bed.random.uniform(0, 0.01))
            child.kill()
            bed.count("clients killed")
        bed.broker.check()
    bed.client(0).ok("delete", name="beside")


@trial(others=True)
def a_user_has_no_more_than_the_limits(bed: Bed) -> None:
    """Regions and leases, exactly; others have theirs meanwhile."""
    owner, root, greedy = bed.client(), bed.client(0), bed.client(STRANGER)
    for _ in range(REGIONS):
        greedy.allocate(None).close()
    bed.refused("QuotaExceeded", greedy, "allocate", **allocation(None))
    bed.refused("QuotaExceeded", greedy, "create", **allocation("more"))
    owner.release(owner.allocate(None)["region"])
    greedy.close()
    bed.count("regions up to the limit", REGIONS)
    if bed.scale < 5:  # leases up to the limit take seconds
        return
    leases = []
    for number in range(REGIONS):
        region = owner.allocate(f"limits/{number}", mode=0o644)["region"]
        leases.append([region, False, False])
    root.allocate("limits/more", mode=0o644)
    for _ in range(_LEASES // REGIONS):
        greedy = bed.client(STRANGER)
        lost = greedy.ok("resume", session=greedy.session + (1 << 40), leases=leases)["lost"]
        bed.same(lost, [], "lost leases")
    more = {"name": "limits/more", "readonly": True, "gpu": False}
    bed.refused("QuotaExceeded", greedy, "get", **more)
    owner.ok("get", **more)
    greedy.release(leases[0][0])
    greedy.ok("get", **more)
    bed.refused("QuotaExceeded", greedy, "get", name="limits/0", readonly=True, gpu=False)
    for name in root.names("limits/"):
        root.ok("delete", name=name)
    bed.count("leases up to the limit", _LEASES)


@trial(others=True)
def one_user_takes_no_more_memory_than_the_page_says(bed: Bed) -> None:
    """Regions, metadata, leases, connections, unread replies, and a journal of many changes."""
    words = ["--mode", "0666", "--linger", "300"]
    regions, sessions = (4096, 32) if bed.scale >= 5 else (512, 4)
    broker = Watched(bed, bed.folder / f"memory-{time.monotonic_ns()}", bed.program, words)
    with contextlib.ExitStack() as stack:
        stack.callback(broker.drop)
        before = peak = broker.resident()[0]
        greedy = bed.client(STRANGER, broker.path)
        usual = {"metadata": bed.random.randbytes(4096), "mode": 0o600}
        numbers = []
        for number in range(regions):
            grant = greedy.allocate(f"{number:04}", **usual)
            grant.close()
            numbers.append(grant["region"])
        leases = [[number, False, False] for number in numbers]
        for _ in range(sessions - 1):
            client = bed.client(STRANGER, broker.path)
            assert (
                client.ok("resume", session=client.session + (1 << 40), leases=leases)["lost"] == []
            )
        for _ in range(256 - sessions):
            deaf = bed.client(STRANGER, broker.path)
            deaf.sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                for _ in range(256):
                    deaf.send("list", prefix="", after="")
        for _ in range(4):
            metadata = bed.random.randbytes(4096)
            for start in range(0, regions, 256):
                for number in numbers[start : start + 256]:
                    greedy.ok("change", region=number, metadata=metadata)
                peak = max(peak, broker.resident()[0])
        if peak - before > _OF_USER:
            raise Grown(f"one user made the broker take {peak - before} KiB more")
        for number in range(regions):
            greedy.ok("delete", name=f"{number:04}")
        bed.stack.close()
        broker.settle()
        broker.finish()
        stack.pop_all()
    shutil.rmtree(broker.process.folder)
    bed.count("changes of a user who has all that one may have", 4 * regions)


@trial(others=True)
def nobody_waits_for_a_long_turn_of_a_crowd(bed: Bed) -> None:
    """In the serving thread's own time, which leaves out that of other processes."""
    template = Template()
    bed.stack.callback(template.close)
    for kind in bed.random.sample(sorted(KINDS), bed.scale):
        waits: list[float] = []
        while not waits or (min(waits) > _WAIT_MS and len(waits) < _MEASURED):
            found = _turns_beside(bed, template, kind)
            waits.append(found["pass_ms"] + _TURNS * found["turn_ms"])
        if found["gets"] != 100 or min(waits) > _WAIT_MS:
            raise Grown(f"beside {kind} another user may wait for {waits} ms: {found}")
        bed.count("crowds whose turns were measured")


def _turns_beside(bed: Bed, template: Template, kind: str) -> dict[str, Any]:
    """Measure another user's gets beside a crowd, and how long turns took."""
    with tempfile.NamedTemporaryFile(dir=bed.folder) as turns:
        Path(turns.name).chmod(0o666)
        setup = {"uid": BROKER_UID, "options": {"mode": 0o666}, "turns": turns.name}
        with running(template, bed.folder, **setup) as broker:
            with broker.client() as root:
                root.allocate("hostile/metadata", mode=0o666, metadata=bytes(4096)).close()
                for number in range(1000):
                    root.allocate(f"hostile/{number}", mode=0o666).close()
            return beside(broker, kind, min(512, 64 * bed.scale), 100, 0)


@trial(others=True)
def one_user_cannot_use_up_the_broker(bed: Bed) -> None:
    """Of 256 descriptors: some are left for each other user, and for root."""
    data = bed.random.randbytes(8)
    with _small(bed) as broker:
        path = broker.path
        greedy = bed.client(STRANGER, path)
        while "error" not in (reply := greedy.call("allocate", **allocation(None))):
            reply.close()
            bed.count("regions until there is no descriptor")
        bed.same(reply["error"], "OutOfMemory", "the refusal")
        for _ in range(7):
            bed.client(STRANGER, path).ok("status")
        _refused_connection(bed, "descriptors are used up", uid=STRANGER, path=path)
        for uid in (OWNER, 0):
            client = bed.client(uid, path)
            client.allocate(f"of/{uid}").write(data)
            bed.same(client.get(f"of/{uid}").bytes(8), data, "bytes")
            client.ok("delete", name=f"of/{uid}")
        bed.stack.close()
        broker.settle()
        for _ in range(64):
            bed.client(STRANGER, path)
        for _ in range(20):
            _refused_connection(bed, f"user {STRANGER} has 64 ", uid=STRANGER, path=path)
        for uid in (OWNER, 0):
            bed.client(uid, path).ok("status")


@contextlib.contextmanager
def _small(bed: Bed) -> Iterator[Watched]:
    """A broker with 256 descriptors, which is to be as it was at the end."""
    folder = bed.folder / f"small-{time.monotonic_ns()}"
    program = ["prlimit", "--nofile=256:256", *bed.program]
    broker = Watched(bed, folder, program, WORDS)
    with contextlib.ExitStack() as stack:
        stack.callback(broker.drop)
        yield broker
        bed.stack.close()
        broker.settle()
        broker.finish()
        stack.pop_all()
    shutil.rmtree(folder)


@trial()
def batches_are_answered_beside_connections_that_do_not_read(bed: Bed) -> None:
    """Also those of the same user, who have all the descriptors that may be on their way."""
    with _small(bed) as broker:
        data = bed.random.randbytes(8)
        reader = bed.client(path=broker.path)
        reader.allocate("beside").write(data)
        names = ["beside"] * 100 * bed.scale
        for _ in range(8):
            deaf = bed.client(path=broker.path)
            deaf.send("get_many", names=names, readonly=True, gpu=False)
        reader.ok("status")
        reader.send("get_many", names=names, readonly=True, gpu=False)
        more, found = True, 0
        while more:
            reply = reader.receive()
            bed.same({os.pread(fd, 8, 0) for fd in reply.fds}, {data}, "bytes")
            found += len(reply.fds)
            more = reply["more"]
            reply.close()
        bed.same(found, len(names), "grants")
        reader.ok("delete", name="beside")
        bed.count("names in batches beside the deaf", found)


@trial(others=True)
def packets_of_every_kind_cost_their_sender_alone(bed: Bed) -> None:
    """Valid, wrong, mutated, cut, noise, with descriptors or not, read or not."""

    def send() -> None:
        make = Generator(int(bed.random.random() * 2**32))
        chance = make.random
        reader, writer = os.pipe()
        clients: list[RawClient] = []
        for _ in range(4000 * bed.scale):
            if len(clients) < 24:
                clients.append(bed.client(STRANGER, hello=chance.random() < 0.98))
            client = chance.choice(clients)
            kind, packet = make.packet()
            fds = [writer] * chance.choice([1, 2, 253]) if chance.random() < 0.02 else []
            try:
                client.sock.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    client.send_bytes(packet, fds)
                    bed.count(f"packets: {kind}")
                if chance.random() < 0.9:  # else it is left unread for now
                    _read_some(bed, client, make)
                if chance.random() < 0.002:
                    raise ConnectionResetError  # it goes away in the middle of things
            except OSError:
                client.close()
                clients.remove(client)
        for client in clients:
            client.close()
        os.close(writer)
        if os.read(reader, 1):
            raise Grown("the broker has a descriptor that it was sent")

    child = bed.start(send, STRANGER)
    done = os.pidfd_open(child.pid)
    while not select.select([done], [], [], 0.02)[0]:
        bed.broker.check()
    os.close(done)
    child.result()
    root = bed.broker.client
    for name in root.names():
        if not name.startswith("kept/"):  # a last packet of the child's may delete it first
            reply = root.call("delete", name=name)
            bed.same(reply.get("error", "NotFound"), "NotFound", "refusal")


def _read_some(bed: Bed, client: RawClient, make: Generator) -> None:
    """Read what is there, and learn the numbers that it tells."""
    with contextlib.suppress(BlockingIOError):
        for _ in range(64):
            reply = client.receive()
            if "error" in reply:
                bed.refusals[reply["error"]] += 1
            if str(reply.get("name", "")).startswith("kept/"):
                raise Unauthorised(f"a stranger was told of {reply}")
            for key in ("region", "session"):
                if isinstance(reply.get(key), int):
                    make.seen.append(reply[key])
            reply.close()
