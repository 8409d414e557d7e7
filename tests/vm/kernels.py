"""The kernels that setup fetched for all checkouts, and modules that this one builds for them."""

from __future__ import annotations

import fcntl
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parent.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
KERNELS = Path(os.environ.get("GDRPY_VM_KERNELS") or CACHE / "gdrpy-vm").resolve()
BUILT = CHECKOUT / ".vm"


class BuildError(Exception):
    """Modules that do not build: its text is what make and the compiler said."""


@dataclass(frozen=True)
class Kernel:
    """One that was fetched, by the name that setup knows it by."""

    name: str

    @property
    def folder(self) -> Path:
        return KERNELS / self.name

    @property
    def fetched(self) -> bool:
        return (self.folder / "ready").exists()

    @property
    def release(self) -> str:
        return (self.folder / "release").read_text().strip()

    @property
    def arch(self) -> str:
        return "arm64" if self.name.endswith("-arm64") else "x86_64"

    @property
    def compiler(self) -> str:
        """This machine's, whichever the kernel's was, or that of Debian 13."""
        return "aarch64-linux-gnu-gcc" if self.arch == "arm64" else "gcc"

    @property
    def emulator(self) -> str:
        return "qemu-system-aarch64" if self.arch == "arm64" else "qemu-system-x86_64"

    @property
    def image(self) -> Path:
        """As setup unpacked it, or as it was fetched."""
        unpacked = self.folder / "vmlinux"
        return unpacked if unpacked.exists() else self.folder / "vmlinuz"

    @property
    def initramfs(self) -> Path:
        return BUILT / self.name / "initramfs"

    @property
    def symbols(self) -> Path:
        """What the kernel exports."""
        return self.folder / "build/Module.symvers"

    @property
    def needs_trixie(self) -> bool:
        return (self.folder / "with-trixie").exists()

    def command(self, *words: str | Path) -> list[str | Path]:
        """A command with the programs that can build for the kernel."""
        return [HERE / "with-trixie", *words] if self.needs_trixie else [*words]

    def build(self, sources: Path, *variables: str, name: str = "") -> Path:
        """The folder, of the kernel's own, with the modules built from a folder of sources.

        Another process may ask for the same at the same time.

        Raises:
            BuildError: they do not build, or not without a warning.
        """
        folder = BUILT / self.name / (name or sources.name)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".lock").open("w") as lock:  # until it is closed
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._build_in(folder, sources, variables)
        return folder

    def _build_in(self, folder: Path, sources: Path, variables: tuple[str, ...]) -> None:
        for link in folder.iterdir():
            if link.is_symlink():
                link.unlink()
        for source in sources.iterdir():
            if source.name.endswith(".mod.c"):  # of a build in that folder
                continue
            if source.name == "Kbuild" or source.suffix in (".c", ".h") or source.is_dir():
                (folder / source.name).symlink_to(source)
        make = self.command(
            "make", "-s", "-C", self.folder / "build", f"M={folder}", "-j2", "modules"
        )
        # The newest headers have attributes that only a newer compiler knows.
        warnings = "-Werror -Wno-attributes" if self.needs_trixie else "-Werror"
        make += [f"CC={self.compiler}", f"KCFLAGS={warnings}", f"GDRPY_CHECKOUT={CHECKOUT}"]
        if self.arch == "arm64":
            make += ["ARCH=arm64", "CROSS_COMPILE=aarch64-linux-gnu-"]
        # Needs pahole, and tells nothing here.
        make += ["CONFIG_DEBUG_INFO_BTF_MODULES=", *variables]
        made = subprocess.run(make, capture_output=True, text=True)
        if made.returncode:
            raise BuildError(
                f"{sources} does not build for {self.release}:\n{made.stdout}{made.stderr}"
            )


@dataclass(frozen=True)
class Genuine:
    """NVIDIA's own module, built by setup: a release and flavour, and the kernel it is for."""

    release: str
    flavour: str
    kernel: Kernel

    @classmethod
    def of(cls, name: str) -> Genuine:
        """By the name that setup knows it by, without what it begins with: 535-open-debian."""
        release, flavour, kernel = name.split("-")
        return cls(release, flavour, Kernel(kernel))

    def __str__(self) -> str:
        return f"{self.release}-{self.flavour}-{self.kernel.name}"

    @property
    def folder(self) -> Path:
        return KERNELS / f"genuine-{self}"

    @property
    def built(self) -> bool:
        return self.module.exists()

    @property
    def module(self) -> Path:
        return self.folder / "nvidia.ko"

    @property
    def other_flavour(self) -> Genuine:
        flavour = "proprietary" if self.flavour == "open" else "open"
        return Genuine(self.release, flavour, self.kernel)

    @property
    def name(self) -> str:
        """The module's, where Debian's packages have installed it: nvidia-current-open."""
        return self.sources.name.rpartition("-")[0]

    @property
    def sources(self) -> Path:
        """What Debian's package puts into /usr/src."""
        (path,) = (KERNELS / f"nvidia-{self.release}-{self.flavour}/root/usr/src").iterdir()
        return path

    @property
    def version(self) -> str:
        """As find-nvidia.sh tells it: 535.261.03-open."""
        return f"{self.sources.name.rpartition('-')[2]}-{self.flavour}"

    @property
    def symbols(self) -> Path:
        """What the module exports, with checksums."""
        return self.folder / "source/Module.symvers"
