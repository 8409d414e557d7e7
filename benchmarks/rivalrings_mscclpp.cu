/* SPDX-License-Identifier: MIT */
/* The same as rivalrings_kernel.cu by MSCCL++'s FIFO, with its headers, and libcu++'s, for NVRTC.
 */
#include <mscclpp/fifo_device.hpp>
#include <mscclpp/semaphore_device.hpp>

#define ODD 0x9E3779B97F4A7C15ull

static __device__ mscclpp::ProxyTrigger made(unsigned long long index)
{
	mscclpp::ProxyTrigger one;

	one.fst = (unsigned long long)threadIdx.x << 40 | (index + 1);
	one.snd = (one.fst * 8 + 1) * ODD >> 1 | 1;
	return one;
}

extern "C" __global__ void fifo16(const mscclpp::FifoDeviceHandle *ring, unsigned long long *,
				  unsigned long long first, unsigned long long count)
{
	mscclpp::FifoDeviceHandle fifo = *ring;

	for (unsigned long long index = first; index < first + count; index++)
		fifo.push(made(index));
}

/* tokens[0] is stored by the CPU; tokens[16] is what the semaphore keeps, at first 0. */
extern "C" __global__ void fifo_answer(const mscclpp::FifoDeviceHandle *ring,
				       unsigned long long *tokens, unsigned long long first,
				       unsigned long long count)
{
	mscclpp::FifoDeviceHandle fifo = *ring;
	mscclpp::Host2DeviceSemaphoreDeviceHandle semaphore;

	semaphore.inboundToken = (uint64_t *)&tokens[0];
	semaphore.expectedInboundToken = (uint64_t *)&tokens[16];
	for (unsigned long long index = first; index < first + count; index++) {
		semaphore.wait();
		fifo.push(made(index));
	}
}
