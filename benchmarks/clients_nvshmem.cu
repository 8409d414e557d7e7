/* SPDX-License-Identifier: MIT */
/*
 * Two PEs, one for each GPU, that add to each other's counters from a kernel:
 * clients_nvshmem RANK FILE, where rank 0 leaves in FILE what rank 1 needs to meet it.
 * Says on a line each how far it came; exit status 0 if all sums are right.
 */
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <unistd.h>

#include <cuda_runtime.h>
#include <nvshmem.h>
#include <nvshmemx.h>

#define COUNT 1000

static void check(cudaError_t error, const char *what)
{
	if (error == cudaSuccess)
		return;
	printf("%s: %s\n", what, cudaGetErrorString(error));
	exit(1);
}

/* Adds 1, 2, ... COUNT to one counter of the peer, and COUNT times 1 to the next. */
__global__ void add(uint64_t *counters, int peer, uint64_t *last)
{
	for (int i = 1; i <= COUNT; i++) {
		*last = nvshmem_uint64_atomic_fetch_add(counters, i, peer);
		nvshmem_uint64_atomic_add(counters + 1, 1, peer);
	}
	nvshmem_quiet();
}

static bool leave(const nvshmemx_uniqueid_t *id, const char *path)
{
	char part[4096];
	FILE *file;

	snprintf(part, sizeof(part), "%s.part", path);
	file = fopen(part, "wb");
	if (!file)
		return false;
	bool written = fwrite(id, sizeof(*id), 1, file) == 1;
	return !fclose(file) && written && !rename(part, path);
}

static bool take(nvshmemx_uniqueid_t *id, const char *path)
{
	FILE *file;

	while (access(path, R_OK))
		usleep(10000);
	file = fopen(path, "rb");
	if (!file)
		return false;
	bool read = fread(id, sizeof(*id), 1, file) == 1;
	fclose(file);
	return read;
}

static bool meet(int rank, const char *path)
{
	nvshmemx_uniqueid_t id = NVSHMEMX_UNIQUEID_INITIALIZER;
	nvshmemx_init_attr_t attributes = NVSHMEMX_INIT_ATTR_INITIALIZER;

	if (!rank && nvshmemx_get_uniqueid(&id))
		return false;
	if (!(rank ? take(&id, path) : leave(&id, path)))
		return false;
	nvshmemx_set_attr_uniqueid_args(rank, 2, &id, &attributes);
	return !nvshmemx_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attributes);
}

/* Whether the peer's sums arrived here. */
static bool add_to_each_other(int rank)
{
	const uint64_t sum = (uint64_t)COUNT * (COUNT + 1) / 2;
	uint64_t *counters = (uint64_t *)nvshmem_calloc(2, sizeof(*counters)), *last, found[2];
	cudaEvent_t from, to;
	float ms;

	printf("reached: memory, %s\n", nvshmem_ptr(counters, !rank) ? "the peer's within reach"
								     : "the peer's out of reach");
	check(cudaMalloc(&last, sizeof(*last)), "cudaMalloc");
	check(cudaEventCreate(&from), "cudaEventCreate");
	check(cudaEventCreate(&to), "cudaEventCreate");
	nvshmem_barrier_all();
	printf("reached: barrier\n");
	check(cudaEventRecord(from), "cudaEventRecord");
	add<<<1, 1>>>(counters, !rank, last);
	check(cudaEventRecord(to), "cudaEventRecord");
	check(cudaDeviceSynchronize(), "the kernel");
	check(cudaEventElapsedTime(&ms, from, to), "cudaEventElapsedTime");
	printf("reached: kernel, %.2f us for fetch_add and add\n", ms * 1000 / COUNT);
	nvshmem_barrier_all();
	check(cudaMemcpy(found, counters, sizeof(found), cudaMemcpyDeviceToHost), "cudaMemcpy");
	nvshmem_free(counters);
	bool right = found[0] == sum && found[1] == COUNT;
	printf("sums: %llu and %llu, %s\n", (unsigned long long)found[0],
	       (unsigned long long)found[1], right ? "right" : "WRONG");
	return right;
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	int rank = atoi(argv[1]);
	setvbuf(stdout, NULL, _IOLBF, 0);
	check(cudaSetDevice(rank), "cudaSetDevice");
	if (!meet(rank, argv[2])) {
		printf("could not meet the other\n");
		return 1;
	}
	printf("reached: PE %d of %d\n", nvshmem_my_pe(), nvshmem_n_pes());
	bool right = add_to_each_other(rank);
	nvshmem_finalize();
	return !right;
}
