"""A broker's regions at chosen addresses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import gdrpy
from brokers import Broker
from gdrpy import aio

MIB = 1 << 20


@pytest.fixture
def connected(broker: Broker) -> Iterator[gdrpy.Broker]:
    """A client of the test's broker."""
    with gdrpy.connect(broker.path) as made:
        yield made


@pytest.fixture
def room() -> int:
    """A GPU address with 64 MiB that nobody has."""
    with gdrpy.alloc(64 * MIB, cpu=False) as region:
        return region.ptr


def holders(client: gdrpy.Broker, name: str) -> int:
    return len(client.stat(name).holders)


@pytest.fixture
def region(connected: gdrpy.Broker) -> Iterator[gdrpy.BrokerRegion]:
    """Version 1 of "weights"."""
    connected.put("weights", b"old").close()
    with connected.get("weights") as region:
        yield region


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
