/* SPDX-License-Identifier: MIT */
/*
 * Device pointers taken in by nvrm, on the simulated resource manager (preloaded), with a driver
 * whose IPC handles are not what they should be: they are found out, and nothing is left behind.
 *
 * What the check of a device found is kept for the life of a process: so each test has its own.
 */
#include "../c/test_sim.h"

#include <errno.h>
#include <sys/wait.h>

#include "backends/backends.h"
#include "cuda/ipc.h"
#include "preloaded.h"

static struct core_cuda real, doctored;
static size_t word;	  /* of the handle, that is changed */
static uint32_t added;	  /* to it */
static uint64_t only = 0; /* the one pointer whose handle is; 0: all */

static int change_handle(struct core_cuda_ipc *handle, uint64_t pointer)
{
	int result = real.cuIpcGetMemHandle(handle, pointer);
	uint32_t value;

	if (result || (only && pointer != only))
		return result;
	memcpy(&value, handle->bytes + 4 * word, sizeof(value));
	value += added;
	memcpy(handle->bytes + 4 * word, &value, sizeof(value));
	return 0;
}

static int refuse_handle(struct core_cuda_ipc *handle, uint64_t pointer)
{
	(void)handle;
	(void)pointer;
	return CUDA_ERROR_INVALID_VALUE;
}

static void prepare(void)
{
	start();
	CHECK(core_cuda_find(&real));
	doctored = real;
}

static struct core_memory *take(uint64_t ptr, uint64_t nbytes, struct core_error *error)
{
	const struct core_request request = {.ptr = ptr, .nbytes = nbytes, .fd = -1};

	return core_take(&doctored, &core_backend_nvrm, &request, error);
}

static void check_nothing_left(void)
{
	CHECK_EQ(count("objects"), 0);
	CHECK_EQ(count("mappings"), 0);
	CHECK_EQ(count("violations"), 0);
}

static void check_refused(uint64_t ptr, enum core_failure failure, int number, const char *told)
{
	struct core_error error;

	CHECK(!take(ptr, 100, &error));
	if (!strstr(error.message, told))
		FAIL("\"%s\" does not tell \"%s\"", error.message, told);
	CHECK_EQ(error.failure, failure);
	CHECK_EQ(error.number, number);
	check_nothing_left();
}

static void check_found_out(uint64_t ptr, const char *told)
{
	check_refused(ptr, CORE_FAILED_UNAVAILABLE, ENODEV, told);
}

static void check_released(struct core_memory *memory)
{
	struct core_error error;

	CHECK_EQ(core_memory_release(memory, &error), 0);
	check_nothing_left();
}

static void change(size_t which, uint32_t by)
{
	word = which;
	added = by;
	doctored.cuIpcGetMemHandle = change_handle;
}

static void a_handle_as_it_should_be_is_taken(void)
{
	CUdeviceptr pointer = allocate(4096);
	struct core_error error;
	struct core_memory *memory = take(pointer + 100, 1000, &error);
	struct core_view view;

	CHECK(memory);
	CHECK_EQ(memory->va, pointer + 100);
	CHECK_EQ(memory->nbytes, 1000);
	CHECK_EQ(core_memory_map(memory, 10, 20, false, &view, &error), 0);
	memcpy(view.map.address, "bytes", 5);
	CHECK_MEM_EQ(host(pointer + 110), "bytes", 5);
	CHECK_EQ(core_memory_unmap(memory, &view, &error), 0);
	check_released(memory);
}

static void a_block_offset_that_is_another_is_found_out(void)
{
	change(7, 8192);
	check_found_out(allocate(4096), "self-check read other bytes");
}

static void an_offset_past_the_block_is_found_out(void)
{
	change(7, 4 << 20);
	check_found_out(allocate(4096), "of a block of");
}

static void a_handle_of_another_process_is_found_out(void)
{
	change(2, 1);
	check_found_out(allocate(4096), "names process");
}

static void another_size_is_found_out(void)
{
	change(4, 4096);
	check_found_out(allocate(4096), "but CUDA 4096");
}

