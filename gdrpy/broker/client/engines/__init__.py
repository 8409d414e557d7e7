"""What moves Python objects between machines: Ray and Dask, each a module with two functions.

``place()`` is where this process is in the engine, None if it takes no part. ``pieces(place,
identity)`` brings a region from there: what it is, then its bytes in order. An engine that the
process has not imported is not imported here either.
"""

from __future__ import annotations

import importlib
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any, Protocol

    from gdrpy.broker.client.attach import Identity

    #: An engine's name and where a process is in it.
    Place = tuple[str, str]

    class Engine(Protocol):
        """A module of this package."""

        def place(self) -> str | None:
            """Where this process is in the engine."""

        def pieces(self, place: str, identity: Identity) -> Generator[Any, None, None]:
            """A Description of the region, then arrays of its bytes."""


#: Seconds without a piece after which a copy is given up.
PATIENCE = 60.0

#: The engines by name, and what a process has imported that takes part in them.
_ENGINES = {"ray": "ray", "dask": "distributed"}


def places() -> tuple[Place, ...]:
    """Where this process is in each engine that it takes part in."""
    found = []
    for name in _ENGINES:
        engine = using(name)
        place = None if engine is None else engine.place()
        if place is not None:
            found.append((name, place))
    return tuple(found)


def using(name: str) -> Engine | None:
    """The engine of this name, None if this process has not imported it."""
    if _ENGINES.get(name) not in sys.modules:
        return None
    engine: Engine = importlib.import_module(f"gdrpy.broker.client.engines.{name}")
    return engine
