"""A parameter server: workers without CUDA pull parameters from GPU memory and push gradients back.

Every worker has rows of the data, which nobody else has. The server, which has the GPU view, sums
the gradients of each step and applies them; a flag says which version the parameters are.
"""

import subprocess
import sys

import gdrpy
from gdrpy import cuda
from gdrpy.broker import temporary

WORKERS, STEPS, RATE, LENGTH = 3, 60, 0.5, 4
VERSION, PARAMETERS, PUSHED, GRADIENTS = 0, 4096, 8192, 12288  # where they lie in the region
PITCH = 64  # from one worker's to the next one's

WORKER = f"""
import sys
import numpy as np
import gdrpy

rank = int(sys.argv[2])
random = np.random.default_rng(rank)
inputs = random.standard_normal((200, {LENGTH}))
outputs = inputs @ [2.0, -3.0, 0.5, 7.0]  # what is to be found

with gdrpy.connect(sys.argv[1]) as broker, broker.get("model", gpu=False) as region:
    version, pushed = region.flag({VERSION}), region.flag({PUSHED} + rank * {PITCH})
    for step in range({STEPS}):
        version.wait(step, timeout=20.0)
        parameters = np.frombuffer(region.read(8 * {LENGTH}, {PARAMETERS}))
        errors = inputs @ parameters - outputs
        region.write(errors @ inputs / len(inputs), {GRADIENTS} + rank * {PITCH})
        pushed.set(step + 1)
"""


def as_arrays(region: gdrpy.Region) -> tuple:
    """Parameters and gradients as the server computes on them: by torch on a GPU, else by numpy."""
    if cuda.simulated():
        from numpy import from_dlpack
    else:
        from torch import from_dlpack
    rows = region.array((WORKERS, PITCH // 8), "F64", GRADIENTS)
    return from_dlpack(region.array(LENGTH, "F64", PARAMETERS)), from_dlpack(rows)[:, :LENGTH]


with (
    temporary() as path,
    gdrpy.connect(path) as broker,
    broker.allocate("model", 1 << 20) as region,
    cuda.context(0),
):
    version = region.flag(VERSION)
    pushed = [region.flag(PUSHED + rank * PITCH) for rank in range(WORKERS)]
    region.fill(0)  # parameters, and flags

    program = [sys.executable, "-P", "-c", WORKER, path]
    workers = [subprocess.Popen([*program, str(rank)]) for rank in range(WORKERS)]

    parameters, gradients = as_arrays(region)
    for step in range(1, STEPS + 1):
        for flag in pushed:
            flag.wait(step, timeout=20.0)
        parameters -= RATE * gradients.mean(0)
        cuda.call("cuCtxSynchronize")  # applied before the version says so
        version.set(step)

    ends = [worker.wait() for worker in workers]
    found = [round(value, 3) for value in parameters.tolist()]
    del parameters, gradients  # views first, then the region

print(f"version {STEPS}, workers ended with {ends}: {found}")
