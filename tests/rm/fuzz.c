/* SPDX-License-Identifier: MIT */
/*
 * Random calls on the simulated RM, without LD_PRELOAD so that ASan and UBSan can watch:
 * fuzz SEED ROUNDS.
 *
 * Handles, descriptors and ranges come from small pools, so that many calls succeed and later ones
 * meet their leavings; now and then a byte of the structure is spoilt. Every call must succeed at
 * least once in a run, and tearing all down must leave an empty ledger.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "src/abi.h"
#include "src/ledger.h"
#include "src/libc.h"
#include "src/machine.h"
#include "src/rm.h"

#define CLIENTS 2
#define NODES 6
#define BLOCKS 3
#define MAPPINGS 8
#define VIEWS 8
#define PAGES 4

struct view {
	void *address;
	size_t length;
};

static uint32_t state;
static size_t page;

static int control_fd;
static struct open_node control_node;
static uint32_t clients[CLIENTS];
static int nodes[NODES];
static int blocks[BLOCKS];
static struct rm_unmap_memory mappings[MAPPINGS];
static struct view views[VIEWS];

static uint32_t below(uint32_t limit)
{
	state ^= state << 13;
	state ^= state >> 17;
	state ^= state << 5;
	return state % limit;
}

static void check(int fine, const char *what)
{
	if (fine)
		return;
	fprintf(stderr, "fuzz: %s\n", what);
	exit(1);
}

static int open_path(const char *path)
{
	struct node node;
	int fd;

	check(node_of_path(path, &node), "the path is the driver's");
	fd = node_open(&node, O_RDWR | O_CLOEXEC);
	check(fd >= 0, "the node opens");
	return fd;
}

static int open_device(void)
{
	return open_path(below(2) ? "/dev/nvidia0" : "/dev/nvidia1");
}

static int make_block(uint32_t device)
{
	char name[32];
	int fd;

	snprintf(name, sizeof(name), "gdrpy-sim-dev%u", device);
	fd = memfd_create(name, MFD_CLOEXEC);
	check(fd >= 0 && !ftruncate(fd, PAGES * page), "a block of memory");
	return fd;
}

static uint32_t some_client(void)
{
	return below(20) ? clients[below(CLIENTS)] : below(4);
}

static uint32_t some_device(void)
{
	return 0xD0 + below(3);
}

static uint32_t some_object(void)
{
	return 0xE0 + below(4);
}

static int some_fd(void)
{
	switch (below(8)) {
	case 0:
		return below(2000) - 1;
	case 1:
		return control_fd;
	case 2:
	case 3:
	case 4:
		return nodes[below(NODES)];
	default:
		return blocks[below(BLOCKS)];
	}
}

/* Flip a bit, but never in a pointer: the answer would go to who knows what of this program. */
static void spoil(uint32_t number, uint8_t *argument, size_t size)
{
	size_t at = below(size);

	if (number == RM_NR_CONTROL && at / sizeof(uint64_t) == 2)
		return;
	argument[at] ^= 1u << below(8);
}

/* The status, or the negative errno. Sometimes the structure is spoilt first. */
static int64_t call(uint32_t number, void *argument, size_t size, size_t status)
{
	uint32_t answer;
	int ret;

	if (!below(16))
		spoil(number, argument, size);
	ret = rm_ioctl(&control_node, _IOC(_IOC_READ | _IOC_WRITE, RM_IOCTL_TYPE, number, size),
		       (uintptr_t)argument);
	if (ret)
		return ret;
	memcpy(&answer, (char *)argument + status, sizeof(answer));
	return answer;
}

#define CALL(number, structure)                                                                    \
	call(number, &(structure), sizeof(structure), offsetof(__typeof__(structure), status))

static int64_t alloc_client(void)
{
	struct rm_alloc alloc = {.class = RM_CLASS_ROOT_CLIENT};
	uint32_t *slot = &clients[below(CLIENTS)];
	struct rm_free drop = {.root = *slot, .old = *slot};
	int64_t status;

	if (below(16))
		return -1;
	CALL(RM_NR_FREE, drop);
	status = CALL(RM_NR_ALLOC, alloc);
	if (!status)
		*slot = alloc.new_handle;
	return status;
}

