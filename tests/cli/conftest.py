"""Running the command line: whole programs, and in this process."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gdrpy.cli import main
from serving import broker_process, start_serving
from support import open_descriptors

__all__ = ["broker_process", "start_serving"]

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(autouse=True)
def simulated_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line chooses its own backend, whatever the environment of the tests says."""
    monkeypatch.delenv("GDRPY_BACKEND", raising=False)


@pytest.fixture
def gdrpy_command(checkout: Path) -> Run:
    """Runs ``gdrpy ...`` as a program of its own, with more environment if wanted."""

    def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "gdrpy", *words],
            cwd=checkout,
            env=os.environ | {"GDRPY_SIM": "1"} | environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


@pytest.fixture
def json_of(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Runs a command with --json in this process: its exit status and the object it printed."""

    def run(*words: str) -> tuple[int, dict[str, Any]]:
        status = main([*words, "--json"])
        return status, json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def no_descriptors_leak() -> Iterator[None]:
    """As many descriptors are open after the test as before."""
    gc.collect()
    before = open_descriptors()
    yield
    gc.collect()
    assert open_descriptors() == before
