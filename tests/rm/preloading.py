"""A plugin: tests marked ``preloaded`` run their body in a new process, behind the simulated RM."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from build import build

HERE = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "preloaded(**environment): run the test's body in a process of its own, with the"
        " simulated resource manager in front of the C library and these variables set",
    )


@pytest.fixture(scope="session", autouse=True)
def resource_manager_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The simulated resource manager: a path for LD_PRELOAD."""
    return build(tmp_path_factory.mktemp("resource-manager"))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    marker = pyfuncitem.get_closest_marker("preloaded")
    if marker is None:
        return None
    arguments = pyfuncitem.callspec.params if hasattr(pyfuncitem, "callspec") else {}
    _, *names = pyfuncitem.nodeid.removesuffix(f"[{pyfuncitem.name.partition('[')[2]}").split("::")
    library = pyfuncitem.funcargs["resource_manager_library"]
    process = subprocess.run(
        [sys.executable, HERE / "worker.py", pyfuncitem.path, ".".join(names), repr(arguments)],
        env={**os.environ, **marker.kwargs, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    if process.returncode:
        pytest.fail(f"exit status {process.returncode}\n{process.stderr}", pytrace=False)
    return True
