"""Regions that sleep: one copy in host memory for all who hold them, and the same addresses."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import msgpack

import gdrpy
from brokers import Broker
from checkpoints import write_checkpoint
from gdrpy import aio, cuda
from gdrpy.broker import requests
from gdrpy.broker.client.transport import BlockingTransport, Lost
from gdrpy.broker.replies import RegionInfo, Reply
from serving import BrokerProcess, StartServing
from support import open_descriptors
from test_rights import BROKER_UID, as_user

PUT_MISSING = """
import sys
import gdrpy

with gdrpy.connect(sys.argv[1]) as client:
    try:
        client.put_tensors("w", {"x": b"abc"}, 0, missing=True)
    except gdrpy.NotFound as error:
        print("NotFound:", error, client.stat("w").version)
"""
DATA = np.arange(1 << 16, dtype=np.uint32)
GPU = f"GPU-{'0' * 8}-0000-0000-0000-{'0' * 12}"


@pytest.fixture
def connected(broker: Broker) -> Iterator[gdrpy.Broker]:
    """A client of the test's broker, which has the sealed region "weights"."""
    with gdrpy.connect(broker.path) as made:
        made.put("weights", DATA, seal=True, metadata={"of": "llama"}).close()
        yield made


@pytest.fixture
def other(broker: Broker, connected: gdrpy.Broker) -> Iterator[gdrpy.Broker]:
    """Another client of it."""
    with gdrpy.connect(broker.path) as made:
        yield made


@pytest.fixture
def region(connected: gdrpy.Broker) -> Iterator[gdrpy.BrokerRegion]:
    with connected.get("weights") as region:
        yield region


@pytest.fixture
def broker_on_two_gpus(start_serving: StartServing) -> str:
    return start_serving(GDRPY_SIM_DEVICES="2").socket


def there(client: gdrpy.Broker) -> dict[str, int | str]:
    """The regions that have names, without the stamps of copies, and where they lie."""
    return {
        re.sub(r"(\.host)/[0-9a-f]{16}$", r"\1", str(info.name)): info.device
        for info in client.list()
    }


def copy_of(client: gdrpy.Broker, name: str = "weights") -> RegionInfo:
    """The one copy of a region."""
    [info] = client.list(f"{name}.host/")
    return client.stat(str(info.name))


def forge(
    client: gdrpy.Broker, name: str, stamp: str, gpu: str = "GPU-x", late: bool = False
) -> None:
    """Publish what looks like a copy of a region, under a name that ends with its stamp.

    It is sealed before, or ``late``.
    """
    with client.create(f"{name}.host/{stamp}", 4096, "cpu", mode=0o644) as draft:
        draft.set_metadata({"gdrpy.copy": [stamp, draft.id, gpu]})
        if not late:
            draft.seal()
        draft.publish()
        draft.seal()


def holds_the_data(region: gdrpy.BrokerRegion) -> bool:
    return np.array_equal(region.numpy(), DATA)


