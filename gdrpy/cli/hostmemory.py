"""Does the host have the memory that a command is about to fill?"""

from __future__ import annotations

import re
from pathlib import Path

from gdrpy.cli.exits import UNUSABLE, CommandError
from gdrpy.cli.sizes import approximate_size

_MEMINFO = Path("/proc/meminfo")


def require(nbytes: int, *, simulated: bool | None) -> None:
    """Raise CommandError if the host has fewer than ``nbytes`` available.

    Linux hands out more memory than it has, and later kills the process that fills it.
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
    """Bytes that a process can fill without swapping, by the kernel's estimate."""
    try:
        found = re.search(r"^MemAvailable: +(\d+) kB$", _MEMINFO.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None
