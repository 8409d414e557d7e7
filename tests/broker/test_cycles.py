"""A region got and closed again and again leaves broker, keeper and client as they were."""

from __future__ import annotations

import os
import re
from pathlib import Path

import gdrpy
from brokers import Broker, await_descriptors, descriptors

_CYCLES = 25_000
#: KiB by which the broker's own memory may grow meanwhile: an object for each cycle is more.
_GROWTH = 512


def anonymous_memory(pid: int) -> int:
    """KiB of a process's own memory."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1])


class TestManyCycles:
    def test_leave_no_descriptor_no_lease_and_no_memory(self, broker: Broker) -> None:
        with gdrpy.connect(broker.path) as client:
            client.allocate("a", 4096, "cpu").close()

            def cycle(times: int) -> None:
                for _ in range(times):
                    client.get("a", gpu=False).close()

            cycle(_CYCLES // 10)
            processes = [broker.pid, broker.keeper, os.getpid()]
            before = [descriptors(pid) for pid in processes]
            memory = anonymous_memory(broker.pid)
            cycle(_CYCLES)
            status = client.status()
            assert (status["regions"], status["sessions"], status["leases"]) == (1, 1, 0)
            for pid, wanted in zip(processes, before, strict=True):
                await_descriptors(pid, wanted)
            assert anonymous_memory(broker.pid) - memory < _GROWTH
