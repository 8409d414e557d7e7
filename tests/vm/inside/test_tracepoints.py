"""The module's tracepoints tell of each pin, mapping, revocation and unpin."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from gdrdrv import Gdrdrv
from standin import PAGE, View

TRACING = Path("/sys/kernel/tracing")


@pytest.fixture
def node() -> Iterator[Gdrdrv]:
    with Gdrdrv() as node:
        yield node


@pytest.fixture
def trace() -> Iterator[Path]:
    """The trace, empty at first, of the module's events alone."""
    if not (TRACING / "events").is_dir():
        pytest.skip("the guest's kernel has no CONFIG_EVENT_TRACING")
    switch = TRACING / "events/gdrdrv/enable"
    (TRACING / "trace").write_text("")
    switch.write_text("1")
    yield TRACING / "trace"
    switch.write_text("0")


def told(trace: Path) -> list[tuple[str, dict[str, str]]]:
    """Name and fields of each event."""
    found = re.findall(r" gdrdrv_(\w+): (.*)", trace.read_text())
    return [(name, dict(re.findall(r"(\w+)=(\S+)", fields))) for name, fields in found]


class TestTracepoints:
    def test_tell_the_life_of_a_pin(self, node: Gdrdrv, view: View, trace: Path) -> None:
        handle = node.pin(view.address, view.size)
        node.map(handle, PAGE).close()
        view.unregister()
        node.unpin(handle)

        owner = {"owner": str(os.getpid()), "handle": str(handle)}
        pin = owner | {"va": hex(view.address), "bytes": str(view.size), "persistent": "0"}
        mapping = owner | {"offset": "0", "bytes": str(PAGE), "type": "write-combined"}
        assert told(trace) == [
            ("pin", pin),
            ("map", mapping),
            ("revoke", pin),
            ("unpin", pin),
        ]
