/* SPDX-License-Identifier: MIT */
/* Private descriptors: what becomes of them in forked children, also amid their opening. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "check.h"
#include "common/forks.h"

#define ANY_FILE "/dev/null"
#define BUSY_FILE "/dev/zero"

static atomic_int interruptions;

int __real_open(const char *path, int flags, ...);

/* A slow one, so that forks come in between. */
int __wrap_open(const char *path, int flags, ...)
{
	int fd;

	if (interruptions) {
		interruptions--;
		errno = EINTR;
		return -1;
	}
	fd = __real_open(path, flags);
	usleep(100);
	return fd;
}

static bool is_open(int fd)
{
	return fcntl(fd, F_GETFD) >= 0;
}

#define IN_CHILD(body)                                                                             \
	do {                                                                                       \
		pid_t child_ = fork();                                                             \
		int status_;                                                                       \
		if (!child_) {                                                                     \
			alarm(30);                                                                 \
			body;                                                                      \
			_exit(0);                                                                  \
		}                                                                                  \
		CHECK_EQ(waitpid(child_, &status_, 0), child_);                                    \
		CHECK_EQ(status_, 0);                                                              \
	} while (0)

static void a_private_one_is_closed_on_exec(void)
{
	int ends[2], opened = core_private_open(ANY_FILE, O_RDWR);
	int duplicate = core_private_duplicate(opened);

	CHECK_EQ(pipe(ends), 0);
	CHECK_EQ(core_private_adopt(ends[0]), ends[0]);
	CHECK_EQ(fcntl(opened, F_GETFD), FD_CLOEXEC);
	CHECK_EQ(fcntl(duplicate, F_GETFD), FD_CLOEXEC);
	CHECK_EQ(fcntl(ends[0], F_GETFD), FD_CLOEXEC);
	CHECK_EQ(fcntl(opened, F_GETFL) & O_ACCMODE, O_RDWR);
	CHECK_EQ(core_private_close(opened), 0);
	CHECK_EQ(core_private_close(duplicate), 0);
	CHECK_EQ(core_private_close(ends[0]), 0);
	CHECK(!is_open(opened));
	close(ends[1]);
}

static void what_cannot_be_opened_is_told(void)
{
	CHECK_EQ(core_private_open("/none", O_RDONLY), -1);
	CHECK_EQ(errno, ENOENT);
	CHECK_EQ(core_private_duplicate(-1), -1);
	CHECK_EQ(errno, EBADF);
	CHECK_EQ(core_private_adopt(-1), -1);
}

static void an_interrupted_open_is_made_again(void)
{
	int fd;

	interruptions = 3;
	fd = core_private_open(ANY_FILE, O_RDONLY);
	CHECK(fd >= 0);
	CHECK_EQ(interruptions, 0);
	CHECK_EQ(core_private_close(fd), 0);
}

static void a_child_keeps_no_private_one(void)
{
	int fd = core_private_open(ANY_FILE, O_RDONLY), far;

	far = fcntl(fd, F_DUPFD_CLOEXEC, 500);
	CHECK_EQ(core_private_adopt(far), far);
	IN_CHILD({
		CHECK(!is_open(fd));
		CHECK(!is_open(far));
	});
	CHECK(is_open(fd));
	CHECK_EQ(core_private_close(far), 0);
	CHECK_EQ(core_private_close(fd), 0);
}

static void a_child_keeps_one_that_was_handed_over(void)
{
	int fd = core_private_open(ANY_FILE, O_RDONLY);

	core_private_hand_over(fd);
	IN_CHILD(CHECK(is_open(fd)));
	CHECK_EQ(core_private_close(fd), -1);
	CHECK_EQ(errno, EBADF);
	CHECK_EQ(close(fd), 0);
}

static void a_child_leaves_alone_what_has_taken_its_number(void)
{
	int fd = core_private_open(ANY_FILE, O_RDONLY), other;

	CHECK_EQ(core_private_close(fd), 0);
	other = dup(0);
	CHECK_EQ(other, fd);
	IN_CHILD(CHECK(is_open(other)));
	CHECK_EQ(core_private_close(other), -1);
	CHECK_EQ(errno, EBADF);
	CHECK(is_open(other));
	close(other);
}

static void a_child_does_not_close_its_own_by_its_parents_number(void)
{
	int fd = core_private_open(ANY_FILE, O_RDONLY);

	IN_CHILD({
		CHECK_EQ(dup(0), fd);
		CHECK_EQ(core_private_close(fd), -1);
		CHECK(is_open(fd));
	});
	CHECK_EQ(core_private_close(fd), 0);
}

