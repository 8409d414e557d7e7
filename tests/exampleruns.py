"""What the examples print, on the simulated GPU and on a real one, and how they are run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"

#: The last lines of each; where a backend is named, it stands for the machine's.
LAST_LINES = {
    "broker_mirror.py": "the mirror can be written: False\nleft:  []",
    "broker_session.py": "list  []",
    "broker_three_processes.py": "CUDA loaded: False\nleft:   ['frames']",
    "call_a_kernel.py": "one question: 5\n1000 questions: 2497500",
    "camera_frames.py": " frames dropped, CUDA loaded: False\n"
    "30 of 30 frames whole, through a ring of 4 regions",
    "channel_to_kernel.py": "20000 trades in order, together worth 10000.00",
    "control_loop.py": "the GPU has the last of 2000 words",
    "cpu_only_process.py": "GPU and CPU view, {backend}> - b'written without CUDA'",
    "decode_step.py": "the same tokens as without a cache: True",
    "one_region_two_views.py": "GPU and CPU view, {backend}> -> [1. 2. 3. 4.]",
    "paged_kv_cache.py": "1 requests had to begin again\n"
    "every key found by the tables; 18 of 18 blocks free at the end",
    "parameter_server.py": "version 60, workers ended with [0, 0, 0]: [2.0, -3.0, 0.5, 7.0]",
    "pin_a_cuda_pointer.py": "b'hello, pinned memory'",
    "ping_pong.py": "us there and back\n1000 rounds, every answer right",
    "resident_kernel.py": "100 answers, the last 10000000, by what was started once",
    "rolling_update.py": "".join(
        f"worker {number}: mixtures: 0, versions in order: True\n" for number in (1, 2, 3)
    )
    + "every old version is freed",
    "start_queued_work.py": "the GPU wrote 0xc0ffee",
    "transformers_weights.py": "the same answers: True\nprocesses with the one copy: 4",
    "two_processes_one_channel.py": "the kernel has seen the end of a producer that was killed\n"
    "20000 orders, 20000 in order, together worth 10000.00",
    "two_engines.py": "2 takeovers, 40 answers, 0 of them wrong\n"
    "memory for weights is taken once: True",
}
#: What those whose kernel a thread stands in for say on the simulated GPU.
NO_KERNELS = "the simulated GPU has no kernels: a thread "
WITH_A_KERNEL = {
    "call_a_kernel.py",
    "channel_to_kernel.py",
    "control_loop.py",
    "resident_kernel.py",
    "two_processes_one_channel.py",
}


def run(name: str, folder: Path, *arguments: str) -> str:
    """What an example prints, run in a folder. It must end well, and say nothing on stderr.

    The folder has a ``gdrpy`` that no process of the example may import.
    """
    (folder / "gdrpy.py").write_text("raise AssertionError('imported from the current folder')\n")
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.rstrip("\n")
