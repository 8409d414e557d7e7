"""vLLM's plug-in: a KV cache that outlives its engine."""

from __future__ import annotations

import gc
import importlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from vllm_plugin import HERE, STANDINS, backend_of, fallbacks, loader, names

import gdrpy
from gdrpy import cuda
from gdrpy.broker.client.views import lease_at

MIB = 1 << 20


def put(cache: Any, content: bytes) -> None:
    """Write into a KV cache, as a kernel does."""
    with cuda.context(0):
        cuda.call("cuMemcpyHtoD", cache.region.ptr, content, len(content))


def got(cache: Any, nbytes: int) -> bytes:
    found = bytearray(nbytes)
    with cuda.context(0):
        cuda.call("cuMemcpyDtoH", found, cache.region.ptr, nbytes)
    return bytes(found)


def used(cache: Any) -> int:
    """Bytes of regions, as the broker knows after all that the cache's engine told it."""
    return cache._broker.status()["used"]["0"]


class TestCache:
    """A KV cache in a region. Its Cache is tried without torch's pool, which real GPUs have."""

    @pytest.fixture
    def make(self, engines, broker, socket) -> Iterator[Any]:
        from gdrpy.vllm import kv_cache

        made = []

        def make() -> Any:
            made.append(kv_cache.Cache(gdrpy.connect(socket), "kv", 4 * MIB, 0))
            return made[-1]

        yield make
        for cache in made:
            cache.close()

    def test_lies_in_the_region_of_its_name(self, make, broker):
        cache = make()
        put(cache, b"blocks")
        with broker.get("kv") as region:
            assert (cache.named, region.read(6), region.nbytes) == (True, b"blocks", 4 * MIB)

    def test_is_found_by_its_addresses_as_the_brokers_while_it_has_memory(self, make, broker):
        cache = make()
        address = cache.region.ptr
        for _ in range(2):
            found = lease_at(address + 4096, 100)
            with broker.get("kv", gpu=False) as region:
                assert (found.lease.region, found.offset) == (region.id, 4096)
            cache.detach()
            assert lease_at(address, 100) is None
            cache.attach()

    def test_of_a_second_engine_has_memory_of_its_own_meanwhile(self, make, broker):
        first, second = make(), make()
        put(first, b"first")
        put(second, b"second")
        assert (got(first, 5), second.named) == (b"first", False)
        assert used(second) == 8 * MIB
        second.detach()
        assert used(second) == 4 * MIB

    def test_is_taken_over_as_it_is_by_an_engine_that_wakes(self, make, broker):
        first, second = make(), make()
        address = second.region.ptr
        second.detach()
        put(first, b"blocks of the dead")
        first._broker.close()  # as when its process is gone
        second.attach()
        assert (second.named, second.region.ptr, got(second, 6)) == (True, address, b"blocks")
        assert used(second) == 4 * MIB

    def test_is_given_back_by_an_engine_that_sleeps(self, make, broker):
        cache = make()
        address = cache.region.ptr
        cache.detach()
        cache.detach()
        assert (used(cache), names(broker)) == (0, [])
        cache.attach()
        cache.attach()
        assert (cache.named, cache.region.ptr, names(broker)) == (True, address, ["kv"])

    def test_that_was_deleted_meanwhile_is_given_back_too(self, make, broker):
        cache = make()
        broker.delete("kv")
        cache.detach()
        assert used(cache) == 0

    def test_waits_for_a_dead_engine_that_still_has_it(self, make, broker, engines):
        first, second = make(), make()
        second.detach()
        leaves = threading.Timer(0.1, first._broker.close)
        leaves.start()
        second.attach(patience=20)
        leaves.join()
        assert second.named

    def test_is_taken_over_whoever_reads_it(self, make, broker):
        first, second = make(), make()
        second.detach()
        put(first, b"blocks of the dead")
        with broker.get("kv", gpu=False, readonly=True):
            first._broker.close()
            second.attach()
            assert (second.named, got(second, 6)) == (True, b"blocks")

    def test_that_is_sealed_is_not_taken_over(self, make, broker):
        cache = make()
        cache.detach()
        with broker.allocate("kv", 4 * MIB, gpu=False) as region:
            region.seal()
            cache.attach()
        assert not cache.named

    def test_leaves_a_sealed_region_of_its_name_as_it_is(self, make, broker):
        with broker.allocate("kv", 4 * MIB, gpu=False) as region:
            region.seal()
        assert not make().named
        assert names(broker) == ["kv"]

    def test_leaves_no_region_that_two_engines_both_left(self, make, broker, monkeypatch):
        info = gdrpy.BrokerRegion.info
        monkeypatch.setattr(
            gdrpy.BrokerRegion, "info", lambda one: msgspec.structs.replace(info(one), writers=2)
        )
        assert not make().named
        assert names(broker) == []

    def test_goes_to_one_of_two_that_wake_in_step(self, make, broker, monkeypatch):
        kv_cache = sys.modules["gdrpy.vllm.kv_cache"]
        pair = [make(), make()]
        for cache in pair:
            cache.detach()
        step, both, pauses = threading.Barrier(2), [True], []
        allocate = kv_cache.Cache._allocate

        def in_step(cache: Any, name: str | None) -> Any:
            lease = allocate(cache, name)
            if name and both[0]:
                with suppress(threading.BrokenBarrierError):
                    step.wait(timeout=5)  # both have a lease
            return lease

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            time.sleep(seconds)
            both[0] = False

        monkeypatch.setattr(kv_cache.Cache, "_allocate", in_step)
        clock = SimpleNamespace(monotonic=time.monotonic, sleep=pause)
        monkeypatch.setattr(kv_cache, "time", clock)
        threads = [threading.Thread(target=one.attach, args=(0.5,)) for one in pair]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(one.named for one in pair) == [False, True]
        assert len(set(pauses)) == len(pauses)  # none of them in step again

    @pytest.mark.parametrize("kind", ["size", "user"])
    def test_that_it_cannot_have_leaves_an_engine_that_wakes_its_own_memory(
        self, make, broker, monkeypatch, caplog, kind
    ):
        cache = make()
        cache.detach()
        if kind == "user":
            info = gdrpy.BrokerRegion.info
            monkeypatch.setattr(
                gdrpy.BrokerRegion, "info", lambda one: msgspec.structs.replace(info(one), uid=77)
            )
        with broker.allocate("kv", (8 if kind == "size" else 4) * MIB, gpu=False, cpu=False):
            pass
        cache.attach()
        put(cache, b"blocks")
        assert (cache.named, got(cache, 6), names(broker)) == (False, b"blocks", ["kv"])
        (record,) = [one for one in caplog.records if one.levelname == "WARNING"]
        reason = {
            "size": "allocate: region 'kv' exists with 8388608 bytes on GPU 0, and 4194304 bytes "
            "on GPU 0 were asked for: ask for what exists, delete it first, or take another name",
            "user": f"region 'kv' is that of user 77, and not of {broker.status()['uid']}: choose "
            "another name for the KV cache",
        }[kind]
        assert record.getMessage() == f"gdrpy: {reason}; this KV cache uses its own memory"
        monkeypatch.undo()
        assert len(broker.stat("kv").holders) == 0

    def test_gives_its_lease_back_if_it_cannot_be_deleted(self, make, broker, monkeypatch):
        cache = make()
        put(cache, b"blocks")

        def fail() -> None:
            raise gdrpy.BrokerUnavailable("no broker")

        monkeypatch.setattr(cache._lease, "delete", fail)
        with pytest.raises(gdrpy.BrokerUnavailable):
            cache.detach()
        assert (cache.named, cache.region.detached, used(cache)) == (False, True, 4 * MIB)
        assert broker.stat("kv").holders == ()
        cache.attach()
        assert (cache.named, got(cache, 6)) == (True, b"blocks")

    def test_is_given_back_once_the_gpu_is_done(self, make, broker, monkeypatch):
        kv_cache = sys.modules["gdrpy.vllm.kv_cache"]
        cache, wait = make(), kv_cache.wait_for_work
        writers = []

        def waiting(call: str, regions: Any) -> None:
            writers.append((regions == [cache.region], broker.stat("kv").writers))
            wait(call, regions)

        monkeypatch.setattr(kv_cache, "wait_for_work", waiting)
        cache.close()
        assert (writers, broker.stat("kv").writers) == ([(True, 1)], 0)

    def test_is_kept_if_cuda_cannot_tell_that_the_gpu_is_done(self, make, broker, monkeypatch):
        kv_cache = sys.modules["gdrpy.vllm.kv_cache"]
        cache = make()
        kv_cache.caches.append(cache)

        def capturing(call: str, regions: Any) -> None:
            raise BufferError("a graph is captured")

        with monkeypatch.context() as busy:
            busy.setattr(kv_cache, "wait_for_work", capturing)
            kv_cache.forget(cache)
        assert (kv_cache.caches, kv_cache._kept, broker.stat("kv").writers) == ([], [cache], 1)

    def test_is_not_given_back_before_the_process_ends(self, engines, broker, folder, socket):
        code = (
            "import atexit, sys\n"
            "import gdrpy\n"
            "broker = gdrpy.connect()\n"
            "atexit.register(lambda: print(broker.stat('kv').writers))\n"  # the last to be called
            f"sys.path[:0] = {[str(HERE), str(STANDINS)]!r}\n"
            "import vllm_engine as engines\n"
            "engines.gdrpy.vllm.register()\n"
            "config = engines.config_of(sys.argv[1], {'kv_cache': 'kv'}, sleep=True, "
            f"cache_nbytes={MIB})\n"
            "model = engines.start(config)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, folder], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
        until = time.monotonic() + 20
        while broker.stat("kv").writers and time.monotonic() < until:
            time.sleep(0.01)
        assert broker.stat("kv").writers == 0

    def test_of_another_size_is_refused(self, make, broker):
        broker.allocate("kv", 100, gpu=False).close()
        with pytest.raises(gdrpy.SizeMismatch):
            make()
        assert broker.status()["used"]["0"] == 2 * MIB

    def test_is_what_vllm_makes_its_cache_in(self, engines, broker, folder, monkeypatch):
        module = importlib.import_module("vllm.device_allocator")
        allocator, calls = module.get_mem_allocator_instance(), module.calls
        monkeypatch.setattr(
            "gdrpy.vllm.kv_cache.Pool", lambda region: SimpleNamespace(use=lambda: region)
        )
        config = engines.config_of(folder, {"kv_cache": "kv"}, sleep=True, cache_nbytes=MIB)
        model = engines.start(config)
        kv_cache = sys.modules["gdrpy.vllm.kv_cache"]
        (cache,) = kv_cache.caches
        assert allocator.use_memory_pool("kv_cache") is cache.region
        allocator.use_memory_pool("weights")
        assert calls == [("use_memory_pool", "weights")]
        assert cache.region.nbytes == (1 + 128 + 2 * 2) * MIB
        backend = backend_of(config)
        backend.suspend(level=1)
        assert (cache.region.detached, "kv" in names(broker)) == (True, False)
        backend.resume(["weights"])
        assert cache.region.detached
        backend.resume(["kv_cache"])
        assert (cache.region.detached, cache.named) == (False, True)
        assert fallbacks() == {}
        del model
        gc.collect()
        assert (kv_cache.caches, broker.stat("kv").holders) == ([], ())
        assert cache.region.closed
        allocator.use_memory_pool("kv_cache")  # of the next engine
        assert calls[-1] == ("use_memory_pool", "kv_cache")

    def test_of_the_next_engine_in_the_process_is_in_its_own_region(
        self, engines, broker, folder, monkeypatch
    ):
        allocator = importlib.import_module("vllm.device_allocator").get_mem_allocator_instance()
        monkeypatch.setattr(
            "gdrpy.vllm.kv_cache.Pool", lambda region: SimpleNamespace(use=lambda: region)
        )
        caches = sys.modules["gdrpy.vllm.kv_cache"].caches
        for name in ("kv", "other"):
            config = engines.config_of(folder, {"kv_cache": name}, sleep=True, cache_nbytes=MIB)
            model = engines.start(config)
            hook = allocator.use_memory_pool
            assert hook("kv_cache") is caches[-1].region
            assert [one._name for one in caches] == [name]
            del model
            gc.collect()
        assert allocator.use_memory_pool is hook  # it is there once
        assert hook.__closure__[0].cell_contents.__self__ is allocator

    def test_of_another_size_is_vllms_own_and_leaves_no_connection(
        self, engines, broker, folder, monkeypatch
    ):
        made, connect = [], loader().connect

        def kept(socket: str | None) -> gdrpy.Broker:
            made.append(connect(socket))
            return made[-1]

        monkeypatch.setattr(loader(), "connect", kept)
        with broker.allocate("kv", MIB, gpu=False):
            config = engines.config_of(folder, {"kv_cache": "kv"}, sleep=True, cache_nbytes=MIB)
            model = engines.start(config)
        assert [one.closed for one in made] == [False, True]  # of the weights, of the cache
        assert fallbacks() == {("broker",): 1.0}
        del model

    @pytest.mark.parametrize("lacking", [{"sleep": True}, {"cache_nbytes": MIB}])
    def test_that_vllm_would_not_ask_for_is_vllms_own(self, engines, broker, folder, lacking):
        model = engines.start(engines.config_of(folder, {"kv_cache": "kv"}, **lacking))
        assert sys.modules["gdrpy.vllm.kv_cache"].caches == []
        assert fallbacks() == {("kv_cache",): 1.0}
        assert len(loader().shared) == 1
        del model
