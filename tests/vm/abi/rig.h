/* SPDX-License-Identifier: MIT */
/*
 * What the ABI's tests share. Each test runs in a process of its own, which leaves nothing pinned
 * and nothing allocated in the stand-in; the others go on after one that failed.
 */
#ifndef RIG_H
#define RIG_H

#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "gpu.h"

/*
 * A process that waits in the kernel forever is not waited for. Emulated CPUs on a busy machine may
 * take a minute for what takes a second.
 */
#define TEST_ENDS_WITHIN_MS 300000

static sigjmp_buf touch_failed;

static inline void touch_signal(int number)
{
	siglongjmp(touch_failed, number);
}

/* The signal that touching a byte raises, 0 if none. */
static inline int touch(volatile unsigned char *byte, bool store)
{
	struct sigaction action = {.sa_handler = touch_signal}, bus, segment;
	int number;

	sigaction(SIGBUS, &action, &bus);
	sigaction(SIGSEGV, &action, &segment);
	number = sigsetjmp(touch_failed, 1);
	if (!number) {
		if (store)
			*byte = 1;
		else
			(void)*byte;
	}
	sigaction(SIGBUS, &bus, NULL);
	sigaction(SIGSEGV, &segment, NULL);
	return number;
}

static inline int load_signal(volatile unsigned char *byte)
{
	return touch(byte, false);
}

static inline int store_signal(volatile unsigned char *byte)
{
	return touch(byte, true);
}

/* Checks in a forked child; one that fails there fails the test. */
#define IN_CHILD(body)                                                                             \
	do {                                                                                       \
		pid_t child_ = fork();                                                             \
		if (!child_) {                                                                     \
			body;                                                                      \
			_exit(0);                                                                  \
		}                                                                                  \
		await_child(child_);                                                               \
	} while (0)

static inline void await_child(pid_t child)
{
	int status;

	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK_EQ(status, 0);
}

static inline bool is_ready(int fd, short wanted)
{
	struct pollfd poller = {.fd = fd, .events = wanted};

	CHECK(poll(&poller, 1, 0) >= 0);
	return poller.revents & wanted;
}

static inline bool test_passes(const struct check_test *test)
{
	struct gpustandin_stats left;
	struct pollfd ended;
	int status;
	pid_t child;

	check_current = test->name;
	child = fork();
	if (!child) {
		setpgid(0, 0);
		test->run();
		_exit(0);
	}
	ended = (struct pollfd){.fd = (int)syscall(SYS_pidfd_open, child, 0), .events = POLLIN};
	if (poll(&ended, 1, TEST_ENDS_WITHIN_MS) != 1) {
		kill(-child, SIGKILL);
		FAIL("has not ended after %d ms", TEST_ENDS_WITHIN_MS);
	}
	close(ended.fd);
	waitpid(child, &status, 0);
	/* Children that a failed test left to this process, the subreaper. */
	kill(-child, SIGKILL);
	while (waitpid(-1, NULL, 0) > 0)
		;
	gpu_hold_callbacks(0);
	restore_parameters();
	if (WIFSIGNALED(status))
		fprintf(stderr, "%s: ended by signal %d\n", test->name, WTERMSIG(status));
	if (status)
		return false;

	left = gpu_stats();
	if (left.blocks || left.registrations || left.pins || left.persistent_pins) {
		fprintf(stderr, "%s: left %llu blocks, %llu registrations, %llu + %llu pins\n",
			test->name, left.blocks, left.registrations, left.pins,
			left.persistent_pins);
		return false;
	}
	return true;
}

/* The program's argument, if any, is the name of the only test to run. */
static inline int rig_run(int argc, char **argv, const struct check_test *tests, size_t ntests)
{
	size_t passed = 0, failed = 0;

	CHECK_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
	for (size_t i = 0; i < ntests; i++) {
		if (argc > 1 && strcmp(tests[i].name, argv[1]) != 0)
			continue;
		if (test_passes(&tests[i]))
			passed++;
		else
			failed++;
	}
	if (!passed && !failed) {
		fprintf(stderr, "%s: no test is called %s\n", argv[0], argv[1]);
		return 2;
	}
	printf("%s: %zu tests passed, %zu failed\n", argv[0], passed, failed);
	return failed != 0;
}

#define RIG_MAIN(...)                                                                              \
	int main(int argc, char **argv)                                                            \
	{                                                                                          \
		static const struct check_test tests[] = {__VA_ARGS__};                            \
		return rig_run(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));               \
	}

#endif
