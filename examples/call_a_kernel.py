"""The CPU asks a running kernel, compiled by NVRTC, one question and then many at a time.

The simulated GPU has no kernels: there a thread of this program answers.
"""

import asyncio
import ctypes
import math
import struct
import threading
from collections.abc import Callable

import gdrpy
from gdrpy import cuda

SOURCE = """
#include <gdrpy/channel.cuh>

struct Question {
	double x, y;
};

struct Reply {
	double length;
};

extern "C" __global__ void measure(const gdr_link *link)
{
	gdrpy::LinkServer server(link);
	Question asked;

	while (server.next(asked)) { // false: the link's end
		server.answer(0, Reply{sqrt(asked.x * asked.x + asked.y * asked.y)});
		server.release(1);
	}
	server.stop();
}
"""


def compiled(source: str) -> bytes:
    """The machine code of a kernel for device 0."""
    from cuda.bindings import nvrtc

    major, minor = cuda.device_info(0).compute_capability
    options = [f"--gpu-architecture=sm_{major}{minor}", f"-I{gdrpy.channel.include_dir()}"]
    _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"measure.cu", 0, [], [])
    (result,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
    if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = bytes(nvrtc.nvrtcGetProgramLogSize(program)[1])
        nvrtc.nvrtcGetProgramLog(program, log)
        raise SystemExit(log.decode())
    code = bytes(nvrtc.nvrtcGetCUBINSize(program)[1])
    nvrtc.nvrtcGetCUBIN(program, code)
    nvrtc.nvrtcDestroyProgram(program)
    return code


def start_kernel(link: gdrpy.Link) -> Callable[[], None]:
    """Launch the kernel; what is returned waits for its end."""
    module = cuda.call("cuModuleLoadData", compiled(SOURCE))
    kernel = cuda.call("cuModuleGetFunction", module, b"measure")
    stream = cuda.call("cuStreamCreate", cuda.driver().CUstream_flags.CU_STREAM_NON_BLOCKING)
    arguments = ((link.ptr,), (ctypes.c_void_p,))
    cuda.call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, 0)

    def finish() -> None:
        cuda.call("cuStreamSynchronize", stream)
        cuda.call("cuStreamDestroy", stream)
        cuda.call("cuModuleUnload", module)

    return finish


def start_thread(link: gdrpy.Link) -> Callable[[], None]:
    """What the kernel does, by a server on the CPU."""
    print("the simulated GPU has no kernels: a thread answers")

    def answer(question: bytes) -> bytes:
        return struct.pack("<dxxxxxxxx", math.hypot(*struct.unpack("<dd", question)))

    thread = threading.Thread(target=link.server().serve, args=(answer,))
    thread.start()
    return thread.join


async def ask(link: gdrpy.Link, numbers: range) -> float:
    """The lengths of many vectors, added up: as many questions are under way as the link holds."""
    turns = asyncio.Semaphore(link.capacity)

    async def length(number: int) -> float:
        async with turns:
            reply = await link.submit(struct.pack("<dd", 3.0 * number, 4.0 * number))
        return struct.unpack_from("<d", reply)[0]

    return sum(await asyncio.gather(*map(length, numbers)))


with cuda.context(0):
    link = gdrpy.Link(record_nbytes=16, capacity=64)
    finish = (start_thread if cuda.simulated() else start_kernel)(link)
    with link:
        reply = link.call(struct.pack("<dd", 3.0, 4.0))
        print(f"one question: {struct.unpack_from('<d', reply)[0]:g}")
        print(f"1000 questions: {asyncio.run(ask(link, range(1000))):.0f}")
    finish()
