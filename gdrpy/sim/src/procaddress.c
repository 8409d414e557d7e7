/* SPDX-License-Identifier: MIT */
#include <string.h>

#include "sim.h"

const struct sim_symbol sim_symbols[] = {
#define SIM_FUNCTION(symbol, base, version, parameters) {#base, version, (void *)symbol},
#include "functions.h"
};

CUresult cuDriverGetVersion(int *version)
{
	API(cuDriverGetVersion, NEEDS_NOTHING);

	REQUIRE(version);
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

	REQUIRE(symbol && function);
	*function = NULL;
	REQUIRE(newest <= SIM_CUDA_VERSION && !(flags & ~(uint64_t)CU_GET_PROC_ADDRESS_FLAGS_MASK));

	*status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	for (size_t i = 0; i < FUNCTION_COUNT; i++) {
		if (strcmp(sim_symbols[i].base, symbol))
			continue;
		if (sim_symbols[i].version <= newest) {
			*status = CU_GET_PROC_ADDRESS_SUCCESS;
			*function = sim_symbols[i].address;
		} else if (!*function) {
			*status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
		}
	}
	return CUDA_SUCCESS;
}

CUresult cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags)
{
	API(cuGetProcAddress, NEEDS_NOTHING);
	int status;
	CUresult result = find_function(symbol, function, version, flags, &status);

	if (result == CUDA_SUCCESS && status != CU_GET_PROC_ADDRESS_SUCCESS)
		return CUDA_ERROR_NOT_FOUND;
	return result;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags,
			     int *status)
{
	API(cuGetProcAddress_v2, NEEDS_NOTHING);
	int unwanted;

	return find_function(symbol, function, version, flags, status ? status : &unwanted);
}
