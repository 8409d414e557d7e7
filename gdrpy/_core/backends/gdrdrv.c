/* SPDX-License-Identifier: MIT */
/*
 * Backend gdrdrv: any device pointer, through the kernel module that serves /dev/gdrdrv.
 *
 * NVIDIA's gdrdrv maps a pin once, as a whole, and every mapping here is a part of that one. A pin
 * of this project's module can be mapped through its share descriptor, repeatedly and in parts.
 * Requests for whole GPU pages do without the descriptor.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backends/backends.h"
#include "backends/node.h"
#include "common/forks.h"
#include "memory/private.h"

/* The longest time that the removal of all mappings of a pin takes. */
#define END_TAKES_MS 10000

/* The pin has ended. */
static int fail_revoked(struct core_error *error)
{
	return core_fail(error, CORE_FAILED_REVOKED, ENXIO,
			 "the GPU memory was freed by its owner, or its pin was closed: close the "
			 "mapping");
}

static int map_share(struct core_memory *memory, struct core_stretch *stretch, bool readonly,
		     enum core_mapping_kind *kind, struct core_error *error)
{
	const int fd = stretch->part->fd;

	if (!readonly && (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDWR)
		return core_fail(error, CORE_FAILED_PERMISSION, EACCES,
				 "the descriptor was shared read-only: open it with readonly=True");
	if (!core_fd_map(memory, stretch, readonly, kind, error))
		return 0;
	/* The module refuses new mappings before it reports the end, when the last one is gone. */
	if (error->number == EINVAL && core_share_ended(fd, END_TAKES_MS))
		return fail_revoked(error);
	return -1;
}

static bool share_revoked(struct core_memory *memory)
{
	return core_share_ended(memory->parts[0].fd, 0);
}

static const struct core_memory_functions share_functions = {
	.map = map_share,
	.unmap = core_fd_unmap,
	.release = core_fd_release,
	.revoked = share_revoked,
};

/* Take in a share descriptor, perhaps of another process's pin. */
static struct core_memory *take_export(int fd, uint64_t unused_nbytes, int unused_device,
				       struct core_error *error)
{
	struct core_part part = {.fd = -1};
	struct core_memory *memory;
	int64_t nbytes = core_share_size(fd);

	(void)unused_nbytes;
	(void)unused_device;
	if (nbytes < 0)
		return core_fail_null(
			error, CORE_FAILED_HANDLE, EINVAL,
			"file descriptor %d is not the share of a pin: pass one from Pin.export()",
			fd);
	memory = core_memory_new(&core_backend_gdrdrv, &share_functions, sizeof(*memory), error);
	if (!memory)
		return NULL;
	memory->kind = CORE_MAPPING_WC;
	snprintf(memory->location, sizeof(memory->location), "an unknown GPU");
	part.nbytes = (uint64_t)nbytes;
	return core_fd_add(memory, fd, &part, error) ? core_memory_undo(memory) : memory;
}

struct pin {
	struct core_memory memory;
	const struct core_node *node;

	/* For a pin that is mapped as a whole. */
	pthread_mutex_t lock;
	struct core_map whole;
	unsigned int users;
};

static struct pin *pin_of(struct core_memory *memory)
{
	return (struct pin *)memory;
}

static int ask(struct core_memory *memory, struct core_pin_info *info, struct core_error *error)
{
	int ret = core_node_info(pin_of(memory)->node, memory->handle, info);

	return ret ? core_fail_call(error, -ret, 0, "asking about handle %llu",
				    (unsigned long long)memory->handle)
		   : 0;
}

static bool pin_revoked(struct core_memory *memory)
{
	struct core_pin_info info;
	struct pin *pin = pin_of(memory);

	return !memory->persistent && pin->node->fd >= 0 &&
	       !core_node_info(pin->node, memory->handle, &info) && info.revoked;
}

/* The caching of the pin's mappings; CORE_FAILED_REVOKED if it has none. */
static int find_kind(struct core_memory *memory, enum core_mapping_kind *kind,
		     struct core_error *error)
{
	struct core_pin_info info;

