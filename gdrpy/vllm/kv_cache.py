"""An engine's KV cache in a broker's region, which outlives the engine."""

from __future__ import annotations

import functools
import os
import random
import time
from contextlib import AbstractContextManager, suppress
from typing import Any

from vllm.device_allocator import get_mem_allocator_instance
from vllm.logger import init_logger

from gdrpy.broker.client.broker import Broker, BrokerRegion
from gdrpy.broker.replies import Reply
from gdrpy.broker.requests import Delete
from gdrpy.errors import Error, Gone, NotFound, PermissionDenied, SizeMismatch
from gdrpy.region import Region, alloc, wait_for_work
from gdrpy.torch.pool import Pool
from gdrpy.vllm.fallback import Unshareable

_logger = init_logger("vllm.gdrpy")

#: Beside the tensors: torch takes whole segments, one for each layer.
_SPARE, _SPARE_EACH = 128 << 20, 2 << 20
#: Seconds that an engine waits for another one to leave, and until it looks again at most: a random
#: time, for two that look in step see each other. The broker learns of a process's end before those
#: who wait for the process, or at the same time.
_PATIENCE, _LOOK = 0.25, 0.01


class Cache:
    """Addresses for the KV cache, and the region behind them while the engine is awake.

    That is the broker's region of the name, unless another process writes to it: then it is a
    nameless one. So an engine that sleeps takes the memory over when the one before it has died.

    Raises SizeMismatch or PermissionDenied if there is a region of the name that it cannot have.
    """

    def __init__(self, broker: Broker, name: str, nbytes: int, device: int) -> None:
        self._broker, self._name, self._device = broker, name, device
        self._lease: BrokerRegion | None = None
        self._pool: Pool | None = None
        self.region: Region = alloc(nbytes, device, cpu=False)
        try:
            self.region.detach()
            self._attach(self._take(patience=0))
        except BaseException:
            self.region.close()
            raise

    @property
    def named(self) -> bool:
        """Whether the memory is the broker's region of the name."""
        return self._lease is not None and self._lease.name is not None

    def use(self) -> AbstractContextManager[Any]:
        """Inside the block, this thread's tensors are made in the region."""
        self._pool = self._pool or Pool(self.region)
        return self._pool.use()

    def attach(self, patience: float = _PATIENCE) -> None:
        """Bring memory to the addresses, unless they have some."""
        if not self.region.detached:
            return
        try:
            lease = self._take(patience)
        except (SizeMismatch, PermissionDenied) as error:
            _logger.warning("gdrpy: %s; this KV cache uses its own memory", error)
            lease = self._allocate(None)
        self._attach(lease)

    def _attach(self, lease: BrokerRegion) -> None:
        try:
            fd = lease.export()
            try:
                # With the lease, so that the cache is found as the broker's memory.
                self.region._attach("Cache.attach", fd, False, None, lease._lease)
            finally:
                os.close(fd)
        except BaseException:
            lease.close()
            raise
        self._lease = lease

    def detach(self) -> None:
        """Give the memory back, with its contents; the addresses stay."""
        if self.region.detached:
            return
        # The lease stays until the name is deleted: else another engine may have the region then.
        with self.region._memory.leaving_source():
            self.region.detach()
        lease, self._lease = self._lease, None
        assert lease is not None
        try:
            if lease.name is not None:
                with suppress(NotFound, Gone):  # somebody has deleted it
                    lease.delete()
        finally:
            lease.close()

    def close(self) -> None:
        """Give the lease back once the GPU is done. Tensors in the region keep its memory.

        Raises BufferError while a CUDA graph is captured.
        """
        wait_for_work("Cache.close", [self.region])
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.close()
        self._broker.close()
        self._pool = None
        with suppress(BufferError):  # torch has tensors there
            self.region.close()

    def _take(self, patience: float) -> BrokerRegion:
        until = time.monotonic() + patience
        while True:
            lease = self._allocate(self._name)
            try:
                found = lease.info()
                if found.linked and found.writers == 1 and not lease.readonly:  # nobody else writes
                    self._check_owner(found.uid)
                    return lease
            except BaseException:
                lease.close()
                raise
            lease.close()
            if time.monotonic() > until:
                if not (patience or lease.readonly):
                    self._give_up(lease)
                _logger.info("gdrpy: another process writes to the KV cache %r", self._name)
                return self._allocate(None)
            time.sleep(random.uniform(0, _LOOK))

    def _give_up(self, lease: BrokerRegion) -> None:
        """Free the name, if two engines that began together have both left it."""
        with suppress(Error):
            self._broker._ask_now(Delete(self._name, lease.id, unheld=True, id=0), Reply)

    def _allocate(self, name: str | None) -> BrokerRegion:
        return self._broker.allocate(name, self.region.nbytes, self._device, gpu=False, cpu=False)

    def _check_owner(self, owner: int) -> None:
        """Raise PermissionDenied for another user's region. Root's are trusted."""
        uid = self._broker.status()["uid"]
        if owner not in (uid, 0):
            raise PermissionDenied(
                f"region {self._name!r} is that of user {owner}, and not of {uid}: choose another "
                f"name for the KV cache"
            )


#: The caches of this process's engines.
caches: list[Cache] = []
#: Those that could not be closed; their leases end with the process.
_kept: list[Cache] = []


def offer(broker: Broker, name: str, vllm_config: Any, device: int) -> Cache:
    """Have vLLM make its KV cache in the region of a name.

    Raises Unshareable if vLLM would not ask, or does not say how large the cache is; and what
    Cache, :func:`gdrpy.alloc` and the broker's calls raise.
    """
    model, nbytes = vllm_config.model_config, vllm_config.cache_config.kv_cache_memory_bytes
    if not model.enable_sleep_mode or not nbytes:
        raise Unshareable("kv_cache", "kv_cache needs enable_sleep_mode and kv_cache_memory_bytes")
    layers = model.get_num_layers(vllm_config.parallel_config)
    cache = Cache(broker, name, nbytes + _SPARE + layers * _SPARE_EACH, device)
    _redirect(get_mem_allocator_instance())
    caches.append(cache)
    _logger.info("gdrpy: the KV cache lies in %s", repr(name) if cache.named else "a region")
    return cache


def forget(cache: Cache) -> None:
    """Give back what a dropped engine had."""
    caches.remove(cache)
    try:
        cache.close()
    except BufferError:
        _kept.append(cache)


@functools.cache
def _redirect(allocator: Any) -> None:
    """Have vLLM make KV caches in the newest of this process's caches, if there is one."""
    own = allocator.use_memory_pool

    def use_memory_pool(tag: str | None = None) -> AbstractContextManager[Any]:
        return caches[-1].use() if tag == "kv_cache" and caches else own(tag)

    allocator.use_memory_pool = use_memory_pool
