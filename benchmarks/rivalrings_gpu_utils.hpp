/* SPDX-License-Identifier: MIT */
/* In place of MSCCL++'s headers of this name and others: memory for its FIFO, from the caller. */
#ifndef RIVALRINGS_GPU_UTILS_HPP
#define RIVALRINGS_GPU_UTILS_HPP

#include <cstddef>
#include <cstdint>
#include <memory>

#define MSCCLPP_CUDATHROW(call) (void)(call)

/* Page-locked memory and GPU memory, both zeroed; each piece is aligned to 256 bytes. */
struct bench_memory {
	char *next, *end;

	void *take(std::size_t nbytes)
	{
		char *piece = next;

		next += (nbytes + 255) / 256 * 256;
		return next <= end ? piece : throw std::bad_alloc();
	}
};
extern thread_local bench_memory bench_host, bench_gpu;

static inline int cudaGetDevice(int *device)
{
	return *device = 0;
}

namespace mscclpp
{
static inline int getDeviceNumaNode(int)
{
	return -1;
}
static inline void numaBind(int)
{
}

namespace detail
{
struct Nothing {
	void operator()(void *) const
	{
	}
};
template <class T> using UniqueGpuPtr = std::unique_ptr<T, Nothing>;
template <class T> using UniqueGpuHostPtr = std::unique_ptr<T, Nothing>;

template <class T> UniqueGpuPtr<T> gpuCallocUnique(std::size_t count = 1)
{
	return UniqueGpuPtr<T>(static_cast<T *>(bench_gpu.take(count * sizeof(T))));
}
template <class T> UniqueGpuHostPtr<T> gpuCallocHostUnique(std::size_t count = 1)
{
	return UniqueGpuHostPtr<T>(static_cast<T *>(bench_host.take(count * sizeof(T))));
}
} // namespace detail
} // namespace mscclpp

#endif