static void a_block_of_another_size_is_found_out(void)
{
	change(6, 512);
	check_found_out(allocate(4096), "a block of 4194304 bytes, but the driver reports 2097152");
}

static int change_large(struct core_cuda_ipc *handle, uint64_t pointer)
{
	int result = real.cuIpcGetMemHandle(handle, pointer);
	uint32_t words[8];

	memcpy(words, handle->bytes, sizeof(words));
	return result || words[4] < GRANULE ? result : change_handle(handle, pointer);
}

static void a_large_block_of_another_size_is_found_out(void)
{
	change(6, 1);
	doctored.cuIpcGetMemHandle = change_large;
	check_found_out(allocate(4096), "a block of 2105344 bytes, but the driver reports 4194304");
}

static void a_client_that_is_no_client_is_found_out(void)
{
	change(12, 1 << 24);
	check_found_out(allocate(4096), "cannot pin cuMemAlloc pointers");
}

static void an_object_that_is_no_object_is_found_out(void)
{
	change(13, 1000);
	check_found_out(allocate(4096), "cannot pin cuMemAlloc pointers");
}

/* Once the layout is trusted, each handle still has to agree with what CUDA says. */
static void a_single_handle_that_contradicts_cuda_is_found_out(void)
{
	CUdeviceptr good = allocate(4096), bad = allocate(8192);
	struct core_error error;
	struct core_memory *memory;

	only = bad;
	change(4, 1);
	memory = take(good, 100, &error);
	CHECK(memory);
	check_released(memory);
	check_found_out(bad, "but CUDA 8192");
	memory = take(good, 100, &error);
	CHECK(memory);
	check_released(memory);
}

static void what_was_found_out_is_remembered(void)
{
	CUdeviceptr pointer = allocate(4096);

	change(7, 8192);
	check_found_out(pointer, "self-check read other bytes");
	doctored.cuIpcGetMemHandle = real.cuIpcGetMemHandle;
	check_found_out(pointer, "self-check read other bytes");
}

/* Not by the layout of handles, but for want of something that may be there next time. */
static void a_check_that_could_not_be_made_is_made_again(void)
{
	CUdeviceptr pointer = allocate(4096);
	struct core_error error;

	CHECK_EQ(set_fault("RM_DUP_OBJECT:1:0x51"), 0);
	check_refused(pointer, CORE_FAILED_MEMORY, ENOMEM, "RM_DUP_OBJECT");
	CHECK_EQ(set_fault("open:/dev/nvidia0:13"), 0);
	check_refused(pointer, CORE_FAILED_PERMISSION, EACCES, "/dev/nvidia0");
	CHECK_EQ(set_fault(""), 0);
	CHECK_EQ(gdrsim_set_fault("cuMemAlloc:1"), 0);
	check_refused(pointer, CORE_FAILED_MEMORY, ENOMEM, "cuMemAlloc");
	CHECK_EQ(gdrsim_set_fault("cuMemcpyHtoDAsync:1:999"), 0);
	check_refused(pointer, CORE_FAILED_CUDA, EIO, "cuMemcpyHtoDAsync");
	check_released(take(pointer, 100, &error));
}

static void the_check_is_made_once(void)
{
	CUdeviceptr pointer = allocate(4096);
	struct core_error error;
	uint64_t allocations;

	check_released(take(pointer, 100, &error));
	allocations = gdrsim_call_count("cuMemAlloc");
	for (int i = 0; i < 10; i++)
		check_released(take(pointer, 100, &error));
	CHECK_EQ(gdrsim_call_count("cuMemAlloc"), allocations);
}

static void each_fact_of_a_pointer_is_asked_once(void)
{
	CUdeviceptr pointer = allocate(4096);
	uint64_t attributes, handles;
	struct core_error error;

	check_released(take(pointer, 100, &error));
	attributes = gdrsim_call_count("cuPointerGetAttribute");
	handles = gdrsim_call_count("cuIpcGetMemHandle");
	check_released(take(pointer, 100, &error));
	CHECK_EQ(gdrsim_call_count("cuPointerGetAttribute"), attributes + 7);
	CHECK_EQ(gdrsim_call_count("cuIpcGetMemHandle"), handles + 1);
}

