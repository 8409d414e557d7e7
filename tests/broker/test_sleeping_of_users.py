"""Regions of several users that sleep, and copies that are forged."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import msgpack

import gdrpy
from gdrpy.broker import requests
from gdrpy.broker.replies import Reply
from sleeping import DATA, GPU, connected, forge, holds_the_data, meanwhile, other, region, there
from test_rights import BROKER_UID, as_user

__all__ = ["connected", "meanwhile", "other", "region"]


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
            with pytest.raises(gdrpy.NotFound, match="wake: there is no region of the name 'none'"):
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
                "NotFound: get: there is no region of the name 'weights': broker.list() lists them",
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
