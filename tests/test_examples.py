"""Every example is a complete program, and prints what it promises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
LAST_LINES = {
    "broker_mirror.py": "the mirror can be written: False\nleft:  []",
    "broker_session.py": "list  []",
    "broker_three_processes.py": "CUDA loaded: False\nleft:   ['frames']",
    "channel_to_kernel.py": "takes the records\n20000 trades in order, together worth 10000.00",
    "cpu_only_process.py": "GPU and CPU view, sim> - b'written without CUDA'",
    "one_region_two_views.py": "GPU and CPU view, sim> -> [1. 2. 3. 4.]",
    "pin_a_cuda_pointer.py": "b'hello, pinned memory'",
    "start_queued_work.py": "the GPU wrote 0xc0ffee",
}


class TestExample:
    def test_each_is_listed_here(self):
        assert sorted(path.name for path in EXAMPLES.glob("*.py")) == sorted(LAST_LINES)

    @pytest.mark.parametrize("name", LAST_LINES)
    def test_runs_and_prints_its_result(self, name, tmp_path):
        done = subprocess.run(
            [sys.executable, EXAMPLES / name],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        assert done.stdout.rstrip("\n").endswith(LAST_LINES[name])