/* To free its scratch memory would wait for every kernel that runs. */
static void the_check_frees_nothing_and_waits_for_nobody(void)
{
	CUdeviceptr pointer = allocate(4096);
	uint64_t frees = gdrsim_call_count("cuMemFree");
	uint64_t waits = gdrsim_call_count("cuCtxSynchronize");
	struct core_error error;

	check_released(take(pointer, 100, &error));
	CHECK_EQ(gdrsim_call_count("cuMemFree"), frees);
	CHECK_EQ(gdrsim_call_count("cuCtxSynchronize"), waits);
}

static void a_check_that_is_made_again_takes_no_more_memory(void)
{
	CUdeviceptr pointer = allocate(4096);
	uint64_t allocations = gdrsim_call_count("cuMemAlloc");
	struct core_error error;

	for (int i = 0; i < 10; i++) {
		CHECK_EQ(set_fault("RM_MAP_MEMORY:1:0x1a"), 0);
		check_refused(pointer, CORE_FAILED_MEMORY, ENOMEM, "RM_MAP_MEMORY");
	}
	check_released(take(pointer, 100, &error));
	CHECK_EQ(gdrsim_call_count("cuMemAlloc"), allocations + CORE_IPC_SCRATCHES);
}

static void a_check_whose_memory_went_with_its_context_takes_other(void)
{
	struct core_error error;
	CUcontext context;
	CUdeviceptr memory;

	OK(cuCtxCreate_v4(&context, NULL, 0, 0));
	memory = allocate(4096);
	CHECK_EQ(set_fault("RM_MAP_MEMORY:1:0x1a"), 0);
	check_refused(memory, CORE_FAILED_MEMORY, ENOMEM, "RM_MAP_MEMORY");
	OK(cuCtxDestroy_v2(context));

	memory = allocate(4096);
	allocate(4096);
	check_released(take(memory, 100, &error));
}

static void memory_without_a_handle_is_refused(void)
{
	CUdeviceptr pointer = allocate(4096);
	struct core_error error;

	check_released(take(pointer, 100, &error));
	doctored.cuIpcGetMemHandle = refuse_handle;
	check_refused(pointer, CORE_FAILED_HANDLE, EINVAL, "has no IPC handle");
}

static void exported_memory_needs_no_handle(void)
{
	CUmemGenericAllocationHandle allocation = create(GRANULE);
	CUdeviceptr pointer = map(allocation, GRANULE);
	struct core_error error;

	doctored.cuIpcGetMemHandle = refuse_handle;
	check_released(take(pointer + 5000, 100, &error));
	unmap(pointer, GRANULE);
	OK(cuMemRelease(allocation));
}

/* It was exportable, whatever the reason that no descriptor could be made now. */
static void want_of_descriptors_is_not_blamed_on_the_allocation(void)
{
	CUmemGenericAllocationHandle allocation = create(GRANULE);
	CUdeviceptr pointer = map(allocation, GRANULE);
	struct core_error error;

	check_released(take(pointer, 100, &error));
	CHECK_EQ(gdrsim_set_fault("cuMemExportToShareableHandle:1:304"), 0);
	check_refused(pointer, CORE_FAILED_CUDA, EIO, "see ulimit -n");
	unmap(pointer, GRANULE);
	OK(cuMemRelease(allocation));
}

/* One that did would keep GPU memory when its parent is gone. */
static void a_child_keeps_no_descriptor_that_was_opened_for_its_parent(void)
{
	int before = count_descriptors(), status;
	CUmemGenericAllocationHandle allocation = create(GRANULE);
	CUdeviceptr pointer = map(allocation, GRANULE);
	struct core_error error;
	pid_t child;

	check_released(take(pointer, 100, &error));
	child = fork();
	if (!child) {
		CHECK_EQ(count_descriptors(), before);
		_exit(0);
	}
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK_EQ(status, 0);
	unmap(pointer, GRANULE);
	OK(cuMemRelease(allocation));
}

