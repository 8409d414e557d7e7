"""A kernel, compiled by NVRTC, takes records as the CPU pushes them, and adds them up.

The simulated GPU has no kernels: there a thread of this program takes them.
"""

import ctypes
import threading
from collections.abc import Callable

import numpy as np

import gdrpy
from gdrpy import cuda

SOURCE = """
#include <gdrpy/channel.cuh>

struct Trade {
	unsigned long long number;
	double price;
};

struct Totals {
	unsigned long long trades;
	double worth;
};

extern "C" __global__ void total(const gdr_channel *channel, Totals *totals)
{
	gdrpy::ChannelReader reader(channel);
	Totals found = {0, 0};

	while (unsigned long long n = reader.wait()) { // 0: the channel's end
		for (unsigned long long i = 0; i < n; i++) {
			Trade trade = reader.load<Trade>(i);
			found.trades += trade.number == found.trades;
			found.worth += trade.price;
		}
		reader.release(n);
	}
	*totals = found;
}
"""
TRADE = np.dtype([("number", "u8"), ("price", "f8")])
TOTALS = np.dtype([("trades", "u8"), ("worth", "f8")])


def compiled(source: str) -> bytes:
    """The machine code of a kernel for device 0."""
    from cuda.bindings import nvrtc

    major, minor = cuda.device_info(0).compute_capability
    options = [f"--gpu-architecture=sm_{major}{minor}", f"-I{gdrpy.channel.include_dir()}"]
    _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"total.cu", 0, [], [])
    (result,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
    if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = bytes(nvrtc.nvrtcGetProgramLogSize(program)[1])
        nvrtc.nvrtcGetProgramLog(program, log)
        raise SystemExit(log.decode())
    code = bytes(nvrtc.nvrtcGetCUBINSize(program)[1])
    nvrtc.nvrtcGetCUBIN(program, code)
    nvrtc.nvrtcDestroyProgram(program)
    return code


def start_kernel(channel: gdrpy.Channel, totals: gdrpy.Mapping) -> Callable[[], None]:
    """Launch the kernel; what is returned waits for its end."""
    module = cuda.call("cuModuleLoadData", compiled(SOURCE))
    kernel = cuda.call("cuModuleGetFunction", module, b"total")
    stream = cuda.call("cuStreamCreate", cuda.driver().CUstream_flags.CU_STREAM_NON_BLOCKING)
    arguments = ((channel.ptr, totals.ptr), (ctypes.c_void_p, ctypes.c_void_p))
    cuda.call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, 0)

    def finish() -> None:
        cuda.call("cuStreamSynchronize", stream)
        cuda.call("cuStreamDestroy", stream)
        cuda.call("cuModuleUnload", module)

    return finish


def start_thread(channel: gdrpy.Channel, totals: gdrpy.Mapping) -> Callable[[], None]:
    """What the kernel does, by a reader on the CPU."""
    print("the simulated GPU has no kernels: a thread takes the records")

    def total() -> None:
        found = np.zeros(1, TOTALS)
        for record in channel.reader():
            trade = np.frombuffer(record, TRADE)[0]
            found["trades"] += trade["number"] == found["trades"][0]
            found["worth"] += trade["price"]
        totals.write(found)

    thread = threading.Thread(target=total)
    thread.start()
    return thread.join


trades = np.zeros(20_000, TRADE)
trades["number"] = range(20_000)
trades["price"] = 0.5

channel = gdrpy.Channel(record_nbytes=TRADE.itemsize, capacity=1024)
with gdrpy.page_locked(TOTALS.itemsize) as totals, cuda.context(0):
    start = start_thread if cuda.simulated() else start_kernel
    finish = start(channel, totals)
    with channel:
        for i in range(1000):
            channel.push(trades[i : i + 1])
        channel.push_many(trades[1000:])
    finish()
    count, worth = np.frombuffer(totals.read(), TOTALS)[0]

print(f"{count} trades in order, together worth {worth:.2f}")
