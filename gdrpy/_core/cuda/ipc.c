/* SPDX-License-Identifier: MIT */
#include "cuda/ipc.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define NON_BLOCKING 1 /* the stream does not wait for the default stream */

static int implausible(const struct core_ipc_info *info, const struct core_pointer *pointer,
		       struct core_error *error)
{
	unsigned long long ptr = pointer->ptr, nbytes = pointer->nbytes;

	if (info->pid != (uint32_t)getpid())
		return core_fail(error, CORE_FAILED_UNAVAILABLE, EOPNOTSUPP,
				 "the IPC handle of %#llx names process %u, not this one (%d)", ptr,
				 info->pid, (int)getpid());
	if (info->nbytes != nbytes)
		return core_fail(error, CORE_FAILED_UNAVAILABLE, EOPNOTSUPP,
				 "the IPC handle of %#llx says %llu bytes, but CUDA %llu", ptr,
				 (unsigned long long)info->nbytes, nbytes);
	if (info->block_offset > info->block_nbytes ||
	    nbytes > info->block_nbytes - info->block_offset)
		return core_fail(
			error, CORE_FAILED_UNAVAILABLE, EOPNOTSUPP,
			"the IPC handle of %#llx puts %llu bytes at offset %llu of a block of %llu",
			ptr, nbytes, (unsigned long long)info->block_offset,
			(unsigned long long)info->block_nbytes);
	return 0;
}

int core_ipc_parse(const struct core_cuda_ipc *handle, const struct core_pointer *pointer,
		   struct core_ipc_info *info, struct core_error *error)
{
	uint32_t word[sizeof(handle->bytes) / 4];

	memcpy(word, handle->bytes, sizeof(word));
	info->pid = word[2];
	info->nbytes = (uint64_t)word[5] << 32 | word[4];
	info->block_nbytes = (uint64_t)word[6] * 4096;
	info->block_offset = word[7];
	info->client = word[12];
	info->object = word[13];
	return implausible(info, pointer, error);
}

int core_ipc_find(const struct core_cuda *cuda, const struct core_pointer *pointer,
		  struct core_ipc_info *info, struct core_error *error)
{
	struct core_cuda_ipc handle;

	if (core_pointer_ipc_handle(cuda, pointer, &handle, error))
		return -1;
	return core_ipc_parse(&handle, pointer, info, error);
}

int core_ipc_offset(const struct core_ipc_info *info, const struct core_pointer *pointer,
		    const struct core_range *range, uint64_t *offset, struct core_error *error)
{
	uint64_t end = pointer->map_base + pointer->map_nbytes;

	*offset = range->start - (pointer->base - info->block_offset);
	if (range->start >= pointer->map_base && range->end <= end)
		return 0;
	return core_fail(
		error, CORE_FAILED_SIZE, EINVAL,
		"%llu bytes at %#llx run past the %llu bytes at %#llx that the memory is a part of",
		(unsigned long long)(range->end - range->start), (unsigned long long)range->start,
		(unsigned long long)pointer->map_nbytes, (unsigned long long)pointer->map_base);
}

#define PAGE 4096
#define GRANULE (2u << 20) /* the driver rounds a block of one allocation up to at most this */

int core_ipc_compare(const struct core_ipc_info *info, uint64_t nbytes, struct core_error *error)
{
	uint64_t own = (info->nbytes + PAGE - 1) / PAGE * PAGE;
	bool alone = !info->block_offset && info->block_nbytes == own && nbytes >= own &&
		     nbytes - own < GRANULE;

	if (nbytes == info->block_nbytes || alone)
		return 0;
	return core_fail(error, CORE_FAILED_UNAVAILABLE, EOPNOTSUPP,
			 "the IPC handle names a block of %llu bytes, but the driver reports %llu",
			 (unsigned long long)info->block_nbytes, (unsigned long long)nbytes);
}

/* Two sizes that share a block, and one with a block to itself; each ends with its own pattern. */
#define MOST_WORDS 2048

static const struct {
	size_t nbytes;
	size_t words;
	uint32_t pattern;
} shapes[CORE_IPC_SCRATCHES] = {
	{4096, 1024, 0x67647201},
	{8192, MOST_WORDS, 0x67647202},
	{GRANULE + PAGE, 1024, 0x67647203},
};

#define PURPOSE "the self-check of IPC handles"

/* Store words at the end of GPU memory, without waiting for other work. */
static int fill_end(const struct core_cuda *cuda, uint64_t end, const uint32_t *words,
		    size_t nbytes, struct core_error *error)
{
	const char *call = "cuStreamCreate";
	void *stream;
	int result = cuda->cuStreamCreate(&stream, NON_BLOCKING);

	if (!result) {
		call = "cuMemcpyHtoDAsync";
		result = cuda->cuMemcpyHtoDAsync(end - nbytes, words, nbytes, stream);
		if (!result)
			result = cuda->cuStreamSynchronize(stream);
		cuda->cuStreamDestroy(stream);
	}
	return result ? core_cuda_fail(error, cuda, call, result, PURPOSE) : 0;
}

/* Memory goes away with its context, and other memory may then have its address. */
static bool is_there(const struct core_cuda *cuda, const struct core_ipc_scratch *scratch)
{
	uint64_t id;

	return scratch->memory && !core_pointer_id(cuda, scratch->memory, &id) && id == scratch->id;
}

/* The memory is kept even if a later step fails. */
static int make(const struct core_cuda *cuda, struct core_ipc_scratch *scratch, size_t nbytes,
		struct core_error *error)
{
	uint64_t memory;
	int result = cuda->cuMemAlloc(&memory, nbytes);

	if (result)
		return core_cuda_fail(error, cuda, "cuMemAlloc", result, PURPOSE);
	scratch->memory = memory;
	core_pointer_id(cuda, memory, &scratch->id);
	return 0;
}

static int check_one(const struct core_cuda *cuda, size_t nbytes, size_t words, uint32_t pattern,
		     struct core_ipc_scratch *scratch, core_ipc_read read, struct core_error *error)
{
	uint32_t put[MOST_WORDS], found[MOST_WORDS];
	size_t end_nbytes = words * sizeof(put[0]);
	struct core_pointer pointer;
	struct core_ipc_info info;

	for (size_t i = 0; i < words; i++)
		put[i] = pattern;
	if ((!is_there(cuda, scratch) && make(cuda, scratch, nbytes, error)) ||
	    fill_end(cuda, scratch->memory + nbytes, put, end_nbytes, error))
		return -1;
	if (core_pointer_find(cuda, scratch->memory, &pointer, error) ||
	    core_ipc_find(cuda, &pointer, &info, error) ||
	    read(cuda, &pointer, &info, nbytes - end_nbytes, found, end_nbytes, error))
		return -1;
	if (memcmp(put, found, end_nbytes))
		return core_fail(error, CORE_FAILED_UNAVAILABLE, EOPNOTSUPP,
				 "the self-check read other bytes through the handle than CUDA "
				 "wrote");
	return 0;
}

int core_ipc_check(const struct core_cuda *cuda, const struct core_pointer *near,
		   struct core_ipc_scratch scratch[CORE_IPC_SCRATCHES], core_ipc_read read,
		   struct core_error *error)
{
	struct core_context context;
	int ret = 0;

	if (core_context_enter(cuda, near, &context, error))
		return -1;
	for (size_t i = 0; !ret && i < CORE_IPC_SCRATCHES; i++)
		ret = check_one(cuda, shapes[i].nbytes, shapes[i].words, shapes[i].pattern,
				&scratch[i], read, error);
	core_context_leave(cuda, &context);
	return ret;
}