	if (ask(memory, &info, error))
		return -1;
	*kind = (enum core_mapping_kind)info.mapping_type;
	return *kind == CORE_MAPPING_NONE ? fail_revoked(error) : 0;
}

static int map_pin(struct core_memory *memory, struct core_stretch *stretch, bool readonly,
		   enum core_mapping_kind *kind, struct core_error *error)
{
	struct core_error ignored;

	if (map_share(memory, stretch, readonly, kind, error))
		return -1;
	if (!find_kind(memory, kind, error))
		return 0;
	core_fd_unmap(memory, stretch, &ignored);
	return -1;
}

static int unmap_part_of_whole(struct core_memory *memory, struct core_stretch *stretch,
			       struct core_error *error)
{
	struct pin *pin = pin_of(memory);
	int ret = 0;

	(void)stretch;
	pthread_mutex_lock(&pin->lock);
	if (!--pin->users)
		ret = core_map_undo(&pin->whole);
	pthread_mutex_unlock(&pin->lock);
	return ret ? core_fail_call(error, -ret, 0, "munmap") : 0;
}

/* Called with the lock held. */
static int map_whole(struct pin *pin, uint64_t nbytes, struct core_error *error)
{
	uint64_t at = pin->memory.handle * (uint64_t)sysconf(_SC_PAGESIZE);
	int ret;

	core_map_pages(&pin->whole, 0, nbytes);
	ret = core_map_fd(&pin->whole, pin->node->fd, at, 0, false, NULL);
	if (!ret)
		return 0;
	if (ret == -EINVAL && pin_revoked(&pin->memory))
		return fail_revoked(error);
	core_fail_call(error, -ret, 0, "mmap");
	return core_explain(error, "mapping the %llu bytes of handle %llu",
			    (unsigned long long)nbytes, (unsigned long long)pin->memory.handle);
}

/* Only the caller enforces readonly, because all mappings share these pages. */
static int map_part_of_whole(struct core_memory *memory, struct core_stretch *stretch,
			     bool readonly, enum core_mapping_kind *kind, struct core_error *error)
{
	const struct core_part *part = stretch->part;
	struct pin *pin = pin_of(memory);
	struct core_error ignored;
	int ret = 0;

	(void)readonly;
	pthread_mutex_lock(&pin->lock);
	if (!pin->users)
		ret = map_whole(pin, part->offset + part->nbytes, error);
	if (!ret)
		pin->users++;
	pthread_mutex_unlock(&pin->lock);
	if (ret)
		return -1;

	stretch->map = (struct core_map){
		.address = (char *)pin->whole.address + part->offset + stretch->offset,
		.nbytes = stretch->nbytes,
	};
	if (!find_kind(memory, kind, error))
		return 0;
	unmap_part_of_whole(memory, stretch, &ignored);
	return -1;
}

static int want(struct core_memory *memory, enum core_mapping_kind kind, struct core_error *error)
{
	int ret = core_node_request_type(pin_of(memory)->node, memory->handle, kind);

	if (!ret)
		return 0;
	return core_fail(
		error, CORE_FAILED_UNAVAILABLE, -ret,
		"the kernel module does not map handle %llu as type %d: %s: do not request a type",
		(unsigned long long)memory->handle, (int)kind, strerror(-ret));
}

static int share(struct core_memory *memory, bool readonly, struct core_error *error)
{
	int fd;

	if (pin_revoked(memory))
		return fail_revoked(error);
	fd = core_node_share(pin_of(memory)->node, memory->handle, readonly);
	return fd >= 0 ? fd
		       : core_fail_call(error, -fd, 0, "sharing handle %llu",
					(unsigned long long)memory->handle);
}

static int release_pin(struct core_memory *memory, struct core_error *error)
{
	struct pin *pin = pin_of(memory);
	int ret;

	core_fd_release(memory, error);
	pthread_mutex_destroy(&pin->lock);
	/* Closing the node has already ended its pins. */
	ret = pin->node->fd >= 0 ? core_node_unpin(pin->node, memory->handle) : 0;
	return ret ? core_fail_call(error, -ret, 0, "unpinning handle %llu",
				    (unsigned long long)memory->handle)
		   : 0;
}

static const struct core_memory_functions pin_functions = {
	.map = map_pin,
	.unmap = core_fd_unmap,
	.release = release_pin,
	.want = want,
	.revoked = pin_revoked,
	.share = share,
};

static const struct core_memory_functions whole_pin_functions = {
	.map = map_part_of_whole,
	.unmap = unmap_part_of_whole,
	.release = release_pin,
	.want = want,
	.revoked = pin_revoked,
};

static int fail_pin(struct core_error *error, int number, const struct core_request *request)
{
	char what[96];

	snprintf(what, sizeof(what), "pinning %llu bytes at %#llx by " GDRDRV_NODE,
		 (unsigned long long)request->nbytes, (unsigned long long)request->ptr);
	switch (number) {
	case EINVAL:
		return core_fail(
			error, CORE_FAILED_HANDLE, number,
			"%s: the NVIDIA driver finds no GPU memory of this process there: pass a "
			"pointer from cuMemAlloc, cudaMalloc or gdrpy.alloc of this process",
			what);
	case EDQUOT:
		return core_fail(
			error, CORE_FAILED_MEMORY, number,
			"%s: over the limit of what a user may pin: close pins, or have the "
			"administrator raise the module's max_pinned_mib",
			what);
	case EOPNOTSUPP:
		return core_fail(error, CORE_FAILED_UNAVAILABLE, number,
				 "%s: the module or the NVIDIA driver does not support it", what);
	default:
		return core_fail_call(error, number, 0, "%s", what);
	}
}

/* Add the part of a new pin: through its share, or as a whole. The memory has the handle. */
static int add_pages(struct pin *pin, const struct core_request *request, bool shared,
		     struct core_error *error)
{
	struct core_memory *memory = &pin->memory;
	struct core_part part = {.fd = -1};
	struct core_pin_info info;
	int ret;

