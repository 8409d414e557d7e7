"""Processes without CUDA, and the GPU's free memory, for the tests of the copy engine."""

from __future__ import annotations

import os
import subprocess
import sys

import gdrpy
from gdrpy import cuda

NOBODY = 65534


def child(code: str, region: gdrpy.Region, *rest: int, **user: object) -> subprocess.Popen[str]:
    """A process that runs ``code``: its first argument is a descriptor of the region."""
    fd = region.export()
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(fd), *map(str, rest)],
        pass_fds=[fd],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **user,  # type: ignore[call-overload]
    )
    os.close(fd)
    return process


def free_nbytes() -> int:
    with cuda.context(0):
        return int(cuda.call("cuMemGetInfo")[0])
