"""What packaging needs of the machine, Debian packages, which root gets installed; and what a
release is made of, built once.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from machine_containers import Containers
from machine_copy import Machines

Need = Callable[..., None]

#: DKMS builds NVIDIA's drivers there, for minutes: only where that is asked for.
collect_ignore = (
    [] if os.environ.get("GDRPY_DKMS_BESIDE_NVIDIA") else ["test_dkms_beside_nvidia.py"]
)


class Dist(NamedTuple):
    """What ``make dist`` makes."""

    sdist: Path
    x86_64: Path
    aarch64: Path
    checksums: Path


def found_in(folder: Path) -> Dist:
    patterns = ("*.tar.gz", "*x86_64.whl", "*aarch64.whl", "SHA256SUMS")
    return Dist(*(next(folder.glob(pattern)) for pattern in patterns))


def has(package: str) -> bool:
    status = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Status}", package],
        capture_output=True,
        text=True,
        check=False,
    )
    return status.stdout == "install ok installed"


@pytest.fixture(scope="session")
def need(pytestconfig: pytest.Config) -> Need:
    """Installs what is missing of these Debian packages; skips where nobody may."""

    def need(*packages: str) -> None:
        missing = [package for package in packages if not has(package)]
        if not missing:
            return
        if os.geteuid() or not shutil.which("apt-get"):
            pytest.skip(
                f"needs the Debian packages {' '.join(missing)}: only root can install them"
            )
        capture = pytestconfig.pluginmanager.get_plugin("capturemanager")
        with capture.global_and_fixture_disabled():
            print(f"\ninstalling {' '.join(missing)} (Debian packages)")
        # One at a time: the QEMU tests install packages too, beside these.
        lock = Path(tempfile.gettempdir()) / "gdrpy-apt.lock"
        apt = ["flock", lock, "apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300"]
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run([*apt, "update"], check=True)
        subprocess.run(
            [*apt, "install", "-y", "--no-install-recommends", *missing],
            env=environment,
            stdout=subprocess.DEVNULL,
            check=True,
        )

    return need


@pytest.fixture(scope="session")
def driver() -> Path:
    """The module's folder."""
    return Path(__file__).parents[2] / "driver"


@pytest.fixture(scope="session")
def dist(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Dist:
    """The source distribution and the wheels, built of the checkout, or those of $GDRPY_DIST."""
    if built := os.environ.get("GDRPY_DIST"):
        return found_in(Path(built))
    missing = [name for name in ("build", "ziglang") if not importlib.util.find_spec(name)]
    if missing:
        pytest.skip(f"needs {' and '.join(missing)}: pip install gdrpy[package]")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, checkout / "packaging/dist.py", "--into", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return found_in(folder)


@pytest.fixture(scope="session")
def site(dist: Dist, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that this machine's wheel is installed in."""
    folder = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder]
    subprocess.run([*pip, dist.x86_64], check=True)
    return folder


@pytest.fixture(scope="session")
def deb(driver: Path, need: Need, tmp_path_factory: pytest.TempPathFactory) -> Path:
    need("dpkg-dev", "debhelper", "dh-dkms")
    folder = tmp_path_factory.mktemp("deb")
    subprocess.run([driver / "packaging/build", "deb", folder], check=True, capture_output=True)
    (package,) = folder.iterdir()
    return package


@pytest.fixture(scope="session")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    if os.geteuid():
        pytest.skip("needs root, to mount a copy of this machine")
    machines = Machines(tmp_path_factory.mktemp("machines"))
    yield machines
    machines.close()


@contextmanager
def sharing_a_folder(machines: Machines, need: Need, parent: Path) -> Iterator[Containers]:
    """Containers that share a folder of the image's user."""
    need("util-linux", "uidmap")
    folder = parent / "socket"
    folder.mkdir()
    os.chown(folder, 10001, 10001)
    containers = Containers(machines, folder)
    yield containers
    containers.close()


@pytest.fixture
def containers(machines: Machines, need: Need, tmp_path: Path) -> Iterator[Containers]:
    """Containers that share a folder."""
    with sharing_a_folder(machines, need, tmp_path) as containers:
        yield containers


@pytest.fixture(scope="class")
def containers_of_class(
    machines: Machines, need: Need, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Containers]:
    """Containers that share a folder, for all tests of a class."""
    with sharing_a_folder(machines, need, tmp_path_factory.mktemp("class")) as containers:
        yield containers
