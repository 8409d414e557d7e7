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
    checkout = Path(__file__).parents[2]
    made = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-c", BUILD_SDIST, made, cwd=checkout)
    (sdist,) = made.glob("*.tar.gz")
    pip = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation")
    run(*pip, "-w", made, sdist)
    (found,) = made.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the wheel is installed in."""
    folder = tmp_path_factory.mktemp("site")
    pip = (sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target")
    run(*pip, folder, wheel)
    return folder


class TestWheel:
    def test_serves_every_python_from_3_11_on(self, wheel):
        assert "-cp311-abi3-linux_" in wheel.name

    def test_holds_the_compiled_parts_and_no_source_of_them(self, wheel):
        names = zipfile.ZipFile(wheel).namelist()
        assert {
            "gdrpy/_core/_ffi.abi3.so",
            "gdrpy/_core/_mapping.abi3.so",
            "gdrpy/cli/pingpong.ptx",
            "gdrpy/include/gdrapi.h",
            "gdrpy/include/gdrpy/channel.cuh",
            "gdrpy/lib/libgdrapi.so",
            "gdrpy/lib/libgdrapi.so.2",
            "gdrpy/lib/pkgconfig/gdrapi.pc",
            "gdrpy/py.typed",
            "gdrpy/sim/libcuda.so.1",
        } <= set(names)
        assert {name for name in names if name.endswith((".c", ".h", ".in"))} == {
            "gdrpy/include/gdrapi.h",
            "gdrpy/include/gdrpy/channel.h",
        }
        assert {name.split("/")[0].split("-")[0] for name in names} == {"gdrpy"}

    def test_runs_the_simulated_gpu_where_it_is_installed(self, site, tmp_path):
        code = (
            "import gdrpy; region = gdrpy.alloc(4096); region.write(b'wheel');"
            "print(gdrpy.__file__, region.read(5))"
        )
        printed = run(
            sys.executable,
            "-c",
            code,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(site)},
        )
        assert printed == f"{site}/gdrpy/__init__.py b'wheel'\n"


#: The second is the name that programs are built with, the first what they need at run time.
NAMES = ("libgdrapi.so.2", "libgdrapi.so")
#: Opens the library by two names, and closes what one gave through the other.
BOTH = """
import ctypes, sys
first, second = map(ctypes.CDLL, sys.argv[1:])
first.gdr_open.restype = ctypes.c_void_p
session = first.gdr_open()
closed = [library.gdr_close(ctypes.c_void_p(session)) for library in (second, first)]
print(bool(session), closed)
"""
PROGRAM = """
#include <gdrapi.h>
int main(void)
{
	gdr_t gdr = gdr_open();

	return gdr ? gdr_close(gdr) : 1;
}
"""


class TestLibgdrapi:
    @pytest.fixture
    def environment(self, site: Path) -> dict[str, str]:
        """Of a program that finds the installed library, and the simulated driver."""
        return {
            "PATH": os.environ["PATH"],
            "LD_LIBRARY_PATH": str(site / "gdrpy/lib"),
            "LD_PRELOAD": str(site / "gdrpy/sim/libcuda.so.1"),
        }

    @pytest.mark.parametrize("names", [NAMES, NAMES[::-1]])
    def test_is_one_by_both_of_its_names(self, environment, names):
        printed = run(sys.executable, "-c", BOTH, *names, env=environment)
        assert printed == "True [0, 22]\n"

    def test_has_the_same_functions_by_both_of_its_names(self, site):
        functions, same = (
            {line.split()[-1] for line in run("nm", "-D", "--defined-only", path).splitlines()}
            for path in (site / "gdrpy/lib" / name for name in NAMES)
        )
        assert len(functions) == 17
        assert functions == same

    @pytest.mark.parametrize(
        ("flags", "needed"), [("-lgdrapi", NAMES[1]), ("$(pkg-config --libs gdrapi)", NAMES[0])]
    )
    def test_programs_link_it(self, need, site, environment, tmp_path, flags, needed):
        need("pkg-config")
        (tmp_path / "program.c").write_text(PROGRAM)
        command = f"gcc $(pkg-config --cflags gdrapi) -L{site}/gdrpy/lib program.c {flags}"
        search = {"PATH": os.environ["PATH"], "PKG_CONFIG_PATH": f"{site}/gdrpy/lib/pkgconfig"}
        run("sh", "-c", command, cwd=tmp_path, env=search)
        assert f"[{needed}]" in run("readelf", "-d", tmp_path / "a.out")
        run(tmp_path / "a.out", env=environment)
