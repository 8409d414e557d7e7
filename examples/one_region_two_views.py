"""A CPU store lands in GPU memory, and a GPU write is seen by the CPU."""

import numpy as np

import gdrpy
from gdrpy import cuda

with gdrpy.alloc(1 << 20) as region:  # GPU memory on device 0, ready for both views
    region.numpy(np.float32)[:4] = [1, 2, 3, 4]  # CPU view: the stores land in GPU memory
    region.cpu.flush()  # stores leave the CPU now

    with cuda.context(region.device):  # GPU view: the same bytes, at region.ptr
        cuda.call("cuMemcpyDtoD", region.ptr + 4096, region.ptr, 16)
        cuda.call("cuCtxSynchronize")

    print(region, "->", np.frombuffer(region.read(16, offset=4096), np.float32))
