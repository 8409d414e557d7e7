/* SPDX-License-Identifier: MIT */
/* Stream operations that wait for a word of memory or write one. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "access.h"
#include "queue.h"

#define MAX_BATCH 255

/* A wait checks this often without sleeping, then sleeps between checks. */
#define SPINS 100
#define SLEEP_NS 20000

struct word_operation {
	bool wait;
	bool wide; /* 64 bits */
	unsigned int compare;
	uint64_t address;
	uint64_t value;
};

struct batch_operation {
	struct operation operation;
	size_t count;
	struct word_operation words[];
};

static size_t width(const struct word_operation *word)
{
	return word->wide ? sizeof(uint64_t) : sizeof(uint32_t);
}

static uint64_t load(const struct word_operation *word)
{
	if (word->wide)
		return __atomic_load_n((uint64_t *)(uintptr_t)word->address, __ATOMIC_ACQUIRE);
	return __atomic_load_n((uint32_t *)(uintptr_t)word->address, __ATOMIC_ACQUIRE);
}

static void store(const struct word_operation *word)
{
	if (word->wide)
		__atomic_store_n((uint64_t *)(uintptr_t)word->address, word->value,
				 __ATOMIC_RELEASE);
	else
		__atomic_store_n((uint32_t *)(uintptr_t)word->address, (uint32_t)word->value,
				 __ATOMIC_RELEASE);
}

static bool satisfied(const struct word_operation *word)
{
	uint64_t found = load(word);
	uint64_t unset = word->wide ? ~(found | word->value)
				    : (uint32_t)~((uint32_t)found | (uint32_t)word->value);

	switch (word->compare) {
	case CU_STREAM_WAIT_VALUE_EQ:
		return found == word->value;
	case CU_STREAM_WAIT_VALUE_AND:
		return (found & word->value) != 0;
	case CU_STREAM_WAIT_VALUE_NOR:
		return unset != 0;
	default: /* at least the value, cyclically */
		return word->wide ? (int64_t)(found - word->value) >= 0
				  : (int32_t)((uint32_t)found - (uint32_t)word->value) >= 0;
	}
}

static CUresult check_access(const struct context *context, const struct word_operation *word)
{
	struct span span = {word->address, width(word)};

	return access_check(context->device, span,
			    word->wait ? CU_MEM_ACCESS_FLAGS_PROT_READ
				       : CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
			    false);
}

static void pause_between_looks(unsigned int look)
{
	const struct timespec nap = {.tv_nsec = SLEEP_NS};

	pthread_mutex_unlock(&sim.lock);
	if (look < SPINS)
		sched_yield();
	else
		nanosleep(&nap, NULL);
	pthread_mutex_lock(&sim.lock);
}

static CUresult run_word(struct stream *stream, const struct word_operation *word)
{
	for (unsigned int look = 0;; look += look < SPINS) {
		if (stream->cancelled)
			return CUDA_SUCCESS;
		if (check_access(stream->context, word) != CUDA_SUCCESS)
			return CUDA_ERROR_ILLEGAL_ADDRESS;
		if (!word->wait)
			break;
		if (satisfied(word))
			return CUDA_SUCCESS;
		pause_between_looks(look);
	}
	store(word);
	return CUDA_SUCCESS;
}

static CUresult run_batch(struct stream *stream, struct operation *operation)
{
	struct batch_operation *batch = (struct batch_operation *)operation;
	CUresult result = CUDA_SUCCESS;

	for (size_t i = 0; i < batch->count && result == CUDA_SUCCESS; i++)
		result = run_word(stream, &batch->words[i]);
	return result;
}

static CUresult check_word(const struct context *context, const struct word_operation *word,
			   unsigned int flags)
{
	REQUIRE(word->address % width(word) == 0);
	/* Simulated devices neither need nor support a flush of remote writes. */
	if (word->wait && flags & CU_STREAM_WAIT_VALUE_FLUSH)
		return CUDA_ERROR_NOT_SUPPORTED;
	REQUIRE(flags <= (word->wait ? CU_STREAM_WAIT_VALUE_NOR : 0));
	return check_access(context, word);
}

/* Adds one parameter's operation to the batch, if it does anything. */
static CUresult add(struct batch_operation *batch, const struct context *context,
		    const CUstreamBatchMemOpParams *parameters)
{
	struct word_operation word = {
		.address = parameters->value.address,
		.value = parameters->value.value,
		.compare = parameters->value.flags,
	};

	switch (parameters->operation) {
	case CU_STREAM_MEM_OP_WAIT_VALUE_64:
		word.wide = true;
		word.wait = true;
		break;
	case CU_STREAM_MEM_OP_WAIT_VALUE_32:
		word.wait = true;
		break;
	case CU_STREAM_MEM_OP_WRITE_VALUE_64:
		word.wide = true;
		break;
	case CU_STREAM_MEM_OP_WRITE_VALUE_32:
		break;
	case CU_STREAM_MEM_OP_BARRIER: /* each word is a barrier already */
		return parameters->barrier.flags > 1 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
	case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
		return CUDA_ERROR_NOT_SUPPORTED;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!word.wide)
		word.value = (uint32_t)word.value;
	TRY(check_word(context, &word, word.compare));
	batch->words[batch->count++] = word;
	return CUDA_SUCCESS;
}

static CUresult submit(CUstream handle, const CUstreamBatchMemOpParams *operations, size_t count)
{
	struct batch_operation *batch;
	struct stream *stream;
	CUresult result;
	bool waits = false;

	TRY(stream_use(handle, &stream));
	batch = calloc(1, sizeof(*batch) + count * sizeof(batch->words[0]));
	if (!batch)
		return CUDA_ERROR_OUT_OF_MEMORY;
	batch->operation.run = run_batch;
	for (size_t i = 0; i < count; i++) {
		result = add(batch, stream->context, &operations[i]);
		if (result != CUDA_SUCCESS) {
			free(batch);
			return result;
		}
	}
	for (size_t i = 0; i < batch->count; i++)
		waits |= batch->words[i].wait;
	return waits ? queue_submit(stream, &batch->operation, NULL)
		     : queue_launch(stream, &batch->operation, NULL);
}

/* The function for one operation. */
#define WORD_FUNCTION(symbol, type, operation)                                                     \
	CUresult symbol(CUstream stream, CUdeviceptr address, type value, unsigned int flags)      \
	{                                                                                          \
		API(symbol, NEEDS_INIT);                                                           \
		return submit(stream,                                                              \
			      &(CUstreamBatchMemOpParams){                                         \
				      .value = {operation, address, value, flags, 0}},             \
			      1);                                                                  \
	}

WORD_FUNCTION(cuStreamWaitValue32_v2, uint32_t, CU_STREAM_MEM_OP_WAIT_VALUE_32)
WORD_FUNCTION(cuStreamWaitValue64_v2, uint64_t, CU_STREAM_MEM_OP_WAIT_VALUE_64)
WORD_FUNCTION(cuStreamWriteValue32_v2, uint32_t, CU_STREAM_MEM_OP_WRITE_VALUE_32)
WORD_FUNCTION(cuStreamWriteValue64_v2, uint64_t, CU_STREAM_MEM_OP_WRITE_VALUE_64)

CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned int count,
			       CUstreamBatchMemOpParams *operations, unsigned int flags)
{
	API(cuStreamBatchMemOp_v2, NEEDS_INIT);

	REQUIRE(count <= MAX_BATCH && (!count || operations) && !flags);
	return submit(stream, operations, count);
}
