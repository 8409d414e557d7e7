/* SPDX-License-Identifier: MIT */
/*
 * nvidia.ko has its own view of what is pinned: it finds revocable pins in the calling process
 * alone, by the address of a table that it uses again, and calls back whatever has become of the
 * pin.
 */
#include "rig.h"

#include <glob.h>
#include <pthread.h>

enum {
	SCATTERED_PAGES = 4
};

static struct gpu revocable(int node, uint64_t *handle)
{
	struct gpu gpu = gpu_alloc(1);

	CHECK_EQ(pin_v3(node, gpu.va, GPU_PAGE, ABI_V3_REVOCABLE, handle), 0);
	return gpu;
}

/* What nvidia.ko has registered for the module, by the module's own count. */
static int registered(void)
{
	char text[32] = "";
	int fd = open("/proc/driver/gdrdrv/nv_get_pages_refcount", O_RDONLY);

	if (fd < 0)
		return (int)gpu_pins();
	CHECK(read(fd, text, sizeof(text) - 1) > 0);
	close(fd);
	return atoi(text);
}

/* The child is the last to have the node: this process has closed it before. */
static void close_in_a_child(int node)
{
	int go[2];
	char byte = 0;
	pid_t child;

	CHECK_EQ(pipe(go), 0);
	child = fork();
	if (!child) {
		CHECK_EQ(read(go[0], &byte, 1), 1);
		close(node);
		_exit(0);
	}
	close(node);
	CHECK_EQ(write(go[1], &byte, 1), 1);
	await_child(child);
}

static void a_last_close_by_a_child_leaves_the_pin_to_its_callback(void)
{
	int node = open_node();
	uint64_t before = gpu_stats().callbacks, handle;
	struct gpu gpu = revocable(node, &handle);

	close_in_a_child(node);
	CHECK_EQ(gpu_pins(), 1);
	CHECK_EQ(registered(), 1);
	gpu_free(&gpu);
	CHECK_EQ(gpu_stats().callbacks, before + 1);
	CHECK_EQ(gpu_pins(), 0);
	CHECK_EQ(registered(), 0);
}

static void many_closed_by_children_are_called_back_at_once(void)
{
	struct gpu gpu = gpu_alloc(1);
	uint64_t before = gpu_stats().callbacks, handle;

	for (int i = 0; i < 20; i++) {
		int node = open_node();

		CHECK_EQ(pin_v3(node, gpu.va, GPU_PAGE, ABI_V3_REVOCABLE, &handle), 0);
		close_in_a_child(node);
	}
	CHECK_EQ(registered(), 20);
	gpu_free(&gpu);
	CHECK_EQ(gpu_stats().callbacks, before + 20);
	CHECK_EQ(registered(), 0);
}

static void a_persistent_pin_ends_with_a_last_close_by_a_child(void)
{
	struct gpu gpu = gpu_alloc(1);
	int node = open_node();
	uint64_t handle;

	CHECK_EQ(pin_v3(node, gpu.va, GPU_PAGE, ABI_V3_PERSISTENT, &handle), 0);
	close_in_a_child(node);
	CHECK_EQ(gpu_pins(), 0);
	CHECK_EQ(registered(), 0);
}

/* The share keeps the pin's file, but not its memory. */
static void a_share_that_outlives_all_shows_no_memory_that_was_freed(void)
{
	int node = open_node(), fd;
	unsigned char *mapped;
	uint64_t handle;
	struct gpu gpu = revocable(node, &handle);

	CHECK_EQ(share(node, handle, 0, &fd), 0);
	CHECK_EQ(map_share(fd, 0, GPU_PAGE, &mapped), 0);
	CHECK_EQ(store_signal(mapped), 0);
	close_in_a_child(node);
	CHECK_EQ(store_signal(mapped), SIGBUS);
	gpu_free(&gpu);
	CHECK_EQ(store_signal(mapped), SIGBUS);
	CHECK(is_ready(fd, POLLHUP));
}