static void check_unproven(CUcontext context, const char *told)
{
	struct core_error error;

	CHECK_EQ(core_backend_nvrm.prove(&doctored, 0, context, &error), -1);
	if (!strstr(error.message, told))
		FAIL("\"%s\" does not tell \"%s\"", error.message, told);
	CHECK_EQ(error.failure, CORE_FAILED_UNAVAILABLE);
	check_nothing_left();
}

static int granularity_of_half(size_t *nbytes, const struct core_cuda_allocation *what, int option)
{
	int result = real.cuMemGetAllocationGranularity(nbytes, what, option);

	*nbytes /= 2;
	return result;
}

static int create_twice_that(uint64_t *handle, size_t nbytes,
			     const struct core_cuda_allocation *what, unsigned long long flags)
{
	return real.cuMemCreate(handle, 2 * nbytes, what, flags);
}

/* As of a driver whose answers lie elsewhere than they did. */
static void an_export_of_another_size_is_found_out(void)
{
	doctored.cuMemGetAllocationGranularity = granularity_of_half;
	doctored.cuMemCreate = create_twice_that;
	check_unproven(NULL, "reports 2097152 bytes for an exported allocation of 1048576");
}

static void a_proof_in_a_context_is_of_its_handles_too(void)
{
	struct core_error error;
	CUcontext context;

	OK(cuCtxGetCurrent(&context));
	change(7, 8192);
	CHECK_EQ(core_backend_nvrm.prove(&doctored, 0, NULL, &error), 0);
	check_unproven(context, "self-check read other bytes");
}

static void a_proof_is_made_once(void)
{
	struct core_error error;
	CUcontext context;
	uint64_t creations, allocations;

	OK(cuCtxGetCurrent(&context));
	CHECK_EQ(core_backend_nvrm.prove(&doctored, 0, context, &error), 0);
	creations = gdrsim_call_count("cuMemCreate");
	allocations = gdrsim_call_count("cuMemAlloc");
	for (int i = 0; i < 10; i++)
		CHECK_EQ(core_backend_nvrm.prove(&doctored, 0, context, &error), 0);
	CHECK_EQ(gdrsim_call_count("cuMemCreate"), creations);
	CHECK_EQ(gdrsim_call_count("cuMemAlloc"), allocations);
	check_nothing_left();
}

static bool coherent;

static int real_attribute(int *value, int attribute, int device)
{
	const int uses_host_page_tables = 100;

	if (attribute != uses_host_page_tables)
		return real.cuDeviceGetAttribute(value, attribute, device);
	*value = coherent;
	return 0;
}

static int export_without_flags(void *handle, uint64_t pointer, size_t nbytes, int type,
				unsigned long long flags)
{
	(void)flags;
	return real.cuMemGetHandleForAddressRange(handle, pointer, nbytes, type, 0);
}

/* As on a real GPU, whatever the CPU. */
static void check_kind_of_dmabuf(bool force_pcie, enum core_mapping_kind kind)
{
	const struct core_request request = {
		.ptr = allocate(GRANULE), .nbytes = GRANULE, .fd = -1, .force_pcie = force_pcie};
	struct core_memory *memory;
	struct core_error error;
	struct core_view view;

	doctored.on_bar = NULL;
	doctored.cuDeviceGetAttribute = real_attribute;
	doctored.cuMemGetHandleForAddressRange = export_without_flags;
	memory = core_take(&doctored, &core_backend_dmabuf, &request, &error);
	CHECK(memory);
	CHECK_EQ(core_memory_map(memory, 0, GRANULE, false, &view, &error), 0);
	CHECK_EQ(view.kind, kind);
	CHECK_EQ(core_memory_unmap(memory, &view, &error), 0);
	check_released(memory);
}

static void a_dmabuf_is_cached_where_the_gpu_is_coherent_and_pcie_not_forced(void)
{
	check_kind_of_dmabuf(false, CORE_MAPPING_WC);
	coherent = true;
	check_kind_of_dmabuf(false, CORE_MAPPING_CACHED);
	check_kind_of_dmabuf(true, CORE_MAPPING_WC);
}

