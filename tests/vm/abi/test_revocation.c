/* SPDX-License-Identifier: MIT */
/* Freeing the memory ends revocable pins, whatever other threads are at. */
#include "rig.h"

#include <linux/userfaultfd.h>
#include <pthread.h>

enum {
	ROUNDS = 50
};

struct rig {
	struct gpu gpu;
	int node;
	uint64_t handle;
	unsigned char *mapped;
};

static struct rig pinned(uint32_t flags)
{
	struct rig rig = {.gpu = gpu_alloc(4), .node = open("/dev/gdrdrv", O_RDWR | O_NONBLOCK)};

	CHECK_EQ(pin_v3(rig.node, rig.gpu.va, rig.gpu.size, ABI_V3_REVOCABLE | flags, &rig.handle),
		 0);
	return rig;
}

static struct rig pinned_and_mapped(uint32_t flags)
{
	struct rig rig = pinned(flags);

	CHECK_EQ(map(rig.node, rig.handle, rig.gpu.size, &rig.mapped), 0);
	for (size_t at = 0; at < rig.gpu.size; at += CPU_PAGE)
		rig.mapped[at] = 1;
	return rig;
}

static uint32_t cb_flag(const struct rig *rig)
{
	uint32_t flag;

	CHECK_EQ(get_cb_flag(rig->node, rig->handle, &flag), 0);
	return flag;
}

static void check_one_event(const struct rig *rig)
{
	struct abi_event events[2];

	CHECK_EQ(read_events(rig->node, events, 2), sizeof(*events));
	CHECK_EQ(events[0].kind, ABI_REVOKED);
	CHECK_EQ(events[0].handle, rig->handle);
}

static void *free_gpu(void *data)
{
	gpu_free(data);
	return NULL;
}

static pthread_t start(void *(*work)(void *), void *data)
{
	pthread_t thread;

	CHECK_EQ(pthread_create(&thread, NULL, work, data), 0);
	return thread;
}

static void join(pthread_t thread)
{
	CHECK_EQ(pthread_join(thread, NULL), 0);
}

static void an_access_afterwards_is_a_bus_error(void)
{
	struct rig rig = pinned_and_mapped(0);

	gpu_free(&rig.gpu);
	for (size_t at = 0; at < rig.gpu.size; at += CPU_PAGE) {
		CHECK_EQ(cache_mode(rig.mapped + at), -1);
		CHECK_EQ(load_signal(rig.mapped + at), SIGBUS);
		CHECK_EQ(store_signal(rig.mapped + at), SIGBUS);
		CHECK_EQ(rig.gpu.bytes[at], 1);
	}
	CHECK_EQ(cb_flag(&rig), 1);
	check_one_event(&rig);
}

static void an_access_afterwards_finds_zeros_if_asked_for(void)
{
	struct rig rig = pinned_and_mapped(ABI_V3_ZERO_AFTER);

	gpu_free(&rig.gpu);
	CHECK_EQ(cache_mode(rig.mapped), -1);
	for (size_t at = 0; at < rig.gpu.size; at += CPU_PAGE) {
		CHECK_EQ(rig.mapped[at + 1], 0);
		rig.mapped[at] = 9;
		CHECK_EQ(cache_mode(rig.mapped + at), GPUSTANDIN_WB);
		CHECK_EQ(rig.gpu.bytes[at], 1);
	}
	CHECK_EQ(unpin(rig.node, rig.handle), 0);
	rig.mapped[5] = 5;
	CHECK_EQ(rig.gpu.bytes[5], 0);
}

/* A share of a pin: the zero page is each mapping's own. */
static void what_is_stored_afterwards_is_seen_by_nobody_else(void)
{
	struct rig rig = pinned_and_mapped(ABI_V3_ZERO_AFTER);
	unsigned char *other;
	int fd;

	CHECK_EQ(share(rig.node, rig.handle, 0, &fd), 0);
	CHECK_EQ(map_share(fd, 0, CPU_PAGE, &other), 0);
	gpu_free(&rig.gpu);
	rig.mapped[0] = 9;
	CHECK_EQ(other[0], 0);
}

static void a_revoked_pin_cannot_be_mapped(void)
{
	struct rig rig = pinned(ABI_V3_ZERO_AFTER);
	unsigned char *mapped;
	int fd;

	CHECK_EQ(share(rig.node, rig.handle, 0, &fd), 0);
	gpu_free(&rig.gpu);
	CHECK_EQ(map(rig.node, rig.handle, CPU_PAGE, &mapped), EINVAL);
	CHECK_EQ(map_share(fd, 0, CPU_PAGE, &mapped), EINVAL);
	CHECK(is_ready(fd, POLLHUP));
	CHECK_EQ(unpin(rig.node, rig.handle), 0);
	CHECK_EQ(unpin(rig.node, rig.handle), EINVAL);
}

