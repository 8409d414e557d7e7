/* SPDX-License-Identifier: MIT */
/* A forked child may use nothing of its parent's, and takes nothing of it away. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "rig.h"

/* Checks in a forked child, which is killed if it waits for a lock that nobody will give back. */
#define IN_CHILD(body)                                                                             \
	do {                                                                                       \
		pid_t child_ = fork();                                                             \
		int status_;                                                                       \
		if (!child_) {                                                                     \
			alarm(30);                                                                 \
			body;                                                                      \
			_exit(0);                                                                  \
		}                                                                                  \
		CHECK_EQ(waitpid(child_, &status_, 0), child_);                                    \
		CHECK_EQ(status_, 0);                                                              \
	} while (0)

static void check_all_denied(const struct view *view, CUdeviceptr pointer)
{
	unsigned char bytes[8] = {0};
	gdr_info_v2_t info;
	gdr_mh_t handle;
	void *va;
	int value;

	CHECK_EQ(gdr_pin_buffer(view->gdr, pointer, 1, 0, 0, &handle), EACCES);
	CHECK_EQ(gdr_pin_buffer_v2(view->gdr, pointer, 1, 0, &handle), EACCES);
	CHECK_EQ(gdr_get_info_v2(view->gdr, view->handle, &info), EACCES);
	CHECK_EQ(gdr_get_callback_flag(view->gdr, view->handle, &value), EACCES);
	CHECK_EQ(gdr_map(view->gdr, view->handle, &va, 4096), EACCES);
	CHECK_EQ(gdr_map_v2(view->gdr, view->handle, &va, 4096, 0), EACCES);
	CHECK_EQ(gdr_copy_to_mapping(view->handle, view->bytes, bytes, 8), EACCES);
	CHECK_EQ(gdr_copy_from_mapping(view->handle, bytes, view->bytes, 8), EACCES);
	CHECK_EQ(gdr_unmap(view->gdr, view->handle, view->va, view->size), EACCES);
	CHECK_EQ(gdr_unpin_buffer(view->gdr, view->handle), EACCES);
}

