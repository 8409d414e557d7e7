/* SPDX-License-Identifier: MIT */
/* The storm's supervisor: starts workers, kills some, and looks at what is left at the end. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "standin.h"
#include "storm.h"

#define STUCK_SECONDS 60

struct storm *storm;

static pid_t workers[WORKERS_MAX];
static unsigned int incarnations[WORKERS_MAX];

static const char usage[] =
	"usage: storm [--seed N] [--operations N] [--seconds N] [--workers N] [--threads N]\n"
	"             [--kill-every N] [--faults] [--json]\n"
	"\n"
	"Operations on /dev/gdrdrv at random, by worker processes of several threads; one worker "
	"is\n"
	"killed every so many operations. Ends after so many operations, or seconds. --faults has "
	"the\n"
	"kernel's allocations fail at random (root, on a kernel with fault injection). Exit status "
	"1:\n"
	"an operation ended as it may not, or something was left behind.\n";

void storm_fail(const struct thread *thread, const char *format, ...)
{
	char text[256];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	dprintf(STDERR_FILENO, "storm: seed %llu, worker %u, thread %u, operation %lu: %s\n",
		(unsigned long long)storm->options.seed, worker.index, thread->number, thread->done,
		text);
	storm->failed = true;
	_exit(1);
}

/* What an operation may meet besides, when allocations and copies fail on purpose. */
static const struct kind injected = {
	"injected", .allowed = {ENOMEM, EFAULT, EAGAIN, ENOBUFS, RESULT_SIGSEGV, RESULT_SIGBUS}};

void record(struct thread *thread, enum operation operation, int result)
{
	bool allowed = kind_allows(&operation_kinds[operation], result);

	if (!allowed && storm->options.faults && result)
		allowed = kind_allows(&injected, result);
	if (!allowed)
		storm_fail(thread, "%s: %s", operation_kinds[operation].name, result_name(result));
	tally_add(&storm->tally, operation, result);
}

void record_death(struct thread *thread, int status)
{
	int number = WIFSIGNALED(status) ? WTERMSIG(status) : SIGKILL;

	if (number == SIGKILL)
		return;
	if (number != SIGSEGV && number != SIGBUS)
		storm_fail(thread, "a process ended by signal %d", number);
	record(thread, LOST_WORKER, number == SIGBUS ? RESULT_SIGBUS : RESULT_SIGSEGV);
}

static void __attribute__((noreturn)) give_up(const char *what)
{
	fprintf(stderr, "storm: %s: %s\n", what, strerror(errno));
	exit(1);
}

static struct options parse(int argc, char **argv)
{
	static const struct option names[] = {
		{"seed", required_argument, NULL, 's'},
		{"operations", required_argument, NULL, 'o'},
		{"seconds", required_argument, NULL, 't'},
		{"workers", required_argument, NULL, 'w'},
		{"threads", required_argument, NULL, 'n'},
		{"kill-every", required_argument, NULL, 'k'},
		{"faults", no_argument, NULL, 'f'},
		{"json", no_argument, NULL, 'j'},
		{},
	};
	struct options options = {
		.seed = 1,
		.operations = 10000,
		.seconds = 600,
		.workers = 3,
		.threads = 3,
		.kill_every = 5000,
	};
	int option;

	while ((option = getopt_long(argc, argv, "", names, NULL)) != -1) {
		uint64_t number = optarg ? strtoull(optarg, NULL, 0) : 0;

		switch (option) {
		case 's':
			options.seed = number;
			break;
		case 'o':
			options.operations = number;
			break;
		case 't':
			options.seconds = number;
			break;
		case 'w':
			options.workers = number;
			break;
		case 'n':
			options.threads = number;
			break;
		case 'k':
			options.kill_every = number;
			break;
		case 'f':
			options.faults = true;
			break;
		case 'j':
			options.json = true;
			break;
		default:
			fputs(usage, stderr);
			exit(2);
		}
	}
	if (optind != argc || !options.workers || options.workers > WORKERS_MAX ||
	    !options.threads || options.threads > THREADS_MAX || !options.kill_every) {
		fputs(usage, stderr);
		exit(2);
	}
	return options;
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

static void set_knob(const char *fault, const char *knob, const char *value)
{
	char path[128];
	int fd;

	snprintf(path, sizeof(path), "/sys/kernel/debug/%s/%s", fault, knob);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, value, strlen(value)) < 0)
		give_up(path);
	close(fd);
}

/* Allocations that may wait are among those that fail, or next to none would. */
static void set_faults(const char *fault, const char *probability)
{
	set_knob(fault, "ignore-gfp-wait", "N");
	set_knob(fault, "task-filter", "Y");
	set_knob(fault, "verbose", "0");
	set_knob(fault, "times", "-1");
	set_knob(fault, "interval", "2");
	set_knob(fault, "probability", probability);
}

static void start_faults(void)
{
	/* By fail-nth alone. */
	set_knob("fail_usercopy", "verbose", "0");
	set_faults("failslab", "1");
	set_knob("fail_page_alloc", "min-order", "0");
	set_faults("fail_page_alloc", "1");
}

static void stop_faults(void)
{
	set_knob("failslab", "probability", "0");
	set_knob("fail_page_alloc", "probability", "0");
}

static void start_worker(unsigned int index)
{
	pid_t pid = fork();

	if (pid < 0)
		give_up("fork");
	if (!pid)
		worker_main(index, incarnations[index]);
	workers[index] = pid;
	incarnations[index]++;
}

