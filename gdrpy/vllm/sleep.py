"""The sleep mode's backend "gdrpy": shared weights sleep in the broker, once for all engines."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from operator import attrgetter
from typing import Any

from vllm.device_allocator.sleep_mode_backend import CuMemBackend

from gdrpy.broker.client.broker import Broker
from gdrpy.region import detach_many
from gdrpy.vllm.loader import shared


class Backend(CuMemBackend):
    """vLLM's own backend for what this engine alone has, such as the KV cache.

    Weights that the load format "gdrpy" shares keep their addresses. At level 1 the broker keeps
    them in host memory when the last engine sleeps; at level 2 they stay on the GPU.
    """

    def suspend(self, level: int = 1) -> None:
        """Put the engine to sleep."""
        _each(Broker.sleep_many if level == 1 else lambda _, regions: detach_many(regions))
        super().suspend(level)

    def resume(self, tags: list[str] | None = None) -> None:
        """Wake the engine, or what has these tags."""
        if tags is None or "weights" in tags:
            _each(_wake)
        super().resume(tags)


def _wake(broker: Broker, regions: list[Any]) -> None:
    asleep = [region for region in regions if region._asleep is not None]
    broker.wake_many(asleep)
    broker.attach_many(region for region in regions if region._asleep is None)


def _each(call: Callable[[Broker, list[Any]], object]) -> None:
    """Call it with each broker and its regions."""
    for broker, models in groupby(shared, key=attrgetter("broker")):
        call(broker, [one.region for one in models])
