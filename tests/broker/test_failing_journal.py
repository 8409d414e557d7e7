"""A broker whose journal takes no more for a while: it goes on, and nothing is lost."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gdrpy.broker.server.journal import Journal
from gdrpy.broker.server.service import SLICE
from rawclient import RawClient
from threaded import in_thread


class Fault:
    """A journal's, while ``on``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.on, self.hits = False, 0
        append = Journal.append

        def failing(journal: Journal, entry: bytes) -> None:
            if self.on:
                self.hits += 1
                raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
            append(journal, entry)

        monkeypatch.setattr(Journal, "append", failing)


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch) -> Fault:
    return Fault(monkeypatch)


@pytest.fixture
def path(tmp_path: Path, fault: Fault) -> Iterator[str]:
    """A broker in a thread of this process."""
    with in_thread(str(tmp_path / "s"), 60) as path:
        yield path


class TestSessionThatCannotBeEnded:
    @pytest.mark.parametrize("regions", [1, 3 * SLICE], ids=["in one turn", "in several turns"])
    def test_costs_no_other_client_and_ends_later(
        self, regions: int, path: str, fault: Fault
    ) -> None:
        with RawClient(path) as other, RawClient(path) as client, RawClient(path) as idle:
            for _ in range(regions):
                client.allocate(None).close()
            fault.on = True
            client.close()
            idle.close()
            deadline = time.monotonic() + 20
            while fault.hits < 2:
                assert time.monotonic() < deadline
            assert other.ok("status")["sessions"] == 3
            fault.on = False
            while (found := other.ok("status"))["sessions"] != 1:
                assert time.monotonic() < deadline
            assert (found["regions"], found["leases"]) == (0, 0)
