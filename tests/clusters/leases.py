"""What a broker has given out: its bytes, and the leases on a region."""

from __future__ import annotations

import time

import gdrpy
from machines import WAIT


def used(broker: gdrpy.Broker) -> int:
    """Bytes that the broker keeps."""
    return sum(broker.status()["used"].values())


def held(broker: gdrpy.Broker, name: str) -> int:
    """How many leases there are on a region."""
    info = broker.stat(name)
    return info.readers + info.writers


def await_holders(broker: gdrpy.Broker, name: str, count: int) -> int:
    """How many leases there are, when they are so few, or at the end of a long time."""
    deadline = time.monotonic() + WAIT
    while held(broker, name) > count and time.monotonic() < deadline:
        time.sleep(0.02)
    return held(broker, name)