/* The table of the first pin is the second's when the first is unpinned. */
static void an_unpin_after_the_callback_leaves_other_pins(void)
{
	int node = open_node();
	uint64_t first, second, before;
	struct gpu gone = revocable(node, &first), gpu;

	gpu_free(&gone);
	gpu = revocable(node, &second);
	before = gpu_stats().callbacks;
	CHECK_EQ(unpin(node, first), 0);
	CHECK_EQ(gpu_pins(), 1);
	gpu_free(&gpu);
	CHECK_EQ(gpu_stats().callbacks, before + 1);
	CHECK_EQ(unpin(node, second), 0);
}

static void a_close_after_the_callback_leaves_other_pins(void)
{
	int node = open_node(), other = open_node();
	uint64_t handle;
	struct gpu gone = revocable(node, &handle), gpu;

	gpu_free(&gone);
	gpu = revocable(other, &handle);
	close(node);
	CHECK_EQ(gpu_pins(), 1);
	gpu_free(&gpu);
	CHECK_EQ(unpin(other, handle), 0);
}

/* get_pages succeeds with a table that is freed already. */
static void memory_freed_before_its_get_returns_is_not_pinned(void)
{
	struct gpu gpu = gpu_alloc(1);
	int node = open_node();
	uint64_t handle;

	gpu_free_in_next_get(GPUSTANDIN_AFTER_CALLBACK);
	CHECK_EQ(pin_v3(node, gpu.va, GPU_PAGE, ABI_V3_REVOCABLE, &handle), EINVAL);
	CHECK_EQ(registered(), 0);
	CHECK(!is_ready(node, POLLIN)); /* the handle was not given out */
	CHECK_EQ(pin_v3(node, gpu.va, GPU_PAGE, ABI_V3_REVOCABLE, &handle), 0);
	CHECK_EQ(gpu_pins(), 1);
}

static void memory_freed_before_its_callback_is_known_is_not_pinned(void)
{
	uint64_t lost = gpu_stats().lost_tables, handle;
	struct gpu gpu = gpu_alloc(1);
	int node = open_node();

	gpu_free_in_next_get(GPUSTANDIN_BEFORE_CALLBACK);
	CHECK_EQ(pin_v3(node, gpu.va, GPU_PAGE, ABI_V3_REVOCABLE, &handle), EINVAL);
	CHECK_EQ(registered(), 0);
	/* nvidia.ko's own loss. */
	CHECK_EQ(gpu_stats().lost_tables, lost + 1);
	CHECK_EQ(pin_v3(node, gpu.va, GPU_PAGE, ABI_V3_REVOCABLE, &handle), 0);
}

static void a_put_that_fails_leaves_the_pin_to_its_callback(void)
{
	uint64_t before = gpu_stats().callbacks, handle;
	int node = open_node();
	struct gpu gpu = revocable(node, &handle);

	set_parameter("gpustandin", "fail_put", "1");
	CHECK_EQ(unpin(node, handle), 0);
	CHECK_EQ(registered(), 1);
	gpu_free(&gpu);
	CHECK_EQ(gpu_stats().callbacks, before + 1);
	CHECK_EQ(registered(), 0);
}

/* nvidia.ko says that it has the pages back, and has not: it calls back for a pin that is gone. */
static void a_callback_after_a_put_finds_no_pin(void)
{
	uint64_t before = gpu_stats().callbacks, handle;
	int node = open_node();
	struct gpu gpu = revocable(node, &handle);

	gpu_forget(&gpu);
	CHECK_EQ(unpin(node, handle), 0);
	CHECK_EQ(registered(), 0);
	CHECK_EQ(gpu_pins(), 1);
	gpu_free(&gpu);
	CHECK_EQ(gpu_stats().callbacks, before + 1);
	CHECK_EQ(gpu_pins(), 0);
	CHECK(!is_ready(node, POLLIN));
}