static void a_view_across_two_allocations_is_of_both(void)
{
	CUmemGenericAllocationHandle allocations[] = {create(GRANULE), create(GRANULE)};
	CUdeviceptr pointer = reserve(2 * GRANULE);
	struct core_memory *memory;
	struct core_error error;
	struct core_view view;

	for (int i = 0; i < 2; i++)
		OK(cuMemMap(pointer + i * GRANULE, GRANULE, 0, allocations[i], 0));
	OK(set_access(pointer, 2 * GRANULE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
	memory = take(pointer + 5000, 2 * GRANULE - 5000, &error);
	CHECK(memory);
	CHECK_EQ(core_memory_map(memory, GRANULE - 5000 - 7000, 14000, false, &view, &error), 0);
	CHECK_EQ(view.map.nbytes, 14000);
	memset(host(pointer + GRANULE - 7000), 'a', 7000);
	memset(host(pointer + GRANULE), 'b', 7000);
	CHECK_MEM_EQ(view.map.address, host(pointer + GRANULE - 7000), 14000);
	CHECK_EQ(core_memory_unmap(memory, &view, &error), 0);
	check_released(memory);
	OK(cuMemUnmap(pointer, 2 * GRANULE));
	OK(cuMemRelease(allocations[0]));
	OK(cuMemRelease(allocations[1]));
}

static void a_range_past_the_end_is_refused(void)
{
	CUdeviceptr pointer = allocate(4096);
	struct core_error error;

	CHECK(!take(pointer, 4097, &error));
	CHECK_EQ(error.failure, CORE_FAILED_SIZE);
	CHECK_EQ(error.number, EINVAL);
	CHECK(!take(pointer + 1, UINT64_MAX - pointer, &error));
	CHECK_EQ(error.failure, CORE_FAILED_SIZE);
	CHECK(!take(pointer + 1, UINT64_MAX, &error));
	CHECK_EQ(error.failure, CORE_FAILED_SIZE);
	check_nothing_left();
}

static const struct check_test tests[] = {
	TEST(a_handle_as_it_should_be_is_taken),
	TEST(a_block_offset_that_is_another_is_found_out),
	TEST(an_offset_past_the_block_is_found_out),
	TEST(a_handle_of_another_process_is_found_out),
	TEST(another_size_is_found_out),
	TEST(a_block_of_another_size_is_found_out),
	TEST(a_large_block_of_another_size_is_found_out),
	TEST(a_client_that_is_no_client_is_found_out),
	TEST(an_object_that_is_no_object_is_found_out),
	TEST(a_single_handle_that_contradicts_cuda_is_found_out),
	TEST(what_was_found_out_is_remembered),
	TEST(a_check_that_could_not_be_made_is_made_again),
	TEST(the_check_is_made_once),
	TEST(each_fact_of_a_pointer_is_asked_once),
	TEST(the_check_frees_nothing_and_waits_for_nobody),
	TEST(a_check_that_is_made_again_takes_no_more_memory),
	TEST(a_check_whose_memory_went_with_its_context_takes_other),
	TEST(memory_without_a_handle_is_refused),
	TEST(exported_memory_needs_no_handle),
	TEST(want_of_descriptors_is_not_blamed_on_the_allocation),
	TEST(a_child_keeps_no_descriptor_that_was_opened_for_its_parent),
	TEST(an_export_of_another_size_is_found_out),
	TEST(a_proof_in_a_context_is_of_its_handles_too),
	TEST(a_proof_is_made_once),
	TEST(a_dmabuf_is_cached_where_the_gpu_is_coherent_and_pcie_not_forced),
	TEST(a_view_across_two_allocations_is_of_both),
	TEST(a_range_past_the_end_is_refused),
};

static const struct check_test *current;

static void in_a_process_of_its_own(void)
{
	pid_t child = fork();
	int status;

	if (!child) {
		check_current = current->name;
		prepare();
		current->run();
		_exit(0);
	}
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK_EQ(status, 0);
}

int main(void)
{
	size_t ntests = sizeof(tests) / sizeof(tests[0]);

	for (current = tests; current < tests + ntests; current++)
		in_a_process_of_its_own();
	printf("%zu tests passed\n", ntests);
	return 0;
}
