"""A plugin: tests marked ``preloaded`` run their body in a new process, behind the simulated RM."""

import os
import subprocess
import sys
from collections.abc import Iterator
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


@pytest.fixture(scope="session")
def worker(resource_manager_library: Path) -> Iterator[subprocess.Popen[str]]:
    """What forks the processes."""
    with subprocess.Popen(
        [sys.executable, HERE / "worker.py"],
        env=os.environ | {"LD_PRELOAD": str(resource_manager_library)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.communicate()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    marker = pyfuncitem.get_closest_marker("preloaded")
    if marker is None:
        return None
    _, *names = pyfuncitem.nodeid.removesuffix(f"[{pyfuncitem.name.partition('[')[2]}").split("::")
    fixture = pyfuncitem._request.getfixturevalue
    process = fixture("worker")
    output = fixture("tmp_path") / "output"
    output.touch()
    job = {
        "path": str(pyfuncitem.path),
        "name": ".".join(names),
        "arguments": pyfuncitem.callspec.params if hasattr(pyfuncitem, "callspec") else {},
        "environment": {
            **os.environ,
            **marker.kwargs,
            "LD_PRELOAD": str(fixture("resource_manager_library")),
        },
        "output": str(output),
    }
    print(job, file=process.stdin, flush=True)
    status = process.stdout.readline().strip()
    if status != "0":
        pytest.fail(f"exit status {status}\n{output.read_text()}", pytrace=False)
    return True
