"""A broker's regions at chosen addresses, and those that give their lease back and keep them."""

from __future__ import annotations

import asyncio
import os
import pickle
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import gdrpy
from brokers import Broker
from gdrpy import aio
from support import free_address

MIB = 1 << 20


@pytest.fixture
def connected(broker: Broker) -> Iterator[gdrpy.Broker]:
    """A client of the test's broker."""
    with gdrpy.connect(broker.path) as made:
        yield made


def holders(client: gdrpy.Broker, name: str) -> int:
    return len(client.stat(name).holders)


@pytest.fixture
def region(connected: gdrpy.Broker) -> Iterator[gdrpy.BrokerRegion]:
    """Version 1 of "weights"."""
    connected.put("weights", b"old").close()
    with connected.get("weights") as region:
        yield region


@pytest.fixture
def room(region: gdrpy.BrokerRegion) -> int:
    """A GPU address that is free."""
    return free_address(2 * MIB)


class TestGet:
    @pytest.mark.parametrize("more", [{}, {"wait": 1.0}, {"device": 0}])
    def test_opens_at_the_address(self, connected, region, room, more):
        with connected.get("weights", address=room, **more) as other:
            assert (other.ptr, other.read(3)) == (room, b"old")

    def test_opens_at_the_address_from_asyncio(self, broker, region, room):
        async def main() -> None:
            async with await aio.connect(broker.path) as client:
                with await client.get("weights", address=room) as other:
                    assert (other.ptr, other.read(3)) == (room, b"old")

        asyncio.run(main())

    def test_gives_the_lease_back_if_the_address_is_not_free(self, connected, region):
        with pytest.raises(gdrpy.AddressInUse, match="<BrokerRegion 'weights': .*> has 0x"):
            connected.get("weights", address=region.ptr)
        assert holders(connected, "weights") == 1

    def test_refuses_what_is_no_address_before_it_asks(self, connected):
        with pytest.raises(ValueError, match="get: address 0x1000 is not a GPU address"):
            connected.get("there is none", address=4096)
        with pytest.raises(ValueError, match="get: address=0x200000 places the GPU view"):
            connected.get("there is none", address=2 * MIB, gpu=False)

    def test_refuses_an_address_for_host_memory(self, connected, room):
        connected.allocate("host", 4096, "cpu").close()
        with pytest.raises(gdrpy.MissingView, match="host memory has no GPU view to place"):
            connected.get("host", address=room)
        assert holders(connected, "host") == 0


