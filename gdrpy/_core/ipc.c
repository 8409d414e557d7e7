/* SPDX-License-Identifier: MIT */
#include "ipc.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define NON_BLOCKING 1 /* a stream that does not wait for the default one */

void gdr_ipc_parse(const struct gdr_cuda_ipc *handle, struct gdr_ipc_info *info)
{
	uint32_t word[sizeof(handle->bytes) / 4];

	memcpy(word, handle->bytes, sizeof(word));
	info->pid = word[2];
	info->nbytes = (uint64_t)word[5] << 32 | word[4];
	info->block_nbytes = (uint64_t)word[6] * 4096;
	info->block_offset = word[7];
	info->client = word[12];
	info->object = word[13];
}

static int implausible(const struct gdr_ipc_info *info, const struct gdr_pointer *pointer,
		       struct gdr_error *error)
{
	unsigned long long ptr = pointer->ptr, nbytes = pointer->nbytes;

	if (info->pid != (uint32_t)getpid())
		return gdr_fail(error, GDR_FAILED_UNAVAILABLE, EOPNOTSUPP,
				"the IPC handle of %#llx names process %u, not this one (%d)", ptr,
				info->pid, (int)getpid());
	if (info->nbytes != nbytes)
		return gdr_fail(error, GDR_FAILED_UNAVAILABLE, EOPNOTSUPP,
				"the IPC handle of %#llx says %llu bytes, and CUDA %llu", ptr,
				(unsigned long long)info->nbytes, nbytes);
	if (info->block_offset > info->block_nbytes ||
	    nbytes > info->block_nbytes - info->block_offset)
		return gdr_fail(
			error, GDR_FAILED_UNAVAILABLE, EOPNOTSUPP,
			"the IPC handle of %#llx puts %llu bytes at %llu of a block of %llu", ptr,
			nbytes, (unsigned long long)info->block_offset,
			(unsigned long long)info->block_nbytes);
	return 0;
}

int gdr_ipc_find(const struct gdr_cuda *cuda, const struct gdr_pointer *pointer,
		 struct gdr_ipc_info *info, struct gdr_error *error)
{
	struct gdr_cuda_ipc handle;

	if (gdr_pointer_ipc_handle(cuda, pointer, &handle, error))
		return -1;
	gdr_ipc_parse(&handle, info);
	return implausible(info, pointer, error);
}

int gdr_ipc_offset(const struct gdr_ipc_info *info, const struct gdr_pointer *pointer,
		   const struct gdr_range *range, uint64_t *offset, struct gdr_error *error)
{
	uint64_t end = pointer->map_base + pointer->map_nbytes;

	*offset = range->start - (pointer->base - info->block_offset);
	if (range->start >= pointer->map_base && range->end <= end)
		return 0;
	return gdr_fail(error, GDR_FAILED_SIZE, EINVAL,
			"%llu bytes at %#llx run past the %llu bytes at %#llx that the memory is a "
			"part of",
			(unsigned long long)(range->end - range->start),
			(unsigned long long)range->start, (unsigned long long)pointer->map_nbytes,
			(unsigned long long)pointer->map_base);
}

/* Two sizes that share a block, each with its own pattern. */
#define SCRATCH_WORDS 2048

static const struct {
	size_t words;
	uint32_t pattern;
} scratch[] = {{1024, 0x67647201}, {SCRATCH_WORDS, 0x67647202}};

/* Copy words to new GPU memory, waiting for no other work. Its address, 0 with *error filled in. */
static uint64_t new_scratch(const struct gdr_cuda *cuda, const uint32_t *words, size_t nbytes,
			    struct gdr_error *error)
{
	const char *call = "cuMemAlloc";
	uint64_t memory;
	void *stream;
	int result = cuda->cuMemAlloc(&memory, nbytes);

	if (result)
		goto failed;
	call = "cuStreamCreate";
	result = cuda->cuStreamCreate(&stream, NON_BLOCKING);
	if (result)
		goto failed;
	call = "cuMemcpyHtoDAsync";
	result = cuda->cuMemcpyHtoDAsync(memory, words, nbytes, stream);
	if (!result)
		result = cuda->cuStreamSynchronize(stream);
	cuda->cuStreamDestroy(stream);
	if (!result)
		return memory;
failed:
	gdr_cuda_fail(error, cuda, call, result, "the self-check of IPC handles");
	return 0;
}

static int check_one(const struct gdr_cuda *cuda, size_t words, uint32_t pattern, gdr_ipc_read read,
		     struct gdr_error *error)
{
	uint32_t put[SCRATCH_WORDS], found[SCRATCH_WORDS];
	size_t nbytes = words * sizeof(put[0]);
	struct gdr_pointer pointer;
	struct gdr_ipc_info info;
	uint64_t memory;

	for (size_t i = 0; i < words; i++)
		put[i] = pattern;
	memory = new_scratch(cuda, put, nbytes, error);
	if (!memory || gdr_pointer_find(cuda, memory, &pointer, error) ||
	    gdr_ipc_find(cuda, &pointer, &info, error) ||
	    read(cuda, &pointer, &info, found, nbytes, error))
		return -1;
	if (memcmp(put, found, nbytes))
		return gdr_fail(error, GDR_FAILED_UNAVAILABLE, EOPNOTSUPP,
				"the self-check found other bytes behind the handle than CUDA put "
				"there");
	return 0;
}

int gdr_ipc_check(const struct gdr_cuda *cuda, const struct gdr_pointer *near, gdr_ipc_read read,
		  struct gdr_error *error)
{
	struct gdr_context context;
	int ret = 0;

	if (gdr_context_enter(cuda, near, &context, error))
		return -1;
	for (size_t i = 0; !ret && i < sizeof(scratch) / sizeof(scratch[0]); i++)
		ret = check_one(cuda, scratch[i].words, scratch[i].pattern, read, error);
	gdr_context_leave(cuda, &context);
	return ret;
}
