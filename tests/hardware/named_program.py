"""The two ends of a named inbox or link in two processes: see test_named_kernels.py.

Usage: named_program.py inbox|link, which is the kernel's process. It runs itself as
named_program.py inbox|link SOCKET, the CPU's end without CUDA, whose JSON object it prints. The
first caller of a link is killed amid its calls.
"""

from __future__ import annotations

import json
import subprocess
import sys

import rings_program

import gdrpy
from gdrpy import cuda
from gdrpy.channel import KernelEnd

NAME, CAPACITY, TIMEOUT = "ring", 1024, 60.0


def cpu_end(what: str, socket: str) -> None:
    """Take all records, or make all calls."""
    with gdrpy.connect(socket) as broker:
        if what == "inbox":
            inbox = gdrpy.Inbox(64, CAPACITY, broker=broker, name=NAME)
            found = rings_program.take(inbox, lambda _: lambda: None)
            inbox.close()
        else:
            link = gdrpy.Link(64, 64, CAPACITY, broker=broker, name=NAME, wait=TIMEOUT)
            found = rings_program.call(link, lambda _: lambda: None)
    print(json.dumps({**found, "CUDA loaded": "cuda.bindings.driver" in sys.modules}))


def kernel_end(what: str, socket: str) -> None:
    """Run the kernels."""
    command = [sys.executable, __file__, what, socket]
    other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with (
        gdrpy.connect(socket) as broker,
        KernelEnd(broker, NAME, wait=TIMEOUT) as end,
        cuda.context(0),
    ):
        if what == "inbox":
            end.wait(TIMEOUT)
            rings_program.push_by_nvrtc(end)()  # type: ignore[arg-type]
        else:
            with broker.get(f"{NAME}/host", gpu=False) as host:
                end.wait(TIMEOUT)
                finish = rings_program.serve_by_nvrtc(end)  # type: ignore[arg-type]
                host.flag(64, 8).wait(rings_program.CALLS // 2, TIMEOUT)  # requests pushed
                other.kill()
                finish()
                other.communicate()
            other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            while end.wait(TIMEOUT):
                rings_program.serve_by_nvrtc(end)()  # type: ignore[arg-type]
        printed, _ = other.communicate(timeout=TIMEOUT)
    print(printed, end="")


if __name__ == "__main__":
    if sys.argv[2:]:
        cpu_end(*sys.argv[1:])
    else:
        with gdrpy.broker.temporary() as path:
            kernel_end(sys.argv[1], path)
