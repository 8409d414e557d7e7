"""A copy of this machine to install packages on: what is written there is in memory, and lost."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path

PATH_OF_ROOT = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: Mounts a copy at $1 with the layer $2, the folder $3 and the options $4.
_MOUNT = """
mkdir -p "$1" "$2" "$3"
mount -t overlay copy -o "$4" "$1"
mount -t proc proc "$1/proc"
mount --bind /dev "$1/dev"
"""


class Machines:
    """A mount namespace with copies in it, each a layer over the one that it was made of."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._numbers = itertools.count()
        # It lives as long as this program, whose end the pipe tells.
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", "echo; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdout is not None
        self._holder.stdout.readline()
        #: The process whose mount namespace it is.
        self.holder = self._holder.pid
        self.inside("mount", "-t", "tmpfs", "machines", folder)

    def inside(self, *command: str | Path) -> str:
        """What a command prints that succeeds."""
        ended = subprocess.run(
            ["nsenter", "--mount", "--target", str(self._holder.pid), *command],
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, f"{command}: {ended.stdout}{ended.stderr}"
        return ended.stdout

    def copy(self, of: Machine | None = None) -> Machine:
        """A copy of this machine, or of a copy that is not written to any more."""
        if of:
            of.unmount()
        machine = Machine(self, next(self._numbers), of.layers if of else "/")
        machine.mount()
        return machine

    def close(self) -> None:
        self._holder.communicate()


class Machine:
    def __init__(self, machines: Machines, number: int, below: str) -> None:
        self.machines = machines
        folder = machines.folder / str(number)
        self.root, self._layer, self._work = folder / "root", folder / "layer", folder / "work"
        self._below = below
        self.layers = f"{self._layer}:{below}"
        self._mounted = False

    def mount(self) -> None:
        options = f"lowerdir={self._below},upperdir={self._layer},workdir={self._work}"
        self.machines.inside(
            *("sh", "-ec", _MOUNT, "sh", self.root, self._layer, self._work, options)
        )
        self._mounted = True

    def unmount(self) -> None:
        if self._mounted:
            self.machines.inside("umount", "--recursive", self.root)
        self._mounted = False

    def run(self, *command: str | Path) -> str:
        """What a command prints that succeeds on the copy."""
        return self.machines.inside("env", PATH_OF_ROOT, "chroot", self.root, *command)

    def put(self, file: Path) -> str:
        """Copies a file there; its path."""
        self.machines.inside("cp", file, self.root / "root")
        return f"/root/{file.name}"


def built_for(machine: Machine, kernel: str) -> str:
    """The driver that the installed module was built for."""
    return machine.run("modinfo", "-k", kernel, "-F", "nvidia", "gdrdrv").strip()
