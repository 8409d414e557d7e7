"""Kernels of CUDA C++, numba and Triton push into inboxes and answer calls of links."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

PROGRAM = Path(__file__).parent / "rings_program.py"


def run(compiler: str, what: str, capacity: int) -> dict[str, int]:
    """What the program found, after its records or calls."""
    done = subprocess.run(
        [sys.executable, PROGRAM, compiler, what, str(capacity)],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    return found


class TestKernel:
    @pytest.mark.parametrize("capacity", [64, 4096])
    def test_pushes_half_a_million_records_whole_and_in_order(self, backend, compiler, capacity):
        found = run(compiler, "inbox", capacity)
        assert found == {"records": 512_000, "wrong": 0, "out of order": 0}

    @pytest.mark.parametrize("compiler", ["nvrtc"], indirect=True)
    @pytest.mark.parametrize("capacity", [1, 16, 32])
    def test_pushes_into_less_room_than_two_warps_take(self, backend, compiler, capacity):
        found = run(compiler, "inbox", capacity)
        assert found == {"records": 512_000, "wrong": 0, "out of order": 0}

    @pytest.mark.parametrize("capacity", [1, 1024])
    def test_answers_each_call_by_its_own_answer(self, backend, compiler, capacity):
        found = run(compiler, "link", capacity)
        assert found == {"answers": 40_000, "wrong": 0}

    @pytest.mark.parametrize("compiler", ["nvrtc"], indirect=True)
    @pytest.mark.parametrize("words", [2, 3, 4, 6, 8, 16, 32])
    def test_pushes_records_of_each_size_whole(self, backend, compiler, words):
        assert run(compiler, str(words), 256) == {"records": 96_000, "wrong": 0}

    @pytest.mark.parametrize("compiler", ["nvrtc"], indirect=True)
    @pytest.mark.parametrize("capacity", [1, 1024])
    @pytest.mark.parametrize("threads", ["block", "warp"])
    def test_of_several_threads_answers_each_call_by_pieces(
        self, backend, compiler, threads, capacity
    ):
        assert run(threads, "link", capacity) == {"answers": 40_000, "wrong": 0}
