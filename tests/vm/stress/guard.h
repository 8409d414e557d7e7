/* SPDX-License-Identifier: MIT */
/* Accesses that may meet SIGBUS or SIGSEGV, which only cost the access; in any thread. */
#ifndef STRESS_GUARD_H
#define STRESS_GUARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void guard_install(void);

/* 0, RESULT_SIGBUS or RESULT_SIGSEGV. */
int guarded_read(const volatile uint32_t *at, uint32_t *value);
int guarded_store(volatile uint32_t *at, uint32_t value);
int guarded_copy(void *to, const void *from, size_t size);

#endif
