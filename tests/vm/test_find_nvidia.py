"""driver/find-nvidia.sh, on a folder laid out as a machine with NVIDIA's driver; and its caller."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

DRIVER = Path(__file__).parent.parent.parent / "driver"
SCRIPT = DRIVER / "find-nvidia.sh"
RELEASE = "6.1.0-56-amd64"
RUNNING = os.uname().release
VERSION = "580.65.06"
#: As much of nvidia.ko as its readers look at: its version, and a checksum of an export.
MODULE = f"""
    .section .modinfo, "a"
    .asciz "version={VERSION}"
    .section __ksymtab_strings, "a"
    .asciz "nvidia_p2p_get_pages"
    .asciz "nvidia_other"
    .globl __crc_nvidia_p2p_get_pages, __crc_nvidia_other
    .set __crc_nvidia_p2p_get_pages, 0x5261ee12
    .set __crc_nvidia_other, 0x11111111
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path


def install(root: Path, release: str, name: str = "nvidia", about: str = "") -> Path:
    """nvidia.ko for the kernel of this release, with more that it says about itself."""
    path = root / f"lib/modules/{release}/updates/dkms/{name}.ko"
    path.parent.mkdir(parents=True, exist_ok=True)
    assembler = ["gcc", "-x", "assembler", "-c", "-o", path, "-"]
    subprocess.run(assembler, input=MODULE + about, text=True, check=True)
    subprocess.run(["/sbin/depmod", "-b", root, release], check=True, capture_output=True)
    return path


@pytest.fixture
def module(root: Path) -> Path:
    return install(root, RELEASE)


@pytest.fixture
def loaded(root: Path) -> str:
    """The version of the driver that the running kernel has loaded."""
    version = root / "sys/module/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text("535.309.01\n")
    return "535.309.01"


def header(folder: Path) -> Path:
    path = folder / "nvidia/nv-p2p.h"
    path.parent.mkdir(parents=True)
    path.touch()
    return folder


def find(root: Path, *arguments: str | Path) -> str:
    environment = {**os.environ, "FIND_NVIDIA_ROOT": str(root)}
    ended = subprocess.run(
        [SCRIPT, *arguments], capture_output=True, text=True, env=environment, check=True
    )
    return ended.stdout


class TestSources:
    def test_of_a_package_are_found(self, root: Path, module: Path) -> None:
        folder = header(root / f"usr/src/nvidia-current-{VERSION}")
        assert find(root, "sources", RELEASE) == f"{folder}\n"

    def test_of_the_open_modules_are_found(self, root: Path, module: Path) -> None:
        folder = header(root / f"usr/src/nvidia-open-{VERSION}/kernel-open")
        assert find(root, "sources", RELEASE) == f"{folder}\n"

    def test_that_only_dkms_has_are_found(self, root: Path, module: Path) -> None:
        folder = header(root / f"var/lib/dkms/nvidia/{VERSION}/source")
        assert find(root, "sources", RELEASE) == f"{folder}\n"

    def test_of_another_version_are_not_taken(self, root: Path, module: Path) -> None:
        header(root / "usr/src/nvidia-535.309.01")
        assert find(root, "sources", RELEASE) == ""

    def test_of_the_loaded_driver_are_taken(self, root: Path, loaded: str) -> None:
        header(root / f"usr/src/nvidia-{VERSION}")
        folder = header(root / f"usr/src/nvidia-{loaded}")
        assert find(root, "sources", RUNNING) == f"{folder}\n"

    def test_without_a_driver_there_are_none(self, root: Path) -> None:
        header(root / f"usr/src/nvidia-{VERSION}")
        assert find(root, "sources", RELEASE) == ""


