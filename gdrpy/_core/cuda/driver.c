/* SPDX-License-Identifier: MIT */
#include "cuda/driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>

static bool find(void *library, const char *symbol, void *function)
{
	void *address = dlsym(library, symbol);

	*(void **)function = address;
	return address;
}

bool core_cuda_find(struct core_cuda *cuda)
{
	void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
	bool found = true;

	if (!library)
		return false;
#define FIND(name, symbol, parameters) found = find(library, symbol, &cuda->name) && found;
	CORE_CUDA_FUNCTIONS(FIND)
#undef FIND
#define FIND(name, symbol, parameters) find(library, symbol, &cuda->name);
	CORE_CUDA_NEWER_FUNCTIONS(FIND)
#undef FIND
	dlclose(library); /* the process keeps it loaded */
	return found;
}

const char *core_cuda_error_name(const struct core_cuda *cuda, int result)
{
	const char *name = NULL;

	cuda->cuGetErrorName(result, &name);
	return name ? name : "an unknown CUDA error";
}

int core_cuda_fail(struct core_error *error, const struct core_cuda *cuda, const char *call,
		   int result, const char *purpose)
{
	bool full = result == CORE_CUDA_OUT_OF_MEMORY;

	const char *name = core_cuda_error_name(cuda, result);

	core_fail(error, full ? CORE_FAILED_MEMORY : CORE_FAILED_CUDA, full ? ENOMEM : EIO,
		  "%s: %s", call, name);
	error->status = (uint32_t)result;
	error->result = name;
	snprintf(error->call, sizeof(error->call), "%s", call);
	return core_explain(error, "%s", purpose);
}