static void a_child_is_denied_everything_of_its_parents(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();
	struct view view = viewed(gdr, pointer, GRANULE);

	memcpy(view.bytes, "parent", 6);
	IN_CHILD({
		check_all_denied(&view, pointer);
		CHECK_EQ(manager_count("violations"), 0);
	});
	CHECK_MEM_EQ(view.bytes, "parent", 6);
	check_same_memory(view.bytes, pointer);
	close_view(&view);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

/* CUDA may have mappings of its own there. */
static void check_not_mapped(const struct view *view)
{
	unsigned char resident;

	CHECK_EQ(mincore(view->va, 1, &resident), -1);
	CHECK_EQ(errno, ENOMEM);
}

static void a_child_does_not_have_the_mappings(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();
	struct view view = viewed(gdr, pointer, GRANULE);

	CHECK(count_mappings() > 0);
	IN_CHILD(check_not_mapped(&view));
	close_view(&view);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

/* How many descriptors are of the kernel module: its node, and what it shares. */
static int count_module_descriptors(void)
{
	DIR *folder = opendir("/proc/self/fd");
	struct dirent *entry;
	char target[256];
	int count = 0;

	CHECK(folder);
	while ((entry = readdir(folder))) {
		ssize_t length =
			readlinkat(dirfd(folder), entry->d_name, target, sizeof(target) - 1);

		target[length > 0 ? length : 0] = '\0';
		count += strstr(target, "gdrdrv") != NULL;
	}
	closedir(folder);
	return count;
}

/* One that did would keep alive what its parent has pinned, also when that has ended. */
static void a_child_keeps_no_descriptor_of_a_driver(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();
	struct view view = viewed(gdr, pointer, GRANULE);

	CHECK_EQ(manager_count("files") > 0, managed());
	CHECK_EQ(count_module_descriptors() > 0, backend_is("gdrdrv"));
	IN_CHILD({
		CHECK_EQ(manager_count("files"), 0);
		CHECK_EQ(count_module_descriptors(), 0);
	});
	check_same_memory(view.bytes, pointer);
	close_view(&view);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

static void a_child_that_closes_takes_nothing_from_its_parent(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();
	struct view view = viewed(gdr, pointer, GRANULE);

	IN_CHILD(CHECK_EQ(gdr_close(gdr), 0));
	check_same_memory(view.bytes, pointer);
	CHECK_EQ(info_of(gdr, view.handle).mapped, 1);
	close_view(&view);
	view = viewed(gdr, pointer, 1);
	close_view(&view);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

/* CUDA cannot be used in a child of a process that has used it, which is not the library's fault.
 */
static void open_another(CUdeviceptr pointer)
{
	gdr_t gdr = gdr_open();
	gdr_mh_t handle;

	if (!gdr)
		return;
	CHECK(gdr_pin_buffer(gdr, pointer, 1, 0, 0, &handle));
	CHECK_EQ(gdr_close(gdr), 0);
}

static void a_child_that_opens_the_library_is_told_why_it_cannot_pin(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();
	struct view view = viewed(gdr, pointer, GRANULE);

	IN_CHILD(open_another(pointer));
	check_same_memory(view.bytes, pointer);
	close_view(&view);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

static atomic_bool busy;

static void *pin_and_unpin(void *argument)
{
	CUdeviceptr pointer = *(CUdeviceptr *)argument;
	CUcontext context;
	gdr_t gdr = opened();

	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	while (atomic_load(&busy)) {
		struct view view = viewed(gdr, pointer, 1);

		CHECK_EQ(gdr_copy_to_mapping(view.handle, view.bytes, "bytes", 5), 0);
		close_view(&view);
	}
	CHECK_EQ(gdr_close(gdr), 0);
	OK(cuDevicePrimaryCtxRelease_v2(0));
	return NULL;
}

static int count_in_quiet_child(void)
{
	pid_t child = fork();
	int status;

	if (!child)
		_exit(count_descriptors());
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK(WIFEXITED(status));
	return WEXITSTATUS(status);
}

/* Exportable memory is pinned by a descriptor that CUDA opens. */
static void a_child_of_busy_threads_waits_for_no_lock_and_keeps_no_descriptor(void)
{
	CUmemGenericAllocationHandle memory = create(GRANULE);
	CUdeviceptr pointers[] = {allocate(GRANULE), map(memory, GRANULE)};
	gdr_t gdr = opened();
	struct view view = viewed(gdr, pointers[0], GRANULE);
	int quiet = count_in_quiet_child();
	pthread_t threads[4];

	atomic_store(&busy, true);
	for (int i = 0; i < 4; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, pin_and_unpin, &pointers[i % 2]), 0);
	for (int i = 0; i < 100; i++)
		IN_CHILD({
			check_all_denied(&view, pointers[0]);
			CHECK_EQ(manager_count("files"), 0);
			CHECK_EQ(count_descriptors(), quiet);
		});
	atomic_store(&busy, false);
	for (int i = 0; i < 4; i++)
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
	close_view(&view);
	OK(cuMemFree_v2(pointers[0]));
	unmap(pointers[1], GRANULE);
	OK(cuMemRelease(memory));
	CHECK_EQ(gdr_close(gdr), 0);
}

RIG_MAIN(TEST(a_child_is_denied_everything_of_its_parents),
	 TEST(a_child_does_not_have_the_mappings), TEST(a_child_keeps_no_descriptor_of_a_driver),
	 TEST(a_child_that_closes_takes_nothing_from_its_parent),
	 TEST(a_child_that_opens_the_library_is_told_why_it_cannot_pin),
	 TEST(a_child_of_busy_threads_waits_for_no_lock_and_keeps_no_descriptor))
