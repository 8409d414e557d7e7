/* SPDX-License-Identifier: MIT */
#include "guard.h"

#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "tally.h"

static _Thread_local sigjmp_buf back;
static _Thread_local volatile sig_atomic_t armed;

static void met(int number)
{
	if (!armed) {
		/* Our own mistake: it ends the program, as it would without us. */
		signal(number, SIG_DFL);
		return;
	}
	siglongjmp(back, number == SIGBUS ? RESULT_SIGBUS : RESULT_SIGSEGV);
}

/* The signal stays unblocked in its handler, so that jumping out needs no system call. */
void guard_install(void)
{
	struct sigaction action = {.sa_handler = met, .sa_flags = SA_NODEFER};

	sigaction(SIGBUS, &action, NULL);
	sigaction(SIGSEGV, &action, NULL);
}

/* Runs an access and returns what it met: the jump must come back into this very function. */
#define GUARDED(access)                                                                            \
	do {                                                                                       \
		int met_signal = sigsetjmp(back, 0);                                               \
                                                                                                   \
		if (!met_signal) {                                                                 \
			armed = 1;                                                                 \
			atomic_signal_fence(memory_order_seq_cst);                                 \
			access;                                                                    \
			atomic_signal_fence(memory_order_seq_cst);                                 \
		}                                                                                  \
		armed = 0;                                                                         \
		return met_signal;                                                                 \
	} while (0)

int guarded_read(const volatile uint32_t *at, uint32_t *value)
{
	GUARDED(*value = *at);
}

int guarded_store(volatile uint32_t *at, uint32_t value)
{
	GUARDED(*at = value);
}

int guarded_copy(void *to, const void *from, size_t size)
{
	GUARDED(memcpy(to, from, size));
}
