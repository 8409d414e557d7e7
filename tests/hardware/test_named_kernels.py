"""Kernels at one end of named rings, and processes without CUDA at the other, which are killed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

HERE = Path(__file__).parent
KILLS = HERE.parents[1] / "benchmarks" / "channelkills.py"


def run(*words: object) -> str:
    """What a program prints, in good time."""
    done = subprocess.run(
        [sys.executable, *map(str, words)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("compiler", ["nvrtc"], indirect=True)
class TestKernel:
    def test_takes_every_record_of_producers_that_are_killed(self, backend, compiler, tmp_path):
        *_, path = run(KILLS, "--kills", 40, "--output", tmp_path).splitlines()
        producers, kernels = json.loads(Path(path).read_text())["kills"]
        names = ("torn", "lost", "doubled", "stuck", "leases_left", "bytes_left")
        assert [producers[name] for name in names] == [0] * 6
        assert [kernels[name] for name in names] == [0] * 6
        assert (producers["kills"], kernels["kills"]) == (36, 4)
        assert producers["ends"] >= 36

    def test_pushes_to_a_process_without_cuda(self, backend, compiler):
        found = json.loads(run(HERE / "named_program.py", "inbox"))
        expected = {"records": 512_000, "wrong": 0, "out of order": 0, "CUDA loaded": False}
        assert found == expected

    def test_answers_the_next_caller_when_one_was_killed(self, backend, compiler):
        found = json.loads(run(HERE / "named_program.py", "link"))
        assert found == {"answers": 40_000, "wrong": 0, "CUDA loaded": False}