static void part_of_the_memory_freed_leaves_pins_of_other_memory(void)
{
	struct rig rig = pinned_and_mapped(0), other = pinned_and_mapped(0);

	gpu_free(&rig.gpu);
	CHECK_EQ(store_signal(rig.mapped), SIGBUS);
	CHECK_EQ(store_signal(other.mapped), 0);
	CHECK_EQ(cb_flag(&other), 0);
}

static void a_mapping_moved_afterwards_is_revoked_too(void)
{
	struct rig rig = pinned_and_mapped(ABI_V3_ZERO_AFTER);
	unsigned char *place =
		mmap(NULL, rig.gpu.size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	gpu_free(&rig.gpu);
	rig.mapped[7] = 77;
	CHECK(mremap(rig.mapped, rig.gpu.size, rig.gpu.size, MREMAP_MAYMOVE | MREMAP_FIXED,
		     place) == place);
	CHECK_EQ(place[7], 77);
	CHECK_EQ(munmap(place, rig.gpu.size), 0);
}

static void *unpin_it(void *data)
{
	struct rig *rig = data;

	CHECK_EQ(unpin(rig->node, rig->handle), 0);
	return NULL;
}

/* The driver's lock is held by the freeing thread; unpinning waits for it, and both end. */
static void a_pin_is_unpinned_while_its_callback_runs(void)
{
	struct rig rig = pinned_and_mapped(0);
	pthread_t freeing, unpinning;

	gpu_hold_callbacks(1);
	freeing = start(free_gpu, &rig.gpu);
	gpu_await_held_callback();
	unpinning = start(unpin_it, &rig);
	while (!gpu_stats().waiting_calls)
		sched_yield();
	CHECK_EQ(store_signal(rig.mapped), SIGBUS);
	gpu_hold_callbacks(0);
	join(freeing);
	join(unpinning);
	CHECK_EQ(store_signal(rig.mapped), SIGBUS);
	CHECK_EQ(gpu_pins(), 0);
}

/* Until its callback is made the memory is the pin's. */
static void a_mapping_works_until_the_callback(void)
{
	struct rig rig = pinned_and_mapped(0);
	pthread_t freeing;

	gpu_hold_callbacks(1);
	freeing = start(free_gpu, &rig.gpu);
	gpu_await_held_callback();
	rig.mapped[3] = 33;
	CHECK_EQ(rig.gpu.bytes[3], 33);
	CHECK_EQ(cb_flag(&rig), 0);
	gpu_hold_callbacks(0);
	join(freeing);
	CHECK_EQ(store_signal(rig.mapped), SIGBUS);
	check_one_event(&rig);
}

struct telling {
	struct rig *rig;
	struct abi_pin_v3 *argument; /* in a page that is written when somebody lets it be */
};

static void *pin_slowly(void *data)
{
	struct telling *telling = data;

	CHECK_EQ(call(telling->rig->node, ABI_PIN_V3, telling->argument), 0);
	return NULL;
}

/* Write-protected, so that the kernel reads the argument and waits when it writes the handle. */
static int guard(void *page)
{
	struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_PAGEFAULT_FLAG_WP};
	struct uffdio_register range = {.range = {.start = (uintptr_t)page, .len = CPU_PAGE},
					.mode = UFFDIO_REGISTER_MODE_WP};
	struct uffdio_writeprotect protect = {.range = range.range,
					      .mode = UFFDIO_WRITEPROTECT_MODE_WP};
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC), error;

	if (fd < 0 && errno == ENOSYS) {
		printf("%s: not tested, the kernel has no CONFIG_USERFAULTFD\n", check_current);
		exit(0);
	}
	CHECK(fd >= 0);
	error = call(fd, UFFDIO_API, &api);
	if (error == EINVAL && !ON_X86) {
		printf("%s: not tested, no write-protection by userfaultfd before 6.10\n",
		       check_current);
		exit(0);
	}
	CHECK_EQ(error, 0);
	CHECK_EQ(call(fd, UFFDIO_REGISTER, &range), 0);
	CHECK_EQ(call(fd, UFFDIO_WRITEPROTECT, &protect), 0);
	return fd;
}

