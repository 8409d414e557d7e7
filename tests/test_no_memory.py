"""Python runs out of memory at any moment while something is made: nothing is left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from serving import BrokerProcess, broker_process, start_serving

__all__ = ["broker_process", "start_serving"]

PROGRAM = Path(__file__).with_name("nomemory.py")


def faults_of(*words: str) -> str:
    """What the program found, which fails one allocation after another."""
    done = subprocess.run(
        [sys.executable, PROGRAM, *words], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class TestAllocationOfPythonMemoryThatFails:
    @pytest.mark.parametrize(
        "work",
        [
            *("alloc", "Region.map", "Region.from_fd", "page_locked", "pin"),
            *("Channel", "Inbox", "Link"),
        ],
    )
    def test_leaves_no_descriptor_mapping_or_gpu_memory(self, work: str) -> None:
        assert faults_of(work) == ""

    def test_leaves_no_lease_of_a_broker(self, broker_process: BrokerProcess) -> None:
        assert faults_of("broker.get", broker_process.socket) == ""