class TestSymvers:
    def test_of_a_driver_that_was_replaced_since_are_not_taken(
        self, root: Path, loaded: str, tmp_path: Path
    ) -> None:
        install(root, RUNNING)
        assert find(root, "symvers", RUNNING, tmp_path / "symvers") == ""

    def test_are_what_the_module_exports(self, root: Path, module: Path, tmp_path: Path) -> None:
        file = tmp_path / "symvers"
        assert find(root, "symvers", RELEASE, file) == f"{file}\n"
        assert file.read_text() == "0x5261ee12\tnvidia_p2p_get_pages\tnvidia\tEXPORT_SYMBOL\t\n"

    def test_kept_by_dkms_serve_where_there_is_no_file_of_the_loaded_module(
        self, root: Path, loaded: str, tmp_path: Path
    ) -> None:
        kept = root / f"var/lib/dkms/nvidia/{loaded}/{RUNNING}/x86_64/module/Module.symvers"
        kept.parent.mkdir(parents=True)
        kept.touch()
        assert find(root, "symvers", RUNNING, tmp_path / "symvers") == f"{kept}\n"

    def test_without_a_driver_there_are_none(self, root: Path, tmp_path: Path) -> None:
        assert find(root, "symvers", RELEASE, tmp_path / "symvers") == ""


class TestInstalled:
    @pytest.fixture
    def both(self, root: Path) -> None:
        """Both flavours, as Debian's packages install them for the kernel that runs."""
        licences = {"nvidia-current": "NVIDIA", "nvidia-current-open": "Dual MIT/GPL"}
        for name, licence in licences.items():
            about = f"""
                .section .modinfo, "a"
                .asciz "license={licence}"
                .asciz "srcversion={name.upper()}"
            """
            install(root, RUNNING, name, about)

    @pytest.mark.parametrize(
        ("loaded", "flavour"),
        [("NVIDIA-CURRENT", "proprietary"), ("NVIDIA-CURRENT-OPEN", "open")],
    )
    def test_of_two_is_the_one_that_is_loaded(
        self, root: Path, both: None, loaded: str, flavour: str
    ) -> None:
        path = root / "sys/module/nvidia/srcversion"
        path.parent.mkdir(parents=True)
        path.write_text(f"{loaded}\n")
        assert find(root, "installed", RUNNING) == f"{VERSION}-{flavour}\n"

    def test_is_told_where_another_one_is_loaded(self, root: Path, both: None, loaded: str) -> None:
        (root / "sys/module/nvidia/srcversion").write_text("REPLACED\n")
        assert find(root, "installed", RUNNING) == f"{VERSION}-proprietary\n"


class TestMakefile:
    @pytest.fixture
    def made(self, root: Path) -> list[str]:
        """What a kernel's build tree is told by ``make``."""
        folder = root / "driver"
        folder.mkdir()
        for name in ("Makefile", "find-nvidia.sh"):
            shutil.copy(DRIVER / name, folder)
        release = root / "build/include/generated/utsrelease.h"
        release.parent.mkdir(parents=True)
        release.write_text(f'#define UTS_RELEASE "{RELEASE}"\n')
        told = "modules:\n\t@echo $(NVIDIA_SRC) $(KBUILD_EXTRA_SYMBOLS) $(KBUILD_MODPOST_WARN)\n"
        (root / "build/Makefile").write_text(told)
        environment = {**os.environ, "FIND_NVIDIA_ROOT": str(root)}
        make = ["make", "-s", "--no-print-directory", "-C", folder, f"KDIR={root / 'build'}"]
        ended = subprocess.run(make, capture_output=True, text=True, env=environment, check=True)
        return ended.stdout.split()

    @pytest.fixture
    def sources(self, root: Path) -> Path:
        return header(root / f"usr/src/nvidia-{VERSION}")

    def test_takes_what_is_found(
        self, root: Path, module: Path, sources: Path, made: list[str]
    ) -> None:
        assert made == [str(sources), str(root / "driver/nvidia.symvers")]

    def test_compiles_without_a_driver(self, made: list[str]) -> None:
        assert made == ["1"]
