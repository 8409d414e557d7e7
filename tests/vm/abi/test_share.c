/* SPDX-License-Identifier: MIT */
/* Share descriptors: any process maps one pin through them, as often as it likes. */
#include "rig.h"

#include <sys/resource.h>

struct rig {
	struct gpu gpu;
	int node, writable, readable;
	uint64_t handle;
};

static struct rig shared_pages(unsigned int pages)
{
	struct rig rig = {.gpu = gpu_alloc(pages), .node = open_node()};

	CHECK_EQ(pin(rig.node, rig.gpu.va, rig.gpu.size, &rig.handle), 0);
	CHECK_EQ(share(rig.node, rig.handle, 0, &rig.writable), 0);
	CHECK_EQ(share(rig.node, rig.handle, ABI_READ_ONLY, &rig.readable), 0);
	return rig;
}

static struct rig shared(void)
{
	return shared_pages(4);
}

static int map_readable(const struct rig *rig, size_t size, unsigned char **mapped)
{
	return map_at(rig->readable, size, PROT_READ, MAP_SHARED, 0, mapped);
}

static void any_range_of_cpu_pages_is_mapped(void)
{
	struct rig rig = shared();
	unsigned char *mapped;

	for (size_t at = 0; at < rig.gpu.size; at += 5 * CPU_PAGE) {
		for (size_t size = CPU_PAGE; size <= rig.gpu.size - at; size += 11 * CPU_PAGE) {
			CHECK_EQ(map_share(rig.writable, at, size, &mapped), 0);
			mapped[0] = 1 + at / CPU_PAGE;
			CHECK_EQ(rig.gpu.bytes[at], 1 + at / CPU_PAGE);
			mapped[size - 1] = 2 + at / CPU_PAGE;
			CHECK_EQ(rig.gpu.bytes[at + size - 1], 2 + at / CPU_PAGE);
			CHECK_EQ(cache_mode(mapped), GPUSTANDIN_WC);
			CHECK_EQ(munmap(mapped, size), 0);
		}
	}
}

static void mappings_overlap_and_show_the_same_bytes(void)
{
	struct rig rig = shared_pages(16); /* as many CPU pages at least */
	unsigned char *mapped[8];

	for (int i = 0; i < 8; i++)
		CHECK_EQ(map_share(rig.writable, i * CPU_PAGE, 8 * CPU_PAGE, &mapped[i]), 0);
	for (int i = 0; i < 8; i++)
		mapped[i][(7 - i) * CPU_PAGE + i] = i + 1;
	for (int i = 0; i < 8; i++) {
		for (int k = 0; k < 8; k++)
			CHECK_EQ(mapped[k][(7 - k) * CPU_PAGE + i], i + 1);
	}
}

static void the_pin_is_mapped_by_its_handle_beside_it(void)
{
	struct rig rig = shared();
	unsigned char *one, *other;

	CHECK_EQ(map_share(rig.writable, 0, GPU_PAGE, &one), 0);
	CHECK_EQ(map(rig.node, rig.handle, GPU_PAGE, &other), 0);
	one[7] = 77;
	CHECK_EQ(other[7], 77);
}

static void a_range_beyond_the_pin_is_invalid(void)
{
	struct rig rig = shared();
	unsigned char *mapped;

	CHECK_EQ(map_share(rig.writable, rig.gpu.size, CPU_PAGE, &mapped), EINVAL);
	CHECK_EQ(map_share(rig.writable, rig.gpu.size - CPU_PAGE, 2 * CPU_PAGE, &mapped), EINVAL);
	CHECK_EQ(map_share(rig.writable, 0, rig.gpu.size + CPU_PAGE, &mapped), EINVAL);
	CHECK_EQ(map_share(rig.writable, 1ull << 44, CPU_PAGE, &mapped), EINVAL);
	CHECK_EQ(map_share(rig.writable, -(uint64_t)CPU_PAGE, 2 * CPU_PAGE, &mapped), EOVERFLOW);
	CHECK_EQ(map_share(rig.writable, 1, CPU_PAGE, &mapped), EINVAL);
	CHECK_EQ(map_share(rig.writable, 0, 0, &mapped), EINVAL);
}

