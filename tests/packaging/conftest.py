"""What packaging needs of the machine: Debian packages, which root gets installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

Need = Callable[..., None]


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