static int64_t alloc_device(void)
{
	struct rm_device_params params = {.device_id = below(2)};
	uint32_t client = some_client();
	struct rm_alloc_with_rights alloc = {
		.root = client,
		.parent = client,
		.new_handle = some_device(),
		.class = RM_CLASS_DEVICE,
		.params = (uintptr_t)&params,
		.params_size = sizeof(params),
	};

	return CALL(RM_NR_ALLOC, alloc);
}

static int64_t control(uint32_t command, uint32_t object, void *params, size_t size)
{
	struct rm_control argument = {
		.client = some_client(),
		.command = command,
		.params = (uintptr_t)params,
		.params_size = size,
	};

	argument.object = object ? object : argument.client;
	return CALL(RM_NR_CONTROL, argument);
}

static int64_t import_many(void)
{
	struct rm_import_many params = {
		.fd = some_fd(),
		.parent = some_device(),
		.objects = {some_object()},
		.count = below(10) ? 1 : below(200),
	};

	return control(RM_CMD_IMPORT_OBJECTS_FROM_FD, 0, &params, sizeof(params));
}

static int64_t alloc_other(void)
{
	static const uint32_t classes[] = {RM_CLASS_SUBDEVICE, RM_CLASS_MIG_INSTANCE,
					   RM_CLASS_CONFIDENTIAL};
	uint32_t params[4] = {0}, client = some_client();
	struct rm_alloc alloc = {
		.root = client,
		.parent = below(2) ? client : some_device(),
		.new_handle = some_object(),
		.class = classes[below(3)],
		.params = (uintptr_t)params,
		.params_size = below(5) * sizeof(params[0]),
	};

	return CALL(RM_NR_ALLOC, alloc);
}

static int64_t confidential(void)
{
	struct rm_confidential params;

	return control(RM_CMD_GET_CONFIDENTIAL, some_object(), &params, sizeof(params));
}

static int64_t virtualization(void)
{
	struct rm_virtualization params;

	return control(RM_CMD_GET_VIRTUALIZATION, some_device(), &params, sizeof(params));
}

static int64_t export_info(void)
{
	struct rm_export_info params = {.fd = some_fd()};

	return control(RM_CMD_GET_EXPORT_OBJECT_INFO, 0, &params, sizeof(params));
}

static int64_t gpu_id_info(void)
{
	struct rm_gpu_id_info params = {.gpu_id = below(4) << 8};

	return control(RM_CMD_GPU_GET_ID_INFO, 0, &params, sizeof(params));
}

static int64_t surface_info(void)
{
	struct rm_surface_item items[] = {{RM_SURFACE_SIZE_LOW, 0}, {below(9), 0}};
	struct rm_surface_info params = {
		.count = below(20) ? 2 : below(1000),
		.list = below(20) ? (uintptr_t)items : below(5000),
	};

	/* A count that goes on behind the list would make it write there, as the driver would. */
	if (params.count > 2)
		params.list = 0;
	return control(RM_CMD_GET_SURFACE_INFO, some_object(), &params, sizeof(params));
}

static int64_t dup_object(void)
{
	struct rm_dup_object argument = {
		.client = some_client(),
		.parent = some_device(),
		.new_handle = some_object(),
		.source_client = below(10) ? IPC_CLIENT_BITS | getpid() : below(1u << 31),
		.source_object = some_fd(),
	};

	return CALL(RM_NR_DUP_OBJECT, argument);
}

static int64_t map_memory(void)
{
	struct rm_map_memory argument = {
		.client = some_client(),
		.device = some_device(),
		.memory = some_object(),
		.offset = below(PAGES) * page,
		.length = (1 + below(2)) * page,
		.fd = below(10) ? nodes[below(NODES)] : some_fd(),
	};
	int64_t status = CALL(RM_NR_MAP_MEMORY, argument);

	if (!status)
		mappings[below(MAPPINGS)] = (struct rm_unmap_memory){
			.client = argument.client,
			.device = argument.device,
			.memory = argument.memory,
			.linear = argument.linear,
		};
	return status;
}