def at_once(
    act: Callable[[gdrpy.Broker, gdrpy.BrokerRegion], object],
    clients: list[gdrpy.Broker],
    regions: list[gdrpy.BrokerRegion],
) -> None:
    """Have each client do something to its region, in threads that begin together."""
    together = threading.Barrier(len(clients))

    def begin(client: gdrpy.Broker, one: gdrpy.BrokerRegion) -> None:
        together.wait()
        act(client, one)

    with ThreadPoolExecutor(len(clients)) as pool:
        list(pool.map(begin, clients, regions))


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have something be done once, right after the reply to the first request of a kind."""

    def do(kind: type[requests.Request], act: Callable[[], object]) -> None:
        asked = gdrpy.Broker._ask_now

        def ask(self: gdrpy.Broker, request: Any, *more: Any) -> Any:
            answer = asked(self, request, *more)
            if isinstance(request, kind):
                monkeypatch.setattr(gdrpy.Broker, "_ask_now", asked)
                act()
            return answer

        monkeypatch.setattr(gdrpy.Broker, "_ask_now", ask)

    return do


class TestSleepMany:
    def test_frees_the_gpu_memory_and_keeps_a_sealed_copy_in_host_memory(self, connected, region):
        connected.sleep_many([region])
        assert region.detached
        assert there(connected) == {"weights.host": "cpu"}
        about = copy_of(connected)
        assert (about.sealed, about.mode, about.nbytes) == (True, 0o600, DATA.nbytes)
        with connected.get(str(about.name), gpu=False) as copy:
            assert holds_the_data(copy)

    def test_leaves_the_gpu_memory_to_those_that_are_awake(self, connected, other, region):
        with other.get("weights") as awake:
            connected.sleep_many([region])
            assert there(connected) == {"weights": 0, "weights.host": "cpu"}
            assert holds_the_data(awake)
            other.sleep_many([awake])
            assert there(connected) == {"weights.host": "cpu"}

    def test_copies_the_same_contents_once(self, connected, other, region):
        connected.sleep_many([region])
        first = copy_of(connected).region
        connected.wake_many([region])
        with other.get("weights") as another:
            connected.sleep_many([region])
            other.sleep_many([another])
            assert copy_of(connected).region == first

    def test_copies_nothing_after_keep_many(self, connected, region, monkeypatch):
        connected.keep_many([region])
        assert not region.detached
        monkeypatch.setattr(region, "readinto", lambda *_: pytest.fail("it copies"))
        connected.sleep_many([region])
        connected.wake_many([region])
        assert holds_the_data(region)

    def test_copies_new_contents_anew(self, connected, region):
        connected.sleep_many([region])
        connected.put("weights", DATA + 1, seal=True, metadata={"of": "llama"}).close()
        region.attach(newer=True)
        connected.sleep_many([region])
        connected.wake_many([region])
        assert np.array_equal(region.numpy(), DATA + 1)

    def test_does_not_delete_a_newer_version(self, connected, region):
        connected.put("weights", DATA + 1, seal=True).close()
        connected.sleep_many([region])
        with connected.get("weights") as newer:
            assert (newer.version, newer.numpy()[0]) == (2, 1)

    def test_leaves_what_sleeps_as_it_is(self, connected, region):
        connected.sleep_many([region])
        connected.sleep_many([region])
        connected.wake_many([region])
        connected.wake_many([region])
        assert holds_the_data(region)

    @pytest.mark.parametrize(
        "make",
        [
            lambda client: client.put("loose", DATA),
            lambda client: client.create("draft", 4096),
            lambda client: client.allocate(None, 4096),
        ],
    )
    def test_refuses_what_may_change(self, connected, region, make):
        with make(connected) as loose:
            words = "sleep_many: <.*> must be published and sealed, so that its copy stays right"
            with pytest.raises(gdrpy.InvalidRequest, match=words):
                connected.sleep_many([region, loose])
            assert (region.detached, loose.detached) == (False, False)
            assert "loose.host" not in there(connected)

    @pytest.mark.parametrize("gpu", [True, False])
    def test_copies_nothing_of_what_it_cannot_detach(self, connected, gpu):
        device = 0 if not gpu else "cpu"
        connected.put("more", DATA, device, seal=True).close()
        with connected.get("more", gpu=gpu) as more:
            words = "sleep_many: only memory with a GPU view and without a fabric handle can be"
            with pytest.raises(gdrpy.MissingView, match=words):
                connected.sleep_many([more])
        assert there(connected) == {"weights": 0, "more": device}

    def test_needs_no_copy_of_host_memory(self, connected):
        words = "keep_many: <.*> is host memory already: leave it out"
        more = connected.put("more", DATA, "cpu", seal=True)
        with more, pytest.raises(gdrpy.InvalidRequest, match=words):
            connected.keep_many([more])
        assert there(connected) == {"weights": 0, "more": "cpu"}

    def test_by_threads_puts_one_region_to_sleep_once(self, connected, region):
        for _ in range(20):
            at_once(lambda client, one: client.sleep_many([one]), [connected] * 4, [region] * 4)
            assert region.detached
            connected.wake_many([region])
            assert holds_the_data(region)

    def test_refuses_another_connections_region(self, other, region):
        with pytest.raises(ValueError, match="sleep_many: .* came from another connection"):
            other.sleep_many([region])

    def test_leaves_all_attached_if_one_is_in_use(self, connected, region):
        connected.put("more", DATA, seal=True).close()
        with connected.get("more") as busy:
            view = busy.numpy()
            with pytest.raises(BufferError):
                connected.sleep_many([region, busy])
            assert (region.detached, busy.detached) == (False, False)
            del view

    def test_leaves_them_attached_if_host_memory_is_short(self, start_broker):
        broker = start_broker(quotas={"device": 3 << 20})
        with gdrpy.connect(broker.path) as client:
            client.put("weights", DATA, seal=True).close()
            client.allocate("host", 3 << 20, "cpu").close()
            with client.get("weights") as region:
                with pytest.raises(gdrpy.OutOfMemory):
                    client.sleep_many([region])
                assert holds_the_data(region)
                assert there(client) == {"weights": 0, "host": "cpu"}

    def test_knows_contents_that_carry_the_metadata_of_others(self, connected, region):
        connected.sleep_many([region])
        connected.wake_many([region])
        connected.put("weights", DATA + 1, seal=True, metadata=region.metadata).close()
        with connected.get("weights") as newer:
            connected.sleep_many([newer])
            connected.wake_many([newer])
            assert newer.numpy()[0] == 1

    def test_of_an_older_version_leaves_the_newer_ones_copy(self, connected, other, region):
        connected.put("weights", DATA + 1, seal=True).close()
        with other.get("weights") as newer:
            other.sleep_many([newer])
            connected.sleep_many([region])
            other.wake_many([newer])
            assert newer.numpy()[0] == 1

    def test_keeps_no_copy_of_a_version_that_is_replaced_meanwhile(
        self, connected, other, region, meanwhile
    ):
        newer = []

        def replace() -> None:
            other.put("weights", DATA + 1, seal=True).close()
            newer.append(other.get("weights"))
            other.sleep_many(newer)

        meanwhile(requests.Seal, replace)
        connected.sleep_many([region])
        assert region.detached
        assert copy_of(connected).region > newer[0].id
        with connected.wake("weights") as woken:
            assert woken.numpy()[0] == 1
        newer[0].close()

    def test_leaves_no_copy_of_what_is_deleted_meanwhile(self, connected, other, region, meanwhile):
        meanwhile(requests.Seal, lambda: other.delete("weights"))
        with pytest.raises(gdrpy.Gone, match="sleep_many: the name of .* was deleted, so that it"):
            connected.sleep_many([region])
        assert holds_the_data(region)
        assert there(connected) == {}

    def test_copies_no_sealed_draft(self, connected, region):
        with connected.create("weights", DATA.nbytes) as draft:
            draft.write(DATA + 9)
            draft.seal()
            with pytest.raises(gdrpy.InvalidRequest, match="must be published and sealed"):
                connected.keep_many([draft])

    def test_gives_the_copy_the_permissions_of_the_region(self, connected, region):
        connected.chmod("weights", 0o644)
        connected.keep_many([region])
        connected.chmod("weights", 0o640)
        connected.sleep_many([region])
        assert copy_of(connected).mode == 0o640
        connected.wake_many([region])
        assert region.info().mode == 0o640

    def test_lets_no_more_users_read_the_copy_than_the_region(self, connected, region):
        connected.chmod("weights", 0o644)
        connected.keep_many([region])
        connected.chmod("weights", 0o600)
        assert copy_of(connected).mode == 0o600
        connected.put("weights", DATA + 1, mode=0o600).close()
        connected.chmod("weights", 0o644)
        assert copy_of(connected).mode == 0o600

    def test_lets_no_more_users_read_the_copy_than_the_region_had_when_it_was_copied(
        self, connected, other, region, meanwhile
    ):
        connected.chmod("weights", 0o644)
        meanwhile(requests.Create, lambda: other.chmod("weights", 0o600))
        connected.keep_many([region])
        assert copy_of(connected).mode == 0o600

    def test_leaves_one_copy_of_processes_that_sleep_at_once(self, broker, connected):
        clients = [gdrpy.connect(broker.path) for _ in range(6)]
        regions = [client.get("weights") for client in clients]
        at_once(lambda client, one: client.sleep_many([one]), clients, regions)
        assert there(connected) == {"weights.host": "cpu"}
        for one, client in zip(regions, clients, strict=True):
            client.wake_many([one])
            assert holds_the_data(one)
            one.close()
            client.close()

    def test_that_was_interrupted_is_finished_by_the_next(self, connected, region, monkeypatch):
        def interrupted(*_: object, **more: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("gdrpy.broker.client.sleeping._free", interrupted)
        with pytest.raises(KeyboardInterrupt):
            connected.sleep_many([region])
        monkeypatch.undo()
        assert there(connected) == {"weights": 0, "weights.host": "cpu"}
        connected.sleep_many([region])
        assert there(connected) == {"weights.host": "cpu"}
        connected.wake_many([region])
        assert holds_the_data(region)

    def test_that_was_interrupted_when_it_had_detached_is_asleep(
        self, connected, region, monkeypatch
    ):
        def interrupted(regions: Any) -> None:
            gdrpy.detach_many(regions)
            raise KeyboardInterrupt

        monkeypatch.setattr("gdrpy.broker.client.sleeping.detach_many", interrupted)
        with pytest.raises(KeyboardInterrupt):
            connected.sleep_many([region])
        monkeypatch.undo()
        connected.sleep_many([region])
        assert there(connected) == {"weights.host": "cpu"}
        connected.wake_many([region])
        assert holds_the_data(region)

    def test_is_done_though_the_broker_ends_when_it_has_detached(
        self, broker_process: BrokerProcess, monkeypatch
    ):
        def ended(regions: Any) -> None:
            gdrpy.detach_many(regions)
            broker_process.kill()

        with gdrpy.connect(broker_process.socket, reconnect=0.1) as client:
            client.put("weights", DATA, seal=True).close()
            with client.get("weights") as region:
                monkeypatch.setattr("gdrpy.broker.client.sleeping.detach_many", ended)
                client.sleep_many([region])
                assert region.detached

    def test_refuses_what_could_not_wake(self, connected, region):
        connected.delete("weights")
        with pytest.raises(gdrpy.Gone, match="the name of .* was deleted, so that it could not"):
            connected.sleep_many([region])
        assert holds_the_data(region)

    def test_is_undone_by_delete(self, connected, region):
        connected.sleep_many([region])
        connected.delete("weights")
        assert there(connected) == {}
        with pytest.raises(gdrpy.NotFound, match="delete: there is no region of the name 'wei"):
            connected.delete("weights")

    def test_is_undone_by_delete_of_the_region(self, connected, region):
        connected.keep_many([region])
        region.delete()
        assert there(connected) == {}

    def test_is_undone_by_a_delete_during_which_the_broker_ends(
        self, broker, connected, region, monkeypatch
    ):
        connected.keep_many([region])
        exchange = BlockingTransport.exchange_now

        def end(self: Any, packet: bytes) -> Any:
            exchange(self, packet)
            monkeypatch.undo()
            broker.restart()
            raise Lost("the broker was killed")

        monkeypatch.setattr(BlockingTransport, "exchange_now", end)
        connected.delete("weights")
        assert there(connected) == {}

    def test_is_undone_by_delete_of_a_checkpoint(self, connected, region, tmp_path):
        region.delete()
        connected.load_checkpoint(write_checkpoint(tmp_path / "m"), "llama", seal=True)
        files = [connected.get(str(info.name)) for info in connected.list("llama/")]
        connected.keep_many(files)
        connected.sleep_many(files[:1])
        assert len(connected.list()) == 6
        connected.delete("llama")
        assert there(connected) == {}
        for file in files:
            file.close()

    def test_is_undone_once_by_a_new_checkpoint_with_a_newer_copy(
        self, connected, region, tmp_path
    ):
        region.delete()
        connected.load_checkpoint(write_checkpoint(tmp_path / "m"), "llama", seal=True)
        [name, *_] = [str(info.name) for info in connected.list("llama/")]
        with connected.get(name) as file:
            connected.keep_many([file])
            mark = copy_of(connected, name).metadata
        index = connected.create("llama", 4096, metadata={"format": "checkpoint", "id": "0" * 8})
        with index, connected.create(f"{name}.host/{'0' * 16}", 4096, "cpu") as newer:
            of, _, gpu = mark["gdrpy.copy"]
            newer.set_metadata({**mark, "gdrpy.copy": [of, newer.id, gpu]})
            newer.seal()
            connected.publish_many([index, newer])
        assert there(connected) == {"llama": 0, f"{name}.host": "cpu"}

    def test_is_not_undone_by_another_sleeper(self, connected, region):
        connected.sleep_many([region])
        with pytest.raises(
            gdrpy.NotFound, match=r"delete: the region 'weights' sleeps: broker.wake\('weights'\)"
        ):
            connected._ask_now(requests.Delete("weights", unheld=True, id=0), Reply)
        assert there(connected) == {"weights.host": "cpu"}

    def test_leaves_others_regions_of_such_names_alone(self, connected, region):
        for name in ("weights.host", "weights.host/x", f"weights.host/{'0' * 16}"):
            connected.put(name, DATA, "cpu", seal=True).close()
        connected.sleep_many([region])
        connected.wake_many([region])
        connected.delete("weights")
        assert len(connected.list()) == 3


class TestSleepingRegion:
    def test_is_told_from_one_that_is_not_there(self, connected, region):
        connected.sleep_many([region])
        for call in (connected.get, connected.stat, connected.tensors):
            with pytest.raises(gdrpy.NotFound, match=r"the region 'weights' sleeps: broker.wake"):
                call("weights")
        with pytest.raises(gdrpy.NotFound, match="there is no region of the name 'other'"):
            connected.get("other")

    def test_of_metadata_as_deep_as_can_be_decoded_stops_no_broker(self, broker, connected):
        for depth in range(1000, 900, -1):
            name = f"deep.host/{depth:016x}"
            with connected.create(name, 4096, "cpu") as draft:
                mark = msgpack.encode([f"{depth:016x}", draft.id, GPU])
                about = b"\x82" + msgpack.encode("gdrpy.copy") + mark
                deep = about + msgpack.encode("x") + b"\x91" * depth + b"\xc0"
                try:
                    connected._ask_now(requests.Change(draft.id, metadata=deep, id=0), Reply)
                except gdrpy.Error:
                    continue
                draft.seal()
                draft.publish()
            connected.delete(name)
        with pytest.raises(gdrpy.NotFound):
            connected.delete("deep")
        broker.restart()
        assert there(connected) == {"weights": 0}

    def test_keeps_its_name_with_the_next_broker(self, start_broker: Any):
        broker = start_broker(uid=BROKER_UID, options={"mode": 0o666})

        def take() -> str:
            with gdrpy.connect(broker.path) as client:
                return _refusal(lambda: client.allocate("kept", 4096, gpu=False).close())

        with gdrpy.connect(broker.path) as client:
            with client.put("kept", DATA, seal=True) as region:
                client.sleep_many([region])
                for _ in range(2):
                    broker.restart()
                    assert "another user's region, which sleeps" in as_user("other", take)
                client.wake_many([region])
                assert holds_the_data(region)
            client.delete("kept")
        assert as_user("other", take) == "done"

    def test_keeps_its_name_from_copies_that_another_user_made(self, start_broker: Any):
        """Restarts do not give a name to a copy that did not keep it before."""
        broker = start_broker(uid=BROKER_UID, options={"mode": 0o666})

        def plant() -> None:
            with gdrpy.connect(broker.path) as client:
                forge(client, "kept", "1" * 16, GPU)
                forge(client, "kept", "2" * 16, GPU, late=True)
                client.delete(f"kept.host/{'2' * 16}")

        def take() -> str:
            with gdrpy.connect(broker.path) as client:
                return _refusal(lambda: client.put("kept", DATA, gpu=False).close())

        as_user("other", plant)
        with (
            gdrpy.connect(broker.path) as client,
            client.put("kept", DATA, seal=True) as region,
        ):
            client.sleep_many([region])
            for _ in range(2):
                broker.restart()
                assert "another user's region, which sleeps" in as_user("other", take)
            client.wake_many([region])
            assert holds_the_data(region)

    def test_leaves_the_name_free_when_it_is_deleted(self, start_broker: Any):
        broker = start_broker(uid=BROKER_UID, options={"mode": 0o666})

        def plant() -> None:
            with gdrpy.connect(broker.path) as client:
                forge(client, "kept", "1" * 16, GPU)

        def take() -> str:
            with gdrpy.connect(broker.path) as client:
                return _refusal(lambda: client.put("kept", DATA, gpu=False).close())

        with gdrpy.connect(broker.path) as client:
            client.put("kept", DATA, mode=0o666).close()
            as_user("other", plant)
            client.delete("kept")
        for _ in range(2):
            broker.restart()
        assert as_user("owner", take) == "done"

    def test_says_what_brings_it_back(self, connected, region):
        connected.sleep_many([region])
        with pytest.raises(
            gdrpy.Detached, match=r"wake it by broker\.wake_many\(\[region\]\) first"
        ):
            region.read(1)
        connected.wake_many([region])
        region.detach()
        with pytest.raises(gdrpy.Detached, match=r"attach\(\) it first"):
            region.read(1)


class TestWakeMany:
    def test_brings_the_contents_back_to_their_addresses(self, connected, region):
        address, array = region.ptr, region.array()
        connected.sleep_many([region])
        connected.wake_many([region])
        assert (region.ptr, region.sealed, region.readonly) == (address, True, True)
        assert bytes(array) == DATA.tobytes()
        info = region.info()
        assert (info.mode, info.linked, info.metadata["of"]) == (0o600, True, "llama")

    def test_attaches_what_another_process_woke(self, connected, other, region):
        with other.get("weights") as another:
            connected.sleep_many([region])
            other.sleep_many([another])
            connected.wake_many([region])
            other.wake_many([another])
            assert (region.id, region.version) == (another.id, another.version)
            assert holds_the_data(another)

    def test_by_many_at_once_makes_one_region(self, broker, connected, region):
        clients = [gdrpy.connect(broker.path) for _ in range(6)]
        regions = [client.get("weights") for client in clients]
        connected.sleep_many([region])
        for client, one in zip(clients, regions, strict=True):
            client.sleep_many([one])
        assert there(connected) == {"weights.host": "cpu"}
        at_once(lambda client, one: client.wake_many([one]), clients, regions)
        assert [holds_the_data(one) for one in regions] == [True] * len(clients)
        assert len({one.id for one in regions}) == 1
        for one, client in zip(regions, clients, strict=True):
            one.close()
            client.close()

    def test_refuses_other_contents_of_the_name(self, connected, region):
        connected.sleep_many([region])
        connected.put("weights", DATA + 1, seal=True, metadata={"of": "llama"}).close()
        with pytest.raises(gdrpy.Gone, match=r"'weights' has other contents now, of version 1"):
            connected.wake_many([region])
        assert region.detached
        region.attach(newer=True)
        assert region.numpy()[0] == 1

    def test_keeps_the_copy_that_it_woke_from_until_it_takes_a_newer_version(
        self, connected, region
    ):
        connected.sleep_many([region])
        connected.wake_many([region])
        mapped = f"{region._copy.cpu.address:x}-"
        assert mapped in Path("/proc/self/maps").read_text()
        region.detach()
        connected.put("weights", DATA + 1, seal=True, metadata={"of": "llama"}).close()
        region.attach(newer=True)
        for thread in threading.enumerate()[1:]:
            thread.join(10)
        assert mapped not in Path("/proc/self/maps").read_text()

    def test_lets_no_more_users_read_the_region_than_before_the_last_one_slept(
        self, connected, other, region
    ):
        connected.chmod("weights", 0o644)
        with other.get("weights") as last:
            connected.sleep_many([region])
            other.chmod("weights", 0o600)
            other.sleep_many([last])
            connected.wake_many([region])
        assert connected.stat("weights").mode == 0o600

    def test_of_an_older_version_does_not_come_before_the_newer_one(self, connected, other, region):
        connected.sleep_many([region])
        connected.wake_many([region])
        connected.put("weights", DATA + 1, seal=True).close()
        with other.get("weights") as newer:
            connected.sleep_many([region])
            other.sleep_many([newer])
            with pytest.raises(gdrpy.Gone, match="neither 'weights' nor its copy exists"):
                connected.wake_many([region])
            other.wake_many([newer])
            assert newer.numpy()[0] == 1

    def test_keeps_no_copy_of_a_version_that_the_region_no_longer_is(
        self, connected, other, region
    ):
        connected.sleep_many([region])
        connected.wake_many([region])
        other.put("weights", DATA + 1, seal=True, metadata={"of": "llama"}).close()
        region.detach()
        region.attach(newer=True)
        connected.keep_many([region])
        assert connected.status()["used"]["-1"] == DATA.nbytes

    def test_refuses_a_copy_that_is_not_its_own(self, connected, region):
        connected.sleep_many([region])
        name = str(copy_of(connected).name)
        connected.put(name, DATA + 1, "cpu", seal=True).close()
        with pytest.raises(gdrpy.Gone, match="neither 'weights' nor its copy exists"):
            connected.wake_many([region])
        assert region.detached

    def test_says_that_neither_is_there(self, connected, region):
        connected.sleep_many([region])
        connected.delete("weights")
        with pytest.raises(gdrpy.Gone, match="neither 'weights' nor its copy exists"):
            connected.wake_many([region])
        assert region.detached

    def test_brings_back_nothing_that_was_deleted(self, connected, region):
        connected.sleep_many([region])
        connected.wake_many([region])
        connected.sleep_many([region])
        connected.delete("weights")
        with pytest.raises(gdrpy.Gone, match="neither 'weights' nor its copy exists"):
            connected.wake_many([region])

    def test_attaches_what_it_found_though_a_newer_version_is_published_meanwhile(
        self, connected, other, region, meanwhile
    ):
        with other.get("weights"):
            connected.sleep_many([region])
            newer = lambda: other.put("weights", DATA + 1, seal=True).close()  # noqa: E731
            meanwhile(requests.Stat, newer)
            connected.wake_many([region])
        assert holds_the_data(region)
        assert region.stale

    def test_goes_on_if_the_region_is_freed_meanwhile(self, connected, other, region, meanwhile):
        with other.get("weights") as another:
            connected.sleep_many([region])
            other.sleep_many([another])
            meanwhile(requests.Create, lambda: other.wake_many([another]))
            connected.wake_many([region])
            assert region.id == another.id
            assert holds_the_data(region)

    def test_brings_back_nothing_that_is_deleted_meanwhile(
        self, connected, other, region, meanwhile
    ):
        connected.sleep_many([region])
        meanwhile(requests.Create, lambda: other.delete("weights"))
        with pytest.raises(gdrpy.Gone, match="neither 'weights' nor its copy exists"):
            connected.wake_many([region])
        assert there(connected) == {}

    def test_frees_nothing_that_has_no_copy_when_it_fails(self, connected, other, region):
        connected.put("more", DATA, seal=True).close()
        with connected.get("more") as more, other.get("weights") as awake:
            connected.sleep_many([region, more])
            connected.delete(str(copy_of(connected).name))
            awake.close()
            connected.delete("more")
            with pytest.raises(gdrpy.Gone, match="neither 'more' nor its copy exists"):
                connected.wake_many([region, more])
            assert there(connected) == {"weights": 0}
            connected.wake_many([region])
            assert holds_the_data(region)

    def test_by_threads_wakes_one_region_once(self, connected, region):
        for _ in range(20):
            connected.sleep_many([region])
            at_once(lambda client, one: client.wake_many([one]), [connected] * 4, [region] * 4)
            assert holds_the_data(region)
        [holder] = connected.stat("weights").holders
        assert holder.count == 1

    def test_refuses_what_does_not_sleep(self, connected, region):
        region.detach()
        words = r"wake_many: sleep_many\(\) did not detach .*: attach\(\) it"
        with pytest.raises(ValueError, match=words):
            connected.wake_many([region])
        region.attach()

    def test_lets_all_sleep_on_if_one_cannot_wake(self, connected, region):
        connected.put("more", DATA, seal=True).close()
        with connected.get("more") as more:
            connected.sleep_many([region, more])
            connected.delete("more")
            with pytest.raises(gdrpy.Gone, match="neither 'more' nor its copy"):
                connected.wake_many([region, more])
            assert (region.detached, more.detached) == (True, True)
            assert there(connected) == {"weights.host": "cpu"}
        connected.wake_many([region])
        assert holds_the_data(region)

    def test_sleeps_on_without_gpu_memory(self, start_broker):
        broker = start_broker(quotas={"device": 3 << 20})
        with gdrpy.connect(broker.path) as client:
            client.put("weights", DATA, seal=True).close()
            with client.get("weights") as region:
                client.sleep_many([region])
                hog = client.allocate("hog", 2 << 20)
                with pytest.raises(gdrpy.OutOfMemory):
                    client.wake_many([region])
                with pytest.raises(gdrpy.Timeout, match="waited 0.01 s"):
                    client.wake_many([region], wait=0.01)
                hog.delete()
                hog.close()
                client.wake_many([region], wait=10)
                assert holds_the_data(region)

    def test_works_with_the_next_broker(self, broker_process: BrokerProcess):
        with gdrpy.connect(broker_process.socket) as client:
            client.put("weights", DATA, seal=True).close()
            with client.get("weights") as region:
                client.sleep_many([region])
                broker_process.restart()
                client.wake_many([region])
                assert holds_the_data(region)
                broker_process.restart()
                client.sleep_many([region])
                assert there(client) == {"weights.host": "cpu"}
                client.wake_many([region])
                assert holds_the_data(region)

    def test_leaks_nothing(self, broker, connected):
        before = open_descriptors()
        with connected.get("weights") as region:
            for _ in range(3):
                connected.sleep_many([region])
                connected.wake_many([region])
        assert open_descriptors() == before
        assert connected.stat("weights").holders == ()
        assert copy_of(connected).holders == ()

    def test_from_asyncio(self, broker, connected):
        async def main() -> None:
            async with await aio.connect(broker.path) as client:
                region = await client.get("weights")
                await client.keep_many([region])
                await client.sleep_many([region])
                assert there(connected) == {"weights.host": "cpu"}
                await client.wake_many([region])
                assert holds_the_data(region)
                await client.sleep_many([region])
                with await client.wake("weights") as other:
                    assert holds_the_data(other)
                region.close()

        asyncio.run(main())


class TestWake:
    def test_makes_the_region_again_for_a_process_that_had_none(self, connected, other, region):
        connected.sleep_many([region])
        with other.wake("weights") as woken:
            assert holds_the_data(woken)
            connected.wake_many([region])
            assert region.id == woken.id

    def test_is_as_get_for_what_is_awake(self, connected, region):
        with connected.wake("weights", cpu=False) as same:
            assert (same.id, same.readonly) == (region.id, True)

    def test_without_views_needs_none_later(self, connected, region):
        connected.sleep_many([region])
        with connected.wake("weights", gpu=False, cpu=False) as woken:
            with pytest.raises(gdrpy.MissingView):
                _ = woken.cpu
            connected.wake_many([region])
            assert region.id == woken.id
            assert holds_the_data(region)

    def test_gives_its_caller_no_writable_view(self, connected, region):
        connected.sleep_many([region])
        with connected.wake("weights") as woken:
            with cuda.context(0), pytest.raises(gdrpy.CudaError, match="ERROR_INVALID_VALUE"):
                cuda.call("cuMemsetD8", woken.ptr, 9, woken.nbytes)
            assert holds_the_data(woken)

    def test_says_that_there_is_none(self, connected):
        with pytest.raises(gdrpy.NotFound, match="no region of the name 'weight': did you mean"):
            connected.wake("weight")

    def test_refuses_what_no_sleeper_copied(self, connected):
        name = f"fake.host/{'0' * 16}"
        connected.put(name, DATA, "cpu", seal=True, metadata={"gdrpy.copy": [1, 2]}).close()
        with pytest.raises(gdrpy.NotFound, match="no region of the name 'fake'"):
            connected.wake("fake")

    def test_refuses_a_copy_for_what_is_no_gpu(self, connected):
        forge(connected, "fake", "0" * 16)
        with pytest.raises(gdrpy.NotFound, match="no region of the name 'fake'"):
            connected.wake("fake")


class TestOtherUsers:
    """A broker of one user, whose regions others may read."""

    @pytest.fixture
    def shared(self, start_broker: Any) -> str:
        broker = start_broker(uid=BROKER_UID, options={"mode": 0o666})
        with gdrpy.connect(broker.path) as client:
            client.put("weights", DATA, seal=True, mode=0o644).close()
        return broker.path

    def test_cannot_put_it_to_sleep(self, shared: str):
        def attempt() -> str:
            with gdrpy.connect(shared) as client, client.get("weights", gpu=False) as region:
                return _refusal(lambda: client.keep_many([region]))

        assert as_user("other", attempt) == (
            "PermissionDenied: keep_many: region 'weights' is another user's: detach() it instead"
        )

    def test_keep_regions_that_they_may_not_write_themselves(self, shared: str):
        def keep() -> tuple[str, list[int]]:
            with gdrpy.connect(shared) as client:
                client.put("own", DATA, seal=True, mode=0o444, gpu=False).close()
                with client.get("own", gpu=False) as region:
                    done = _refusal(lambda: client.keep_many([region]))
                return done, [info.mode for info in client.list("own")]

        assert as_user("other", keep) == ("done", [0o444, 0o444])

    def test_wake_together_a_region_that_they_may_not_write_themselves(
        self, shared: str, meanwhile: Callable[..., None]
    ):
        def wake() -> bool:
            with gdrpy.connect(shared) as client, gdrpy.connect(shared) as other:
                client.put("own", DATA, seal=True, mode=0o444, gpu=False).close()
                with client.get("own", gpu=False) as region:
                    client.keep_many([region])
                client._ask_now(requests.Delete("own", unheld=True, copied=True, id=0), Reply)
                meanwhile(requests.Stat, lambda: other.wake("own", gpu=False).close())
                with client.wake("own", gpu=False) as region:
                    return holds_the_data(region)

        assert as_user("other", wake)

    def test_stop_nobody_by_copies_that_they_made(self, shared: str):
        def attack() -> None:
            with gdrpy.connect(shared) as client:
                with client.get("weights", gpu=False) as region:
                    stamp = hashlib.sha256(f"{region._life}/{region.id}".encode())
                    gpu = region.info().uuid
                for name in ("weights", "none"):
                    forge(client, name, "0" * 16, gpu)
                    forge(client, name, stamp.hexdigest()[:16], gpu)

        as_user("other", attack)
        with gdrpy.connect(shared) as client, client.get("weights") as region:
            client.sleep_many([region])
            with client.wake("weights") as woken:
                assert holds_the_data(woken)
            client.wake_many([region])
            assert holds_the_data(region)
            with pytest.raises(gdrpy.NotFound, match="get: there is no region of the name 'none'"):
                client.wake("none")
            client.delete("weights")
            assert there(client) == {"none.host": "cpu", "weights.host": "cpu"}

    def test_cannot_take_its_name_while_it_sleeps(self, shared: str):
        def attempt() -> list[str]:
            with gdrpy.connect(shared) as client:
                return [
                    _refusal(lambda: client.put("weights", DATA, gpu=False)),
                    _refusal(lambda: client.allocate("weights", 4096, gpu=False)),
                    _refusal(lambda: client.get("weights", gpu=False)),
                ]

        with gdrpy.connect(shared) as client, client.get("weights") as region:
            client.sleep_many([region])
            taken = "the name 'weights' is that of another user's region, which sleeps"
            assert [said.partition(": take")[0] for said in as_user("other", attempt)] == [
                f"PermissionDenied: publish: {taken}",
                f"PermissionDenied: allocate: {taken}",
                "NotFound: get: there is no region of the name 'weights'",
            ]
            client.wake_many([region])
            assert holds_the_data(region)
            client.delete("weights")
        assert as_user("other", attempt)[0] == "done"

    def test_cannot_take_its_name_by_a_copy_that_they_made(self, shared: str):
        def attempt() -> str:
            with gdrpy.connect(shared) as client:
                forge(client, "weights", "0" * 16, GPU)
                return _refusal(lambda: client.put("weights", DATA, gpu=False))

        with gdrpy.connect(shared) as client, client.get("weights") as region:
            client.sleep_many([region])
            assert "another user's region, which sleeps" in as_user("other", attempt)
            client.wake_many([region])
            assert holds_the_data(region)

    def test_block_no_name_by_copies_that_they_made(self, shared: str):
        def plant() -> None:
            with gdrpy.connect(shared) as client:
                for name in ("model", "kv"):
                    forge(client, name, "0" * 16, GPU)

        def own(first: bool) -> list[str]:
            with gdrpy.connect(shared) as client:
                made = [
                    _refusal(lambda: client.put("model", DATA, gpu=False).close()),
                    _refusal(lambda: client.allocate("kv", 4096, gpu=False).close()),
                ]
                if not first:
                    client.delete("model")
                    client.delete("kv")
                return made

        assert as_user("owner", lambda: own(True)) == ["done"] * 2
        as_user("other", plant)
        assert as_user("owner", lambda: own(False)) == ["done"] * 2
        assert as_user("owner", lambda: own(False)) == ["done"] * 2

    def test_cannot_wake_it_as_their_own(self, shared: str):
        with gdrpy.connect(shared) as client, client.get("weights") as region:
            client.sleep_many([region])

        def attempt() -> str:
            with gdrpy.connect(shared) as client:
                return _refusal(lambda: client.wake("weights", gpu=False))

        assert re.fullmatch(
            "PermissionDenied: wake: 'weights.host/.*' is another user's, who can wake it",
            as_user("other", attempt),
        )
        with gdrpy.connect(shared) as client, client.wake("weights") as region:
            assert holds_the_data(region)


def _refusal(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except gdrpy.Error as error:
        return f"{type(error).__name__}: {error.args[-1]}"
    return "done"


def test_a_copy_that_is_killed_at_any_step_loses_nothing(broker, connected, region, monkeypatch):
    """Each step fails in turn, as if the process ended there; the next sleeper goes on."""

    class Killed(BaseException):
        pass

    asked = gdrpy.Broker._ask_now
    for step in range(1, 100):
        left = step

        def ask(self: Any, *arguments: Any) -> Any:
            nonlocal left
            left -= 1
            if not left:
                raise Killed
            return asked(self, *arguments)

        with gdrpy.connect(broker.path) as client, client.get("weights") as own:
            monkeypatch.setattr(gdrpy.Broker, "_ask_now", ask)
            try:
                client.sleep_many([own])
                client.wake_many([own])
            except Killed:
                done = False
            else:
                done = True
            monkeypatch.undo()
        with connected.wake("weights") as found:
            assert holds_the_data(found), step
        if done:
            break
    assert step > 8
    assert there(connected) == {"weights": 0, "weights.host": "cpu"}


class TestSaved:
    """Regions that sleep, in a snapshot."""

    @pytest.fixture
    def saved(self, connected, region, tmp_path) -> str:
        for number in range(3):  # so that the numbers differ in the next broker
            connected.put(f"other/{number}", DATA, "cpu").close()
        connected.sleep_many([region])
        connected.save(tmp_path / "saved", [str(copy_of(connected).name)])
        return str(tmp_path / "saved")

    def test_wake_in_another_broker(self, saved, start_serving: StartServing):
        with gdrpy.connect(start_serving(GDRPY_SIM_DEVICES="2").socket) as client:
            client.restore(saved)
            assert there(client) == {"weights.host": "cpu"}
            with client.wake("weights") as woken:
                assert holds_the_data(woken)
                assert woken.metadata["of"] == "llama"
                client.sleep_many([woken])
                client.delete("weights")
            assert there(client) == {}

    def test_wake_on_the_gpu_that_is_given(self, saved, start_serving: StartServing):
        with gdrpy.connect(start_serving(GDRPY_SIM_DEVICES="2").socket) as client:
            client.restore(saved, device=1)
            assert there(client) == {"weights.host": "cpu"}
            client.wake("weights", gpu=False).close()
            assert there(client) == {"weights": 1, "weights.host": "cpu"}

    def test_take_the_place_of_nothing_that_is_there(self, saved, connected, region):
        kept = copy_of(connected).region
        connected.delete("other/0")
        assert connected.restore(saved, missing=True) == []
        assert copy_of(connected).region == kept
        connected.wake_many([region])
        connected.delete(str(copy_of(connected).name))
        assert connected.restore(saved, missing=True) == []
        assert holds_the_data(region)


def test_missing_of_a_region_that_comes_and_goes_takes_it_in_the_end(connected, other, monkeypatch):
    asked, steps = gdrpy.Broker._ask_now, []

    def ask(self: gdrpy.Broker, request: Any, *more: Any) -> Any:
        if self is not connected or not isinstance(request, requests.Get):
            return asked(self, request, *more)
        steps.append(request.name)
        if len(steps) == 1:
            other.delete("weights")
        try:
            return asked(self, request, *more)
        finally:
            if len(steps) == 1:
                other.put_tensors("weights", {"x": DATA + 1}).close()

    monkeypatch.setattr(gdrpy.Broker, "_ask_now", ask)
    with connected.put_tensors("weights", {"x": DATA}, missing=True) as found:
        assert found.tensors()["x"].numpy()[0] == 1
    assert steps == ["weights", "weights"]


def test_missing_of_a_region_on_another_gpu_raises_at_once(broker_on_two_gpus):
    """The region is there, and this process does not see its GPU."""
    with gdrpy.connect(broker_on_two_gpus) as client:
        client.put_tensors("w", {"x": np.ones(3)}, 1, gpu=False).close()
    done = subprocess.run(
        [sys.executable, "-c", PUT_MISSING, broker_on_two_gpus],
        env=os.environ | {"GDRPY_SIM_DEVICES": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.startswith("NotFound: "), done.stderr
    assert done.stdout.endswith(" 1\n")


def test_a_name_without_room_for_the_copys_is_refused(connected):
    name = "w" * 240
    connected.put(name, DATA, seal=True).close()
    with connected.get(name) as region:
        with pytest.raises(ValueError, match="sleep_many: the name 'w*' leaves no room for"):
            connected.sleep_many([region])
        assert not region.detached
