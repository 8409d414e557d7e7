"""What runs where: the tests here on the host, and boot guests; ``inside`` in such a guest."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
IN_GUEST = Path("/dev/gpustandin").exists()
NOT_SET_UP = 77


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Booting takes its time, so these run only when they are asked for by their path."""
    named = [Path(argument.partition("::")[0]).resolve() for argument in config.args]
    if not any(path.is_relative_to(HERE) for path in named):
        return True
    inside = "inside" in collection_path.relative_to(HERE).parts
    if inside != IN_GUEST and collection_path != HERE:
        return True
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A guest that hangs is ended by tests/vm/run, which says so; modules are built before it."""
    if not IN_GUEST:
        for item in items:
            if item.path.is_relative_to(HERE):
                item.add_marker(pytest.mark.timeout(3600))


@pytest.fixture(scope="session")
def bed() -> Path:
    """``tests/vm/run``, set up; skips where QEMU is missing and nobody may install it."""
    setup = subprocess.run([HERE / "setup"], capture_output=True, text=True)
    if setup.returncode == NOT_SET_UP:
        pytest.skip(setup.stderr.strip())
    assert setup.returncode == 0, setup.stderr
    # Programs that tests in the guest run: built there it would take much longer.
    subprocess.run(["make", "-s", "-C", HERE / "abi"], check=True)
    return HERE / "run"
