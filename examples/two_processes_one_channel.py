"""A producer without CUDA pushes to a kernel of another process, is killed, and has a successor.

The simulated GPU has no kernels: there a thread of the kernel's process takes the records.
"""

import ctypes
import signal
import subprocess
import sys
import threading

import numpy as np

import gdrpy
from gdrpy import cuda
from gdrpy.channel import KernelEnd

ORDERS = 20_000
ORDER = np.dtype([("number", "u8"), ("price", "f8")])
TOTALS = np.dtype([("orders", "u8"), ("in order", "u8"), ("worth", "f8")])

SOURCE = """
#include <gdrpy/channel.cuh>

struct Order {
	unsigned long long number;
	double price;
};

struct Totals {
	unsigned long long orders, in_order;
	double worth;
};

extern "C" __global__ void total(const gdr_channel *channel, volatile Totals *totals)
{
	gdrpy::ChannelReader reader(channel); // after the orders that were taken before

	while (unsigned long long n = reader.wait()) { // 0: the end
		for (unsigned long long i = 0; i < n; i++) {
			Order order = reader.load<Order>(i);
			totals->in_order += order.number == totals->orders;
			totals->orders++;
			totals->worth += order.price;
		}
		reader.release(n);
	}
}
"""


def produce(socket: str, to: int) -> None:
    """Push the orders that are left up to a number, in a process without CUDA."""
    with (
        gdrpy.connect(socket) as broker,
        gdrpy.Channel(ORDER.itemsize, 1024, broker=broker, name="orders") as channel,
    ):
        for number in range(channel.pushed, to):
            channel.push(np.array([(number, 0.5)], ORDER))
        if to < ORDERS:
            signal.pause()  # until it is killed
    assert "cuda.bindings" not in sys.modules


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


def run_kernel(end: KernelEnd, totals: gdrpy.Mapping) -> None:
    """Launch the kernel, and wait until it has seen the end."""
    module = cuda.call("cuModuleLoadData", compiled(SOURCE))
    kernel = cuda.call("cuModuleGetFunction", module, b"total")
    stream = cuda.call("cuStreamCreate", cuda.driver().CUstream_flags.CU_STREAM_NON_BLOCKING)
    arguments = ((end.ptr, totals.ptr), (ctypes.c_void_p, ctypes.c_void_p))
    cuda.call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, 0)
    cuda.call("cuStreamSynchronize", stream)
    cuda.call("cuStreamDestroy", stream)
    cuda.call("cuModuleUnload", module)


def run_reader(end: KernelEnd, totals: gdrpy.Mapping) -> None:
    """What the kernel does, by a reader on the CPU."""
    found = np.frombuffer(totals.read(), TOTALS).copy()
    for record in end.reader():
        order = np.frombuffer(record, ORDER)[0]
        found["in order"] += order["number"] == found["orders"][0]
        found["orders"] += 1
        found["worth"] += order["price"]
    totals.write(found)


def kill_half_way(producer: subprocess.Popen[bytes], host: gdrpy.Region) -> None:
    """Kill the producer when it has pushed its orders."""
    host.flag(72, 8).wait(ORDERS // 2, timeout=60)  # the word that counts them
    producer.kill()
    producer.wait()


def main(socket: str) -> None:
    """Be the kernel's process."""
    if cuda.simulated():
        print("the simulated GPU has no kernels: a thread takes the orders")
    run = run_reader if cuda.simulated() else run_kernel
    command = [sys.executable, __file__, socket]
    first = subprocess.Popen([*command, str(ORDERS // 2)])
    second: subprocess.Popen[bytes] | None = None
    with (
        gdrpy.connect(socket) as broker,
        KernelEnd(broker, "orders", wait=60) as end,
        broker.get("orders/host", gpu=False) as host,
        gdrpy.page_locked(TOTALS.itemsize) as totals,
        cuda.context(0),
    ):
        totals.write(bytes(totals.nbytes))
        killer = threading.Thread(target=kill_half_way, args=(first, host))
        killer.start()
        while end.wait(timeout=60):
            run(end, totals)
            if second is None:
                killer.join()
                print("the kernel has seen the end of a producer that was killed")
                second = subprocess.Popen([*command, str(ORDERS)])
        assert second is not None
        assert second.wait() == 0
        count, in_order, worth = np.frombuffer(totals.read(), TOTALS)[0]
        print(f"{count} orders, {in_order} in order, together worth {worth:.2f}")


if __name__ == "__main__":
    if sys.argv[1:]:
        produce(sys.argv[1], int(sys.argv[2]))
    else:
        with gdrpy.broker.temporary() as path:
            main(path)
