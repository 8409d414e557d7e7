"""``gdrpy validate --module``: every step, and a doubt after which nothing is left."""

from __future__ import annotations

import errno
import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import standin
from gdrdrv import PERSISTENT, Gdrdrv

from gdrpy.cli import firstrun, main
from gdrpy.cli.firstrun import machine, state

pytestmark = pytest.mark.timeout(600)

NAMES = [step.name for step in firstrun.ALL]
LOADED = Path("/sys/module/gdrdrv")
NODE = Path("/dev/gdrdrv")

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """What a run that ends with this status prints as JSON."""

    def run(status: int = 0) -> dict[str, Any]:
        ended = main(["validate", "--module", "--json"])
        printed, complaints = capfd.readouterr()
        assert ended == status, f"{printed}\n{complaints}"
        result: dict[str, Any] = json.loads(printed)
        return result

    return run


@pytest.fixture
def unloaded(module: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The module is not loaded, and insmod.sh would load the bed's."""
    monkeypatch.setenv("GDRDRV_MODULE", str(module))
    subprocess.run(["rmmod", "gdrdrv"], check=True)
    yield
    if not LOADED.exists():
        subprocess.run(["insmod", module], check=True)


@pytest.fixture
def before_step(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[], object]], None]:
    """Has something else happen as a step begins."""

    def before_step(name: str, happens: Callable[[], object]) -> None:
        def both(function: Callable[[Any], str]) -> Callable[[Any], str]:
            @functools.wraps(function)
            def run_both(current: Any) -> str:
                happens()
                return function(current)

            return run_both

        steps = tuple(
            replace(step, function=both(step.function)) if step.name == name else step
            for step in firstrun.ALL
        )
        monkeypatch.setattr(firstrun, "ALL", steps)

    return before_step


def passed(result: dict[str, Any]) -> list[str]:
    return [step["name"] for step in result["steps"] if step["passed"]]


def words(result: dict[str, Any], name: str) -> str:
    (found,) = (step["words"] for step in result["steps"] if step["name"] == name)
    return str(found)


def crash_as_an_xid() -> None:
    """A process of such a name crashes, which the kernel's log tells in a line that begins so."""
    source = "import ctypes\nctypes.CDLL(None).prctl(15, b'NVRM: Xid (PCI:')\nctypes.string_at(0)"
    ended = subprocess.run([sys.executable, "-c", source], check=False)
    assert ended.returncode == -signal.SIGSEGV


