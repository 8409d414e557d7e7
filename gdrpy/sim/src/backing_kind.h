/* SPDX-License-Identifier: MIT */
/* The two kinds of memory behind blocks. A process uses one of them. */
#ifndef GDRPY_SIM_BACKING_KIND_H
#define GDRPY_SIM_BACKING_KIND_H

#include "backing.h"

struct backing_kind {
	CUresult (*create)(struct backing *backing, int ordinal, uint64_t size);
	/* Checks everything except whether the device exists. */
	CUresult (*import)(struct backing *backing, int fd);
	int (*export)(const struct backing *backing);
	int (*take)(uint32_t pid, uint32_t fd);
	/* Tell the module that pins device memory where it is, and that it is gone. */
	CUresult (*announce)(const struct backing *backing, uint64_t address);
	void (*withdraw)(const struct backing *backing, uint64_t address);
};

extern const struct backing_kind backing_memfd;
extern const struct backing_kind backing_bar;

#endif
