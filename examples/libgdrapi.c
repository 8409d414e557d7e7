/* SPDX-License-Identifier: MIT */
/*
 * The CPU stores into memory of cudaMalloc's kind through libgdrapi, and CUDA finds it there.
 *
 * First run the lines with export that `gdrpy libgdrapi` prints: by them the loader and pkg-config
 * find the library. No broker is needed. Then, on a real GPU,
 *
 *	gcc -o store libgdrapi.c $(pkg-config --cflags --libs gdrapi) -l:libcuda.so.1
 *	./store
 *
 * and on the simulated one
 *
 *	gcc -o store libgdrapi.c $(pkg-config --cflags --libs gdrapi) $(python -m gdrpy.sim)
 *	LD_PRELOAD=$(python -m gdrpy.sim) ./store
 */
#include <gdrapi.h>
#include <stdio.h>
#include <stdlib.h>

/* What it needs of the driver: with NVIDIA's toolkit, include <cuda.h> in place of these. */
int cuInit(unsigned int flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuDevicePrimaryCtxRelease_v2(int device);
int cuCtxSetCurrent(void *context);
int cuMemAlloc_v2(unsigned long long *pointer, size_t size);
int cuMemFree_v2(unsigned long long pointer);
int cuMemcpyDtoH_v2(void *host, unsigned long long pointer, size_t size);

/* GDRCOPY_ENABLE_LOGGING=1 in the environment has the library say why it refuses. */
#define TRY(call)                                                                                  \
	do {                                                                                       \
		int error = (call);                                                                \
		if (error) {                                                                       \
			fprintf(stderr, "%s: error %d\n", #call, error);                           \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

int main(void)
{
	const char sent[] = "written by the CPU, read by CUDA";
	char found[sizeof(sent)];
	unsigned long long pointer;
	void *context, *mapping;
	gdr_info_t info;
	gdr_mh_t pin;
	gdr_t gdr;

	TRY(cuInit(0));
	TRY(cuDevicePrimaryCtxRetain(&context, 0));
	TRY(cuCtxSetCurrent(context));
	TRY(cuMemAlloc_v2(&pointer, sizeof(sent)));

	gdr = gdr_open();
	TRY(gdr == NULL);
	TRY(gdr_pin_buffer(gdr, pointer, sizeof(sent), 0, 0, &pin));
	TRY(gdr_get_info(gdr, pin, &info));
	TRY(gdr_map(gdr, pin, &mapping, info.mapped_size));

	/* The mapping begins with the pin's first page, which may be before the pointer. */
	TRY(gdr_copy_to_mapping(pin, (char *)mapping + (pointer - info.va), sent, sizeof(sent)));
	TRY(cuMemcpyDtoH_v2(found, pointer, sizeof(found)));
	puts(found);

	TRY(gdr_unmap(gdr, pin, mapping, info.mapped_size));
	TRY(gdr_unpin_buffer(gdr, pin));
	TRY(gdr_close(gdr));
	TRY(cuMemFree_v2(pointer));
	TRY(cuDevicePrimaryCtxRelease_v2(0));
	return 0;
}
