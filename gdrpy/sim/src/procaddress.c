/* SPDX-License-Identifier: MIT */
#include <string.h>

#include "sim.h"

static const struct {
	const char *base;
	unsigned int version;
	void *address;
} functions[] = {
#define SIM_FUNCTION(symbol, base, version, parameters) {#base, version, (void *)symbol},
#include "functions.h"
#undef SIM_FUNCTION
};

CUresult cuDriverGetVersion(int *version)
{
	API(cuDriverGetVersion, NEEDS_NOTHING);

	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = SIM_CUDA_VERSION;
	return CUDA_SUCCESS;
}

/*
 * The newest symbol of a name in `version`; negative means the newest version. On a real driver,
 * the flags choose between legacy and per-thread default streams; here both get the legacy one,
 * whose order is stricter.
 */
static CUresult find_function(const char *symbol, void **function, int version, uint64_t flags,
			      int *status)
{
	unsigned int newest = version < 0 ? SIM_CUDA_VERSION : (unsigned int)version;

	if (!symbol || !function)
		return CUDA_ERROR_INVALID_VALUE;
	*function = NULL;
	if (newest > SIM_CUDA_VERSION || flags & ~(uint64_t)CU_GET_PROC_ADDRESS_FLAGS_MASK)
		return CUDA_ERROR_INVALID_VALUE;

	*status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
		if (strcmp(functions[i].base, symbol))
			continue;
		if (functions[i].version <= newest) {
			*status = CU_GET_PROC_ADDRESS_SUCCESS;
			*function = functions[i].address;
		} else if (!*function) {
			*status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
		}
	}
	return CUDA_SUCCESS;
}

CUresult cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags)
{
	int status;
	CUresult result;

	API(cuGetProcAddress, NEEDS_NOTHING);

	result = find_function(symbol, function, version, flags, &status);
	if (result == CUDA_SUCCESS && status != CU_GET_PROC_ADDRESS_SUCCESS)
		return CUDA_ERROR_NOT_FOUND;
	return result;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags,
			     int *status)
{
	int unwanted;

	API(cuGetProcAddress_v2, NEEDS_NOTHING);

	return find_function(symbol, function, version, flags, status ? status : &unwanted);
}