static int64_t unmap_memory(void)
{
	struct rm_unmap_memory argument = mappings[below(MAPPINGS)];

	return CALL(RM_NR_UNMAP_MEMORY, argument);
}

static int64_t free_something(void)
{
	struct rm_free argument = {.root = some_client()};

	if (below(2)) {
		argument.parent = some_device();
		argument.old = some_object();
	} else {
		argument.parent = argument.root;
		argument.old = some_device();
	}
	return CALL(RM_NR_FREE, argument);
}

static void set(char *params, enum fact at, uint64_t value, size_t size)
{
	memcpy(params + fact(at), &value, size);
}

/* What the part's class wants, as far as chance has it. */
static void fill_params(uint32_t class, uint32_t client, char *params)
{
	uint32_t engine = RM_ENGINE_COPY0 + !below(8);

	switch (class) {
	case RM_CLASS_VIRTUAL:
		set(params, FACT_AT_VIRTUAL_PARAMS_ADDRESS_SPACE, below(4) ? 0 : some_object(), 4);
		break;
	case RM_CLASS_LOCAL_MEMORY:
		set(params, FACT_AT_MEMORY_PARAMS_OWNER, client, 4);
		set(params, FACT_AT_MEMORY_PARAMS_ATTRIBUTES, 2u << 27 | 1u << 23, 4);
		set(params, FACT_AT_MEMORY_PARAMS_SIZE, PAGES * page, 8);
		break;
	case RM_CLASS_GROUP:
		set(params, FACT_AT_GROUP_PARAMS_ENGINE, engine, 4);
		break;
	case RM_CLASS_CHANNEL:
		set(params, FACT_AT_CHANNEL_PARAMS_ERROR, below(2) ? 0 : some_object(), 4);
		set(params, FACT_AT_CHANNEL_PARAMS_ENTRIES, 8, 4);
		set(params, FACT_AT_CHANNEL_PARAMS_FLAGS, 1 << 7, 4);
		set(params, FACT_AT_CHANNEL_PARAMS_USERD, some_object(), 4);
		set(params, FACT_AT_CHANNEL_PARAMS_USERD_OFFSET, below(PAGES) * page, 8);
		set(params, FACT_AT_CHANNEL_PARAMS_ENGINE, engine, 4);
		break;
	case RM_CLASS_COPY:
		set(params, FACT_AT_COPY_PARAMS_VERSION, 1, 4);
		set(params, FACT_AT_COPY_PARAMS_ENGINE, engine, 4);
		break;
	}
}

static int64_t alloc_part(uint32_t class)
{
	static char params[512];
	uint32_t client = some_client();
	struct rm_alloc alloc = {
		.root = client,
		.parent = below(2) ? some_device() : some_object(),
		.new_handle = some_object(),
		.class = class,
		.params = (uintptr_t)params,
	};

	memset(params, 0, sizeof(params));
	fill_params(class, client, params);
	return CALL(RM_NR_ALLOC, alloc);
}

#define PART(name, class)                                                                          \
	static int64_t name(void)                                                                  \
	{                                                                                          \
		return alloc_part(class);                                                          \
	}

PART(alloc_address_space, RM_CLASS_ADDRESS_SPACE)
PART(alloc_virtual, RM_CLASS_VIRTUAL)
PART(alloc_local_memory, RM_CLASS_LOCAL_MEMORY)
PART(alloc_group, RM_CLASS_GROUP)
PART(alloc_channel, RM_CLASS_CHANNEL)
PART(alloc_usermode, RM_CLASS_USERMODE)

/* A channel is rare: look for one. */
static int64_t alloc_copy(void)
{
	int64_t status = -1;

	for (int i = 0; status && i < 32; i++)
		status = alloc_part(RM_CLASS_COPY);
	return status;
}

