/* SPDX-License-Identifier: MIT */
/*
 * Rows by DMA, on a driver that works as late as it may: a copy is made when somebody waits for it,
 * so that memory which is used too early, or again too early, holds the wrong bytes.
 */
#include <stdbool.h>

#include "arrays.h"
#include "check.h"
#include "copy/row_blocks.h"
#include "cuda/driver.h"
#include "dma/dma.h"

#ifdef __SANITIZE_THREAD__ /* ten times as slow, and looking for races alone */
#define ARRAYS 30
#else
#define ARRAYS 120
#endif
#define MOST_BYTES (5 << 20) /* of an array: its rows may be larger than the staging memory */
#define MOST_GAP 3000
#define MOST_COPIES 100000
#define LONG_ROW ((size_t)CORE_STAGING_NBYTES * 5 / 2)
#define REFUSED 719

struct copy {
	char *to;
	const char *from;
	size_t to_pitch, from_pitch, nbytes, count;
};

static struct copy copies[MOST_COPIES];
static size_t queued, done, calls, fail_at;
static int contexts;

static int answer(void)
{
	return ++calls == fail_at ? REFUSED : 0;
}

static int work_until(size_t end)
{
	for (; done < end; done++)
		for (size_t row = 0; row < copies[done].count; row++)
			memcpy(copies[done].to + row * copies[done].to_pitch,
			       copies[done].from + row * copies[done].from_pitch,
			       copies[done].nbytes);
	return answer();
}

static int queue(struct copy copy)
{
	CHECK(queued < MOST_COPIES);
	copies[queued++] = copy;
	return answer();
}

static int push_context(void *context)
{
	int result = answer();

	(void)context;
	contexts += !result;
	return result;
}

static int pop_context(void **context)
{
	(void)context;
	contexts--;
	return 0;
}

static int make(void **object, unsigned int flags)
{
	(void)flags;
	*object = answer() ? NULL : calloc(1, sizeof(size_t));
	return *object ? 0 : REFUSED;
}

static int wait_for_stream(void *stream)
{
	(void)stream;
	return work_until(queued);
}

static int record(void *event, void *stream)
{
	(void)stream;
	*(size_t *)event = queued;
	return answer();
}

static int wait_for_event(void *event)
{
	return work_until(*(size_t *)event > done ? *(size_t *)event : done);
}

static int host_alloc(void **memory, size_t nbytes, unsigned int flags)
{
	(void)flags;
	*memory = answer() ? NULL : malloc(nbytes);
	return *memory ? 0 : REFUSED;
}

static int attributes(unsigned int count, int *names, void **values, uint64_t pointer)
{
	(void)count;
	(void)names;
	(void)values;
	(void)pointer;
	return REFUSED;
}

static int to_device(uint64_t device, const void *host, size_t nbytes, void *stream)
{
	(void)stream;
	return queue((struct copy){(char *)(uintptr_t)device, host, 0, 0, nbytes, 1});
}

static int to_host(void *host, uint64_t device, size_t nbytes, void *stream)
{
	(void)stream;
	return queue((struct copy){host, (char *)(uintptr_t)device, 0, 0, nbytes, 1});
}

static char *start_of(const struct core_cuda_end *end)
{
	CHECK(end->memory_type == 1 || end->memory_type == 2);
	return end->memory_type == 1 ? end->host : (char *)(uintptr_t)end->device;
}

static int rows_2d(const struct core_cuda_rows *rows, void *stream)
{
	(void)stream;
	CHECK(rows->from.pitch >= rows->nbytes && rows->to.pitch >= rows->nbytes);
	return queue((struct copy){start_of(&rows->to), start_of(&rows->from), rows->to.pitch,
				   rows->from.pitch, rows->nbytes, rows->count});
}

static int error_name(int result, const char **name)
{
	CHECK_EQ(result, REFUSED);
	*name = "REFUSED";
	return 0;
}

