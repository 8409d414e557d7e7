/* SPDX-License-Identifier: MIT */
/*
 * Takes the steps that its arguments name, and prints how each ended: for what is decided by the
 * environment, by the order of the steps, or by how the program ends. It does not link CUDA.
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gdrapi.h"

#define GRANULE ((size_t)2 << 20)

static gdr_t gdr;
static gdr_mh_t handle;
static uint64_t pointer;
static void *va;

static int cuda(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	int (*init)(unsigned int), (*retain)(void **, int), (*set)(void *);
	int (*allocate)(uint64_t *, size_t), error;
	void *context;

	if (!library)
		return -1;
	*(void **)&init = dlsym(library, "cuInit");
	*(void **)&retain = dlsym(library, "cuDevicePrimaryCtxRetain");
	*(void **)&set = dlsym(library, "cuCtxSetCurrent");
	*(void **)&allocate = dlsym(library, "cuMemAlloc_v2");
	error = init(0);
	if (!error)
		error = retain(&context, 0);
	if (!error)
		error = set(context);
	return error ? error : allocate(&pointer, GRANULE);
}

static int init_cuda(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	int (*init)(unsigned int);

	if (!library)
		return -1;
	*(void **)&init = dlsym(library, "cuInit");
	return init(0);
}

static int load_cuda(void)
{
	return dlopen("libcuda.so.1", RTLD_NOW) ? 0 : -1;
}

static int open_library(void)
{
	gdr = gdr_open();
	return gdr ? 0 : -1;
}

static int pin(void)
{
	return gdr_pin_buffer(gdr, pointer, GRANULE, 0, 0, &handle);
}

static int pin_host_memory(void)
{
	return gdr_pin_buffer(gdr, (uintptr_t)&pointer, 8, 0, 0, &handle);
}

static int map(void)
{
	return gdr_map(gdr, handle, &va, GRANULE);
}

static int copy(void)
{
	return gdr_copy_to_mapping(handle, va, "bytes", 5);
}

static int type(void)
{
	gdr_info_t info;
	int error = gdr_get_info(gdr, handle, &info);

	return error ? -error : (int)info.mapping_type;
}

static int uses_dmabuf(void)
{
	int value = 0, error = gdr_get_attribute(gdr, GDR_ATTR_USING_DMA_BUF_MMAP, &value);

	return error ? -error : value;
}

static int unmap(void)
{
	return gdr_unmap(gdr, handle, va, GRANULE);
}

static int unpin(void)
{
	return gdr_unpin_buffer(gdr, handle);
}

static int close_library(void)
{
	return gdr_close(gdr);
}

/* The steps that follow are the child's. */
static int fork_off(void)
{
	pid_t child = fork();
	int status;

	if (!child)
		return 0;
	if (child < 0 || waitpid(child, &status, 0) != child)
		_exit(3);
	_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 4);
}

static int die(void)
{
	return raise(SIGKILL);
}

static const struct step {
	const char *name;
	int (*take)(void);
} steps[] = {
	{"load-cuda", load_cuda},
	{"init-cuda", init_cuda},
	{"cuda", cuda},
	{"open", open_library},
	{"pin", pin},
	{"pin-host", pin_host_memory},
	{"map", map},
	{"copy", copy},
	{"type", type},
	{"uses-dmabuf", uses_dmabuf},
	{"unmap", unmap},
	{"unpin", unpin},
	{"close", close_library},
	{"fork", fork_off},
	{"die", die},
};

int main(int argc, char **argv)
{
	setlinebuf(stdout);
	for (int i = 1; i < argc; i++) {
		const struct step *step = steps;
		const struct step *end = steps + sizeof(steps) / sizeof(steps[0]);

		while (step < end && strcmp(step->name, argv[i]))
			step++;
		if (step == end)
			return 2;
		printf("%s %d\n", step->name, step->take());
	}
	return 0;
}
