"""The C core's own tests on the simulated resource manager, under ASan and UBSan."""

import os
import subprocess
from pathlib import Path

import pytest

from build import build_core_test

#: Folders of the core that take memory in.
ALL = ["backends", "common", "copy", "cuda", "memory", "rm"]
#: Folders that the copy engine needs.
ENGINE = ["common", "copy", "engine", "memory", "rm"]


class TestCalls:
    @pytest.mark.parametrize(
        ("program", "core", "count"),
        [
            ("test_nvrm", ["rm/*.c", "memory/map.c", "common/*.c", "-Wl,--wrap=calloc"], 6),
            ("test_engine", [f"{folder}/*.c" for folder in ENGINE], 9),
            ("test_take", [f"{folder}/*.c" for folder in ALL], 27),
        ],
    )
    def test_pass_under_the_sanitizers(
        self,
        tmp_path: Path,
        resource_manager_library: Path,
        program: str,
        core: list[str],
        count: int,
    ) -> None:
        process = subprocess.run(
            [build_core_test(tmp_path, program, *core)],
            env={**os.environ, "LD_PRELOAD": str(resource_manager_library)},
            capture_output=True,
            text=True,
        )
        told = [one for one in process.stderr.splitlines() if not one.startswith("fakerm: Xid")]
        assert (process.returncode, told) == (0, [])
        assert process.stdout.endswith(f"{count} tests passed\n")