static void a_private_or_executable_mapping_is_refused(void)
{
	struct rig rig = shared();
	const int protection = PROT_READ | PROT_WRITE;
	unsigned char *mapped;
	int error;

	CHECK_EQ(map_at(rig.writable, CPU_PAGE, protection, MAP_PRIVATE, 0, &mapped), EINVAL);
	CHECK_EQ(map_at(rig.readable, CPU_PAGE, PROT_READ, MAP_PRIVATE, 0, &mapped), EINVAL);

	/* Linux 7.3 does not even ask the module. */
	error = map_at(rig.writable, CPU_PAGE, protection | PROT_EXEC, MAP_SHARED, 0, &mapped);
	CHECK(error == EACCES || error == EPERM);
}

static void a_read_only_share_never_becomes_writable(void)
{
	struct rig rig = shared();
	unsigned char *mapped;

	CHECK_EQ(map_share(rig.readable, 0, CPU_PAGE, &mapped), EACCES);
	CHECK_EQ(map_readable(&rig, GPU_PAGE, &mapped), 0);
	rig.gpu.bytes[9] = 99;
	CHECK_EQ(mapped[9], 99);
	CHECK_EQ(store_signal(mapped), SIGSEGV);
	CHECK_EQ(mprotect(mapped, GPU_PAGE, PROT_READ | PROT_WRITE), -1);
	CHECK_EQ(errno, EACCES);
	CHECK_EQ(store_signal(mapped), SIGSEGV);
}

static void a_share_cannot_be_opened_again_by_its_path(void)
{
	struct rig rig = shared();
	int fds[] = {rig.writable, rig.readable};

	for (int i = 0; i < 2; i++) {
		char path[64];

		snprintf(path, sizeof(path), "/proc/self/fd/%d", fds[i]);
		CHECK_EQ(open(path, O_RDWR), -1);
		CHECK_EQ(errno, ENXIO);
	}
}

static void a_share_is_a_descriptor_without_commands(void)
{
	struct rig rig = shared();
	char room[64] = {0};

	CHECK_EQ(fcntl(rig.writable, F_GETFD), FD_CLOEXEC);
	CHECK_EQ(fcntl(rig.readable, F_GETFD), FD_CLOEXEC);
	CHECK_EQ(fcntl(rig.writable, F_GETFL) & O_ACCMODE, O_RDWR);
	CHECK_EQ(fcntl(rig.readable, F_GETFL) & O_ACCMODE, O_RDONLY);
	CHECK_EQ(call(rig.writable, ABI_GET_VERSION, room), ENOTTY);
	CHECK_EQ(read(rig.writable, room, sizeof(room)), -1);
	CHECK_EQ(errno, EINVAL);
}

static void another_process_maps_it(void)
{
	struct rig rig = shared();
	unsigned char *mapped;

	IN_CHILD(CHECK_EQ(map_share(rig.writable, GPU_PAGE, CPU_PAGE, &mapped), 0); mapped[3] = 33);
	CHECK_EQ(rig.gpu.bytes[GPU_PAGE + 3], 33);
	IN_CHILD(CHECK_EQ(map_readable(&rig, CPU_PAGE, &mapped), 0));
}

static void the_end_of_the_pin_reaches_every_process(void)
{
	struct rig rig = shared();
	unsigned char *here;
	int mapped[2], ended[2];
	char byte = 0;
	pid_t child;

	CHECK_EQ(pipe(mapped), 0);
	CHECK_EQ(pipe(ended), 0);
	CHECK_EQ(map_readable(&rig, GPU_PAGE, &here), 0);
	child = fork();
	if (!child) {
		unsigned char *there;

		/* The node is the parent's alone. */
		close(rig.node);
		CHECK_EQ(map_share(rig.writable, 0, GPU_PAGE, &there), 0);
		there[0] = 1;
		CHECK(!is_ready(rig.writable, POLLHUP));
		CHECK_EQ(write(mapped[1], &byte, 1), 1);
		CHECK_EQ(read(ended[0], &byte, 1), 1);
		CHECK_EQ(store_signal(there), SIGBUS);
		CHECK(is_ready(rig.writable, POLLHUP));
		CHECK(is_ready(rig.readable, POLLHUP));
		CHECK_EQ(map_share(rig.writable, 0, GPU_PAGE, &there), EINVAL);
		_exit(0);
	}
	CHECK_EQ(read(mapped[0], &byte, 1), 1);
	CHECK_EQ(unpin(rig.node, rig.handle), 0);
	CHECK_EQ(gpu_pins(), 0);
	CHECK_EQ(load_signal(here), SIGBUS);
	CHECK_EQ(write(ended[1], &byte, 1), 1);
	await_child(child);
}

