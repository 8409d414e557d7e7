"""What /proc/driver/gdrdrv tells, and to whom."""

from __future__ import annotations

import os
import re
from pathlib import Path

from gdrdrv import PERSISTENT, REVOCABLE, Gdrdrv
from standin import View

PROC = Path("/proc/driver/gdrdrv")
DEFAULT_LIMIT = Path("/sys/module/gdrdrv/parameters/max_pinned_mib")
NOBODY = 65534


def read_as(user: int, name: str) -> str:
    """What a process of that user reads, which has none of root's capabilities."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
        try:
            text = (PROC / name).read_text()
        except PermissionError:
            text = "refused"
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as pipe:
        return pipe.read()


class TestStats:
    def test_root_reads_counters_and_every_user(self, view: View) -> None:
        with Gdrdrv() as node:
            node.pin(view.address, view.size)
            names = [line.split(":")[0] for line in (PROC / "stats").read_text().splitlines()]
            assert names[0] == "pins"
            assert names[-1] == "user 0"

    def test_another_user_reads_what_is_theirs_alone(self, view: View) -> None:
        with Gdrdrv() as node:
            node.pin(view.address, view.size)
            assert read_as(NOBODY, "stats") == ""

    def test_user_reads_their_own_pins(self) -> None:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.setuid(NOBODY)
            with View(2) as view, Gdrdrv() as node:
                node.pin(view.address, view.size, PERSISTENT)
                os.write(writing, (PROC / "stats").read_bytes())
            os._exit(0)
        os.close(writing)
        assert os.waitpid(child, 0)[1] == 0
        with os.fdopen(reading) as pipe:
            assert pipe.read() == f"user {NOBODY}: 1 pins, 1048576 bytes\n"


class TestRegistrations:
    def count(self) -> int:
        return int((PROC / "nv_get_pages_refcount").read_text())

    def test_are_counted_until_the_driver_has_the_pages_back(self, view: View) -> None:
        with Gdrdrv() as node:
            handles = [node.pin(view.address, view.size, REVOCABLE) for _ in range(3)]
            assert self.count() == 3
            node.unpin(handles[0])
            assert self.count() == 2
            view.unregister()
            assert self.count() == 0

    def test_are_for_root_to_read(self) -> None:
        assert read_as(NOBODY, "nv_get_pages_refcount") == "refused"
        assert read_as(NOBODY, "pins") == "refused"


def test_params_are_as_nvidias_module_tells_them() -> None:
    assert re.fullmatch(
        r"Version: 2\.6\n"
        r"Built for NVIDIA driver flavor: (opensource|proprietary)\n"
        r"Use persistent mapping: yes\n"
        r"dbg_enabled: 0\n"
        r"info_enabled: 0\n",
        read_as(NOBODY, "params"),
    )


def test_default_limit_is_16_times_the_machines_memory() -> None:
    found = re.search(r"MemTotal: +(\d+) kB", Path("/proc/meminfo").read_text())
    assert found is not None
    memory_mib = int(found[1]) // 1024
    assert int(DEFAULT_LIMIT.read_text()) == memory_mib * 16