bool __wrap_core_cuda_find(struct core_cuda *cuda)
{
	*cuda = (struct core_cuda){
		.cuGetErrorName = error_name,
		.cuCtxPushCurrent = push_context,
		.cuCtxPopCurrent = pop_context,
		.cuStreamCreate = make,
		.cuStreamSynchronize = wait_for_stream,
		.cuEventCreate = make,
		.cuEventRecord = record,
		.cuEventSynchronize = wait_for_event,
		.cuMemHostAlloc = host_alloc,
		.cuPointerGetAttributes = attributes,
		.cuMemcpyHtoDAsync = to_device,
		.cuMemcpyDtoHAsync = to_host,
		.cuMemcpy2DAsync = rows_2d,
	};
	return true;
}

static struct core_dma *dma;

__attribute__((constructor)) static void open_dma(void)
{
	dma = core_dma_open(NULL);
	CHECK(dma);
}

static void begin(size_t failing_call)
{
	queued = done = calls = 0;
	fail_at = failing_call;
}

/* An array, rows of a device as long and some more apart, and what each of both is to be. */
struct rig {
	struct array array;
	struct core_rows rows;
	size_t extent;
	char *device, *expected_device, *expected_memory;
};

static void set_up(struct rig *rig)
{
	struct array *array = &rig->array;
	size_t pitch;

	random_array(array, random_below(4) ? 64 << 10 : MOST_BYTES);
	pitch = row_bytes(array) + (random_below(2) ? random_below(MOST_GAP) : 0);
	rig->extent = (size_t)(array->shape[0] - 1) * pitch + row_bytes(array);
	rig->device = random_bytes(rig->extent);
	rig->expected_device = copy_of(rig->device, rig->extent);
	rig->expected_memory = copy_of(array->memory, array->memory_bytes);
	for (size_t n = 0; n < array->elements; n++) {
		char *at = element(array, n);

		memcpy(place_of(rig->expected_device, array, n, pitch), at, array->itemsize);
		memcpy(rig->expected_memory + (at - array->memory),
		       place_of(rig->device, array, n, pitch), array->itemsize);
	}
	core_describe_rows(&rig->rows, array->first, array->itemsize, array->ndim, array->shape,
			   array->strides, pitch);
}

static void tear_down(struct rig *rig)
{
	free(rig->expected_memory);
	free(rig->expected_device);
	free(rig->device);
	free(rig->array.memory);
}

static bool write_rows(struct rig *rig, bool direct, struct core_error *error)
{
	return core_dma_transfer_rows(dma, (uintptr_t)rig->device, &rig->rows, direct, true, error);
}

static bool read_rows(struct rig *rig, bool direct, struct core_error *error)
{
	return core_dma_transfer_rows(dma, (uintptr_t)rig->device, &rig->rows, direct, false,
				      error);
}

static void rows_of_any_array_arrive(void)
{
	for (int i = 0; i < ARRAYS; i++) {
		struct core_error error;
		struct rig rig;
		bool direct;

		set_up(&rig);
		direct = core_rows_are_lines(&rig.rows) && random_below(2);
		begin(0);
		CHECK(write_rows(&rig, direct, &error));
		CHECK_MEM_EQ(rig.device, rig.expected_device, rig.extent);
		CHECK_EQ(contexts, 0);
		tear_down(&rig);
	}
}

static void rows_of_any_array_come_back(void)
{
	for (int i = 0; i < ARRAYS; i++) {
		struct core_error error;
		struct rig rig;
		bool direct;

		set_up(&rig);
		direct = core_rows_are_lines(&rig.rows) && random_below(2);
		begin(0);
		CHECK(read_rows(&rig, direct, &error));
		CHECK_MEM_EQ(rig.array.memory, rig.expected_memory, rig.array.memory_bytes);
		CHECK_EQ(contexts, 0);
		tear_down(&rig);
	}
}

