"""The simulated resource manager survives random calls, under ASan and UBSan."""

import os
import subprocess
from pathlib import Path

import pytest

from build import build_fuzzer


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_fuzzer(tmp_path_factory.mktemp("fuzz"))


class TestRandomCalls:
    @pytest.mark.parametrize("seed", [1, 3, 5])
    def test_no_sanitizer_report_and_an_empty_ledger(self, fuzzer: Path, seed: int) -> None:
        process = subprocess.run(
            [fuzzer, str(seed), "100000"],
            env={**os.environ, "ASAN_OPTIONS": "detect_leaks=1"},
            capture_output=True,
            text=True,
        )
        lines = process.stderr.splitlines()
        unexpected = [line for line in lines if not line.startswith("fakerm: violation: ")]
        assert (process.returncode, unexpected) == (0, [])
