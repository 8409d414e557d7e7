"""The state of a first run: the machine before it, and the changes that it must undo."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from gdrpy.cli.checks.rig import Rig
from gdrpy.cli.data import Mismatch, expect
from gdrpy.cli.exits import FAILED, UNUSABLE, CommandError
from gdrpy.cli.firstrun import machine
from gdrpy.cli.output import Output

#: Seconds until the traces of an ended process must be gone: drivers postpone some work.
_SETTLED_WITHIN = 10.0


class FirstRun:
    """One run on a device. Raises CommandError if this user may not even look."""

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
        #: The rig of the current step.
        self.rig: Rig
        #: Whether this run has loaded the module, and must unload it.
        self.loaded = False
        #: Live registrations while this run had no pins.
        self.at_rest: int | None = None
        self._lines: list[str] = []

    def begin(self, words: str, rig: Rig) -> None:
        """A step begins: mark the kernel's log."""
        self._log.mark(words)
        self.rig = rig

    def load(self) -> str:
        """Load the module. Raises Mismatch if the kernel refuses it, CommandError if loading
        cannot be tried."""
        self.loaded = True  # set early: an interrupt of insmod.sh may come after the load
        try:
            return machine.insmod()
        except CommandError as error:
            self.loaded = False
            if error.status == FAILED:
                raise Mismatch(f"insmod.sh: {error}") from error
            raise

    def unload(self) -> None:
        """Unload the module that this run has loaded. Raises Mismatch."""
        try:
            machine.insmod("--unload")
        except CommandError as error:
            raise Mismatch(f"gdrdrv stays loaded: {error}") from error
        self.loaded = False

    def close(self, output: Output) -> None:
        """Undo all changes."""
        self._log.close()
        if self.loaded:
            try:
                self.unload()
                output.line("gdrdrv is unloaded again")
            except Mismatch as error:
                output.warn(str(error))

    def look_around(self) -> None:
        """Raise Mismatch if the kernel complained, or if this run still has pins."""
        new = self._log.new_lines()
        self._lines += [line for line in new if machine.TOLD.search(line)]
        for line in new:
            expect(not machine.ALARM.search(line), f"the kernel says: {line}")
        grown = set(machine.look().taint) - set(self.before.taint) - machine.TAINTS_OF_LOADING
        expect(not grown, f"the kernel is tainted anew, by {' '.join(sorted(grown))}")
        settled(lambda: machine.pins() == [], "pins are left in /proc/driver/gdrdrv/pins")
        self.settle_registrations()

    def settle_registrations(self) -> None:
        """Raise Mismatch unless nvidia.ko has as many registrations as at rest."""
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
