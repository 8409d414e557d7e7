"""Every test in the guest leaves the stand-in with nothing allocated and nothing pinned."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import standin

PARAMETERS = Path("/sys/module/gpustandin/parameters")

#: Only the debug kernel can make calls fail.
collect_ignore = [] if Path("/proc/self/fail-nth").exists() else ["test_fail_nth.py"]


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    assert standin.live() == (0, 0, 0, 0)
    yield
    assert standin.live() == (0, 0, 0, 0)


@pytest.fixture
def view() -> Iterator[standin.View]:
    with standin.View(pages=4) as view:
        yield view


@pytest.fixture
def probe() -> Iterator[standin.Probe]:
    with standin.Probe() as probe:
        yield probe


@pytest.fixture
def set_parameter() -> Iterator[Callable[[str, str], None]]:
    """Sets a parameter of the stand-in until the test ends."""
    before: dict[str, str] = {}

    def set_it(name: str, value: str) -> None:
        before.setdefault(name, (PARAMETERS / name).read_text())
        (PARAMETERS / name).write_text(value)

    yield set_it
    for name, value in before.items():
        (PARAMETERS / name).write_text(value)


@pytest.fixture
def bar_folder() -> Path:
    """The PCI device's folder in sysfs."""
    (folder,) = Path("/sys/bus/pci/drivers/gpustandin").glob("0000:*")
    return folder


@pytest.fixture
def bar_start(bar_folder: Path) -> int:
    """The physical address of the GPU memory."""
    return int((bar_folder / "resource").read_text().splitlines()[2].split()[0], 16)


@pytest.fixture(scope="session")
def module() -> Path:
    """The file that the bed loaded the module from."""
    return Path(os.environ["GDRPY_VM_MODULE"])


def reload(module: Path, *parameters: str) -> None:
    subprocess.run(["rmmod", "gdrdrv"], check=True)
    subprocess.run(["insmod", module, *parameters], check=True)


@pytest.fixture
def default_revocable(module: Path) -> Iterator[None]:
    """The module is loaded without persistence."""
    reload(module, "use_persistent_mapping=0")
    yield
    reload(module)
