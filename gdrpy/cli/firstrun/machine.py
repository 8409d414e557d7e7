"""The state of the machine: the kernel log, the modules, and gdrdrv's counts."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

import gdrpy
from gdrpy.cli.exits import FAILED, UNUSABLE, CommandError
from gdrpy.memory.node import PATH

PROC, SYS = Path("/proc"), Path("/sys")
NODE = Path(PATH)
KERNEL_LOG = Path("/dev/kmsg")
INSMOD = Path(gdrpy.__file__).parents[1] / "insmod.sh"
#: Seconds that building and loading the module may take.
_INSMOD_TIMEOUT = 600.0

#: Lines of the kernel log that put everything after them in doubt.
ALARM = re.compile(
    r"cut here|WARNING: |BUG: |BUG kmalloc|KASAN: |KCSAN: |UBSAN: |Oops: |Call Trace:|Bad page"
    r"|INFO: (possible|trying|task|rcu)|general protection fault|Kernel panic|refcount_t: "
    r"|list_(add|del) corruption|scheduling while atomic|x86/PAT: |NVRM: Xid"
)
#: Lines about the module or the driver, which are shown.
TOLD = re.compile("gdrdrv|NVRM|nvidia")
#: A letter for each bit of /proc/sys/kernel/tainted, from bit 0 on.
_TAINTS = "PFSRMBUDAWCIOELKXTNJ"
#: The taints of a module that was built outside the kernel, and of an unsigned one.
TAINTS_OF_LOADING = frozenset("OE")

_BAR1_USED = re.compile(r"BAR1 Memory Usage\s+Total\s*:.*\s+Used\s*:\s*(\d+) MiB")


class KernelLog:
    """The kernel log from now on. Raises OSError if this user may not read it."""

    def __init__(self) -> None:
        self._fd = os.open(KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.lseek(self._fd, 0, os.SEEK_END)

    def mark(self, words: str) -> None:
        """Write a line: it is the last one if the kernel crashes in the middle of a step."""
        # Opened each time: the kernel limits the lines from one open file.
        with KERNEL_LOG.open("wb", buffering=0) as log:
            log.write(f"gdrpy validate --module: {words}".encode())

    def new_lines(self) -> list[str]:
        """The lines of the kernel since the last call, without those that programs wrote."""
        lines: list[str] = []
        while True:
            try:
                record = os.read(self._fd, 8192).decode(errors="replace")
            except BlockingIOError:
                return lines
            except BrokenPipeError:
                lines.append("WARNING: the kernel log overran, and lines are lost")
                continue
            prefix, _, text = record.partition(";")
            facility = int(prefix.split(",")[0]) >> 3
            if facility == 0:
                lines.append(text.split("\n")[0])

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._fd)


@dataclass(frozen=True)
class Machine:
    """The state that a run restores, except for the taint of a loaded module."""

    modules: frozenset[str]
    has_node: bool
    taint: str


def look() -> Machine:
    """The state now. Raises OSError if the kernel takes no modules."""
    bits = int((PROC / "sys/kernel/tainted").read_text())
    taint = "".join(letter for bit, letter in enumerate(_TAINTS) if bits >> bit & 1)
    lines = (PROC / "modules").read_text().splitlines()
    return Machine(frozenset(line.split()[0] for line in lines), NODE.exists(), taint)


def driver() -> str:
    """The loaded driver that exports NVIDIA's peer-to-peer interface. Raises CommandError."""
    exported = re.compile(r" nvidia_p2p_get_pages_persistent\t\[(\w+)\]")
    found = exported.search(_text(PROC / "kallsyms") or "")
    if found is None:
        raise CommandError(
            "no NVIDIA driver with a peer-to-peer interface is loaded: sudo modprobe nvidia, and "
            "nvidia-smi must work",
            UNUSABLE,
        )
    folder = SYS / "module" / found[1]
    version = _text(folder / "version") or "of no version"
    flavour = "proprietary" if "P" in (_text(folder / "taint") or "") else "open"
    return f"NVIDIA driver {version} ({found[1]}, {flavour} flavour)"


def insmod(*arguments: str) -> str:
    """Run insmod.sh; returns its output. Raises CommandError with its reason."""
    if not INSMOD.exists():
        raise CommandError(
            f"there is no {INSMOD}: load gdrdrv (sudo modprobe gdrdrv), or run gdrpy from a "
            f"checkout, as root: .venv/bin/gdrpy validate --module",
            UNUSABLE,
        )
    try:
        done = subprocess.run(
            [INSMOD, *arguments],
            capture_output=True,
            text=True,
            timeout=_INSMOD_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"insmod.sh did not end within {_INSMOD_TIMEOUT:g} s") from error
    if done.returncode:
        # 1 is a refusal of the kernel; other statuses mean that something is missing or in the way.
        status = FAILED if done.returncode == 1 else UNUSABLE
        raise CommandError(done.stderr.strip().removeprefix("insmod.sh: "), status)
    return done.stdout.strip()


def module_is_ours() -> bool:
    """Whether the loaded gdrdrv is this project's: NVIDIA's lists no pins."""
    return (PROC / "driver/gdrdrv/pins").exists()


def parameters() -> str:
    """The parameters of the loaded module."""
    files = sorted((SYS / "module/gdrdrv/parameters").iterdir())
    values = {file.name: file.read_text().strip() for file in files}
    if "mode" in values:
        values["mode"] = f"{int(values['mode']):04o}"
    return " ".join(f"{name}={value}" for name, value in values.items())


def node_problem() -> str | None:
    """A fault of the loaded module's node in words, or None."""
    try:
        found = NODE.stat()
    except OSError as error:
        return f"{NODE}: {error.strerror}"
    number = f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"
    if not stat.S_ISCHR(found.st_mode) or number != _text(SYS / "class/misc/gdrdrv/dev"):
        return f"{NODE} is not the module's device"
    return None


def node_words() -> str:
    """The node, its mode and its owner."""
    found = NODE.stat()
    return f"{NODE} {stat.S_IMODE(found.st_mode):04o}, {found.st_uid}:{found.st_gid}"


def pins() -> list[dict[str, str]]:
    """The live pins, with the names of /proc/driver/gdrdrv/pins; none without the module."""
    names, *rows = (_text(PROC / "driver/gdrdrv/pins") or "#").splitlines()
    columns = names.removeprefix("#").split()
    return [dict(zip(columns, row.split(), strict=False)) for row in rows]


def registrations() -> int | None:
    """The number of NVIDIA's live get_pages, or None if the module does not report it."""
    told = _text(PROC / "driver/gdrdrv/nv_get_pages_refcount")
    return None if told is None else int(told)


def counters() -> dict[str, int]:
    """The module's counters since it was loaded."""
    lines = (_text(PROC / "driver/gdrdrv/stats") or "").splitlines()
    pairs = (line.partition(": ") for line in lines)
    return {name: int(value) for name, _, value in pairs if value.isdigit()}


def bar1_used(pci: str) -> int | None:
    """MiB of BAR1 in use on a device, or None if nvidia-smi does not report it."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "-q", "-d", "MEMORY", "-i", pci],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _BAR1_USED.search(done.stdout)
    return int(found[1]) if found else None


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
