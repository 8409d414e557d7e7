"""Which region a range of addresses of this process belongs to."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gdrpy
from gdrpy.broker import temporary
from gdrpy.broker.client.views import lease_at


def numbered(found: Any) -> tuple[int, int, bool] | None:
    if found is None:
        return None
    return found.lease.region, found.offset, found.memory.ptr is not None


@pytest.fixture(scope="module")
def socket() -> Iterator[str]:
    with temporary() as path:
        yield path


@pytest.fixture
def broker(socket: str) -> Iterator[gdrpy.Broker]:
    with gdrpy.connect(socket) as broker:
        yield broker


@pytest.fixture(params=[{}, {"cpu": False}, {"gpu": False}, {"device": "cpu"}], ids=str)
def region(broker: gdrpy.Broker, request: pytest.FixtureRequest) -> gdrpy.BrokerRegion:
    return broker.allocate(None, 8192, **request.param)


def address_of(region: gdrpy.BrokerRegion) -> int:
    return region.ptr if region._has_gpu_view else region.cpu.address


class TestRange:
    def test_inside_is_found_by_the_gpus_view_or_else_the_cpus(self, region):
        start, gpu = address_of(region), region._has_gpu_view
        assert numbered(lease_at(start, 8192)) == (region.id, 0, gpu)
        assert numbered(lease_at(start + 4096, 1)) == (region.id, 4096, gpu)

    def test_that_is_not_all_inside_is_not_found(self, region):
        start = address_of(region)
        assert lease_at(start - 1, 2) is None
        assert lease_at(start, (2 << 20) + 1) is None

    def test_is_found_by_an_array_whose_region_was_dropped(self, broker):
        region = broker.allocate(None, 4096)
        number = region.id
        array = np.from_dlpack(region)
        del region
        gc.collect()
        assert numbered(lease_at(array.ctypes.data, 4096)) == (number, 0, True)
        address = array.ctypes.data
        del array
        gc.collect()
        assert lease_at(address, 4096) is None

    def test_of_a_closed_or_detached_region_is_not_found(self, region):
        start = address_of(region)
        if region._has_gpu_view:
            region.detach()
            assert lease_at(start, 1) is None
        region.close()
        assert lease_at(start, 1) is None

    def test_of_a_region_whose_broker_was_closed_is_not_found(self, socket):
        with gdrpy.connect(socket) as other, other.allocate(None, 4096) as region:
            other.close()
            assert lease_at(region.ptr, 1) is None

    def test_of_a_region_without_broker_is_not_found(self):
        with gdrpy.alloc(4096) as region:
            assert lease_at(region.ptr, 1) is None

    def test_is_not_found_in_a_forked_child(self, region):
        start = address_of(region)
        child = os.fork()
        if child == 0:
            os._exit(lease_at(start, 1) is not None)
        assert os.waitpid(child, 0)[1] == 0
