"""Kernels of CUDA C++, numba and Triton take every record of a channel, whole and in order."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

PROGRAM = Path(__file__).parent / "channel_program.py"


class TestKernel:
    @pytest.mark.parametrize("how", ["one", "many"])
    def test_takes_a_million_records_whole_and_in_order(self, backend, compiler, how):
        done = subprocess.run(
            [sys.executable, PROGRAM, compiler, how],
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        assert done.returncode == 0, done.stderr
        verdict = json.loads(done.stdout)
        assert (verdict["pushed"], verdict["records"]) == (1_000_000, 1_000_000)
        assert verdict["mismatches"] == 0
        assert verdict.get("checksum", verdict["checksum pushed"]) == verdict["checksum pushed"]
