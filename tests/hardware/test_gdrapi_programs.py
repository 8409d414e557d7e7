"""The C programs against gdrapi.h, on the GPU's own driver, with the library of the package."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import gdrpy
from gdrpy import cuda

pytestmark = pytest.mark.gpu

SOURCES = Path(__file__).parent.parent / "gdrapi"
LIBRARY = Path(gdrpy.__file__).parent / "lib" / "libgdrapi.so.2"
PROGRAMS = [
    "test_pins",
    "test_maps",
    "test_copies",
    "test_handles",
    "test_queries",
    "test_clients",
    "test_fork",
    "test_threads",
    "test_first_use",
    "test_cycles",
]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where they are: linked to the real driver."""
    build = tmp_path_factory.mktemp("gdrapi")
    variables = [f"BUILD={build}", f"LIBRARY={LIBRARY}", "CUDA=-l:libcuda.so.1"]
    wanted = [build / "plain" / name for name in (*PROGRAMS, "test_devices")]
    # The loader's own path is not the linker's.
    places = [f"-L{path}" for path in driver_folders()]
    make = ["make", "-s", "-j8", "-C", SOURCES, *variables, f"LDFLAGS_plain={' '.join(places)}"]
    made = subprocess.run([*make, *wanted], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    return build / "plain"


def driver_folders() -> set[str]:
    """Where the driver's library lies that this process has loaded."""
    cuda.driver()
    maps = Path("/proc/self/maps").read_text().split()
    return {str(Path(word).parent) for word in maps if "/libcuda.so." in word}


def check(program: Path) -> None:
    done = subprocess.run([program], capture_output=True, text=True, timeout=110, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(" tests passed\n")


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_passes(programs: Path, program: str) -> None:
    check(programs / program)


def test_pins_on_several_gpus_are_kept_apart(programs: Path) -> None:
    if cuda.device_count() < 2:
        pytest.skip("this machine has one GPU")
    check(programs / "test_devices")
