"""A camera, a process without CUDA, captures frames at a fixed rate into a ring of regions.

Each region holds one frame, and counts how often it was filled and emptied. The camera never waits:
if the GPU has not emptied the next region, the frame is dropped. The consumer queues all of its
work ahead: the GPU itself waits for each frame, and says that it has taken it.
"""

import itertools
import subprocess
import sys
import time
from contextlib import ExitStack

import numpy as np

import gdrpy
from gdrpy import cuda
from gdrpy.broker import temporary

RING, FRAMES, PERIOD = 4, 30, 0.005  # regions; frames; seconds from one to the next
FILLED, EMPTIED, FRAME = 0, 64, 4096  # where they lie in a region
RECORD = np.dtype([("number", "u8"), ("pixels", "u1", (480, 640))])
NAMES = [f"camera-{slot}" for slot in range(RING)]


def capture(number: int) -> np.ndarray:
    """What the camera sees."""
    frame = np.zeros((), RECORD)
    frame["number"] = number
    frame["pixels"] = np.random.default_rng(number).integers(0, 256, (480, 640), np.uint8)
    return frame


def camera(path: str) -> None:
    """Write frames into the ring of the broker at ``path``."""
    with gdrpy.connect(path) as broker, ExitStack() as stack:
        ring = [stack.enter_context(broker.get(name, gpu=False)) for name in NAMES]
        places = itertools.product(range(FRAMES), ring)  # each region once a turn
        turn, region = next(places)
        written = 0
        begin = time.monotonic()
        for number in itertools.count(1):
            time.sleep(max(0, begin + number * PERIOD - time.monotonic()))
            frame = capture(number)
            if region.flag(EMPTIED).get() < turn:
                continue  # dropped: the GPU is late
            region.write(frame, FRAME)
            region.flag(FILLED).set(turn + 1)  # after the frame
            turn, region = next(places)
            written += 1
            if written == FRAMES:
                break
        print(f"camera: {number - written} frames dropped, CUDA loaded: {'cuda' in sys.modules}")


def consumer() -> None:
    """Make the ring, and take each frame on the GPU."""
    with (
        temporary() as path,
        gdrpy.connect(path) as broker,
        ExitStack() as stack,
        gdrpy.alloc(FRAMES * RECORD.itemsize) as album,
        cuda.context(0),
    ):
        nbytes = FRAME + RECORD.itemsize
        ring = [stack.enter_context(broker.allocate(name, nbytes)) for name in NAMES]
        for region in ring:
            region.flag(FILLED).set(0)
            region.flag(EMPTIED).set(0)
        stream = cuda.call("cuStreamCreate", cuda.driver().CUstream_flags.CU_STREAM_NON_BLOCKING)
        for frame in range(FRAMES):
            turn, slot = divmod(frame, RING)
            region, page = ring[slot], album.ptr + frame * RECORD.itemsize
            region.flag(FILLED).stream_wait(stream, turn + 1)
            # Your kernels instead:
            cuda.call("cuMemcpyDtoDAsync", page, region.ptr + FRAME, RECORD.itemsize, stream)
            region.flag(EMPTIED).stream_write(stream, turn + 1)

        subprocess.run([sys.executable, __file__, path], check=True)
        cuda.call("cuStreamSynchronize", stream)
        cuda.call("cuStreamDestroy", stream)
        taken = np.frombuffer(album.read(), RECORD)
        whole = sum(np.array_equal(one, capture(int(one["number"]))) for one in taken)
    print(f"{whole} of {FRAMES} frames whole, through a ring of {RING} regions")


if sys.argv[1:]:
    camera(sys.argv[1])
else:
    consumer()
