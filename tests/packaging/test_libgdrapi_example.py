"""examples/libgdrapi.c, built and run by the commands that it names itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gdrpy.cli import libgdrapi

EXAMPLE = Path(__file__).parents[2] / "examples" / "libgdrapi.c"


@pytest.fixture
def shell(need: Callable[..., None], tmp_path: Path) -> Callable[..., str]:
    """Runs lines, with the library found as ``gdrpy libgdrapi`` says, and this Python."""
    need("pkg-config")
    (tmp_path / EXAMPLE.name).symlink_to(EXAMPLE)
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": str(libgdrapi.SHARED_OBJECT.parent),
        "PKG_CONFIG_PATH": str(libgdrapi.PKG_CONFIG.parent),
        "GDRCOPY_ENABLE_LOGGING": "1",
    }

    def shell(*lines: str) -> str:
        done = subprocess.run(
            ["sh", "-e", "-c", "\n".join(lines)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return shell


class TestExampleInC:
    def test_prints_what_cuda_found_on_the_simulated_gpu(self, shell: Callable[..., str]) -> None:
        build_real, run_real, build, run = re.findall(r"^ \*\t(.+)$", EXAMPLE.read_text(), re.M)
        assert build_real == build.replace("$(python -m gdrpy.sim)", "-l:libcuda.so.1")
        assert run == f"LD_PRELOAD=$(python -m gdrpy.sim) {run_real}"
        strict = build.replace("gcc", "gcc -Wall -Wextra -Wpedantic -Werror", 1)
        assert shell(strict, run) == "written by the CPU, read by CUDA\n"
