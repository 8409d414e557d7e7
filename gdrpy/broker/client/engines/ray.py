"""Ray: a place is a node, and a task there reads the region."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from gdrpy.broker.client import copies, engines
from gdrpy.errors import Gone, Timeout

if TYPE_CHECKING:
    from collections.abc import Generator

    from gdrpy.broker.client.attach import Identity

#: Pieces that the reader is ahead of who takes them: all that lies in Ray's object store.
_AHEAD = 2

_read = ray.remote(copies.read)


def place() -> str | None:
    """The node of this process."""
    if not ray.is_initialized():
        return None
    node: str = ray.get_runtime_context().get_node_id()
    return node


def pieces(place: str, identity: Identity) -> Generator[Any, None, None]:
    """What the region is, then its bytes. Raises what reading it there raises, Gone, Timeout."""
    task = _read.options(
        num_cpus=0,
        num_returns="streaming",
        max_retries=0,
        scheduling_strategy=NodeAffinitySchedulingStrategy(place, soft=False),
        _generator_backpressure_num_objects=_AHEAD,
    )
    stream = task.remote(*identity.fields())
    try:
        while True:
            ready, _ = ray.wait([stream], timeout=engines.PATIENCE)
            if not ready:
                raise Timeout(
                    f"copying {identity}: nothing came from Ray's node {place} within "
                    f"{engines.PATIENCE:g} s"
                )
            try:
                piece = next(stream)
            except StopIteration:
                return
            yield ray.get(piece, timeout=engines.PATIENCE)
            del piece
    except RayTaskError as error:
        raise error.cause from None
    except RayError as error:
        raise Gone(f"copying {identity}: Ray's node {place} cannot read it: {error}") from error
    finally:
        ray.cancel(stream)
