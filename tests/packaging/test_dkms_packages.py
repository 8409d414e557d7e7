"""The packages: what is in them, and what DKMS makes of them when drivers come and go."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from machine_copy import Machine, Machines, built_for

Need = Callable[..., None]

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
VERSION = f"2.6+gdrpy{PROJECT['version']}"
SOURCE = f"usr/src/gdrdrv-{VERSION}"
BESIDE_THE_SOURCE = {
    "usr/lib/modules-load.d/gdrdrv.conf",
    "usr/share/doc/gdrdrv-dkms/examples/modprobe.conf",
    "usr/share/doc/gdrdrv-dkms/examples/udev.rules",
}


def output(*command: str | Path) -> str:
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def rpm(driver: Path, need: Need, tmp_path_factory: pytest.TempPathFactory) -> Path:
    need("rpm")
    folder = tmp_path_factory.mktemp("rpm")
    output(driver / "packaging/build", "rpm", folder)
    (package,) = folder.iterdir()
    return package


@pytest.fixture(scope="module")
def sources(driver: Path) -> set[str]:
    """What DKMS has to be given, as git knows it."""
    listed = output("git", "-C", driver, "ls-files", "*.c", "*.h", "*.sh", "Kbuild", "Makefile")
    kept = {line for line in listed.split() if not line.startswith("packaging/")}
    return {f"{SOURCE}/{name}" for name in kept | {"dkms.conf", "rebuild.sh"}}


class TestDebianPackage:
    def test_is_named_by_abi_and_project(self, deb: Path) -> None:
        assert deb.name == f"gdrdrv-dkms_{VERSION}_all.deb"

    def test_follows_nvidias_of_the_same_abi(self) -> None:
        output("dpkg", "--compare-versions", VERSION, "gt", "2.6-1")
        output("dpkg", "--compare-versions", VERSION, "lt", "2.7-1")

    def test_has_the_sources_and_how_to_load(
        self, deb: Path, sources: set[str], tmp_path: Path
    ) -> None:
        output("dpkg-deb", "-x", deb, tmp_path)
        found = files_below(tmp_path)
        papers = {f"usr/share/doc/gdrdrv-dkms/{name}" for name in ("copyright", "changelog.gz")}
        assert found == sources | BESIDE_THE_SOURCE | papers
        assert (tmp_path / "usr/lib/modules-load.d/gdrdrv.conf").read_text() == "gdrdrv\n"

    def test_satisfies_lintian(self, deb: Path, need: Need) -> None:
        need("lintian")
        checks = ["--allow-root", "--fail-on", "error,warning,info"]
        assert output("lintian", *checks, deb) == ""


class TestRpmPackage:
    def test_has_the_same_files(self, rpm: Path, sources: set[str]) -> None:
        listed = output("rpm", "-qp", "--qf", "[%{FILEMODES:perms} %{FILENAMES}\n]", rpm)
        found = {line.split()[1][1:] for line in listed.splitlines() if line.startswith("-")}
        licence = f"usr/share/licenses/gdrdrv-dkms-{VERSION}/LICENSE"
        assert found == sources | BESIDE_THE_SOURCE | {licence}

    def test_looks_after_each_driver_that_is_installed(self, rpm: Path) -> None:
        listed = output("rpm", "-qp", "--filetriggers", rpm)
        first, script = listed.splitlines()[:2]
        assert first.startswith("transfiletriggerin ")
        assert set(first.partition(" -- ")[2].split(", ")) == {
            "/usr/src",
            "/lib/modules",
            "/usr/lib/modules",
        }
        assert script == f"/{SOURCE}/rebuild.sh || :"


class TestBuildCommand:
    def test_makes_the_folder_that_dkms_adds(
        self, driver: Path, sources: set[str], tmp_path: Path
    ) -> None:
        output(driver / "packaging/build", "dkms", tmp_path)
        assert {f"usr/src/{name}" for name in files_below(tmp_path)} == sources

    def test_tells_what_it_makes(self, driver: Path) -> None:
        assert output(driver / "packaging/build", "--help").startswith("usage: ")

    def test_refuses_what_it_does_not_know(self, driver: Path) -> None:
        command = [driver / "packaging/build", "zip"]
        assert subprocess.run(command, capture_output=True, check=False).returncode == 2

    def test_names_what_is_missing(self, driver: Path, tmp_path: Path) -> None:
        for name in ("bash", "dirname", "sed", "realpath", "mktemp", "rm"):
            (tmp_path / name).symlink_to(output("which", name).strip())
        ended = subprocess.run(
            [driver / "packaging/build", "rpm", tmp_path],
            env={"PATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        expected = "driver/packaging/build: no rpmbuild: dnf install rpm-build\n"
        assert (ended.returncode, ended.stderr) == (1, expected)


class TestExamples:
    def test_options_are_parameters_of_the_module(self, driver: Path, need: Need) -> None:
        need("kmod")
        example = driver / "packaging/examples/modprobe.conf"
        read = output("/sbin/modprobe", "-C", example, "-c")
        (options,) = re.findall(r"^options gdrdrv (.*)$", read, re.MULTILINE)
        source = "".join(path.read_text() for path in driver.glob("*.c"))
        for option in options.split():
            assert f"module_param({option.partition('=')[0]}, " in source

    def test_rule_is_about_the_node(self, driver: Path) -> None:
        lines = (driver / "packaging/examples/udev.rules").read_text().splitlines()
        (rule,) = (line for line in lines if not line.startswith("#"))
        pairs = re.findall(r'(\w+)(==|=)"([^"]+)"(?:, |$)', rule)
        assert ", ".join(f'{key}{sign}"{value}"' for key, sign, value in pairs) == rule
        assert ("KERNEL", "==", "gdrdrv") in pairs


def nvidia_package(folder: Path, version: str, licence: str) -> Path:
    """A package with the sources of a driver, as NVIDIA's and the distributions' do it.

    What they build to has the name, the version and the licence, and nothing else.
    """
    source = folder / f"nvidia/usr/src/nvidia-{version}"
    source.mkdir(parents=True)
    (source / "nvidia.c").write_text(
        'const char about[] __attribute__((section(".modinfo"))) =\n'
        f'\t"name=nvidia\\0version={version}\\0license={licence}";\n'
    )
    (source / "dkms.conf").write_text(
        f'PACKAGE_NAME="nvidia"\nPACKAGE_VERSION="{version}"\nAUTOINSTALL="yes"\n'
        'BUILT_MODULE_NAME[0]="nvidia"\nDEST_MODULE_LOCATION[0]="/updates/dkms"\n'
        'MAKE[0]="gcc -c -o nvidia.ko nvidia.c"\nCLEAN="rm -f nvidia.ko"\n'
    )
    control = folder / "nvidia/DEBIAN"
    control.mkdir()
    (control / "control").write_text(
        f"Package: nvidia-dkms\nVersion: {version}\nArchitecture: all\n"
        "Maintainer: Nobody <nobody@example.invalid>\nDescription: sources of a driver\n"
    )
    for script, action in (
        ("postinst", f"/usr/lib/dkms/common.postinst nvidia {version}"),
        ("prerm", f"dkms remove nvidia/{version} --all"),
    ):
        (control / script).write_text(f"#!/bin/sh\nset -e\n{action}\n")
        (control / script).chmod(0o755)
    output("dpkg-deb", "-b", folder / "nvidia", folder)
    return folder / f"nvidia-dkms_{version}_all.deb"


@pytest.fixture(scope="module")
def kernel(need: Need) -> str:
    """An installed kernel's headers: its release."""
    architecture = output("dpkg", "--print-architecture").strip()
    need("dkms", f"linux-headers-{architecture}")
    return max(path.parent.name for path in Path("/lib/modules").glob("*/build"))


