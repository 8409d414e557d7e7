"""Brokers, keepers and clients that are killed, and a place that is removed."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

from brokers import await_end
from rawclient import allocation
from trialbed import (
    Bed,
    held,
    trial,
)
from workers import Diary, Worker


@trial(killing=True)
def what_was_acknowledged_outlives_every_kill(bed: Bed) -> None:
    """Of the broker, of its keeper, of clients, while four clients publish, delete and read."""
    folder = bed.folder / "diaries"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    stop = os.eventfd(0)

    def start(index: int) -> Any:
        seed = bed.random.random()
        path = bed.broker.path
        return bed.start(
            lambda: Worker(path, index, folder / str(index), seed, stop, bed.patience).work()
        )

    workers = {index: start(index) for index in range(4)}
    more = bed.random.choices(["broker", "client", "keeper"], [4, 12, 1], k=6 * (bed.scale - 1))
    for victim in ["client", "broker", "client", "keeper", "broker", "client", *more]:
        time.sleep(bed.random.uniform(0, 0.03))
        match victim:
            case "broker":
                bed.broker.restart()
            case "keeper":
                keeper = bed.broker.keeper
                os.kill(keeper, signal.SIGKILL)
                await_end(keeper)
                # To lose both is to lose all: wait until another one has everything.
                for _ in bed.until("the broker has another keeper"):
                    if bed.broker.keeper != keeper:
                        break
                bed.broker.client.ok("status")
            case "client":
                index = bed.random.randrange(4)
                workers[index].kill()
                workers[index] = start(index)
        bed.count(f"{victim}s killed")
        bed.broker.check()
    os.eventfd_write(stop, 1)
    for worker in workers.values():
        bed.count("steps between kills", worker.result())
    os.close(stop)
    root = bed.broker.client
    for index in range(4):
        diary = Diary(folder / str(index))
        for name in list(diary.possible):
            reply = root.call("get", name=name, readonly=True, gpu=False)
            diary.check(name, 0 if "error" in reply else int(reply.bytes(8).hex(), 16))
            if "error" not in reply:
                root.ok("delete", name=name)
                root.release(reply["region"])
    shutil.rmtree(folder)


@trial(killing=True)
def leases_resumed_after_a_crash_are_what_they_were(bed: Bed) -> None:
    """All that are asked for, and no others; answers that nobody read leave nothing."""
    keeps, forgets, unread = bed.client(), bed.client(), bed.client()
    data: dict[int, bytes] = {}
    counts: Counter[int] = Counter()
    for client, number in itertools.product((keeps, forgets), range(10 * bed.scale)):
        made = client.allocate(None, device=0 if number == 0 else -1)
        data[made["region"]] = bed.random.randbytes(8)
        made.write(data[made["region"]])
        made.close()
        for _ in range(counts[made["region"]] or bed.random.randint(0, 3)):
            client.ok("get", region=made["region"], readonly=False, gpu=False).close()
            counts[made["region"]] += 1
        counts[made["region"]] += 1
    draft = keeps.create("crash/draft")["region"]
    regions = list(data)
    half = len(regions) // 2
    kept, forgotten = regions[:half], regions[half:]
    for _ in range(20):
        unread.send("allocate", **allocation(None))
    bed.broker.restart()
    bed.count("brokers killed")
    session = {client: bed.reopen(client) for client in (keeps, forgets, unread)}
    leases = [[number, True, False] for number in kept for _ in range(counts[number])]
    leases += [[draft, True, False], [1 << 40, True, False]]
    bed.random.shuffle(leases)
    some = bed.random.randrange(len(leases))
    lost = keeps.ok("resume", session=session[keeps], leases=leases[:some], more=True)["lost"]
    lost += keeps.ok("resume", session=session[keeps], leases=leases[some:])["lost"]
    bed.same(lost, [1 << 40], "lost leases")
    for number in kept:
        grant = keeps.ok("get", region=number, readonly=True, gpu=False)
        bed.same(grant.bytes(8), data[number], "bytes")
        bed.same(held(keeps, number)[os.getpid()], counts[number] + 1, "leases")
        keeps.release(*[number] * counts[number])
        bed.same(held(keeps, number)[os.getpid()], 1, "leases")
        keeps.release(number)
        bed.refused("Gone", keeps, "stat", region=number)
    bed.same(keeps.ok("publish", region=draft)["version"], 1, "version")
    bed.same(forgets.ok("resume", session=session[forgets], leases=[])["lost"], [], "lost leases")
    for number in forgotten:
        bed.refused("Gone", forgets, "stat", region=number)
    unread.ok("resume", session=session[unread], leases=[])
    keeps.ok("delete", name="crash/draft")
    bed.count("leases resumed", len(leases) - 1)


@trial(killing=True)
def leases_that_nobody_resumes_end_with_their_process(bed: Bed) -> None:
    """Though that says hello again: until then they are kept for it."""
    told, tell = os.pipe()
    restarted = os.eventfd(0)

    def hold() -> None:
        client = bed.client()
        number = client.allocate(None)["region"]
        os.write(tell, number.to_bytes(8, "big"))
        os.eventfd_read(restarted)
        bed.reopen(client)
        for _ in range(3):
            bed.same(held(client, number), {os.getpid(): 1}, "leases")

    child = bed.start(hold)
    os.close(tell)
    number = int.from_bytes(os.read(told, 8), "big")
    bed.broker.restart()
    bed.count("brokers killed")
    os.eventfd_write(restarted, 1)
    child.result()
    for fd in (told, restarted):
        os.close(fd)
    client = bed.client()
    for _ in bed.until("the lease of a process that ended ends"):
        if client.call("stat", region=number).get("error") == "Gone":
            break
    bed.count("leases that nobody resumed")


@trial(killing=True)
def what_is_removed_of_its_place_comes_back(bed: Bed) -> None:
    """The socket, the keeper's, the lock, or the whole folder: the next crash loses nothing."""
    socket_path = Path(bed.broker.path)
    folder, aside = socket_path.parent, bed.folder / "aside"
    files = [socket_path, Path(f"{socket_path}.keeper"), Path(f"{socket_path}.lock")]
    if bed.random.random() < 0.5:
        folder.rename(aside)
    else:
        for file in bed.random.sample(files, bed.random.randint(1, 3)):
            file.unlink()
    for _ in bed.until("the broker's socket, its keeper's and its lock are there again"):
        if all(file.exists() for file in files):
            break
    if aside.exists():
        (aside / "broker.log").rename(folder / "broker.log")
        shutil.rmtree(aside)
    client = bed.client()
    client.release(client.allocate("after", metadata=b"removal")["region"])
    bed.broker.check()
    bed.broker.restart()
    bed.count("brokers killed")
    bed.count("places removed")
    bed.reopen(client)
    bed.same(client.get("after")["metadata"], b"removal", "metadata")
    client.ok("delete", name="after")
