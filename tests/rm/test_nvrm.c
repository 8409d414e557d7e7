/* SPDX-License-Identifier: MIT */
/* The nvrm calls of the C core under sanitizers, on the simulated resource manager (preloaded). */
#include <errno.h>
#include <pthread.h>
#include <stdint.h>

#include "preloaded.h"
#include "rm/client.h"

#define BLOCK (2u << 20)
#define IPC_CLIENT 0xC1000000u

static struct core_rm *open_client(void)
{
	struct core_error error = {0};
	struct core_rm *client;

	CHECK_EQ(core_rm_open(&client, &error), 0);
	return client;
}

static void check_nothing_left(void)
{
	CHECK_EQ(count("clients"), 0);
	CHECK_EQ(count("objects"), 0);
	CHECK_EQ(count("mappings"), 0);
	CHECK_EQ(count("violations"), 0);
}

static void a_mapping_of_an_export_is_its_memory(void)
{
	struct core_rm *client = open_client();
	struct core_rm_mapping mapping;
	struct core_rm_memory memory;
	struct core_error error;
	int fd = gpu_memory(BLOCK);
	char found[5];

	CHECK_EQ(core_rm_import(client, fd, &memory, &error), 0);
	CHECK_EQ(memory.nbytes, BLOCK);
	CHECK_EQ(core_rm_map(client, &memory, 5000, 9000, false, NULL, &mapping, &error), 0);
	CHECK_EQ(mapping.map.nbytes, 9000);
	CHECK_EQ(mapping.map.length, 12288);
	memcpy(mapping.map.address, "bytes", 5);
	CHECK_EQ(pread(fd, found, 5, 5000), 5);
	CHECK_MEM_EQ(found, "bytes", 5);

	CHECK_EQ(core_rm_unmap(client, &mapping, &error), 0);
	CHECK_EQ(core_rm_release(client, &memory, &error), 0);
	core_rm_close(client);
	close(fd);
	check_nothing_left();
}

static void a_duplicate_is_the_owners_block(void)
{
	struct core_rm *client = open_client();
	struct core_rm_mapping mapping;
	struct core_rm_memory memory;
	struct core_error error;
	struct core_ipc_info info = {.client = IPC_CLIENT | (uint32_t)getpid()};
	struct core_rm_gpu gpu = {0};
	int fd = gpu_memory(BLOCK);

	CHECK_EQ(core_rm_import(client, fd, &memory, &error), 0);
	gpu = memory.gpu;
	CHECK_EQ(core_rm_release(client, &memory, &error), 0);

	info.object = (uint32_t)fd;
	CHECK_EQ(core_rm_duplicate(client, &gpu, -1, &info, &memory, &error), 0);
	CHECK_EQ(core_rm_map(client, &memory, 0, BLOCK, true, NULL, &mapping, &error), 0);
	CHECK_EQ(pwrite(fd, "end", 3, BLOCK - 3), 3);
	CHECK_MEM_EQ((char *)mapping.map.address + BLOCK - 3, "end", 3);

	CHECK_EQ(core_rm_unmap(client, &mapping, &error), 0);
	CHECK_EQ(core_rm_release(client, &memory, &error), 0);
	core_rm_close(client);
	close(fd);
	check_nothing_left();
}

static void a_gpu_that_is_not_listed_is_no_device(void)
{
	struct core_rm *client = open_client();
	struct core_rm_gpu gpu = {.pci_domain = 77, .pci_bus = 1};
	struct core_ipc_info info = {0};
	struct core_rm_memory memory;
	struct core_error error;

	CHECK_EQ(core_rm_duplicate(client, &gpu, -1, &info, &memory, &error), -1);
	CHECK_EQ(error.number, ENODEV);
	core_rm_close(client);
}

