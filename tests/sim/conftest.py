"""Fixtures of the tests of the simulated driver."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from cuda_calls import Cuda

from gdrpy import sim


@pytest.fixture
def cuda(driver: Any) -> Iterator[Cuda]:
    with ExitStack() as undo:
        yield Cuda(driver, undo)


#: What a program that the tests start begins with: CUDA as in this process, and nothing current.
PREAMBLE = """
import os, sys
from contextlib import ExitStack
from gdrpy import cuda as _cuda
sys.path.insert(0, {folder!r})
from cuda_calls import GRANULE, Cuda
cuda = Cuda(_cuda.driver(), ExitStack())
"""


@pytest.fixture
def another_process() -> Callable[..., str]:
    """Runs code in a fresh process on the same kind of GPU, ``cuda`` being a :class:`Cuda`.

    It is given to the process as arguments from ``sys.argv[1]`` on; what it prints comes back.
    """

    def run(code: str, *arguments: Any, fds: Sequence[int] = ()) -> str:
        preamble = PREAMBLE.format(folder=str(Path(__file__).parent))
        return subprocess.run(
            [sys.executable, "-c", preamble + code, *map(str, arguments)],
            pass_fds=fds,
            check=True,
            text=True,
            stdout=subprocess.PIPE,
            timeout=60,
        ).stdout

    return run


@pytest.fixture
def fresh_process() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs code in a process with the simulated driver loaded, not initialized, in its own
    environment variables; ``driver`` is ``cuda.bindings.driver``, ``sim`` is ``gdrpy.sim``."""

    def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return _python("from gdrpy import sim; sim.load()\n" + code, environment)

    return run


@pytest.fixture
def preloaded_process() -> Callable[..., subprocess.CompletedProcess[str]]:
    """As ``fresh_process``, for a program that knows nothing of gdrpy: by ``LD_PRELOAD``."""

    def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return _python(code, {"LD_PRELOAD": sim.driver_path(), **environment})

    return run


def _python(code: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from cuda.bindings import driver\n" + code],
        env={**os.environ, **environment},
        text=True,
        capture_output=True,
        timeout=60,
    )
