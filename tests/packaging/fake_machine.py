"""A machine to run insmod.sh on: a folder in place of /, and commands that know no other."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

RELEASE = "6.1.0-test"

#: Those that a machine has and the script uses; all others are made up here.
REAL_COMMANDS = (
    *("awk", "bash", "cat", "cut", "dirname", "env", "find", "grep", "ls", "ln", "mkdir", "paste"),
    *("realpath", "rm", "sed", "sort", "stat", "tail"),
)

FAKE_COMMANDS = {
    "id": "cat uid",
    "uname": f"echo {RELEASE}",
    "dmesg": "cat dmesg",
    "gcc": "",
    "mokutil": "echo SecureBoot $(cat secureboot)",
    # Of a module's file, or of an installed module by its name: lines of "field: value".
    "modinfo": """
        while getopts b:k:nF: option; do field=$OPTARG; done
        file=${!#}
        case " $*" in
        *" -n "*) [ ! -e "installed-$file" ] || echo "$PWD/installed-$file"; exit ;;
        esac
        [[ $file = /* ]] || file=$called_in/$file
        sed -n "s/^$field: //p" "$file" 2> /dev/null
    """,
    "make": """
        case $* in
        *clean*) exit ;;
        *NVIDIA_DRIVER=*) driver=$*; driver=${driver##*NVIDIA_DRIVER=}; driver=${driver%% *} ;;
        esac
        [ -e sources-are-wrong ] && exit 2
        sed "s/^nvidia: .*/nvidia: $driver/" module-as-built > "$called_in/driver/gdrdrv.ko"
    """,
    "insmod": """
        if [ -e kernel-refuses ]; then
            echo "insmod: ERROR: could not insert module $1: $(cat kernel-refuses)" >&2
            exit 1
        fi
        mkdir -p sys/module/gdrdrv/parameters proc/driver/gdrdrv sys/class/misc/gdrdrv
        : > proc/driver/gdrdrv/pins
        sed -n 's/^srcversion: //p' module-as-built > sys/module/gdrdrv/srcversion
        echo 2.6 > sys/module/gdrdrv/version
        echo 438 > sys/module/gdrdrv/parameters/mode
        echo 0 > sys/module/gdrdrv/parameters/max_pinned_mib
        echo Y > sys/module/gdrdrv/parameters/use_persistent_mapping
        for pair in "${@:2}"; do
            echo $((${pair#*=})) > "sys/module/gdrdrv/parameters/${pair%%=*}"
        done
        echo 1:3 > sys/class/misc/gdrdrv/dev
        [ -e no-devtmpfs ] || ln -sf /dev/null dev/gdrdrv
    """,
    "rmmod": """
        if [ -e kernel-refuses ]; then
            echo "rmmod: ERROR: Module gdrdrv is in use" >&2
            exit 1
        fi
        rm -rf sys/module/gdrdrv proc/driver/gdrdrv sys/class/misc/gdrdrv
    """,
    "mknod": 'ln -s /dev/null "$3"',
}

MODULE = f"""\
vermagic: {RELEASE} SMP preempt mod_unload modversions
nvidia: 550.54.14-open
srcversion: 0123456789ABCDEF
parm: max_pinned_mib:MiB that a user may have pinned (ulong)
parm: mode:Permissions of /dev/gdrdrv (ushort)
parm: use_persistent_mapping:Pins outlive the memory (bool)
"""


class Machine:
    """One with headers, tools and the open NVIDIA driver 550.54.14, and a root user."""

    def __init__(self, folder: Path, checkout: Path) -> None:
        self.root = folder / "root"
        self.commands = folder / "commands"
        self.checkout = folder / "checkout"
        self.module = self.checkout / "driver/gdrdrv.ko"
        self.headers = self.root / f"lib/modules/{RELEASE}/build"
        for path in ("sys", "proc", "dev", "sys/kernel/security", "sys/class/misc"):
            (self.root / path).mkdir(parents=True)
        self.write("uid", "0")
        self.write("dmesg", "")
        self.write("secureboot", "disabled")
        self.write("module-as-built", MODULE)
        self.write("sys/module/module/parameters/sig_enforce", "N")
        self.write("sys/kernel/security/lockdown", "[none] integrity confidentiality")
        self.write(f"lib/modules/{RELEASE}/build/Makefile", "")
        self.write(f"lib/modules/{RELEASE}/build/include/config/auto.conf", "")
        self.write(
            f"lib/modules/{RELEASE}/build/include/generated/utsrelease.h",
            f'#define UTS_RELEASE "{RELEASE}"',
        )
        self.load_nvidia("550.54.14", "OE")
        self._make_commands()
        shutil.copytree(
            checkout / "driver",
            self.checkout / "driver",
            ignore=shutil.ignore_patterns("*.ko", "*.o", "*.mod*", ".*", "packaging"),
        )
        shutil.copy2(checkout / "insmod.sh", self.checkout)

    def _make_commands(self) -> None:
        self.commands.mkdir()
        for name in REAL_COMMANDS:
            (self.commands / name).symlink_to(shutil.which(name) or f"/no/{name}")
        for name, script in FAKE_COMMANDS.items():
            command = self.commands / name
            command.write_text(
                f"#!{shutil.which('bash')}\n"
                'called_in=$PWD; cd "$GDRPY_SYSROOT" || exit\n'
                f'echo "{name} $*" >> calls\n{script}\n'
            )
            command.chmod(0o755)

    def write(self, path: str, text: str) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
        return file

    def load_nvidia(self, version: str, taint: str) -> None:
        self.write("sys/module/nvidia/version", version)
        self.write("sys/module/nvidia/taint", taint)
        symbols = ("nvidia_p2p_get_pages", "nvidia_p2p_get_pages_persistent")
        self.write("proc/kallsyms", "\n".join(f"0 T {name}\t[nvidia]" for name in symbols))

    def install_nvidia(self, version: str, license: str) -> None:
        self.write("installed-nvidia", f"version: {version}\nlicense: {license}")

    def process_with(self, pid: int, name: str, target: str) -> None:
        """A process that has something open."""
        self.write(f"proc/{pid}/comm", name)
        descriptors = self.root / f"proc/{pid}/fd"
        descriptors.mkdir()
        (descriptors / "3").symlink_to(target)

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.checkout / "insmod.sh", *arguments],
            env={
                "PATH": str(self.commands),
                "GDRPY_SYSROOT": str(self.root),
                "LC_ALL": "C",
                **environment,
            },
            cwd=os.environ.get("TMPDIR", "/"),
            capture_output=True,
            text=True,
            check=False,
        )

    def done(self, *arguments: str, **environment: str) -> list[str]:
        """The lines it prints when it does what it is asked for."""
        ended = self.run(*arguments, **environment)
        assert (ended.returncode, ended.stderr) == (0, "")
        return ended.stdout.splitlines()

    def refused(self, *arguments: str, **environment: str) -> tuple[int, str]:
        """Exit status and reason when it cannot: one line."""
        ended = self.run(*arguments, **environment)
        (line,) = ended.stderr.splitlines()
        return ended.returncode, line.removeprefix("insmod.sh: ")

    def status(self, **environment: str) -> dict[str, str]:
        lines = self.done("--status", **environment)
        pairs = (line.partition(":") for line in lines)
        return {name: value.strip() for name, _, value in pairs}

    def calls(self, *commands: str) -> list[str]:
        """How these commands were called."""
        lines = (self.root / "calls").read_text().splitlines()
        return [line for line in lines if line.partition(" ")[0] in commands]

    @property
    def is_loaded(self) -> bool:
        return (self.root / "sys/module/gdrdrv").exists()
