/* SPDX-License-Identifier: MIT */
#include "session.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/pointer.h"
#include "log.h"

/*
 * The driver that the program has loaded so far, or NULL; the library loads none. The loader is
 * called without our lock, because it takes its own.
 */
static const struct core_cuda *loaded_cuda(void)
{
	static struct core_cuda cuda;
	static _Atomic bool found;
	struct core_cuda loaded;

	if (!found && core_cuda_find(&loaded)) {
		pthread_mutex_lock(&core_objects_lock);
		if (!found)
			cuda = loaded;
		found = true;
		pthread_mutex_unlock(&core_objects_lock);
	}
	return found ? &cuda : NULL;
}

/* False, with an error logged, if the environment names an unknown backend. */
static bool read_forced(const struct core_backend **forced)
{
	const char *name = getenv("GDRPY_BACKEND");
	const char *dmabuf = getenv("GDRCOPY_USE_DMABUF_MMAP");

	*forced = NULL;
	if (name && *name) {
		*forced = core_backend_named(name);
		if (!*forced)
			core_log(
				CORE_LOG_ERROR,
				"gdr_open: there is no backend GDRPY_BACKEND=%s: set it to gdrdrv, "
				"dmabuf, nvrm or sim, or unset it",
				name);
		return *forced;
	}
	if (dmabuf && !strcmp(dmabuf, "1"))
		*forced = &core_backend_dmabuf;
	return true;
}

static const struct core_node *node_of(const struct gdr *session)
{
	return session->has_node ? &session->node : NULL;
}

static bool is_initialized(const struct core_cuda *cuda)
{
	int device;

	return cuda && !cuda->cuDeviceGet(&device, 0);
}

/*
 * Whether a backend serves a device. With CUDA, pins are tried, because programs abort when a
 * promised pin fails. A lack of memory may be temporary.
 */
static void ask_of(const struct core_backend *backend, const struct core_cuda *cuda, int device,
		   void *context, const struct gdr *session, struct core_status *status)
{
	struct core_error error;

	backend->status(cuda, device, node_of(session), status);
	if (!status->usable || device < 0 || !backend->prove ||
	    !backend->prove(cuda, device, context, &error) || error.failure == CORE_FAILED_MEMORY)
		return;
	status->usable = false;
	core_status_say(status, error.message, "");
}

/*
 * Whether a backend serves the current device or, without one, at least one device. Some need CUDA
 * to tell, which may be loaded later: these are accepted if they are forced.
 */
static void ask(const struct core_backend *backend, const struct core_cuda *cuda,
		const struct gdr *session, struct core_status *status)
{
	bool initialized = is_initialized(cuda);
	int next = initialized ? 0 : -1, current, ignored;
	void *context = NULL;

	if ((backend == &core_backend_dmabuf && !initialized) ||
	    (backend == &core_backend_sim && !cuda)) {
		*status = (struct core_status){.usable = session->forced};
		core_status_say(status,
				cuda ? "CUDA is not initialized in this process yet"
				     : "no CUDA driver is loaded in this process yet",
				"");
		return;
	}
	current = initialized ? core_device_current(cuda, &context) : -1;
	if (current >= 0) {
		ask_of(backend, cuda, current, context, session, status);
		return;
	}
	do {
		ask_of(backend, cuda, next++, NULL, session, status);
	} while (!status->usable && initialized && !cuda->cuDeviceGet(&ignored, next));
}

static void tell_refusal(enum core_log_level level, const struct core_backend *backend,
			 const struct core_status *status)
{
	bool remedy = status->remedy[0];

	core_log(level, "gdr_open: cannot use %s: %s%s%s%s", backend->name, status->reason,
		 remedy ? " (" : "", status->remedy, remedy ? ")" : "");
}

static void warn_if_untested(const struct core_backend *backend)
{
	static _Atomic bool warned;
	char version[32];

	if (backend != &core_backend_nvrm)
		return;
	core_driver_version(version);
	if (version[0] && !core_driver_tested(version) && !atomic_exchange(&warned, true))
		core_log(CORE_LOG_WARNING,
			 "the nvrm backend was not compared with NVIDIA driver %s; going "
			 "on, since a changed interface is refused, not misread. If pins fail, "
			 "load the module gdrdrv",
			 version);
}

