"""A Ray cluster and a Dask cluster of two machines each, started once for the tests of this folder.

The tests' programs run in a process of their own that is the cluster's driver or client, so that
no thread of an engine is in the process of the other tests.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import dask_programs
import ray_programs
from machines import WAIT, Machine, end, serve

#: Seconds for one program on a cluster.
_LIMIT = WAIT + 30
_ENVIRONMENT = {
    "GDRPY_SIM": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "of-the-tests",
    "PYTHONPATH": os.pathsep.join(sys.path),
}

#: Runs a function of a programs' module in the driver: what it returns, or raises.
Drive = Callable[..., Any]


@pytest.fixture(scope="package")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """The other machine, with a broker of its own; this one has one at the same path."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        for name, value in _ENVIRONMENT.items():
            patch.setenv(name, value)
        patch.setenv("DASK_TEMPORARY_DIRECTORY", str(tmp_path_factory.mktemp("dask")))
        try:
            machine = Machine(tmp_path_factory.mktemp("machine"))
        except PermissionError as error:
            pytest.skip(f"needs mount namespaces: {error}")
        stack.callback(machine.close)
        patch.setenv("GDRPY_SOCKET", machine.socket)  # this machine may run a broker for its users
        machine.serve()
        stack.callback(end, serve(machine.socket, []))
        yield machine


@pytest.fixture(scope="package")
def ray_cluster(there: Machine) -> Iterator[Drive]:
    """Runs a program in a Ray driver on this machine; what needs ``there`` is on the other."""
    # Ray's sockets in it have long names already: it cannot be below pytest's folder.
    with (
        TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder,
        driver(ray_programs.start, there.socket, folder) as drive,
    ):
        address = drive(ray_programs.address)
        program = [sys.executable, "-m", "ray.scripts.scripts", "start", "--address", address]
        options = ["--num-cpus=1", "--resources", '{"there": 100}', "--block"]
        memory = f"--object-store-memory={ray_programs.STORE_BYTES}"
        with running(there.command(*program, *options, memory)):
            drive(ray_programs.await_nodes, 2)
            yield drive
        drive(ray_programs.stop)


@pytest.fixture(scope="package")
def dask_cluster(there: Machine) -> Iterator[Drive]:
    """Runs a program in a Dask client on this machine, where the workers ``a`` and ``b`` are.

    The scheduler and the worker ``there`` are on the other machine.
    """
    scheduler = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--no-dashboard"]
    place = ["--host", "127.0.0.1", "--port", str(dask_programs.free_port())]
    address = f"tcp://127.0.0.1:{place[-1]}"
    with ExitStack() as stack:
        stack.enter_context(running(there.command(*scheduler, *place)))
        for name in ("a", "b"):
            stack.enter_context(running(dask_worker(address, name)))
        stack.enter_context(running(there.command(*dask_worker(address, "there"))))
        drive = stack.enter_context(driver(dask_programs.start, there.socket, address))
        yield drive
        drive(dask_programs.stop)


@pytest.fixture
def bare_worker(there: Machine, dask_cluster: Drive) -> Iterator[str]:
    """The name of one more Dask worker, on a machine without a broker."""
    machine = Machine(Path(there.socket).parent)
    command = dask_worker(dask_cluster(dask_programs.address), "bare")
    with closing(machine), running(machine.command(*command)):
        dask_cluster(dask_programs.await_workers, 4)
        yield "bare"


def dask_worker(address: str, name: str) -> list[str]:
    """The command of a worker."""
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--no-nanny"]
    return [*worker, "--no-dashboard", "--nthreads", "2", "--host", "127.0.0.1", "--name", name]


@contextmanager
def driver(start: Callable[..., None], *args: Any) -> Iterator[Drive]:
    """A process that has run ``start`` and runs functions."""
    with ProcessPoolExecutor(1, get_context("spawn"), start, args) as pool:
        yield lambda function, *args: pool.submit(function, *args).result(_LIMIT)


@contextmanager
def running(command: list[str]) -> Iterator[None]:
    """A program of a cluster; it and all that it started have ended after the block."""
    log = subprocess.DEVNULL if "GDRPY_TEST_VERBOSE" not in os.environ else None
    process = subprocess.Popen(command, stdout=log, stderr=log, cwd=Path(__file__).parent)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        with process:
            process.wait(30)