/* Before nvidia.ko is asked, which would allocate by the length. */
static void a_pin_of_more_than_a_tebibyte_is_not_asked_for(void)
{
	const uint64_t most = 1ull << 40;
	uint64_t before, handle;
	struct gpu gpu = gpu_alloc(1);
	int node = open_node();

	before = gpu_stats().gets;
	for (uint32_t lifetime = 0; lifetime < 3; lifetime++) {
		CHECK_EQ(pin_v3(node, gpu.va, most + 1, lifetime, &handle), EINVAL);
		CHECK_EQ(pin_v3(node, gpu.va, 8 * most, lifetime, &handle), EINVAL);
	}
	CHECK_EQ(pin(node, gpu.va, 8 * most, &handle), EINVAL);
	CHECK_EQ(pin_v1(node, gpu.va, 8 * most, &handle), EINVAL);
	CHECK_EQ(gpu_stats().gets, before);
}

static void what_is_over_the_users_limit_is_not_asked_for(void)
{
	struct gpu gpu = gpu_alloc(1);
	uint64_t before, handle;
	int node = open_node();

	set_parameter("gdrdrv", "max_pinned_mib", "1024");
	CHECK_EQ(setuid(1000), 0);
	before = gpu_stats().gets;
	CHECK_EQ(pin(node, gpu.va, (1ull << 30) + 1, &handle), EDQUOT);
	CHECK_EQ(gpu_stats().gets, before);
}

/* What a user left behind counts until nvidia.ko has it back. */
static void a_pin_left_to_its_callback_counts_against_the_limit(void)
{
	struct gpu gpu = gpu_alloc(17);
	int node = open_node();
	uint64_t handle;

	set_parameter("gdrdrv", "max_pinned_mib", "1");
	CHECK_EQ(setuid(1000), 0);
	CHECK_EQ(pin_v3(node, gpu.va, 1 << 20, ABI_V3_REVOCABLE, &handle), 0);
	close_in_a_child(node);
	node = open_node();
	CHECK_EQ(pin(node, gpu.va, 1, &handle), EDQUOT);
	gpu_free(&gpu);
	gpu_register(&gpu);
	CHECK_EQ(pin(node, gpu.va, 1, &handle), 0);
}

/* A small one takes more of the machine's memory than its bytes tell. */
static void a_pin_counts_as_a_mebibyte_at_least(void)
{
	struct gpu gpu = gpu_alloc(1);
	uint64_t handles[5];
	int node = open_node();

	set_parameter("gdrdrv", "max_pinned_mib", "4");
	CHECK_EQ(setuid(1000), 0);
	for (int i = 0; i < 4; i++)
		CHECK_EQ(pin(node, gpu.va, 1, &handles[i]), 0);
	CHECK_EQ(pin(node, gpu.va, 1, &handles[4]), EDQUOT);
	CHECK_EQ(unpin(node, handles[0]), 0);
	CHECK_EQ(pin(node, gpu.va, 1, &handles[4]), 0);
}

static void a_pin_has_16384_mappings_at_most(void)
{
	enum {
		PROCESSES = 64,
		EACH = 16384 / PROCESSES
	};
	struct gpu gpu = gpu_alloc(1);
	int node = open_node(), fd, mapped[2], end[2], status;
	unsigned char *bytes;
	char byte = 0;
	uint64_t handle;

	if (!access("/sys/kernel/debug/kmemleak", F_OK)) {
		printf("%s: not tested, a kernel with all its checks is slow\n", check_current);
		return;
	}
	CHECK_EQ(pin(node, gpu.va, GPU_PAGE, &handle), 0);
	CHECK_EQ(share(node, handle, 0, &fd), 0);
	CHECK_EQ(pipe(mapped), 0);
	CHECK_EQ(pipe(end), 0);
	for (int i = 0; i < PROCESSES; i++) {
		if (fork())
			continue;
		close(end[1]);
		for (int map = 0; map < EACH; map++)
			CHECK_EQ(map_share(fd, 0, CPU_PAGE, &bytes), 0);
		CHECK_EQ(write(mapped[1], &byte, 1), 1);
		CHECK_EQ(read(end[0], &byte, 1), 0);
		_exit(0);
	}
	for (int i = 0; i < PROCESSES; i++)
		CHECK_EQ(read(mapped[0], &byte, 1), 1);
	CHECK_EQ(map_share(fd, 0, CPU_PAGE, &bytes), ENOSPC);
	close(end[1]);
	while (wait(&status) > 0)
		CHECK_EQ(status, 0);
	CHECK_EQ(map_share(fd, 0, CPU_PAGE, &bytes), 0);
}

