// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Faults on command, each of the kind that one checker of a debug kernel is there to find. */
#include <linux/compiler.h>
#include <linux/jiffies.h>
#include <linux/mutex.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/spinlock.h>

#include "standin.h"

static DEFINE_MUTEX(outer);
static DEFINE_MUTEX(inner);
static DEFINE_SPINLOCK(spinlock);

static noinline int use_after_free(void)
{
	u8 *byte = kmalloc(1, GFP_KERNEL);

	if (!byte)
		return -ENOMEM;
	kfree(byte);
	OPTIMIZER_HIDE_VAR(byte);
	(void)READ_ONCE(*byte);
	return 0;
}

/* So many that no stale word somewhere points to all of them. */
static noinline int leak(void)
{
	int i;

	for (i = 0; i < 10; i++) {
		if (!kmalloc(64, GFP_KERNEL))
			return -ENOMEM;
	}
	return 0;
}

static noinline int lock_inversion(void)
{
	mutex_lock(&outer);
	mutex_lock(&inner);
	mutex_unlock(&inner);
	mutex_unlock(&outer);

	mutex_lock(&inner);
	mutex_lock(&outer);
	mutex_unlock(&outer);
	mutex_unlock(&inner);
	return 0;
}

static noinline int sleep_in_atomic(void)
{
	void *memory;

	spin_lock(&spinlock);
	memory = kmalloc(64, GFP_KERNEL);
	spin_unlock(&spinlock);
	kfree(memory);
	return 0;
}

static noinline int racing_count(void)
{
	static u32 count;
	unsigned long end = jiffies + HZ / 2;

	while (time_before(jiffies, end)) {
		count++;
		cond_resched();
	}
	return 0;
}

int fault_make(u32 kind)
{
	switch (kind) {
	case GPUSTANDIN_WARNING:
		WARN(1, "asked for");
		return 0;
	case GPUSTANDIN_USE_AFTER_FREE:
		return use_after_free();
	case GPUSTANDIN_LEAK:
		return leak();
	case GPUSTANDIN_LOCK_INVERSION:
		return lock_inversion();
	case GPUSTANDIN_SLEEP_IN_ATOMIC:
		return sleep_in_atomic();
	case GPUSTANDIN_DATA_RACE:
		return racing_count();
	default:
		return -EINVAL;
	}
}