static int64_t register_fd(void)
{
	struct open_node node;

	check(node_of_fd(nodes[below(NODES)], &node), "an open node is known");
	return rm_ioctl(&node, _IOWR(RM_IOCTL_TYPE, RM_NR_REGISTER_FD, int),
			(uintptr_t)&control_fd);
}

static int64_t user_memory(void)
{
	static _Alignas(4096) char pages[2 * 4096];
	struct rm_user_memory argument = {
		.root = some_client(),
		.parent = some_device(),
		.new_handle = some_object(),
		.class = RM_CLASS_USER_MEMORY,
		.flags = 0x40001010,
		.address = (uintptr_t)pages,
		.limit = below(sizeof(pages)),
	};
	struct open_node node;
	int ret;

	check(node_of_fd(nodes[below(NODES)], &node), "an open node is known");
	ret = rm_ioctl(&node, _IOWR(RM_IOCTL_TYPE, RM_NR_USER_MEMORY, struct rm_user_memory),
		       (uintptr_t)&argument);
	return ret ? (int64_t)ret : argument.status;
}

static char last_unmap[64];

static int64_t map_dma(void)
{
	char argument[64] = {0};
	int64_t status;

	set(argument, FACT_AT_MAP_DMA_CLIENT, some_client(), 4);
	set(argument, FACT_AT_MAP_DMA_DEVICE, some_device(), 4);
	set(argument, FACT_AT_MAP_DMA_DMA, some_object(), 4);
	set(argument, FACT_AT_MAP_DMA_MEMORY, some_object(), 4);
	set(argument, FACT_AT_MAP_DMA_LENGTH, (1 + below(2)) * page, 8);
	set(argument, FACT_AT_MAP_DMA_FLAGS, below(2) ? 0 : RM_MAP_DMA_SNOOP, 4);
	status = call(RM_NR_MAP_DMA, argument, fact(FACT_SIZE_MAP_DMA),
		      fact(FACT_AT_MAP_DMA_STATUS));
	if (!status) {
		memcpy(last_unmap, argument, 4 * sizeof(uint32_t));
		memcpy(last_unmap + fact(FACT_AT_UNMAP_DMA_ADDRESS),
		       argument + fact(FACT_AT_MAP_DMA_ADDRESS), sizeof(uint64_t));
	}
	return status;
}

static int64_t unmap_dma(void)
{
	char argument[sizeof(last_unmap)];

	memcpy(argument, last_unmap, sizeof(argument));
	return call(RM_NR_UNMAP_DMA, argument, fact(FACT_SIZE_UNMAP_DMA),
		    fact(FACT_AT_UNMAP_DMA_STATUS));
}

static int64_t channel_control(void)
{
	static const enum fact commands[] = {FACT_CTRL_SCHEDULE, FACT_CTRL_TOKEN,
					     FACT_CTRL_GET_TIMESLICE, FACT_CTRL_COPY_CAPS};
	static const enum fact sizes[] = {FACT_SIZE_SCHEDULE, FACT_SIZE_TOKEN, FACT_SIZE_TIMESLICE,
					  FACT_SIZE_COPY_CAPS};
	uint32_t which = below(4), params[4] = {RM_ENGINE_COPY0};

	return control(fact(commands[which]), some_object(), params, fact(sizes[which]));
}

static int64_t bind_engine_of(void)
{
	uint32_t engine = RM_ENGINE_COPY0 + !below(8);

	return control(fact(FACT_CTRL_BIND), some_object(), &engine, sizeof(engine));
}

static int64_t free_under_object(void)
{
	struct rm_free argument = {
		.root = some_client(), .parent = some_object(), .old = some_object()};

	return CALL(RM_NR_FREE, argument);
}

