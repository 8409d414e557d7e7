"""The source distribution builds, and the wheel made from it works by itself."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

BUILD_SDIST = "from setuptools.build_meta import build_sdist; import sys; build_sdist(sys.argv[1])"


def run(*command: object, **options: object) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from the source distribution, not from the checkout."""
    checkout = Path(__file__).parent.parent
    made = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-c", BUILD_SDIST, made, cwd=checkout)
    (sdist,) = made.glob("*.tar.gz")
    pip = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation")
    run(*pip, "-w", made, sdist)
    (found,) = made.glob("*.whl")
    return found


class TestWheel:
    def test_serves_every_python_from_3_11_on(self, wheel):
        assert "-cp311-abi3-linux_" in wheel.name

    def test_holds_the_compiled_parts_and_no_source_of_them(self, wheel):
        names = zipfile.ZipFile(wheel).namelist()
        assert {
            "gdrpy/_core/_ffi.abi3.so",
            "gdrpy/_core/_mapping.abi3.so",
            "gdrpy/cli/pingpong.ptx",
            "gdrpy/include/gdrpy/channel.cuh",
            "gdrpy/py.typed",
            "gdrpy/sim/libcuda.so.1",
        } <= set(names)
        assert [name for name in names if name.endswith((".c", ".h"))] == [
            "gdrpy/include/gdrpy/channel.h"
        ]
        assert {name.split("/")[0].split("-")[0] for name in names} == {"gdrpy"}

    def test_runs_the_simulated_gpu_where_it_is_installed(self, wheel, tmp_path):
        pip = (sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target")
        run(*pip, tmp_path / "site", wheel)
        code = (
            "import gdrpy; region = gdrpy.alloc(4096); region.write(b'wheel');"
            "print(gdrpy.__file__, region.read(5))"
        )
        printed = run(
            sys.executable,
            "-c",
            code,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        )
        assert printed == f"{tmp_path}/site/gdrpy/__init__.py b'wheel'\n"
