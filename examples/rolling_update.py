"""Weights in one region that several workers share, replaced while they serve.

Each worker goes to the new version when it likes. Until then it has the old one, whole; that is
freed when the last worker has left it. Workers compute by torch on a GPU, else by numpy.
"""

import subprocess
import sys

import numpy as np

import gdrpy
from gdrpy.broker import temporary

WORKERS, VERSIONS, WIDTH = 3, 4, 512

WORKER = f"""
import sys, gdrpy
from gdrpy import cuda

number = int(sys.argv[2])
if cuda.simulated():
    from numpy import from_dlpack
else:
    from torch import from_dlpack

def attach(broker):
    region = broker.get("weights", readonly=True)
    views = {{name: from_dlpack(one) for name, one in region.tensors().items()}}
    return region, views["scale"], views["shift"]

with gdrpy.connect(sys.argv[1]) as broker:
    region, scale, shift = attach(broker)
    print("serving", flush=True)
    mixed, seen = 0, [region.version]
    while region.version < {VERSIONS}:
        for _ in range(20 * number):  # its own pace
            answer = 3 * scale + shift  # of version v, each element is 3 v + v
            mixed += not (answer == 4 * region.version).all()
        if region.stale:
            del scale, shift  # views first, then the region
            region.close()
            region, scale, shift = attach(broker)
            seen.append(region.version)
            print("serving", flush=True)
    print(f"worker {{number}}: mixtures: {{mixed}}, versions in order: {{seen == sorted(seen)}}")
"""


def weights(version: int) -> dict[str, np.ndarray]:
    """What training would give."""
    full = np.full((WIDTH, WIDTH), version, np.float32)
    return {"scale": full, "shift": full}


with temporary() as path, gdrpy.connect(path) as broker, broker.watch(timeout=20.0) as events:
    broker.put_tensors("weights", weights(1)).close()
    one_version = broker.status()["used"]["0"]
    program = [sys.executable, "-P", "-c", WORKER, path]
    workers = [
        subprocess.Popen([*program, str(number)], stdout=subprocess.PIPE, text=True)
        for number in range(1, WORKERS + 1)
    ]
    for worker in workers:
        worker.stdout.readline()  # it serves
    for version in range(2, VERSIONS + 1):
        broker.put_tensors("weights", weights(version)).close()
        workers[0].stdout.readline()  # the quickest has come to it; others may skip some
    for worker in workers:
        print(worker.communicate()[0].splitlines()[-1])
    while broker.status()["used"]["0"] > one_version:
        next(events)  # "freed", in the end

print("every old version is freed")
