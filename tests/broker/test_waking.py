"""Regions that wake: the same contents at the same addresses, from one copy."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gdrpy
from gdrpy import aio, cuda
from gdrpy.broker import requests
from serving import BrokerProcess
from sleeping import (
    DATA,
    at_once,
    broker_on_two_gpus,
    connected,
    copy_of,
    forge,
    holds_the_data,
    meanwhile,
    other,
    region,
    there,
)
from support import open_descriptors

__all__ = ["broker_on_two_gpus", "connected", "meanwhile", "other", "region"]

PUT_MISSING = """
import sys
import gdrpy

with gdrpy.connect(sys.argv[1]) as client:
    region = client.put_tensors("w", {"x": b"abc"}, 0, missing=True)
    print(region.tensors()["x"].numpy(), region.device, region.version)
"""


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
        with pytest.raises(gdrpy.Gone, match=r"'weights' has other contents now, of version 2"):
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
        others = set(threading.enumerate())  # of other tests too, which need not end
        region.attach(newer=True)
        for thread in set(threading.enumerate()) - others:
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


def test_missing_of_a_region_on_another_gpu_gives_its_cpu_view(broker_on_two_gpus):
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
    assert done.stdout == "[1. 1. 1.] None 1\n", done.stderr
    assert "opening region 'w' with its CPU view alone" in done.stderr