static int64_t map_view(void)
{
	struct view *view = &views[below(VIEWS)];
	int fd = nodes[below(NODES)];
	struct open_node node;
	void *address;

	check(node_of_fd(fd, &node), "an open node is known");
	if (view->address)
		return -1;
	address = rm_mmap(&node, fd, NULL, (1 + below(2)) * page, PROT_READ | PROT_WRITE,
			  MAP_SHARED, 0);
	if (address == MAP_FAILED)
		return -errno;
	view->address = address;
	view->length = page;
	memset(address, below(256), page);
	return 0;
}

static int64_t unmap_view(void)
{
	struct view *view = &views[below(VIEWS)];

	if (!view->address)
		return -1;
	/* Of a view of two pages, the second stays: a leftover for the ledger to keep. */
	check(!rm_munmap(view->address, view->length), "munmap");
	view->address = NULL;
	return 0;
}

static int64_t reopen_node(void)
{
	int *fd = &nodes[below(NODES)];

	rm_close(*fd);
	*fd = open_device();
	return 0;
}

struct step {
	const char *name;
	int64_t (*take)(void);
	unsigned long done;
};

static struct step steps[] = {
	{"alloc_client", alloc_client, 0},
	{"alloc_device", alloc_device, 0},
	{"import_many", import_many, 0},
	{"alloc_other", alloc_other, 0},
	{"confidential", confidential, 0},
	{"virtualization", virtualization, 0},
	{"export_info", export_info, 0},
	{"gpu_id_info", gpu_id_info, 0},
	{"surface_info", surface_info, 0},
	{"dup_object", dup_object, 0},
	{"map_memory", map_memory, 0},
	{"unmap_memory", unmap_memory, 0},
	{"free", free_something, 0},
	{"mmap", map_view, 0},
	{"munmap", unmap_view, 0},
	{"reopen", reopen_node, 0},
	{"address_space", alloc_address_space, 0},
	{"virtual", alloc_virtual, 0},
	{"local_memory", alloc_local_memory, 0},
	{"group", alloc_group, 0},
	{"channel", alloc_channel, 0},
	{"copy", alloc_copy, 0},
	{"usermode", alloc_usermode, 0},
	{"register_fd", register_fd, 0},
	{"user_memory", user_memory, 0},
	{"map_dma", map_dma, 0},
	{"unmap_dma", unmap_dma, 0},
	{"channel_control", channel_control, 0},
	{"bind", bind_engine_of, 0},
	{"free_under_object", free_under_object, 0},
};

#define STEPS (sizeof(steps) / sizeof(steps[0]))

static void start(void)
{
	setenv("FAKE_RM_DEVICES", "2", 1);
	page = getpagesize();
	ledger_init();
	control_fd = open_path("/dev/nvidiactl");
	check(node_of_fd(control_fd, &control_node), "the control node is known");
	for (int i = 0; i < NODES; i++)
		nodes[i] = open_device();
	for (int i = 0; i < BLOCKS; i++)
		blocks[i] = make_block(i % 2);
}

static int alive(const char *what)
{
	int count;

	ledger_lock();
	ledger_reap();
	count = ledger_count(what);
	ledger_unlock();
	return count;
}

static void finish(void)
{
	static const char *const words[] = {"clients", "devices", "objects",	 "mappings",
					    "files",   "parts",	  "dma_mappings"};

	rm_close(control_fd);
	for (int i = 0; i < NODES; i++)
		rm_close(nodes[i]);
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		check(!alive(words[i]), words[i]);
	for (size_t i = 0; i < STEPS; i++)
		check(steps[i].done, steps[i].name);
	ledger_lock();
	view_remove(NULL, SIZE_MAX - page);
	check(!ledger_has_views(), "views");
	ledger_unlock();
}

int main(int argc, char **argv)
{
	check(argc == 3, "fuzz SEED ROUNDS");
	state = strtoul(argv[1], NULL, 0) | 1;
	start();
	for (unsigned long round = strtoul(argv[2], NULL, 0); round; round--) {
		struct step *step = &steps[below(STEPS)];

		if (!step->take())
			step->done++;
	}
	finish();
	return 0;
}
