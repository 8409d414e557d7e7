/* SPDX-License-Identifier: MIT */
#include "clock.h"

#include <dlfcn.h>
#include <string.h>

#include "ledger.h"
#include "libc.h"

#define WORK_MS 500
#define LOOK_MS 1

static int64_t passed; /* seconds, beyond the real ones */
static uint32_t at_look;
static int stalls;

static void sleep_ms(long milliseconds)
{
	nanosleep(&(struct timespec){.tv_nsec = milliseconds * 1000000}, NULL);
}

static time_t now(void)
{
	struct timespec time;

	libc()->clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + __atomic_load_n(&passed, __ATOMIC_RELAXED);
}

void clock_pass(uint32_t seconds, bool when_looked)
{
	if (when_looked)
		__atomic_store_n(&at_look, seconds, __ATOMIC_RELAXED);
	else
		__atomic_fetch_add(&passed, seconds, __ATOMIC_RELAXED);
}

/* In the extension module, or in a test that the core is linked into. */
static bool is_core(const void *caller)
{
	Dl_info info;

	return dladdr(caller, &info) &&
	       (strstr(info.dli_fname, "/_mapping.") || strstr(info.dli_fname, "/test_"));
}

int clock_look(clockid_t clock, struct timespec *time, const void *caller)
{
	uint32_t seconds = __atomic_load_n(&at_look, __ATOMIC_RELAXED);
	int64_t more = __atomic_load_n(&passed, __ATOMIC_RELAXED);
	int ret;

	if (clock != CLOCK_MONOTONIC || (!seconds && !more) || !is_core(caller))
		return libc()->clock_gettime(clock, time);
	if (seconds && __atomic_exchange_n(&at_look, 0, __ATOMIC_RELAXED)) {
		more = __atomic_add_fetch(&passed, seconds, __ATOMIC_RELAXED);
		sleep_ms(WORK_MS);
	}
	ret = libc()->clock_gettime(clock, time);
	time->tv_sec += more;
	return ret;
}

void clock_stall(uint32_t seconds, const bool *stop)
{
	time_t until = seconds ? now() + seconds : 0;

	stalls++;
	while (seconds && now() < until && !*stop) {
		ledger_unlock();
		sleep_ms(LOOK_MS);
		ledger_lock();
	}
	stalls--;
}

int clock_stalls(void)
{
	return stalls;
}
