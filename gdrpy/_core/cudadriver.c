/* SPDX-License-Identifier: MIT */
#include "cudadriver.h"

#include <dlfcn.h>

static bool find(void *library, const char *symbol, void *function)
{
	void *address = dlsym(library, symbol);

	*(void **)function = address;
	return address;
}

bool gdr_cuda_find(struct gdr_cuda *cuda)
{
	void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
	bool found = library;

#define FIND(name, symbol, parameters) found = found && find(library, symbol, &cuda->name);
	GDR_CUDA_FUNCTIONS(FIND)
#undef FIND

	if (library)
		dlclose(library); /* whoever loaded it keeps it */
	return found;
}
