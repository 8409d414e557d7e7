"""The source distribution builds, and the wheels made from it work by themselves."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]


def run(*command: object, **options: object) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def names_in(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def functions_of(library: Path) -> set[str]:
    """What a shared object has for others."""
    return {line.split()[-1] for line in run("nm", "-D", "--defined-only", library).splitlines()}


class TestSourceDistribution:
    def test_holds_what_is_committed_and_what_setuptools_adds(self, dist):
        with tarfile.open(dist.sdist) as archive:
            files = {m.name.partition("/")[2] for m in archive.getmembers() if m.isfile()}
        tracked = set(run("git", "-C", CHECKOUT, "ls-files").splitlines())
        strangers = {name for name in files - tracked if ".egg-info/" not in name}
        pages = {name for name in strangers if name.startswith("man/")}
        assert len(pages) > 20
        assert strangers - pages == {"PKG-INFO", "setup.cfg"}

    def test_builds_alone_what_the_release_has(self, dist, tmp_path):
        """By this machine's compiler, and by tools that pip gets for the purpose."""
        pip = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path)
        run(*pip, dist.sdist)
        (built,) = tmp_path.glob("gdrpy-*-cp311-abi3-linux_*.whl")
        assert names_in(built) == names_in(dist.x86_64)

    def test_refuses_a_free_threaded_python_before_3_14(self, checkout):
        code = (
            "import runpy, setuptools, sys, sysconfig; sys.version_info = (3, 13, 0, 'final', 0); "
            "sysconfig.get_config_var = {'Py_GIL_DISABLED': 1}.get; runpy.run_path('setup.py')"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=checkout, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (
            1,
            "gdrpy needs 3.14t or newer of the free-threaded Pythons, and this is 3.13t, for which "
            "there is no cffi: take python3.14t, or a Python with the GIL from 3.11 on\n",
        )

    @pytest.mark.parametrize("command", ["bdist_wheel", "build_clib"])
    def test_says_in_one_line_that_there_is_no_compiler(self, checkout, command):
        done = subprocess.run(
            [sys.executable, "setup.py", "-q", command],
            cwd=checkout,
            env={**os.environ, "CC": "no-such-cc -pthread"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (
            1,
            "",
            "gdrpy's C parts need a C compiler, and there is no no-such-cc: apt install gcc "
            "libc6-dev (dnf install gcc), or name another one by CC\n",
        )

    def test_is_the_same_whenever_it_is_made(self, dist, checkout, tmp_path):
        program = f"import dist; dist.build_all(dist.Path({str(tmp_path)!r}), ('x86_64',))"
        folder = str(checkout / "packaging")
        run(sys.executable, "-c", program, env={**os.environ, "PYTHONPATH": folder})
        made = (tmp_path / "SHA256SUMS").read_text().splitlines()
        assert len(made) == 2
        assert set(made) < set(dist.checksums.read_text().splitlines())

    def test_is_taken_by_the_index(self, dist):
        run(sys.executable, "-m", "twine", "check", "--strict", *dist[:3])


class TestMakeDist:
    def test_needs_none_of_what_the_tests_need(self):
        """Which is gigabytes: torch, jax, ray."""
        planned = run("make", "-C", CHECKOUT, "--no-print-directory", "-n", "-B", "dist")
        assert re.findall(r'-e "?(.*?)"?$', planned, re.M) == [".", ".[package]"]
        assert planned.rstrip().endswith("packaging/dist.py")
        assert "torch" not in planned


class TestChecksums:
    def test_are_of_all_files(self, dist):
        listed = run("sha256sum", "--check", dist.checksums, cwd=dist.checksums.parent)
        assert listed.splitlines() == sorted(f"{path.name}: OK" for path in dist[:3])


class TestWheel:
    def test_serves_every_python_from_3_11_on_every_linux_since_glibc_2_28(self, dist):
        version = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["version"]
        for machine in ("x86_64", "aarch64"):
            name = f"gdrpy-{version}-cp311-abi3-manylinux_2_28_{machine}.whl"
            assert getattr(dist, machine).name == name

    @pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
    def test_needs_no_later_glibc_than_its_tag_says(self, dist, machine):
        shown = run(sys.executable, "-m", "auditwheel", "show", getattr(dist, machine))
        told = re.search(r'platform\s+tag:\s+"manylinux_2_(\d+)_(\w+)"', shown)
        assert told, shown
        assert int(told[1]) <= 28
        assert told[2] == machine

    @pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
    def test_exports_what_programs_look_for_and_nothing_else(self, dist, machine, tmp_path):
        zipfile.ZipFile(getattr(dist, machine)).extractall(tmp_path)
        exported = {
            path.name.partition(".")[0]: functions_of(path)
            for path in tmp_path.rglob("*.so*")
            if path.name != "libgdrapi.so"
        }
        assert all(name.startswith(("cu", "gdrsim_")) for name in exported.pop("libcuda"))
        assert all(name.startswith("gdrpy_arena_") for name in exported.pop("libgdrpy_arena"))
        of_broker = ("gdrpy_broker_", "gdrpy_region_", "gdrpy_watch_")
        assert all(name.startswith(of_broker) for name in exported.pop("libgdrpy-broker"))
        assert functions_of(tmp_path / "gdrpy/lib/libgdrapi.so") == exported["libgdrapi"]
        assert len(exported.pop("libgdrapi")) == 17
        assert exported == {name: {f"PyInit_{name}"} for name in ("_ffi", "_mapping", "_packet")}

    @pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
    def test_holds_the_compiled_parts_and_no_source_of_them(self, dist, machine):
        names = zipfile.ZipFile(getattr(dist, machine)).namelist()
        assert {
            "gdrpy/_core/_ffi.abi3.so",
            "gdrpy/_core/_mapping.abi3.so",
            "gdrpy/cli/measure/pingpong.ptx",
            "gdrpy/cli/measure/records.ptx",
            "gdrpy/include/gdrapi.h",
            "gdrpy/include/gdrpy/channel.cuh",
            "gdrpy/lib/libgdrapi.so",
            "gdrpy/lib/libgdrapi.so.2",
            "gdrpy/lib/libgdrpy-broker.so.1",
            "gdrpy/lib/pkgconfig/gdrapi.pc",
            "gdrpy/lib/pkgconfig/gdrpy-broker.pc",
            "gdrpy/py.typed",
            "gdrpy/sim/libcuda.so.1",
        } <= set(names)
        assert {name for name in names if name.endswith((".c", ".cu", ".h", ".in"))} == {
            "gdrpy/include/gdrapi.h",
            "gdrpy/include/gdrpy/broker.h",
            "gdrpy/include/gdrpy/channel.h",
            "gdrpy/include/gdrpy/inbox.h",
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
