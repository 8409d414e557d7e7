"""Whether the host has the memory that a command is about to fill."""

from __future__ import annotations

from pathlib import Path

from gdrpy.cli.exits import UNUSABLE, CommandError
from gdrpy.cli.sizes import approximate_size

_MEMINFO = Path("/proc/meminfo")


def require(nbytes: int, *, simulated: bool | None) -> None:
    """Raise CommandError where the host has fewer than ``nbytes`` available.

    Linux hands out more memory than there is, and later ends the process that fills it.
    """
    available = _available()
    if available is None or nbytes <= available:
        return
    why = "; the simulated GPU's memory is host memory" if simulated else ""
    raise CommandError(
        f"this needs about {approximate_size(nbytes)} of host memory, and "
        f"{approximate_size(available)} are available{why}: choose a smaller size",
        UNUSABLE,
    )


def _available() -> int | None:
    """Bytes that can be filled without swapping, by the kernel's estimate."""
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        key, _, value = line.partition(":")
        if key == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None