#define MOST_CANDIDATES 4

bool core_choose(struct gdr *session)
{
	const struct core_backend *only[] = {NULL, NULL};
	const struct core_cuda *cuda = loaded_cuda();
	const struct core_backend *const *candidates;
	struct core_status statuses[MOST_CANDIDATES];
	int chosen = 0;

	if (!read_forced(&session->forced))
		return false;
	only[0] = session->forced;
	candidates = session->forced ? only : core_candidates(cuda);
	for (; candidates[chosen]; chosen++) {
		ask(candidates[chosen], cuda, session, &statuses[chosen]);
		if (statuses[chosen].usable)
			break;
	}
	session->backend = candidates[chosen];
	if (!session->backend)
		core_log(CORE_LOG_ERROR, "gdr_open: nothing can map GPU memory here:");
	/* The last requires the least of the machine. */
	for (int i = chosen - 1; i >= 0; i--)
		tell_refusal(session->backend ? CORE_LOG_INFO : CORE_LOG_ERROR, candidates[i],
			     &statuses[i]);
	if (!session->backend)
		return false;
	core_log(CORE_LOG_INFO, "gdr_open: using %s: %s", candidates[chosen]->name,
		 statuses[chosen].reason);
	warn_if_untested(candidates[chosen]);
	return true;
}

bool core_pins_persist(const struct gdr *session)
{
	return session->backend != &core_backend_gdrdrv || session->node.persistent;
}

bool core_can_force_pcie(const struct gdr *session)
{
	return session->backend != &core_backend_gdrdrv || core_node_forces_pcie(&session->node);
}

/* Whether another backend may succeed after this error. */
static bool may_go_on(const struct gdr *session, const struct core_error *error)
{
	return !session->forced &&
	       (error->failure == CORE_FAILED_UNAVAILABLE || error->failure == CORE_FAILED_HANDLE);
}

/* A module that is loaded for revocable pins makes those, as it always did. */
static bool module_revokes(const struct gdr *session)
{
	return session->has_node && !session->node.persistent &&
	       (!session->forced || session->forced == &core_backend_gdrdrv);
}

static struct core_memory *take(struct gdr *session, const struct core_cuda *cuda,
				struct core_request *request, struct core_error *error)
{
	struct core_memory *memory;
	struct core_error modules;

	if (!module_revokes(session) || request->force_pcie)
		return core_take(cuda, session->forced, request, error);

	request->revocable = request->sigbus = true;
	memory = core_take(cuda, &core_backend_gdrdrv, request, error);
	if (memory || !may_go_on(session, error))
		return memory;
	core_log(CORE_LOG_INFO, "gdr_pin_buffer: passed over gdrdrv: %s", error->message);
	modules = *error;
	request->revocable = request->sigbus = false;
	request->node = NULL;
	memory = core_take(cuda, NULL, request, error);
	if (!memory && modules.failure == CORE_FAILED_HANDLE)
		*error = modules;
	return memory;
}

struct core_memory *core_take_range(struct gdr *session, uint64_t ptr, size_t nbytes,
				    bool force_pcie, struct core_error *error)
{
	struct core_request request = {
		.ptr = ptr,
		.nbytes = nbytes,
		.fd = -1,
		.gpu_pages = true,
		.force_pcie = force_pcie,
		.node = node_of(session),
	};
	const struct core_cuda *cuda = loaded_cuda();
	struct core_memory *memory;

	if (!cuda)
		return core_fail_null(
			error, CORE_FAILED_HANDLE, EINVAL,
			"%#llx cannot be GPU memory: this process has loaded no libcuda.so.1. "
			"Allocate it with CUDA in this process first",
			(unsigned long long)ptr);
	memory = take(session, cuda, &request, error);
	if (!memory)
		return NULL;
	if (atomic_exchange(&session->backend, memory->backend) != memory->backend) {
		core_log(CORE_LOG_INFO, "gdr_pin_buffer: using %s", memory->backend->name);
		warn_if_untested(memory->backend);
	}
	return memory;
}