static void a_share_does_not_keep_the_pin(void)
{
	struct rig rig = shared();
	unsigned char *mapped;

	CHECK_EQ(map_share(rig.writable, 0, GPU_PAGE, &mapped), 0);
	close(rig.node);
	CHECK_EQ(gpu_pins(), 0);
	CHECK(is_ready(rig.writable, POLLHUP));
	CHECK_EQ(store_signal(mapped), SIGBUS);
	CHECK_EQ(munmap(mapped, GPU_PAGE), 0);
}

static void an_unknown_size_flag_or_padding_is_invalid(void)
{
	struct rig rig = shared();

	for (uint32_t size = 0; size < 64; size++) {
		struct abi_share argument = {.size = size, .handle = rig.handle};

		CHECK_EQ(call(rig.node, ABI_SHARE, &argument), size == 24 ? 0 : EINVAL);
	}
	for (int bit = 0; bit < 32; bit++) {
		struct abi_share flags = {.size = 24, .flags = 1u << bit, .handle = rig.handle};
		struct abi_share pad = {.size = 24, .handle = rig.handle, .pad = 1u << bit};

		CHECK_EQ(call(rig.node, ABI_SHARE, &flags), bit ? EINVAL : 0);
		CHECK_EQ(call(rig.node, ABI_SHARE, &pad), EINVAL);
	}
}

static void a_node_opened_for_reading_shares_for_reading(void)
{
	struct gpu gpu = gpu_alloc(1);
	int node = open("/dev/gdrdrv", O_RDONLY);
	uint64_t handle;
	int fd;

	CHECK_EQ(pin(node, gpu.va, GPU_PAGE, &handle), 0);
	CHECK_EQ(share(node, handle, 0, &fd), EACCES);
	CHECK_EQ(share(node, handle, ABI_READ_ONLY, &fd), 0);
}

static void no_descriptor_left_leaves_nothing(void)
{
	struct rig rig = shared();
	struct rlimit none = {.rlim_cur = 3, .rlim_max = 3};
	int fd;

	CHECK_EQ(gpu_pins(), 1);
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
	CHECK_EQ(share(rig.node, rig.handle, 0, &fd), EMFILE);
	CHECK_EQ(share(rig.node, rig.handle, ABI_READ_ONLY, &fd), EMFILE);
	CHECK_EQ(unpin(rig.node, rig.handle), 0);
	CHECK_EQ(gpu_pins(), 0);
}

RIG_MAIN(TEST(any_range_of_cpu_pages_is_mapped), TEST(mappings_overlap_and_show_the_same_bytes),
	 TEST(the_pin_is_mapped_by_its_handle_beside_it), TEST(a_range_beyond_the_pin_is_invalid),
	 TEST(a_private_or_executable_mapping_is_refused),
	 TEST(a_read_only_share_never_becomes_writable),
	 TEST(a_share_cannot_be_opened_again_by_its_path),
	 TEST(a_share_is_a_descriptor_without_commands), TEST(another_process_maps_it),
	 TEST(the_end_of_the_pin_reaches_every_process), TEST(a_share_does_not_keep_the_pin),
	 TEST(an_unknown_size_flag_or_padding_is_invalid),
	 TEST(a_node_opened_for_reading_shares_for_reading),
	 TEST(no_descriptor_left_leaves_nothing))
