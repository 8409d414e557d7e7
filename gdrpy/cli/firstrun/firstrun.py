"""The state of a first run: what it found before, and what it must give back."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from gdrpy.cli.checks.rig import Rig
from gdrpy.cli.data import Mismatch, expect
from gdrpy.cli.exits import FAILED, UNUSABLE, CommandError
from gdrpy.cli.firstrun import machine
from gdrpy.cli.output import Output

#: Seconds within which what ended must be gone: drivers put some of it off.
_SETTLED_WITHIN = 10.0


class FirstRun:
    """One run on a device. Raises CommandError where not even looking is allowed."""

    def __init__(self, device: int) -> None:
        if os.geteuid() != 0:
            raise CommandError(
                "only root may load modules and read the kernel's log: sudo gdrpy validate "
                "--module, by the path of gdrpy (.venv/bin/gdrpy)",
                UNUSABLE,
            )
        try:
            self.before = machine.look()
            self._log = machine.KernelLog()
        except OSError as error:
            raise CommandError(
                f"{error.filename}: {error.strerror}: run it on the host, not in a container",
                UNUSABLE,
            ) from error
        self.device = device
        #: Of the step that is under way.
        self.rig: Rig
        #: Whether this run has loaded the module, and is to unload it.
        self.loaded = False
        #: Live registrations when nothing of this run's was pinned.
        self.at_rest: int | None = None
        self._lines: list[str] = []

    def begin(self, words: str, rig: Rig) -> None:
        """A step begins: mark the kernel's log."""
        self._log.mark(words)
        self.rig = rig

    def load(self) -> str:
        """Load the module. Raises Mismatch where the kernel refuses, CommandError where it cannot
        be tried."""
        self.loaded = True  # before it is: what interrupts insmod.sh may come too late
        try:
            return machine.insmod()
        except CommandError as error:
            self.loaded = False
            if error.status == FAILED:
                raise Mismatch(f"insmod.sh: {error}") from error
            raise

    def unload(self) -> None:
        """Unload the module, which this run has loaded. Raises Mismatch."""
        try:
            machine.insmod("--unload")
        except CommandError as error:
            raise Mismatch(f"gdrdrv stays loaded: {error}") from error
        self.loaded = False

    def close(self, output: Output) -> None:
        """Give everything back."""
        self._log.close()
        if self.loaded:
            try:
                self.unload()
                output.line("gdrdrv is unloaded again")
            except Mismatch as error:
                output.warn(str(error))

    def look_around(self) -> None:
        """Raises Mismatch if the kernel complained, or something of this run's is still pinned."""
        new = self._log.new_lines()
        self._lines += [line for line in new if machine.TOLD.search(line)]
        for line in new:
            expect(not machine.ALARM.search(line), f"the kernel says: {line}")
        grown = set(machine.look().taint) - set(self.before.taint) - machine.TAINTS_OF_LOADING
        expect(not grown, f"the kernel is tainted anew, by {' '.join(sorted(grown))}")
        settled(lambda: machine.pins() == [], "pins are left in /proc/driver/gdrdrv/pins")
        self.settle_registrations()

    def settle_registrations(self) -> None:
        """Raises Mismatch unless nvidia.ko keeps as many registrations as at rest."""
        settled(
            lambda: self.at_rest is None or machine.registrations() in (None, self.at_rest),
            f"nv_get_pages_refcount does not come back to {self.at_rest}",
        )

    def kernel_lines(self) -> list[str]:
        """The kernel's lines about the module and the driver since the last call."""
        lines, self._lines = self._lines, []
        return lines


def settled(condition: Callable[[], bool], message: str) -> None:
    """Raise Mismatch unless the condition holds soon."""
    deadline = time.monotonic() + _SETTLED_WITHIN
    while not condition():
        expect(time.monotonic() < deadline, message)
        time.sleep(0.01)
