"""The second process of a check: ``python -m gdrpy.cli.checks.peer FD NBYTES SEED SEED``.

It opens the CPU view of the region behind an inherited descriptor, without CUDA, compares it with
our noise, writes its own, and prints what it found as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

import gdrpy
from gdrpy import Region
from gdrpy.cli.data import Difference, Noise, difference, windows

#: The last seeds of the noise of the first process, and of this one.
OURS, THEIRS = 1, 2


def environment() -> dict[str, str]:
    """The environment of a second process, which finds this very package."""
    paths = [str(Path(gdrpy.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def exchange(region: Region, seeds: tuple[int, ...]) -> Difference | None:
    """Compare the region with the first process's noise, then fill it with this one's."""
    ours, theirs = Noise(*seeds, OURS), Noise(*seeds, THEIRS)
    found = None
    for offset, nbytes in windows(region.nbytes):
        got = region.cpu.read(nbytes, offset)
        found = found or difference(ours.bytes(nbytes), got, offset)
        region.cpu.write(theirs.bytes(nbytes), offset)
    return found


def cuda_loaded() -> bool:
    """Whether libcuda, real or simulated, is in this process."""
    return "libcuda" in Path("/proc/self/maps").read_text()


def main(fd: int, nbytes: int, *seeds: int) -> None:
    """Do it, and print the answer."""
    with Region.from_fd(fd, nbytes, gpu=False) as region:
        found = exchange(region, seeds)
    print(
        json.dumps({"cuda_loaded": cuda_loaded(), "difference": asdict(found) if found else None})
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