	if (ask(memory, &info, error))
		return -1;
	memory->pin_cycles = info.cycles;
	memory->cycles_per_ms = info.khz;
	memory->va = request->gpu_pages ? info.va : request->ptr;
	part.offset = memory->va - info.va;
	part.nbytes = request->gpu_pages ? info.nbytes : request->nbytes;
	if (shared) {
		core_forks_hold();
		ret = core_node_share(pin->node, memory->handle, false);
		part.fd = core_private_note(ret);
		core_forks_let_go();
		if (part.fd < 0)
			return core_fail_call(error, ret < 0 ? -ret : ENOMEM, 0,
					      "sharing handle %llu",
					      (unsigned long long)memory->handle);
	}
	if (!core_memory_add(memory, &part, error))
		return 0;
	if (part.fd >= 0)
		core_private_close(part.fd);
	return -1;
}

/* GDRDRV_PIN_V3_... Processes that still map the share of an ended pin read zeros too. */
static uint32_t flags_of(const struct core_node *node, const struct core_request *request)
{
	uint32_t flags = request->force_pcie ? GDRDRV_PIN_V3_FORCE_PCIE : 0;

	if (!core_node_full(node))
		return flags;
	flags |= request->revocable ? GDRDRV_PIN_V3_REVOCABLE : GDRDRV_PIN_V3_PERSISTENT;
	return request->sigbus ? flags : flags | GDRDRV_PIN_V3_ZERO_AFTER;
}

/* Pin through a node that outlives the memory. NULL with *error filled in. */
static struct core_memory *pin_memory(const struct core_request *request, struct core_error *error)
{
	const struct core_node *node = request->node;
	bool shared = core_node_full(node) && !request->gpu_pages;
	/* A pin that is mapped as a whole must begin on a GPU page. */
	uint64_t start =
		shared ? request->ptr : request->ptr / GDRDRV_GPU_PAGE_SIZE * GDRDRV_GPU_PAGE_SIZE;
	struct core_memory *memory = core_memory_new(&core_backend_gdrdrv,
						     shared ? &pin_functions : &whole_pin_functions,
						     sizeof(struct pin), error);
	int ret;

