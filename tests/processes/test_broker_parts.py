"""What is made of a broker's region: it pickles as the region does, by any pickler."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import children
import pytest

import gdrpy
from gdrpy import broker as brokers


@pytest.fixture(scope="module")
def socket() -> Iterator[str]:
    with brokers.temporary() as socket:
        yield socket


@pytest.fixture
def region(socket: str) -> Iterator[gdrpy.BrokerRegion]:
    with gdrpy.connect(socket) as broker, broker.allocate("kv", 1 << 20) as region:
        yield region
        region.delete()


def copied(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


class TestReference:
    def test_that_was_pickled_opens_the_region(self, region: gdrpy.BrokerRegion) -> None:
        with copied(brokers.Reference(region)).open() as came:
            assert repr(came).startswith("<BrokerRegion 'kv'")
            region.write(b"hello")
            assert (came.read(5), came.id) == (b"hello", region.id)

    def test_keeps_the_views_and_rights(self, socket: str, region: gdrpy.BrokerRegion) -> None:
        with (
            gdrpy.connect(socket) as broker,
            broker.get("kv", gpu=False, readonly=True) as reader,
            copied(brokers.Reference(reader)).open() as came,
        ):
            assert came.readonly
            with pytest.raises(gdrpy.MissingView):
                came.ptr  # noqa: B018

    def test_says_what_it_refers_to(self, socket: str, region: gdrpy.BrokerRegion) -> None:
        found = f"<Reference to region {region.id} of the broker at {socket} on "
        assert repr(copied(brokers.Reference(region))).startswith(found)

    def test_holds_no_lease(self, socket: str) -> None:
        with gdrpy.connect(socket) as broker:
            with broker.allocate(None, 4096, "cpu") as region:
                reference = brokers.Reference(region)
            with pytest.raises(gdrpy.Gone, match="no longer exists"):
                reference.open()

    def test_is_not_made_of_a_closed_region(self, socket: str) -> None:
        with gdrpy.connect(socket) as broker:
            region = broker.allocate(None, 4096, "cpu")
            region.close()
            with pytest.raises(gdrpy.Closed, match="Reference"):
                brokers.Reference(region)

    def test_opens_a_region_that_its_tensors_are_found_in(self, region: gdrpy.BrokerRegion) -> None:
        with (
            brokers.Reference(region).open() as came,
            gdrpy.from_tensor(came.array(16, "F32", 512)) as mapped,
        ):
            assert mapped.region is came
            assert mapped.offset == 512


class TestPickledPartOfABrokersRegion:
    def test_is_of_the_same_memory(self, region: gdrpy.BrokerRegion) -> None:
        array = copied(region.array(5, "U8", 4096))
        mapping = copied(region.map(5003, 100, readonly=True))
        flag = copied(region.flag(64))
        region.write(b"hello", 4096)
        region.write(b"world", 5003)
        region.flag(64).set(7)
        assert type(array.region) is gdrpy.BrokerRegion
        assert array.read().tobytes() == b"hello"
        assert (mapping.read(5), mapping.nbytes, mapping.readonly) == (b"world", 100, True)
        assert (flag.get(), flag.width) == (7, 4)
        array.region.close()
        mapping.close()
        flag.mapping.close()

    def test_arrives_with_its_region_as_one(self, region: gdrpy.BrokerRegion) -> None:
        things = region, region.cpu, region.flag(), region.array(3, "U8")
        other, cpu, flag, array = copied(things)
        assert other.cpu is cpu is flag.mapping
        assert array.region is other
        other.close()

    def test_keeps_the_lease_of_a_region_of_its_own(self, region: gdrpy.BrokerRegion) -> None:
        mapping = copied(region.cpu)
        region.write(b"hello")
        assert mapping.read(5) == b"hello"
        mapping.close()

    def test_of_a_region_that_was_dropped_is_sent_on(self, socket: str) -> None:
        with gdrpy.connect(socket) as broker:
            mapping = broker.allocate(None, 8192).map(4096, 4096)
            mapping.write(b"hello")
            second = copied(copied(mapping).flag(4)).mapping
            assert (second.read(5), second.nbytes, second.ptr is not None) == (b"hello", 4096, True)
            assert not second.readonly
            second.close()
            mapping.close()

    def test_goes_through_queues(self, worker: Any, region: gdrpy.BrokerRegion) -> None:
        region.write(b"hello", 64)
        answer = worker.ask(children.greet, region.map(64, 100, readonly=False))
        assert answer == ("Mapping", 100, True, b"hello")
        assert region.read(5, 64) == b"world"
