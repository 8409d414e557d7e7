"""Regions that are put to sleep: one copy in host memory for all who hold them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gdrpy
from brokers import Broker
from checkpoints import write_checkpoint
from gdrpy.broker import requests
from gdrpy.broker.client.transport import BlockingTransport, Lost
from gdrpy.broker.replies import Reply
from serving import BrokerProcess, StartServing
from sleeping import (
    DATA,
    at_once,
    connected,
    copy_of,
    holds_the_data,
    meanwhile,
    other,
    region,
    there,
)

__all__ = ["connected", "meanwhile", "other", "region"]


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


class TestVersions:
    @pytest.fixture
    def second(self, connected, region):
        """The second version, which sleeps."""
        connected.put("weights", DATA + 1, seal=True).close()
        with connected.get("weights") as second:
            connected.sleep_many([second])
            yield second

    def test_go_on_from_what_sleeps(self, connected, second):
        connected.put("weights", DATA + 2, seal=True).close()
        info = connected.stat("weights")
        assert (info.version, info.asleep) == (3, 0)
        assert [(one.version, one.older) for one in info.sleepers] == [(2, True)]
        second.attach(newer=True)
        assert second.version == 3

    def test_go_on_in_the_next_broker_when_nothing_but_the_copy_is_left(
        self, broker: Broker, connected, second
    ):
        second.close()
        broker.restart()
        assert connected.put("weights", DATA + 2, seal=True).version == 3

    def test_go_on_from_what_sleeps_though_its_name_was_deleted(self, connected, second):
        connected.delete("weights")
        with connected.allocate("weights", 4096) as other:
            assert (other.version, connected.stat("weights").asleep) == (3, 0)

    def test_come_back(self, broker: Broker, connected, other, second):
        with other.wake("weights") as woken:
            info = connected.stat("weights")
            assert (woken.version, info.version, info.asleep) == (2, 2, 1)
            assert [(one.version, one.older) for one in info.sleepers] == [(2, False)]

    def test_begin_anew_when_nothing_sleeps(self, connected, second):
        connected.delete("weights")
        second.close()
        assert connected.put("weights", DATA + 2, seal=True).version == 1


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


def test_a_name_without_room_for_the_copys_is_refused(connected):
    name = "w" * 240
    connected.put(name, DATA, seal=True).close()
    with connected.get(name) as region:
        with pytest.raises(ValueError, match="sleep_many: the name 'w*' leaves no room for"):
            connected.sleep_many([region])
        assert not region.detached
