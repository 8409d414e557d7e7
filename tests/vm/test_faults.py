"""Each fault that was seen in NVIDIA's gdrdrv, put into this module, is found by a test.

``faults`` has a patch of ``driver`` for each, which names the test. Most are loaded one after the
other in one guest; those that end the kernel, or cannot be unloaded, have one of their own.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from kernels import Kernel

HERE = Path(__file__).parent
DRIVER = HERE.parent.parent / "driver"
FAULTS = HERE / "faults"
KERNEL = Kernel("debian")
#: Freed memory is overwritten, so that who still uses it does not find what was there.
POISON = "slub_debug=P"
#: A task that waits in the kernel for so many seconds ends it, long before the test gives up.
HUNG = "sysctl.kernel.hung_task_timeout_secs=10 sysctl.kernel.hung_task_panic=1"


@dataclass(frozen=True)
class Fault:
    name: str
    program: str
    test: str
    alone: bool

    @classmethod
    def of(cls, patch: Path) -> Fault:
        head = patch.read_text().partition("\n--- ")[0]
        caught = re.search(r"^Caught by: (\w+) (\w+)$", head, re.MULTILINE)
        assert caught, f"{patch} does not say which test it is 'Caught by:'"
        alone = re.search(r"^Alone: ", head, re.MULTILINE)
        return cls(patch.stem, caught[1], caught[2], bool(alone))

    @property
    def patch(self) -> Path:
        return FAULTS / f"{self.name}.patch"

    @property
    def file(self) -> Path:
        """The one that the patch changes."""
        (name,) = re.findall(r"^\+\+\+ b/(\S+)$", self.patch.read_text(), re.MULTILINE)
        return Path(name)


ALL = [Fault.of(patch) for patch in sorted(FAULTS.glob("*.patch"))]
TOGETHER = [fault for fault in ALL if not fault.alone]


def put_in(fault: Fault, sources: Path) -> None:
    """Makes the sources those of the driver, with one fault."""
    for file in DRIVER.glob("*.[ch]"):
        if (sources / file.name).read_bytes() != file.read_bytes():
            shutil.copy(file, sources)
    patch = ["patch", "--strip=1", "--fuzz=0", "--no-backup-if-mismatch", f"--input={fault.patch}"]
    patched = subprocess.run(patch, cwd=sources, capture_output=True, text=True)
    assert patched.returncode == 0, (
        f"{fault.patch} does not apply any more: put the same fault into driver/ as it is now, and "
        f"write the difference there\n{patched.stdout}{patched.stderr}"
    )


@pytest.fixture(scope="session")
def modules(bed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a module for each fault, ``NAME.ko``."""
    symbols = KERNEL.build(HERE / "standin") / "Module.symvers"
    folder = tmp_path_factory.mktemp("faults")
    sources = folder / "faulty"
    shutil.copytree(DRIVER, sources)
    # All in one folder, where only files that differ from the last fault's are compiled again: so
    # faults of one file follow each other, and a header, which is every file's, comes last.
    for fault in sorted(ALL, key=lambda fault: (fault.file.suffix, fault.file)):
        put_in(fault, sources)
        built = KERNEL.build(sources, f"KBUILD_EXTRA_SYMBOLS={symbols}")
        shutil.copy(built / "gdrdrv.ko", folder / f"{fault.name}.ko")
    return folder


def run(bed: Path, modules: Path, append: str, *faults: Fault) -> subprocess.CompletedProcess[str]:
    words = [f"{fault.name}:{fault.program}:{fault.test}" for fault in faults]
    options = ["--kernel", KERNEL.name, "--gdrdrv", "none", "--append", append]
    command = [bed, *options, "--", FAULTS / "in_guest", modules, *words]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture(scope="session")
def together(bed: Path, modules: Path) -> dict[str, str]:
    """What was printed for each of the faults that can follow each other."""
    ended = run(bed, modules, POISON, *TOGETHER)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    parts = re.findall(r"(.*?)^== (\S+) \d+$", ended.stdout, re.DOTALL | re.MULTILINE)
    return {name: output for output, name in parts}


def failed(fault: Fault, output: str) -> bool:
    """Whether the test that is to find it is the one that failed."""
    return re.search(rf"\bin {fault.test}: |^{fault.test}: ", output, re.MULTILINE) is not None


@pytest.mark.parametrize("fault", ALL, ids=lambda fault: fault.name)
def test_fault_is_found(
    bed: Path, modules: Path, fault: Fault, request: pytest.FixtureRequest
) -> None:
    if not fault.alone:
        output = request.getfixturevalue("together")[fault.name]
        assert failed(fault, output), output
        return
    ended = run(bed, modules, f"{POISON} {HUNG}", fault)
    output = ended.stdout + ended.stderr
    assert ended.returncode != 0
    assert failed(fault, output) or "the kernel reported a fault" in ended.stderr, output