/* Described as of an array with other elements between its own, so that all are staged. */
static void rows_larger_than_the_staging_memory_go_in_parts(void)
{
	ptrdiff_t shape[] = {3, LONG_ROW}, strides[] = {2 * LONG_ROW, 2};
	char *host = random_bytes(6 * LONG_ROW), *device = random_bytes(4 * LONG_ROW);
	char *came_back = copy_of(host, 6 * LONG_ROW);
	struct core_error error;
	struct core_rows rows;

	core_describe_rows(&rows, host, 1, 2, shape, strides, LONG_ROW + 9);
	begin(0);
	CHECK(core_dma_transfer_rows(dma, (uintptr_t)device, &rows, false, true, &error));
	for (size_t n = 0; n < 3 * LONG_ROW; n++)
		CHECK_EQ(device[n / LONG_ROW * (LONG_ROW + 9) + n % LONG_ROW], host[2 * n]);

	for (size_t n = 0; n < 3 * LONG_ROW; n++)
		host[2 * n] = 0;
	begin(0);
	CHECK(core_dma_transfer_rows(dma, (uintptr_t)device, &rows, false, false, &error));
	CHECK_MEM_EQ(host, came_back, 6 * LONG_ROW);

	free(came_back);
	free(device);
	free(host);
}

static void rows_that_dma_takes_are_one_copy(void)
{
	struct core_error error;
	struct core_rows rows;
	char host[64], device[64];

	memset(host, 'h', sizeof(host));
	memset(device, 'd', sizeof(device));
	core_describe_rows(&rows, host, 1, 2, (ptrdiff_t[]){3, 2}, (ptrdiff_t[]){10, 1}, 5);
	CHECK(core_rows_are_lines(&rows));
	begin(0);
	CHECK(core_dma_transfer_rows(dma, (uintptr_t)device, &rows, true, true, &error));
	CHECK_EQ(queued, 1);
	CHECK_MEM_EQ(device, "hhdddhhdddhhdd", 14);
}

static void backward_or_scattered_rows_are_not_taken(void)
{
	struct core_rows rows;
	char host[64];

	core_describe_rows(&rows, host + 20, 1, 2, (ptrdiff_t[]){3, 2}, (ptrdiff_t[]){-10, 1}, 5);
	CHECK(!core_rows_are_lines(&rows));
	core_describe_rows(&rows, host, 1, 2, (ptrdiff_t[]){3, 2}, (ptrdiff_t[]){10, 2}, 5);
	CHECK(!core_rows_are_lines(&rows));
	core_describe_rows(&rows, host, 1, 2, (ptrdiff_t[]){3, 2}, (ptrdiff_t[]){0, 1}, 5);
	CHECK(!core_rows_are_lines(&rows));
}

static void a_call_that_is_refused_is_told_and_the_next_copy_works(void)
{
	for (int i = 0; i < ARRAYS; i++) {
		struct core_error error;
		struct rig rig;
		bool direct, writes = random_below(2);

		set_up(&rig);
		direct = core_rows_are_lines(&rig.rows) && random_below(2);
		begin(1 + random_below(12));
		if (!(writes ? write_rows : read_rows)(&rig, direct, &error)) {
			CHECK_EQ(error.status, REFUSED);
			CHECK(!strncmp(error.call, "cu", 2));
			CHECK(!strcmp(error.result, "REFUSED"));
			CHECK_EQ(error.failure, CORE_FAILED_CUDA);
			begin(0);
			CHECK((writes ? write_rows : read_rows)(&rig, direct, &error));
		}
		if (writes)
			CHECK_MEM_EQ(rig.device, rig.expected_device, rig.extent);
		else
			CHECK_MEM_EQ(rig.array.memory, rig.expected_memory, rig.array.memory_bytes);
		CHECK_EQ(contexts, 0);
		tear_down(&rig);
	}
}

CHECK_MAIN(TEST(a_call_that_is_refused_is_told_and_the_next_copy_works),
	   TEST(rows_of_any_array_arrive), TEST(rows_larger_than_the_staging_memory_go_in_parts),
	   TEST(rows_of_any_array_come_back), TEST(rows_that_dma_takes_are_one_copy),
	   TEST(backward_or_scattered_rows_are_not_taken))