class TestFirstRun:
    def test_passes_every_step_with_a_module_that_it_loads_and_unloads(
        self, run: Run, unloaded: None
    ) -> None:
        taint = machine.look().taint
        result = run()
        assert passed(result) == NAMES
        assert (result["passed"], result["not_run"]) == (True, [])
        assert "sudo ./insmod.sh would load " in words(result, "machine")
        assert words(result, "load").startswith("loaded; /dev/gdrdrv 0666, 0:0; ")
        assert words(result, "map").startswith("mapped write-combined, written at ")
        assert words(result, "leave") == "gdrdrv is unloaded"
        assert not LOADED.exists()
        assert not NODE.exists()
        assert machine.look().taint == taint

    def test_leaves_a_module_loaded_that_was(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        steps = [step for step in firstrun.ALL if step.name in ("machine", "load", "pin", "leave")]
        monkeypatch.setattr(firstrun, "ALL", steps)
        number = NODE.stat().st_rdev
        result = run()
        assert passed(result) == ["machine", "load", "pin", "leave"]
        assert words(result, "load").startswith("loaded already; /dev/gdrdrv 0666, 0:0; ")
        assert words(result, "leave") == "gdrdrv stays loaded, as it was"
        assert NODE.stat().st_rdev == number
        assert machine.pins() == []


class TestDoubt:
    def test_of_a_refused_pin_ends_the_run(
        self, run: Run, unloaded: None, before_step: Callable[..., None]
    ) -> None:
        before_step("pin", lambda: standin.fail_next_get(errno.EIO))
        result = run(status=1)
        assert passed(result) == NAMES[: NAMES.index("pin")]
        assert result["not_run"] == NAMES[NAMES.index("pin") + 1 :]
        assert words(result, "pin") == "OSError: [Errno 5] Input/output error"
        assert not LOADED.exists()
        assert not NODE.exists()

    def test_of_the_kernels_own_ends_the_run(
        self, run: Run, before_step: Callable[..., None]
    ) -> None:
        before_step("map", crash_as_an_xid)
        result = run(status=1)
        assert passed(result) == NAMES[: NAMES.index("map")]
        assert words(result, "map").startswith("the kernel says: NVRM: Xid (PCI:[")
        assert result["steps"][-1]["kernel"][0] in words(result, "map")
        assert LOADED.exists()

    def test_of_a_pin_that_stays_ends_the_run(
        self, run: Run, before_step: Callable[..., None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(state, "_SETTLED_WITHIN", 0.1)
        with standin.View(pages=1) as view, Gdrdrv() as node:
            before_step("revoke", lambda: node.pin(view.address, view.size, PERSISTENT))
            result = run(status=1)
        assert result["steps"][-1]["name"] == "revoke"
        assert words(result, "revoke") == "pins are left in /proc/driver/gdrdrv/pins"

    def test_is_told_with_what_to_look_at_and_what_was_not_run(
        self,
        capfd: pytest.CaptureFixture[str],
        before_step: Callable[..., None],
    ) -> None:
        before_step("interface", lambda: 1 // 0)
        assert main(["validate", "--module"]) == 1
        *_, doubt, look, left_out, summary = capfd.readouterr().out.splitlines()
        assert doubt.startswith(" 3  DOUBT  Version, attributes and features ")
        assert doubt.endswith(": ZeroDivisionError: integer division or modulo by zero")
        assert look == "          look at: ./insmod.sh --status: whose module is loaded"
        assert left_out == f"not run: {', '.join(NAMES[3:])}"
        assert summary == f"2 of {len(NAMES)} steps passed"


class TestKernelLog:
    def test_tells_of_the_kernels_lines_only(self) -> None:
        log = machine.KernelLog()
        log.mark("NVRM: Xid by a program")
        assert log.new_lines() == []
        crash_as_an_xid()
        line = log.new_lines()[0]
        assert line.startswith("NVRM: Xid (PCI:[")
        assert machine.ALARM.search(line)
        log.close()


class TestRefusal:
    def test_of_a_module_in_use(self, run: Run, view: standin.View) -> None:
        with Gdrdrv() as node:
            node.pin(view.address, view.size, PERSISTENT)
            error = run(status=2)["error"]["message"]
        assert error == f"gdrdrv is in use by {os.getpid()}: end them first"

    def test_of_nvidias_module(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(machine, "module_is_ours", lambda: False)
        error = run(status=2)["error"]["message"]
        assert error == "another gdrdrv, NVIDIA's, is loaded: unload it first"

    def test_of_a_module_that_cannot_be_loaded(
        self, run: Run, unloaded: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("GDRDRV_MODULE", str(tmp_path / "gdrdrv.ko"))
        error = run(status=2)["error"]["message"]
        assert error == f"{tmp_path}/gdrdrv.ko is missing"
        assert not LOADED.exists()


class TestEnd:
    def test_by_a_lost_terminal_unloads_the_module(self, unloaded: None) -> None:
        command = [sys.executable, "-m", "gdrpy", "validate", "--module"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
            assert program.stdout is not None
            for line in program.stdout:
                if line.startswith(" 2  pass"):
                    break
            assert LOADED.exists()
            program.send_signal(signal.SIGHUP)
            rest = program.stdout.read()
        assert program.returncode == 130
        assert rest.splitlines()[-1] == "gdrdrv is unloaded again"
        assert not LOADED.exists()
        assert standin.live() == (0, 0, 0, 0)
