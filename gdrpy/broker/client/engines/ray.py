"""Ray: a place is a node, where a task reads the region."""

from __future__ import annotations

import functools
import sys
from collections.abc import Generator
from typing import Any

from gdrpy.broker.client.reading import PATIENCE, Source, read
from gdrpy.errors import Gone, Timeout

#: Pieces in Ray's object store: the reader is so many ahead of this process.
_AHEAD = 2


def place() -> str | None:
    """The node of this process; None if it takes no part in Ray."""
    if "ray" not in sys.modules:
        return None
    import ray

    if not ray.is_initialized():
        return None
    node: str = ray.get_runtime_context().get_node_id()
    return node


@functools.cache
def _task() -> Any:
    import ray

    return ray.remote(read)


def pieces(place: str, source: Source) -> Generator[Any, None, None]:
    """The region's description, then its bytes. Raises the reader's error, Gone, Timeout."""
    import ray
    from ray.exceptions import RayError, RayTaskError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = _task().options(
        num_cpus=0,
        num_returns="streaming",
        max_retries=0,
        scheduling_strategy=NodeAffinitySchedulingStrategy(place, soft=False),
        _generator_backpressure_num_objects=_AHEAD,
    )
    stream = task.remote(source)
    try:
        while True:
            ready, _ = ray.wait([stream], timeout=PATIENCE)
            if not ready:
                raise Timeout(
                    f"copying {source}: nothing came from Ray's node {place} within {PATIENCE:g} s"
                )
            try:
                piece = next(stream)
            except StopIteration:
                return
            yield ray.get(piece, timeout=PATIENCE)
            del piece
    except RayTaskError as error:
        raise error.cause from None
    except RayError as error:
        raise Gone(f"copying {source}: Ray's node {place} cannot read it: {error}") from error
    finally:
        ray.cancel(stream)