/* One attempt at everything; what it made, it gives back. 0, or the errno that stopped it. */
static int whole_sequence(int fd)
{
	struct core_error error = {0}, ignored;
	struct core_rm_mapping mapping;
	struct core_rm_memory memory;
	struct core_rm *client;

	if (core_rm_open(&client, &error))
		return error.number;
	if (!core_rm_import(client, fd, &memory, &error)) {
		if (!core_rm_map(client, &memory, 0, 4096, false, NULL, &mapping, &error))
			core_rm_unmap(client, &mapping, &ignored);
		core_rm_release(client, &memory, &ignored);
	}
	core_rm_close(client);
	return error.number;
}

static void a_call_refused_at_any_step_leaves_nothing(void)
{
	static const char *const calls[] = {"RM_ALLOC", "RM_CONTROL", "RM_MAP_MEMORY"};
	int fd = gpu_memory(BLOCK), refused = 0;
	char fault[64];

	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		for (int nth = 1; nth <= 6; nth++) {
			snprintf(fault, sizeof(fault), "%s:%d:0x51", calls[i], nth);
			CHECK_EQ(set_fault(fault), 0);
			if (whole_sequence(fd))
				refused++;
			set_fault("");
			check_nothing_left();
		}
	}
	/* Two allocations; four controls: GPU, export, import, size; one mapping. */
	CHECK_EQ(refused, 7);
	CHECK_EQ(set_fault("mmap:1:12"), 0);
	CHECK_EQ(whole_sequence(fd), ENOMEM);
	check_nothing_left();
	close(fd);
}

static int failing_calloc; /* 1: the next one */

void *__real_calloc(size_t count, size_t size);

void *__wrap_calloc(size_t count, size_t size)
{
	return failing_calloc && !--failing_calloc ? NULL : __real_calloc(count, size);
}

/* Of the client and of its first device. */
static void a_lack_of_the_hosts_memory_is_not_blamed_on_the_gpu(void)
{
	struct core_rm_memory memory;
	struct core_error error;
	struct core_rm *client;
	int fd = gpu_memory(BLOCK);

	failing_calloc = 1;
	CHECK_EQ(core_rm_open(&client, &error), -1);
	CHECK_EQ(strcmp(error.message, "this process is out of memory"), 0);
	CHECK_EQ(error.failure, CORE_FAILED_MEMORY);
	CHECK_EQ(error.number, ENOMEM);

	client = open_client();
	failing_calloc = 1;
	CHECK_EQ(core_rm_import(client, fd, &memory, &error), -1);
	CHECK_EQ(strcmp(error.message, "this process is out of memory"), 0);
	CHECK_EQ(error.failure, CORE_FAILED_MEMORY);
	CHECK_EQ(error.number, ENOMEM);
	core_rm_close(client);
	close(fd);
	check_nothing_left();
}

static void *map_again_and_again(void *argument)
{
	struct core_rm *client = argument;
	struct core_rm_mapping mapping;
	struct core_rm_memory memory;
	struct core_error error;
	int fd = gpu_memory(BLOCK);

	for (int i = 0; i < 50; i++) {
		CHECK_EQ(core_rm_import(client, fd, &memory, &error), 0);
		CHECK_EQ(core_rm_map(client, &memory, 0, BLOCK, false, NULL, &mapping, &error), 0);
		CHECK_EQ(core_rm_unmap(client, &mapping, &error), 0);
		CHECK_EQ(core_rm_release(client, &memory, &error), 0);
	}
	close(fd);
	return NULL;
}

static void threads_share_a_client(void)
{
	struct core_rm *client = open_client();
	pthread_t threads[4];

	for (int i = 0; i < 4; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, map_again_and_again, client), 0);
	for (int i = 0; i < 4; i++)
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
	core_rm_close(client);
	check_nothing_left();
}

CHECK_MAIN(TEST(a_mapping_of_an_export_is_its_memory), TEST(a_duplicate_is_the_owners_block),
	   TEST(a_gpu_that_is_not_listed_is_no_device),
	   TEST(a_call_refused_at_any_step_leaves_nothing),
	   TEST(a_lack_of_the_hosts_memory_is_not_blamed_on_the_gpu), TEST(threads_share_a_client))