static void open_mailboxes(void)
{
	int ends[2];

	for (unsigned int i = 0; i < storm->options.workers; i++) {
		if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends))
			give_up("socketpair");
		for (int end = 0; end < 2; end++)
			install_fd(ends[end], MAILBOX_FD + 2 * i + end);
	}
}

/* What is still in them is closed with them. */
static void close_mailboxes(void)
{
	for (unsigned int i = 0; i < 2 * storm->options.workers; i++)
		close(MAILBOX_FD + i);
}

/* Takes the status of who ended; a worker that was killed is born again. */
static void reap(int flags)
{
	static struct thread nobody;
	unsigned int index;
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, flags)) > 0) {
		for (index = 0; index < storm->options.workers && workers[index] != pid; index++)
			;
		/* Else a grandchild of one that was killed. */
		if (index == storm->options.workers)
			continue;
		if (WIFEXITED(status) && WEXITSTATUS(status))
			storm->failed = true;
		record_death(&nobody, status);
		if (!storm->stop)
			start_worker(index);
	}
}

static void say_who_is_stuck(void)
{
	fprintf(stderr, "storm: seed %llu: nothing done for %d seconds\n",
		(unsigned long long)storm->options.seed, STUCK_SECONDS);
	for (unsigned int i = 0; i < storm->options.workers; i++) {
		for (unsigned int j = 0; j < storm->options.threads; j++) {
			int doing = storm->doing[i][j];

			fprintf(stderr, "storm: worker %u, thread %u: %s\n", i, j,
				doing < 0 ? "nothing" : operation_kinds[doing].name);
		}
	}
	storm->failed = true;
}

static void supervise(void)
{
	const struct options *options = &storm->options;
	const struct timespec turn = {.tv_nsec = 20 * 1000 * 1000};
	struct random random = {options->seed};
	static struct thread nobody;
	uint64_t next_kill = options->kill_every, total, last = 0;
	double end = now() + options->seconds, progress = now();
	sigset_t ended;

	sigemptyset(&ended);
	sigaddset(&ended, SIGCHLD);
	while ((total = storm->tally.total) < options->operations && now() < end &&
	       !storm->failed) {
		sigtimedwait(&ended, NULL, &turn);
		reap(WNOHANG);
		if (total != last)
			progress = now();
		last = total;
		if (now() - progress > STUCK_SECONDS)
			say_who_is_stuck();
		if (total >= next_kill) {
			int result =
				result_of(kill(workers[below(&random, options->workers)], SIGKILL));

			record(&nobody, KILL_WORKER, result);
			next_kill = total + options->kill_every;
		}
	}
}

static void end_workers(void)
{
	storm->stop = true;
	for (unsigned int i = 0; storm->failed && i < storm->options.workers; i++)
		kill(workers[i], SIGKILL);
	reap(0);
}

static void report(const struct gpustandin_stats *left, double seconds)
{
	const struct options *options = &storm->options;

	printf("storm: seed %llu, %u workers of %u threads%s: %llu operations in %.1f s\n",
	       (unsigned long long)options->seed, options->workers, options->threads,
	       options->faults ? ", with injected failures" : "",
	       (unsigned long long)storm->tally.total, seconds);
	tally_print(&storm->tally, operation_kinds, OPERATIONS);
	printf("storm: left: %llu blocks, %llu registrations, %llu pins, %llu pinned pages; "
	       "%llu callbacks, %llu late puts\n",
	       (unsigned long long)left->blocks, (unsigned long long)left->registrations,
	       (unsigned long long)(left->pins + left->persistent_pins),
	       (unsigned long long)left->pinned_pages, (unsigned long long)left->callbacks,
	       (unsigned long long)left->late_puts);
	if (!options->json)
		return;
	printf("{\"seed\": %llu, \"workers\": %u, \"threads\": %u, \"faults\": %s, "
	       "\"operations\": %llu, \"seconds\": %.1f, \"pinned_pages_left\": %llu, "
	       "\"callbacks\": %llu, \"late_puts\": %llu, \"lost_tables\": %llu, \"results\": ",
	       (unsigned long long)options->seed, options->workers, options->threads,
	       options->faults ? "true" : "false", (unsigned long long)storm->tally.total, seconds,
	       (unsigned long long)left->pinned_pages, (unsigned long long)left->callbacks,
	       (unsigned long long)left->late_puts, (unsigned long long)left->lost_tables);
	tally_print_json(&storm->tally, operation_kinds, OPERATIONS);
	printf("}\n");
}

int main(int argc, char **argv)
{
	struct options options = parse(argc, argv);
	struct gpustandin_stats left;
	double start = now();
	sigset_t ended;
	bool back;
	int node;

	storm = shared_memory(sizeof(*storm));
	storm->options = options;
	sigemptyset(&ended);
	sigaddset(&ended, SIGCHLD);
	sigprocmask(SIG_BLOCK, &ended, NULL);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	open_mailboxes();
	/* So that the module cannot be unloaded. */
	node = open(GDRDRV_NODE, O_RDWR | O_CLOEXEC);
	if (node < 0)
		give_up(GDRDRV_NODE);
	if (options.faults)
		start_faults();

	for (unsigned int i = 0; i < options.workers; i++)
		start_worker(i);
	supervise();
	end_workers();

	if (options.faults)
		stop_faults();
	close_mailboxes();
	close(node);
	back = gpu_memory_all_back(&left);
	report(&left, now() - start);
	if (!back)
		fprintf(stderr, "storm: GPU memory is still held\n");
	return storm->failed || !back;
}