static uint64_t physical(const void *address)
{
	struct gpustandin_pte pte = {.address = (uintptr_t)address};

	CHECK_EQ(gpu_ask(GPUSTANDIN_PTE, &pte), 0);
	return pte.physical;
}

/* Whether the kernel has a range on record as write-combined that begins there. */
static bool is_recorded(uint64_t start)
{
	FILE *list = fopen("/sys/kernel/debug/x86/pat_memtype_list", "r");
	char line[256], wanted[32];
	bool found = false;

	if (!list) {
		printf("%s: not tested, the kernel keeps no such record\n", check_current);
		exit(0);
	}
	snprintf(wanted, sizeof(wanted), "mem 0x%016llx-", (unsigned long long)start);
	while (fgets(line, sizeof(line), list))
		found |= strstr(line, wanted) && strstr(line, "write-combining");
	fclose(list);
	return found;
}

static void a_callback_takes_the_memory_off_the_record(void)
{
	int node = open_node();
	uint64_t handle, start;
	struct gpu gpu = revocable(node, &handle);

	gpu.bytes[0] = 1;
	start = physical(gpu.bytes);
	CHECK(is_recorded(start));
	gpu_free(&gpu);
	CHECK(!is_recorded(start));
	CHECK_EQ(unpin(node, handle), 0);
}

static void *free_gpu(void *data)
{
	gpu_free(data);
	return NULL;
}

struct unpinning {
	int node;
	uint64_t handle;
};

static void *unpin_it(void *data)
{
	const struct unpinning *unpinning = data;

	CHECK_EQ(unpin(unpinning->node, unpinning->handle), 0);
	return NULL;
}

/* The put waits for the driver's lock, which a callback in flight has. */
static void an_unpin_takes_the_memory_off_the_record_before_the_put(void)
{
	struct unpinning unpinning = {.node = open_node()};
	uint64_t start, other;
	struct gpu gpu = revocable(unpinning.node, &unpinning.handle);
	struct gpu freed = revocable(unpinning.node, &other);
	pthread_t freeing, unpins;

	gpu.bytes[0] = 1;
	start = physical(gpu.bytes);
	CHECK(is_recorded(start));
	gpu_hold_callbacks(1);
	CHECK_EQ(pthread_create(&freeing, NULL, free_gpu, &freed), 0);
	gpu_await_held_callback();
	CHECK_EQ(pthread_create(&unpins, NULL, unpin_it, &unpinning), 0);
	while (!gpu_stats().waiting_calls)
		sched_yield();
	CHECK(!is_recorded(start));
	gpu_hold_callbacks(0);
	CHECK_EQ(pthread_join(freeing, NULL), 0);
	CHECK_EQ(pthread_join(unpins, NULL), 0);
}

