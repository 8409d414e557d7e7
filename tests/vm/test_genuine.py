"""NVIDIA's own nvidia.ko in guests: what the tests of genuine/inside say beside each of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from genuine import guests
from kernels import Genuine


@pytest.mark.timeout(2 * guests.TIMEOUT_S)
@pytest.mark.parametrize("driver", [*guests.DRIVERS, guests.WITH_CHECKERS], ids=str)
def test_gdrdrv_beside(bed: Path, driver: Genuine) -> None:
    """On the kernel with checkers, what any of them reports fails the run."""
    if not driver.built:
        assert os.environ.get("CI") != "true" or driver == guests.WITH_CHECKERS
        pytest.skip(f"tests/vm/setup genuine-{driver} builds it, in 5 minutes on two cores")
    ended = guests.run(driver)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert " passed" in ended.stdout.splitlines()[-1]
