"""The wheel for aarch64, by a Python for aarch64 in emulation."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

#: The tags of wheels that such a machine takes; pip does not add the older ones by itself.
PLATFORMS = ("2_28", "2_27", "2_26", "2_24", "2_17")
PROGRAM = """
import os, platform, gdrpy
region = gdrpy.alloc(4096)
region.write(b"written", offset=100)
fd = region.export()
with gdrpy.Region.from_fd(fd, 4096) as other:
    print(platform.machine(), other.read(7, offset=100), other.ptr != region.ptr)
    other.numpy()[0] = 7
os.close(fd)
print(region.read(1))
"""

Run = Callable[..., str]


def fetch(into: Path, script: Path) -> None:
    """Have Debian's Python for arm64 unpacked, unless it is there."""
    done = subprocess.run([script, into], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def python(need: Callable[..., None]) -> Path:
    """A Python for aarch64 which this machine runs, and whose children it runs too."""
    need("qemu-user")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gdrpy-arm64"
    fetch(cache, Path(__file__).with_name("fetch_arm64_python"))
    return cache / "root/usr/bin/python-emulated"


@pytest.fixture(scope="module")
def run(python: Path, dist, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs that Python with the wheel, and with what its users' pip gets along with it."""
    folder = tmp_path_factory.mktemp("aarch64")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--target", folder]
    pip += [f"--platform=manylinux_{glibc}_aarch64" for glibc in PLATFORMS]
    pip += ["--platform=manylinux2014_aarch64", "--only-binary=:all:", "--python-version=3.11"]
    subprocess.run([*pip, dist.aarch64], check=True)

    def run(*words: str) -> str:
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder), "GDRPY_SIM": "1"}
        done = subprocess.run(
            [python, "-B", *words],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


class TestWheel:
    def test_allocates_and_shares_simulated_gpu_memory(self, run: Run) -> None:
        assert run("-c", PROGRAM) == "aarch64 b'written' True\nb'\\x07'\n"

    def test_validates_the_simulated_gpu(self, run: Run) -> None:
        assert run("-m", "gdrpy", "validate").splitlines()[-1].endswith("passed, 0 failed")