static void a_child_has_private_ones_of_its_own(void)
{
	IN_CHILD({
		int fd = core_private_open(ANY_FILE, O_RDONLY);

		IN_CHILD(CHECK(!is_open(fd)));
		CHECK_EQ(core_private_close(fd), 0);
	});
}

static void *fork_elsewhere(void *lent)
{
	IN_CHILD(CHECK(!is_open(*(int *)lent)));
	return NULL;
}

static void a_child_keeps_what_its_thread_lends(void)
{
	int fd = core_private_open(ANY_FILE, O_RDONLY);
	pthread_t thread;

	core_private_lend(fd);
	IN_CHILD({
		CHECK(is_open(fd));
		CHECK_EQ(core_private_close(fd), -1);
	});
	CHECK_EQ(pthread_create(&thread, NULL, fork_elsewhere, &fd), 0);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	core_private_take_back();
	IN_CHILD(CHECK(!is_open(fd)));

	core_private_lend(fd);
	CHECK_EQ(core_private_close(fd), 0);
	CHECK_EQ(core_private_open(ANY_FILE, O_RDONLY), fd);
	IN_CHILD(CHECK(!is_open(fd)));
	CHECK_EQ(core_private_close(fd), 0);
	core_private_lend(-1);
}

static atomic_bool busy;

static void *open_and_close(void *unused)
{
	while (busy) {
		int fd = core_private_open(BUSY_FILE, O_RDONLY);
		int duplicate = core_private_duplicate(fd);

		CHECK_EQ(core_private_close(fd), 0);
		CHECK_EQ(core_private_close(duplicate), 0);
	}
	return unused;
}

static int count_busy_files(void)
{
	struct stat wanted, found;
	int count = 0;

	CHECK_EQ(stat(BUSY_FILE, &wanted), 0);
	for (int fd = 0; fd < 100; fd++)
		count += !fstat(fd, &found) && found.st_rdev == wanted.st_rdev;
	return count;
}

static void check_busy_threads(void *(*keep_busy)(void *))
{
	pthread_t threads[4];

	busy = true;
	for (int i = 0; i < 4; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, keep_busy, NULL), 0);
	for (int i = 0; i < 50; i++)
		IN_CHILD(CHECK_EQ(count_busy_files(), 0));
	busy = false;
	for (int i = 0; i < 4; i++)
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
}

static void a_child_of_busy_threads_keeps_none_of_theirs(void)
{
	check_busy_threads(open_and_close);
}

/* CUDA's lock, which a fork takes too. */
static pthread_mutex_t lock_of_cuda = PTHREAD_MUTEX_INITIALIZER;

static void lock_cuda(void)
{
	pthread_mutex_lock(&lock_of_cuda);
}

static void unlock_cuda(void)
{
	pthread_mutex_unlock(&lock_of_cuda);
}

/* Export as CUDA does, slowly, so that forks come in between. */
static void *export_and_close(void *unused)
{
	while (busy) {
		int fd;

		core_export_begin();
		usleep(100);
		lock_cuda();
		fd = open(BUSY_FILE, O_RDONLY);
		unlock_cuda();
		usleep(100);
		CHECK_EQ(core_private_adopt(fd), fd);
		core_export_end();
		CHECK_EQ(core_private_close(fd), 0);
	}
	return unused;
}

static void a_child_of_exporting_threads_keeps_none_of_theirs(void)
{
	CHECK_EQ(pthread_atfork(lock_cuda, unlock_cuda, unlock_cuda), 0);
	check_busy_threads(export_and_close);
}

CHECK_MAIN(TEST(a_private_one_is_closed_on_exec), TEST(what_cannot_be_opened_is_told),
	   TEST(an_interrupted_open_is_made_again), TEST(a_child_keeps_no_private_one),
	   TEST(a_child_keeps_one_that_was_handed_over),
	   TEST(a_child_leaves_alone_what_has_taken_its_number),
	   TEST(a_child_does_not_close_its_own_by_its_parents_number),
	   TEST(a_child_has_private_ones_of_its_own), TEST(a_child_keeps_what_its_thread_lends),
	   TEST(a_child_of_busy_threads_keeps_none_of_theirs),
	   TEST(a_child_of_exporting_threads_keeps_none_of_theirs))
