"""A machine as Debian's packages of NVIDIA's driver leave it, and the checkout on it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from kernels import CHECKOUT, Genuine

RELEASE = os.uname().release
MODULES = Path("/lib/modules", RELEASE)


class Machine:
    """``driver`` is NVIDIA's; ``built`` is gdrdrv for it, if it is not to be built here."""

    def __init__(self, driver: Genuine, checkout: Path, built: Path | None) -> None:
        self.driver = driver
        self.checkout = checkout
        self.module = checkout / "driver/gdrdrv.ko"
        self.built = built

    def run(self, *command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, capture_output=True, text=True, env=os.environ | environment, check=False
        )

    def insmod(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run(self.checkout / "insmod.sh", *arguments, MAKEFLAGS="-j2", **environment)

    def status(self) -> dict[str, str]:
        pairs = (line.partition(":") for line in done(self.insmod("--status")))
        return {name: value.strip() for name, _, value in pairs}

    def load_driver(self) -> None:
        if not Path("/sys/module/nvidia").exists():
            done(self.run("modprobe", self.driver.name))

    # insmod.sh takes seconds in a guest: it is run where there is something to do.

    def load_gdrdrv(self) -> None:
        if Path("/sys/module/gdrdrv").exists():
            return
        if self.built and not self.module.exists():
            shutil.copy(self.built, self.module)
        done(self.insmod())

    def unload_gdrdrv(self) -> None:
        if Path("/sys/module/gdrdrv").exists():
            done(self.insmod("--unload"))

    def unload(self) -> None:
        """Both modules."""
        self.unload_gdrdrv()
        if Path("/sys/module/nvidia").exists():
            done(self.run("rmmod", "nvidia"))


def done(ended: subprocess.CompletedProcess[str]) -> list[str]:
    """What a command said that did as it was asked."""
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout.splitlines()


def install(driver: Genuine) -> None:
    """Its module and sources, where Debian's packages and DKMS leave them."""
    dkms = MODULES / "updates/dkms"
    dkms.mkdir(parents=True, exist_ok=True)
    (dkms / f"{driver.name}.ko").symlink_to(driver.module)
    sources = Path("/usr/src", driver.sources.name)
    sources.unlink(missing_ok=True)  # of the tests beside the other flavour, in the same guest
    sources.symlink_to(driver.sources)


def install_kernel(driver: Genuine) -> None:
    """What there is of it in /lib/modules: the build tree, and modules that NVIDIA's needs."""
    fetched = driver.kernel.folder / "root/lib/modules" / RELEASE
    shutil.rmtree(MODULES, ignore_errors=True)  # of a machine that has the same kernel's headers
    MODULES.mkdir(parents=True)
    (MODULES / "build").symlink_to((driver.kernel.folder / "build").resolve())
    for name in ("modules.order", "modules.builtin", "modules.builtin.modinfo"):
        shutil.copy(fetched / name, MODULES)
    needed = {}
    for line in (fetched / "modules.dep").read_text().splitlines():
        path, _, others = line.partition(":")
        needed[Path(path).name.partition(".")[0].replace("-", "_")] = [path, *others.split()]
    modinfo = ["modinfo", "-F", "depends", driver.module]
    listed = subprocess.run(modinfo, capture_output=True, text=True, check=True).stdout.strip()
    for name in filter(None, listed.split(",")):
        for path in needed[name.replace("-", "_")]:
            link = MODULES / path
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.exists():
                link.symlink_to(fetched / path)


def copy_checkout(folder: Path) -> None:
    """What is built is kept, so not in the checkout itself, which may have a module already."""
    shutil.copy(CHECKOUT / "insmod.sh", folder)
    built = shutil.ignore_patterns("*.ko", "*.o", "*.cmd", "*.mod*", "*.symvers", "packaging")
    shutil.copytree(CHECKOUT / "driver", folder / "driver", ignore=built)