	if (!memory)
		return NULL;
	pin_of(memory)->node = node;
	pthread_mutex_init(&pin_of(memory)->lock, NULL);
	memory->page_size = GDRDRV_GPU_PAGE_SIZE;
	memory->persistent = core_node_full(node) ? !request->revocable : node->persistent;
	ret = core_node_pin(node, start, request->ptr + request->nbytes - start,
			    flags_of(node, request), &memory->handle);
	if (ret) {
		fail_pin(error, -ret, request);
		core_memory_forget(memory);
		return NULL;
	}
	return add_pages(pin_of(memory), request, shared, error) ? core_memory_undo(memory)
								 : memory;
}

#define LOAD "load the kernel module gdrdrv"

void core_node_explain(int error, struct core_status *status)
{
	switch (error) {
	case ENOENT:
	case ENXIO:
	case ENODEV:
		core_status_say(status, "no kernel module serves " GDRDRV_NODE, LOAD);
		break;
	case EACCES:
	case EPERM:
		core_status_say(status,
				"no permission to open " GDRDRV_NODE " for reading and writing",
				"ask for its group or mode");
		break;
	case EPROTO:
	case ENOTTY:
	case EINVAL:
		core_status_say(status, GDRDRV_NODE " has a different ABI than gdrdrv 2", LOAD);
		break;
	default:
		snprintf(status->reason, sizeof(status->reason), "opening " GDRDRV_NODE ": %s",
			 strerror(error));
		snprintf(status->remedy, sizeof(status->remedy), "see dmesg");
	}
}

static void status(const struct core_cuda *cuda, int device, const struct core_node *node,
		   struct core_status *status)
{
	struct core_node own;
	int ret;

	*status = (struct core_status){0};
	if (device >= 0 && cuda && core_cuda_simulated(cuda) && !cuda->on_bar()) {
		core_status_say(status,
				"the simulated GPU's memory is not PCI memory, so a kernel module "
				"cannot pin it",
				"run it in QEMU, with the simulated GPU on a PCI BAR");
		return;
	}
	ret = node ? 0 : core_node_open(&own, GDRDRV_NODE);
	if (ret) {
		core_node_explain(-ret, status);
		return;
	}
	status->usable = true;
	core_node_origin(node ? node : &own, status->reason, sizeof(status->reason));
	if (!node)
		core_node_close(&own);
}

/* Whether NVIDIA's module makes the requested kind of pin. */
static int check_nvidias(const struct core_node *node, const struct core_request *request,
			 struct core_error *error)
{
	char origin[96];

	core_node_origin(node, origin, sizeof(origin));
	if (request->revocable == node->persistent)
		return core_fail(error, CORE_FAILED_UNAVAILABLE, EOPNOTSUPP,
				 "%s makes %s, or reload the module (parameter "
				 "use_persistent_mapping)",
				 origin,
				 node->persistent
					 ? "persistent pins only: pass revocable=False"
					 : "revocable pins only: pass revocable=True, sigbus=True");
	if (request->revocable && !request->sigbus)
		return core_fail(error, CORE_FAILED_UNAVAILABLE, EOPNOTSUPP,
				 "%s raises SIGBUS on access to freed memory: pass "
				 "sigbus=True, or load gdrpy's module",
				 origin);
	return 0;
}

static struct core_memory *take(const struct core_cuda *cuda, const struct core_request *request,
				const struct core_found *found, struct core_error *error)
{
	const struct core_node *node = request->node;
	struct core_memory *memory;

	if (!request->ptr)
		return core_fail_null(
			error, CORE_FAILED_HANDLE, EINVAL,
			"the gdrdrv backend needs the GPU view: open it with gpu=True");
	if (!node)
		return core_fail_null(error, CORE_FAILED_UNAVAILABLE, ENODEV,
				      "no kernel module serves " GDRDRV_NODE ": " LOAD);
	/* A region takes whatever kind of pin NVIDIA's module makes. */
	if (!core_node_full(node) && request->fd < 0 && check_nvidias(node, request, error))
		return NULL;
	memory = pin_memory(request, error);
	if (memory) {
		memory->device = found->pointer.device;
		core_device_location(cuda, memory->device, memory->location);
	}
	return memory;
}

const struct core_backend core_backend_gdrdrv = {
	.name = "gdrdrv",
	.revocable_pins = true,
	.status = status,
	.take = take,
	.take_export = take_export,
};
