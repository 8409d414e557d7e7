"""Runs in the guest, as root, on a layer in memory over the host's files."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

VM = Path(__file__).parents[2]
sys.path[:0] = [str(VM), str(VM / "inside")]
sys.path.append(str(VM.parent / "rm"))

from kernels import Genuine  # noqa: E402

from machine import RELEASE, Machine, copy_checkout, install, install_kernel  # noqa: E402


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """With both flavours installed, where the other one was built too; neither is loaded."""
    driver = Genuine.of(os.environ["GENUINE"])
    install_kernel(driver)
    for flavour in (driver, driver.other_flavour):
        if flavour.built:
            install(flavour)
    subprocess.run(["depmod", RELEASE], check=True)
    folder = tmp_path_factory.mktemp("checkout")
    copy_checkout(folder)
    built = os.environ.get("GENUINE_GDRDRV")
    machine = Machine(driver, folder, Path(built) if built else None)
    yield machine
    machine.unload()


@pytest.fixture
def driver(machine: Machine) -> Machine:
    """With NVIDIA's module loaded alone."""
    machine.unload_gdrdrv()
    machine.load_driver()
    return machine


@pytest.fixture
def loaded(machine: Machine) -> Machine:
    """With gdrdrv loaded beside it."""
    machine.load_driver()
    machine.load_gdrdrv()
    return machine
