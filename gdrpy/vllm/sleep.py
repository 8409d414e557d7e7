"""The sleep mode's backend "gdrpy": shared weights sleep in the broker, once for all engines."""

from __future__ import annotations

from contextlib import ExitStack

from vllm.device_allocator.sleep_mode_backend import CuMemBackend
from vllm.logger import init_logger

from gdrpy.broker.client.broker import BrokerRegion
from gdrpy.errors import Gone
from gdrpy.region import detach_many
from gdrpy.vllm.kv_cache import caches
from gdrpy.vllm.loader import Shared, hold, shared, take_newest

_logger = init_logger("vllm.gdrpy")


class Backend(CuMemBackend):
    """vLLM's own backend for what this engine alone has, such as a KV cache in no region.

    Weights that the load format "gdrpy" shares keep their addresses. At level 1 the broker keeps
    them in host memory when the last engine sleeps; at level 2 they stay on the GPU.
    """

    def __init__(self) -> None:
        super().__init__()
        #: Leases of the weights at level 2: other engines' sleep does not free them.
        self._held: list[BrokerRegion] = []

    def suspend(self, level: int = 1) -> None:
        """Put the engine to sleep. If weights cannot sleep, all of them are awake."""
        with ExitStack() as undo:
            undo.callback(self._let_go)
            for one in [one for one in shared if not one.region.detached]:
                undo.callback(_wake, one)
                if level == 1:
                    one.broker.sleep_many([one.region])
                else:
                    self._held.append(hold(one))
                    detach_many([one.region])
            for cache in caches:
                undo.callback(cache.attach)
                cache.detach()
            undo.pop_all()
        super().suspend(level)

    def discard(self, tags: tuple[str, ...]) -> None:
        """Give the memory of these tags back without its contents, as newer releases ask.

        Shared weights stay on the GPU, as at level 2.
        """
        if "weights" in tags:
            for one in [one for one in shared if not one.region.detached]:
                self._held.append(hold(one))
                detach_many([one.region])
        if "kv_cache" in tags:
            for cache in caches:
                cache.detach()
        super().discard(tags)

    def resume(self, tags: list[str] | None = None) -> None:
        """Wake the engine, or what has these tags."""
        if tags is None or "weights" in tags:
            for one in shared:
                _wake(one)
            self._let_go()
        if tags is None or "kv_cache" in tags:
            for cache in caches:
                cache.attach()
        super().resume(tags)

    def _let_go(self) -> None:
        while self._held:
            self._held.pop().close()


def _wake(one: Shared) -> None:
    """Attach a region again, or the newest version if its own is gone."""
    try:
        if one.region._asleep is None:
            one.broker.attach_many([one.region])
        else:
            one.broker.wake_many([one.region])
    except Gone as error:
        _logger.info("gdrpy: %s", error)
        take_newest(one)
        _logger.info("gdrpy: woke with version %d of %r", one.region.version, one.region.name)
