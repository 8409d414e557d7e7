"""The C core's own tests on the simulated resource manager, under sanitizers."""

import os
import subprocess
from pathlib import Path

import pytest

from build import build_core_test

#: Folders of the core that take memory in.
ALL = ["backends", "common", "copy", "cuda", "memory", "rm"]
#: Folders that the copy engine needs.
ENGINE = [f"{folder}/*.c" for folder in ("common", "copy", "engine", "memory", "rm")]
#: The simulated manager and CUDA are not built for it, and symbols take it seconds to look up.
THREADS = "symbolize=0:ignore_noninstrumented_modules=1"


def without_random_addresses() -> list[str]:
    """What begins a command so, which this sanitizer needs on some kernels, if it is allowed."""
    command = ["setarch", "-R"]
    try:
        return command if not subprocess.run([*command, "true"]).returncode else []
    except FileNotFoundError:
        return []


class TestCalls:
    @pytest.mark.parametrize(
        ("program", "core", "count"),
        [
            ("test_nvrm", ["rm/*.c", "memory/map.c", "common/*.c", "-Wl,--wrap=calloc"], 6),
            ("test_engine", ENGINE, 10),
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

    def test_of_the_engine_have_no_data_races(
        self, tmp_path: Path, resource_manager_library: Path
    ) -> None:
        program = build_core_test(tmp_path, "test_engine", *ENGINE, checks="threads")
        process = subprocess.run(
            [*without_random_addresses(), program],
            env={
                **os.environ,
                "LD_PRELOAD": str(resource_manager_library),
                "TSAN_OPTIONS": THREADS,
            },
            capture_output=True,
            text=True,
        )
        told = [one for one in process.stderr.splitlines() if not one.startswith("fakerm: Xid")]
        assert (process.returncode, told) == (0, [])
        assert process.stdout.endswith("10 tests passed\n")
