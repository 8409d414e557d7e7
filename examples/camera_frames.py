"""A process without CUDA, a camera's say, puts frames into GPU memory; the GPU takes each one.

Two counters in the region say how many frames were written and how many were taken. The consumer
queues all of its work ahead: the GPU itself waits for each frame, and says that it has taken it.
"""

import subprocess
import sys

import numpy as np

import gdrpy
from gdrpy import cuda
from gdrpy.broker import temporary

HEIGHT, WIDTH, SLOTS, FRAMES = 480, 640, 4, 30
NBYTES = HEIGHT * WIDTH
WRITTEN, TAKEN, RING = 0, 64, 4096  # where they lie in the region

CAMERA = f"""
import sys
import numpy as np
import gdrpy

with gdrpy.connect(sys.argv[1]) as broker, broker.get("camera", gpu=False) as region:
    written, taken = region.flag({WRITTEN}), region.flag({TAKEN})
    for number in range(1, {FRAMES} + 1):
        frame = np.random.default_rng(number).integers(0, 256, {NBYTES}, np.uint8)
        taken.wait(max(0, number - {SLOTS}), timeout=20.0)  # until its slot is free
        region.write(frame, {RING} + number % {SLOTS} * {NBYTES})
        written.set(number)  # after the frame
    print("camera: CUDA loaded:", "cuda" in sys.modules)
"""

with (
    temporary() as path,
    gdrpy.connect(path) as broker,
    broker.allocate("camera", RING + SLOTS * NBYTES) as region,
    gdrpy.alloc(FRAMES * NBYTES) as album,
    cuda.context(0),
):
    written, taken = region.flag(WRITTEN), region.flag(TAKEN)
    written.set(0)
    taken.set(0)
    stream = cuda.call("cuStreamCreate", cuda.driver().CUstream_flags.CU_STREAM_NON_BLOCKING)
    for number in range(1, FRAMES + 1):
        slot = region.ptr + RING + number % SLOTS * NBYTES
        place = album.ptr + (number - 1) * NBYTES
        written.stream_wait(stream, number)
        cuda.call("cuMemcpyDtoDAsync", place, slot, NBYTES, stream)  # your kernels instead
        taken.stream_write(stream, number)

    subprocess.run([sys.executable, "-c", CAMERA, path], check=True)
    cuda.call("cuStreamSynchronize", stream)
    cuda.call("cuStreamDestroy", stream)
    right = sum(
        album.read(NBYTES, (number - 1) * NBYTES)
        == np.random.default_rng(number).integers(0, 256, NBYTES, np.uint8).tobytes()
        for number in range(1, FRAMES + 1)
    )

print(f"{right} of {FRAMES} frames whole, through a ring of {SLOTS}")