@pytest.fixture(scope="module")
def installed(machines: Machines, kernel: str, deb: Path) -> Machine:
    """A copy of this machine that the package is installed on, to make copies of."""
    machine = machines.copy()
    machine.run("dpkg", "-i", machine.put(deb))
    return machine


@pytest.fixture(scope="module")
def with_driver(
    machines: Machines, installed: Machine, tmp_path_factory: pytest.TempPathFactory
) -> Machine:
    """One more, with an NVIDIA driver that came after it."""
    machine = machines.copy(of=installed)
    package = nvidia_package(tmp_path_factory.mktemp("nvidia"), "550.54.14", "NVIDIA")
    machine.run("dpkg", "-i", machine.put(package))
    return machine


class TestInstalled:
    def test_is_built_for_the_kernel(self, installed: Machine, kernel: str, driver: Path) -> None:
        status = installed.run("dkms", "status", "gdrdrv")
        assert re.fullmatch(rf"gdrdrv/{re.escape(VERSION)}, {kernel}, \w+: installed\n", status)
        module = f"/lib/modules/{kernel}/updates/dkms/gdrdrv.ko"
        symbols = f"/lib/modules/{kernel}/build/Module.symvers"
        assert installed.run(driver / "check-symbols.sh", module, symbols) == ""
        assert built_for(installed, kernel) == ""

    def test_is_built_anew_for_a_driver_that_comes(self, with_driver: Machine, kernel: str) -> None:
        assert built_for(with_driver, kernel) == "550.54.14-proprietary"

    def test_is_built_after_the_driver_for_a_new_kernel(
        self, machines: Machines, with_driver: Machine, kernel: str
    ) -> None:
        machine = machines.copy(of=with_driver)
        machine.run("dkms", "remove", f"gdrdrv/{VERSION}", "--all")
        machine.run("dkms", "add", f"gdrdrv/{VERSION}")
        machine.run("dkms", "uninstall", "nvidia/550.54.14", "-k", kernel)
        machine.run("dkms", "autoinstall", "-k", kernel)
        assert built_for(machine, kernel) == "550.54.14-proprietary"

    def test_leaves_nothing_behind(
        self, machines: Machines, with_driver: Machine, kernel: str
    ) -> None:
        machine = machines.copy(of=with_driver)
        machine.run("dpkg", "-r", "gdrdrv-dkms")
        assert machine.run("dkms", "status", "gdrdrv") == ""
        left = machine.run("find", "/usr/src", "/lib/modules", "/var/lib/dkms", "-name", "gdrdrv*")
        assert left == ""
