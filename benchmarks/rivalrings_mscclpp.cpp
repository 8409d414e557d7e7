/* SPDX-License-Identifier: MIT */
/* The CPU's end of MSCCL++'s FIFO: its own class, taken as the loop of its proxy takes triggers. */
#include "rivalrings.h"

#include "rivalrings_gpu_utils.hpp"

#include <gdrpy/inbox.h>
#include <mscclpp/fifo.hpp>

#include <dlfcn.h>

thread_local bench_memory bench_host, bench_gpu;

static uint64_t take_of_fifo(void *ring, uint64_t *records, uint64_t)
{
	auto fifo = static_cast<mscclpp::Fifo *>(ring);
	mscclpp::ProxyTrigger trigger = fifo->poll();

	if (trigger.fst == 0 || trigger.snd == 0)
		return 0;
	records[0] = trigger.fst;
	records[1] = trigger.snd ^ uint64_t{1} << 63;
	fifo->pop();
	return 1;
}

/* As Host2DeviceSemaphore::signal() does on one machine: a copy of a word that is not page-locked.
 */
struct copied {
	uint64_t ptr; /* in GPU memory */
	void *stream;
};

static void tell_by_copy(void *token, uint64_t number)
{
	using copy = int(uint64_t, const void *, size_t, void *);
	static auto send = (copy *)dlsym(dlopen("libcuda.so.1", RTLD_LAZY), "cuMemcpyHtoDAsync_v2");
	static uint64_t word;
	auto to = static_cast<copied *>(token);

	word = number;
	send(to->ptr, &word, sizeof(word), to->stream);
}

static void tell_by_mapping(void *token, uint64_t number)
{
	gdr_publish(static_cast<unsigned long long *>(token), number);
}

extern "C" {
/* A FIFO in this memory. What kernels are given is stored to `handle`. NULL if it is too small. */
void *bench_fifo(char *host, uint64_t host_nbytes, char *gpu, uint64_t gpu_nbytes, int size,
		 mscclpp::FifoDeviceHandle *handle)
try {
	bench_host = {host, host + host_nbytes};
	bench_gpu = {gpu, gpu + gpu_nbytes};
	auto fifo = new mscclpp::Fifo(size);
	*handle = fifo->deviceHandle();
	return fifo;
} catch (const std::bad_alloc &) {
	return nullptr;
}

void bench_drop_fifo(void *ring)
{
	delete static_cast<mscclpp::Fifo *>(ring);
}

uint64_t bench_take_fifo(void *ring, uint64_t count, uint64_t limit, check *check)
{
	return take_all(take_of_fifo, 1, ring, count, limit, check);
}

uint64_t bench_play_fifo(void *token, void *ring, uint64_t done, uint64_t rounds, uint64_t limit,
			 uint64_t *samples, check *check)
{
	return play_rounds(tell_by_copy, token, take_of_fifo, ring, done, rounds, limit, samples,
			   check);
}

uint64_t bench_play_fifo_mapped(void *token, void *ring, uint64_t done, uint64_t rounds,
				uint64_t limit, uint64_t *samples, check *check)
{
	return play_rounds(tell_by_mapping, token, take_of_fifo, ring, done, rounds, limit, samples,
			   check);
}
}
