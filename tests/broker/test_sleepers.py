"""The broker tells which processes have regions asleep."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from msgpack import packb

import gdrpy
from brokers import Broker
from gdrpy import aio
from gdrpy.broker.client.connection import Connection
from gdrpy.broker.replies import Sleeper
from gdrpy.broker.server.quotas import USER_SLEEPERS
from rawclient import RawClient
from sleeping import DATA, connected, copy_of, other, region
from test_rights import BROKER_UID, as_user

__all__ = ["connected", "other", "region"]

SLEEPER = """
import sys
import gdrpy

with gdrpy.connect(sys.argv[1]) as client, client.get("weights") as region:
    client.sleep_many([region])
    print(flush=True)
    sys.stdin.read()
"""


def asleep(client: gdrpy.Broker, name: str = "weights") -> int:
    """How many sleep, as a list tells."""
    [found] = {info.asleep for info in client.list() if info.name == name}
    return found


def here(version: int = 1, older: bool = False) -> Sleeper:
    return Sleeper(os.getpid(), os.getuid(), version, older)


def soon(found: Callable[[], Any], wanted: Any) -> None:
    """It becomes so, once the broker has heard of it from another connection."""
    deadline = time.monotonic() + 20
    while found() != wanted:
        assert time.monotonic() < deadline, found()
        time.sleep(0.01)


class TestSleeper:
    def test_is_told_until_it_attaches_again(self, connected, region):
        region.detach()
        info = connected.stat("weights")
        assert (info.readers, info.writers, info.asleep) == (0, 0, 1)
        assert (info.holders, info.sleepers) == ((), (here(),))
        assert connected.status()["asleep"] == 1
        region.attach()
        info = connected.stat("weights")
        assert (info.readers, info.writers, info.asleep, info.sleepers) == (1, 0, 0, ())
        assert connected.status()["asleep"] == 0

    def test_is_told_by_the_copy_while_the_name_refers_to_no_region(self, connected, other, region):
        with other.get("weights") as another:
            connected.sleep_many([region])
            assert (asleep(connected), copy_of(connected).asleep) == (1, 0)
            other.sleep_many([another])
            assert copy_of(connected).sleepers == (here(), here())
            connected.wake_many([region])
            assert (asleep(connected), copy_of(connected).asleep) == (1, 0)
            assert connected.stat("weights").sleepers == (here(),)
            other.wake_many([another])
            soon(lambda: asleep(connected), 0)

    def test_of_an_older_version_is_told_as_such(self, connected, other, region):
        connected.put("weights", DATA + 1, seal=True).close()
        with other.get("weights") as newer:
            connected.sleep_many([region])
            newer.detach()
            soon(lambda: connected.stat("weights").sleepers, (here(1, True), here(2)))
            region.attach(newer=True)
            assert connected.stat("weights").sleepers == (here(2),)

    def test_that_is_closed_asleep_is_gone(self, connected, region):
        connected.sleep_many([region])
        region.close()
        assert copy_of(connected).sleepers == ()

    def test_that_nothing_refers_to_is_gone(self, connected):
        region = connected.get("weights")
        region.detach()
        assert asleep(connected) == 1
        del region
        assert asleep(connected) == 0

    def test_that_others_still_use_is_gone_with_its_block(self, connected):
        def block() -> object:
            with connected.get("weights") as region:
                kept = region.array().__dlpack__(max_version=(1, 0))
                region.detach()
                assert asleep(connected) == 1
            return kept, region

        with pytest.warns(gdrpy.StillInUse):
            kept = block()
        assert asleep(connected) == 0
        del kept

    def test_of_a_connection_that_ends_is_gone(self, connected, other):
        region = other.get("weights")
        region.detach()
        soon(lambda: asleep(connected), 1)
        other.close()
        soon(lambda: asleep(connected), 0)
        region.close()

    def test_that_is_killed_is_gone(self, broker, connected):
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", SLEEPER, broker.path]
        with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
            assert process.stdout is not None
            process.stdout.readline()
            told = Sleeper(process.pid, os.getuid(), 1, False)
            assert copy_of(connected).sleepers == (told,)
            process.kill()
            soon(lambda: copy_of(connected).sleepers, ())

    def test_counts_once_for_a_connection(self, connected, region):
        with connected.get("weights") as same:
            gdrpy.detach_many([region, same])
            assert asleep(connected) == 1
            region.attach()
            assert (asleep(connected), connected.stat("weights").readers) == (1, 1)
            same.attach()
            assert (asleep(connected), connected.stat("weights").readers) == (0, 1)

    def test_is_told_though_another_connection_holds_the_region(self, connected, other, region):
        with other.get("weights"):
            region.detach()
            info = connected.stat("weights")
            assert (info.readers, info.asleep) == (1, 1)

    def test_that_forks_is_told_once(self, connected, region):
        region.detach()
        child = os.fork()
        if not child:
            del region
            os._exit(0)
        os.waitpid(child, 0)
        assert connected.stat("weights").sleepers == (here(),)

    def test_is_none_if_it_cannot_come_back(self, connected):
        for own in (connected.create("draft", 4096), connected.allocate(None, 4096)):
            own.detach()
            assert connected.status()["asleep"] == 0
            own.close()

    def test_of_many_regions_is_told_of_each(self, connected):
        names = [f"many/{number}" for number in range(100)]
        regions = [connected.put(name, DATA[:8], seal=True) for name in names]
        gdrpy.detach_many(regions)
        assert {info.asleep for info in connected.list("many/")} == {1}
        assert connected.status()["asleep"] == 100
        connected.attach_many(regions)
        assert connected.status()["asleep"] == 0
        for one in regions:
            one.close()

    def test_of_many_regions_begins_by_two_packets_and_ends_by_one(self, connected, monkeypatch):
        names = [f"layer/{number}" for number in range(20)]
        regions = [connected.allocate(name, 1, cpu=False) for name in names]
        sent = []
        transport = type(connected._connection.transport)
        send_patiently = transport.send_patiently
        monkeypatch.setattr(
            transport,
            "send_patiently",
            lambda self, *args: sent.append(args[0]) or send_patiently(self, *args),
        )
        gdrpy.detach_many(regions)
        assert len(sent) == 2  # first those that fall asleep
        assert [connected.stat(name).asleep for name in names] == [1] * 20
        connected.attach_many(regions)
        assert len(sent) == 3
        assert [connected.stat(name).asleep for name in names] == [0] * 20
        for one in regions:
            one.close()

    def test_of_many_regions_of_asyncio_ends_by_one_packet(self, broker, monkeypatch):
        sent = []

        async def main() -> None:
            async with await aio.connect(broker.path) as client:
                regions = [await client.allocate(f"{n}", 1, cpu=False) for n in range(20)]
                gdrpy.detach_many(regions)
                await client.status()
                transport = type(client._connection.transport)
                send_now = transport.send_now
                monkeypatch.setattr(
                    transport,
                    "send_now",
                    lambda self, *args: sent.append(args[0]) or send_now(self, *args),
                )
                await client.attach_many(regions)
                assert len(sent) == 1
                assert [(await client.stat(f"{n}")).asleep for n in range(20)] == [0] * 20
                for one in regions:
                    one.close()

        asyncio.run(main())

    @pytest.mark.parametrize("call", ["detach_many", "attach_many"])
    def test_of_many_regions_is_told_though_ctrl_c_comes(self, connected, monkeypatch, call):
        regions = [connected.allocate("a", 1, cpu=False)]
        if call == "attach_many":
            gdrpy.detach_many(regions)
        close_leases = Connection.close_leases

        def interrupted(self: Connection, leases: Any) -> None:
            close_leases(self, leases)
            raise KeyboardInterrupt

        monkeypatch.setattr(Connection, "close_leases", interrupted)
        with pytest.raises(KeyboardInterrupt):
            getattr(gdrpy if call == "detach_many" else connected, call)(regions)
        assert connected._connection.returned == {}
        for one in regions:
            one.close()

    def test_of_asyncio_is_told(self, broker, connected):
        async def main() -> None:
            async with await aio.connect(broker.path) as client:
                region = await client.get("weights")
                await client.sleep_many([region])
                assert copy_of(connected).sleepers == (here(),)
                await client.wake_many([region])
                soon(lambda: asleep(connected), 0)
                region.detach()
                soon(lambda: asleep(connected), 1)
                region.close()
                soon(lambda: asleep(connected), 0)

        asyncio.run(main())


class TestNextBroker:
    def test_tells_sleepers_before_and_after_they_call_it(self, broker: Broker, connected, region):
        connected.sleep_many([region])
        for _ in range(2):
            broker.restart()
            with gdrpy.connect(broker.path) as watching:
                assert copy_of(watching).sleepers == (here(),)
                assert copy_of(connected).sleepers == (here(),)
                assert watching.status()["asleep"] == 1
        connected.wake_many([region])
        assert asleep(connected) == 0

    def test_knows_of_those_that_closed_meanwhile(self, broker: Broker, connected, region):
        region.detach()
        broker.kill()
        region.close()
        broker.start()
        assert asleep(connected) == 0

    def test_knows_of_those_that_fell_asleep_meanwhile(self, broker: Broker, connected, region):
        broker.kill()
        region.detach()
        broker.start()
        assert connected.stat("weights").sleepers == (here(),)

    def test_with_nothing_left_knows_of_none(self, broker: Broker, connected, region):
        region.detach()
        broker.stop()
        broker.start()
        assert connected.status()["asleep"] == 0
        region.close()


def told(client: RawClient, **regions: list[int]) -> None:
    """Tell of regions that sleep, or woke; there is no reply."""
    client.sock.send(packb({"op": "release", "regions": [], **regions}))


class TestHostileSleeper:
    def test_sleeps_in_nothing_that_it_may_not_read(self, start_broker):
        broker = start_broker(uid=BROKER_UID, options={"mode": 0o666})
        with gdrpy.connect(broker.path) as client:
            secret, shown = (
                client.put(name, b"x", "cpu", mode=mode).id
                for name, mode in (("secret", 0o600), ("shown", 0o644))
            )

            def attempt() -> int:
                with broker.client() as raw:
                    told(raw, asleep=[secret, shown, 1 << 40], awake=[shown + 1])
                    return int(raw.ok("status")["asleep"])

            assert as_user("other", attempt) == 1

    def test_is_counted_up_to_a_limit(self, start_broker):
        broker = start_broker(uid=BROKER_UID, options={"mode": 0o666})

        def attempt() -> list[int]:
            counts = []
            with broker.client() as first, broker.client() as second:
                for raw in (first, second):
                    for _ in range(USER_SLEEPERS // 2 + 64):
                        number = raw.allocate("one", mode=0o666)["region"]
                        told(raw, asleep=[number], regions=[number])
                        raw.ok("delete", name="one")
                    counts.append(raw.ok("status")["asleep"])
                first.close()
                while second.ok("status")["sessions"] == 2:
                    pass
                counts.append(second.ok("status")["asleep"])
            return counts

        some = USER_SLEEPERS // 2 + 64
        assert as_user("other", attempt) == [some, USER_SLEEPERS, USER_SLEEPERS - some]

    @pytest.mark.parametrize("count", [1, 64, 65, 4096])
    def test_tells_of_the_same_region_once(self, client, count):
        number = client.allocate("one")["region"]
        told(client, asleep=[number] * count)
        assert client.ok("status")["asleep"] == 1
        told(client, awake=[number] * count)
        assert "asleep" not in client.ok("status")
