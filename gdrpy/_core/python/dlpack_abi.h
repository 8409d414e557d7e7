/* SPDX-License-Identifier: MIT */
/* The contents of DLPack capsules. */
#ifndef GDRPY_DLPACK_ABI_H
#define GDRPY_DLPACK_ABI_H

#include <stdint.h>

#define DL_NAME "dltensor"
#define DL_VERSIONED_NAME "dltensor_versioned"

#define DL_MAX_DIMENSIONS 64

/* The layouts are the public ABI of DLPack 1.x; only the names are ours. */
struct dl_tensor {
	void *data;
	int32_t device_type;
	int32_t device_id;
	int32_t ndim;
	uint8_t dtype_code;
	uint8_t dtype_bits;
	uint16_t dtype_lanes;
	int64_t *shape;
	int64_t *strides; /* in elements */
	uint64_t byte_offset;
};

struct dl_managed {
	struct dl_tensor tensor;
	void *context;
	void (*deleter)(struct dl_managed *self);
};

#define DL_MAJOR 1
#define DL_MINOR 1 /* the first with 8-bit floats */
#define DL_READ_ONLY UINT64_C(1)
#define DL_COPIED UINT64_C(2)

struct dl_managed_versioned {
	uint32_t major;
	uint32_t minor;
	void *context;
	void (*deleter)(struct dl_managed_versioned *self);
	uint64_t flags;
	struct dl_tensor tensor;
};

#endif