class TestDetachedRegion:
    def test_holds_no_lease_and_comes_back_at_its_address(self, connected, region):
        address = region.ptr
        region.detach()
        assert holders(connected, "weights") == 0
        assert repr(region) == (
            "<BrokerRegion 'weights': Region of 3 bytes for simulated GPU 0, DETACHED>"
        )
        region.attach()
        assert holders(connected, "weights") == 1
        assert (region.ptr, region.read(), bytes(region)) == (address, b"old", b"old")
        region.attach()

    @pytest.mark.usefixtures("region")
    def test_without_a_cpu_view_is_not_taken_in_by_the_core(self, connected):
        with connected.get("weights", cpu=False) as region:
            region.detach()
            region.attach()
            assert (region._memory._core, region.location) == (None, "simulated GPU 0")
            assert region.read() == b"old"
            fd = region.export()
            with os.fdopen(fd), gdrpy.Region.from_fd(fd) as same:
                assert same.read(3) == b"old"

    def test_refuses_memory_that_the_broker_tells_to_be_of_another_size(self, region):
        fd = region.export()
        try:
            region.detach()
            lease = region._lease
            with pytest.raises(gdrpy.SizeMismatch) as caught:
                region._attach("attach", fd, False, 4 * MIB, lease)
            assert str(caught.value) == (
                "attach: the memory has 4194304 bytes, and the addresses are for 2097152: attach "
                "memory of the same size"
            )
            assert region.detached
        finally:
            os.close(fd)

    def test_is_closed_without_a_lease(self, connected, region):
        region.detach()
        region.close()
        assert holders(connected, "weights") == 0

    @pytest.mark.parametrize(
        "call",
        [
            lambda region: region.read(1),
            lambda region: region.numpy(),
            lambda region: region.array(),
            lambda region: region.seal(),
            lambda region: region.publish(),
            lambda region: region.info(),
            lambda region: region.stale,
            pickle.dumps,
        ],
    )
    def test_raises_detached_whatever_it_is_used_for(self, region, call):
        region.detach()
        with pytest.raises(gdrpy.Detached, match="the region is detached"):
            call(region)

    def test_of_an_old_version_without_holders_is_gone(self, connected, region):
        region.detach()
        connected.put("weights", b"new").close()
        why = r"^BrokerRegion\.attach: region \d+ no longer exists: close it, or take a newer"
        with pytest.raises(gdrpy.Gone, match=why):
            region.attach()
        assert region.detached

    def test_comes_back_as_the_old_version_while_that_is_held(self, connected, region):
        with connected.get("weights"):
            region.detach()
            connected.put("weights", b"new").close()
            region.attach()
            assert (region.version, region.read()) == (1, b"old")

    def test_takes_the_newest_version(self, connected, region):
        address, number = region.ptr, region.id
        region.detach()
        connected.put("weights", b"new", metadata={"step": 2}).close()
        region.attach(newer=True)
        assert (region.ptr, region.version, region.read()) == (address, 2, b"new")
        assert (region.metadata["step"], region.stale) == (2, False)
        assert region.id != number
        region.detach()
        region.attach()
        assert region.read() == b"new"

    def test_refuses_a_version_of_another_size(self, connected, region):
        region.detach()
        connected.put("weights", b"longer").close()
        with pytest.raises(gdrpy.SizeMismatch) as caught:
            region.attach(newer=True)
        assert str(caught.value) == (
            "BrokerRegion.attach: version 2 of region 'weights' has 6 bytes, and this one 3: close "
            "this one, and get the other"
        )
        assert (region.detached, region.version, holders(connected, "weights")) == (True, 1, 0)

    def test_takes_a_newer_version_only_if_it_is_detached_and_has_a_name(self, connected, region):
        with pytest.raises(ValueError, match="region 'weights' is attached: detach"):
            region.attach(newer=True)
        with connected.allocate(None, 4096) as anonymous:
            anonymous.detach()
            with pytest.raises(ValueError, match="an anonymous region has no newer version"):
                anonymous.attach(newer=True)

    @pytest.mark.parametrize(
        ("publish", "like", "unlike"),
        [
            ("put", np.float32([1, 2]), np.int32([1, 2])),
            ("put_tensors", {"x": np.float32([1, 2])}, {"y": np.float32([1, 2])}),
        ],
    )
    def test_takes_a_newer_version_only_if_its_contents_lie_alike(
        self, connected, publish, like, unlike
    ):
        put = getattr(connected, publish)
        put("a", like).close()
        with connected.get("a") as region:
            for newer, refused in (like, False), (unlike, True), (like, False):
                put("a", newer).close()
                if not region.detached:
                    region.detach()
                if not refused:
                    region.attach(newer=True)
                    continue
                why = "region 'a' lie otherwise than those of this one: close this one"
                with pytest.raises(gdrpy.SizeMismatch, match=why):
                    region.attach(newer=True)
                assert holders(connected, "a") == 0

    def test_takes_no_newer_version_that_lies_otherwise_from_a_broker_that_lost_its_state(
        self, broker, connected
    ):
        with connected.put("a", np.float32([1, 2])) as region:
            region.detach()
            broker.stop()
            broker.start()
            with connected.put("a", np.int32([1, 2])) as other:
                assert other.id == region.id
            with pytest.raises(gdrpy.SizeMismatch, match="lie otherwise"):
                region.attach(newer=True)

    def test_takes_a_newer_version_with_another_note_of_the_users(self, connected):
        with connected.put("a", [1], metadata={"layout": "mine"}) as region:
            connected.put("a", [2], metadata={"layout": "other"}).close()
            region.detach()
            region.attach(newer=True)
            assert region.metadata["layout"] == "other"

    def test_takes_no_newer_version_with_other_aliases(self, connected):
        tensors = {"a": np.float32([1]), "b": np.float32([2])}
        with connected.put_tensors("t", tensors, aliases={"x": "a"}) as region:
            region.detach()
            connected.put_tensors("t", tensors, aliases={"x": "b"}).close()
            with pytest.raises(gdrpy.SizeMismatch, match="lie otherwise"):
                region.attach(newer=True)

    def test_comes_back_whatever_its_metadata_says_meanwhile(self, connected):
        with connected.put("a", [1]) as region, connected.get("a") as other:
            region.detach()
            other.set_metadata({"note": "x"})
            region.attach()
            assert region.metadata == {"note": "x"}

    def test_is_read_only_if_it_was_sealed_meanwhile(self, connected):
        with connected.allocate("a", 4096) as region:
            region.detach()
            connected.seal("a")
            region.attach()
            assert (region.sealed, region.readonly, region.cpu.readonly) == (True, True, True)
            with pytest.raises(gdrpy.Sealed):
                region.write(b"x")

    def test_comes_back_from_a_broker_that_was_restarted(self, broker, connected, region):
        address = region.ptr
        region.detach()
        broker.restart()
        region.attach()
        assert (region.ptr, region.read()) == (address, b"old")

    def test_needs_its_connection(self, broker, region):
        with gdrpy.connect(broker.path) as other:
            mine = other.get("weights")
            mine.detach()
        with pytest.raises(gdrpy.Closed):
            mine.attach()
        mine.close()

    def test_is_attached_once_by_threads_at_once(self, connected, region):
        for _ in range(10):
            region.detach()
            threads = [threading.Thread(target=region.attach) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert (region.read(), holders(connected, "weights")) == (b"old", 1)

    def test_comes_back_by_asyncio(self, broker, connected, region):
        connected.put("weights", b"new").close()

        async def main() -> None:
            async with await aio.connect(broker.path) as client:
                with await client.get("weights") as mine:
                    address = mine.ptr
                    mine.detach()
                    await mine.attach(newer=True)
                    assert (mine.ptr, mine.read()) == (address, b"new")
                    mine.detach()
                    await client.attach_many([mine])
                    assert (mine.ptr, mine.read()) == (address, b"new")

        asyncio.run(main())

    def test_without_a_gpu_view_cannot_be(self, connected, region):
        with (
            connected.get("weights", gpu=False) as other,
            pytest.raises(gdrpy.MissingView, match=r"BrokerRegion\.detach: only memory with"),
        ):
            other.detach()


class TestMany:
    @pytest.fixture
    def regions(self, connected) -> Iterator[list[gdrpy.BrokerRegion]]:
        names = [f"layer/{number}" for number in range(4)]
        for name in names:
            connected.put(name, name.encode()).close()
        made = connected.get_many(names)
        yield made
        for region in made:
            region.close()

    def test_go_and_come_in_one_call(self, connected, regions):
        addresses = [region.ptr for region in regions]
        gdrpy.detach_many(regions)
        assert [holders(connected, region.name) for region in regions] == [0] * 4
        connected.attach_many(regions)
        assert [region.ptr for region in regions] == addresses
        assert [region.read().decode() for region in regions] == [one.name for one in regions]
        connected.attach_many(regions)
        connected.attach_many([])

    def test_come_by_one_request_for_each_right(self, connected, regions):
        with connected.get("layer/0", readonly=True) as reader, connected.allocate(None, 1) as one:
            those = [*regions, reader, one]
            gdrpy.detach_many([*regions[::-1], reader])
            asked = connected.status()["requests"]
            connected.attach_many(those)
            more = connected.status()["requests"]
            assert {name: more[name] - asked[name] for name in ("get", "get_many")} == {
                "get": 0,
                "get_many": 2,
            }
            assert [region.readonly for region in those] == [False] * 4 + [True, False]
            assert reader.read() == b"layer/0"

    def test_come_back_from_a_broker_that_was_restarted(self, broker, connected, regions):
        gdrpy.detach_many(regions)
        broker.restart()
        connected.attach_many(regions)
        assert [region.read().decode() for region in regions] == [one.name for one in regions]

    def test_name_the_one_that_no_longer_exists(self, connected, regions):
        gdrpy.detach_many(regions)
        connected.delete("layer/2")
        why = rf"^attach_many: region {regions[2].id} no longer exists: close it, or "
        with pytest.raises(gdrpy.Gone, match=why):
            connected.attach_many(regions)

    def test_keep_their_leases_if_one_cannot_be_detached(self, connected, regions, monkeypatch):
        def fail(*_):
            raise BufferError("a view was made meanwhile")

        monkeypatch.setattr(regions[3], "_detach", fail)
        with pytest.raises(BufferError, match="made meanwhile"):
            gdrpy.detach_many(regions)
        assert [holders(connected, region.name) for region in regions] == [1] * 4
        assert [region.read().decode() for region in regions] == [one.name for one in regions]
        regions[0].publish()

    def test_come_all_or_none(self, connected, regions):
        gdrpy.detach_many(regions)
        connected.delete("layer/2")
        with pytest.raises(gdrpy.Gone):
            connected.attach_many(regions)
        assert [region.detached for region in regions] == [True] * 4
        assert [holders(connected, f"layer/{number}") for number in (0, 1, 3)] == [0] * 3

    def test_come_as_newer_versions_all_or_none(self, connected, regions):
        gdrpy.detach_many(regions)
        for number in range(4):
            data = b"layer+%d" % number if number != 2 else b"longer than that"
            connected.put(f"layer/{number}", data).close()
        with pytest.raises(gdrpy.SizeMismatch, match="attach_many: version 2 of region 'layer/2'"):
            connected.attach_many(regions, newer=True)
        assert [(region.detached, region.version) for region in regions] == [(True, 1)] * 4
        assert [holders(connected, f"layer/{number}") for number in range(4)] == [0] * 4
        connected.put("layer/2", b"layer+2").close()
        connected.attach_many(regions, newer=True)
        assert [region.read() for region in regions] == [b"layer+%d" % one for one in range(4)]
        assert [region.version for region in regions] == [2, 2, 3, 2]

    def test_are_of_this_connection(self, broker, connected, region):
        region.detach()
        with (
            gdrpy.connect(broker.path) as other,
            pytest.raises(ValueError, match="attach_many: .* came from another connection"),
        ):
            other.attach_many([region])
        with pytest.raises(TypeError, match="attach_many: regions must be several regions, not"):
            connected.attach_many(region)
