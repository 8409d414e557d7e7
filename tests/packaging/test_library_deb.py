"""The Debian source package of libgdrapi: what it builds, and programs where that is installed."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from machine_copy import Machine, Machines

from gdrpy import sim

CHECKOUT = Path(__file__).parents[2]
VERSION = (
    "2.6+gdrpy" + tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["version"]
)
PROGRAM = Path(__file__).with_name("gdrapi_names.c")
PRINTED = "2.6 48 Write Combining\n3 1 3 4\n65536 ffffffffffffffff 0x20006 16\n2 4\n"


def output(*command: str | Path) -> str:
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def files_in(package: Path) -> dict[str, str]:
    """The files and links below usr/, without documents, and where the links lead."""
    found = {}
    for line in output("dpkg-deb", "-c", package).splitlines():
        name, _, target = line.split(maxsplit=5)[5].partition(" -> ")
        if not name.endswith("/") and "/doc/" not in name:
            found[re.sub(r"lib/[^/]+-linux-gnu/", "lib/*/", name.removeprefix("./"))] = target
    return found


@pytest.fixture(scope="module")
def built(dist, need: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what is built of the source distribution."""
    need("dpkg-dev", "debhelper")
    folder = tmp_path_factory.mktemp("deb")
    output(CHECKOUT / "packaging/deb", dist.sdist, folder)
    return folder


@pytest.fixture(scope="module")
def library(built: Path) -> Path:
    return next(built.glob("libgdrapi2_*.deb"))


@pytest.fixture(scope="module")
def development(built: Path) -> Path:
    return next(built.glob("libgdrapi-dev_*.deb"))


@pytest.fixture(scope="module")
def machine(
    machines: Machines, library: Path, development: Path, need: Callable[..., None]
) -> Machine:
    """A copy of this machine with the packages."""
    need("pkg-config")
    machine = machines.copy()
    machine.run("dpkg", "-i", machine.put(library), machine.put(development))
    return machine


class TestSourcePackage:
    def test_is_of_the_source_distribution_unchanged(self, dist, built: Path) -> None:
        orig = built / f"libgdrapi_{VERSION}.orig.tar.gz"
        assert orig.read_bytes() == dist.sdist.read_bytes()
        assert (built / f"libgdrapi_{VERSION}-1.dsc").exists()

    def test_builds_again_from_its_description(self, built: Path, tmp_path: Path) -> None:
        unpacked = tmp_path / "unpacked"
        output("dpkg-source", "-x", built / f"libgdrapi_{VERSION}-1.dsc", unpacked)
        quickly = "DEB_BUILD_OPTIONS=noopt"
        output("env", "-C", unpacked, quickly, "dpkg-buildpackage", "-us", "-uc", "-b")
        made = {path.name for path in tmp_path.glob("*.deb")}
        assert made == {path.name for path in built.glob("*.deb")}

    def test_satisfies_lintian(self, built: Path, need: Callable[..., None]) -> None:
        need("lintian")
        checks = ["--allow-root", "--fail-on", "error,warning,info"]
        checks += ["--suppress-tags", "initial-upload-closes-no-bugs"]
        assert output("lintian", *checks, *built.glob("*.changes")) == ""


class TestPackages:
    def test_have_the_library_and_what_programs_are_built_with(
        self, library: Path, development: Path
    ) -> None:
        assert files_in(library) == {
            "usr/lib/*/libgdrapi.so.2": "libgdrapi.so.2.6",
            "usr/lib/*/libgdrapi.so.2.6": "",
        }
        assert files_in(development) == {
            "usr/include/gdrapi.h": "",
            "usr/lib/*/libgdrapi.so": "libgdrapi.so.2",
            "usr/lib/*/pkgconfig/gdrapi.pc": "",
        }

    def test_need_neither_a_module_nor_cuda(self, library: Path, development: Path) -> None:
        assert re.fullmatch(r"libc6 \(>= [\d.]+\)\n", output("dpkg-deb", "-f", library, "Depends"))
        needed = output("dpkg-deb", "-f", development, "Depends")
        assert needed == f"libgdrapi2 (= {VERSION}-1)\n"

    def test_stand_in_for_nvidias(self, library: Path) -> None:
        fields = output("dpkg-deb", "-f", library, "Provides", "Conflicts", "Replaces")
        assert fields.splitlines() == [
            f"Provides: libgdrapi (= {VERSION}-1)",
            "Conflicts: libgdrapi",
            "Replaces: libgdrapi",
        ]


class TestInstalled:
    def test_program_builds_by_pkg_config_and_runs(self, machine: Machine) -> None:
        source, driver = machine.put(PROGRAM), machine.put(Path(sim.driver_path()))
        command = f"gcc -Werror -o /root/names {source} $(pkg-config --cflags --libs gdrapi)"
        machine.run("sh", "-c", command)
        assert "[libgdrapi.so.2]" in machine.run("readelf", "-d", "/root/names")
        assert machine.run("env", f"LD_PRELOAD={driver}", "/root/names") == PRINTED

    def test_program_builds_by_the_name_alone(self, machine: Machine) -> None:
        source = machine.put(PROGRAM)
        machine.run("gcc", "-o", "/root/by_name", source, "-lgdrapi")
        assert "/libgdrapi.so.2" in machine.run("ldd", "/root/by_name")

    def test_autopkgtest_passes(self, machine: Machine) -> None:
        test = machine.put(CHECKOUT / "packaging/debian/tests/link")
        machine.run("env", "AUTOPKGTEST_TMP=/tmp", test)


class TestCommand:
    def test_tells_what_it_makes(self) -> None:
        assert output(CHECKOUT / "packaging/deb", "--help").startswith("usage: packaging/deb SDIST")

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("gdrpy.zip", "is not called gdrpy-VERSION.tar.gz: run make dist"),
            ("gdrpy-9.9.tar.gz", "there is no {}: run make dist"),
        ],
    )
    def test_refuses_what_is_no_source_distribution(
        self, tmp_path: Path, name: str, words: str
    ) -> None:
        command = [CHECKOUT / "packaging/deb", tmp_path / name]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ended.returncode == 1
        assert words.format(tmp_path / name) in ended.stderr