/* Another one's mapping, which puts the page on record as uncached. */
static void map_uncached(uint64_t address)
{
	unsigned char *mapped;
	char line[256];
	unsigned long long start = 0;
	glob_t found;
	FILE *resources;
	int fd;

	CHECK_EQ(glob("/sys/bus/pci/drivers/gpustandin/0000:*/resource", 0, NULL, &found), 0);
	resources = fopen(found.gl_pathv[0], "r");
	CHECK(resources != NULL);
	for (int bar = 0; bar <= 2; bar++)
		CHECK(fgets(line, sizeof(line), resources) != NULL);
	CHECK_EQ(sscanf(line, "%llx", &start), 1);
	fclose(resources);
	globfree(&found);

	CHECK_EQ(glob("/sys/bus/pci/drivers/gpustandin/0000:*/resource2", 0, NULL, &found), 0);
	fd = open(found.gl_pathv[0], O_RDWR);
	CHECK(fd >= 0);
	globfree(&found);
	CHECK_EQ(map_share(fd, address - start, CPU_PAGE, &mapped), 0);
	CHECK_EQ(cache_mode(mapped), GPUSTANDIN_UC_MINUS);
	close(fd);
}

static void a_pin_that_cannot_be_write_combined_is_uncached_and_says_so(void)
{
	struct gpu gpu = gpu_alloc_at(0x7f0000000000, SCATTERED_PAGES, GPUSTANDIN_SCATTERED);
	int node = open_node();
	struct abi_info info;
	struct abi_info_v2 v2;
	unsigned char *mapped;
	uint64_t handle;

	if (access("/sys/kernel/debug/x86/pat_memtype_list", R_OK)) {
		printf("%s: not tested, the kernel keeps no record of types\n", check_current);
		exit(0);
	}
	gpu.bytes[2 * GPU_PAGE] = 1;
	map_uncached(physical(gpu.bytes + 2 * GPU_PAGE));

	CHECK_EQ(pin(node, gpu.va, gpu.size, &handle), 0);
	CHECK_EQ(request_type(node, handle, ABI_TYPE_WC), EOPNOTSUPP);
	CHECK_EQ(request_type(node, handle, ABI_TYPE_NONE), 0);
	CHECK_EQ(request_type(node, handle, ABI_TYPE_DEVICE), 0);
	CHECK_EQ(map(node, handle, gpu.size, &mapped), 0);
	for (size_t at = 0; at < gpu.size; at += CPU_PAGE) {
		mapped[at] = 1;
		CHECK_EQ(cache_mode(mapped + at), GPUSTANDIN_UC_MINUS);
	}
	CHECK_EQ(get_info(node, handle, &info), 0);
	CHECK_EQ(info.mapped, 1);
	CHECK_EQ(info.wc_mapping, 0);
	CHECK_EQ(get_info_v2(node, handle, &v2), 0);
	CHECK_EQ(v2.mapping_type, ABI_TYPE_DEVICE);
}

RIG_MAIN(TEST(a_last_close_by_a_child_leaves_the_pin_to_its_callback),
	 TEST(many_closed_by_children_are_called_back_at_once),
	 TEST(a_persistent_pin_ends_with_a_last_close_by_a_child),
	 TEST(a_share_that_outlives_all_shows_no_memory_that_was_freed),
	 TEST(an_unpin_after_the_callback_leaves_other_pins),
	 TEST(a_close_after_the_callback_leaves_other_pins),
	 TEST(memory_freed_before_its_get_returns_is_not_pinned),
	 TEST(memory_freed_before_its_callback_is_known_is_not_pinned),
	 TEST(a_put_that_fails_leaves_the_pin_to_its_callback),
	 TEST(a_callback_after_a_put_finds_no_pin),
	 TEST(a_pin_of_more_than_a_tebibyte_is_not_asked_for),
	 TEST(what_is_over_the_users_limit_is_not_asked_for),
	 TEST(a_pin_left_to_its_callback_counts_against_the_limit),
	 TEST(a_pin_counts_as_a_mebibyte_at_least), TEST(a_pin_has_16384_mappings_at_most),
	 TEST(a_callback_takes_the_memory_off_the_record),
	 TEST(an_unpin_takes_the_memory_off_the_record_before_the_put),
	 TEST(a_pin_that_cannot_be_write_combined_is_uncached_and_says_so))
