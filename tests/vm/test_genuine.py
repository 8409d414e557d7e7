"""NVIDIA's own nvidia.ko in guests: what the tests of genuine/inside say beside each of them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from genuine import guests
from kernels import Genuine

IN_CI = os.environ.get("CI") == "true"
#: insmod.sh builds in this guest, which takes three minutes; tests/vm/record has it build in all.
BUILT_IN_THE_GUEST = ("535-open-debian",) if IN_CI else ()
#: CI builds all, but for the kernel with checkers, which takes longer than all that is here.
WANTED = guests.DRIVERS if IN_CI else ()
HERE = [driver for driver in guests.ALL if driver in WANTED or driver.built]


@pytest.mark.skipif(
    not HERE,
    reason="tests/vm/setup genuine-{535-{open,proprietary}-debian,550-{open,proprietary}-backports}"
    " builds NVIDIA's own drivers, in 8 minutes on two cores",
)
def test_there_is_a_driver() -> None:
    """Without one, nothing below was tested."""
    assert all(driver.built for driver in HERE)


@pytest.mark.parametrize(
    "drivers", guests.by_kernel(HERE), ids=lambda drivers: "+".join(map(str, drivers))
)
def test_gdrdrv_beside(bed: Path, drivers: list[Genuine]) -> None:
    """In one guest. On the kernel with checkers, what any of them reports fails the run."""
    ended = guests.run(drivers, build=BUILT_IN_THE_GUEST)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert len(re.findall(r"^=+ \d+ passed", ended.stdout, re.MULTILINE)) == len(drivers)