static void await_write(int guard)
{
	struct uffd_msg message;

	CHECK_EQ(read(guard, &message, sizeof(message)), sizeof(message));
	CHECK_EQ(message.event, UFFD_EVENT_PAGEFAULT);
}

static void let_write(int guard, void *page)
{
	struct uffdio_writeprotect allow = {.range = {.start = (uintptr_t)page, .len = CPU_PAGE}};

	CHECK_EQ(call(guard, UFFDIO_WRITEPROTECT, &allow), 0);
}

static void memory_is_freed_while_the_handle_is_being_told(void)
{
	struct rig rig = {.gpu = gpu_alloc(1), .node = open("/dev/gdrdrv", O_RDWR | O_NONBLOCK)};
	void *page =
		mmap(NULL, CPU_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct telling telling = {.rig = &rig, .argument = page};
	pthread_t pinning;
	int guarded;

	*telling.argument = (struct abi_pin_v3){.size = sizeof(*telling.argument),
						.flags = ABI_V3_REVOCABLE,
						.addr = rig.gpu.va,
						.length = GPU_PAGE};
	guarded = guard(page);
	pinning = start(pin_slowly, &telling);
	await_write(guarded);
	CHECK_EQ(gpu_pins(), 1);
	gpu_free(&rig.gpu);
	let_write(guarded, page);
	join(pinning);

	rig.handle = telling.argument->handle;
	CHECK_EQ(cb_flag(&rig), 1);
	check_one_event(&rig);
	CHECK_EQ(map(rig.node, rig.handle, GPU_PAGE, &rig.mapped), EINVAL);
	CHECK_EQ(unpin(rig.node, rig.handle), 0);
}

/* Nobody may use a handle before its owner was told. */
static void a_handle_that_is_being_told_is_not_there_yet(void)
{
	struct rig rig = {.gpu = gpu_alloc(1), .node = open_node()};
	void *page =
		mmap(NULL, CPU_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct telling telling = {.rig = &rig, .argument = page};
	pthread_t pinning;
	uint64_t before;
	int guarded;

	CHECK_EQ(pin(rig.node, rig.gpu.va, GPU_PAGE, &before), 0);
	*telling.argument = (struct abi_pin_v3){
		.size = sizeof(*telling.argument), .addr = rig.gpu.va, .length = GPU_PAGE};
	guarded = guard(page);
	pinning = start(pin_slowly, &telling);
	await_write(guarded);
	CHECK_EQ(gpu_pins(), 2);
	CHECK_EQ(unpin(rig.node, before + 1), EINVAL);
	let_write(guarded, page);
	join(pinning);
	CHECK_EQ(telling.argument->handle, before + 1);
	CHECK_EQ(unpin(rig.node, before + 1), 0);
}

static pthread_barrier_t together;
static useconds_t freed_after; /* another moment in each round */

static void *free_together(void *data)
{
	struct gpu *gpu = data;

	pthread_barrier_wait(&together);
	usleep(freed_after);
	gpu_free(gpu);
	return NULL;
}

/*
 * Each in many rounds against the freeing of the memory; afterwards nothing of it may be left. The
 * stand-in's own mapping of the block stays, so an access that still went there would be seen.
 */
static void race(void (*work)(struct rig *rig), bool is_mapped_before)
{
	CHECK_EQ(pthread_barrier_init(&together, NULL, 2), 0);
	for (int i = 0; i < ROUNDS; i++) {
		struct rig rig = is_mapped_before ? pinned_and_mapped(0) : pinned(0);
		pthread_t freeing = start(free_together, &rig.gpu);

		freed_after = (useconds_t)i * 10;
		pthread_barrier_wait(&together);
		work(&rig);
		join(freeing);
		if (rig.mapped) {
			CHECK_EQ(cache_mode(rig.mapped), -1);
			CHECK_EQ(store_signal(rig.mapped), SIGBUS);
			CHECK_EQ(munmap(rig.mapped, rig.gpu.size), 0);
		}
		close(rig.node);
		CHECK_EQ(gpu_pins(), 0);
		CHECK_EQ(munmap(rig.gpu.bytes, rig.gpu.size), 0);
		close(rig.gpu.fd);
	}
}

static void map_once(struct rig *rig)
{
	if (map(rig->node, rig->handle, rig->gpu.size, &rig->mapped))
		rig->mapped = NULL;
}

static void move_once(struct rig *rig)
{
	void *place = mmap(NULL, rig->gpu.size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	rig->mapped = mremap(rig->mapped, rig->gpu.size, rig->gpu.size,
			     MREMAP_MAYMOVE | MREMAP_FIXED, place);
	CHECK(rig->mapped == place);
}

static void store_everywhere(struct rig *rig)
{
	for (size_t at = 0; at < rig->gpu.size; at += CPU_PAGE)
		store_signal(rig->mapped + at);
}

static void unpin_once(struct rig *rig)
{
	CHECK_EQ(unpin(rig->node, rig->handle), 0);
}

static void fork_once(struct rig *rig)
{
	IN_CHILD(CHECK_EQ(load_signal(rig->mapped), SIGSEGV));
}

static void mmap_leaves_no_page_of_memory_that_is_freed_meanwhile(void)
{
	race(map_once, false);
}

static void mremap_leaves_no_page_of_memory_that_is_freed_meanwhile(void)
{
	race(move_once, true);
}

static void faults_leave_no_page_of_memory_that_is_freed_meanwhile(void)
{
	race(store_everywhere, true);
}

static void unpinning_is_right_while_the_memory_is_freed(void)
{
	race(unpin_once, true);
}

static void forking_is_right_while_the_memory_is_freed(void)
{
	race(fork_once, true);
}

/* Pinned or not: but never another error, and never a pin whose memory is gone unnoticed. */
static void pinning_is_right_while_the_memory_is_freed(void)
{
	CHECK_EQ(pthread_barrier_init(&together, NULL, 2), 0);
	for (int i = 0; i < ROUNDS; i++) {
		struct rig rig = {.gpu = gpu_alloc(1), .node = open_node()};
		pthread_t freeing = start(free_together, &rig.gpu);
		int error;

		freed_after = (useconds_t)i * 10;
		pthread_barrier_wait(&together);
		error = pin_v3(rig.node, rig.gpu.va, GPU_PAGE, ABI_V3_REVOCABLE, &rig.handle);
		join(freeing);
		if (error)
			CHECK_EQ(error, EINVAL);
		else
			CHECK_EQ(cb_flag(&rig), 1);
		close(rig.node);
		CHECK_EQ(munmap(rig.gpu.bytes, rig.gpu.size), 0);
		close(rig.gpu.fd);
	}
}

/* By a share, or by the flag: a store that follows does not reach the memory. */
static void who_is_told_of_the_end_stores_too_late(void)
{
	for (int i = 0; i < ROUNDS; i++) {
		struct rig rig = pinned_and_mapped(ABI_V3_ZERO_AFTER);
		pthread_t freeing;
		int fd;

		CHECK_EQ(share(rig.node, rig.handle, 0, &fd), 0);
		freeing = start(free_gpu, &rig.gpu);
		while (i % 2 ? !is_ready(fd, POLLHUP) : !cb_flag(&rig))
			;
		for (size_t at = 0; at < rig.gpu.size; at += CPU_PAGE)
			rig.mapped[at] = 9;
		for (size_t at = 0; at < rig.gpu.size; at += CPU_PAGE)
			CHECK_EQ(rig.gpu.bytes[at], 1);
		join(freeing);
		CHECK_EQ(munmap(rig.mapped, rig.gpu.size), 0);
		close(fd);
		close(rig.node);
		CHECK_EQ(munmap(rig.gpu.bytes, rig.gpu.size), 0);
		close(rig.gpu.fd);
	}
}

RIG_MAIN(TEST(an_access_afterwards_is_a_bus_error),
	 TEST(an_access_afterwards_finds_zeros_if_asked_for),
	 TEST(what_is_stored_afterwards_is_seen_by_nobody_else),
	 TEST(a_revoked_pin_cannot_be_mapped),
	 TEST(part_of_the_memory_freed_leaves_pins_of_other_memory),
	 TEST(a_mapping_moved_afterwards_is_revoked_too),
	 TEST(a_pin_is_unpinned_while_its_callback_runs), TEST(a_mapping_works_until_the_callback),
	 TEST(memory_is_freed_while_the_handle_is_being_told),
	 TEST(a_handle_that_is_being_told_is_not_there_yet),
	 TEST(mmap_leaves_no_page_of_memory_that_is_freed_meanwhile),
	 TEST(mremap_leaves_no_page_of_memory_that_is_freed_meanwhile),
	 TEST(faults_leave_no_page_of_memory_that_is_freed_meanwhile),
	 TEST(unpinning_is_right_while_the_memory_is_freed),
	 TEST(forking_is_right_while_the_memory_is_freed),
	 TEST(pinning_is_right_while_the_memory_is_freed),
	 TEST(who_is_told_of_the_end_stores_too_late))
