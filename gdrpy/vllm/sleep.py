"""The sleep mode's backend "gdrpy": shared weights sleep in the broker, once for all engines."""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter

from vllm.device_allocator.sleep_mode_backend import CuMemBackend
from vllm.logger import init_logger

from gdrpy.broker.client.broker import BrokerRegion
from gdrpy.errors import Gone
from gdrpy.region import detach_many
from gdrpy.vllm.loader import Shared, hold, shared, take_newest

_logger = init_logger("vllm.gdrpy")


class Backend(CuMemBackend):
    """vLLM's own backend for what this engine alone has, such as the KV cache.

    Weights that the load format "gdrpy" shares keep their addresses. At level 1 the broker keeps
    them in host memory when the last engine sleeps; at level 2 they stay on the GPU.
    """

    def __init__(self) -> None:
        super().__init__()
        #: Leases of the weights at level 2: other engines' sleep does not free them.
        self._held: list[BrokerRegion] = []

    def suspend(self, level: int = 1) -> None:
        """Put the engine to sleep."""
        for broker, models in groupby(shared, key=attrgetter("broker")):
            awake = [one for one in models if not one.region.detached]
            regions = [one.region for one in awake]
            if level == 1:
                broker.sleep_many(regions)
            else:
                self._held += map(hold, awake)
                detach_many(regions)
        super().suspend(level)

    def resume(self, tags: list[str] | None = None) -> None:
        """Wake the engine, or what has these tags."""
        if tags is None or "weights" in tags:
            for one in shared:
                _wake(one)
            while self._held:
                self._held.pop().close()
        super().resume(tags)


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
