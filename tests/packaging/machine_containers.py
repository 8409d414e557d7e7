"""Containers without a container engine: commands on copies of this machine, in namespaces of their
own, which have nothing in common but the folder of a broker's socket.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from machine_copy import Machines

_DOCKERFILE = Path(__file__).parents[2] / "packaging/Dockerfile"
SOCKET_FOLDER = Path("/run/gdrpy")
#: As many users as an engine gives to a container.
_USERS = 1 << 16
#: Gives the copy of the machine at $1 the folder $3 at $2 with the options $4, and a /root that
#: users may enter, since Python may lie there.
_PREPARE = """
chroot "$1" chmod 0755 /root
chroot "$1" mkdir -p "$2"
mount -t tmpfs memory "$1/dev/shm"
mount --bind "$3" "$1$2"
mount -o "$4" "$1$2"
"""


def instructions() -> dict[str, list[str]]:
    """What the Dockerfile says, by kind, each on one line."""
    text = re.sub(r"^#.*\n", "", _DOCKERFILE.read_text(), flags=re.MULTILINE)
    found: dict[str, list[str]] = {}
    for line in text.replace("\\\n", " ").splitlines():
        kind, _, words = line.partition(" ")
        found.setdefault(kind, []).append(words.strip())
    return found


class Containers:
    """Starts and ends them; root alone can."""

    def __init__(self, machines: Machines, folder: Path) -> None:
        self._machines = machines
        self._folder = folder
        self._started: list[Container] = []
        # What root may map. The namespace of the copies alone sees these files.
        users = folder.with_name("users")
        users.write_text(f"root:{_USERS}:{1 << 20}\n")
        for file in ("/etc/subuid", "/etc/subgid"):
            machines.inside("mount", "--bind", users, file)

    def start(
        self, command: list[str], *, user: int, readonly: bool, first_user: int | None = None
    ) -> Container:
        """Starts a command without capabilities as ``user``.

        With ``first_user`` it gets a user namespace, whose users begin with that one here.
        """
        root = self._machines.copy().root
        options = f"remount,bind,{'ro' if readonly else 'rw'}"
        self._machines.inside(
            *("sh", "-ec", _PREPARE, "sh", root, SOCKET_FOLDER, self._folder, options)
        )
        namespaces = ["--mount", "--net", "--ipc", "--uts", "--pid", "--fork", "--kill-child"]
        if first_user is not None:
            users = f"{first_user},0,{_USERS}"
            namespaces += [f"--map-users={users}", f"--map-groups={users}"]
            namespaces += ["--setuid=0", "--setgid=0"]
        made = Container(
            [
                *("nsenter", "--mount", "--target", str(self._machines.holder)),
                *("unshare", *namespaces, "--mount-proc", f"--root={root}"),
                *("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"),
                *("--no-new-privs", "--bounding-set=-all", "--pdeathsig=KILL"),
                *("env", "-i", f"PATH={Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin"),
                *("HOME=/tmp", "GDRPY_SIM=1", f"GDRPY_SOCKET={SOCKET_FOLDER}/broker.sock"),
                *command,
            ]
        )
        self._started.append(made)
        return made

    def close(self) -> None:
        for container in reversed(self._started):
            container.stop()
        for file in ("/etc/subuid", "/etc/subgid"):
            self._machines.inside("umount", file)


class Container:
    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def line(self) -> str:
        """The next line that it prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def enter(self) -> None:
        """Types an empty line."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def stop(self) -> None:
        """What an engine does with the image's STOPSIGNAL, until the container is gone."""
        with self.process:
            if self.process.poll() is None:
                pid = self.process.pid
                children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
                for one in children or [pid]:
                    os.kill(int(one), signal.SIGKILL)

    def done(self, typed: str | None = None) -> str:
        """What it prints, if it succeeds, after it has read what is typed."""
        printed, _ = self.process.communicate(typed, timeout=60)
        assert self.process.returncode == 0
        return printed
