"""Work that is queued on the GPU ahead of time starts when the CPU sets a flag."""

import gdrpy
from gdrpy import cuda

with gdrpy.alloc(1 << 20) as region:
    start, done = region.flag(offset=0), region.flag(offset=64)
    start.set(0)
    done.set(0)

    with cuda.context(region.device):
        stream = cuda.call("cuStreamCreate", cuda.driver().CUstream_flags.CU_STREAM_NON_BLOCKING)
        start.stream_wait(stream, 1)
        cuda.call("cuMemsetD32Async", region.ptr + 4096, 0xC0FFEE, 1024, stream)
        done.stream_write(stream, 1)

        region.write(b"arguments, written at the last moment", offset=8192)
        start.set(1)  # one store: no launch, no copy
        done.wait(1, timeout=5.0)
        cuda.call("cuStreamSynchronize", stream)  # before its memory is given back
        cuda.call("cuStreamDestroy", stream)

    print(f"the GPU wrote {region.cpu.load(4096):#x}")
